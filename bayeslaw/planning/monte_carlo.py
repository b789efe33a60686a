"""The Monte Carlo error of a plan: how it would vary with other draws of the same posteriors."""

import math
from typing import Any

import numpy as np

from bayeslaw.planning.chance_constraint import Candidate, Problem
from bayeslaw.planning.likeliest import likeliest
from bayeslaw.planning.smallest import held_out, smallest

NORMAL_95 = 1.6449
"""Standard deviations from the median of a normal to its quantile at 95 %."""


def monte_carlo(
    problem: Problem, candidate: Candidate | None
) -> tuple[dict[str, Any], float]:
    """`Plan.error`, from plans of neighbouring ranks [1]_, and `Plan.held_out`.

    A plan is an order statistic of the budgets that draws need. Among other draws its rank is
    binomial, of as many trials as the draws are worth in independent ones. So the plans at
    quantiles of that rank are the ends of its interval.

    References
    ----------
    .. [1] W. J. Conover (1999). Practical Nonparametric Statistics, section 3.2. Wiley.
    """
    # Imported here, so that the command line starts fast.
    from scipy.stats import binom

    draws = problem.draws
    # Of point fits alone there are no other draws to vary with.
    if draws == 1 or candidate is None:
        return {}, math.nan
    share = problem.rank() / draws
    trials = _independent_draws(problem, candidate)
    low_share, high_share = np.array(binom.ppf((0.05, 0.95), trials, share)) / trials
    low = smallest(problem, float(low_share))
    high = smallest(problem, float(high_share))
    atpp = math.exp(candidate.budget)
    least = atpp
    low_ratio = math.nan
    if low is not None:
        least = min(math.exp(low.budget), atpp)
        low_ratio = low.ratio
    if high is None:
        # Other draws may have no plan.
        most = math.inf
        most_meeting = max(likeliest(problem).meeting / draws, share)
        needed = math.ceil(trials * share)
        infeasible = float(binom.cdf(needed - 1, trials, most_meeting))
        width = (atpp - least) / NORMAL_95
        moved = abs(candidate.ratio - low_ratio) / NORMAL_95
    else:
        # The ends are the quantiles at 5 and 95 %, twice NORMAL_95 standard deviations apart.
        most = math.exp(high.budget)
        infeasible = 0.0
        width = (most - least) / NORMAL_95 / 2
        moved = abs(high.ratio - low_ratio) / NORMAL_95 / 2
    error = {
        "atpp": width,
        "replay": moved,
        "atpp_90": (least, most),
        "infeasible": infeasible,
        "ess": trials,
    }
    return error, held_out(problem)


def _independent_draws(problem: Problem, candidate: Candidate) -> int:
    """How many independent draws the draws are worth at a candidate."""
    from arviz_stats.base import array_stats

    # What counts is whether the limits hold: parameters may mix more slowly, or noise dominate.
    losses = problem.losses(candidate.budget, candidate.ratio)
    holds = np.logical_and.reduce(problem.holds(losses))
    ess = array_stats.ess(holds.astype(float), method="mean")
    if not np.isfinite(ess):  # of few draws
        return problem.draws
    return round(float(np.clip(ess, 1, problem.draws)))
