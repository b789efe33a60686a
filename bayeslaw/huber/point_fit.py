"""The paper's deterministic fit: Huber loss on log residuals, under positivity bounds.

Many starts over the exponents are screened and the best polished together, on exact derivatives
(`bayeslaw.huber.objective`).
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd

from bayeslaw.common.defaults import DELTA
from bayeslaw.common.errors import FitError, FitWarning
from bayeslaw.huber.objective import Problem
from bayeslaw.laws.law import Law
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.tables.table import LossTable

type Floats = npt.NDArray[np.float64]

FEW = 6
"""Starts that must agree for the rest not to be descended from, or a third if that is more."""
RANK, FIRST = 30, 40
"""Steps by which starts are ranked, and by which the best of them descend at first."""
NEAR, ROUNDS, STEPS = 0.02, 18, 25
"""Starts still moving this near the best go on with second derivatives in rounds of `STEPS`, while
`ROUNDS` gains like the last would reach it; the best itself goes on while a round gains `GAIN`."""
GAIN = 1e-7
LEAPS = 2.0 ** np.arange(1, 9)
"""Lengths to go on by after a round, in its own: exponents that run to infinity have far to go."""
AGREE = 1e-5
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
        Share of the polished starts that ended at this optimum (objectives within 1e-5).
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
        How many of the best to polish to convergence; 3 an exponent, or a third of that (6 at
        least) if all of them agree. Where a law has more than three exponents, they are chosen
        after a few steps from several times as many.
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
    law.check_fits(table, table.name)
    problem = Problem(law, table, delta)
    free = len(law.exponents)
    starts, polish = starts or 64 * free, polish or 3 * free
    points = problem.screen(starts, seed)[: polish * max(1, free - 2)]
    few = min(polish, max(FEW, polish // 3))
    points, late = points[: few * len(points) // polish], points[few * len(points) // polish :]
    points, objective = _descend(problem, points, few)
    if len(late) and _agreeing(objective, len(table)) < 1:
        more = _descend(problem, late, polish - few)
        points, objective = (
            np.concatenate(pair) for pair in zip((points, objective), more, strict=True)
        )
    best = int(np.argmin(objective))
    if not np.isfinite(objective[best]):
        raise FitError(f"{table.name}: no start of {law.name} gave a finite objective.")
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
        agreeing=_agreeing(objective, len(table)),
        at_bounds=at_bounds,
        table=table,
    )


def _descend(problem: Problem, points: Floats, keep: int) -> tuple[Floats, Floats]:
    """Where the best `keep` of some starts come to rest, and their objectives."""
    if len(points) > keep:  # laws of many exponents have valleys that screening cannot rank
        points, objective, _ = problem.polish(points, max_steps=RANK)
        points = points[np.argsort(objective, kind="stable")[:keep]]
    points, objective, moving = problem.polish(points, max_steps=FIRST)
    gain = np.full(len(points), np.inf)
    for _ in range(ROUNDS):
        best = int(np.argmin(objective))
        gap = objective / objective[best] - 1
        met = gap <= AGREE
        late = np.flatnonzero(moving & ~met & (gap <= np.minimum(NEAR, ROUNDS * gain)))
        if moving[best] and gain[best] > GAIN:
            late = np.append(late, best)
        if not len(late):
            break
        start, before = points[late], objective[late]
        points[late], objective[late], moving[late] = problem.polish(
            points[late], exact=True, max_steps=STEPS
        )
        _leap(problem, start, points, objective, late)
        gain[late] = before / objective[late] - 1
        # Of starts that have met, one goes on for all.
        points[met], objective[met], moving[met] = points[best], objective[best], moving[best]
    return points, objective


def _leap(
    problem: Problem, start: Floats, points: Floats, objective: Floats, late: npt.NDArray[np.intp]
) -> None:
    """Go on the way that each of `late` went as far as it pays, then take one exponent to its cap.

    On: straight, or so that the distance to the nearer bound goes on growing or shrinking by the
    same factor.
    """

    def move(i: int, candidates: Floats) -> None:
        there, value = problem.settled(candidates)
        best = int(np.argmin(value))
        if value[best] < objective[i]:
            points[i], objective[i] = there[best], value[best]

    low, high = problem.low, problem.high
    for i, origin in zip(late, start, strict=True):
        way = points[i] - origin
        bound = np.where(points[i] - low <= high - points[i], low, high)
        was, now = origin - bound, points[i] - bound
        factor = np.divide(now, was, out=np.ones_like(was), where=was * now > 0)
        factor[: problem.linear] = 1.0  # sizes follow
        with np.errstate(over="ignore"):
            geometric = bound + now * factor ** LEAPS[:, None]
        move(i, np.concatenate([points[i] + LEAPS[:, None] * way, geometric]))
        to_cap = np.diag(np.where(way > 0, high, low) - points[i])
        move(i, points[i] + to_cap[problem.linear :])


def _agreeing(objective: Floats, rows: int) -> float:
    """Share of the ends that are at the best of them."""
    return float(np.mean(objective <= (1 + AGREE) * objective.min() + 1e-20 * rows))
