"""What a table can say about a law's parameters, and what it leaves to their priors."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from scipy.linalg import cholesky, qr, solve_triangular

from bayeslaw.evaluate.densities import Floats, covariance, prior_draws
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.terms import STEP

WEAK = 1.0
"""Singular value below which the rows tell less of a direction than its prior does."""
NONE = 0.1
"""Below this they tell less than a hundredth of it: information goes with the square."""

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Directions:
    """Singular values of the log losses by the coordinates, and the directions they leave free.

    Parameters
    ----------
    names : tuple of str
        Reference coordinates of the law.
    matrix : array, shape (rows, coordinates)
        Change of each log loss per prior sd of each coordinate, at the posterior median, in units
        of the noise (run and base effects included).
    """

    names: tuple[str, ...]
    matrix: Floats

    @cached_property
    def values(self) -> Floats:
        """Singular values: what the rows tell along each direction, in prior sds per noise sd."""
        found = np.linalg.svd(self.matrix, compute_uv=False)
        return np.asarray(np.append(found, np.zeros(len(self.names) - len(found))))

    @property
    def rank(self) -> int:
        """Number of directions that the rows determine."""
        return int((self.values >= NONE).sum())

    def undetermined(self) -> list[dict[str, float]]:
        """Directions of which the rows tell next to nothing; see `free`."""
        return self.free(0.0, NONE)

    def weak(self) -> list[dict[str, float]]:
        """Directions of which the rows tell something, but less than the prior; see `free`."""
        return self.free(NONE, WEAK)

    def free(self, low: float, high: float) -> list[dict[str, float]]:
        """A basis of the directions with singular values from `low` to below `high`.

        Each is a mapping of coordinate to weight in prior sds: 1 for its leader, which is in no
        other direction, then those above .2, the largest first.
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
    """Directions of the training table's log losses by the law's reference coordinates.

    Derivatives are complex steps through the law's own formula, exact to rounding.
    """
    prior = prior or prior_draws(fit)
    law, frame, names = fit.law, fit.table.frame, fit.law.coordinates
    x = law.covariates(frame)
    q = {name: complex(np.median(v)) for name, v in fit.values().items() if name in names}

    def log_loss(name: str) -> Any:
        moved = q | {name: q[name] + 1j * STEP}
        return np.log(law.loss(law.sizes(moved, fit.at), x, fit.at))

    slopes = np.stack([log_loss(name).imag / STEP for name in names], 1)
    whitened = solve_triangular(cholesky(covariance(fit), lower=True), slopes, lower=True)
    return Directions(names, whitened * [spread(prior[name]) for name in names])


def spread(values: Floats) -> float:
    """Half the width of the central 68 %: the sd of a normal, and finite for heavy tails."""
    low, high = np.quantile(values, (0.16, 0.84))
    return float(high - low) / 2


def contraction(fit: Posterior, prior: dict[str, Floats] | None = None) -> pd.DataFrame:
    """Spread of each coordinate before and after the data; contraction is 1 - (after/before)^2.

    Spreads are half the widths of the central 68 %.
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
    """Forecasts along a coordinate, from low to high in its prior.

    The posterior is conditioned, not refitted: of its draws, the twentieth nearest to each of the
    prior's 5, 25, 50, 75 and 95 % quantiles. All other parameters are as the data and their priors
    have them there.

    Parameters
    ----------
    prior : array
        Draws of the coordinate's prior.
    log_loss : array, shape (draws, columns)

    Returns
    -------
    values : array, shape (5,)
        The prior's quantiles.
    loss : array, shape (5, columns)
        Median loss near each, nats per token.
    """
    drawn, count = fit.values()[name][:, 0], max(1, int(share * len(log_loss)))
    values = np.quantile(prior, QUANTILES)
    near = [np.argsort(np.abs(drawn - value), kind="stable")[:count] for value in values]
    return values, np.stack([np.exp(np.median(log_loss[rows], 0)) for rows in near])


def explained(fit: Posterior, names: Sequence[str], log_loss: Floats) -> Floats:
    """Share of the forecast's variance that a quadratic in the coordinates `names` accounts for.

    Parameters
    ----------
    log_loss : array, shape (draws, columns)

    Returns
    -------
    array, shape (columns,)
    """
    if not names:
        return np.zeros(log_loss.shape[1])
    q = np.column_stack([fit.values()[name][:, 0] for name in names])
    rank = (q.argsort(0, kind="stable").argsort(0) + 0.5) / len(q) - 0.5  # tails weigh no more
    left = np.column_stack([np.ones(len(q)), rank, rank**2])
    left = np.column_stack([left, *(rank[:, [i]] * rank[:, i + 1 :] for i in range(rank.shape[1]))])
    fitted = left @ np.linalg.lstsq(left, log_loss)[0]
    total = log_loss.var(0)
    return np.asarray(np.divide(fitted.var(0), total, out=np.zeros_like(total), where=total > 0))
