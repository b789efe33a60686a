"""Search for the best runs to buy: greedy, exchange passes, and every set where they are few."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations

import numpy as np
import numpy.typing as npt

from bayeslaw.design.costs import Costs
from bayeslaw.design.gains import Beliefs, Floats, Ints, Learnt

type Flags = npt.NDArray[np.bool_]

GAINS = ("variance", "entropy", "plan", "doptimal")
EXHAUSTIVE = 2_000_000
"""Every set of up to three is tried if there are at most this many: seconds."""
PASSES = 5
SLACK = 1 + 1e-9
"""A budget is kept up to rounding."""


@dataclass(frozen=True)
class Search:
    """A choice of options (candidate rows, each its run up to there) under limits.

    Parameters
    ----------
    beliefs : Beliefs
    costs : Costs
    size : array of int, shape (options,)
        Which options have the same N.
    gain : {"variance", "entropy", "plan", "doptimal"}
    weights : array, shape (targets,)
    k : int
        Most picks.
    budget : float
        Most FLOPs together; infinite for none.
    power : float
        Greedy steps take the largest gain over this power of the cost. Without a budget it also
        weighs whole sets.
    second_size : bool
        Whether two or more picks must not all have the same N.
    """

    beliefs: Beliefs
    costs: Costs
    size: Ints
    gain: str
    weights: Floats
    k: int
    budget: float
    power: float
    second_size: bool

    def best(self) -> tuple[list[int], str]:
        """Picks in the order to buy them, and how they were found."""
        sets = len(self.size) * sum(math.comb(len(self.size), i) for i in range(self.k))
        if self.k <= 3 and sets <= EXHAUSTIVE:
            return self.order(self._exhaustive()), "every set tried"
        starts = [self.power, 0.0] if math.isfinite(self.budget) else [self.power]
        found = [self._exchange(self._greedy([], power)) for power in starts]
        score = [self._objective(picks) for picks in found]
        return self.order(found[int(np.argmax(score))]), "greedy, then exchanges"

    def order(self, picks: Sequence[int]) -> list[int]:
        """The picks, by largest gain over cost given those before."""
        done: list[int] = []
        while left := [pick for pick in picks if pick not in done]:
            rate = self._rate(done, self.power)
            done.append(max(left, key=lambda pick: rate[pick]))
        return done

    def value(self, learnt: Learnt) -> float:
        """Worth of a state of knowledge, in the unit of the gain."""
        if self.gain == "doptimal":
            return learnt.known
        variance = np.log(learnt.variance) / 2 if self.gain == "entropy" else learnt.variance
        return float(-variance @ self.weights)

    def gains(self, learnt: Learnt) -> Floats:
        """What each option would add to it, shape (options,)."""
        if self.gain == "doptimal":
            return learnt.information
        if self.gain == "entropy":
            return np.asarray(-0.5 * np.log1p(-learnt.drop() / learnt.variance) @ self.weights)
        return learnt.mean_drop(self.weights)

    # -- searches -----------------------------------------------------------------------------

    def _rate(self, picks: Sequence[int], power: float) -> Floats:
        extra = np.maximum(self.costs.further(picks), np.finfo(float).tiny)
        return self.gains(self.beliefs.given(picks)) / extra**power

    def _greedy(self, picks: list[int], power: float) -> list[int]:
        while len(picks) < self.k:
            spent, extra = self._spending(picks)
            open_ = self._open(
                picks, extra, self.budget * SLACK - spent, last=len(picks) + 1 == self.k
            )
            rate = np.where(open_, self._rate(picks, power), -math.inf)
            best = int(rate.argmax())
            if not rate[best] > 0:
                break
            picks = self._longest([*picks, best])
        return picks

    def _open(self, picks: list[int], extra: Floats, left: float, last: bool) -> Flags:
        """Options that can be paid, and leave room for a second N as long as there is none."""
        open_ = extra <= left
        if not self.second_size or self.k < 2 or len({*self.size[picks]}) > 1:
            return open_
        second = np.isin(self.size, self.size[picks], invert=True) & bool(picks)
        if not last:
            for size in np.unique(self.size):
                here = self.size == size
                second |= here & (extra + extra[~here].min(initial=math.inf) <= left)
        return open_ & second if (open_ & second).any() else open_

    def _exchange(self, picks: list[int]) -> list[int]:
        """Swap one pick for another, or add one, while that helps."""
        for _ in range(PASSES):
            before = list(picks)
            for pick in before:
                others = [p for p in picks if p != pick]
                if len(others) == len(picks):
                    continue
                best, score = self._last(others)
                if score > self._objective(picks) + 1e-12 * abs(score):
                    picks = self._longest([*others, best])
            picks = self._greedy(picks, self.power) if math.isfinite(self.budget) else picks
            if picks == before:
                break
        return picks

    def _exhaustive(self) -> list[int]:
        fewest = 0 if math.isfinite(self.budget) else min(self.k, len(self.size)) - 1
        sets = (combinations(range(len(self.size)), i) for i in range(fewest, self.k))
        best: tuple[bool, float, list[int]] = (False, -math.inf, [])
        for some in chain.from_iterable(sets):
            last, score = self._last(list(some))
            varied = len({*self.size[[*some, last]]}) > 1 or not self.second_size
            if (varied, score) > best[:2] and score > -math.inf:
                best = varied, score, self._longest([*some, last])
        return best[2]

    def _last(self, picks: list[int]) -> tuple[int, float]:
        """Best option to add to some picks as the last, and the objective with it."""
        spent, extra, learnt = *self._spending(picks), self.beliefs.given(picks)
        open_ = self._open(picks, extra, self.budget * SLACK - spent, last=True)
        value = self.value(learnt) + self.gains(learnt) - self._start
        score = np.where(open_, value / self._weigh(spent + extra), -math.inf)
        best = int(score.argmax())
        return best, float(score[best])

    def _spending(self, picks: list[int]) -> tuple[float, Floats]:
        return self.costs.total(picks), self.costs.further(picks)

    def _objective(self, picks: list[int]) -> float:
        if not picks:
            return 0.0
        value = self.value(self.beliefs.given(picks)) - self._start
        return float(value / self._weigh(self.costs.total(picks)))

    def _weigh(self, total: Floats | float) -> Floats:
        return np.asarray(total) ** self.power if math.isinf(self.budget) else np.ones_like(total)

    @cached_property
    def _start(self) -> float:
        return self.value(self.beliefs.given([]))

    def _longest(self, picks: Sequence[int]) -> list[int]:
        """The picks without those that a longer pick of the same run brings."""
        run, own = self.costs.run, self.costs.own
        return [p for p in picks if not any(run[p] == run[q] and own[p] < own[q] for q in picks)]
