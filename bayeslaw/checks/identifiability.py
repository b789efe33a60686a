"""Identifiability: which parameters of a law the data determine, and their effect on forecasts."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from scipy.linalg import cholesky, qr, solve_triangular

from bayeslaw.common.arrays import Floats
from bayeslaw.evaluate.densities import covariance, prior_draws
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.terms import STEP

WEAK = 1.0
"""Singular value below which the data are less informative about a direction than the prior."""
NONE = 0.1
"""Below this the data have less than a hundredth of the prior's information (the square)."""

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Directions:
    """Jacobian of the log losses by the coordinates, its singular values and directions.

    Parameters
    ----------
    names : tuple of str
        Reference coordinates of the law.
    matrix : array, shape (rows, coordinates)
        Derivative of each log loss by each coordinate at the posterior median, per prior standard
        deviation of the coordinate and in units of the standard deviation of noise and random
        effects.
    """

    names: tuple[str, ...]
    matrix: Floats

    @cached_property
    def values(self) -> Floats:
        """Singular values of the matrix, the largest first, one per coordinate."""
        found = np.linalg.svd(self.matrix, compute_uv=False)
        return np.asarray(np.append(found, np.zeros(len(self.names) - len(found))))

    @property
    def rank(self) -> int:
        """Number of directions that the data determine."""
        return int((self.values >= NONE).sum())

    def undetermined(self) -> list[dict[str, float]]:
        """Directions with a singular value below `NONE`; see `basis`."""
        return self.basis(0.0, NONE)

    def weak(self) -> list[dict[str, float]]:
        """Directions with a singular value from `NONE` to below `WEAK`; see `basis`."""
        return self.basis(NONE, WEAK)

    def basis(self, low: float, high: float) -> list[dict[str, float]]:
        """Basis of the directions with singular values from `low` to below `high`.

        Returns
        -------
        list of mapping of coordinate to weight
            Weights are in prior standard deviations. The first coordinate of a direction, its
            leader, has weight 1 and occurs in no other direction. The others follow by the size of
            their weight; weights up to .2 are left out.
        """
        chosen = (self.values >= low) & (self.values < high)
        if not chosen.any():
            return []
        basis = np.linalg.svd(self.matrix)[2][chosen]
        leaders = qr(basis, mode="r", pivoting=True)[-1][: len(basis)]
        found = []
        for leader, row in zip(leaders, np.linalg.solve(basis[:, leaders], basis), strict=True):
            order = [leader, *(i for i in np.argsort(-np.abs(row)) if i != leader)]
            found.append({self.names[i]: float(row[i]) for i in order if abs(row[i]) > 0.2})
        return found


def directions(fit: Posterior, prior: dict[str, Floats] | None = None) -> Directions:
    """Jacobian of the training log losses by the reference coordinates of the law.

    Derivatives are complex steps through the formula of the law, exact to rounding. Steps of random
    walks are integrated out like random effects: they are part of the covariance of the rows. The
    scale of the steps is left out, since the rows determine it by the spread of the steps, not by a
    derivative of the loss; see its `contraction`.

    Parameters
    ----------
    fit : Posterior
    prior : mapping of name to array, optional
        Result of `prior_draws`.

    Returns
    -------
    Directions
    """
    prior = prior or prior_draws(fit)
    law, x = fit.law_with_knots, fit.law.covariates(fit.table.frame)
    scales = {walk.scale for walk in law.walks}
    names = tuple(name for name in law.coordinates if name not in scales)
    q = {n: np.median(v).astype(complex) for n, v in fit.values().items() if n in law.coordinates}
    q |= {name: np.median(v, axis=(0, 1)).astype(complex) for name, v in fit.steps().items()}

    def derivatives(name: str) -> Floats:
        found = []
        for unit in np.eye(q[name].size):
            moved = q | {name: q[name] + 1j * STEP * unit.reshape(q[name].shape)}
            log_loss = np.log(law.loss(law.sizes(moved, fit.at), x, fit.at))
            found.append(log_loss.imag / STEP)
        return np.stack(found, 1)

    total = covariance(fit)
    for walk in law.walks:
        by = derivatives(walk.steps)
        total += by @ by.T
    slopes = np.hstack([derivatives(name) for name in names])
    whitened = solve_triangular(cholesky(total, lower=True), slopes, lower=True)
    return Directions(names, whitened * [spread(prior[name]) for name in names])


def spread(values: Floats) -> float:
    """Half the width of the central 68 % interval: the sd of a normal, finite for heavy tails."""
    low, high = np.quantile(values, (0.16, 0.84))
    return float(high - low) / 2


def contraction(fit: Posterior, prior: dict[str, Floats] | None = None) -> pd.DataFrame:
    """Prior-to-posterior contraction of every coordinate.

    Parameters
    ----------
    fit : Posterior
    prior : mapping of name to array, optional
        Result of `prior_draws`.

    Returns
    -------
    DataFrame
        Per coordinate: `prior` and `posterior`, half the widths of the central 68 % intervals, and
        `contraction`, ``1 - (posterior / prior)^2``.
    """
    prior = prior or prior_draws(fit)
    posterior = fit.values() | {"E": fit.paper["E"].values.reshape(-1, 1)}
    frame = pd.DataFrame(
        {
            "prior": {name: spread(prior[name]) for name in posterior},
            "posterior": {name: spread(values) for name, values in posterior.items()},
        }
    ).rename_axis("name")
    return frame.assign(contraction=1 - (frame["posterior"] / frame["prior"]) ** 2)


def swing(
    fit: Posterior, name: str, prior: Floats, log_loss: Floats, share: float = 0.05
) -> tuple[Floats, Floats]:
    """Forecasts conditional on values of a coordinate across its prior.

    The posterior is conditioned without a refit: at each of five quantiles of the prior we take the
    posterior draws whose value of the coordinate is nearest to it.

    Parameters
    ----------
    fit : Posterior
    name : str
        Name of the coordinate.
    prior : array
        Draws of the coordinate's prior.
    log_loss : array, shape (draws, columns)
        Posterior draws of the forecast.
    share : float
        Fraction of the posterior draws taken at each quantile.

    Returns
    -------
    values : array, shape (5,)
        The 5, 25, 50, 75 and 95 % quantiles of the prior.
    loss : array, shape (5, columns)
        Median loss near each, nats per token.
    """
    drawn, count = fit.values()[name][:, 0], max(1, int(share * len(log_loss)))
    values = np.quantile(prior, QUANTILES)
    near = [np.argsort(np.abs(drawn - value), kind="stable")[:count] for value in values]
    return values, np.stack([np.exp(np.median(log_loss[rows], 0)) for rows in near])


def explained(fit: Posterior, names: Sequence[str], log_loss: Floats) -> Floats:
    """Fraction of the forecast's variance explained by some coordinates.

    It is the R-squared of a quadratic regression of the forecast on the ranks of the coordinates.

    Parameters
    ----------
    fit : Posterior
    names : sequence of str
        Names of the coordinates.
    log_loss : array, shape (draws, columns)
        Posterior draws of the forecast.

    Returns
    -------
    array, shape (columns,)
    """
    if not names:
        return np.zeros(log_loss.shape[1])
    q = np.column_stack([fit.values()[name][:, 0] for name in names])
    rank = (q.argsort(0, kind="stable").argsort(0) + 0.5) / len(
        q
    ) - 0.5  # ranks: robust to heavy tails
    design = np.column_stack([np.ones(len(q)), rank, rank**2])
    crossed = (rank[:, [i]] * rank[:, i + 1 :] for i in range(rank.shape[1]))
    design = np.column_stack([design, *crossed])
    fitted = design @ np.linalg.lstsq(design, log_loss)[0]
    total = log_loss.var(0)
    return np.asarray(np.divide(fitted.var(0), total, out=np.zeros_like(total), where=total > 0))
