"""Run the command line in this process: its results, its documents, and its errors."""

import json

from typer.testing import CliRunner

from bayeslaw.cli import app


def run(*args, code=0):
    """Run a command; its result, with the exit code that is expected."""
    result = CliRunner().invoke(app, [*map(str, args)], env={"COLUMNS": "80"})
    assert result.exit_code == code, result.output
    return result


def fails(*args) -> str:
    """The one line that reports a user's mistake."""
    result = run(*args, code=2)
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    return result.stderr


def document(*args):
    """The JSON document of a command."""

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(run(*args, "--json").stdout, parse_constant=refuse)
