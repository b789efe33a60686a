"""The Huber objective of one law on one table, minimised from many starts at once.

Each iteration of a descent (`polish`) takes a Levenberg-Marquardt step of all parameters within
their bounds, then solves for the linear parameters again with the exponents fixed (`refit_linear`),
as in variable projection (Golub and Pereyra, 1973): along the narrow curved valleys of these laws
the optimal amounts are exponential functions of the exponents, so a straight step leaves the
valley. Without the refit a descent takes up to ten times as many steps.
"""

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
from scipy.special import huber

from bayeslaw.common.arrays import Bools, Floats
from bayeslaw.design.design import Design
from bayeslaw.laws.law import Law
from bayeslaw.laws.steps import Coupling
from bayeslaw.tables.table import LossTable

CAP = 20.0
"""Exponents without finite bounds are searched up to this, and those that are typically above 1 up
to as many times that; no published one is above 2."""
LEAST_COUPLED = 1e-9
"""Least amount of a coupled term, in mean losses: at 0 the loss has no derivative by it."""
EXPONENTS = 0.02, 2.0
"""Range of the starts of an exponent that is positive without an upper bound."""
JACOBIAN_STEP = 1e-6
"""Step of the finite differences of the gradient that give second derivatives."""
LITTLE_DAMPING = 1e-2
MUCH_DAMPING = 1e8
GAIN_TOLERANCE = 1e-13
"""A descent starts with little damping. It ends when a step of no more damping gains less than
GAIN_TOLERANCE, relatively, or when steps of much damping still lead up."""
LEAST_SCALE = 1e-200
"""Scale below which no parameter has an effect."""
HUGE = 1e150
"""What stands for an infinite number, so that its square is finite."""
AGREE = 1e-5
"""Two optima agree if their values differ by less than this, relatively."""
RANKING_STEPS = 30
FIRST_STEPS = 40
ROUND_STEPS = 25
END_STEPS = 10
"""Steps before the starts are ranked, of those that are chosen, of each later round, and of those
that agree at the end."""
NEAR_BEST = 0.02
ROUNDS = 18
GAIN = 1e-7
"""Starts whose value exceeds the best by more than NEAR_BEST are dropped. At most ROUNDS rounds
follow each other, as long as the best one gains GAIN in a round; both relatively."""
FEW_STARTS = 64
FEW_POLISHED = 6
"""Starts screened and polished where only the residuals are needed."""
LENGTHS = 2.0 ** np.arange(1, 9)
REFITS = 8
"""How many rounds an extrapolation is ahead of the last one, and refits of the linear parameters
after it. Each leaves about 5 % of the error."""


type Bounds = Literal["paper", "prior"]
"""Bounds of the parameters in a Huber fit."""


class Objective:
    """The Huber loss of the log residuals of a law on a table, to be minimised within bounds.

    A point is a vector of the floor E, the amount of each term at the reference point, and the
    paper's exponents (`names`; the first `linear` are linear, unless the law couples its terms).
    Floor and amounts are in units of the mean loss. Methods take many points, on the first axis.
    `delta` is the threshold, `bounds` those of the priors or as published, `observed` the log
    losses less their mean `log_scale`.
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
        self.log_scale = float(np.log(table.loss).mean())
        self.observed: Floats = np.log(table.loss) - self.log_scale
        if "start" in self.x:
            self.x["start"] = self.x["start"] - self.log_scale
        self.names = ("E", *law.coefficients, *law.exponents)
        self.linear = 1 + len(law.coefficients)
        rows = [law.by_symbol[name] for name in self.names]
        self.typical = np.array([row.typical for row in rows[self.linear :]])
        ends = [
            (row.published if bounds == "paper" else None) or row.bounds for row in rows
        ]
        low, high = np.array(ends).T
        self.stated: Floats = np.array(ends)[
            self.linear :
        ].T  # least and most of the exponents
        stated = np.isfinite(self.stated).all(0)
        cap = np.r_[
            np.full(self.linear, np.inf),
            np.where(stated, np.inf, CAP * np.maximum(self.typical, 1.0)),
        ]
        self.low: Floats = np.maximum(low, -cap)
        self.high: Floats = np.minimum(high, cap)
        # Bounds of E are stated in nats, and points have it in units of the mean loss.
        self.low[0] /= math.exp(self.log_scale)
        self.high[0] /= math.exp(self.log_scale)
        coupling = law.step(Coupling)
        coupled = np.isin(self.names, [*coupling.along] if coupling else [])
        self.low[coupled] = np.maximum(self.low[coupled], LEAST_COUPLED)

    def residuals(self, points: Floats) -> Floats:
        """``log L_hat - log L``, shape (points, rows)."""
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            loss = self.law.loss(self._named(points), self.x, self.at)
            residuals: Floats = np.log(loss) - self.observed
        return residuals

    def value(self, residuals: Floats) -> Floats:
        """Sum of the Huber losses, shape (points,); infinite where it is not finite."""
        total: Floats = huber(self.delta, residuals).sum(-1)
        return np.where(np.isfinite(total), total, np.inf)

    def agree(self, values: Floats) -> Bools:
        """Which values are the least one."""
        best: Bools = values <= (1 + AGREE) * values.min() + 1e-20 * len(self.observed)
        return best

    def weights(self, residuals: Floats) -> Floats:
        """Weights that make weighted least squares of the Huber loss, shape (points, rows)."""
        return np.minimum(1, self.delta / np.maximum(np.abs(residuals), 1e-300))

    def design(self, points: Floats, names: tuple[str, ...]) -> Floats:
        """Derivatives of the loss by some parameters, shape (points, names, rows)."""
        with np.errstate(all="ignore"):
            by = self.law.gradient(self._named(points), self.x, self.at, names)
        shape = len(points), len(self.observed)
        return np.stack([np.broadcast_to(by[name], shape) for name in names], axis=1)

    def jacobian(self, points: Floats, residuals: Floats) -> Floats:
        """Derivatives of the residuals, shape (points, parameters, rows)."""
        loss = np.exp(residuals + self.observed)[:, None]
        return self.design(points, self.names) / loss

    def gradient(
        self, points: Floats, residuals: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """Gradient of the objective, with the Jacobian and the weights that it is made of."""
        jacobian = self.jacobian(points, residuals)
        weights = self.weights(residuals)
        return (jacobian @ (weights * residuals)[..., None])[..., 0], jacobian, weights

    def _named(self, points: Floats) -> dict[str, Floats]:
        return {name: points[:, i, None] for i, name in enumerate(self.names)}

    def on_bound(self, point: Floats, rtol: float = 1e-9) -> dict[str, float]:
        """Parameters on (or within `rtol` of) a bound, and that bound."""
        near = rtol * np.maximum(1, np.abs(point))
        at_low = point - self.low <= near
        at_high = self.high - point <= near
        bound = np.where(at_low, self.low, self.high)
        bound[0] *= math.exp(self.log_scale)
        return {
            self.names[i]: float(bound[i]) for i in np.flatnonzero(at_low | at_high)
        }

    def paper(self, point: Floats) -> dict[str, float]:
        p = self.law.rescale(self.amounts(point), self.at)
        return {name: float(value) for name, value in p.items()}

    def amounts(self, point: Floats) -> dict[str, float]:
        """Floor and terms at the reference point in nats per token, and the paper's exponents."""
        p = dict(zip(self.names, map(float, point), strict=True))
        scale = math.exp(self.log_scale)
        return p | {name: scale * p[name] for name in self.names[: self.linear]}

    def point(self, amounts: Mapping[str, float | Floats]) -> Floats:
        """Inverse of `amounts`."""
        point = np.array([float(amounts[name]) for name in self.names])
        point[: self.linear] /= math.exp(self.log_scale)
        return point


def screened_starts(objective: Objective, count: int, seed: int) -> Floats:
    """Starts of a descent in the order of their values, best first, shape (count, parameters).

    Exponents are a scrambled Sobol sequence: log-uniform for positive exponents without an upper
    bound; uniform over their bounds for others, from -2 or to 2 where there is none.
    """
    from scipy.stats import qmc  # takes a second, and saved fits are used without it

    linear = objective.linear
    bounds = objective.stated
    typical = objective.typical
    low = objective.low[linear:]
    high = objective.high[linear:]
    sobol = qmc.Sobol(len(low), rng=np.random.default_rng(seed))
    unit = sobol.random_base2(math.ceil(math.log2(max(count, 2))))[:count]
    positive = np.isinf(bounds[1]) & (low >= 0)
    ends = np.clip([low, high], -2 * typical, 2 * typical)
    ends = np.where(np.isinf(bounds), ends, [low, high])
    smallest, largest = EXPONENTS
    exponents = np.where(
        positive,
        typical * smallest * (largest / smallest) ** unit,
        ends[0] + unit * np.ptp(ends, axis=0),
    )
    points = np.hstack([np.ones((count, linear)), exponents])
    points[:, :linear] = linear_fit(objective, points)
    return points[
        np.argsort(objective.value(objective.residuals(points)), kind="stable")
    ]


def linear_fit(objective: Objective, points: Floats) -> Floats:
    """Linear parameters that fit the relative losses at the exponents of `points`.

    Iteratively reweighted least squares. A parameter that comes out negative is set to zero and
    left out of the next iterations: for starts, this is close enough to non-negative least squares.
    """
    linear = objective.linear
    loss = np.exp(objective.observed)
    design = objective.design(points, objective.names[:linear])
    amounts = points[:, None, :linear]
    # What is left when the linear parameters are taken away: nothing, or the start loss.
    rest = (np.exp(objective.residuals(points)) * loss)[:, None] - amounts @ design
    design = design / loss
    wanted = 1 - rest / loss
    weights = np.ones_like(wanted)
    positive = (design > 0).any(axis=-1)
    for _ in range(2 + linear):
        weighted = design * weights
        matrix = weighted @ design.mT * (positive[:, :, None] & positive[:, None, :])
        scale = np.diagonal(matrix, axis1=-2, axis2=-1) + ~positive
        matrix += np.eye(linear) * (1e-12 * scale + ~positive)[:, None, :]
        towards = (weighted * wanted).sum(-1)
        fitted = np.linalg.solve(matrix, (positive * towards)[..., None])[..., 0]
        positive &= fitted > 0
        fitted = np.maximum(fitted, 0)
        weights = objective.weights(fitted[:, None] @ design - wanted)
    return fitted


def polish_best(
    objective: Objective, points: Floats, keep: int
) -> tuple[Floats, Floats, Floats]:
    """Polish the best `keep` of some starts: points, their values, and `ends`.

    `ends` are where each start was when it first agreed with the best, or ended; `points` have the
    best instead of those that agreed.
    """
    # Where a law has many exponents, the value at the start does not predict where a descent ends.
    if len(points) > keep:
        points, values, _ = polish(objective, points, RANKING_STEPS)
        points = points[np.argsort(values, kind="stable")[:keep]]
    points, values, moving = polish(objective, points, FIRST_STEPS)
    agreed = np.zeros(len(points), bool)
    ends = points.copy()
    for _ in range(ROUNDS):
        best = int(np.argmin(values))
        same = objective.agree(values)
        same[best] = False
        agreed |= same
        # Starts that agree would all end at the same value, so only the best continues.
        points[same], values[same], moving[same] = (
            points[best],
            values[best],
            moving[best],
        )
        active = np.flatnonzero(
            moving & ~same & (values <= (1 + NEAR_BEST) * values[best])
        )
        before = points[active]
        least = values[best]
        points[active], values[active], moving[active] = polish(
            objective, points[active], ROUND_STEPS, exact=True
        )
        for row, origin in zip(active, before, strict=True):
            points[row], values[row] = extrapolated(
                objective, origin, points[row], values[row]
            )
        ends[~agreed] = points[~agreed]
        if values.min() > (1 - GAIN) * least:
            break
    return points, values, ends


def minimum(objective: Objective) -> Floats:
    """The best point of a few starts, where only its residuals are needed."""
    with np.errstate(over="ignore", invalid="ignore"):  # of a loss such as 1e-300
        starts = screened_starts(objective, FEW_STARTS, 0)
        points, values, _ = polish_best(objective, starts, FEW_POLISHED)
    return np.asarray(points[int(np.argmin(values))])


def extrapolated(
    objective: Objective, origin: Floats, point: Floats, value: float
) -> tuple[Floats, float]:
    """The point, or one further in its direction from `origin` if it is better, and its value.

    Where an exponent has no finite optimum, the objective flattens, and descents alone approach the
    bound more and more slowly.
    """
    low = objective.low
    high = objective.high
    linear = objective.linear
    # The distance to the nearer bound shrinks, or grows, by the factor of the last round.
    bound = np.where(point - low <= high - point, low, high)
    before = origin - bound
    now = point - bound
    factor = np.divide(now, before, out=np.ones_like(before), where=before * now > 0)
    factor[:linear] = 1.0  # these are refitted
    with np.errstate(over="ignore"):
        further = bound + now * factor ** LENGTHS[:, None]
    # Each exponent in turn at the bound that it moves to.
    to_bound = np.diag(np.where(point > origin, high, low) - point)[linear:]
    for trial in (further, None):
        trial = np.clip(point + to_bound if trial is None else trial, low, high)
        for _ in range(REFITS):
            trial, residuals = refit_linear(objective, trial)
        reached = objective.value(residuals)
        best = int(np.argmin(reached))
        if reached[best] < value:
            point = trial[best]
            value = float(reached[best])
    return point, value


def solutions(objective: Objective, best: Floats, ends: Floats) -> Floats:
    """Points of the same value as the best: itself first, and those where other starts end.

    Where the table does not determine all parameters these differ; elsewhere by what the tolerance
    of the value allows. `ends` are those of `polish_best`, of the starts that agree.
    """
    ends, reached, _ = polish(objective, ends, END_STEPS, exact=True)
    least = objective.value(objective.residuals(best[None]))
    same = objective.agree(np.concatenate([least, reached]))[1:]
    return np.concatenate([best[None], ends[same]])


def polish(
    objective: Objective, points: Floats, steps: int, *, exact: bool = False
) -> tuple[Floats, Floats, Bools]:
    """Descend from all points at once: points, values, and which have not converged.

    A step s solves ``(H + damping diag(J' W J)) s = -J' W r`` within the bounds. H is the matrix of
    second derivatives where it is `exact`, and else that of Gauss and Newton.
    """
    low = objective.low
    high = objective.high
    points = np.clip(points, low, high)
    residuals = objective.residuals(points)
    values = objective.value(residuals)
    damping = np.full(len(points), LITTLE_DAMPING)
    moving = np.isfinite(values)
    for _ in range(steps):
        active = np.flatnonzero(moving)
        if not len(active):
            break
        at = points[active]
        r = residuals[active]
        gradient, jacobian, weights = objective.gradient(at, r)
        scale = _floored((jacobian**2 @ weights[..., None])[..., 0])
        # Beyond the threshold the Huber loss is linear in the residual and has no curvature.
        matrix = (jacobian * (weights == 1)[:, None]) @ jacobian.mT
        if exact:
            fixed = (at == low) & (gradient > 0) | (at == high) & (gradient < 0)
            matrix = _hessian(objective, at, scale, fixed)
        matrix += (
            np.eye(at.shape[1]) * ((damping[active, None] + 1e-15) * scale)[:, None]
        )
        moved = at + bounded_steps(matrix, gradient, low - at, high - at)
        trial, r = refit_linear(objective, np.clip(moved, low, high))
        reached = objective.value(r)
        gain = values[active] - reached
        # A step with little damping that changes nothing is at the optimum already.
        converged = (np.abs(gain) <= GAIN_TOLERANCE * values[active]) & (
            damping[active] <= LITTLE_DAMPING
        )
        better = gain > 0
        damping[active] *= np.where(better, 0.25, 6.0)
        moving[active] = ~converged & (damping[active] < MUCH_DAMPING)
        accepted = active[better]
        points[accepted] = trial[better]
        residuals[accepted] = r[better]
        values[accepted] = reached[better]
    return points, values, moving


def refit_linear(objective: Objective, points: Floats) -> tuple[Floats, Floats]:
    """Points and residuals with the linear parameters solved for again, exponents fixed.

    One reweighted Gauss-Newton step, where that leads down.
    """
    linear = objective.linear
    here = objective.residuals(points)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        loss = np.exp(here + objective.observed)[:, None]
        jacobian = objective.design(points, objective.names[:linear]) / loss
        weights = objective.weights(here)[:, None]
        # Of an amount that overflows no step is better: large numbers stand for infinite ones.
        matrix = np.nan_to_num(
            (jacobian * weights) @ jacobian.mT, posinf=HUGE, neginf=-HUGE
        )
        gradient = (jacobian @ (weights * here[:, None]).mT)[..., 0]
        gradient = np.nan_to_num(gradient, posinf=HUGE, neginf=-HUGE)
    scale = _floored(np.diagonal(matrix, axis1=-2, axis2=-1))
    matrix = matrix + np.eye(linear) * (1e-10 * scale)[:, None]
    low = objective.low[:linear]
    high = objective.high[:linear]
    refitted = points.copy()
    amounts = points[:, :linear]
    amounts = amounts + bounded_steps(matrix, gradient, low - amounts, high - amounts)
    refitted[:, :linear] = np.clip(amounts, low, high)
    there = objective.residuals(refitted)
    better = (objective.value(there) < objective.value(here))[:, None]
    return np.where(better, refitted, points), np.where(better, there, here)


def _floored(scale: Floats) -> Floats:
    """Scales of parameters, of which some may have no effect."""
    most = scale.max(-1, keepdims=True)
    # Far from the data all may be so small that damping by a part of them is 0.
    return np.where(most > LEAST_SCALE, np.maximum(scale, 1e-12 * most), 1.0)


def _hessian(
    objective: Objective, points: Floats, scale: Floats, fixed: Bools
) -> Floats:
    """Second derivatives of the objective with their eigenvalues made positive.

    In units of ``1 / sqrt(scale)``, because parameters differ in scale by many orders of magnitude:
    the amount of a term with an exponent of 20 may be 1e-9.
    """
    unit = np.sqrt(scale)
    size = len(objective.names)
    step = JACOBIAN_STEP * np.minimum(1, math.sqrt(len(objective.observed)) / unit)
    step = np.where(points + step > objective.high, -step, step)
    ends = points[:, None] + step[..., None] * np.eye(size)
    ends = np.concatenate([points, ends.reshape(-1, size)])
    gradients = objective.gradient(ends, objective.residuals(ends))[0]
    here = gradients[: len(points), None]
    there = gradients[len(points) :]
    matrix = (there.reshape(*step.shape, -1) - here) / step[..., None]
    unit = unit[:, None] * unit[..., None]
    matrix = np.nan_to_num(0.5 * (matrix + matrix.mT) / unit)
    # Curvature along a parameter that is fixed at a bound may be negative.
    matrix *= ~(fixed[:, None] | fixed[..., None])
    eigenvalues, vectors = np.linalg.eigh(matrix)
    return unit * ((vectors * np.abs(eigenvalues)[:, None]) @ vectors.mT)


def bounded_steps(
    matrix: Floats, gradient: Floats, low: Floats, high: Floats
) -> Floats:
    """Newton steps of many quadratic functions at once that leave no bound ``low <= 0 <= high``.

    An active-set method: a coordinate that would leave its bounds is fixed at the bound, and the
    others are solved for again.
    """
    free = ~((low == 0) & (gradient > 0) | (high == 0) & (gradient < 0))
    unit = np.eye(gradient.shape[1])
    step = np.zeros_like(gradient)
    for _ in range(4):
        slope = free * (
            gradient + (matrix @ np.where(free, 0, step)[..., None])[..., 0]
        )
        block = matrix * (free[:, :, None] & free[:, None, :]) + unit * ~free[:, None]
        solved = np.where(free, np.linalg.solve(block, -slope[..., None])[..., 0], step)
        step = np.clip(solved, low, high)
        outside = free & (step != solved)
        if not outside.any():
            break
        free &= ~outside
    return step
