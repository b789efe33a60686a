"""Newton steps on the Huber objective: of all parameters within bounds, or of the linear ones."""

import math

import numpy as np

from bayeslaw.common.arrays import Bools, Floats
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
        loss = np.exp(here + objective.observed)[:, None]
        jacobian = objective.design(points, objective.names[:linear]) / loss
        weights = objective.weights(here)[:, None]
        # No step from an amount that overflows is better: large numbers stand for infinite ones.
        matrix = (jacobian * weights) @ jacobian.mT
        matrix = np.nan_to_num(matrix, posinf=HUGE, neginf=-HUGE)
        gradient = (jacobian @ (weights * here[:, None]).mT)[..., 0]
        gradient = np.nan_to_num(gradient, posinf=HUGE, neginf=-HUGE)
    scale = floored(np.diagonal(matrix, axis1=-2, axis2=-1))
    matrix = matrix + np.eye(linear) * (1e-10 * scale)[:, None]
    low = objective.low[:linear]
    high = objective.high[:linear]
    amounts = points[:, :linear]
    amounts = amounts + bounded_steps(matrix, gradient, low - amounts, high - amounts)
    refitted = points.copy()
    refitted[:, :linear] = np.clip(amounts, low, high)
    there = objective.residuals(refitted)
    better = (objective.value(there) < objective.value(here))[:, None]
    return np.where(better, refitted, points), np.where(better, there, here)


def floored(scale: Floats) -> Floats:
    """Scales of parameters, of which some may have no effect."""
    most = scale.max(-1, keepdims=True)
    # Far from the data all may be so small that damping by a part of them is 0.
    return np.where(most > LEAST_SCALE, np.maximum(scale, 1e-12 * most), 1.0)


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
    step = JACOBIAN_STEP * np.minimum(1, math.sqrt(rows) / unit)
    step = np.where(points + step > objective.high, -step, step)
    ends = points[:, None] + step[..., None] * np.eye(size)
    ends = np.concatenate([points, ends.reshape(-1, size)])
    gradients, _, _ = objective.gradient(ends, objective.residuals(ends))
    here = gradients[: len(points), None]
    there = gradients[len(points) :].reshape(*step.shape, -1)
    matrix = (there - here) / step[..., None]
    unit = unit[:, None] * unit[..., None]
    matrix = np.nan_to_num(0.5 * (matrix + matrix.mT) / unit)
    # Curvature along a parameter that is fixed at a bound may be negative.
    matrix *= ~(fixed[:, None] | fixed[..., None])
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
    free = ~((low == 0) & (gradient > 0) | (high == 0) & (gradient < 0))
    unit = np.eye(gradient.shape[1])
    step = np.zeros_like(gradient)
    for _ in range(ACTIVE_SETS):
        fixed_step = np.where(free, 0, step)[..., None]
        slope = free * (gradient + (matrix @ fixed_step)[..., 0])
        both_free = free[:, :, None] & free[:, None, :]
        block = matrix * both_free + unit * ~free[:, None]
        newton = np.linalg.solve(block, -slope[..., None])[..., 0]
        wanted = np.where(free, newton, step)
        step = np.clip(wanted, low, high)
        outside = free & (step != wanted)
        if not outside.any():
            break
        free &= ~outside
    return step
