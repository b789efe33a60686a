"""Options: how they are declared and described, and those that several commands have in common."""

import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import bayeslaw as bl
from bayeslaw.cli.parsing import Columns, Covariates
from bayeslaw.common.errors import (
    Acceptance,
    BayeslawError,
    FileError,
    TableError,
    unknown,
)
from bayeslaw.common.files import models_dir
from bayeslaw.inference.settings import FitSettings, about

TABLES = (".csv", ".parquet")
FIGURES = (".png", ".pdf", ".svg")
"""Endings of the files that are written."""
CONTEXT: ContextVar[typer.Context] = ContextVar("context")
"""Of the command that runs."""

# -- kinds of options -----------------------------------------------------------------------------
# They are the defaults of a command's parameters, and of the fields of a group.


def option(text: str, *names: str, default: Any = None, **settings: Any) -> Any:
    """Option with a help text; `names` if these are not that of the parameter."""
    return typer.Option(default, *names, help=text, **settings)


def of_setting(field: "Field[Any]", **more: Any) -> Any:
    """Option of a setting of a fit, with its default and its help."""
    description = about(field)
    assert description is not None
    # A flag without its opposite: what happens without it is the default.
    names = [f"--{field.name}"] if field.type == bool | None else []
    if description.least is not None:
        more["min"] = description.least
    return option(
        description.help,
        *names,
        default=field.default,
        metavar=description.metavar,
        **more,
    )


def argument(text: str, *, default: Any = ..., **settings: Any) -> Any:
    return typer.Argument(default, help=text, show_default=False, **settings)


def query(text: str) -> Any:
    return option(text, metavar="QUERY")


OUTPUTS: list[Any] = []
"""Options that name a file to write; `check_outputs` looks at their values."""


def output(text: str, *endings: str, **settings: Any) -> Any:
    """Option that names a file to write, whose name has one of some endings."""
    declared = option(text, callback=writable(*endings), **settings)
    OUTPUTS.append(declared)
    return declared


def check_outputs(
    outputs: Mapping[str, Path], inputs: Iterable[Any], *, force: bool
) -> None:
    """Refuse, before the work, to write over a file.

    Parameters
    ----------
    outputs : mapping of str to Path
        Files to write, by the names of their options.
    inputs : iterable
        Values of all other options. One that names a file is read, so it is never replaced.
    force : bool
        Whether other files may be replaced.
    """
    read = [
        value for value in inputs if isinstance(value, str | Path) and _is_file(value)
    ]
    for name, path in outputs.items():
        if not _is_file(path):  # nor is anything lost in a device, such as /dev/stdout
            continue
        for value in read:
            # Another spelling, a symbolic or a hard link may name the same file.
            if os.path.samefile(value, path):
                raise FileError(
                    f"{path}: --{name.replace('_', '-')} would replace {value}, which this command "
                    "reads; name another file."
                )
        if not force:
            raise FileError(
                f"{path} exists; name another file, or replace it with --force."
            )


def _is_file(name: str | Path) -> bool:
    """Whether a value names a file; values of other options may be any text."""
    try:
        return os.path.isfile(name)
    except ValueError:  # such as a null byte in a query
        return False


def writable(*endings: str) -> Callable[[Path | None], Path | None]:
    """Check, before the work, of a file to be written after it."""

    def check(path: Path | None) -> Path | None:
        if path is None:
            return None
        path = Path(path)
        obstacle = _obstacle(path, endings)
        if obstacle:
            raise FileError(f"{path}: cannot write: {obstacle}.")
        return path

    return check


def _obstacle(path: Path, endings: Sequence[str]) -> str:
    """Why a file cannot be written; empty if it can."""
    if path.is_dir():
        return "it is a folder"
    if path.suffix not in endings:
        return f"its name must end in {' or '.join(endings)}"
    if not path.parent.is_dir():
        return f"no folder {path.parent}"
    if not os.access(path.parent, os.W_OK):
        return f"no permission in {path.parent}"
    return ""


def positive(param: typer.CallbackParam, value: float | None) -> float | None:
    if value is not None and not 0 < value < math.inf:
        raise BayeslawError(f"{param.opts[0]} {value:g}: give a positive number.")
    return value


def refuse(where: str, *names: str) -> None:
    """Raise `BayeslawError` for an option that was given and has no effect `where` it was."""
    for name in names:
        source = CONTEXT.get().get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise BayeslawError(f"--{name.replace('_', '-')} has no effect {where}.")


@dataclass(frozen=True)
class Declared:
    """An option of a group: how it is declared, and the type of its value."""

    option: Any
    kind: Any


def declared(group: type) -> dict[str, Declared]:
    """Options of a group, by the names of its fields; some settings of a fit have none."""
    options = {}
    for field in fields(group):
        description = about(field)
        if description is None:
            options[field.name] = Declared(field.default, field.type)
        elif field.name == "seed":
            options[field.name] = Declared(SEED, field.type)
        elif description.option:
            kind = field.type if description.metavar is None else str
            options[field.name] = Declared(of_setting(field), kind)
    return options


def names_of(group: type, *besides: str) -> list[str]:
    """Names of the options of a group."""
    return [name for name in declared(group) if name not in besides]


# -- options of several commands ------------------------------------------------------------------

LAWS = ", ".join(sorted(path.stem for path in models_dir().glob("*.toml")))
LAW = option(f"Law: {LAWS}, the path of a TOML file, or adaptation, a pool of laws.")
LOSS_TABLE = argument("Loss table: CSV, Parquet, JSONL or Excel.")
SOURCE = argument(
    "Loss table to fit first, or a posterior saved by `bayeslaw fit --out`.",
    metavar="TABLE_OR_POSTERIOR",
)
SOURCE_TABLE = option("Table of the domain that the bases were pre-trained on.")
SAVED = argument("Posterior saved by `bayeslaw fit --out`.")
SEED = of_setting(FitSettings.__dataclass_fields__["seed"], max=2**32 - 1)
ACCEPTED: dict[Acceptance, str] = {
    "unconverged": "use a posterior that has not converged",
    "beyond-evidence": "do not refuse rows twice as far from the fitted ones as bands were ever "
    "tested",
}
"""Names of what commands accept, and what they do then."""


def accepting(*names: Acceptance) -> Any:
    """Option ``--accept NAME``, which may be repeated, of a command that can accept `names`."""
    texts = [f"{name}: {ACCEPTED[name]}" for name in names]
    text = f"Accept what is refused otherwise. {'; '.join(texts)}."
    if len(names) > 1:
        text += " Give the option twice to accept both."
    return option(text, "--accept", metavar="NAME", default=[])


def accepted_of(
    *valid: Acceptance,
) -> Callable[[list[str], str], list[Acceptance]]:
    """Parse the names of an option that `accepting` made of `valid` ones."""

    def parse(names: list[str], option: str) -> list[Acceptance]:
        for name in names:
            if name in ACCEPTED and name not in valid:
                raise BayeslawError(f"{option} {name} has no effect on this command.")
            if name not in valid:
                raise BayeslawError(f"{option}: {unknown('name', name, valid)}")
        return [name for name in valid if name in names]

    return parse


UNCONVERGED = accepting("unconverged")
BEYOND_EVIDENCE = accepting("beyond-evidence")
ACCEPT = accepting("unconverged", "beyond-evidence")
Accepts = Collection[Acceptance]
Unconverged = Annotated[Accepts, accepted_of("unconverged")]
BeyondEvidence = Annotated[Accepts, accepted_of("beyond-evidence")]
Accept = Annotated[Accepts, accepted_of("unconverged", "beyond-evidence")]
"""Types of these options, in their order."""
QUOTED = option(
    "Backtest to quote, written by `bayeslaw backtest --out`.", metavar="FILE"
)
TRAIN = query('Rows to fit, such as "ptpp <= 31".')
TEST = query('Rows to forecast and score, such as "ptpp == 279".')
USED = {"map": ("likelihood", "priors", "delta"), "huber": ("delta", "bounds")}
"""Options that a method of fitting has, beside the seed; the posterior has all but the bounds."""


@dataclass(frozen=True)
class Reading:
    """How a table of losses is read: arguments of `bayeslaw.read_table`."""

    columns: Columns = option(
        'Where the file has other names: "params=size; tokens=billions * 1e9; loss=`eval/loss`".',
        metavar="SPEC",
    )
    loss_unit: Literal["nats", "bits", "perplexity", "bits-per-byte"] | None = option(
        "Unit of the losses, which become nats per token."
    )
    bytes_per_token: float | None = option(
        "Mean number of bytes of a token of the validation set, which losses in bits per byte "
        "need.",
        metavar="NUMBER",
    )
    where: str | None = query(
        "Pandas query that selects the rows to keep, such as ptpp <= 31; the others need no valid "
        "numbers."
    )
    role: Literal["target", "source"] | None = option(
        "Whether the losses are of the domain adapted to, or of the one pre-trained on."
    )

    def settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names_of(Reading)}

    def table(self, path: Path, source: Path | None = None) -> "bl.LossTable":
        return bl.read_table(path, source=source, **self.settings())


@dataclass(frozen=True)
class Training(Reading):
    """The law to fit, and the rows to fit it to."""

    law: str | None = LAW
    source_table: Path | None = SOURCE_TABLE
    train: str | None = TRAIN


@dataclass(frozen=True)
class Rows(Reading):
    """Rows to forecast, of a table or of a grid."""

    rows: Path | None = option("Table of rows to forecast, with losses or without.")
    grid: Covariates = option(
        'Grid of rows to forecast: "params=8.1e9 tokens=1e9,1e10 replay=.1,.3 ptpp=279".',
        metavar="SPEC",
    )

    def asked(self) -> "bl.LossTable | None":
        """The rows, with or without losses."""
        from bayeslaw.tables.reading import read_rows

        if self.grid and self.rows is not None:
            raise TableError("--grid goes without --rows.")
        if self.grid:
            return of_grid(self.grid, "--grid")
        return None if self.rows is None else read_rows(self.rows, **self.settings())


@dataclass(frozen=True)
class Selection(Training, Rows):
    """The law to fit, the rows to fit it to, and the rows to forecast."""

    test: str | None = TEST

    def asked(self) -> "bl.LossTable | None":
        if self.grid and self.test is not None:
            raise TableError("--grid goes without --test.")
        rows = super().asked()
        return None if rows is None else rows.query(self.test)


@dataclass(frozen=True, kw_only=True)
class Fitting(FitSettings):
    """How a law is fitted: as a posterior, or as a point."""

    method: Literal["nuts", "map", "huber"] = option(
        "Posterior, its mode, or the paper's Huber fit.", default="nuts"
    )
    bounds: Literal["paper", "prior"] = option(
        "Bounds of the parameters. paper: as published. prior: the narrower bounds within which "
        "the priors of bayeslaw.fit lie.",
        default="paper",
    )

    def arguments(self) -> dict[str, Any]:
        """Arguments of the fit; `BayeslawError` for options that have no effect on its method."""
        used = USED.get(self.method) or names_of(FitSettings, "seed")
        refuse(
            f"on --method {self.method}", *names_of(Fitting, "seed", "method", *used)
        )
        return {name: getattr(self, name) for name in ("seed", *used)}

    def document(self) -> dict[str, object]:
        """What a document says of how the fit was made."""
        said: dict[str, object] = {"method": self.method, "seed": self.seed}
        if self.method == "huber":
            return said | {"bounds": self.bounds}
        return said | {"likelihood": self.likelihood, "prior": self.priors}


def of_grid(grid: dict[str, Any], name: str) -> "bl.LossTable":
    """Rows of a grid, under the `name` of their option."""
    from bayeslaw.tables.table import rows_of

    return bl.LossTable(rows_of(bl.grid(**grid), name).frame, name)
