"""Chance constraints: limits on the losses that must hold jointly with a stated probability.

The probability is estimated by the fraction of posterior draws at which all limits hold (sample
average approximation of a chance-constrained problem [1]_ [2]_). Of the draws, the excesses over
the limits are evaluated on a grid of budgets and replay ratios. Where the excess that is exceeded
by a fraction ``1 - confidence`` of the draws is at most zero, a budget is feasible. This order
statistic is continuous in budget and ratio, so that on a coarse grid it also says where a feasible
region may lie between the nodes.

References
----------
.. [1] A. Charnes and W. W. Cooper (1959). Chance-constrained programming. Management Science, 6(1),
   73-79.
.. [2] J. Luedtke and S. Ahmed (2008). A sample approximation approach for optimization with
   probabilistic constraints. SIAM Journal on Optimization, 19(2), 674-699.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from scipy.ndimage import maximum_filter, minimum_filter

from bayeslaw.common.arrays import Bools, Floats, Ints
from bayeslaw.planning.grid import BLOCK, FAR, NODES, Curve, first, search

BUDGETS = np.concatenate([NODES, FAR])
"""Log ATPP of the first grid."""
RATIOS = np.linspace(0.005, 0.995, 34)
"""Replay ratios of the first grid."""
COARSE = 1000
"""Draws of the first grid; those near the best nodes are searched with all draws."""
TOLERANCE = (1e-4, 5e-6)
"""Spacing of log ATPP and of replay ratios at which a search in both ends."""
STARTS, CLOSE = 3, 0.01
"""Most islands, and most gaps between nodes, that are searched; and difference in log ATPP of
islands of which each may be the best."""
NEVER = 1e6
"""Added to the excess of infeasible points, so that any feasible budget is better."""


@dataclass(frozen=True)
class Noise:
    """Deviation of the measured log loss of a new run from the latent one, and the base's part.

    The un-adapted model has the effect of the base as well. Arrays of shape (draws,).
    """

    total: Floats
    base: Floats

    def take(self, draws: Ints) -> "Noise":
        return Noise(self.total[draws], self.base[draws])


# -- limits ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Limit(ABC):
    """An upper limit on a loss of one domain, for paired draws; `index` are those of the fit."""

    kind: ClassVar[str]
    """Which of the probabilities the limit counts in, as in ``p_target``."""
    argument: ClassVar[str]
    """Argument of `bayeslaw.plan` that states the limit."""

    curve: Curve
    most: float
    noise: Noise
    index: Ints | None = None

    @property
    @abstractmethod
    def unit(self) -> str:
        """Unit of the limit in text."""

    @abstractmethod
    def number(self, value: float) -> str:
        """A value of what is limited as text, without its unit."""

    @abstractmethod
    def value(self, budgets: Sequence[float] | Floats, replay: Sequence[float] | Floats) -> Floats:
        """What is limited, (budgets, replays, draws), in the unit of `most`; see `Curve.loss`."""

    @property
    @abstractmethod
    def level(self) -> float | Floats:
        """The limit as one on the latent loss, nats per token, a number or of shape (draws,)."""

    def take(self, draws: Ints) -> Self:
        index = None if self.index is None else self.index[draws]
        return replace(
            self, curve=self.curve.take(draws), noise=self.noise.take(draws), index=index
        )

    def scaled(self, factors: Mapping[str, float]) -> Self:
        """The limit multiplied by the factor of its `argument`, if there is one."""
        return replace(self, most=factors.get(self.argument, 1.0) * self.most)


@dataclass(frozen=True)
class LossLimit(Limit):
    """A limit on the loss of a target domain, nats per token."""

    kind, argument, unit = "target", "max_loss", "nats per token"

    def number(self, value: float) -> str:
        return f"{value:g}"

    def value(self, budgets: Sequence[float] | Floats, replay: Sequence[float] | Floats) -> Floats:
        return self.curve.loss(budgets, replay) * np.exp(self.noise.total)

    @cached_property
    def level(self) -> Floats:
        return self.most * np.exp(-self.noise.total)


@dataclass(frozen=True, kw_only=True)
class ForgettingLimit(Limit):
    """A limit on the rise of the loss of a source domain over its baseline, in nats or relative."""

    kind, argument = "forgetting", "max_forgetting"

    baseline: float | Floats | str
    relative: bool

    @property
    def unit(self) -> str:
        return "%" if self.relative else "nats per token"

    def number(self, value: float) -> str:
        return f"{100 * value if self.relative else value:.3g}"

    def text(self, value: float) -> str:
        return f"{self.number(value)} {'%' if self.relative else 'nats'}"

    @cached_property
    def baseline_loss(self) -> float | Floats:
        """Loss of the un-adapted model, a number or of shape (draws,)."""
        if not isinstance(self.baseline, str):
            return self.baseline
        curve, asymptote = self.curve, self.baseline == "asymptote"
        return (curve.minimum(1.0) if asymptote else curve.loss_at_zero()) * np.exp(self.noise.base)

    def value(self, budgets: Sequence[float] | Floats, replay: Sequence[float] | Floats) -> Floats:
        loss = self.curve.loss(budgets, replay) * np.exp(self.noise.total)
        return loss / self.baseline_loss - 1 if self.relative else loss - self.baseline_loss

    @cached_property
    def level(self) -> Floats:
        base = self.baseline_loss
        most = (1 + self.most) * base if self.relative else base + self.most
        return most * np.exp(-self.noise.total)

    def take(self, draws: Ints) -> Self:
        base = self.baseline
        some = base if isinstance(base, str) or np.ndim(base) == 0 else np.asarray(base)[draws]
        return replace(super().take(draws), baseline=some)

    def scaled(self, factors: Mapping[str, float]) -> Self:
        """The limit and the baseline multiplied; a baseline by name stays."""
        base = self.baseline
        moved = base if isinstance(base, str) else factors.get("baseline", 1.0) * base
        return replace(super().scaled(factors), baseline=moved)


# -- their probability ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """Limits on the losses of the targets, then of the sources; draw i of all curves is a pair."""

    limits: tuple[Limit, ...]
    confidence: float

    @cached_property
    def targets(self) -> tuple[LossLimit, ...]:
        return tuple(limit for limit in self.limits if isinstance(limit, LossLimit))

    @cached_property
    def sources(self) -> tuple[ForgettingLimit, ...]:
        return tuple(limit for limit in self.limits if isinstance(limit, ForgettingLimit))

    @property
    def source(self) -> ForgettingLimit:
        return self.sources[0]

    @property
    def draws(self) -> int:
        return self.limits[0].curve.draws

    @property
    def params(self) -> float:
        return self.limits[0].curve.params

    @property
    def rank(self) -> int:
        """Smallest number of draws whose fraction is at least the confidence."""
        # The small number keeps .9 of 10 draws at 9 despite rounding.
        return max(1, math.ceil((self.confidence - 1e-9) * self.draws))

    @property
    def names(self) -> tuple[str, ...]:
        kinds = Counter(limit.kind for limit in self.limits)
        return tuple(name for kind, count in kinds.items() for name in numbered(kind, count))

    @property
    def masks(self) -> dict[str, Bools]:
        """Which of the limits are of each kind, and which of any, shape (limits,)."""
        kinds = np.array([limit.kind for limit in self.limits])
        return {kind: kinds == kind for kind in kinds.tolist()} | {"both": kinds == kinds}

    def with_noise(self, noise: Iterable[Noise]) -> "Problem":
        """The problem for losses with other noise, given in the order of the limits."""
        pairs = zip(self.limits, noise, strict=True)
        return replace(self, limits=tuple(replace(limit, noise=each) for limit, each in pairs))

    def take(self, draws: Ints) -> "Problem":
        return replace(self, limits=tuple(limit.take(draws) for limit in self.limits))

    def thinned(self, most: int) -> "Problem":
        """The problem for at most so many draws, evenly spread."""
        if self.draws <= most:
            return self
        return self.take(np.linspace(0, self.draws - 1, most).round().astype(int))

    def only(self, kind: str) -> "Problem":
        """The problem with the limits of one kind; see `masks`."""
        kept = zip(self.limits, self.masks[kind], strict=True)
        return replace(self, limits=tuple(limit for limit, is_kept in kept if is_kept))

    def scaled(self, **factors: float) -> "Problem":
        """The problem with `max_loss`, `max_forgetting` or `baseline` multiplied by factors."""
        return replace(self, limits=tuple(limit.scaled(factors) for limit in self.limits))

    def excesses(
        self, budgets: Sequence[float] | Floats, replay: Sequence[float] | Floats
    ) -> list[Floats]:
        """Excess of each loss over its limit, nats per token, (budgets, replays, draws)."""
        with np.errstate(over="ignore", invalid="ignore"):
            return [limit.curve.loss(budgets, replay) - limit.level for limit in self.limits]

    def worst(self, budgets: Sequence[float] | Floats, replay: Sequence[float] | Floats) -> Floats:
        """Largest excess of a loss over its limit; not positive where all limits hold."""
        found, *others = self.excesses(budgets, replay)
        for excess in others:
            found = np.maximum(found, excess)
        return found

    def reduced(self, reduce: Callable[[Floats], Any], budgets: Floats, replay: Floats) -> Any:
        """A function of `worst` at (budgets, replays, ...), evaluated some budgets at a time."""
        step = max(1, BLOCK // (self.draws * len(replay)))
        starts = range(0, len(budgets), step)
        return np.concatenate([reduce(self.worst(budgets[i : i + step], replay)) for i in starts])

    def held(self, budgets: Floats, replay: Floats) -> Ints:
        """Number of draws at which all limits hold, (budgets, replays)."""
        return np.asarray(self.reduced(lambda worst: (worst <= 0).sum(-1), budgets, replay))

    def order(self, budgets: Floats, replay: Floats, ranks: Sequence[int]) -> Floats:
        """The excess that so many draws do not exceed, (budgets, replays, ranks)."""
        places = np.array(ranks) - 1

        def statistic(worst: Floats) -> Floats:
            found = np.partition(worst, np.unique(places), axis=-1)[..., places]
            return np.nan_to_num(found, nan=np.inf, posinf=np.inf)

        order: Floats = self.reduced(statistic, budgets, replay)
        return order

    def needed(self, ratio: float, tolerance: float = 1e-9) -> Floats:
        """Smallest log ATPP of each draw that meets all limits at a replay ratio, (draws,)."""

        def holds(budgets: Floats) -> Bools:
            excesses = [limit.curve.along(budgets, ratio) - limit.level for limit in self.limits]
            return np.asarray(np.max(excesses, axis=0) <= 0)

        return first(holds, BUDGETS[:, None], tolerance)


def numbered(name: str, count: int) -> list[str]:
    """A name for each of some things: the name itself, or with numbers if there are several.

    Examples
    --------
    >>> numbered("target", 1), numbered("source", 2)
    (['target'], ['source 1', 'source 2'])
    """
    return [name] if count == 1 else [f"{name} {i + 1}" for i in range(count)]


# -- the best budget ------------------------------------------------------------------------------


def smallest(
    problem: Problem, ratios: Floats, confidences: Sequence[float] = ()
) -> list[tuple[float, float]]:
    """Smallest log ATPP that meets all limits, and its replay ratio, for each of the confidences.

    Infinite where none does, and minus infinity where no tokens are needed. The default is the
    problem's own confidence.
    """
    thinned = problem.thinned(COARSE)
    asked = [replace(problem, confidence=c) for c in confidences] or [problem]
    ranks = [replace(thinned, confidence=each.confidence).rank for each in asked]
    margins = thinned.order(BUDGETS, ratios, ranks)
    plans = []
    for each, margin in zip(asked, np.moveaxis(margins, -1, 0), strict=True):
        starts = _islands(each, margin, ratios)
        starts += [_around(i, j, ratios) for i, j in _gaps(margin)]
        found = [refined(each, axes, ratios[[0, -1]]) for axes in starts]
        plans.append(min(found, key=lambda plan: plan[0], default=(math.inf, math.nan)))
    return plans


def refined(problem: Problem, axes: Sequence[Floats], ends: Floats) -> tuple[float, float]:
    """`smallest` from a grid of budgets and ratios around it; `ends` are those of the ratios."""

    def worth(budgets: Floats, replay: Floats) -> tuple[Floats, Floats]:
        margin = problem.order(budgets, replay, [problem.rank])[..., 0]
        return np.where(margin <= 0, budgets[:, None], NEVER + margin), margin

    bounds = [(BUDGETS[0], BUDGETS[-1]), (ends[0], ends[-1])]
    value, (budget, ratio) = search(worth, axes, bounds, TOLERANCE)
    if value >= NEVER:
        return math.inf, math.nan
    return lowest(problem, budget, ratio, problem.rank), ratio


def lowest(problem: Problem, budget: float, ratio: float, count: int) -> float:
    """The smallest budget near one at which so many draws meet all limits, to rounding errors."""
    replay = np.array([ratio])
    nodes = np.maximum(
        budget - TOLERANCE[0] * np.array([16.0, 8.0, 4.0, 2.0, 1.0, 0.0]), BUDGETS[0]
    )
    (found,) = first(lambda u: problem.held(u[:, 0], replay) >= count, nodes[:, None], 1e-13)
    return -math.inf if found <= BUDGETS[0] else float(found)


def likeliest(problem: Problem, ratios: Floats, cap: float = math.inf) -> tuple[int, float, float]:
    """Most draws that meet all limits together, and the log ATPP up to `cap` and ratio with them.

    Of equally probable budgets it is the smallest.
    """
    budgets = BUDGETS if cap == math.inf else np.append(BUDGETS[cap > BUDGETS], cap)

    def worth(budgets: Floats, replay: Floats) -> tuple[Floats, Floats]:
        def statistic(worst: Floats) -> Floats:
            held, nearest = (worst <= 0).sum(-1), np.fmin.reduce(worst, -1)
            return np.where(held > 0, -held, np.nan_to_num(nearest, nan=np.inf))

        value = problem.reduced(statistic, budgets, replay)
        return value, np.broadcast_to(budgets[:, None], value.shape)

    value, _ = worth(budgets, ratios)
    peaks = np.argwhere((minimum_filter(value, 3) == value) & (value < np.inf))
    starts = sorted(peaks.tolist(), key=lambda at: (value[*at], at))[:STARTS]
    bounds = [(budgets[0], budgets[-1]), (ratios[0], ratios[-1])]
    found = [search(worth, _around(i, j, ratios, budgets, 8), bounds, TOLERANCE) for i, j in starts]
    least, (budget, ratio) = min(found, default=(math.inf, (math.inf, math.nan)))
    if least >= 0:
        return 0, math.inf, math.nan
    return round(-least), lowest(problem, budget, ratio, round(-least)), ratio


def _around(
    i: int, j: int, ratios: Floats, budgets: Floats = BUDGETS, parts: int = 1
) -> list[Floats]:
    """Budgets and ratios of the cells beside a node of the grid, each cell in some parts."""
    axes = []
    for nodes, at in ((budgets, i), (ratios, j)):
        near = nodes[max(at - 1, 0) : at + 2]
        steps = np.linspace(0, len(near) - 1, parts * (len(near) - 1) + 1)
        axes.append(np.interp(steps, np.arange(len(near)), near))
    return axes


def _islands(problem: Problem, margin: Floats, ratios: Floats) -> list[list[Floats]]:
    """Budgets and ratios around the smallest feasible budgets, from the margins of the first grid.

    They are local minima, over the ratios, of the smallest budget at each ratio: a feasible region
    may have several islands, and of a few draws it has a rugged shore.
    """
    node, some = (margin <= 0).argmax(0), (margin <= 0).any(0)
    near = np.flatnonzero(some & (node <= node[some].min(initial=len(BUDGETS)) + 1))
    if not len(near):
        return []
    cells = np.clip(node[near] + np.arange(-2, 2)[:, None], 0, len(BUDGETS) - 1)

    def holds(budgets: Floats) -> Bools:
        return problem.order(budgets, ratios[near], [problem.rank])[..., 0] <= 0

    budget = np.full(len(ratios), np.inf)
    budget[near] = first(holds, BUDGETS[cells], CLOSE)
    islands = np.flatnonzero((minimum_filter(budget, 3) == budget) & (budget < np.inf))
    islands = islands[np.argsort(budget[islands], kind="stable")][:STARTS]
    close = budget[islands] <= budget.min() + 2 * CLOSE
    below = np.array([-8.0, -4.0, -2.0, -1.0, 0.0]) * CLOSE
    return [[budget[j] + below, ratios[max(j - 1, 0) : j + 2]] for j in islands[close]]


def _gaps(margin: Floats) -> list[tuple[int, int]]:
    """Nodes with infeasible margins beside which a smaller budget may be feasible.

    They are local minima of the margin that are as near to zero as to a neighbour, or any if no
    node is feasible.
    """
    feasible = (margin <= 0).any(1)
    lower = np.arange(len(BUDGETS)) < (feasible.argmax() if feasible.any() else len(BUDGETS))
    change = maximum_filter(np.where(margin < np.inf, margin, -np.inf), 3) - margin
    gaps = (minimum_filter(margin, 3) == margin) & (margin > 0) & (margin < np.inf)
    gaps &= lower[:, None] & ((margin <= change) | (not feasible.any()))
    places = np.argwhere(gaps)[np.argsort(margin[gaps], kind="stable")][:STARTS]
    return [(int(i), int(j)) for i, j in places]
