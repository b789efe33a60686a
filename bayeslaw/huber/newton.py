"""Newton steps on the Huber objective: of all parameters within bounds, or of the linear ones."""

import math

import numpy as np

from bayeslaw.common.arrays import Bools, Floats
from bayeslaw.huber.batches import both, diagonals, solved, times, with_added
from bayeslaw.huber.objective import Objective

JACOBIAN_STEP = 1e-6
"""Step of the finite differences of the gradient that give second derivatives."""
LEAST_SCALE = 1e-200
"""Scale below which no parameter has an effect."""
HUGE = 1e150
"""What stands for an infinite number, so that its square is finite."""
ACTIVE_SETS = 4
"""How often the coordinates that are free are chosen again in a step within bounds."""


def refit_linear(objective: Objective, points: Floats) -> tuple[Floats, Floats]:
    """Points and residuals with the linear parameters solved for again, exponents fixed.

    One reweighted Gauss-Newton step, where that leads down.
    """
    linear = objective.linear
    here = objective.residuals(points)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        loss = np.exp(here + objective.observed)
        design = objective.design(points, objective.names[:linear])
        jacobian = design / loss[:, None]
        weights = objective.weights(here)
        weighted = jacobian * weights[:, None]
        # No step from an amount that overflows is better: large numbers stand for infinite ones.
        matrix = _finite(weighted @ jacobian.mT)
        gradient = _finite(times(jacobian, weights * here))
    scale = floored(diagonals(matrix))
    matrix = with_added(matrix, 1e-10 * scale)
    low = objective.low[:linear]
    high = objective.high[:linear]
    amounts = points[:, :linear]
    steps = bounded_steps(matrix, gradient, low - amounts, high - amounts)
    amounts = np.clip(amounts + steps, low, high)
    refitted = points.copy()
    refitted[:, :linear] = amounts
    there = objective.residuals(refitted)
    value_here = objective.value(here)
    value_there = objective.value(there)
    better = (value_there < value_here)[:, None]
    points = np.where(better, refitted, points)
    residuals = np.where(better, there, here)
    return points, residuals


def _finite(values: Floats) -> Floats:
    """Values with `HUGE` ones in place of infinite ones, and 0 in place of NaN."""
    return np.nan_to_num(values, posinf=HUGE, neginf=-HUGE)


def floored(scale: Floats) -> Floats:
    """Scales of parameters, of which some may have no effect."""
    most = scale.max(-1, keepdims=True)
    least = 1e-12 * most
    # Far from the data all may be so small that damping by a part of them is 0.
    large = np.maximum(scale, least)
    return np.where(most > LEAST_SCALE, large, 1.0)


def hessian(
    objective: Objective, points: Floats, scale: Floats, fixed: Bools
) -> Floats:
    """Second derivatives of the objective with their eigenvalues made positive.

    In units of ``1 / sqrt(scale)``, because parameters differ in scale by many orders of magnitude:
    the amount of a term with an exponent of 20 may be 1e-9.
    """
    unit = np.sqrt(scale)
    size = len(objective.names)
    rows = len(objective.observed)
    relative = np.minimum(1, math.sqrt(rows) / unit)
    step = JACOBIAN_STEP * relative
    beyond = points + step > objective.high
    step = np.where(beyond, -step, step)
    unit_vectors = np.eye(size)
    along = step[..., None] * unit_vectors
    moved = points[:, None] + along
    ends = np.concatenate([points, moved.reshape(-1, size)])
    residuals = objective.residuals(ends)
    gradients, _, _ = objective.gradient(ends, residuals)
    count = len(points)
    here = gradients[:count, None]
    there = gradients[count:]
    there = there.reshape(*step.shape, -1)
    matrix = (there - here) / step[..., None]
    unit = unit[:, None] * unit[..., None]
    symmetric = 0.5 * (matrix + matrix.mT)
    matrix = np.nan_to_num(symmetric / unit)
    # Curvature along a parameter that is fixed at a bound may be negative.
    matrix *= both(~fixed)
    eigenvalues, vectors = np.linalg.eigh(matrix)
    positive = vectors * np.abs(eigenvalues)[:, None]
    return unit * (positive @ vectors.mT)


def bounded_steps(
    matrix: Floats, gradient: Floats, low: Floats, high: Floats
) -> Floats:
    """Newton steps of many quadratic functions at once that leave no bound ``low <= 0 <= high``.

    An active-set method: a coordinate that would leave its bounds is fixed at the bound, and the
    others are solved for again.
    """
    at_low = (low == 0) & (gradient > 0)
    at_high = (high == 0) & (gradient < 0)
    free = ~(at_low | at_high)
    step = np.zeros_like(gradient)
    for _ in range(ACTIVE_SETS):
        fixed_step = np.where(free, 0, step)
        slope = free * (gradient + times(matrix, fixed_step))
        block = with_added(matrix * both(free), ~free)
        newton = solved(block, -slope)
        wanted = np.where(free, newton, step)
        step = np.clip(wanted, low, high)
        outside = free & (step != wanted)
        if not outside.any():
            break
        free &= ~outside
    return step
