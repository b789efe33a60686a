"""The command that chooses the next runs: ``anchors``."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import bayeslaw as bl
from bayeslaw.cli import options as opt
from bayeslaw.cli import parsing
from bayeslaw.cli.app import command
from bayeslaw.cli.options import option, output, query
from bayeslaw.common.errors import BayeslawError
from bayeslaw.common.shown import Shown

if TYPE_CHECKING:
    import pandas as pd

ROWS = "TABLE_OR_GRID"


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


@command(
    """bayeslaw anchors fit.nc --k 4 \\
    --candidates "params=241e6,517e6 tokens=1e9,1e10 replay=.1,.5 ptpp=279" \\
    --targets "params=8.1e9 tokens=1e10,1e11 replay=.1,.5 ptpp=279\"""",
    "bayeslaw anchors fit.nc --candidates pool.csv --targets goals.csv --budget 1e20",
    """bayeslaw anchors french.nc --candidates pool.csv --budget 1e20 --gain plan \\
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
    source: Path | None = option("For --gain plan: posterior of the source domain."),
    plan: str | None = option(f'For --gain plan: "{parsing.PLAN}".', metavar="LIMITS"),
    out: Path | None = output("Write the rows to measure (CSV or Parquet).", *opt.TABLES),
    allow_unconverged: bool = opt.UNCONVERGED,
    seed: int = opt.SEED,
) -> Shown:
    """Choose which runs to buy next.

    Draws runs at random, or with --gain plan selects those that make a plan's budget certain, in
    the order to buy them. Predicts the posterior standard deviation after each, so that you can
    stop where a further run is too expensive.
    """
    for_plan = purchase.gain == "plan"
    if purchase.k is None and purchase.budget is None:
        raise BayeslawError("say how many runs (--k) or what they may cost (--budget).")
    if (source is None) != (plan is None):
        raise BayeslawError("--source and --plan go together.")
    if for_plan and plan is None:
        raise BayeslawError("--gain plan needs --source and --plan.")
    if not for_plan and plan is not None:
        raise BayeslawError("--source and --plan have no effect without --gain plan.")
    if targets is None and not for_plan:
        raise BayeslawError("say where the loss matters, with --targets.")
    pool = _rows(candidates, "--candidates", where)
    target_rows = None if targets is None else _rows(targets, "--targets", aim)
    fitted = bl.load(posterior).accepted(unconverged=allow_unconverged)
    forgotten = planned = None
    if source is not None and plan is not None:
        limits = parsing.limits_of(plan)
        forgotten = bl.load(source).accepted(unconverged=allow_unconverged)
        target, other = (fit.accepted(beyond_evidence=True) for fit in (fitted, forgotten))
        planned = bl.plan(target=target, source=other, seed=seed, **limits)
    chosen = bl.choose_anchors(
        fitted,
        pool,
        target_rows,
        plan=planned,
        source=forgotten,
        seed=seed,
        **vars(purchase),
    )
    opt.save_frame(out, chosen.frame)
    return opt.beside(fitted, chosen.shown()).adding(out=out, seed=seed)


def _rows(text: str, option: str, where: str | None) -> "pd.DataFrame":
    """Rows of a table, or of a grid such as ``"params=1e9 tokens=1e9,1e10"``."""
    if "=" in text and not Path(text).is_file():
        return opt.grid_or_file(option, text).query(where).frame
    rows = opt.grid_or_file(text)
    frame = rows.frame[rows.frame["tokens"] > 0] if "tokens" in rows.frame else rows.frame
    return bl.LossTable(frame, text, rows.baselines).query(where).frame
