"""Options that several commands have in common, and the files and headings of results."""

import io
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

import bayeslaw as bl
from bayeslaw.cli.helptexts import MARK
from bayeslaw.cli.parsing import assignments, covariates
from bayeslaw.common.defaults import AUTO, CHAINS, DELTA, TARGET_ACCEPT, TUNE
from bayeslaw.common.errors import BayeslawError, FileError, TableError
from bayeslaw.common.files import atomic_write, models_dir
from bayeslaw.common.shown import Detail, Note, Shown

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

TABLES, FIGURES = (".csv", ".parquet"), (".png", ".pdf", ".svg")
"""Endings of the files that are written."""

# -- kinds of options -----------------------------------------------------------------------------
# They are the defaults of a command's parameters, and of the fields of a group.


def option(text: str, *names: str, default: Any = None, **settings: Any) -> Any:
    """Option with a help text; `names` if these are not that of the parameter."""
    return typer.Option(default, *names, help=text, **settings)


def as_in(function: str, argument: str = "", *names: str, **settings: Any) -> Any:
    """Option that the docstring of a public `function` describes, under its name or `argument`."""
    return option(f"{MARK}{function} {argument}", *names, **settings)


def argument(text: str, *, default: Any = ..., **settings: Any) -> Any:
    return typer.Argument(default, help=text, show_default=False, **settings)


def query(text: str, **settings: Any) -> Any:
    return option(text, metavar="QUERY", **settings)


def output(text: str, *endings: str, **settings: Any) -> Any:
    """Option that names a file to write, whose name has one of some endings."""
    return option(text, callback=writable(*endings), **settings)


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


def refuse(where: str, /, **given: object) -> None:
    """Raise `BayeslawError` for an option that was `given` and has no effect `where` it was.

    None, False and an empty list mean that an option was not given.
    """
    for name, value in given.items():
        if value is not None and value is not False and value != []:
            raise BayeslawError(f"--{name.replace('_', '-')} has no effect {where}.")


# -- options of several commands ------------------------------------------------------------------

LAWS = ", ".join(sorted(path.stem for path in models_dir().glob("*.toml")))
LAW = option(f"Law: {LAWS}, the path of a TOML file, or adaptation, a pool of laws.")
LOSS_TABLE = argument("Loss table: CSV, Parquet, JSONL or Excel.")
SOURCE = argument(
    "Loss table to fit first, or a posterior saved by `bayeslaw fit --out`.",
    metavar="TABLE_OR_POSTERIOR",
)
SOURCE_TABLE = as_in("read_table", "source")
SAVED = argument("Posterior saved by `bayeslaw fit --out`.")
SEED = option("Seed of all random numbers.", default=0, min=0, max=2**32 - 1)
UNCONVERGED = option(
    "Use a posterior that has not converged.", "--allow-unconverged", default=False
)
BEYOND_EVIDENCE = option(
    "Do not refuse rows twice as far from the fitted ones as bands were ever tested.",
    "--beyond-evidence",
    default=False,
)
QUOTED = option("Backtest to quote, written by `bayeslaw backtest --out`.", metavar="FILE")
TRAIN = query('Rows to fit, such as "ptpp <= 31".')
TEST = query('Rows to forecast and score, such as "ptpp == 279".')
USED = {"map": ("likelihood", "priors", "delta"), "huber": ("delta", "bounds")}
"""Options that a method of fitting has, beside the seed; the posterior has all but the bounds."""


@dataclass(frozen=True)
class Group:
    """Options that a command declares together: the fields of a frozen dataclass."""

    def changed(self, *besides: str) -> dict[str, Any]:
        """Values that are not the defaults, but for those of `besides`."""
        options: dict[str, Any] = {field.name: field.default for field in fields(self)}
        values = {name: getattr(self, name) for name in options if name not in besides}
        return {name: value for name, value in values.items() if value != options[name].default}


@dataclass(frozen=True)
class Reading(Group):
    """How a table of losses is read."""

    columns: str | None = option(
        'Where the file has other names: "params=size; tokens=billions * 1e9; loss=`eval/loss`".',
        metavar="SPEC",
    )
    loss_unit: Literal["nats", "bits", "perplexity", "bits-per-byte"] | None = as_in("from_frame")
    bytes_per_token: float | None = as_in("from_frame", metavar="NUMBER")
    where: str | None = as_in("read_table", metavar="QUERY")
    role: Literal["target", "source"] | None = as_in("from_frame")

    def settings(self) -> dict[str, Any]:
        """Arguments of `bayeslaw.read_table`."""
        names = ("loss_unit", "bytes_per_token", "where", "role")
        settings = {name: getattr(self, name) for name in names}
        example = "params=size; loss=final_loss"
        columns = assignments(self.columns, "--columns", example, ";") if self.columns else {}
        return {"columns": columns, **settings}

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
    grid: str | None = option(
        'Grid of rows to forecast: "params=8.1e9 tokens=1e9,1e10 replay=.1,.3 ptpp=279".',
        metavar="SPEC",
    )

    def asked(self) -> "bl.LossTable | None":
        """The rows, with or without losses."""
        from bayeslaw.tables.table import read_rows

        if self.grid is not None:
            if self.rows is not None:
                raise TableError("--grid goes without --rows.")
            return grid_or_file("--grid", grid=self.grid)
        return None if self.rows is None else read_rows(self.rows, **self.settings())


@dataclass(frozen=True)
class Selection(Training, Rows):
    """The law to fit, the rows to fit it to, and the rows to forecast."""

    test: str | None = TEST

    def asked(self) -> "bl.LossTable | None":
        if self.grid is not None and self.test is not None:
            raise TableError("--grid goes without --test.")
        rows = super().asked()
        return None if rows is None else rows.query(self.test)


@dataclass(frozen=True)
class Sampling(Group):
    """The likelihood, the priors, the discrepancy, the random effects and the sampler."""

    likelihood: str = as_in("fit", default="studentt", metavar="KIND")
    priors: str = as_in("fit", default="default", metavar="KIND|PATH")
    delta: float = as_in("fit", default=DELTA)
    discrepancy: str = as_in("fit", default=AUTO, metavar="KIND")
    effects: str = as_in("fit", default="auto", metavar="LEVELS")
    errors: Literal["auto", "run", "independent"] = as_in("fit", default="auto")
    chains: int = as_in("fit", default=CHAINS, min=1)
    draws: int | None = as_in("fit", min=1)
    tune: int = as_in("fit", default=TUNE, min=1)
    target_accept: float = as_in("fit", default=TARGET_ACCEPT)
    retry: bool | None = as_in("fit", "retry", "--retry")
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
    bounds: Literal["paper", "prior"] = as_in("fit_huber", default="paper")

    def settings(self) -> dict[str, Any]:
        """Arguments of the fit; `BayeslawError` for options that have no effect on its method."""
        used = USED.get(self.method) or [field.name for field in fields(Sampling)]
        refuse(f"on --method {self.method}", **self.changed("seed", "method", *used))
        return {name: getattr(self, name) for name in ("seed", *used)}

    def document(self) -> dict[str, object]:
        """What a document says of how the fit was made."""
        said: dict[str, object] = {"method": self.method, "seed": self.seed}
        if self.method == "huber":
            return said | {"bounds": self.bounds}
        return said | {"likelihood": self.likelihood, "prior": self.priors}


# -- files and headings ---------------------------------------------------------------------------


def grid_or_file(name: str, grid: str | None = None) -> "bl.LossTable":
    """Return rows of the file `name`, or of a grid such as ``"params=1e9 tokens=1e9,1e10"``."""
    from bayeslaw.tables.table import read_frame, rows_of

    rows = read_frame(name) if grid is None else bl.grid(**covariates(grid, name))
    return bl.LossTable(rows_of(rows, name).frame, name)


def save_frame(path: Path | None, frame: "pd.DataFrame") -> None:
    from bayeslaw.tables.table import write_frame

    if path is not None:
        write_frame(frame, path)


def save_figure(path: Path | None, draw: "Callable[[], Figure]") -> None:
    if path is not None:
        drawn = io.BytesIO()
        draw().savefig(drawn, format=path.suffix[1:], dpi=200)
        atomic_write(path, drawn.getvalue())


def brief(fitted: "bl.Posterior | bl.Pool | bl.PointFit") -> Shown:
    """Return the heading of a fit, of which text that is not verbose has a line, and warnings."""
    head = fitted.heading()
    if isinstance(fitted, bl.PointFit):
        state = f"{round(fitted.agreeing * fitted.polished)} of {fitted.polished} starts agree"
    else:
        state = str(fitted.convergence) if fitted.convergence.ok else ""
    line = f"{head.document['law']}, fitted to {fitted.table}"
    blocks = [
        block if isinstance(block, Note) and block.level != "ok" else Detail(block)
        for block in head.blocks
        if not isinstance(block, Detail)
    ]
    return replace(head, blocks=blocks, short="; ".join(filter(None, [line, state])))


def beside(
    fitted: "bl.Posterior | bl.Pool | bl.PointFit",
    shown: Shown,
    choice: Selection | None = None,
    rows: "bl.LossTable | None" = None,
) -> Shown:
    """Return a result below the heading of its fit; `choice` selected the `rows`."""
    from bayeslaw.tables.table import is_synthetic

    head = brief(fitted)
    # The heading says that a fit has not converged, so the result below it need not.
    said = fitted.heading().blocks
    below = replace(shown, blocks=[block for block in shown.blocks if block not in said])
    synthetic = any(part.document.get("synthetic") for part in (head, shown)) or is_synthetic(rows)
    whole = (head + below).adding(synthetic=synthetic)
    if choice is None:
        return whole
    return whole.adding(train=choice.train or head.document["train"], test=choice.test)
