"""What a plan would be once runs are measured: simulated, without a refit.

Each simulation takes a posterior draw as the truth and draws the losses that the runs would have.
Every other draw is moved by its regression on the measured losses (Matheron's rule [1]_), which
gives draws of the Gaussian posterior after the purchase, and the plan is made of them on a grid of
budgets and replay ratios.

References
----------
.. [1] J. T. Wilson, V. Borovitskiy, A. Terenin, P. Mostowsky and M. P. Deisenroth (2021). Pathwise
   conditioning of Gaussian processes. Journal of Machine Learning Research, 22(105), 1-47.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.design.bayes_linear import JointGaussian
from bayeslaw.planning.result import Plan

BUDGETS = np.linspace(-3.0, 3.0, 61)
"""Budgets around the plan's, e-folds."""
NEAR, EVERY = np.linspace(-0.1, 0.1, 5), np.linspace(0.04, 0.96, 9)
"""Replay ratios next to the plan's, and others."""
TRUTHS, DRAWS = 100, 400
"""Simulations, and draws in each."""


@dataclass(frozen=True)
class PlanAfter:
    """Plans over simulations of the measured losses.

    Parameters
    ----------
    feasible : float
        Fraction of the simulations with a plan at the stated confidence.
    atpp : float
        Median of its budget, infinite where there is none.
    """

    feasible: float
    atpp: float


def plan_after(
    plan: Plan,
    joint: JointGaussian,
    keep: Ints,
    picks: Sequence[int],
    seed: int = 0,
) -> PlanAfter:
    """Plan after some candidates are measured.

    Parameters
    ----------
    plan : Plan
        Feasible, or with a most likely choice; without a limit of CVaR.
    joint : JointGaussian
        Candidates and targets at some paired draws of the plan.
    keep : array of int
        Those draws.
    picks : sequence of int
        Candidates bought; none for the plan on the grid as it is.
    seed : int
    """
    assert plan.chosen is not None
    rng = np.random.default_rng(seed)
    atpp = plan.chosen.atpp * np.exp(BUDGETS)
    ratios = np.union1d(np.clip(plan.chosen.replay + NEAR, 0.005, 0.995), EVERY)
    some = np.sort(rng.permutation(len(keep))[:DRAWS])
    problem = plan.problem.take(keep[some])
    bounds = np.array([np.broadcast_to(b.limit, problem.draws) for b in problem.bounds])
    with np.errstate(invalid="ignore", divide="ignore"):
        margin = np.log(bounds)[:, None, None] - np.log(
            [[b.curve.loss(ratios, u) for u in np.log(atpp)] for b in problem.bounds]
        )
    margin = np.nan_to_num(margin, nan=-1.0, posinf=1.0, neginf=-1.0)  # limits, ATPP, r, draws
    have = joint.measurements_of(picks)
    if not len(have):
        found = _smallest(margin, atpp, problem.rank)
        return PlanAfter(float(np.isfinite(found)), found)
    x = joint.measured[some][:, have] * math.sqrt(len(joint.measured) - 1)
    noise = joint.noise_covariance(have)
    shape, flat = margin.shape, margin.reshape(-1, margin.shape[-1])
    moved = x - x.mean(0)
    total = moved.T @ moved / (len(x) - 1) + noise
    gain = (flat - flat.mean(1, keepdims=True)) @ moved / (len(x) - 1) @ np.linalg.inv(total)
    root = np.linalg.cholesky(noise)
    error = rng.standard_normal((TRUTHS + len(x), len(have))) @ root.T
    seen = x + error[TRUTHS:]
    budgets = [
        _smallest(
            (flat + gain @ (x[t % len(x)] + error[t] - seen).T).reshape(shape), atpp, problem.rank
        )
        for t in range(TRUTHS)
    ]
    return PlanAfter(
        float(np.isfinite(budgets).mean()),
        float(np.quantile(budgets, 0.5, method="higher")),
    )


def _smallest(margin: Floats, atpp: Floats, rank: int) -> float:
    """Smallest ATPP of the grid with at least `rank` draws within all limits at some ratio."""
    enough = ((margin >= 0).all(0).sum(-1) >= rank).any(-1)
    return float(atpp[enough.argmax()]) if enough.any() else math.inf
