"""Run commands, in this process or as one of their own, and read their output and errors."""

import json
import os
import subprocess
import sys
from unittest.mock import patch

from typer.testing import CliRunner

from bayeslaw.cli import app
from bayeslaw.cli.app import dumps, show
from tests.support import DATA

DELPHI = str(DATA / "delphi" / "isotoken.csv")
OLMO = str(DATA / "olmo" / "ladder.csv")
SPLIT = ("--law", "chinchilla", "--train", "scale <= 3e20", "--test", "scale >= 1e21")
GRID = "params=1e9,1e10 tokens=1e9,1e10,1e11"
COMMANDS = ("fit", "forecast", "score", "compare", "check", "plan", "anchors", "study", "report")
COMMANDS += ("simulate", "verify", "backtest", "export", "derive", "floor", "recipes", "init")
WITHOUT_DRAWS = ("verify", "export", "derive", "floor", "recipes", "init")
"""Commands that draw no random numbers."""


def run(*args, code=0):
    """Run a command; its result, with the exit code that is expected."""
    result = CliRunner().invoke(app, [*map(str, args)], env={"COLUMNS": "80"})
    assert result.exit_code == code, result.output
    return result


def fails(*args) -> str:
    """Run a command with a mistake in it; the one line on stderr."""
    result = run(*args, code=2)
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    return result.stderr


def document(*args):
    """The JSON document that a command prints with ``--json``."""

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(run(*args, "--json").stdout, parse_constant=refuse)


def both(*args, code=0) -> tuple[str, dict]:
    """Text that a command prints, and its document, from one run."""
    with patch("bayeslaw.cli.app.show", wraps=show) as shown:
        text = run(*args, code=code).stdout
    return text, json.loads(dumps(shown.call_args.args[1].shown.document))


def process(*args: str, **kwargs) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *args],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"COLUMNS": "80"},
        **kwargs,
    )
