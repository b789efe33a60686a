"""Linear coordinates in which a posterior is nearly standard normal."""

import numpy as np
from scipy.linalg import solve_triangular

from bayeslaw.common.arrays import Floats
from bayeslaw.inference.densities import Density

POINTS, LARGEST = 20, 400
"""Points at which curvature is measured; coordinates above which the metric is diagonal."""
STEP = 1e-5
"""Step of finite differences of the gradient, on coordinates whose scale is about 1 or less."""
LARGE = 4.0
"""Variance above which a direction is wider than its curvature says, and not by the chance of a few
hundred draws."""
FLOOR = 1e-3
"""Least curvature that is believed, per squared unit of a coordinate."""


def learn(density: Density, points: Floats) -> tuple[Floats, Floats]:
    """Shift and factor of a linear map that makes a posterior nearly standard normal.

    The factor is that of the inverse of minus the density's Hessian, averaged over points of the
    posterior, which unlike the covariance of a few hundred draws has no sampling error; it is wider
    where those draws are much wider.

    Parameters
    ----------
    density : Density
    points : array, shape (points, coordinates)
        Of a short run.

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
    """Points in the coordinates of a linear map, from those of its image."""
    if factor.shape[1] == 1:
        return moved / factor[:, 0]
    return np.ascontiguousarray(solve_triangular(factor, moved.T, lower=True).T)


def _wider(points: Floats) -> Floats:
    """Root of the points' covariance in the directions in which it is large; elsewhere 1.

    A posterior on a curved ridge has large curvature, on average, also along the ridge. Between the
    inverse curvature, here 1, and the covariance the best metric is the geometric mean.
    """
    values, vectors = np.linalg.eigh(np.cov(points.T))
    roots: Floats = np.sqrt(np.where(values > LARGE, values, 1.0))
    return np.asarray((vectors * roots) @ vectors.T)


def _curvature(density: Density, point: Floats) -> Floats:
    """Minus the Hessian of the log density at a point, by differences of its gradient."""
    here = density.gradient(point)[1]
    rows = []
    for place in range(len(point)):
        moved = point.copy()
        moved[place] += STEP
        rows.append((here - density.gradient(moved)[1]) / STEP)
    found = np.array(rows)
    return (found + found.T) / 2
