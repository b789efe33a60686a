"""Options that several commands have in common, their values, and steps of several commands."""

import io
import math
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

import bayeslaw as bl
from bayeslaw.common.defaults import AUTO, CHAINS, DELTA, TARGET_ACCEPT, TUNE
from bayeslaw.common.errors import (
    BayeslawError,
    FileError,
    FitWarning,
    TableError,
    TableWarning,
    unknown,
)
from bayeslaw.common.files import atomic_write, is_hdf5, models_dir
from bayeslaw.common.shown import Detail, Note, Shown

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

NEEDED = ("params", "max_loss", "max_forgetting")
"""Limits that a plan needs."""
LIMITS = (*NEEDED, "ptpp", "baseline", "base", "unique_tokens", "replay", "confidence")
"""Limits that a plan may have."""
CONFIDENCE = 0.9
"""Probability with which a plan meets its limits, unless one is given."""
PLAN = "params=8.1e9 ptpp=279 max_loss=1.8 max_forgetting=.02 baseline=2.05 confidence=.9"
"""Limits of a plan, as a user writes them."""

TABLES, FIGURES = (".csv", ".parquet"), (".png", ".pdf", ".svg")
"""Endings of the files that are written."""

# -- kinds of options -----------------------------------------------------------------------------
# They are the defaults of a command's parameters, and of the fields of a group.


def option(text: str, *names: str, default: Any = None, **settings: Any) -> Any:
    """Option with a help text; `names` if these are not that of the parameter."""
    return typer.Option(default, *names, help=text, **settings)


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
        for words in (words for words, true in obstacles.items() if true):
            raise FileError(f"{path}: cannot write: {words}.")
        return path

    return check


def positive(param: typer.CallbackParam, value: float | None) -> float | None:
    if value is not None and not 0 < value < math.inf:
        raise BayeslawError(f"{param.opts[0]} {value:g}: give a positive number.")
    return value


def fraction(target_accept: float) -> float:
    if not 0 < target_accept < 1:
        raise BayeslawError(f"--target-accept {target_accept:g} is not between 0 and 1.")
    return target_accept


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
SOURCE_TABLE = option(
    "Loss table of the domain of pre-training, for laws that start from the base's loss."
)
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
ACCEPT = "Target acceptance, between 0 and 1."
BOUNDS = option("Bounds of a Huber fit: as published, or those of the priors.", default="paper")
Bounds = Literal["paper", "prior"]
Method = Literal["nuts", "map", "huber"]


@dataclass(frozen=True)
class Reading:
    """How a table of losses is read."""

    columns: str | None = option(
        'Where the file has other names: "params=size; tokens=billions * 1e9; loss=`eval/loss`".',
        metavar="SPEC",
    )
    loss_unit: Literal["nats", "bits", "perplexity", "bits-per-byte"] | None = option(
        "Unit of the losses in all files; all that is printed is in nats per token."
    )
    bytes_per_token: float | None = option(
        "Mean bytes of a token, for losses in bits per byte.", metavar="NUMBER"
    )
    where: str | None = query("Rows of the table to use; all others are ignored.")
    role: Literal["target", "source"] | None = option(
        "Whose the losses are: the domain's adapted to, or the domain's pre-trained on."
    )

    @property
    def unit(self) -> dict[str, Any]:
        return {"loss_unit": self.loss_unit, "bytes_per_token": self.bytes_per_token}

    def table(self, path: Path, source: Path | None = None) -> "bl.LossTable":
        columns = columns_of(self.columns)
        how: dict[str, Any] = {"where": self.where, "role": self.role, **self.unit}
        return bl.read_table(path, columns=columns, source=source, **how)


@dataclass(frozen=True)
class Selection(Reading):
    """The law to fit, the rows to fit it to, and the rows to forecast."""

    law: str | None = LAW
    source_table: Path | None = SOURCE_TABLE
    train: str | None = TRAIN
    test: str | None = TEST
    rows: Path | None = option("Table of rows to forecast, with losses or without; --test selects.")
    grid: str | None = option(
        'Grid of rows to forecast: "params=8.1e9 tokens=1e9,1e10 replay=.1,.3 ptpp=279".',
        metavar="SPEC",
    )


@dataclass(frozen=True)
class Sampling:
    """The likelihood, the priors, the discrepancy, the random effects and the sampler."""

    likelihood: str = option(
        "Likelihood of log loss: studentt, skewed, normal or huber.",
        default="studentt",
        metavar="KIND",
    )
    priors: str = option("Priors: default, flat, or the path of a TOML file.", default="default")
    delta: float = option("Threshold of the Huber loss, in log loss.", default=DELTA)
    discrepancy: str = option(
        "Discrepancy of the law: auto, walk, trend, adaptation, from_base, curvature or none.",
        default=AUTO,
        metavar="KIND",
    )
    effects: str = option(
        "Random effects: auto, none, or columns such as size,base,run.",
        default="auto",
        metavar="LEVELS",
    )
    errors: Literal["auto", "run", "independent"] = option(
        "Errors of log loss: correlated within a run, or independent.", default="auto"
    )
    chains: int = option("Chains.", default=CHAINS, min=1)
    draws: int | None = option("Draws of each chain; by default as many as needed.", min=1)
    tune: int = option("Tuning steps of each chain.", default=TUNE, min=1)
    target_accept: float = option(ACCEPT, default=TARGET_ACCEPT, callback=fraction)
    retry: bool | None = option(
        "Sample again until the fit converges, also for longer than five minutes.", "--retry"
    )

    def given(self, *besides: str) -> dict[str, bool]:
        """Whether each option, other than `besides`, was given."""
        declared = vars(Sampling)
        return {n: v != declared[n].default for n, v in vars(self).items() if n not in besides}


# -- values of options ----------------------------------------------------------------------------


def covariates(text: str, option: str = "--grid") -> dict[str, Any]:
    """Parse covariates such as ``"params=8.1B tokens=1e9,1e10"``; labels are text."""
    from bayeslaw.tables.validation import ALIASES, LABEL_COLUMNS, count

    values: dict[str, Any] = {}
    how = "write it as 'params=8.1e9 tokens=1e9,1e10'."
    for part in text.split():
        name, _, written = part.partition("=")
        column = ALIASES.get(name, name)
        if column in values:
            raise TableError(f"{option}: {name!r} is there twice.")
        try:
            read = str if column in LABEL_COLUMNS else count
            values[column] = [read(value) for value in written.split(",")]
        except ValueError:
            raise TableError(f"{option}: cannot read {part!r}; {how}") from None
    if not values:
        raise TableError(f"{option} is empty; {how}")
    return values


def columns_of(text: str | None) -> dict[str, str]:
    """Parse columns such as ``"params=size; loss=final_loss"``."""
    columns = {}
    for part in filter(None, map(str.strip, (text or "").split(";"))):
        name, _, source = map(str.strip, part.partition("="))
        if not (name and source):
            raise TableError(
                f"--columns: cannot read {part!r}; write it as 'params=size; loss=final_loss'."
            )
        columns[name] = source
    return columns


def numbers(
    text: str, option: str, how: str = "write numbers with commas, such as 1,2", size: int = 0
) -> list[float]:
    """Parse numbers such as ``"1e21,1e24"``: `size` of them, or any number if that is 0."""
    from bayeslaw.tables.validation import count

    try:
        values = [count(number) for number in text.split(",")]
    except ValueError:
        values = []
    if not values or size not in (0, len(values)):
        raise BayeslawError(f"{option}: cannot read {text!r}; {how}.")
    return values


def names(text: str, option: str = "", what: str = "") -> list[str]:
    """Parse names such as ``"form1,form3"``: of `what`, at least one of them, if it is given."""
    words = [name.strip() for name in text.split(",") if name.strip()]
    if what and not words:
        raise BayeslawError(f"{option} names no {what}.")
    return words


def band_levels(text: str) -> list[float]:
    """Parse levels of bands such as ``"0.5,0.9"``; sorted."""
    levels = numbers(text, "--levels", "write it as 0.5,0.9")
    for level in levels:
        if not 0 < level < 1:
            raise BayeslawError(f"--levels: {level:g} is not between 0 and 1; 0.9 is a 90 % band.")
    return sorted(set(levels))


def limits_of(text: str) -> dict[str, Any]:
    """Parse limits of a plan that are written like `PLAN`, to arguments of `bayeslaw.plan`."""
    from bayeslaw.tables.validation import count

    limits: dict[str, Any] = {"confidence": CONFIDENCE}
    for part in text.split():
        name, _, value = part.partition("=")
        if name not in LIMITS:
            raise BayeslawError(f"--plan: {unknown('limit', name, LIMITS)}")
        try:
            limits[name] = value if name == "base" and value else count(value)
        except ValueError:
            if name != "baseline" or not value:
                raise BayeslawError(
                    f"--plan: cannot read {part!r}; write it as {PLAN!r}."
                ) from None
            limits[name] = value
    if lacking := [name for name in NEEDED if name not in limits]:
        raise BayeslawError(f"--plan lacks {', '.join(lacking)}; write it as {PLAN!r}.")
    if "replay" in limits:
        limits["replay_grid"] = [limits.pop("replay")]
    return limits


# -- steps ----------------------------------------------------------------------------------------

type Fitted = bl.Posterior | bl.Pool | bl.PointFit


def fit_or_load(
    source: Path,
    choice: Selection,
    method: Method,
    sampling: Sampling,
    seed: int,
    bounds: Bounds = "paper",
    *,
    measured: bool = False,
    near: bool = False,
    running: Path | None = None,
) -> "tuple[Fitted, bl.LossTable]":
    """Return a fit, made or loaded, and the rows to forecast, checked before the fit.

    They are `measured` if they must have losses, and `near` if rows too far from the fitted ones
    are refused. The rows of a `running` run are fitted, too.
    """
    from bayeslaw.huber.bases import for_table
    from bayeslaw.inference.pools import member_laws

    if is_posterior(source):
        others = {"method": method != "nuts", "bounds": bounds != "paper", "running": running}
        posterior = load(source, choice, sampling, **others)
        rows = _rows(choice)
        if rows is None:
            raise TableError("say which rows to forecast, with --rows or --grid.")
        for law in posterior.laws:
            rows = _checked(rows, law, posterior.table, measured, near)
        return posterior, rows
    table = choice.table(source, choice.source_table)
    name, rows = required(choice.law, table), _rows(choice, shared=True)
    laws = [bl.load_law(str(law)) for law in member_laws(name) or [name]]
    if running is not None:
        curve = choice.table(running, choice.source_table)
        table, rows = going_on(table.training(choice.train), curve, rows)
    elif rows is None:
        table, rows = table.split(choice.train, choice.test)
    else:
        table = table.training(choice.train)
    for law in laws:
        rows = _checked(rows, for_table(law, table), table, measured, near)
    asked = laws[0] if len(laws) == 1 else name
    return fit_table(asked, table, method, sampling, seed, bounds), rows


def going_on(
    table: "bl.LossTable", run: "bl.LossTable", ends: "bl.LossTable | None"
) -> "tuple[bl.LossTable, bl.LossTable]":
    """Training rows with those of a run that goes on, and later rows of it to forecast.

    Rows of the run are not annealed and `ends` are, unless a column says so. Columns that are
    constant in the run, such as its size, need not be given for `ends`.
    """
    from bayeslaw.inference.fitting import joined
    from bayeslaw.tables.validation import agree

    if ends is None:
        raise TableError('--running: say where the run ends, such as --grid "tokens=1e11".')
    defaults: dict[str, Any] = {"run": run.name, "annealed": 0}
    frame = run.frame.assign(**{c: v for c, v in defaults.items() if c not in run.frame})
    common = {str(c): frame[c].iloc[0] for c in frame if frame[c].nunique() == 1}
    of_run = [c for c in ("run", "params", "ptpp", "replay", "base") if c in frame]
    for column in of_run:
        if column not in common:
            raise TableError(f"{run.name}: rows differ in {column!r}; give rows of one run.")
    if "run" in table.frame and agree(frame[:1], table.frame, "run").any():
        raise TableError(
            f"{table.name} has rows of {common['run']}, the run of {run.name}, too: leave them "
            "out with --train."
        )
    given = {c: v for c, v in common.items() if c not in ("loss", "tokens")} | {"annealed": 1}
    rows = ends.frame.assign(**{c: v for c, v in given.items() if c not in ends.frame})
    for column in of_run:
        if not agree(frame[:1], rows, column).all():
            raise TableError(f"{ends.name}: {column!r} is {common[column]} in {run.name}.")
    last = frame["tokens"].max()
    if "tokens" in rows and (rows["tokens"] <= last).any():
        raise TableError(f"{ends.name}: give tokens beyond {last:.4g}, the last of {run.name}.")
    fitted = replace(joined(table, replace(run, frame=frame)), name=f"{table.name} and {run.name}")
    return fitted, replace(ends, frame=rows)


def load(
    source: Path, choice: Selection, sampling: Sampling, **others: object
) -> "bl.Posterior | bl.Pool":
    """Load a posterior; refuse options of a fit, of which `others` say whether they were given."""
    of_fit = {"law": choice.law, "train": choice.train, "source_table": choice.source_table}
    refuse(f"on a saved posterior ({source})", **of_fit, **others, **sampling.given())
    if choice.rows is None:
        reading = {"columns": choice.columns, "where": choice.where, "role": choice.role}
        refuse("without --rows", **reading, **choice.unit)
    return bl.load(source)


def _checked(
    rows: "bl.LossTable", law: "bl.Law", table: "bl.LossTable", measured: bool, near: bool
) -> "bl.LossTable":
    """The rows, with what the law holds; `TableError` if it cannot forecast or score them."""
    from bayeslaw.tables.hull import evidence
    from bayeslaw.tables.validation import check_rows

    law.covariates(rows)
    check_rows(rows.frame, rows.name, table.frame)
    if measured and "loss" not in rows.frame:
        raise TableError(f"{rows.name}: no column 'loss'; scores need measured losses.")
    if near:
        level, words = evidence(bl.locate(table, rows, law.about), law.about, refuse=True)
        if level == "refuse":
            raise TableError(f"{rows.name}: {words}")
    return replace(rows, frame=law.at_held(rows.frame, rows.name))


def fit_table(
    law: "str | bl.Law",
    table: "bl.LossTable",
    method: Method,
    sampling: Sampling,
    seed: int,
    bounds: Bounds = "paper",
) -> Fitted:
    from bayeslaw.inference.pools import member_laws

    settings = asdict(sampling)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # the heading of a fit says it
        if method == "huber":
            refuse("on a Huber fit", **sampling.given("delta"))
            if members := member_laws(law):
                names = ", ".join(map(str, members))
                raise BayeslawError(f"--law {law}: pools have no Huber fit; fit one of {names}.")
            return bl.fit_huber(law, table, delta=sampling.delta, bounds=bounds, seed=seed)
        refuse(f"on --method {method}", bounds=bounds != "paper")
        if method == "map":
            kept = ("likelihood", "priors", "delta")
            refuse("on a posterior mode", **sampling.given(*kept))
            return bl.fit(law, table, method="map", seed=seed, **{n: settings[n] for n in kept})
    return bl.fit(law, table, method="nuts", seed=seed, **settings)


def compared(
    table: "bl.LossTable",
    laws: Sequence[str],
    method: Literal["huber", "nuts"],
    sampling: Sampling,
    bounds: Bounds = "paper",
    **options: Any,
) -> "pd.DataFrame":
    """Return scores of several laws on one split; `options` are those of `bayeslaw.compare`."""
    settings: dict[str, Any] = {"delta": sampling.delta}
    if method == "nuts":
        refuse(f"on --method {method}", bounds=bounds != "paper")
        settings = asdict(sampling)
    return bl.compare(table, laws=laws, method=method, bounds=bounds, **options, **settings)


def _rows(choice: Selection, shared: bool = False) -> "bl.LossTable | None":
    """Return the rows of --rows or --grid, with or without losses.

    Where --columns are `shared` with a table that is fitted, the rows may have the project's names.
    """
    from bayeslaw.tables.table import asked, in_nats, of_role, read_frame, renamed, rows_of
    from bayeslaw.tables.validation import named

    if choice.grid is not None:
        if choice.rows is not None or choice.test is not None:
            raise TableError("--grid goes without --rows and --test.")
        return grid_or_file("--grid", grid=choice.grid)
    if choice.rows is None:
        return None
    name, columns = str(choice.rows), columns_of(choice.columns)
    frame = read_frame(name)
    if shared:
        known = {*named(frame).values()}
        known |= {"loss"} if columns.get("loss") not in frame else set()
        columns = {column: text for column, text in columns.items() if column not in known}
    frame = asked(renamed(frame, columns, name), choice.where, choice.loss_unit)
    if "loss" not in frame:
        frame = of_role(rows_of(frame, name).frame, name, choice.role)
        frame = in_nats(frame, name, *choice.unit.values())
        rows = bl.LossTable(frame, name)
    else:
        rows = bl.from_frame(frame, name, role=choice.role, **choice.unit)
        if bases := len(rows.baselines):
            text = f"{name}: {bases} rows with tokens = 0 are baselines, not forecast."
            warnings.warn(text, TableWarning, stacklevel=2)
    return rows.query(choice.where).query(choice.test)


def grid_or_file(name: str, grid: str | None = None) -> "bl.LossTable":
    """Return rows of the file `name`, or of a grid such as ``"params=1e9 tokens=1e9,1e10"``."""
    from bayeslaw.tables.table import read_frame, rows_of

    rows = read_frame(name) if grid is None else bl.grid(**covariates(grid, name))
    return bl.LossTable(rows_of(rows, name).frame, name)


def is_posterior(path: Path) -> bool:
    """Whether a file is a saved posterior, by its ending or its first bytes."""
    return path.suffix == ".nc" or is_hdf5(path)


def save_frame(path: Path | None, frame: "pd.DataFrame") -> None:
    from bayeslaw.tables.table import write_frame

    if path is not None:
        write_frame(frame, path)


def save_figure(path: Path | None, draw: "Callable[[], Figure]") -> None:
    if path is not None:
        drawn = io.BytesIO()
        draw().savefig(drawn, format=path.suffix[1:], dpi=200)
        atomic_write(path, drawn.getvalue())


def required(law: str | None, table: "bl.LossTable") -> str:
    """Return the value of --law, or raise `BayeslawError` if none was given.

    `TableError` if the table cannot be fitted by it, before the sampler is imported.
    """
    from bayeslaw.inference.pools import member_laws
    from bayeslaw.laws.lawfiles import able_laws, for_columns, load_law

    if law is None:
        raise BayeslawError(f"say which law to fit: --law NAME. {able_laws(table.frame)}")
    if member_laws(law) is None:
        for_columns(load_law(law), table)
    return law


def brief(fitted: Fitted) -> Shown:
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
    fitted: Fitted,
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


def how(name: str, sampling: Sampling) -> dict[str, str]:
    """Return what a document says of how a fit is made."""
    if name == "huber":
        return {"method": name}
    return {"method": name, "likelihood": sampling.likelihood, "prior": sampling.priors}
