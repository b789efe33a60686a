"""Command that chooses the next runs: ``anchors``."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bayeslaw.cli.app import command, show
from bayeslaw.cli.options import Json, Seed, Unconverged, covariates, option, query
from bayeslaw.cli.steps import PLAN, check_writable, limits_of, terminal
from bayeslaw.common.errors import BayeslawError

if TYPE_CHECKING:
    import pandas as pd

    from bayeslaw.design.anchors import Anchors

ROWS = "TABLE_OR_GRID"


@dataclass(frozen=True)
class Evsi:
    """The simulation of the expected value of sample information."""

    evsi: Annotated[
        int | None,
        option(
            "Expected value of sample information for --plan, from so many simulations with "
            "refits: FLOPs saved on the target run by the first run, the first two, four and so "
            "on, and all. Takes minutes.",
            min=2,
            metavar="SIMULATIONS",
        ),
    ] = None
    against: Annotated[
        list[str] | None, option("For --evsi: other sets of runs to compare with.", metavar=ROWS)
    ] = None
    jobs: Annotated[int, typer.Option(min=1, help="For --evsi: processes.")] = 2
    seed: Seed = 0


@command(
    """bayeslaw anchors fit.nc --k 4 \\
    --candidates "params=241e6,517e6 tokens=1e9,1e10 replay=.1,.5 ptpp=279" \\
    --targets "params=8.1e9 tokens=1e10,1e11 replay=.1,.5 ptpp=279\"""",
    "bayeslaw anchors fit.nc --candidates pool.csv --targets goals.csv --budget 1e20",
    """bayeslaw anchors french.nc --candidates pool.csv --budget 1e20 --gain plan --evsi 20 \\
    --source english.nc \\
    --plan "params=8.1e9 ptpp=279 max_loss=1.8 max_forgetting=.02 baseline=2.05\"""",
)
def anchors(
    *,
    posterior: Annotated[
        Path, typer.Argument(help="Posterior saved by `bayeslaw fit --out`.", show_default=False)
    ],
    candidates: Annotated[
        str,
        option("Rows that can be measured; rows of one `run` are its checkpoints.", metavar=ROWS),
    ],
    targets: Annotated[
        str | None, option("Target rows: those whose losses are to be forecast.", metavar=ROWS)
    ] = None,
    where: Annotated[str | None, query("Candidates to use; all others are ignored.")] = None,
    aim: Annotated[str | None, query("Targets to use; all others are ignored.")] = None,
    k: Annotated[int | None, option("Number of runs.", min=1)] = None,
    budget: Annotated[float | None, option("Most FLOPs for all runs.")] = None,
    cost: Annotated[
        str,
        typer.Option(
            help="flops (6 N D and each new base's pre-training), adaptation (6 N D), or a column."
        ),
    ] = "flops",
    gain: Annotated[
        Literal["variance", "entropy", "plan", "doptimal"],
        typer.Option(
            help="Criterion: variance or entropy of log loss at the targets, variance of the "
            "plan's budget, or D-optimality for the law."
        ),
    ] = "variance",
    power: Annotated[
        float | None,
        option("Divide gains by the cost to this power (by default 1 under a budget, else 0)."),
    ] = None,
    second_size: Annotated[
        bool, typer.Option(help="Require runs of two sizes or more, or not.")
    ] = True,
    source: Annotated[
        Path | None, option("For --gain plan and --evsi: posterior of the source domain.")
    ] = None,
    plan: Annotated[
        str | None, option(f'For --gain plan and --evsi: "{PLAN}".', metavar="LIMITS")
    ] = None,
    out: Annotated[Path | None, option("Write the rows to measure (CSV or Parquet).")] = None,
    allow_unconverged: Unconverged = False,
    json: Json = False,
    value: Evsi,
) -> None:
    """Choose which runs to buy next.

    Selects the runs that reduce the uncertainty at the targets most for their cost, in the order to
    buy them, and predicts the posterior standard deviation after each, so that you can stop where a
    further run is too expensive. With --evsi the expected value of sample information for a plan is
    estimated by simulation.
    """
    from bayeslaw.cli import render_anchors
    from bayeslaw.design.anchors import choose_anchors
    from bayeslaw.design.evsi import anchor_value
    from bayeslaw.inference.pools import Pool
    from bayeslaw.inference.posterior import Posterior
    from bayeslaw.inference.storage import load
    from bayeslaw.planning.planner import plan as make_plan
    from bayeslaw.tables.reading import write_frame

    check_writable(out)
    if k is None and budget is None:
        raise BayeslawError("say how many runs (--k) or what they may cost (--budget).")
    _check(gain == "plan", source, plan, value)
    if targets is None and gain != "plan":
        raise BayeslawError("say where the loss matters, with --targets.")
    pool = _rows(candidates, "--candidates", where)
    target_rows = None if targets is None else _rows(targets, "--targets", aim)
    others = {text: _rows(text, "--against", None) for text in value.against or ()}
    fitted = load(posterior)
    limits = None if plan is None else limits_of(plan)
    forgotten = None if source is None else load(source)
    if value.evsi is not None and any(isinstance(each, Pool) for each in (fitted, forgotten)):
        raise BayeslawError("--evsi needs fits of one law each, not pools: it refits them.")
    needed = None
    if gain == "plan" and limits is not None and forgotten is not None:
        needed = make_plan(
            target=fitted,
            source=forgotten,
            allow_unconverged=allow_unconverged,
            seed=value.seed,
            **limits,
        )
    found = choose_anchors(
        fitted,
        pool,
        target_rows,
        k=k,
        budget=budget,
        cost=cost,
        gain=gain,
        power=power,
        second_size=second_size,
        plan=needed,
        source=forgotten if gain == "plan" else None,
        allow_unconverged=allow_unconverged,
    )
    if out is not None:
        write_frame(found.frame, out)
    evsi = None
    if (
        value.evsi is not None
        and limits is not None
        and isinstance(fitted, Posterior)
        and isinstance(forgotten, Posterior)
    ):
        evsi = anchor_value(
            _first(found) | others,
            target=fitted,
            source=forgotten,
            simulations=value.evsi,
            cost=cost,
            seed=value.seed,
            jobs=value.jobs,
            progress=terminal(),
            allow_unconverged=allow_unconverged,
            **limits,
        )
    rendered = render_anchors.anchors(found, fitted, evsi)
    show(json, "anchors", rendered, {"out": out and str(out), "seed": value.seed})


def _check(planned: bool, source: Path | None, plan: str | None, value: Evsi) -> None:
    """Raise `BayeslawError` for options that do not go together."""
    if (source is None) != (plan is None):
        raise BayeslawError("--source and --plan go together.")
    if planned and plan is None:
        raise BayeslawError("--gain plan needs --source and --plan.")
    if value.evsi is not None and plan is None:
        raise BayeslawError("--evsi needs --source and --plan.")
    if value.evsi is None and value.against:
        raise BayeslawError("--against needs --evsi.")
    if value.evsi is None and plan is not None and not planned:
        raise BayeslawError("--source and --plan have no effect without --gain plan or --evsi.")


def _first(found: "Anchors") -> "dict[str, pd.DataFrame]":
    """Rows of the first pick, of the first two, four and so on, and of all."""
    count, sets = len(found.picks), {}
    for first in (2**i for i in range(count.bit_length())):
        if first < count:
            sets[f"first {first}"] = found.frame[found.frame["pick"] <= first]
    return sets | {f"all {count}": found.frame}


def _rows(text: str, option: str, where: str | None) -> "pd.DataFrame":
    """Rows of a table, or of a grid such as ``"params=1e9 tokens=1e9,1e10"``."""
    from bayeslaw.tables.reading import read_frame
    from bayeslaw.tables.table import LossTable, grid
    from bayeslaw.tables.validation import canonical

    if Path(text).is_file() or "=" not in text:
        frame, name = canonical(read_frame(text), text, ()), text
        if "tokens" in frame:
            frame = frame[frame["tokens"] > 0]
    else:
        frame, name = canonical(grid(**covariates(text, option)), option, ()), option
    return LossTable(frame, frame.iloc[:0], name).query(where).frame
