"""Damped Newton descent of a smooth function of a dozen or so dimensions, from its gradient."""

from collections.abc import Callable

import numpy as np

from bayeslaw.common.arrays import Floats

type Function = Callable[[Floats], tuple[float, Floats]]
"""Value and gradient at a point; an infinite value outside the domain."""

STEP = 1e-6
"""Step of the central differences."""


def hessian(function: Function, point: Floats) -> Floats:
    """Hessian at a point by central differences of the gradient, shape (dims, dims)."""
    steps = STEP * np.eye(len(point))
    rows = np.array([function(point + h)[1] - function(point - h)[1] for h in steps]) / (2 * STEP)
    return np.asarray(0.5 * (rows + rows.T))


def descend(
    function: Function, point: Floats, *, steps: int = 300, tol: float = 1e-13
) -> tuple[float, Floats]:
    """Descend from a point until five steps in a row gain less than `tol`, relatively.

    Eigenvalues of the Hessian are taken by their absolute value, so that every step descends.

    Returns
    -------
    value : float
    point : array, shape (dims,)

    Examples
    --------
    >>> import numpy as np
    >>> def function(x):
    ...     return float(np.cosh(x - 1).sum()), np.sinh(x - 1)
    >>> value, point = descend(function, np.array([3.0, -2.0]))
    >>> round(value, 9), point.round(6)
    (2.0, array([1., 1.]))
    """
    value, gradient = function(point)
    damping, idle = 1.0, 0
    for _ in range(steps):
        eigenvalues, vectors = np.linalg.eigh(hessian(function, point))
        while damping < 1e12:
            trial = point - vectors @ ((vectors.T @ gradient) / (np.abs(eigenvalues) + damping))
            reached, slope = function(trial)
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
