"""The Huber objective of one law on one table, and its derivatives."""

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
from scipy.special import huber

from bayeslaw.common.arrays import Bools, Floats
from bayeslaw.design.design import Design
from bayeslaw.huber.batches import times
from bayeslaw.laws.law import Law
from bayeslaw.laws.steps import Coupling
from bayeslaw.tables.table import LossTable

CAP = 20.0
"""Exponents without finite bounds are searched up to this, and those that are typically above 1 up
to as many times that; no published one is above 2."""
LEAST_COUPLED = 1e-9
"""Least amount of a coupled term, in mean losses: at 0 the loss has no derivative by it."""
AGREE = 1e-5
"""Two optima agree if their values differ by less than this, relatively."""

type Bounds = Literal["paper", "prior"]
"""Bounds of the parameters in a Huber fit."""


class Objective:
    """The Huber loss of the log residuals of a law on a table, to be minimised within bounds.

    A point is a vector of the floor E, the amount of each term at the reference point, and the
    paper's exponents, as in `names`. The first `linear` are linear, unless the law couples its
    terms. Floor and amounts are in units of the mean loss. Methods take many points, on the first
    axis. `delta` is the threshold, `bounds` are those of the priors or as published, and `observed`
    are the log losses less their mean `log_scale`.
    """

    def __init__(
        self, law: Law, table: LossTable, delta: float, bounds: Bounds = "prior"
    ) -> None:
        self.law = law
        self.table = table
        self.delta = delta
        self.bounds = bounds
        design = Design(law, table)
        self.x = dict(design.x)
        self.at = design.at
        log_loss = np.log(table.loss)
        self.log_scale = float(log_loss.mean())
        self.observed: Floats = log_loss - self.log_scale
        if "start" in self.x:
            self.x["start"] = self.x["start"] - self.log_scale
        linear = 1 + len(law.coefficients)
        self.linear = linear
        self.names = ("E", *law.coefficients, *law.exponents)
        typical = []
        least = []
        most = []
        for name in self.names:
            parameter = law.by_symbol[name]
            published = parameter.published if bounds == "paper" else None
            low, high = published or parameter.bounds
            typical.append(parameter.typical)
            least.append(low)
            most.append(high)
        self.typical = np.array(typical[linear:])
        # Least and most of the exponents, as the law has them: maybe infinite.
        of_exponents = [least[linear:], most[linear:]]
        self.exponent_bounds: Floats = np.array(of_exponents)
        bounded = np.isfinite(self.exponent_bounds).all(0)
        searched = CAP * np.maximum(self.typical, 1.0)
        cap_of_amounts = np.full(linear, np.inf)
        cap_of_exponents = np.where(bounded, np.inf, searched)
        cap = np.concatenate([cap_of_amounts, cap_of_exponents])
        self.low: Floats = np.maximum(least, -cap)
        self.high: Floats = np.minimum(most, cap)
        # Bounds of E are stated in nats, and points have it in units of the mean loss.
        self.low[0] /= math.exp(self.log_scale)
        self.high[0] /= math.exp(self.log_scale)
        coupling = law.step(Coupling)
        if coupling is not None:
            for i, name in enumerate(self.names):
                if name in coupling.along and self.low[i] < LEAST_COUPLED:
                    self.low[i] = LEAST_COUPLED

    def residuals(self, points: Floats) -> Floats:
        """``log L_hat - log L``, shape (points, rows)."""
        parameters = self._named(points)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            loss = self.law.loss(parameters, self.x, self.at)
            residuals: Floats = np.log(loss) - self.observed
        return residuals

    def value(self, residuals: Floats) -> Floats:
        """Sum of the Huber losses, shape (points,); infinite where it is not finite."""
        of_rows: Floats = huber(self.delta, residuals)
        total = of_rows.sum(-1)
        finite = np.isfinite(total)
        return np.where(finite, total, np.inf)

    def agree(self, values: Floats) -> Bools:
        """Which values are the least one."""
        # Without noise the least value is 0, but for rounding.
        rounding = 1e-20 * len(self.observed)
        most = (1 + AGREE) * values.min() + rounding
        agreeing: Bools = values <= most
        return agreeing

    def weights(self, residuals: Floats) -> Floats:
        """Weights that make weighted least squares of the Huber loss, shape (points, rows)."""
        sizes = np.maximum(np.abs(residuals), 1e-300)
        return np.minimum(1, self.delta / sizes)

    def design(self, points: Floats, names: tuple[str, ...]) -> Floats:
        """Derivatives of the loss by some parameters, shape (points, names, rows)."""
        parameters = self._named(points)
        with np.errstate(all="ignore"):
            by = self.law.gradient(parameters, self.x, self.at, names)
        shape = (len(points), len(self.observed))
        derivatives = []
        for name in names:
            derivatives.append(np.broadcast_to(by[name], shape))
        return np.stack(derivatives, axis=1)

    def jacobian(self, points: Floats, residuals: Floats) -> Floats:
        """Derivatives of the residuals, shape (points, parameters, rows)."""
        loss = np.exp(residuals + self.observed)
        by_parameters = self.design(points, self.names)
        return by_parameters / loss[:, None]

    def gradient(
        self, points: Floats, residuals: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """Gradient of the objective, with the Jacobian and the weights that it is made of."""
        jacobian = self.jacobian(points, residuals)
        weights = self.weights(residuals)
        return times(jacobian, weights * residuals), jacobian, weights

    def _named(self, points: Floats) -> dict[str, Floats]:
        """The parameters of points by name, each of shape (points, 1)."""
        parameters = {}
        for i, name in enumerate(self.names):
            parameters[name] = points[:, i, None]
        return parameters

    def on_bound(self, point: Floats, rtol: float = 1e-9) -> dict[str, float]:
        """Parameters on (or within `rtol` of) a bound, and that bound."""
        sizes = np.maximum(1, np.abs(point))
        near = rtol * sizes
        at_low = point - self.low <= near
        at_high = self.high - point <= near
        bound = np.where(at_low, self.low, self.high)
        bound[0] *= math.exp(self.log_scale)
        hit = {}
        for i in np.flatnonzero(at_low | at_high):
            hit[self.names[i]] = float(bound[i])
        return hit

    def paper(self, point: Floats) -> dict[str, float]:
        """The parameters as the paper has them."""
        amounts = self.amounts(point)
        parameters = self.law.rescale(amounts, self.at)
        return {name: float(value) for name, value in parameters.items()}

    def amounts(self, point: Floats) -> dict[str, float]:
        """Floor and terms at the reference point in nats per token, and the paper's exponents."""
        scale = math.exp(self.log_scale)
        amounts = {}
        for i, name in enumerate(self.names):
            value = float(point[i])
            amounts[name] = scale * value if i < self.linear else value
        return amounts

    def point(self, amounts: Mapping[str, float | Floats]) -> Floats:
        """Inverse of `amounts`."""
        point = np.array([float(amounts[name]) for name in self.names])
        scale = math.exp(self.log_scale)
        point[: self.linear] /= scale
        return point
