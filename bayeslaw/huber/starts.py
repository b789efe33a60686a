"""Starts of a descent: exponents spread over their bounds, with amounts that fit at them."""

import math

import numpy as np

from bayeslaw.common.arrays import Floats
from bayeslaw.huber.batches import both, diagonals, solved, with_added
from bayeslaw.huber.objective import Objective

EXPONENTS = (0.02, 2.0)
"""Range of the starts of an exponent that is positive without an upper bound."""


def screened_starts(objective: Objective, count: int, seed: int) -> Floats:
    """Starts of a descent in the order of their values, best first, shape (count, parameters).

    Exponents are a scrambled Sobol sequence: log-uniform for positive exponents without an upper
    bound; uniform over their bounds for others, from -2 or to 2 where there is none.
    """
    from scipy.stats import qmc  # takes a second, and saved fits are used without it

    linear = objective.linear
    typical = objective.typical
    bounds = objective.exponent_bounds
    low = objective.low[linear:]
    high = objective.high[linear:]
    rng = np.random.default_rng(seed)
    sobol = qmc.Sobol(len(low), rng=rng)
    power_of_two = math.ceil(math.log2(max(count, 2)))
    unit = sobol.random_base2(power_of_two)
    unit = unit[:count]
    smallest, largest = EXPONENTS
    log_uniform = typical * smallest * (largest / smallest) ** unit
    widest = 2 * typical
    unbounded = np.isinf(bounds)
    near = np.clip([low, high], -widest, widest)
    ends = np.where(unbounded, near, [low, high])
    width = np.ptp(ends, axis=0)
    uniform = ends[0] + unit * width
    positive = unbounded[1] & (low >= 0)
    exponents = np.where(positive, log_uniform, uniform)
    amounts = np.ones((count, linear))
    points = np.hstack([amounts, exponents])
    points[:, :linear] = linear_fit(objective, points)
    values = objective.value(objective.residuals(points))
    return points[np.argsort(values, kind="stable")]


def linear_fit(objective: Objective, points: Floats) -> Floats:
    """Linear parameters that fit the relative losses at the exponents of `points`.

    Iteratively reweighted least squares. A parameter that comes out negative is set to zero and
    left out of the next iterations: for starts, this is close enough to non-negative least squares.
    """
    linear = objective.linear
    measured = np.exp(objective.observed)
    design = objective.design(points, objective.names[:linear])
    amounts = points[:, None, :linear]
    ratios = np.exp(objective.residuals(points))
    losses = ratios * measured
    # What is left when the linear parameters are taken away: nothing, or the start loss.
    constant = losses[:, None] - amounts @ design
    design = design / measured
    wanted = 1 - constant / measured
    weights = np.ones_like(wanted)
    positive = (design > 0).any(axis=-1)
    for _ in range(2 + linear):
        weighted = design * weights
        matrix = weighted @ design.mT * both(positive)
        scale = diagonals(matrix) + ~positive
        matrix = with_added(matrix, 1e-12 * scale + ~positive)
        towards = (weighted * wanted).sum(-1)
        fitted = solved(matrix, positive * towards)
        positive &= fitted > 0
        fitted = np.maximum(fitted, 0)
        errors = fitted[:, None] @ design - wanted
        weights = objective.weights(errors)
    return fitted
