"""The command line, ``bayeslaw COMMAND``: one module of commands per job.

A new command is one function under `bayeslaw.cli.app.command` in a module imported here; what it
says is one function of a ``tell`` module, which may import what is heavy.
"""

from bayeslaw.cli import fits as fits
from bayeslaw.cli.app import app as app
from bayeslaw.cli.app import main as main
