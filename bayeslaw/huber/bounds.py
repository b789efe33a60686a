"""Newton steps of many quadratic functions at once, within bounds."""

import numpy as np

from bayeslaw.common.arrays import Floats

ROUNDS = 4
"""Most solutions, each with more coordinates fixed at a bound."""


def bounded_steps(matrix: Floats, gradient: Floats, low: Floats, high: Floats) -> Floats:
    """Newton steps of many points at once that leave no bound.

    An active-set method: a coordinate that would leave its bounds is fixed at the bound, and the
    others are solved for again, at most `ROUNDS` times. Then the step is clipped to the bounds.

    Parameters
    ----------
    matrix : array, shape (points, dims, dims)
        Positive definite, or singular where a coordinate has no effect.
    gradient : array, shape (points, dims)
    low, high : array, shape (points, dims)
        Bounds of the step, ``low <= 0 <= high``.

    Returns
    -------
    array, shape (points, dims)

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
    for _ in range(ROUNDS):
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
