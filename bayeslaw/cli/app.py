"""The application: commands register here, and a user's mistake becomes one line.

Results go to stdout, everything else to stderr. A user's mistake is one line on stderr and exit
code 2. Nothing heavy is imported before a command runs, so that ``--help`` answers at once.
"""

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn, TextIO

import typer
from typer.core import TyperGroup

from bayeslaw import __version__
from bayeslaw.cli.options import Command, spread
from bayeslaw.common.errors import BayeslawError, FitWarning, TableWarning


def main() -> NoReturn:
    """Run the command line; the console script's entry point."""
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="replace")  # a terminal that cannot show a character is no error
    try:
        sys.exit(app())
    except KeyboardInterrupt:
        _interrupted()


ORDER = ["fit", "forecast", "score", "compare", "check", "plan", "anchors", "study", "report"]
ORDER += ["simulate"]
"""Commands as help lists them: in the order of the work."""


class _Group(TyperGroup):
    """Commands that tell a user's mistake in one line."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names in the order of the work."""
        return sorted(self.commands, key=ORDER.index)

    def main(self, args: Any = None, *, standalone_mode: bool = True, **extra: Any) -> Any:  # type: ignore[override]
        """Run a command; exit with 0, 2 for a user's mistake, or 130 if interrupted."""
        try:
            with _one_line_warnings():
                code = super().main(args, standalone_mode=False, **extra)
        except typer.TyperException as error:
            _fail(error.format_message())
        except (BayeslawError, OSError, UnicodeDecodeError) as error:
            _fail(str(error))
        if code == 130:
            _interrupted()
        return code if not standalone_mode else sys.exit(code or 0)


app = typer.Typer(
    cls=_Group,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def command(*examples: str) -> Callable[[Command], Command]:
    """Register a command, with `examples` in its help."""

    def register(run: Command) -> Command:
        label = "Example:" if len(examples) == 1 else "Examples:"
        lines = (f"  {line}" for example in examples for line in example.splitlines())
        text = "\n\n".join([inspect.cleandoc(run.__doc__ or ""), f"\b\n{label}"])
        app.command(help="\n".join([text, *lines]))(spread(run))
        return run

    return register


@app.callback(invoke_without_command=True)
def bayeslaw(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    """Bayesian scaling laws for continual pre-training, with bands that can be believed.

    Tables have one row per measured loss: params, tokens, loss, and where the experiment has them
    replay and ptpp. Rows are chosen by pandas queries.
    """
    if version:
        typer.echo(f"bayeslaw {__version__}")
    elif ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


# -- streams --------------------------------------------------------------------------------------


def show(as_json: bool, name: str, told: Any, more: dict[str, Any] | None = None) -> None:
    """Print a result: its JSON document, or what a terminal shows."""
    from bayeslaw.cli import terminal

    document = {"command": name, "version": __version__} | told.document | (more or {})
    if as_json:
        typer.echo(terminal.dumps(document))
        return
    terminal.show(told)
    if document.get("out"):
        note(f"wrote {document['out']}")


def note(text: str, label: str = "", color: str | None = None) -> None:
    """One line on stderr."""
    label = typer.style(f"{label}:", fg=color, bold=True) + " " if label else ""
    typer.echo(label + " ".join(text.split()), err=True)


def _fail(text: str) -> NoReturn:
    note(text, "error", "red")
    sys.exit(2)


def _interrupted() -> NoReturn:
    typer.echo("interrupted", err=True)
    sys.exit(130)


@contextmanager
def _one_line_warnings() -> Iterator[None]:
    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        note(str(message), "warning", "yellow")

    with warnings.catch_warnings():
        for kind in (FitWarning, TableWarning):
            warnings.simplefilter("always", kind)
        warnings.showwarning = show
        yield
