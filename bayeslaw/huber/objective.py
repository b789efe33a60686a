"""The Huber objective of one law on one table: starts, exact derivatives, and descents from many.

Coefficients enter linearly, so starts are drawn over the exponents alone and the rest is solved
by least squares. Descents are projected Levenberg-Marquardt iterations that solve for the
coefficients again after every step, and Newton's where large residuals need second derivatives.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import huber
from scipy.stats import qmc

from bayeslaw.huber.newton import step_within
from bayeslaw.laws.law import Law
from bayeslaw.tables.table import LossTable

type Floats = npt.NDArray[np.float64]

CAP = 20.0
"""Exponents are searched up to this value; no published exponent is above 2."""
STEP = 1e-6
"""Of the differences that give second derivatives."""
SETTLE = 8
"""Reweighted steps of the sizes where exponents have gone far: each leaves a twentieth to go."""


class Problem:
    """The optimisation problem of one law on one table.

    The vector holds the floor and the term sizes at the reference point, both over the mean loss,
    and the paper's exponents. Objectives are sums over rows; points are stacked on a leading axis.
    """

    def __init__(self, law: Law, table: LossTable, delta: float) -> None:
        self.law, self.delta = law, delta
        self.x = law.covariates(table, table.name)
        self.at = law.reference_point(table)
        self.log_scale = float(np.log(table.loss).mean())
        self.log_loss = np.log(table.loss) - self.log_scale
        self.names = ("E", *law.coefficients, *law.exponents)
        low, high = np.array([law.bounds[name] for name in self.names]).T
        linear = 1 + len(law.coefficients)
        cap = np.r_[np.full(linear, np.inf), np.full(len(law.exponents), CAP)]
        self.low, self.high, self.linear = np.maximum(low, -cap), np.minimum(high, cap), linear

    def values(self, points: Floats) -> dict[str, Any]:
        """Parameters by name, each of shape (points, 1)."""
        return {name: points[:, i, None] for i, name in enumerate(self.names)}

    def residuals(self, points: Floats) -> Floats:
        """``log L_hat - log L``, shape (points, rows)."""
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            loss = self.law.loss(self.values(points), self.x, self.at)
            residuals: Floats = np.log(loss) - self.log_loss
        return residuals

    def objective(self, residuals: Floats) -> Floats:
        """Sum of Huber losses, shape (points,)."""
        total: Floats = huber(self.delta, residuals).sum(-1)
        return np.where(np.isfinite(total), total, np.inf)

    def jacobian(self, points: Floats) -> Floats:
        """Derivatives of the residuals, shape (points, parameters, rows)."""
        by = self.law.gradient(self.values(points), self.x, self.at)
        jacobian = np.empty((len(points), len(self.names), len(self.log_loss)))
        for i, name in enumerate(self.names):
            jacobian[:, i] = by[name]
        jacobian /= points[:, None, : self.linear] @ jacobian[:, : self.linear]
        return jacobian

    def screen(self, starts: int, seed: int) -> Floats:
        """Starts, best first: Sobol over the exponents, least squares for the rest."""
        low, high = self.low[self.linear :], self.high[self.linear :]
        sobol = qmc.Sobol(len(low), rng=np.random.default_rng(seed))
        unit = sobol.random_base2(math.ceil(math.log2(max(starts, 2))))[:starts]
        positive = np.isinf([self.law.bounds[name][1] for name in self.law.exponents]) & (low >= 0)
        ranged = np.clip(np.where(np.isfinite([low, high]), [low, high], 0), -2, 2)
        exponents = np.where(positive, 0.02 * 100**unit, ranged[0] + unit * np.ptp(ranged, axis=0))
        points = np.empty((starts, len(self.names)))
        points[:, self.linear :] = exponents
        points[:, : self.linear] = 1.0
        points[:, : self.linear] = self._solve(self._design(points))
        return points[np.argsort(self.objective(self.residuals(points)), kind="stable")]

    def _solve(self, design: Floats) -> Floats:
        """Sizes that fit relative losses, reweighted twice toward the Huber loss.

        Least squares in which a size that comes out negative is left out: near enough to
        non-negative least squares for a start, and all starts are solved at once.
        """
        design = design / np.exp(self.log_loss)
        weight = np.ones((len(design), 1, len(self.log_loss)))
        kept = np.ones((len(design), self.linear), bool)
        for _ in range(2 + self.linear):
            weighted = design * weight
            matrix = weighted @ design.mT * (kept[:, :, None] & kept[:, None, :])
            scale = np.diagonal(matrix, axis1=-2, axis2=-1) + ~kept
            matrix += np.eye(self.linear) * (1e-12 * scale + ~kept)[:, None, :]
            sizes = np.linalg.solve(matrix, (kept * weighted.sum(-1))[..., None])[..., 0]
            kept &= sizes > 0
            sizes = np.maximum(sizes, 0)
            miss = np.abs(sizes[:, None] @ design - 1)
            weight = np.minimum(1, self.delta / np.maximum(miss, 1e-300))
        return sizes

    def polish(
        self,
        points: Floats,
        *,
        exact: bool = False,
        max_steps: int = 150,
        patience: int = 12,
        tol: float = 1e-13,
    ) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
        """Descend from all points at once, until steps gain less than `tol` of the objective.

        That is one step hardly damped, or `patience` in a row.

        Returns
        -------
        points : array, shape (points, parameters)
        objective : array, shape (points,)
        moving : array of bool, shape (points,)
            Which had not come to rest.
        """
        points = np.clip(points, self.low, self.high)
        residuals = self.residuals(points)
        objective = self.objective(residuals)
        damping = np.full(len(points), 1e-2)
        idle = np.where(np.isfinite(objective), 0, patience)
        for _ in range(max_steps):
            active = np.flatnonzero(idle < patience)
            if not len(active):
                break
            trial, moved = self._step(points[active], residuals[active], damping[active], exact)
            reached = self.objective(moved)
            gain = objective[active] - reached
            better = gain > 0
            took = active[better]
            # A step hardly damped that changes nothing is at the optimum already.
            still = (np.abs(gain) <= tol * objective[active]) & (damping[active] <= 1e-2)
            idle[active] += np.where(still, patience, 1)
            idle[took[gain[better] > tol * objective[took]]] = 0
            points[took], residuals[took] = trial[better], moved[better]
            objective[took] = reached[better]
            damping[active] *= np.where(better, 0.25, 6.0)
            np.clip(damping, 1e-14, 1e10, out=damping)
        return points, objective, idle < patience

    def settled(self, points: Floats) -> tuple[Floats, Floats]:
        """Points put within bounds, with sizes that suit their exponents, and objectives."""
        points = np.clip(points, self.low, self.high)
        for _ in range(SETTLE):
            points, residuals = self._settle(points)
        return points, self.objective(residuals)

    def _step(
        self, points: Floats, residuals: Floats, damping: Floats, exact: bool
    ) -> tuple[Floats, Floats]:
        """Levenberg-Marquardt step; `damping` scales the reweighted diagonal."""
        gradient, jacobian, weight = self._slopes(points, residuals)
        scale = (jacobian**2 @ weight[..., None])[..., 0]
        scale = np.maximum(scale, 1e-12 * scale.max(-1, keepdims=True))
        if exact:
            held = (points == self.low) & (gradient > 0) | (points == self.high) & (gradient < 0)
            matrix = self._hessian(points, scale, held)
        else:
            matrix = (jacobian * (weight == 1)[:, None]) @ jacobian.mT
        matrix += np.eye(points.shape[1]) * ((damping[:, None] + 1e-15) * scale)[:, None]
        moved = points + step_within(matrix, gradient, self.low - points, self.high - points)
        return self._settle(np.clip(moved, self.low, self.high))

    def _slopes(self, points: Floats, residuals: Floats) -> tuple[Floats, Floats, Floats]:
        """Gradients of the objective, Jacobians of the residuals, and the residuals' weights."""
        jacobian = self.jacobian(points)
        weight = np.minimum(1, self.delta / np.maximum(np.abs(residuals), 1e-300))
        return (jacobian @ (weight * residuals)[..., None])[..., 0], jacobian, weight

    def _hessian(self, points: Floats, scale: Floats, held: npt.NDArray[np.bool_]) -> Floats:
        """Second derivatives of the objective, by differences of the gradient, made positive.

        Both in units of `scale`, since a size beside an exponent at its cap may be of 1e-9, and
        positive without the parameters that are `held` at a bound, where curvature may be negative.
        """
        unit = np.sqrt(scale)
        step = STEP * np.minimum(1, math.sqrt(len(self.log_loss)) / unit)
        step = np.where(points + step > self.high, -step, step)
        ends = points[:, None] + step[..., None] * np.eye(len(self.names))
        ends = np.concatenate([points, ends.reshape(-1, len(self.names))])
        slopes = self._slopes(ends, self.residuals(ends))[0]
        here, there = slopes[: len(points), None], slopes[len(points) :]
        matrix = (there.reshape(*step.shape, -1) - here) / step[..., None]
        unit = unit[:, None] * unit[..., None]
        matrix = np.nan_to_num(0.5 * (matrix + matrix.mT) / unit)
        matrix *= ~(held[:, None] | held[..., None])
        size, axes = np.linalg.eigh(matrix)
        return unit * ((axes * np.abs(size)[:, None]) @ axes.mT)

    def _settle(self, points: Floats) -> tuple[Floats, Floats]:
        """Points after one reweighted step of floor and sizes, exponents as they are; residuals.

        Along the valleys of these laws sizes follow exponents by exponentials: a straight step
        leaves the valley at once, and without this a descent takes ten times as many.
        """
        design, unit = self._design(points), np.eye(self.linear)
        loss = points[:, None, : self.linear] @ design
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            residuals = np.log(loss) - self.log_loss
            weight = np.minimum(1, self.delta / np.maximum(np.abs(residuals), 1e-300))
            by = design / loss
            matrix = (by * weight) @ by.mT
            gradient = (by @ (weight * residuals).mT)[..., 0]
        finite = np.isfinite(matrix).all((1, 2)) & np.isfinite(gradient).all(1)
        gradient[~finite], matrix[~finite] = 0, unit
        scale = np.diagonal(matrix, axis1=-2, axis2=-1)
        scale = np.maximum(scale, 1e-12 * scale.max(-1, keepdims=True))
        matrix = matrix + unit * (1e-10 * scale)[:, None]
        low, high = self.low[: self.linear], self.high[: self.linear]
        sizes = points[:, : self.linear]
        sizes = np.clip(sizes + step_within(matrix, gradient, low - sizes, high - sizes), low, high)
        with np.errstate(divide="ignore", invalid="ignore"):
            residuals = np.log((sizes[:, None] @ design)[:, 0]) - self.log_loss
        return np.concatenate([sizes, points[:, self.linear :]], axis=1), residuals

    def _design(self, points: Floats) -> Floats:
        """The loss by floor and sizes, shape (points, linear, rows)."""
        design = np.empty((len(points), self.linear, len(self.log_loss)))
        with np.errstate(over="ignore"):
            parts = self.law.parts(self.values(points), self.x, self.at)
        for i, name in enumerate(self.names[: self.linear]):
            design[:, i] = parts[name]
        return design

    def on_bound(self, point: Floats, rtol: float = 1e-9) -> dict[str, float]:
        """Parameters on (or within `rtol` of) a bound."""
        near = rtol * np.maximum(1, np.abs(point))
        hits = {}
        for name, value, low, high, slack in zip(
            self.names, point, self.low, self.high, near, strict=True
        ):
            if value - low <= slack or high - value <= slack:
                hits[name] = float(low if value - low <= slack else high)
        return hits

    def paper(self, point: Floats) -> dict[str, float]:
        """A point in paper coordinates."""
        p = self.law.rescale(self.sizes(point), self.at)
        return {name: float(value) for name, value in p.items()}

    def sizes(self, point: Floats) -> dict[str, float]:
        """Floor and term sizes in nats per token, and the paper's exponents."""
        p = dict(zip(self.names, map(float, point), strict=True))
        scale = math.exp(self.log_scale)
        return p | {name: scale * p[name] for name in self.names[: self.linear]}

    def point(self, sizes: Mapping[str, Any]) -> Floats:
        """Inverse of `sizes`."""
        point = np.array([float(sizes[name]) for name in self.names])
        point[: self.linear] /= math.exp(self.log_scale)
        return point
