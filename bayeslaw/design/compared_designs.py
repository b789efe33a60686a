"""Designs that studies compare: rules for spending a budget on a pool's rows, and predictions."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats
from bayeslaw.design.anchors import choose_anchors
from bayeslaw.design.posterior_moments import candidate_rows, joint_gaussian, new_size_effects
from bayeslaw.design.set_search import SLACK, Costs
from bayeslaw.inference.posterior import Posterior
from bayeslaw.planning.result import Plan
from bayeslaw.tables.table import LossTable, frame_of

MOST = 40
"""Most runs of a design of `BY_GAIN`; the others are limited by the budget alone."""


def none(costs: Costs, budget: float, rng: np.random.Generator) -> list[int]:
    """Buy nothing: the forecast without anchors."""
    return []


def random(costs: Costs, budget: float, rng: np.random.Generator) -> list[int]:
    """Whole runs in random order, each one that the rest of the budget allows."""
    whole = pd.Series(costs.own).groupby(costs.run).idxmax().to_numpy()
    return _affordable(rng.permutation(whole), costs, budget)


def cheapest(costs: Costs, budget: float, rng: np.random.Generator) -> list[int]:
    """Rows in order of cost, each one that the rest of the budget allows.

    Examples
    --------
    >>> each = Costs(np.array([3.0, 1.0, 2.0]), np.arange(3), np.zeros(3, int), np.zeros(1))
    >>> cheapest(each, 4.0, np.random.default_rng(0))
    [1, 2]
    """
    return _affordable(np.argsort(costs.further([]), kind="stable"), costs, budget)


SIMPLE: dict[str, Callable[[Costs, float, np.random.Generator], list[int]]] = {
    "none": none,
    "random": random,
    "cheapest": cheapest,
}
"""Designs that depend on the costs alone."""
BY_GAIN = ("doptimal", "variance", "entropy", "plan")
"""Designs of `bayeslaw.choose_anchors`, by its gain."""
DESIGNS = (*SIMPLE, "grid", *BY_GAIN)


def rows_to_buy(
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
    """Rows of a pool that a design measures within a budget, free checkpoints included.

    Parameters
    ----------
    design : {"none", "random", "cheapest", "grid", "doptimal", "variance", "entropy", "plan"}
        ``"grid"`` takes the rows of the query `grid`, such as the paper's 20 points, or without a
        query those of the smallest N; the cheapest first if the budget does not suffice for all.
    pool : LossTable
        Candidate rows. Their losses are not used.
    costs : Costs
        Of the pool's rows.
    budget : float
        Most FLOPs together.
    rng : numpy Generator
        For the design ``"random"``.
    posterior, targets, source, plan
        For the designs of `bayeslaw.choose_anchors`; `source` and `plan` for ``"plan"`` alone.
    cost : str
        The cost that `costs` was made with.

    Returns
    -------
    list of int
        Positions in the pool.
    """
    frame = pool.frame.drop(columns="loss")
    if design in SIMPLE:
        picks = SIMPLE[design](costs, budget, rng)
    elif design == "grid":
        rows = frame.query(grid) if grid else frame[frame["params"] == frame["params"].min()]
        order = rows.index[np.argsort(costs.own[rows.index], kind="stable")]
        picks = _affordable(order.to_numpy(), costs, budget)
    else:
        anchors = choose_anchors(
            posterior,
            frame.assign(row=frame.index),
            targets.frame,
            k=MOST,
            budget=budget,
            cost=cost,
            gain=design,
            plan=plan if design == "plan" else None,
            source=source if design == "plan" else None,
            allow_unconverged=True,
        )
        return sorted(anchors.frame["row"])
    return with_checkpoints(picks, costs)


def with_checkpoints(picks: Sequence[int], costs: Costs) -> list[int]:
    """Rows that are measured with some: themselves, and the cheaper rows of their runs."""
    run, own = costs.run, costs.own
    return [i for i in range(len(own)) if any(run[i] == run[p] and own[i] <= own[p] for p in picks)]


def _affordable(order: Iterable[int], costs: Costs, budget: float) -> list[int]:
    """Rows in this order, each one that the rest of the budget allows."""
    picks: list[int] = []
    for row in map(int, order):
        if costs.total([*picks, row]) <= budget * SLACK:
            picks.append(row)
    return picks


def predicted_sd(
    posterior: Posterior, rows: LossTable | pd.DataFrame, targets: LossTable | pd.DataFrame
) -> Floats:
    """Predicted standard deviation of log loss at each target once `rows` are measured.

    Without rows it is the posterior's own. The random effect of a target's size is included if the
    size has no training rows.
    """
    aim = frame_of(targets)
    if not len(rows):
        log_loss = np.log(posterior.latent(aim)) + new_size_effects(posterior, aim, None, 0)
        return np.asarray(log_loss.std(0, ddof=1))
    frame = candidate_rows(posterior, rows)
    joint, _ = joint_gaussian([posterior], frame, aim)
    return np.sqrt(joint.update(list(frame.index)).variance)
