"""Linear coordinates in which a posterior is nearly standard normal."""

import numpy as np
from scipy.linalg import solve_triangular

from bayeslaw.common.arrays import Floats
from bayeslaw.inference.programs import Density

POINTS, LARGEST = 20, 400
"""Points at which curvature is measured; coordinates above which the metric is diagonal."""
STEP = 1e-5
"""Step of finite differences of the gradient, on coordinates whose scale is about 1 or less."""
LARGE, MANY = 4.0, 1000
"""Whitened variance above which the draws count beside the Hessian, and number of draws from which
they outweigh it; sampling error of a few hundred draws stays below `LARGE`."""
FLOOR = 1e-3
"""Lower bound of the curvature, per squared unit of a coordinate."""


def learn(density: Density, points: Floats) -> tuple[Floats, Floats]:
    """Shift and factor of a linear map that makes a posterior nearly standard normal.

    The factor is the Cholesky factor of the inverse of minus the density's Hessian, averaged over
    points of the posterior. Unlike the covariance of a few hundred draws it has no sampling error.
    It is enlarged in directions in which the draws vary much more.

    Parameters
    ----------
    density : Density
    points : array, shape (points, coordinates)
        Draws of an earlier run.

    Returns
    -------
    shift : array, shape (coordinates,)
    factor : array, shape (coordinates, coordinates) or (coordinates, 1)
        Lower triangular, or a diagonal where there are more than `LARGEST` coordinates.
    """
    shift = points.mean(axis=0)
    if density.size > LARGEST:
        sd = points.std(axis=0)
        return shift, np.where(sd > 0, np.minimum(sd, FLOOR**-0.5), 1.0)[:, None]
    chosen = points[np.linspace(0, len(points) - 1, min(POINTS, len(points))).astype(int)]
    curvature = np.mean([_curvature(density, point) for point in chosen], axis=0)
    values, vectors = np.linalg.eigh(curvature)
    covariance = (vectors / np.maximum(values, FLOOR)) @ vectors.T
    factor = np.linalg.cholesky(covariance)
    return shift, np.linalg.cholesky(factor @ _wider(inward(factor, points - shift)) @ factor.T)


def inward(factor: Floats, moved: Floats) -> Floats:
    """Inverse of a linear map: ``factor^-1 moved`` for each row of `moved`."""
    if factor.shape[1] == 1:
        return moved / factor[:, 0]
    return np.ascontiguousarray(solve_triangular(factor, moved.T, lower=True).T)


def _wider(points: Floats) -> Floats:
    """Covariance of whitened points in directions where it is large; elsewhere 1.

    On a curved ridge the averaged curvature is large along the ridge too, so its inverse is too
    small there. A few draws do not say how much: the geometric mean of the inverse curvature, here
    1, and the covariance works best. Of `MANY` draws it is the covariance itself.
    """
    values, vectors = np.linalg.eigh(np.cov(points.T))
    least, power = (LARGE, 0.5) if len(points) < MANY else (LARGE / 2, 1.0)
    scaled: Floats = np.where(values > least, values, 1.0) ** power
    return np.asarray((vectors * scaled) @ vectors.T)


def _curvature(density: Density, point: Floats) -> Floats:
    """Minus the Hessian of the log density at a point, by differences of its gradient."""
    here = density.gradient(point)[1]
    rows = []
    for place in range(len(point)):
        moved = point.copy()
        moved[place] += STEP
        rows.append((here - density.gradient(moved)[1]) / STEP)
    curvature = np.array(rows)
    return (curvature + curvature.T) / 2
