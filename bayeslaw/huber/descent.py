"""Minimise the Huber objective from many starts at once, and drop those that cannot be best.

Each iteration of a descent (`polish`) takes a Levenberg-Marquardt step [1]_ [2]_ of all parameters
within their bounds, then solves for the linear parameters again with the exponents fixed
(`refit_linear`), as in variable projection [3]_. Near the optimum, steps may use second derivatives
of the objective instead of the Gauss-Newton matrix, which converges slowly where residuals are
large. `polish_best` descends from all starts:

1. All take a few steps, and the best of them are continued.
2. Those near the best value, but not yet at it, continue in rounds with second derivatives.
3. After each round they extrapolate its direction (`extrapolate`): where an exponent has no finite
   optimum, the objective flattens, and descents alone approach the bound more and more slowly.

References
----------
.. [1] K. Levenberg (1944), A method for the solution of certain non-linear problems in least
   squares, Quarterly of Applied Mathematics 2, 164-168.
.. [2] D. W. Marquardt (1963), An algorithm for least-squares estimation of nonlinear parameters,
   Journal of the Society for Industrial and Applied Mathematics 11, 431-441.
.. [3] G. H. Golub and V. Pereyra (1973), The differentiation of pseudo-inverses and nonlinear least
   squares problems whose variables separate, SIAM Journal on Numerical Analysis 10, 413-432.
"""

import math

import numpy as np

from bayeslaw.common.arrays import Bools, Floats, Ints
from bayeslaw.huber.objective import Objective

DIFFERENCE = 1e-6
"""Step of the finite differences of the gradient that give second derivatives."""
PATIENCE, TOLERANCE = 12, 1e-13
"""A descent ends after this many steps in a row that gain less than this, relatively."""
FIXINGS = 4
"""Most solutions for a step within bounds, each with more coordinates fixed at a bound."""
AGREE = 1e-5
"""Two optima agree if their values differ by less than this, relatively."""
RANKING_STEPS, FIRST_STEPS, ROUND_STEPS, END_STEPS = 30, 40, 25, 10
"""Steps before the starts are ranked, of those that are chosen, of each later round, and of those
that agree at the end."""
NEAR = 0.02
"""Starts whose value exceeds the best by more than this, relatively, are dropped."""
ROUNDS = 18
"""Most rounds. A start is dropped if `ROUNDS` times its last gain cannot reach the best."""
GAIN = 1e-7
"""The best start continues while a round lowers its value by more than this, relatively."""
LENGTHS = 2.0 ** np.arange(1, 9)
"""Lengths of the extrapolations of a round's movement, as multiples of it."""
REFITS = 8
"""Refits of the linear parameters after an extrapolation. Each leaves about 5 % of the error."""


# -- many starts ----------------------------------------------------------------------------------


def polish_best(objective: Objective, points: Floats, keep: int) -> tuple[Floats, Floats, Floats]:
    """Polish the best `keep` of some starts.

    Parameters
    ----------
    objective : Objective
    points : array, shape (starts, parameters)
    keep : int
        If there are more starts, all take a few steps and the best are continued: where a law has
        many exponents, the value at the start does not predict where a descent ends.

    Returns
    -------
    points : array, shape (keep, parameters)
    values : array, shape (keep,)
        Sums of the Huber losses.
    ends : array, shape (keep, parameters)
        Where each start was when it first agreed with the best, or ended; `points` have the best
        instead of those that agreed.
    """
    if len(points) > keep:
        points, values, _ = polish(objective, points, max_steps=RANKING_STEPS)
        points = points[np.argsort(values, kind="stable")[:keep]]
    points, values, moving = polish(objective, points, max_steps=FIRST_STEPS)
    gain, agreed, ends = np.full(len(points), np.inf), np.zeros(len(points), bool), points.copy()
    for _ in range(ROUNDS):
        best = int(np.argmin(values))
        excess = values / values[best] - 1
        agree = excess <= AGREE
        active = np.flatnonzero(moving & ~agree & (excess <= np.minimum(NEAR, ROUNDS * gain)))
        if moving[best] and gain[best] > GAIN:
            active = np.append(active, best)
        if not len(active):
            break
        start, before = points[active], values[active]
        points[active], values[active], moving[active] = polish(
            objective, points[active], second_derivatives=True, max_steps=ROUND_STEPS
        )
        extrapolate(objective, start, points, values, active)
        gain[active] = before / values[active] - 1
        ends[~agreed] = points[~agreed]
        agreed |= agree
        # Starts that agree would all end at the same value, so only the best continues.
        points[agree], values[agree], moving[agree] = points[best], values[best], moving[best]
    return points, values, ends


def extrapolate(
    objective: Objective, start: Floats, points: Floats, values: Floats, active: Ints
) -> None:
    """Move the `active` rows of `points` further in the direction of their last round if better.

    Candidates are the same movement from `start` several times over, and movements that multiply
    the distance to the nearer bound by the same factor several times. Then each exponent in turn is
    tried at the bound it moves to. Points and values are changed in place.
    """
    low, high = objective.low, objective.high

    def accept_best(row: int, candidates: Floats) -> None:
        candidates = np.clip(candidates, low, high)
        for _ in range(REFITS):
            candidates, residuals = refit_linear(objective, candidates)
        reached = objective.value(residuals)
        best = int(np.argmin(reached))
        if reached[best] < values[row]:
            points[row], values[row] = candidates[best], reached[best]

    for row, origin in zip(active, start, strict=True):
        direction = points[row] - origin
        bound = np.where(points[row] - low <= high - points[row], low, high)
        before, now = origin - bound, points[row] - bound
        factor = np.divide(now, before, out=np.ones_like(before), where=before * now > 0)
        factor[: objective.linear] = 1.0  # these are refitted
        with np.errstate(over="ignore"):
            geometric = bound + now * factor ** LENGTHS[:, None]
        accept_best(row, np.concatenate([points[row] + LENGTHS[:, None] * direction, geometric]))
        to_bound = np.diag(np.where(direction > 0, high, low) - points[row])
        accept_best(row, points[row] + to_bound[objective.linear :])


def agree(values: Floats, rows: int) -> Bools:
    """Which starts ended at the best of their values."""
    best: Bools = values <= (1 + AGREE) * values.min() + 1e-20 * rows
    return best


def solutions(objective: Objective, best: Floats, ends: Floats) -> Floats:
    """Points of the same value as the best: itself first, and those where other starts end.

    Where the table does not determine all parameters these points differ. Elsewhere they differ by
    what the tolerance of the value allows. `ends` are those of `polish_best`, of the starts that
    agree.

    Returns
    -------
    array, shape (solutions, parameters)
    """
    ends, reached, _ = polish(objective, ends, second_derivatives=True, max_steps=END_STEPS)
    least = objective.value(objective.residuals(best[None]))
    same = agree(np.concatenate([least, reached]), len(objective.log_loss))[1:]
    return np.concatenate([best[None], ends[same]])


# -- one descent ----------------------------------------------------------------------------------


def polish(
    objective: Objective,
    points: Floats,
    *,
    second_derivatives: bool = False,
    max_steps: int = 150,
) -> tuple[Floats, Floats, Bools]:
    """Descend from all points at once.

    A descent has converged when `PATIENCE` steps in a row, or one step with little damping, gain
    less than `TOLERANCE` of the value.

    Parameters
    ----------
    objective : Objective
    points : array, shape (points, parameters)
    second_derivatives : bool
        Use the Hessian of the objective instead of the Gauss-Newton matrix.
    max_steps : int

    Returns
    -------
    points : array, shape (points, parameters)
    values : array, shape (points,)
    moving : array of bool, shape (points,)
        Which have not converged.
    """
    points = np.clip(points, objective.low, objective.high)
    residuals = objective.residuals(points)
    values = objective.value(residuals)
    damping = np.full(len(points), 1e-2)
    idle = np.where(np.isfinite(values), 0, PATIENCE)
    for _ in range(max_steps):
        active = np.flatnonzero(idle < PATIENCE)
        if not len(active):
            break
        trial, trial_residuals = _step(
            objective, points[active], residuals[active], damping[active], second_derivatives
        )
        reached = objective.value(trial_residuals)
        gain = values[active] - reached
        better = gain > 0
        accepted = active[better]
        # A step with little damping that changes nothing is at the optimum already.
        converged = (np.abs(gain) <= TOLERANCE * values[active]) & (damping[active] <= 1e-2)
        idle[active] += np.where(converged, PATIENCE, 1)
        idle[accepted[gain[better] > TOLERANCE * values[accepted]]] = 0
        points[accepted], residuals[accepted] = trial[better], trial_residuals[better]
        values[accepted] = reached[better]
        damping[active] *= np.where(better, 0.25, 6.0)
        np.clip(damping, 1e-14, 1e10, out=damping)
    return points, values, idle < PATIENCE


def refit_linear(objective: Objective, points: Floats) -> tuple[Floats, Floats]:
    """Solve for the linear parameters again, exponents fixed; one reweighted Gauss-Newton step.

    Along the narrow curved valleys of these laws the optimal sizes are exponential functions of the
    exponents, so a straight step leaves the valley. This step leads back into it. Without it a
    descent takes up to ten times as many steps.

    Returns
    -------
    points : array, shape (points, parameters)
    residuals : array, shape (points, rows)
    """
    linear = objective.linear
    design, given, unit = objective.design(points), objective.given(points), np.eye(linear)
    sizes = points[:, :linear]
    loss = sizes[:, None] @ design + given
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        residuals = np.log(loss) - objective.log_loss
        weights = objective.weights(residuals)
        jacobian = design / loss
        matrix = (jacobian * weights) @ jacobian.mT
        gradient = (jacobian @ (weights * residuals).mT)[..., 0]
    finite = np.isfinite(matrix).all((1, 2)) & np.isfinite(gradient).all(1)
    finite &= matrix.any((1, 2))  # where nothing has departed from the start, sizes do not matter
    gradient[~finite], matrix[~finite] = 0, unit
    scale = np.diagonal(matrix, axis1=-2, axis2=-1)
    scale = np.maximum(scale, 1e-12 * scale.max(-1, keepdims=True))
    matrix = matrix + unit * (1e-10 * scale)[:, None]
    low, high = objective.low[:linear], objective.high[:linear]
    sizes = sizes + bounded_steps(matrix, gradient, low - sizes, high - sizes)
    sizes = np.clip(sizes, low, high)
    refitted = np.concatenate([sizes, points[:, linear:]], axis=1)
    if objective.law.coupled:  # the loss is not linear in the sizes: the step may lead too far
        there, here = objective.residuals(refitted), residuals[:, 0]
        better = (objective.value(there) < objective.value(here))[:, None]
        return np.where(better, refitted, points), np.where(better, there, here)
    with np.errstate(divide="ignore", invalid="ignore"):
        residuals = np.log((sizes[:, None] @ design + given)[:, 0]) - objective.log_loss
    return refitted, residuals


def _step(
    objective: Objective,
    points: Floats,
    residuals: Floats,
    damping: Floats,
    second_derivatives: bool,
) -> tuple[Floats, Floats]:
    """Points and residuals after a step; `damping` scales the diagonal of ``J' W J``."""
    low, high = objective.low, objective.high
    gradient, jacobian, weights = objective.gradient(points, residuals)
    scale = (jacobian**2 @ weights[..., None])[..., 0]
    scale = np.maximum(scale, 1e-12 * scale.max(-1, keepdims=True))
    if second_derivatives:
        fixed = (points == low) & (gradient > 0) | (points == high) & (gradient < 0)
        matrix = _hessian(objective, points, scale, fixed)
    else:
        # Beyond the threshold the Huber loss is linear in the residual and has no curvature.
        matrix = (jacobian * (weights == 1)[:, None]) @ jacobian.mT
    matrix += np.eye(points.shape[1]) * ((damping[:, None] + 1e-15) * scale)[:, None]
    moved = points + bounded_steps(matrix, gradient, low - points, high - points)
    return refit_linear(objective, np.clip(moved, low, high))


def _hessian(objective: Objective, points: Floats, scale: Floats, fixed: Bools) -> Floats:
    """Second derivatives of the objective with their eigenvalues made positive.

    Differences and eigenvalues are taken in units of ``1 / sqrt(scale)``, because parameters differ
    in scale by many orders of magnitude: the size of a term with an exponent of 20 may be 1e-9.
    Rows and columns of parameters that are `fixed` at a bound are set to zero first: curvature
    along them may be negative, and must not change the curvature along the others.
    """
    unit = np.sqrt(scale)
    step = DIFFERENCE * np.minimum(1, math.sqrt(len(objective.log_loss)) / unit)
    step = np.where(points + step > objective.high, -step, step)
    ends = points[:, None] + step[..., None] * np.eye(len(objective.names))
    ends = np.concatenate([points, ends.reshape(-1, len(objective.names))])
    gradients = objective.gradient(ends, objective.residuals(ends))[0]
    here, there = gradients[: len(points), None], gradients[len(points) :]
    matrix = (there.reshape(*step.shape, -1) - here) / step[..., None]
    unit = unit[:, None] * unit[..., None]
    matrix = np.nan_to_num(0.5 * (matrix + matrix.mT) / unit)
    matrix *= ~(fixed[:, None] | fixed[..., None])
    eigenvalues, vectors = np.linalg.eigh(matrix)
    return unit * ((vectors * np.abs(eigenvalues)[:, None]) @ vectors.mT)


def bounded_steps(matrix: Floats, gradient: Floats, low: Floats, high: Floats) -> Floats:
    """Newton steps of many quadratic functions at once that leave no bound.

    An active-set method: a coordinate that would leave its bounds is fixed at the bound, and the
    others are solved for again, at most `FIXINGS` times. Then the step is clipped to the bounds.

    Parameters
    ----------
    matrix : array, shape (points, dims, dims)
        Positive definite, or singular where a coordinate has no effect.
    gradient : array, shape (points, dims)
    low, high : array, shape (points, dims)
        Bounds of the step, ``low <= 0 <= high``.

    Examples
    --------
    The second coordinate stops at its bound, and the first is solved for given that.

    >>> import numpy as np
    >>> matrix, gradient = np.array([[[2.0, 1.0], [1.0, 2.0]]]), np.array([[0.0, 3.0]])
    >>> bounded_steps(matrix, gradient, np.full((1, 2), -1.0), np.full((1, 2), 1.0))
    array([[ 0.5, -1. ]])
    """
    free = ~((low == 0) & (gradient > 0) | (high == 0) & (gradient < 0))
    unit, step = np.eye(gradient.shape[1]), np.zeros_like(gradient)
    for _ in range(FIXINGS):
        slope, block = gradient, matrix
        if not free.all():
            slope = free * (gradient + (matrix @ np.where(free, 0, step)[..., None])[..., 0])
            block = matrix * (free[:, :, None] & free[:, None, :]) + unit * ~free[:, None]
        step = np.where(free, _solve(block, -slope), step)
        inside = np.clip(step, low, high)
        outside = free & (inside != step)
        step = inside
        if not outside.any():
            break
        free &= ~outside
    return step


def _solve(matrix: Floats, right: Floats) -> Floats:
    """Solutions of many linear systems; of singular ones with a ridge of relative size 1e-12."""
    try:
        return np.linalg.solve(matrix, right[..., None])[..., 0]
    except np.linalg.LinAlgError:
        size = np.trace(matrix, axis1=1, axis2=2)[:, None, None] + np.finfo(float).tiny
        ridge = 1e-12 * size * np.eye(matrix.shape[-1])
        return np.linalg.solve(matrix + ridge, right[..., None])[..., 0]
