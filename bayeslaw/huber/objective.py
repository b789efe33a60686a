"""The Huber objective of one law on one table, its derivatives, and starts of its descent."""

import math
from collections.abc import Mapping

import numpy as np
from scipy.special import huber
from scipy.stats import qmc

from bayeslaw.common.arrays import Floats
from bayeslaw.laws.law import Law
from bayeslaw.tables.table import LossTable

CAP = 20.0
"""Exponents without finite bounds are searched up to this; no published one is above 2."""
LEAST_COUPLED = 1e-9
"""Least size of a coupled term, in mean losses: at 0 the loss has no derivative by it."""
EXPONENTS = 0.02, 2.0
"""Range of the starts of an exponent that is positive without an upper bound."""
REWEIGHTED = 2
"""Solutions with the weights of the Huber loss, after those that find the positive parameters."""


class Objective:
    """The Huber loss of the log residuals of a law on a table, to be minimised within bounds.

    A point is a vector of the floor E, the size of each term at the reference point, and the
    paper's exponents. Floor and sizes are in units of the mean loss. They are the linear
    parameters of a separable least-squares problem: given the exponents, the predicted loss is
    linear in them, unless the law couples its terms. Methods take many points at once, stacked on
    the first axis.

    Parameters
    ----------
    law : Law
    table : LossTable
    delta : float
        Threshold of the Huber loss, in log loss.

    Attributes
    ----------
    names : tuple of str
        Names of the parameters in the order of a point; the first `linear` are linear.
    low, high : array, shape (parameters,)
        Bounds.
    at : dict
        Logarithms of the covariates at the reference point.
    typical : array, shape (exponents,)
        Typical size of each exponent: 1, but for those of `Law.typical`.
    log_loss : array, shape (rows,)
        Logarithms of the losses, less their mean `log_scale`.
    """

    def __init__(self, law: Law, table: LossTable, delta: float) -> None:
        self.law, self.delta = law, delta
        self.x = law.covariates(table, table.name)
        self.at = law.reference_point(table)
        self.log_scale = float(np.log(table.loss).mean())
        self.log_loss: Floats = np.log(table.loss) - self.log_scale
        if "start" in self.x:
            self.x["start"] = self.x["start"] - self.log_scale
        self.names = ("E", *law.coefficients, *law.exponents)
        low, high = np.array([law.bounds[name] for name in self.names]).T
        self.linear = 1 + len(law.coefficients)
        stated = np.isfinite(np.array([law.bounds[name] for name in law.exponents])).all(1)
        self.typical = np.array([law.typical.get(name, 1.0) for name in law.exponents])
        cap = np.r_[np.full(self.linear, np.inf), np.where(stated, np.inf, CAP * self.typical)]
        self.low: Floats = np.maximum(low, -cap)
        self.high: Floats = np.minimum(high, cap)
        coupled = np.isin(self.names, law.coupled)
        self.low[coupled] = np.maximum(self.low[coupled], LEAST_COUPLED)

    # -- value and derivatives ------------------------------------------------------------------

    def residuals(self, points: Floats) -> Floats:
        """``log L_hat - log L``, shape (points, rows)."""
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            loss = self.law.loss(self._named(points), self.x, self.at)
            residuals: Floats = np.log(loss) - self.log_loss
        return residuals

    def value(self, residuals: Floats) -> Floats:
        """Sum of the Huber losses, shape (points,); infinite where it is not finite."""
        total: Floats = huber(self.delta, residuals).sum(-1)
        return np.where(np.isfinite(total), total, np.inf)

    def weights(self, residuals: Floats) -> Floats:
        """Weights that make weighted least squares of the Huber loss, shape (points, rows).

        They are 1 up to the threshold and fall as ``delta / |residual|`` beyond it.
        """
        return np.minimum(1, self.delta / np.maximum(np.abs(residuals), 1e-300))

    def jacobian(self, points: Floats) -> Floats:
        """Derivatives of the residuals, shape (points, parameters, rows)."""
        by = self.law.gradient(self._named(points), self.x, self.at)
        jacobian = self._stacked(by, self.names, len(points))
        # Sizes times the derivatives by them, and the rest, add up to the loss; see `Law.parts`.
        loss = points[:, None, : self.linear] @ jacobian[:, : self.linear]
        jacobian /= loss + self.given(points)
        return jacobian

    def gradient(self, points: Floats, residuals: Floats) -> tuple[Floats, Floats, Floats]:
        """Gradient of the objective, with the Jacobian and the weights that it is made of."""
        jacobian, weights = self.jacobian(points), self.weights(residuals)
        return (jacobian @ (weights * residuals)[..., None])[..., 0], jacobian, weights

    def design(self, points: Floats) -> Floats:
        """Derivatives of the loss by the linear parameters, shape (points, linear, rows)."""
        with np.errstate(over="ignore"):
            parts = self.law.sensitivities(self._named(points), self.x, self.at)
        return self._stacked(parts, self.names[: self.linear], len(points))

    def given(self, points: Floats) -> Floats | float:
        """Loss that does not depend on the linear parameters, broadcast to (points, 1, rows)."""
        if not self.law.departure:
            return 0.0
        return np.asarray(self.law.given(self._named(points), self.x, self.at))[:, None]

    def _named(self, points: Floats) -> dict[str, Floats]:
        """Parameters by name, each of shape (points, 1)."""
        return {name: points[:, i, None] for i, name in enumerate(self.names)}

    def _stacked(self, values: Mapping[str, Floats], names: tuple[str, ...], points: int) -> Floats:
        """Values by name as one array, shape (points, names, rows)."""
        stacked = np.empty((points, len(names), len(self.log_loss)))
        for i, name in enumerate(names):
            stacked[:, i] = values[name]
        return stacked

    # -- bounds and coordinates -----------------------------------------------------------------

    def on_bound(self, point: Floats, rtol: float = 1e-9) -> dict[str, float]:
        """Parameters on (or within `rtol` of) a bound, and that bound."""
        near = rtol * np.maximum(1, np.abs(point))
        at_low, at_high = point - self.low <= near, self.high - point <= near
        bound = np.where(at_low, self.low, self.high)
        return {self.names[i]: float(bound[i]) for i in np.flatnonzero(at_low | at_high)}

    def paper(self, point: Floats) -> dict[str, float]:
        """A point in paper coordinates."""
        p = self.law.rescale(self.sizes(point), self.at)
        return {name: float(value) for name, value in p.items()}

    def sizes(self, point: Floats) -> dict[str, float]:
        """Floor and term sizes in nats per token, and the paper's exponents."""
        p = dict(zip(self.names, map(float, point), strict=True))
        scale = math.exp(self.log_scale)
        return p | {name: scale * p[name] for name in self.names[: self.linear]}

    def point(self, sizes: Mapping[str, float | Floats]) -> Floats:
        """Inverse of `sizes`."""
        point = np.array([float(sizes[name]) for name in self.names])
        point[: self.linear] /= math.exp(self.log_scale)
        return point


# -- starts ---------------------------------------------------------------------------------------


def screened_starts(objective: Objective, count: int, seed: int) -> Floats:
    """Starts of a descent in the order of their values, best first.

    Exponents are a scrambled Sobol sequence: log-uniform for positive exponents without an upper
    bound; uniform over their bounds for others, from -2 or to 2 where there is none. The linear
    parameters are then solved for.

    Returns
    -------
    array, shape (count, parameters)
    """
    linear, law = objective.linear, objective.law
    low, high = objective.low[linear:], objective.high[linear:]
    sobol = qmc.Sobol(len(low), rng=np.random.default_rng(seed))
    unit = sobol.random_base2(math.ceil(math.log2(max(count, 2))))[:count]
    bounds = np.array([law.bounds[name] for name in law.exponents]).T
    positive = np.isinf(bounds[1]) & (low >= 0)
    widest = 2 * objective.typical
    ranged = np.where(np.isinf(bounds), np.clip([low, high], -widest, widest), [low, high])
    smallest, largest = EXPONENTS
    exponents = np.where(
        positive,
        objective.typical * smallest * (largest / smallest) ** unit,
        ranged[0] + unit * np.ptp(ranged, axis=0),
    )
    points = np.hstack([np.ones((count, linear)), exponents])
    points[:, :linear] = _linear_fit(objective, points)
    return points[np.argsort(objective.value(objective.residuals(points)), kind="stable")]


def _linear_fit(objective: Objective, points: Floats) -> Floats:
    """Linear parameters that fit the relative losses at the exponents of `points`.

    Iteratively reweighted least squares. A parameter that comes out negative is set to zero and
    left out of the next iterations: for starts, this is close enough to non-negative least squares.
    """
    loss = np.exp(objective.log_loss)
    design, wanted = objective.design(points) / loss, 1 - objective.given(points) / loss
    weights = np.ones((len(design), 1, len(loss)))
    positive = (design > 0).any(axis=-1)
    for _ in range(REWEIGHTED + objective.linear):
        weighted = design * weights
        matrix = weighted @ design.mT * (positive[:, :, None] & positive[:, None, :])
        scale = np.diagonal(matrix, axis1=-2, axis2=-1) + ~positive
        matrix += np.eye(objective.linear) * (1e-12 * scale + ~positive)[:, None, :]
        towards = (weighted * wanted).sum(-1)
        sizes = np.linalg.solve(matrix, (positive * towards)[..., None])[..., 0]
        positive &= sizes > 0
        sizes = np.maximum(sizes, 0)
        weights = objective.weights(sizes[:, None] @ design - wanted)
    return sizes
