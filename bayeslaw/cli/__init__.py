"""The command line, ``bayeslaw COMMAND``: commands of a theme are a module.

A new command is a function decorated with `bayeslaw.cli.app.command` in a module imported here. It
returns what a function of a ``render`` module makes of a result; only those may import heavy
packages.
"""

from bayeslaw.cli import derived as derived
from bayeslaw.cli import designs as designs
from bayeslaw.cli import fits as fits
from bayeslaw.cli import forecasts as forecasts
from bayeslaw.cli import plans as plans
from bayeslaw.cli.app import app as app
from bayeslaw.cli.app import main as main
