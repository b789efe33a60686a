"""The Huber objective minimised from many starts at once.

Each iteration of a descent (`polish`) takes a Levenberg-Marquardt step of all parameters within
their bounds, then solves for the linear parameters again with the exponents fixed (`refit_linear`),
as in variable projection (Golub and Pereyra, 1973): along the narrow curved valleys of these laws
the optimal amounts are exponential functions of the exponents, so a straight step leaves the
valley. Without the refit a descent takes up to ten times as many steps.
"""

import numpy as np

from bayeslaw.common.arrays import Bools, Floats
from bayeslaw.huber.batches import times, with_added
from bayeslaw.huber.newton import bounded_steps, floored, hessian, refit_linear
from bayeslaw.huber.objective import Objective
from bayeslaw.huber.starts import screened_starts

LITTLE_DAMPING = 1e-2
MUCH_DAMPING = 1e8
GAIN_TOLERANCE = 1e-13
"""A descent starts with little damping. It ends when a step of no more damping gains less than
GAIN_TOLERANCE, relatively, or when steps of much damping still lead up."""
RANKING_STEPS = 30
FIRST_STEPS = 40
ROUND_STEPS = 25
END_STEPS = 10
"""Steps before the starts are ranked, of those that are chosen, of each later round, and of those
that agree at the end."""
NEAR_BEST = 0.02
ROUNDS = 18
GAIN = 1e-7
"""Starts whose value exceeds the best by more than NEAR_BEST are dropped. At most ROUNDS rounds
follow each other, as long as the best one gains GAIN in a round; both relatively."""
FEW_STARTS = 64
FEW_POLISHED = 6
"""Starts screened and polished where only the residuals are needed."""
LENGTHS = 2.0 ** np.arange(1, 9)
REFITS = 8
"""How many rounds an extrapolation is ahead of the last one, and refits of the linear parameters
after it. Each leaves about 5 % of the error."""


def polish_best(
    objective: Objective, points: Floats, keep: int
) -> tuple[Floats, Floats, Floats]:
    """Polish the best `keep` of some starts: points, their values, and `ends`.

    `ends` are where each start was when it first agreed with the best, or ended; `points` have the
    best instead of those that agreed.
    """
    # Where a law has many exponents, the value at the start does not predict where a descent ends.
    if len(points) > keep:
        points, values, _ = polish(objective, points, RANKING_STEPS)
        best_first = np.argsort(values, kind="stable")
        points = points[best_first[:keep]]
    points, values, moving = polish(objective, points, FIRST_STEPS)
    agreed = np.zeros(len(points), bool)
    ends = points.copy()
    for _ in range(ROUNDS):
        best = int(np.argmin(values))
        least = values[best]
        same = objective.agree(values)
        same[best] = False
        agreed |= same
        # Starts that agree would all end at the same value, so only the best continues.
        points[same] = points[best]
        values[same] = least
        moving[same] = moving[best]
        near = values <= (1 + NEAR_BEST) * least
        active = np.flatnonzero(moving & ~same & near)
        origins = points[active]
        polished = polish(objective, origins, ROUND_STEPS, exact=True)
        points[active], values[active], moving[active] = polished
        for i, origin in zip(active, origins, strict=True):
            point, value = extrapolated(objective, origin, points[i], values[i])
            points[i] = point
            values[i] = value
        ends[~agreed] = points[~agreed]
        if values.min() > (1 - GAIN) * least:
            break
    return points, values, ends


def minimum(objective: Objective) -> Floats:
    """The best point of a few starts, where only its residuals are needed."""
    # The objective may overflow for losses such as 1e-300.
    with np.errstate(over="ignore", invalid="ignore"):
        starts = screened_starts(objective, FEW_STARTS, 0)
        points, values, _ = polish_best(objective, starts, FEW_POLISHED)
    best = int(np.argmin(values))
    return np.asarray(points[best])


def extrapolated(
    objective: Objective, origin: Floats, point: Floats, value: float
) -> tuple[Floats, float]:
    """The point, or one further in its direction from `origin` if it is better, and its value.

    Where an exponent has no finite optimum, the objective flattens, and descents alone approach the
    bound more and more slowly.
    """
    low = objective.low
    high = objective.high
    linear = objective.linear
    # The distance to the nearer bound shrinks, or grows, by the factor of the last round.
    near_low = point - low <= high - point
    bound = np.where(near_low, low, high)
    before = origin - bound
    now = point - bound
    factor = np.ones_like(before)
    same_side = before * now > 0
    np.divide(now, before, out=factor, where=same_side)
    # The linear parameters are refitted.
    factor[:linear] = 1.0
    with np.errstate(over="ignore"):
        further = bound + now * factor ** LENGTHS[:, None]
    # Each exponent in turn at the bound that it moves to.
    ahead = np.where(point > origin, high, low)
    to_bound = np.diag(ahead - point)[linear:]
    point, value = _best_refitted(objective, further, point, value)
    return _best_refitted(objective, point + to_bound, point, value)


def _best_refitted(
    objective: Objective, trials: Floats, point: Floats, value: float
) -> tuple[Floats, float]:
    """The point, or the best of some trials with refitted linear parameters, and its value."""
    trials = np.clip(trials, objective.low, objective.high)
    for _ in range(REFITS):
        trials, residuals = refit_linear(objective, trials)
    values = objective.value(residuals)
    best = int(np.argmin(values))
    if values[best] < value:
        return trials[best], float(values[best])
    return point, value


def solutions(objective: Objective, best: Floats, ends: Floats) -> Floats:
    """Points of the same value as the best: itself first, and those where other starts end.

    Where the table does not determine all parameters these differ; elsewhere by what the tolerance
    of the value allows. `ends` are those of `polish_best`, of the starts that agree.
    """
    ends, values, _ = polish(objective, ends, END_STEPS, exact=True)
    least = objective.value(objective.residuals(best[None]))
    agree = objective.agree(np.concatenate([least, values]))
    same = agree[1:]
    return np.concatenate([best[None], ends[same]])


def polish(
    objective: Objective, points: Floats, steps: int, *, exact: bool = False
) -> tuple[Floats, Floats, Bools]:
    """Descend from all points at once: points, values, and which have not converged.

    A step s solves ``(H + damping diag(J' W J)) s = -J' W r`` within the bounds. H is the matrix of
    second derivatives where it is `exact`, and else that of Gauss and Newton.
    """
    low = objective.low
    high = objective.high
    points = np.clip(points, low, high)
    residuals = objective.residuals(points)
    values = objective.value(residuals)
    damping = np.full(len(points), LITTLE_DAMPING)
    moving = np.isfinite(values)
    for _ in range(steps):
        active = np.flatnonzero(moving)
        if not len(active):
            break
        here = points[active]
        damped = damping[active]
        steps_here = _damped_steps(
            objective, here, residuals[active], damped, exact=exact
        )
        moved = np.clip(here + steps_here, low, high)
        trial, trial_residuals = refit_linear(objective, moved)
        trial_values = objective.value(trial_residuals)
        gain = values[active] - trial_values
        # A step with little damping that changes nothing is at the optimum already.
        no_gain = np.abs(gain) <= GAIN_TOLERANCE * values[active]
        converged = no_gain & (damped <= LITTLE_DAMPING)
        better = gain > 0
        damping[active] *= np.where(better, 0.25, 6.0)
        moving[active] = ~converged & (damping[active] < MUCH_DAMPING)
        accepted = active[better]
        points[accepted] = trial[better]
        residuals[accepted] = trial_residuals[better]
        values[accepted] = trial_values[better]
    return points, values, moving


def _damped_steps(
    objective: Objective,
    points: Floats,
    residuals: Floats,
    damping: Floats,
    *,
    exact: bool,
) -> Floats:
    """Steps of `polish` from points with these residuals, within the bounds."""
    low = objective.low
    high = objective.high
    gradient, jacobian, weights = objective.gradient(points, residuals)
    scale = floored(times(jacobian**2, weights))
    if exact:
        at_low = (points == low) & (gradient > 0)
        at_high = (points == high) & (gradient < 0)
        matrix = hessian(objective, points, scale, at_low | at_high)
    else:
        # Beyond the threshold the Huber loss is linear in the residual and has no curvature.
        curved = jacobian * (weights == 1)[:, None]
        matrix = curved @ jacobian.mT
    damping = damping[:, None] + 1e-15
    matrix = with_added(matrix, damping * scale)
    return bounded_steps(matrix, gradient, low - points, high - points)
