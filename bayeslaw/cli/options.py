"""Options: how they are declared and described, and those that several commands have in common."""

import inspect
import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import bayeslaw as bl
from bayeslaw.cli.parsing import Columns, Covariates
from bayeslaw.common.defaults import AUTO, CHAINS, DELTA, TARGET_ACCEPT, TUNE
from bayeslaw.common.errors import (
    Acceptance,
    BayeslawError,
    FileError,
    TableError,
    unknown,
)
from bayeslaw.common.files import models_dir

TABLES, FIGURES = (".csv", ".parquet"), (".png", ".pdf", ".svg")
"""Endings of the files that are written."""
CONTEXT: ContextVar[typer.Context] = ContextVar("context")
"""Of the command that runs."""

# -- kinds of options -----------------------------------------------------------------------------
# They are the defaults of a command's parameters, and of the fields of a group.


def option(text: str, *names: str, default: Any = None, **settings: Any) -> Any:
    """Option with a help text; `names` if these are not that of the parameter."""
    return typer.Option(default, *names, help=text, **settings)


def as_in(path: str, *names: str, **settings: Any) -> Any:
    """Option that a public docstring describes, such as ``"LossTable.split.train"``."""
    # Without a METAVAR the help shows the values of an option by itself.
    return option(help_text(path, values="metavar" in settings), *names, **settings)


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
        obstacles = {
            "it is a folder": path.is_dir(),
            f"its name must end in {' or '.join(endings)}": path.suffix not in endings,
            f"no folder {path.parent}": not path.parent.is_dir(),
            f"no permission in {path.parent}": not os.access(path.parent, os.W_OK),
        }
        for obstacle in (obstacle for obstacle, true in obstacles.items() if true):
            raise FileError(f"{path}: cannot write: {obstacle}.")
        return path

    return check


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


def names_of(group: type, *besides: str) -> list[str]:
    """Names of the options of a group."""
    return [field.name for field in fields(group) if field.name not in besides]


# -- help -----------------------------------------------------------------------------------------
# Docstrings are read from the source, because an import of PyMC takes seconds.


def help_text(path: str, *, values: bool = False) -> str:
    """First sentence about an argument of a public function, and what it is by default.

    With `values`, those that the docstring lists are in parentheses.
    """
    function, _, name = path.rpartition(".")
    kind, text = _arguments(function)[name]
    text = re.sub(r"; [\w.]+ by default(?=[.])", "", text)  # the help says it by itself
    text = re.sub('`+|"(?=\\w)|(?<=\\w)"', "", text)
    sentence, *further = re.split(r"(?<=[.]) (?=[A-Z])", text)
    if values and (listed := re.match(r"\{(.*?)\}", kind)):
        sentence = f"{sentence.removesuffix('.')} ({listed[1].replace('"', '')})."
    return " ".join(
        [sentence, *(text for text in further if text.startswith("By default"))]
    )


@cache
def _arguments(function: str) -> dict[str, tuple[str, str]]:
    """Kinds and texts of the arguments of ``"fit"``, ``"LossTable.split"``, ``"derive.floor"``."""
    package, names = Path(__file__).parents[1], function.split(".")
    stub = package / "__init__.pyi"
    if (package / names[0]).is_dir():
        stub = package / names.pop(0) / "__init__.py"
    module = package.joinpath(*_modules(stub)[names[0]].split("."))
    text = module.with_suffix(".py").read_text(encoding="utf-8")
    for name in names:
        _, _, text = text.partition(f"{'class' if name[0].isupper() else 'def'} {name}")
    docstring = (
        inspect.cleandoc(text.split('"""')[1]) + "\n"
    )  # overloads, above it, have none
    entries = re.findall(
        r"^([\w*, ]+)(?: : (.*))?\n((?:    .*\n?|\n)+)", docstring, re.M
    )
    return {
        name: (kind, " ".join(text.split()))
        for named, kind, text in entries
        for name in named.replace("*", "").split(", ")
    }


@cache
def _modules(stub: Path) -> dict[str, str]:
    """Modules of the public names of a package."""
    imports = re.findall(
        r"^from (?:bayeslaw)?\.([\w.]+) import (\([^)]*|[^\n(]*)",
        stub.read_text(encoding="utf-8"),
        re.M,
    )
    return {
        name: module for module, names in imports for name in re.findall(r"\w+", names)
    }


# -- options of several commands ------------------------------------------------------------------

LAWS = ", ".join(sorted(path.stem for path in models_dir().glob("*.toml")))
LAW = option(f"Law: {LAWS}, the path of a TOML file, or adaptation, a pool of laws.")
LOSS_TABLE = argument("Loss table: CSV, Parquet, JSONL or Excel.")
SOURCE = argument(
    "Loss table to fit first, or a posterior saved by `bayeslaw fit --out`.",
    metavar="TABLE_OR_POSTERIOR",
)
SOURCE_TABLE = as_in("read_table.source")
SAVED = argument("Posterior saved by `bayeslaw fit --out`.")
SEED = option("Seed of all random numbers.", default=0, min=0, max=2**32 - 1)
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
    loss_unit: Literal["nats", "bits", "perplexity", "bits-per-byte"] | None = as_in(
        "from_frame.loss_unit"
    )
    bytes_per_token: float | None = as_in(
        "from_frame.bytes_per_token", metavar="NUMBER"
    )
    where: str | None = as_in("read_table.where", metavar="QUERY")
    role: Literal["target", "source"] | None = as_in("from_frame.role")

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


@dataclass(frozen=True)
class Sampling:
    """The likelihood, the priors, the discrepancy, the random effects and the sampler."""

    likelihood: str = as_in("fit.likelihood", default="studentt", metavar="KIND")
    priors: str = as_in("fit.priors", default="default", metavar="KIND|PATH")
    delta: float = as_in("fit.delta", default=DELTA)
    discrepancy: str = as_in("fit.discrepancy", default=AUTO, metavar="KIND")
    effects: str = as_in("fit.effects", default="auto", metavar="LEVELS")
    errors: Literal["auto", "run", "independent"] = as_in("fit.errors", default="auto")
    chains: int = as_in("fit.chains", default=CHAINS, min=1)
    draws: int | None = as_in("fit.draws", min=1)
    tune: int = as_in("fit.tune", default=TUNE, min=1)
    target_accept: float = as_in("fit.target_accept", default=TARGET_ACCEPT)
    retry: bool | None = as_in("fit.retry", "--retry")
    seed: int = SEED

    def settings(self) -> dict[str, Any]:
        """Arguments of `bayeslaw.fit`."""
        return asdict(self)


@dataclass(frozen=True)
class Fitting(Sampling):
    """How a law is fitted: as a posterior, or as a point."""

    method: Literal["nuts", "map", "huber"] = option(
        "Posterior, its mode, or the paper's Huber fit.", default="nuts"
    )
    bounds: Literal["paper", "prior"] = as_in("fit_huber.bounds", default="paper")

    def settings(self) -> dict[str, Any]:
        """Arguments of the fit; `BayeslawError` for options that have no effect on its method."""
        used = USED.get(self.method) or names_of(Sampling)
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
