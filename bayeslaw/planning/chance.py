"""Chance constraints: limits on losses for paired draws of several laws, and searches over replay.

Every search walks over replay ratios only: at each ratio a draw has a *set* of budgets that meet
its limits (`bayeslaw.planning.thresholds`), and counting draws is counting sets that hold a budget.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any

import numpy as np

from bayeslaw.planning.curves import NODES, Curve, Slice
from bayeslaw.planning.intervals import FAR, Floats, Intervals
from bayeslaw.planning.roots import crossing
from bayeslaw.planning.thresholds import below

TOLERANCE = 2e-6
"""The replay ratio is refined to this."""
CHUNK = 1 << 16
"""Draws times replay ratios worked on at once."""


@dataclass(frozen=True)
class Problem:
    """Limits on the losses of some target domains and of one source domain, for paired draws.

    Parameters
    ----------
    targets : tuple of Curve
    source : Curve
        Of as many draws each; draw i of one goes with draw i of the others.
    max_loss : tuple of float
        Limit of each target loss, nats per token.
    max_forgetting : float
        Limit of the rise of the source loss over its baseline.
    baseline : float, "asymptote", "law" or "matched"
    relative : bool
        Whether `max_forgetting` is a share of the baseline, or nats per token.
    confidence : float
        Probability with which all limits are to be met.
    noise : tuple of array, shape (draws,)
        Noise of the measured target losses and source loss, on log loss; zeros for latent ones.
    max_cvar : float
        Limit of `cvar`, in the unit of `max_forgetting`.
    index : tuple of int array, shape (draws,)
        Which draw of each fit, the targets' and the source's, goes with each draw.
    """

    targets: tuple[Curve, ...]
    source: Curve
    max_loss: tuple[float, ...]
    max_forgetting: float
    baseline: float | str
    relative: bool
    confidence: float
    noise: tuple[Floats, ...]
    max_cvar: float = math.inf
    index: tuple[Any, ...] = ()

    @property
    def draws(self) -> int:
        """Number of draws."""
        return self.source.draws

    @property
    def params(self) -> float:
        """Parameters N of the model planned for."""
        return self.source.params

    @property
    def rank(self) -> int:
        """Fewest draws whose share is the confidence; .9 of 10 is 9 whatever the rounding."""
        return max(1, math.ceil((self.confidence - 1e-9) * self.draws))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the limits, in the order of `sets`."""
        count = len(self.targets)
        several = tuple(f"target {i + 1}" for i in range(count))
        return (*(several if count > 1 else ("target",)), "forgetting")

    @property
    def closed(self) -> bool:
        """Whether every law's sets are closed form, and so cheap."""
        return all(curve.sliced([0.5]).closed for curve in (*self.targets, self.source))

    def take(self, index: Any) -> "Problem":
        """The problem for some of the draws."""
        return replace(
            self,
            targets=tuple(curve.take(index) for curve in self.targets),
            source=self.source.take(index),
            noise=tuple(noise[index] for noise in self.noise),
        )

    @cached_property
    def pure(self) -> Slice:
        """The source's law in pure replay."""
        return self.source.sliced([1.0])

    @cached_property
    def base(self) -> Any:
        """Source loss that the rise is measured from: a number, or of shape (draws,).

        The matched baseline moves with D and has none.
        """
        if self.baseline == "asymptote":
            return self.source.least(1.0)
        return self.source.unadapted() if self.baseline == "law" else self.baseline

    # -- losses -------------------------------------------------------------------------------

    def losses(self, replay: Sequence[float] | Floats, budget: float) -> list[Floats]:
        """Each target's loss at a budget in log ATPP, nats per token, shape (replays, draws)."""
        return [
            curve.loss(replay, budget) * np.exp(noise)
            for curve, noise in zip(self.targets, self.noise, strict=False)
        ]

    def rise(self, replay: Sequence[float] | Floats, budget: float | Floats) -> Floats:
        """Rise of the source loss over its baseline, in the unit of its limit; as `losses`.

        A budget for each replay ratio has the shape (replays, 1).
        """
        loss, base = self.source.loss(replay, budget) * np.exp(self.noise[-1]), self.base
        if self.baseline == "matched":
            base = self.source.loss(np.ones(len(replay)), budget)
        return np.asarray(loss / base - 1 if self.relative else loss - base)

    def cvar(self, replay: Sequence[float] | Floats, budget: float | Floats) -> Floats:
        """Conditional value at risk of the rise's excess over its limit, shape (replays,).

        Its mean over the draws with the largest rises, as many as the confidence leaves out but at
        least one.
        """
        excess = self.rise(replay, budget) - self.max_forgetting
        worst = min(self.rank, self.draws - 1)
        return np.asarray(np.partition(excess, worst, -1)[:, worst:].mean(-1))

    # -- sets of budgets ----------------------------------------------------------------------

    def sets(self, replay: Sequence[float] | Floats) -> list[Intervals]:
        """Budgets that meet each limit: the targets', then the source's."""
        quiet = [np.exp(-noise) for noise in self.noise]
        limits = zip(self.targets, self.max_loss, quiet[:-1], strict=True)
        improved = [below(curve.sliced(replay), most * factor) for curve, most, factor in limits]
        here = self.source.sliced(replay)
        scale = 1 + self.max_forgetting if self.relative else 1.0
        rise = 0.0 if self.relative else self.max_forgetting
        if self.baseline == "matched":
            kept = below(here, rise * quiet[-1], self.pure, scale * quiet[-1])
        else:
            kept = below(here, (scale * self.base + rise) * quiet[-1])
        return [*improved, kept]

    def pieces(self, replay: Floats) -> Iterator[tuple[Floats, list[Intervals]]]:
        """Some replay ratios at a time and their `sets`, so that memory stays bounded."""
        step = max(1, CHUNK // self.draws)
        for start in range(0, len(replay), step):
            ratios = replay[start : start + step]
            yield ratios, self.sets(ratios)

    # -- budgets ------------------------------------------------------------------------------

    def first(self, joint: Intervals, replay: Floats) -> Floats:
        """Smallest budget per replay ratio that serves `rank` draws and keeps `cvar` in its limit.

        Parameters
        ----------
        joint : Intervals
            Budgets that meet all limits at these ratios.
        replay : array, shape (replays,)

        Returns
        -------
        array, shape (replays,)
            Log ATPP; infinite where there is none.
        """
        budget = joint.first(self.rank)
        if self.max_cvar == math.inf:
            return budget
        while True:
            kept = self._next_kept(replay, budget)
            budget = joint.first(self.rank, kept)
            if (budget == kept).all():
                return budget

    def _next_kept(self, replay: Floats, budget: Floats) -> Floats:
        """Smallest budgets from the given ones on that keep `cvar` in its limit.

        A window of budgets that holds none of `NODES` is passed over. Where the least of other
        ratios is exceeded more than e times, the search stops, and the answer is infinite.
        """

        def excess(u: Floats, row: Any) -> Floats:
            return self.cvar(replay[row], u[:, None]) - self.max_cvar

        low, found = np.maximum(budget, NODES[0]), budget.copy()
        left = np.flatnonzero(budget < math.inf)
        left = left[excess(low[left], left) > 0]
        found[left] = math.inf
        for node in NODES:
            if not len(left) or found.min() < node - 2:
                break
            row = left[low[left] < node]
            good = excess(np.full(len(row), node), row) <= 0
            crossed = row[good]
            found[crossed] = crossing(excess, low[crossed], np.full(len(crossed), node), crossed)
            low[row] = node
            left = left[found[left] == math.inf]
        return found

    # -- searches over replay -----------------------------------------------------------------

    def smallest(self, replay: Floats) -> tuple[float, float, Floats]:
        """Smallest budget (log ATPP) that serves `rank` draws, its replay ratio, and per ratio.

        The best of the given ratios is refined between its neighbours.
        """

        def budgets(replay: Floats) -> Floats:
            return np.concatenate([self.first(meet(s), r) for r, s in self.pieces(replay)])

        first = budgets(replay)
        budget, ratio = _refine(budgets, replay, first)
        return budget, ratio, first

    def likeliest(self, cap: float, replay: Floats) -> tuple[int, float, float]:
        """Most draws that one budget up to `cap` serves, that budget, and its replay ratio."""

        def rarest(ratios: Floats) -> Floats:
            most = (meet(sets).most(cap) for _, sets in self.pieces(ratios))
            counts, budgets = zip(*most, strict=True)
            # Of equal counts the smaller budget: a term below 1 in size.
            size = np.clip(np.concatenate(budgets), -FAR, FAR) / (3 * FAR)
            return np.asarray(size - np.concatenate(counts))

        _, ratio = _refine(rarest, replay, rarest(replay), rounds=2)
        count, budget = meet(self.sets([ratio])).most(cap)
        return int(count[0]), float(budget[0]), ratio

    def lowest(self, budget: float, replay: Floats) -> tuple[float, float]:
        """Least expected target loss at a budget, and its replay ratio.

        Of several targets the mean. Ratios at which the forgetting limit holds with less than the
        confidence, or not that of `cvar`, do not count; infinite if there are no others.
        """

        def expected(ratios: Floats) -> Floats:
            held = [s[-1].contains(budget).sum(-1) for _, s in self.pieces(ratios)]
            likely = np.concatenate(held) >= self.rank
            if self.max_cvar < math.inf:
                likely &= self.cvar(ratios, budget) <= self.max_cvar
            value = np.full(len(ratios), np.inf)
            value[likely] = np.mean(
                [loss.mean(-1) for loss in self.losses(ratios[likely], budget)], axis=0
            )
            return value

        return _refine(expected, replay, expected(replay))


def meet(sets: Sequence[Intervals]) -> Intervals:
    """Budgets that lie in all of the sets, draw by draw."""
    return reduce(Intervals.meet, sets)


def _refine(
    values: Callable[[Floats], Floats], replay: Floats, first: Floats, rounds: int = 99
) -> tuple[float, float]:
    """Smallest value and where it is, between the neighbours of the best of the given ratios."""
    best = int(first.argmin())
    value, ratio = first[best], replay[best]
    width = np.diff(replay).max(initial=0.0)
    while len(replay) > 1 and width > TOLERANCE and rounds and math.isfinite(value):
        replay = np.linspace(max(ratio - width, replay[0]), min(ratio + width, replay[-1]), 17)
        width, rounds, found = replay[1] - replay[0], rounds - 1, values(replay)
        if found.min() < value:
            value, ratio = found.min(), replay[found.argmin()]
    return float(value), float(ratio)
