"""The command line, ``bayeslaw COMMAND``: one module of commands per job.

A new command is a function decorated with `bayeslaw.cli.app.command` in a module imported here. Its
output is built by a function of a ``render`` module; only those may import heavy packages.
"""

from bayeslaw.cli import anchoring as anchoring
from bayeslaw.cli import backtests as backtests
from bayeslaw.cli import checks as checks
from bayeslaw.cli import deriving as deriving
from bayeslaw.cli import exporting as exporting
from bayeslaw.cli import fits as fits
from bayeslaw.cli import floors as floors
from bayeslaw.cli import plans as plans
from bayeslaw.cli import registering as registering
from bayeslaw.cli import reports as reports
from bayeslaw.cli import starting as starting
from bayeslaw.cli import studying as studying
from bayeslaw.cli.app import app as app
from bayeslaw.cli.app import main as main
