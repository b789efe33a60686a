"""Starts of the Huber fit: exponents from a Sobol sequence, linear parameters by least squares."""

import math

import numpy as np
from scipy.stats import qmc

from bayeslaw.common.arrays import Floats
from bayeslaw.huber.objective import Objective

EXPONENTS = 0.02, 2.0
"""Range of the starts of an exponent that is positive without an upper bound."""
REWEIGHTED = 2
"""Solutions with the weights of the Huber loss, after those that find the positive parameters."""


def screened_starts(problem: Objective, count: int, seed: int) -> Floats:
    """Starts in the order of their objectives, best first.

    Exponents are a scrambled Sobol sequence: log-uniform for positive exponents without an upper
    bound; uniform over their bounds for others, from -2 or to 2 where there is none.

    Parameters
    ----------
    problem : Objective
    count : int
    seed : int

    Returns
    -------
    array, shape (count, parameters)
    """
    linear, law = problem.linear, problem.law
    low, high = problem.low[linear:], problem.high[linear:]
    sobol = qmc.Sobol(len(low), rng=np.random.default_rng(seed))
    unit = sobol.random_base2(math.ceil(math.log2(max(count, 2))))[:count]
    bounds = np.array([law.bounds[name] for name in law.exponents]).T
    positive = np.isinf(bounds[1]) & (low >= 0)
    widest = 2 * problem.typical
    ranged = np.where(np.isinf(bounds), np.clip([low, high], -widest, widest), [low, high])
    smallest, largest = EXPONENTS
    exponents = np.where(
        positive,
        problem.typical * smallest * (largest / smallest) ** unit,
        ranged[0] + unit * np.ptp(ranged, axis=0),
    )
    points = np.empty((count, len(problem.names)))
    points[:, linear:] = exponents
    points[:, :linear] = 1.0
    points[:, :linear] = _linear_fit(problem, problem.design(points), problem.given(points))
    return points[np.argsort(problem.objective(problem.residuals(points)), kind="stable")]


def _linear_fit(problem: Objective, design: Floats, given: Floats | float = 0.0) -> Floats:
    """Linear parameters that fit the relative losses beside those `given`, for all starts at once.

    Iteratively reweighted least squares. A parameter that comes out negative is set to zero and
    left out of the next iterations: for starts, this is close enough to non-negative least squares.
    """
    design, wanted = (each / np.exp(problem.log_loss) for each in (design, given))
    wanted = 1 - wanted
    weights = np.ones((len(design), 1, len(problem.log_loss)))
    positive = (design > 0).any(axis=-1)
    for _ in range(REWEIGHTED + problem.linear):
        weighted = design * weights
        matrix = weighted @ design.mT * (positive[:, :, None] & positive[:, None, :])
        scale = np.diagonal(matrix, axis1=-2, axis2=-1) + ~positive
        matrix += np.eye(problem.linear) * (1e-12 * scale + ~positive)[:, None, :]
        towards = (weighted * wanted).sum(-1)
        sizes = np.linalg.solve(matrix, (positive * towards)[..., None])[..., 0]
        positive &= sizes > 0
        sizes = np.maximum(sizes, 0)
        relative = np.abs(sizes[:, None] @ design - wanted)
        weights = np.minimum(1, problem.delta / np.maximum(relative, 1e-300))
    return sizes
