"""Polish many starts together, and drop early those that cannot reach the best objective.

1. All starts descend a few steps, and the best of them are continued (`polish_best`).
2. Those near the best objective, but not yet at it, continue in rounds with second derivatives.
3. After each round they extrapolate its direction (`extrapolate`): where an exponent has no finite
   optimum, the objective flattens, and descents alone approach the bound more and more slowly.
"""

import numpy as np

from bayeslaw.common.arrays import Bools, Floats, Ints
from bayeslaw.huber.descent import polish, refit_linear
from bayeslaw.huber.objective import Objective

AGREE = 1e-5
"""Two optima agree if their objectives differ by less than this, relatively."""
RANKING_STEPS, FIRST_STEPS, ROUND_STEPS, END_STEPS = 30, 40, 25, 10
"""Steps before the starts are ranked, of those that are chosen, of each later round, and of those
that agree at the end."""
NEAR = 0.02
"""Starts whose objective exceeds the best by more than this, relatively, are dropped."""
ROUNDS = 18
"""Most rounds. A start is dropped if `ROUNDS` times its last gain cannot reach the best."""
GAIN = 1e-7
"""The best start continues while a round lowers its objective by more than this, relatively."""
LENGTHS = 2.0 ** np.arange(1, 9)
"""Lengths of the extrapolations of a round's movement, as multiples of it."""
REFITS = 8
"""Refits of the linear parameters after an extrapolation. Each leaves about 5 % of the error."""


def polish_best(problem: Objective, points: Floats, keep: int) -> tuple[Floats, Floats, Floats]:
    """Polish the best `keep` of some starts.

    Parameters
    ----------
    problem : Objective
    points : array, shape (starts, parameters)
    keep : int
        If there are more starts, all take a few steps and the best are continued: where a law has
        many exponents, the objective at the start does not predict where a descent ends.

    Returns
    -------
    points : array, shape (keep, parameters)
    objective : array, shape (keep,)
        Sums of the Huber losses.
    ends : array, shape (keep, parameters)
        Where each start was when it first agreed with the best, or ended; `points` have the best
        instead of those that agreed.
    """
    if len(points) > keep:
        points, objective, _ = polish(problem, points, max_steps=RANKING_STEPS)
        points = points[np.argsort(objective, kind="stable")[:keep]]
    points, objective, moving = polish(problem, points, max_steps=FIRST_STEPS)
    gain, agreed, ends = np.full(len(points), np.inf), np.zeros(len(points), bool), points.copy()
    for _ in range(ROUNDS):
        best = int(np.argmin(objective))
        excess = objective / objective[best] - 1
        agree = excess <= AGREE
        active = np.flatnonzero(moving & ~agree & (excess <= np.minimum(NEAR, ROUNDS * gain)))
        if moving[best] and gain[best] > GAIN:
            active = np.append(active, best)
        if not len(active):
            break
        start, before = points[active], objective[active]
        points[active], objective[active], moving[active] = polish(
            problem, points[active], second_derivatives=True, max_steps=ROUND_STEPS
        )
        extrapolate(problem, start, points, objective, active)
        gain[active] = before / objective[active] - 1
        ends[~agreed] = points[~agreed]
        agreed |= agree
        # Starts that agree would all end at the same objective, so only the best continues.
        points[agree], objective[agree], moving[agree] = points[best], objective[best], moving[best]
    return points, objective, ends


def extrapolate(
    problem: Objective, start: Floats, points: Floats, objective: Floats, active: Ints
) -> None:
    """Move the `active` points further in the direction of their last round if that is better.

    Candidates are the same movement several times over, and movements that multiply the distance
    to the nearer bound by the same factor several times. Then each exponent in turn is tried at the
    bound it moves to. Points and objectives are changed in place.

    Parameters
    ----------
    problem : Objective
    start : array, shape (active, parameters)
        The active points before the round.
    points : array, shape (points, parameters)
    objective : array, shape (points,)
    active : array of int
        Rows of `points`.
    """
    low, high = problem.low, problem.high

    def accept_best(row: int, candidates: Floats) -> None:
        candidates, value = _refitted(problem, candidates)
        best = int(np.argmin(value))
        if value[best] < objective[row]:
            points[row], objective[row] = candidates[best], value[best]

    for row, origin in zip(active, start, strict=True):
        direction = points[row] - origin
        bound = np.where(points[row] - low <= high - points[row], low, high)
        before, now = origin - bound, points[row] - bound
        factor = np.divide(now, before, out=np.ones_like(before), where=before * now > 0)
        factor[: problem.linear] = 1.0  # these are refitted
        with np.errstate(over="ignore"):
            geometric = bound + now * factor ** LENGTHS[:, None]
        accept_best(row, np.concatenate([points[row] + LENGTHS[:, None] * direction, geometric]))
        to_bound = np.diag(np.where(direction > 0, high, low) - points[row])
        accept_best(row, points[row] + to_bound[problem.linear :])


def _refitted(problem: Objective, points: Floats) -> tuple[Floats, Floats]:
    """Points put within bounds, with their linear parameters refitted, and objectives."""
    points = np.clip(points, problem.low, problem.high)
    for _ in range(REFITS):
        points, residuals = refit_linear(problem, points)
    return points, problem.objective(residuals)


def agree(objective: Floats, rows: int) -> Bools:
    """Which starts ended at the best of their objectives."""
    best: Bools = objective <= (1 + AGREE) * objective.min() + 1e-20 * rows
    return best


def solutions(problem: Objective, best: Floats, ends: Floats) -> Floats:
    """Points with the same objective as the best: itself, and those where other starts end.

    Where the table does not determine all parameters these points differ. Elsewhere they differ by
    what the objective's tolerance allows.

    Parameters
    ----------
    problem : Objective
    best : array, shape (parameters,)
    ends : array, shape (starts, parameters)
        Of `polish_best`; of the starts that agree.

    Returns
    -------
    array, shape (solutions, parameters)
        The first is `best`.
    """
    ends, reached, _ = polish(problem, ends, second_derivatives=True, max_steps=END_STEPS)
    least = problem.objective(problem.residuals(best[None]))
    same = agree(np.concatenate([least, reached]), len(problem.log_loss))[1:]
    return np.concatenate([best[None], ends[same]])
