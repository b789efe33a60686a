"""The command that chooses the next runs: ``anchors``."""

from pathlib import Path
from typing import TYPE_CHECKING

import bayeslaw as bl
from bayeslaw.cli import options as opt
from bayeslaw.cli.app import command
from bayeslaw.cli.options import option, output, query
from bayeslaw.common.errors import BayeslawError
from bayeslaw.common.shown import Shown

if TYPE_CHECKING:
    import pandas as pd

ROWS = "TABLE_OR_GRID"


@command(
    """bayeslaw anchors fit.nc --k 4 \\
    --candidates "params=241e6,517e6 tokens=1e9,1e10 replay=.1,.5 ptpp=279" \\
    --targets "params=8.1e9 tokens=1e10,1e11 replay=.1,.5 ptpp=279\"""",
    "bayeslaw anchors fit.nc --candidates pool.csv --targets goals.csv --budget 1e20",
)
def anchors(
    *,
    posterior: Path = opt.SAVED,
    candidates: str = option(
        "Rows that can be measured; rows of one `run` are its checkpoints.",
        default=...,
        metavar=ROWS,
    ),
    targets: str = option(
        "Target rows: those whose losses are to be forecast.", default=..., metavar=ROWS
    ),
    where: str | None = query("Candidates to use; all others are ignored."),
    aim: str | None = query("Targets to use; all others are ignored."),
    k: int | None = option("Number of runs.", min=1),
    budget: float | None = option("Most FLOPs for all runs."),
    cost: str = option(
        "flops (6 N D and each new base's pre-training), adaptation (6 N D), or a column.",
        default="flops",
    ),
    out: Path | None = output("Write the rows to measure (CSV or Parquet).", *opt.TABLES),
    allow_unconverged: bool = opt.UNCONVERGED,
    seed: int = opt.SEED,
) -> Shown:
    """Choose which runs to buy next.

    Draws runs at random, and predicts the posterior standard deviation of the forecast after each,
    so that you can stop where a further run is too expensive.
    """
    if k is None and budget is None:
        raise BayeslawError("say how many runs (--k) or what they may cost (--budget).")
    pool = _rows(candidates, "--candidates", where)
    target_rows = _rows(targets, "--targets", aim)
    fitted = bl.load(posterior).accepted(unconverged=allow_unconverged)
    chosen = bl.choose_anchors(fitted, pool, target_rows, k=k, budget=budget, cost=cost, seed=seed)
    opt.save_frame(out, chosen.frame)
    return opt.beside(fitted, chosen.shown()).adding(out=out, seed=seed)


def _rows(text: str, option: str, where: str | None) -> "pd.DataFrame":
    """Rows of a table, or of a grid such as ``"params=1e9 tokens=1e9,1e10"``."""
    if "=" in text and not Path(text).is_file():
        return opt.grid_or_file(option, text).query(where).frame
    rows = opt.grid_or_file(text)
    frame = rows.frame[rows.frame["tokens"] > 0] if "tokens" in rows.frame else rows.frame
    return bl.LossTable(frame, text, rows.baselines).query(where).frame
