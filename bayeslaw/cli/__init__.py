"""The command line, ``bayeslaw COMMAND``: one module of commands per job.

A new command is one function under `bayeslaw.cli.app.command` in a module imported here; what it
says is one function of a ``tell`` module, which may import what is heavy.
"""

from bayeslaw.cli import anchoring as anchoring
from bayeslaw.cli import checks as checks
from bayeslaw.cli import fits as fits
from bayeslaw.cli import plans as plans
from bayeslaw.cli import reports as reports
from bayeslaw.cli import studying as studying
from bayeslaw.cli.app import app as app
from bayeslaw.cli.app import main as main
