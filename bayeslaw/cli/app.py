"""The application: registration of commands, options in groups, warnings, and exit codes.

A user's mistake is one line on stderr and exit code 2. Nothing heavy is imported before a command
runs, so that ``--help`` is fast.
"""

import inspect
import json as jsons
import os
import shlex
import shutil
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from functools import wraps
from inspect import Parameter
from typing import Annotated, Any, NoReturn, get_args, get_origin

import typer
from typer.core import TyperGroup

from bayeslaw import __version__
from bayeslaw.cli.options import CONTEXT, OUTPUTS, check_outputs, declared, option
from bayeslaw.common.errors import BayeslawError, FitWarning, TableWarning, command_line
from bayeslaw.common.formatting import jsonable
from bayeslaw.common.progress import showing
from bayeslaw.common.shown import Shown

ORDER = [
    "init",
    "fit",
    "forecast",
    "running",
    "register",
    "verify",
    "accuracy",
    "backtest",
]
ORDER += ["score", "compare", "check", "derive", "recipes", "plan", "anchors", "report"]
ORDER += ["simulate"]
"""Order of the commands in the help: that of a typical analysis."""


@dataclass(frozen=True)
class Printing:
    """How results are printed, by all commands."""

    json: bool = option("Print one JSON document.", "--json", default=False)
    verbose: bool = option("Print details of the fit, too.", "--verbose", default=False)


@dataclass(frozen=True)
class Writing:
    """Whether files that exist are replaced, by all commands that write some."""

    force: bool = option("Replace files that exist.", "--force", default=False)


@dataclass(frozen=True)
class Result:
    """What a command shows, lines on stderr after it (none with ``--json``), and the exit code."""

    shown: Shown
    notes: Sequence[str] = ()
    code: int = 0


RENAMED = {
    "--allow-unconverged": "--accept unconverged",
    "--beyond-evidence": "--accept beyond-evidence",
}
"""Options of version 0.1.0, and what to write instead."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as of a shell."""

type Command = Callable[..., Shown | Result]


def main() -> NoReturn:
    """Run the command line; the console script's entry point."""
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(
                errors="replace"
            )  # some terminals cannot encode every character
    try:
        try:
            sys.exit(app())
        except KeyboardInterrupt:
            _interrupted()
    except SystemExit as end:
        if end.code == INTERRUPTED:
            # A thread of the sampler that waits for Python would panic while Python shuts down.
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        raise


class _Group(TyperGroup):
    """Commands that report a user's mistake in one line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.obj = shlex.join(
            ["bayeslaw", *args]
        )  # for a report, which names its command
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: object) -> list[str]:
        return sorted(self.commands, key=ORDER.index)

    def main(self, *args: Any, **settings: Any) -> Any:
        """Run a command; exit with its code, 2 for a user's mistake, or 130 if interrupted."""
        try:
            with command_line():
                code = super().main(*args, **settings | {"standalone_mode": False})
        except typer.TyperException as error:
            old = getattr(error, "option_name", None)
            if old in RENAMED:
                _fail(f"{old} is now {RENAMED[old]}.")
            _fail(error.format_message())
        except (BayeslawError, OSError, UnicodeDecodeError) as error:
            _fail(str(error))
        if code == INTERRUPTED:
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
    """Register a function that returns the result of a command, with `examples` in its help.

    A parameter that is a dataclass stands for a group of options, its fields. The command has those
    of `Printing` as well, and if it writes files those of `Writing`.
    """

    def register(function: Command) -> Command:
        label = "Example:" if len(examples) == 1 else "Examples:"
        lines = (f"  {line}" for example in examples for line in example.splitlines())
        text = "\n\n".join([inspect.cleandoc(function.__doc__ or ""), f"\b\n{label}"])
        app.command(help="\n".join([text, *lines]))(_with_options(function))
        return function

    return register


def _with_options(function: Command) -> Callable[..., int]:
    """Return a function of single options that prints the result, and returns the exit code."""
    own = [*inspect.signature(function).parameters.values()]
    outputs = _outputs(own)
    if outputs:
        own.append(Parameter("writing", Parameter.KEYWORD_ONLY, annotation=Writing))
    own.append(Parameter("printing", Parameter.KEYWORD_ONLY, annotation=Printing))
    groups: dict[str, Any] = {
        p.name: p.annotation for p in own if is_dataclass(p.annotation)
    }
    options = [Parameter("ctx", Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    for p in own:
        if p.name in groups:
            for name, of in declared(groups[p.name]).items():
                options.append(_declared(p, name, of.option, of.kind))
        else:
            options.append(_declared(p, p.name, p.default, p.annotation))

    @wraps(function)
    def run(ctx: typer.Context, **values: Any) -> int:
        CONTEXT.set(ctx)
        if outputs:
            _check_outputs(outputs, values)
        for name, group in groups.items():
            values[name] = group(**{each: values.pop(each) for each in declared(group)})
        printing = values.pop("printing")
        values.pop("writing", None)
        with _one_line_warnings() as said:
            with showing(True):
                returned = function(**values)
            result = returned if isinstance(returned, Result) else Result(returned)
            of_result = result.shown.document.get(
                "warnings", []
            )  # such as those of a report
            assert isinstance(of_result, list)
            shown = result.shown.adding(warnings=[*of_result, *said])
            show(function.__name__, shown, result.notes, printing)
        return result.code

    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in options}
    return run


def _outputs(parameters: Sequence[Parameter]) -> list[str]:
    """Names of the options that name a file to write."""
    options: dict[str, Any] = {}
    for p in parameters:
        if is_dataclass(p.annotation):
            group: Any = p.annotation
            options |= {name: of.option for name, of in declared(group).items()}
        else:
            options[p.name] = p.default
    return [
        name for name, option in options.items() if any(option is o for o in OUTPUTS)
    ]


def _check_outputs(outputs: Sequence[str], values: Mapping[str, Any]) -> None:
    """Refuse to write over files; `values` are those of all options of a command."""
    inputs: list[Any] = []
    for name, value in values.items():
        if name not in outputs:
            inputs += value if isinstance(value, list) else [value]
    written = {name: values[name] for name in outputs if values[name] is not None}
    check_outputs(written, inputs, force=values["force"])


def _declared(
    parameter: Parameter, name: str, default: Any, annotation: Any
) -> Parameter:
    """An option; one whose annotation has a function that parses it has text.

    An option that is parsed to a collection may be repeated.
    """
    if get_origin(annotation) is Annotated:
        kind, parse = get_args(annotation)
        repeated = get_origin(kind) is Collection

        def parsed(param: typer.CallbackParam, value: str | list[str] | None) -> Any:
            return get_origin(kind)() if value is None else parse(value, param.opts[0])

        default.callback = parsed
        annotation = list[str] if repeated else str | None
    return parameter.replace(name=name, default=default, annotation=annotation)


@app.callback(invoke_without_command=True)
def bayeslaw(
    ctx: typer.Context,
    version: bool = option("Show the version.", "--version", default=False),
) -> None:
    """Bayesian scaling laws for continual pre-training: fits, forecasts with bands, plans.

    A table has one row per measured loss, with columns params, tokens, loss and, where the
    experiment varies them, replay and ptpp. Rows are selected by pandas queries.
    """
    if version:
        typer.echo(f"bayeslaw {__version__}")
    elif ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def show(command: str, shown: Shown, notes: Sequence[str], printing: Printing) -> None:
    """Print what a command shows: to stdout, and notes to stderr."""
    document = shown.document
    if printing.json:
        whole = jsonable({"command": command, "version": __version__, **document})
        typer.echo(jsons.dumps(whole, allow_nan=False))  # what is not finite is null
        return
    width = shutil.get_terminal_size().columns
    typer.echo(shown.text(width, sys.stdout.isatty(), printing.verbose))
    out = document.get("out")
    for text in (*([f"wrote {out}"] if out else []), *notes):
        note(text)


def note(text: str, label: str = "", color: str | None = None) -> None:
    if label:
        shown = f"{label}:"
        label = (
            typer.style(shown, fg=color, bold=True) if sys.stderr.isatty() else shown
        )
        label += " "
    # `typer.echo` would write into the line of a bar.
    print(label + " ".join(text.split()), file=sys.stderr, flush=True)


def _fail(text: str) -> NoReturn:
    note(text, "error", "red")
    sys.exit(2)


def _interrupted() -> NoReturn:
    typer.echo("interrupted", err=True)
    sys.exit(INTERRUPTED)


@contextmanager
def _one_line_warnings() -> Iterator[list[str]]:
    """Print each warning once, on one line, and collect them."""
    said: list[str] = []

    def warn(message: Warning | str, *_: object, **__: object) -> None:
        if str(message) not in said:
            said.append(str(message))
            note(said[-1], "warning", "yellow")

    with warnings.catch_warnings():
        for kind in (FitWarning, TableWarning):
            warnings.simplefilter("always", kind)
        warnings.showwarning = warn
        yield said
