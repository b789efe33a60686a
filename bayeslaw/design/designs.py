"""Designs: ways to spend a budget on the rows of a pool, for studies to compare."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw.design.anchors import choose_anchors
from bayeslaw.design.costs import Costs
from bayeslaw.inference.posterior import Posterior
from bayeslaw.planning.result import Plan
from bayeslaw.tables.table import LossTable

MOST = 40
"""Runs that a chosen design may have; the others stop at the budget alone."""


def none(costs: Costs, budget: float, rng: np.random.Generator) -> list[int]:
    """Buy nothing: the forecast without anchors."""
    return []


def random(costs: Costs, budget: float, rng: np.random.Generator) -> list[int]:
    """Take whole runs in random order, each that the budget still allows."""
    whole = pd.Series(costs.own).groupby(costs.run).idxmax().to_numpy()
    return _afford(rng.permutation(whole), costs, budget)


def cheapest(costs: Costs, budget: float, rng: np.random.Generator) -> list[int]:
    """Take the cheapest rows first."""
    return _afford(np.argsort(costs.further([]), kind="stable"), costs, budget)


SIMPLE: dict[str, Callable[[Costs, float, np.random.Generator], list[int]]] = {
    "none": none,
    "random": random,
    "cheapest": cheapest,
}
CHOSEN = ("doptimal", "variance", "entropy", "plan")
"""Designs of `bayeslaw.choose_anchors`, by its gain."""
DESIGNS = (*SIMPLE, "grid", *CHOSEN)


def buy(
    design: str,
    pool: LossTable,
    costs: Costs,
    budget: float,
    rng: np.random.Generator,
    *,
    grid: str = "",
    posterior: Posterior,
    targets: LossTable,
    source: Posterior | None = None,
    plan: Plan | None = None,
    cost: str = "adaptation",
) -> list[int]:
    """Rows of the pool that a design measures within a budget, free checkpoints included.

    Parameters
    ----------
    design : {"none", "random", "cheapest", "grid", "doptimal", "variance", "entropy", "plan"}
        ``"grid"`` is the rows of `grid`, a query (the paper's 20 points; without one those of the
        smallest N), the cheapest first if the budget does not hold all.
    pool : LossTable
        Its losses are not looked at.
    costs, budget, cost
        Of the pool's rows; `cost` is what `costs` was made by.
    """
    frame = pool.frame.drop(columns="loss")
    if design in SIMPLE:
        picks = SIMPLE[design](costs, budget, rng)
    elif design == "grid":
        rows = frame.query(grid) if grid else frame[frame["params"] == frame["params"].min()]
        order = rows.index[np.argsort(costs.own[rows.index], kind="stable")]
        picks = _afford(order.to_numpy(), costs, budget)
    else:
        extra: dict[str, Any] = {"plan": plan, "source": source} if design == "plan" else {}
        anchors = choose_anchors(
            posterior,
            frame.assign(row=frame.index),
            targets.frame,
            k=MOST,
            budget=budget,
            cost=cost,
            gain=design,
            allow_unconverged=True,
            **extra,
        )
        return sorted(anchors.frame["row"])
    run, own = costs.run, costs.own
    return [i for i in frame.index if any(run[i] == run[p] and own[i] <= own[p] for p in picks)]


def _afford(order: np.ndarray[Any, Any], costs: Costs, budget: float) -> list[int]:
    """Rows in this order, each that the budget still allows."""
    picks: list[int] = []
    for row in map(int, order):
        if costs.total([*picks, row]) <= budget * (1 + 1e-9):
            picks.append(row)
    return picks
