"""The rule of active-sl for choosing runs, written anew from its description and its defaults.

S. Li et al. (2026), Spend Less, Fit Better, arXiv:2604.22753. The law is fitted by least squares
from many starts. Distinct optima are modes, with weights from BIC and a Laplace approximation each.
A candidate's score is the expected fall of the mean squared prediction error at the targets, within
and between modes, divided by its cost to the power .4. After each run the law is fitted again.

What differs: prior scales are those of the law's priors, in place of a quarter of a bound's range;
optima are one mode where their predictions at the targets agree to .1 %, in place of a clustering;
rows of a run that are shorter than the bought one are measured too, for all designs alike.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import pymc as pm
from scipy.optimize import approx_fprime, least_squares

from bayeslaw import Law, Prior
from bayeslaw.design.search import Costs
from bayeslaw.laws.priors import FLOOR

POWER = 0.4
"""Exponent of the cost."""
STARTS = 24
SHAPE = 2.0
"""Shape of the inverse-gamma prior of the noise's variance, whose mean is that of the losses."""
type Covariates = Mapping[str, np.ndarray]
type Modes = tuple[list[tuple[float, np.ndarray, np.ndarray]], float]
NODES, HEIGHTS = np.polynomial.hermite_e.hermegauss(9)
HEIGHTS = HEIGHTS / HEIGHTS.sum()


class Model:
    """A law without discrepancy as a function of unbounded parameters with Normal priors."""

    def __init__(self, law: Law, rows: pd.DataFrame) -> None:
        self.law, self.at = law, law.reference_point(rows)
        self.names = [FLOOR if FLOOR in law.priors else "E", *law.coordinates[1:]]
        priors = {name: Prior.parse(law.priors[name]) for name in self.names}
        self.real = np.array([priors[name].support[0] < 0 for name in self.names])
        dists = [priors[name].dist((4000,)) for name in self.names]
        drawn = np.array(pm.draw(dists, random_seed=0))
        if FLOOR in priors:  # the floor over the sum of the terms, in place of its share
            drawn[0] /= 1 - drawn[0]
        values = np.where(self.real[:, None], drawn, np.log(np.maximum(drawn, 1e-6)))
        self.mean, self.sd = np.median(values, axis=1), values.std(axis=1)

    def loss(self, theta: np.ndarray, x: Covariates) -> np.ndarray:
        """Loss of each row."""
        q = dict(zip(self.names, np.where(self.real, theta, np.exp(theta)), strict=True))
        p = self.law.amounts(q | {"L_ref": 0.0}, self.at)
        p["E"] = q["E"] if "E" in q else -p["E"] * q[FLOOR]
        return np.asarray(self.law.loss(p, x, self.at))

    def modes(self, rows: Covariates, y: np.ndarray, aim: Covariates, starts: np.ndarray) -> Modes:
        """Weight, parameters and covariance of each mode, and the variance of the noise."""
        low, high = self.mean - 5 * self.sd, self.mean + 5 * self.sd
        fits = []
        for start in np.clip(starts, low, high):
            fit = least_squares(
                lambda t: self.loss(t, rows) - y, start, bounds=(low, high), x_scale=self.sd
            )
            fits.append((2 * fit.cost / len(y), fit.x))
        fits.sort(key=lambda each: each[0])
        variance = (SHAPE * y.var() + len(y) * fits[0][0] / 2) / (SHAPE + len(y) / 2 - 1)
        kept: list = []
        for error, theta in fits:
            seen = self.loss(theta, aim)
            if all(np.abs(seen / other - 1).max() > 1e-3 for *_, other in kept):
                kept.append((error, theta, seen))
        log = np.array([-len(y) / 2 * np.log(error) for error, *_ in kept])
        weights = np.exp(log - log.max())
        found = []
        for weight, (_, theta, _) in zip(weights / weights.sum(), kept, strict=True):
            if weight > 1e-3:
                slope = self.slope(theta, rows)
                precision = slope.T @ slope / variance + np.diag(self.sd**-2)
                found.append((weight, theta, np.linalg.inv(precision)))
        return found, variance

    def slope(self, theta: np.ndarray, x: Covariates) -> np.ndarray:
        """Derivative of each row's loss by the parameters."""
        return np.atleast_2d(approx_fprime(theta, lambda t: self.loss(t, x), 1e-6))


def scores(model: Model, modes: Modes, rows: Covariates, aim: Covariates) -> np.ndarray:
    """Expected fall of the squared prediction error at the targets if each row is measured."""
    found, variance = modes
    w = np.array([weight for weight, *_ in found])
    mean = np.stack([model.loss(theta, rows) for _, theta, _ in found])
    at = np.stack([model.loss(theta, aim) for _, theta, _ in found])
    gain, spread, within = [], [], np.zeros(mean.shape[1])
    for weight, theta, cov in found:
        own, far = model.slope(theta, rows), model.slope(theta, aim)
        total = variance + np.einsum("ij,jk,ik->i", own, cov, own)
        cross = far @ cov @ own.T
        within += weight * (cross**2).sum(0) / total
        gain.append(cross / total)
        spread.append(np.sqrt(total))
    if len(w) == 1:
        return within
    sd, now = np.stack(spread), _between(w[:, None], at[:, :, None])
    after = np.zeros(mean.shape[1])
    for k, weight in enumerate(w):
        for node, height in zip(NODES, HEIGHTS, strict=True):
            off = mean[k] + sd[k] * node - mean
            log = np.log(w)[:, None] - 0.5 * (off / sd) ** 2 - np.log(sd)
            new = np.exp(log - log.max(0))
            moved = at[:, :, None] + np.stack(gain) * off[:, None, :]
            after += weight * height * _between(new / new.sum(0), moved)
    return np.asarray(within + now - after)


def choose(
    law: Law,
    train: pd.DataFrame,
    pool: pd.DataFrame,
    aim: pd.DataFrame,
    costs: Costs,
    budget: float,
    rng: np.random.Generator,
) -> list[int]:
    """Rows of the pool in the order they are bought; measured losses are used as they come."""
    model, picks = Model(law, pd.concat([train, pool])), list[int]()
    starts = model.mean + model.sd * rng.standard_normal((STARTS, len(model.mean)))
    far = law.covariates(aim)
    while True:
        further = costs.further(picks)
        open_ = np.flatnonzero((further > 0) & (_spent(costs, picks) + further <= budget))
        if not len(open_):
            return picks
        rows = pd.concat([train, pool.loc[costs.measured(picks)]])
        modes = model.modes(law.covariates(rows), rows["loss"].to_numpy(), far, starts)
        score = scores(model, modes, law.covariates(pool.loc[open_]), far)
        picks.append(int(open_[np.argmax(score / further[open_] ** POWER)]))
        starts[: len(modes[0])] = [theta for _, theta, _ in modes[0]]


def _between(weights: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """Variance between modes summed over targets, of arrays (modes, targets, rows)."""
    centre = (weights[:, None] * predictions).sum(0)
    return np.asarray((weights[:, None] * (predictions - centre) ** 2).sum((0, 1)))


def _spent(costs: Costs, picks: Sequence[int]) -> float:
    return costs.total(picks) if picks else 0.0
