"""The command that chooses the next runs: ``anchors``."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import bayeslaw as bl
from bayeslaw.cli import options as opt
from bayeslaw.cli.app import command
from bayeslaw.cli.options import option, output, query
from bayeslaw.common.errors import BayeslawError
from bayeslaw.common.shown import Shown

if TYPE_CHECKING:
    import pandas as pd

ROWS = "TABLE_OR_GRID"


@dataclass(frozen=True)
class Evsi:
    """The simulation of the expected value of sample information."""

    evsi: int | None = option(
        "Expected value of sample information for --plan, from so many simulations with "
        "refits: FLOPs saved on the target run by the first run, the first two, four and so "
        "on, and all. Takes minutes.",
        min=2,
        metavar="SIMULATIONS",
    )
    against: list[str] | None = option(
        "For --evsi: other sets of runs to compare with.", metavar=ROWS
    )
    jobs: int = option("For --evsi: processes.", default=2, min=1)
    seed: int = opt.SEED


@dataclass(frozen=True)
class Purchase:
    """How many runs are bought and how they are chosen, as arguments of `choose_anchors`."""

    k: int | None = option("Number of runs.", min=1)
    budget: float | None = option("Most FLOPs for all runs.")
    cost: str = option(
        "flops (6 N D and each new base's pre-training), adaptation (6 N D), or a column.",
        default="flops",
    )
    gain: Literal["random", "plan"] = option(
        "At random, or to reduce the variance of the plan's budget.", default="random"
    )
    second_size: bool = option("Require runs of two sizes or more, or not.", default=True)


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
    posterior: Path = opt.SAVED,
    candidates: str = option(
        "Rows that can be measured; rows of one `run` are its checkpoints.",
        default=...,
        metavar=ROWS,
    ),
    targets: str | None = option(
        "Target rows: those whose losses are to be forecast.", metavar=ROWS
    ),
    where: str | None = query("Candidates to use; all others are ignored."),
    aim: str | None = query("Targets to use; all others are ignored."),
    purchase: Purchase,
    source: Path | None = option("For --gain plan and --evsi: posterior of the source domain."),
    plan: str | None = option(f'For --gain plan and --evsi: "{opt.PLAN}".', metavar="LIMITS"),
    out: Path | None = output("Write the rows to measure (CSV or Parquet).", *opt.TABLES),
    allow_unconverged: bool = opt.UNCONVERGED,
    value: Evsi,
) -> Shown:
    """Choose which runs to buy next.

    Draws runs at random, or with --gain plan selects those that make a plan's budget certain, in
    the order to buy them. Predicts the posterior standard deviation after each, so that you can
    stop where a further run is too expensive. With --evsi the expected value of sample information
    for a plan is estimated by simulation.
    """
    from bayeslaw.design.study import shown_value

    for_plan = purchase.gain == "plan"
    if purchase.k is None and purchase.budget is None:
        raise BayeslawError("say how many runs (--k) or what they may cost (--budget).")
    _check(for_plan, source, plan, value)
    if targets is None and not for_plan:
        raise BayeslawError("say where the loss matters, with --targets.")
    pool = _rows(candidates, "--candidates", where)
    target_rows = None if targets is None else _rows(targets, "--targets", aim)
    others = {text: _rows(text, "--against", None) for text in value.against or ()}
    fitted = bl.load(posterior).accepted(unconverged=allow_unconverged)
    limits = {} if plan is None else opt.limits_of(plan)
    forgotten = None
    if source is not None:
        forgotten = bl.load(source).accepted(unconverged=allow_unconverged)
    pooled = len(fitted.members) > 1 or (forgotten is not None and len(forgotten.members) > 1)
    if value.evsi is not None and pooled:
        raise BayeslawError("--evsi needs fits of one law each, not pools: it refits them.")
    needed = None
    if for_plan:
        assert forgotten is not None
        target, base = (fit.accepted(beyond_evidence=True) for fit in (fitted, forgotten))
        needed = bl.plan(target=target, source=base, seed=value.seed, **limits)
    chosen = bl.choose_anchors(
        fitted,
        pool,
        target_rows,
        plan=needed,
        source=forgotten if for_plan else None,
        seed=value.seed,
        **vars(purchase),
    )
    opt.save_frame(out, chosen.frame)
    shown = opt.beside(fitted, chosen.shown())
    if value.evsi is not None:
        assert forgotten is not None
        evsi = bl.anchor_value(
            _first(chosen) | others,
            target=fitted.first,
            source=forgotten.first,
            simulations=value.evsi,
            cost=purchase.cost,
            seed=value.seed,
            jobs=value.jobs,
            **limits,
        )
        shown += shown_value(evsi)
    return shown.adding(out=out, seed=value.seed)


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


def _first(chosen: "bl.Anchors") -> "dict[str, pd.DataFrame]":
    """Rows of the first pick, of the first two, four and so on, and of all."""
    count, pick = len(chosen.picks), chosen.frame["pick"]
    firsts = [2**i for i in range(count.bit_length()) if 2**i < count]
    sets = {f"first {first}": chosen.frame[pick <= first] for first in firsts}
    return sets | {f"all {count}": chosen.frame}


def _rows(text: str, option: str, where: str | None) -> "pd.DataFrame":
    """Rows of a table, or of a grid such as ``"params=1e9 tokens=1e9,1e10"``."""
    if "=" in text and not Path(text).is_file():
        return opt.grid_or_file(option, text).query(where).frame
    rows = opt.grid_or_file(text)
    frame = rows.frame[rows.frame["tokens"] > 0] if "tokens" in rows.frame else rows.frame
    return bl.LossTable(frame, rows.baselines, text).query(where).frame
