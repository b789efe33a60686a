"""How much training rows tell about the coordinates of a law, against what the prior tells.

A direction is a linear combination of the law's coordinates: a singular vector of the Jacobian of
the log losses. Its singular value measures the information of the data against that of the prior.
"""

from collections.abc import Sequence

import numpy as np
from scipy.linalg import cholesky, qr, solve_triangular

from bayeslaw.checks.prior_draws import prior_of, spread
from bayeslaw.common.arrays import Floats
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.residuals import covariance
from bayeslaw.laws.law import IMAGINARY_STEP

PRIOR_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
# Fraction of the draws that count as near to a value of a coordinate.
NEAR_DRAWS = 0.05
# Least weight, in prior standard deviations, of a coordinate that a direction names.
LEAST_WEIGHT = 0.2


def singular_values(matrix: Floats) -> Floats:
    """Singular values, the largest first, one per column."""
    values = np.linalg.svd(matrix, compute_uv=False)
    # With fewer rows than coordinates, directions beyond the rows have no information at all.
    missing = matrix.shape[1] - len(values)
    return np.asarray(np.append(values, np.zeros(missing)))


def basis(
    names: Sequence[str], matrix: Floats, low: float, high: float
) -> list[dict[str, float]]:
    """Basis of the directions with singular values from `low` to below `high`.

    Each direction has the weights of its coordinates, in prior standard deviations: first its
    leader, with weight 1, which occurs in no other direction, then the others by size, down to
    `LEAST_WEIGHT`.
    """
    values = singular_values(matrix)
    chosen = (values >= low) & (values < high)
    if not chosen.any():
        return []
    # Singular vectors of like values are any rotation of each other. Pivoted QR picks the
    # coordinates that stand best for their span, and solving makes each the leader of one.
    vectors = np.linalg.svd(matrix)[2][chosen]
    pivots = qr(vectors, mode="r", pivoting=True)[-1]
    leaders = pivots[: len(vectors)]
    weights = np.linalg.solve(vectors[:, leaders], vectors)
    bases = []
    for leader, of_direction in zip(leaders, weights, strict=True):
        direction = {names[leader]: float(of_direction[leader])}
        for i in np.argsort(-np.abs(of_direction)):
            if i != leader and abs(of_direction[i]) > LEAST_WEIGHT:
                direction[names[i]] = float(of_direction[i])
        bases.append(direction)
    return bases


def directions(
    fit: Posterior, prior: dict[str, Floats] | None = None
) -> tuple[tuple[str, ...], Floats]:
    """Coordinates, and the Jacobian of the training log losses by them, (rows, coordinates).

    Each column is per prior standard deviation of a coordinate, in units of noise and random
    effects, at the posterior median. Derivatives are by complex steps: exact to rounding. Steps of
    walks are integrated out like random effects. Their scale is left out, because rows tell about
    it by the spread of the steps, and not by a slope of the loss.
    """
    prior = prior or prior_of(fit)
    law = fit.law_with_knots
    x = fit.fitted.x
    scales = {walk.scale for walk in law.walks}
    names = [name for name in law.coordinates if name not in scales]
    medians = {}
    for name, values in fit.values().items():
        if name in law.coordinates:
            medians[name] = np.median(values).astype(complex)
    for name, steps in fit.steps().items():
        middle = np.median(steps, axis=(0, 1))
        medians[name] = middle.astype(complex)

    def derivatives(name: str) -> Floats:
        """Of the log losses, by each element of a coordinate or of the steps of a walk."""
        middle = medians[name]
        columns = []
        for unit in np.eye(middle.size):
            step = 1j * IMAGINARY_STEP * unit.reshape(middle.shape)
            moved = medians | {name: middle + step}
            loss = law.loss(law.amounts(moved, fit.at), x, fit.at)
            slope = np.log(loss).imag / IMAGINARY_STEP
            columns.append(slope)
        return np.stack(columns, 1)

    total = covariance(fit)
    for walk in law.walks:
        by_steps = derivatives(walk.steps)
        # Steps have standard normal priors.
        total += by_steps @ by_steps.T
    slopes = np.hstack([derivatives(name) for name in names])
    spreads = [spread(prior[name]) for name in names]
    factor = cholesky(total, lower=True)
    whitened = solve_triangular(factor, slopes, lower=True)
    return tuple(names), whitened * spreads


def swing(
    fit: Posterior, name: str, prior: Floats, log_loss: Floats
) -> tuple[Floats, Floats]:
    """Quantiles of a coordinate's prior, and the median loss near each, (5, columns).

    The posterior is conditioned without a refit, by the draws that are nearest to each value.
    """
    drawn = fit.values()[name][:, 0]
    # As many draws at each value: a window of fixed width would be empty far from the posterior.
    count = max(1, int(NEAR_DRAWS * len(log_loss)))
    values = np.quantile(prior, PRIOR_QUANTILES)
    losses = []
    for value in values:
        distances = np.abs(drawn - value)
        nearest = np.argsort(distances, kind="stable")[:count]
        median = np.median(log_loss[nearest], 0)
        losses.append(np.exp(median))
    return values, np.stack(losses)


def explained(fit: Posterior, names: Sequence[str], log_loss: Floats) -> Floats:
    """Fraction of the variance of (draws, columns) that some coordinates explain, (columns,).

    It is the adjusted R-squared of a quadratic regression: 0 on average if they do not matter.
    """
    if not names:
        return np.zeros(log_loss.shape[1])
    drawn = fit.values()
    q = np.column_stack([drawn[name][:, 0] for name in names])
    draws = len(q)
    # Ranks are robust to heavy tails.
    order = q.argsort(0, kind="stable").argsort(0)
    ranks = (order + 0.5) / draws - 0.5
    columns = [np.ones(draws), ranks, ranks**2]
    for i in range(ranks.shape[1]):
        products = ranks[:, [i]] * ranks[:, i + 1 :]
        columns.append(products)
    regressors = np.column_stack(columns)
    # As many columns as draws would explain anything: the last of them are left out.
    regressors = regressors[:, : draws // 2]
    coefficients = np.linalg.lstsq(regressors, log_loss)[0]
    unexplained = (log_loss - regressors @ coefficients).var(0)
    freedom = max(draws - regressors.shape[1], 1)
    unexplained *= (draws - 1) / freedom
    total = log_loss.var(0)
    shares = np.divide(unexplained, total, out=np.ones_like(total), where=total > 0)
    return np.asarray(np.clip(1 - shares, 0, 1))
