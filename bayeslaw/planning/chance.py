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

from bayeslaw.planning.curves import Curve, Slice
from bayeslaw.planning.intervals import FAR, Floats, Intervals
from bayeslaw.planning.thresholds import below

TOLERANCE = 2e-6
"""The replay ratio is refined to this."""
CHUNK = 1 << 17
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
    baseline : float, "asymptote" or "matched"
    relative : bool
        Whether `max_forgetting` is a share of the baseline, or nats per token.
    confidence : float
        Probability with which all limits are to be met.
    noise : tuple of array, shape (draws,)
        Noise of the measured target losses and source loss, on log loss; zeros for latent ones.
    """

    targets: tuple[Curve, ...]
    source: Curve
    max_loss: tuple[float, ...]
    max_forgetting: float
    baseline: float | str
    relative: bool
    confidence: float
    noise: tuple[Floats, ...]

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
    def asymptote(self) -> Floats:
        """Smallest source loss that pure replay can reach, shape (draws,)."""
        return self.source.least(1.0)

    # -- losses -------------------------------------------------------------------------------

    def losses(self, replay: Sequence[float] | Floats, budget: float) -> list[Floats]:
        """Each target's loss at a budget in log ATPP, nats per token, shape (replays, draws)."""
        return [
            curve.loss(replay, budget) * np.exp(noise)
            for curve, noise in zip(self.targets, self.noise, strict=False)
        ]

    def rise(self, replay: Sequence[float] | Floats, budget: float) -> Floats:
        """Rise of the source loss over its baseline, in the unit of its limit; as `losses`."""
        loss = self.source.loss(replay, budget) * np.exp(self.noise[-1])
        if self.baseline == "matched":
            base: Any = self.source.loss([1.0], budget)
        else:
            base = self.asymptote if isinstance(self.baseline, str) else self.baseline
        return np.asarray(loss / base - 1 if self.relative else loss - base)

    # -- sets of budgets ----------------------------------------------------------------------

    def sets(self, replay: Sequence[float] | Floats) -> list[Intervals]:
        """Budgets that meet each limit: the targets', then the source's."""
        return self._sets([curve.sliced(replay) for curve in (*self.targets, self.source)])

    def pieces(self, replay: Sequence[float] | Floats) -> Iterator[list[Intervals]]:
        """`sets` of some replay ratios at a time, so that memory stays bounded."""
        slices = [curve.sliced(replay) for curve in (*self.targets, self.source)]
        step = max(1, CHUNK // self.draws)
        for start in range(0, len(replay), step):
            yield self._sets([each.rows(slice(start, start + step)) for each in slices])

    def joint(self, replay: Sequence[float] | Floats) -> Iterator[Intervals]:
        """Budgets that meet all limits, some replay ratios at a time."""
        return (meet(sets) for sets in self.pieces(replay))

    def _sets(self, slices: list[Slice]) -> list[Intervals]:
        quiet = [np.exp(-noise) for noise in self.noise]
        limits = zip(slices[:-1], self.max_loss, quiet[:-1], strict=True)
        improved = [below(here, most * factor) for here, most, factor in limits]
        scale = 1 + self.max_forgetting if self.relative else 1.0
        rise = 0.0 if self.relative else self.max_forgetting
        if self.baseline == "matched":
            kept = below(slices[-1], rise * quiet[-1], self.pure, scale * quiet[-1])
        else:
            base = self.asymptote if isinstance(self.baseline, str) else self.baseline
            kept = below(slices[-1], (scale * base + rise) * quiet[-1])
        return [*improved, kept]

    # -- searches over replay -----------------------------------------------------------------

    def smallest(self, replay: Floats) -> tuple[float, float, Floats]:
        """Smallest budget (log ATPP) that serves `rank` draws, its replay ratio, and per ratio.

        The best of the given ratios is refined between its neighbours.
        """

        def budgets(ratios: Floats) -> Floats:
            return np.concatenate([joint.first(self.rank) for joint in self.joint(ratios)])

        first = budgets(replay)
        budget, ratio = _refine(budgets, replay, first)
        return budget, ratio, first

    def likeliest(self, cap: float, replay: Floats) -> tuple[int, float, float]:
        """Most draws that one budget up to `cap` serves, that budget, and its replay ratio."""

        def rarest(ratios: Floats) -> Floats:
            counts, budgets = zip(*(joint.most(cap) for joint in self.joint(ratios)), strict=True)
            # Of equal counts the smaller budget: a term below 1 in size.
            size = np.clip(np.concatenate(budgets), -FAR, FAR) / (3 * FAR)
            return np.asarray(size - np.concatenate(counts))

        _, ratio = _refine(rarest, replay, rarest(replay), rounds=2)
        (joint,) = self.joint(np.array([ratio]))
        count, budget = joint.most(cap)
        return int(count[0]), float(budget[0]), ratio

    def lowest(self, budget: float, replay: Floats) -> tuple[float, float]:
        """Least expected target loss at a budget, and its replay ratio.

        Of several targets the mean. Ratios at which the forgetting limit holds with less than the
        confidence do not count; infinite if there are no others.
        """

        def expected(ratios: Floats) -> Floats:
            kept = np.concatenate([s[-1].share(np.array([budget]))[0] for s in self.pieces(ratios)])
            likely = kept >= self.rank / self.draws
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
