"""Newton steps on exact derivatives, in a dozen or so dimensions: damped, or within bounds."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

type Floats = npt.NDArray[np.float64]
type Down = Callable[[Floats], tuple[float, Floats]]
"""Value and gradient at a point; an infinite value outside the domain."""

STEP = 1e-6
ROUNDS = 4


def hessian(down: Down, point: Floats) -> Floats:
    """Hessian at a point by central differences of the gradient, shape (dims, dims)."""
    steps = STEP * np.eye(len(point))
    rows = np.array([down(point + h)[1] - down(point - h)[1] for h in steps]) / (2 * STEP)
    return np.asarray(0.5 * (rows + rows.T))


def descend(
    down: Down, point: Floats, *, steps: int = 300, tol: float = 1e-13
) -> tuple[float, Floats]:
    """Descend from a point until five steps in a row gain less than `tol`, relatively.

    Returns
    -------
    value : float
    point : array, shape (dims,)
    """
    value, gradient = down(point)
    damping, idle = 1.0, 0
    for _ in range(steps):
        scale, axes = np.linalg.eigh(hessian(down, point))
        while damping < 1e12:
            trial = point - axes @ ((axes.T @ gradient) / (np.abs(scale) + damping))
            reached, slope = down(trial)
            if reached < value:
                break
            damping *= 8
        else:
            break
        idle = 0 if value - reached > tol * max(1.0, abs(value)) else idle + 1
        point, value, gradient, damping = trial, reached, slope, max(damping / 16, 1e-9)
        if idle == 5:
            break
    return value, point


def step_within(matrix: Floats, gradient: Floats, down: Floats, up: Floats) -> Floats:
    """Newton steps of many points at once that leave no bound.

    A coordinate that would leave is put on its bound and the others are solved for again, at most
    `ROUNDS` times; what then still leaves is clipped.

    Parameters
    ----------
    matrix : array, shape (points, dims, dims)
        Positive definite.
    gradient : array, shape (points, dims)
    down, up : array, shape (points, dims)
        Room to each bound, ``down <= 0 <= up``.

    Returns
    -------
    array, shape (points, dims)
    """
    free = ~((down == 0) & (gradient > 0) | (up == 0) & (gradient < 0))
    unit, step = np.eye(gradient.shape[1]), np.zeros_like(gradient)
    for _ in range(ROUNDS):
        pull, block = gradient, matrix
        if not free.all():
            pull = free * (gradient + (matrix @ np.where(free, 0, step)[..., None])[..., 0])
            block = matrix * (free[:, :, None] & free[:, None, :]) + unit * ~free[:, None]
        step = np.where(free, np.linalg.solve(block, -pull[..., None])[..., 0], step)
        inside = np.clip(step, down, up)
        out = free & (inside != step)
        step = inside
        if not out.any():
            break
        free &= ~out
    return step
