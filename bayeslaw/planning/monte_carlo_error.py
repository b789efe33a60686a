"""Monte Carlo error of a plan, which comes from the finite number of posterior draws."""

import math
from typing import TypedDict

import numpy as np

from bayeslaw.common.arrays import Floats
from bayeslaw.planning.chance_constraints import Problem
from bayeslaw.planning.intervals import Intervals, intersection
from bayeslaw.planning.loss_curves import NODES

REPLICATES = 100
"""Number of bootstrap replicates."""
MOST_RATIOS = 13
"""Most replay ratios that a replicate searches where budgets have a closed form."""
BESIDE = np.array([-0.5, -0.2, -0.1, 0.1, 0.2, 0.5])
"""Ratios searched beside the plan's where they have none, in steps of the grid."""
REACH, STEP = 1.0, 0.4
"""Budgets around the plan's that a replicate may need, and the distance of brackets, e-folds."""


class MonteCarloError(TypedDict, total=False):
    """Error of a plan by the bootstrap; empty for a single draw.

    Attributes
    ----------
    atpp, replay : float
        Standard deviation over the replicates that have a plan.
    atpp_90 : tuple of float
        Quantiles at 5 and 95 % of ATPP, infinite replicates included.
    infeasible : float
        Fraction of the replicates without a plan.
    replicates, block : int
        Number of replicates, and length of the blocks of draws.
    """

    atpp: float
    replay: float
    atpp_90: tuple[float, float]
    infeasible: float
    replicates: int
    block: int


def near_optimal(
    problem: Problem, ratios: Floats, per_ratio: Floats, replay: float, block: int
) -> tuple[Floats, Intervals]:
    """Replay ratios that may become optimal when the draws are resampled, and their budgets.

    They are those whose smallest budget exceeds the plan's by at most the margin that corresponds
    to four standard errors of the rank; without closed-form budgets, some beside the plan's.

    Parameters
    ----------
    problem : Problem
    ratios, per_ratio : array, shape (replays,)
        Grid, and the smallest budget at each ratio, log ATPP.
    replay : float
        The plan's replay ratio.
    block : int
        Number of draws that count as one independent draw.

    Returns
    -------
    near : array
        Some of them, evenly spread, and `replay`.
    feasible : Intervals
        Budgets that meet all limits at these ratios. Of laws without closed-form budgets only those
        within `REACH` of the margin's ends.
    """
    draws, rank = problem.draws, problem.rank
    error = 4 * math.sqrt(rank * (1 - rank / draws) * block)
    best = intersection(problem.feasible_sets([replay]))
    least, most = (best.smallest(n)[0] for n in (rank, min(draws, math.ceil(rank + error))))
    margin = most - least if most > least else 0.0
    if problem.closed_form:
        near = ratios[per_ratio <= per_ratio.min() + margin]
        near = near[np.linspace(0, len(near) - 1, min(MOST_RATIOS, len(near))).astype(int)]
    else:
        near = replay + BESIDE * np.diff(ratios).max(initial=0.0)
        near = np.clip(near, ratios[0], ratios[-1])
    near, nodes = np.union1d(near, replay), NODES
    if not problem.closed_form and abs(least) < math.inf and most < math.inf:
        nodes = np.arange(least - margin - REACH, most + REACH + STEP, STEP)
    return near, intersection(problem.feasible_sets(near, nodes))


def split_half_probability(problem: Problem, near: Floats, feasible: Intervals) -> float:
    """P(both) on half of the draws of a plan made on the other half; mean of both directions.

    P(both) of a plan on the draws that it was made on is optimistic; this one is not. Arguments as
    of `bootstrap`.
    """
    half, held = problem.draws // 2, []
    if not half:
        return math.nan
    index = np.arange(problem.draws)
    for first, second in ((index[:half], index[half:]), (index[half:], index[:half])):
        budgets = problem.take(first).smallest_budgets(feasible.take(first), near)
        best = int(budgets.argmin())
        held.append(feasible.take(second).contains(budgets[best])[best].mean())
    return float(np.mean(held))


def bootstrap(
    problem: Problem, near: Floats, feasible: Intervals, rng: np.random.Generator, block: int
) -> MonteCarloError:
    """Monte Carlo error of a plan by the circular block bootstrap over draws [1]_.

    Parameters
    ----------
    problem : Problem
    near : array
        Replay ratios that each replicate searches.
    feasible : Intervals
        Budgets that meet all limits at these ratios.
    rng : numpy Generator
    block : int
        Length of the blocks: about the number of draws over which draws are autocorrelated.

    References
    ----------
    .. [1] D. N. Politis and J. P. Romano (1992). A circular block-resampling procedure for
       stationary data. In Exploring the Limits of Bootstrap, 263-270. Wiley.
    """
    draws = problem.draws
    if draws == 1:
        return {}
    budget, where = np.empty(REPLICATES), np.empty(REPLICATES)
    for i in range(REPLICATES):
        starts = rng.integers(draws, size=math.ceil(draws / block))
        index = ((starts[:, None] + np.arange(block)) % draws).ravel()[:draws]
        drawn = problem if problem.max_cvar == math.inf else problem.take(index)
        per_ratio = drawn.smallest_budgets(feasible.take(index), near)
        budget[i], where[i] = per_ratio.min(), near[per_ratio.argmin()]
    atpp, finite = np.exp(budget), budget < math.inf
    spread = [float(np.std(v[finite])) if finite.any() else math.nan for v in (atpp, where)]
    low, high = np.quantile(atpp, (0.05, 0.95), method="nearest")
    return {
        "atpp": spread[0],
        "replay": spread[1],
        "atpp_90": (float(low), float(high)),
        "infeasible": float(1 - finite.mean()),
        "replicates": REPLICATES,
        "block": block,
    }
