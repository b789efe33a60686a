"""The application: registration of commands, output streams, and exit codes.

Results go to stdout, everything else to stderr. A user's mistake is one line on stderr and exit
code 2. Nothing heavy is imported before a command runs, so that ``--help`` is fast.
"""

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from bayeslaw import __version__
from bayeslaw.cli.options import Command, spread
from bayeslaw.common.errors import BayeslawError, FitWarning, TableWarning

if TYPE_CHECKING:
    from bayeslaw.cli.terminal import Rendered


def main() -> NoReturn:
    """Run the command line; the console script's entry point."""
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="replace")  # some terminals cannot encode every character
    try:
        sys.exit(app())
    except KeyboardInterrupt:
        _interrupted()


ORDER = ["init", "fit", "forecast", "verify", "backtest", "score", "compare", "check", "derive"]
ORDER += ["floor", "recipes", "plan", "anchors", "study", "report", "export", "simulate"]
"""Order of the commands in the help: that of a typical analysis."""


class _Group(TyperGroup):
    """Commands that report a user's mistake in one line."""

    def list_commands(self, ctx: object) -> list[str]:
        """Names in the order of a typical analysis."""
        return sorted(self.commands, key=ORDER.index)

    def main(self, *args: Any, **settings: Any) -> Any:
        """Run a command; exit with 0, 2 for a user's mistake, or 130 if interrupted."""
        try:
            with _one_line_warnings():
                code = super().main(*args, **settings | {"standalone_mode": False})
        except typer.TyperException as error:
            _fail(error.format_message())
        except (BayeslawError, OSError, UnicodeDecodeError) as error:
            _fail(str(error))
        if code == 130:
            _interrupted()
        return sys.exit(code or 0) if settings.get("standalone_mode", True) else code


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
    """Bayesian scaling laws for continual pre-training: fits, forecasts with bands, plans.

    A table has one row per measured loss, with columns params, tokens, loss and, where the
    experiment varies them, replay and ptpp. Rows are selected by pandas queries.
    """
    if version:
        typer.echo(f"bayeslaw {__version__}")
    elif ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


# -- streams --------------------------------------------------------------------------------------


def show(
    as_json: bool, name: str, rendered: "Rendered", more: Mapping[str, object] | None = None
) -> None:
    """Print the result of the command `name`; `more` are further fields of its JSON document."""
    from bayeslaw.cli import terminal

    document = {"command": name, "version": __version__} | rendered.document | dict(more or {})
    if as_json:
        typer.echo(terminal.dumps(document))
        return
    terminal.show(rendered)
    if document.get("out"):
        note(f"wrote {document['out']}")


def note(text: str, label: str = "", color: str | None = None) -> None:
    """Print one line on stderr."""
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
    def show(message: Warning | str, *_: object, **__: object) -> None:
        note(str(message), "warning", "yellow")

    with warnings.catch_warnings():
        for kind in (FitWarning, TableWarning):
            warnings.simplefilter("always", kind)
        warnings.showwarning = show
        yield
