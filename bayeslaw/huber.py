"""The paper's deterministic fit: Huber loss on log residuals, under positivity bounds.

Coefficients enter linearly, so starts are drawn over the exponents alone and the rest is solved
by non-negative least squares; the best of them are polished together by a projected
Levenberg-Marquardt iteration on analytic derivatives. Steps are scale-free: mean or sum of the
Huber losses gives the same iterates.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.optimize import nnls
from scipy.special import huber
from scipy.stats import qmc

from bayeslaw.defaults import DELTA
from bayeslaw.errors import FitError, FitWarning
from bayeslaw.laws import Law, load_law
from bayeslaw.tables import LossTable

type Floats = npt.NDArray[np.float64]

CAP = 20.0
"""Exponents are searched up to this value; no published exponent is above 2."""
AGREE = 1e-6
"""Two optima agree if their objectives differ by less than this, relatively."""


@dataclass(frozen=True)
class PointFit:
    """A deterministic fit.

    Parameters
    ----------
    law : Law
    parameters : mapping
        Paper coordinates, with D in the law's token unit.
    at : mapping
        Logarithms of the covariates at the reference point.
    objective : float
        Mean Huber loss of the log residuals on the training table.
    delta : float
        Threshold of the Huber loss, in log loss.
    starts, polished : int
        Starts screened, and of those, polished to an optimum.
    agreeing : float
        Share of the polished starts that ended at this optimum (objectives within 1e-6).
    at_bounds : mapping of str to float
        Parameters that ended on a bound, and the bound; there the optimum is not interior.
    """

    law: Law
    parameters: Mapping[str, float]
    at: Mapping[str, float]
    objective: float
    delta: float
    starts: int
    polished: int
    agreeing: float
    at_bounds: Mapping[str, float] = field(default_factory=dict)
    table: LossTable | None = field(default=None, repr=False)

    @property
    def interior(self) -> bool:
        """Whether no parameter lies on a bound."""
        return not self.at_bounds

    def predict(self, table: LossTable | pd.DataFrame) -> Floats:
        """Predicted loss per row, nats per token."""
        frame = table.frame if isinstance(table, LossTable) else table
        loss: Floats = self.law.loss(self.parameters, self.law.covariates(frame))
        return loss

    def reference(self) -> dict[str, float]:
        """The parameters in reference coordinates."""
        q = self.law.to_reference(self.parameters, self.at)
        return {name: float(value) for name, value in q.items()}


def fit_huber(
    law: str | Law,
    table: LossTable,
    *,
    delta: float = DELTA,
    starts: int | None = None,
    polish: int | None = None,
    seed: int = 0,
) -> PointFit:
    """Fit a law as the paper does: minimise the Huber loss of ``log L_hat - log L``.

    Parameters
    ----------
    law : str, path or Law
    table : LossTable
    delta : float
        Huber threshold in log loss.
    starts : int, optional
        Points over the exponents to screen (a scrambled Sobol sequence); 64 an exponent.
    polish : int, optional
        How many of the best to polish to convergence; 3 an exponent.
    seed : int

    Returns
    -------
    PointFit

    Raises
    ------
    TableError
        If the table lacks a column the law needs, or that column does not vary.
    FitError
        If `delta` is not positive, or no start gives a finite objective.

    Warns
    -----
    FitWarning
        If the optimum lies on a bound.
    """
    law = load_law(law)
    if not delta > 0:
        raise FitError(f"delta must be positive, not {delta!r}.")
    law.check_fits(table.frame, table.name)
    problem = Problem(law, table, delta)
    starts = starts or 64 * len(law.exponents)
    points = problem.screen(starts, seed)[: polish or 3 * len(law.exponents)]
    points, objective = problem.polish(points)
    best = int(np.argmin(objective))
    if not np.isfinite(objective[best]):
        raise FitError(f"{table.name}: no start of {law.name} gave a finite objective.")
    gap = objective - objective[best]
    agreeing = float(np.mean(gap <= AGREE * objective[best] + 1e-20 * len(table)))
    at_bounds = problem.on_bound(points[best])
    if at_bounds:
        names = ", ".join(f"{name} = {value:g}" for name, value in at_bounds.items())
        warnings.warn(
            f"{law.name} on {table.name}: the optimum lies on a bound ({names}).",
            FitWarning,
            stacklevel=2,
        )
    return PointFit(
        law=law,
        parameters=problem.paper(points[best]),
        at=problem.at,
        objective=float(objective[best]) / len(table),
        delta=delta,
        starts=starts,
        polished=len(points),
        agreeing=agreeing,
        at_bounds=at_bounds,
        table=table,
    )


class Problem:
    """The optimisation problem of one law on one table.

    The vector holds the floor and the term sizes at the reference point, both over the mean loss,
    and the paper's exponents. Objectives are sums over rows; points are stacked on a leading axis.
    """

    def __init__(self, law: Law, table: LossTable, delta: float) -> None:
        self.law, self.delta = law, delta
        self.x = law.covariates(table.frame, table.name)
        self.at = law.reference_point(table.frame)
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
        """Derivatives of the residuals, shape (points, rows, parameters)."""
        p = self.values(points)
        by = self.law.gradient(p, self.x, self.at)
        loss = self.law.loss(p, self.x, self.at)
        columns = [np.broadcast_to(by[name], loss.shape) / loss for name in self.names]
        return np.stack(columns, -1)

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
        p, loss = self.values(points), np.exp(self.log_loss)
        shapes = [np.exp(term.shape(p, self.x, self.at, np)) for term in self.law.terms]
        design = np.stack([np.ones_like(shapes[0]), *shapes], -1) / loss[:, None]
        for point, matrix in zip(points, design, strict=True):
            point[: self.linear] = self._solve(matrix)
        return points[np.argsort(self.objective(self.residuals(points)), kind="stable")]

    def _solve(self, matrix: Floats) -> Floats:
        """Sizes that fit relative losses, reweighted twice toward the Huber loss."""
        weight = np.ones(len(matrix))
        for _ in range(3):
            sizes = nnls(matrix * weight[:, None], weight)[0]
            miss = np.abs(matrix @ sizes - 1)
            weight = np.sqrt(np.minimum(1, self.delta / np.maximum(miss, 1e-300)))
        return sizes

    def polish(
        self, points: Floats, *, max_steps: int = 1000, patience: int = 12, tol: float = 1e-13
    ) -> tuple[Floats, Floats]:
        """Descend from all points at once until `patience` steps in a row gain less than `tol`."""
        points = np.clip(points, self.low, self.high)
        residuals = self.residuals(points)
        objective = self.objective(residuals)
        damping = np.full(len(points), 1e-2)
        idle = np.where(np.isfinite(objective), 0, patience)
        for _ in range(max_steps):
            active = np.flatnonzero(idle < patience)
            if not len(active):
                break
            trial = self._step(points[active], residuals[active], damping[active])
            moved = self.residuals(trial)
            reached = self.objective(moved)
            gain = objective[active] - reached
            better = gain > 0
            took = active[better]
            idle[active] += 1
            idle[took[gain[better] > tol * objective[took]]] = 0
            points[took], residuals[took] = trial[better], moved[better]
            objective[took] = reached[better]
            damping[active] *= np.where(better, 0.25, 6.0)
            np.clip(damping, 1e-14, 1e10, out=damping)
        return points, objective

    def _step(self, points: Floats, residuals: Floats, damping: Floats) -> Floats:
        """Projected Levenberg-Marquardt step; `damping` scales the reweighted diagonal."""
        jacobian = self.jacobian(points)
        size = np.abs(residuals)
        weight = np.minimum(1, self.delta / np.maximum(size, 1e-300))
        gradient = np.einsum("krp,kr->kp", jacobian, weight * residuals)
        curvature = np.einsum("krp,kr,krq->kpq", jacobian, size <= self.delta, jacobian)
        scale = np.einsum("krp,kr->kp", jacobian**2, weight)
        scale = np.maximum(scale, 1e-12 * scale.max(-1, keepdims=True))
        blocked = (points <= self.low) & (gradient > 0) | (points >= self.high) & (gradient < 0)
        free = ~blocked
        matrix = curvature * (free[:, :, None] & free[:, None, :])
        diagonal = np.arange(points.shape[1])
        matrix[:, diagonal, diagonal] += np.where(free, damping[:, None] * scale, 1.0)
        matrix[:, diagonal, diagonal] += 1e-15 * scale
        step = np.linalg.solve(matrix, -(gradient * free)[..., None])[..., 0]
        return np.clip(points + step, self.low, self.high)

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
