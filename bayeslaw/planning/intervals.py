"""Sets of budgets as unions of intervals, and the number of draws whose set contains a budget.

Each replay ratio and posterior draw has one set: the budgets that meet a limit, or all limits. The
fraction of draws whose set contains a budget estimates the probability that the budget meets them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from bayeslaw.common.arrays import Bools, Floats, Ints

MAX_LOG_ATPP = 600.0
"""A log ATPP above this counts as infinite; ``exp`` of it is still a finite float."""


@dataclass(frozen=True)
class Intervals:
    """Sets of budgets, one per replay ratio and draw, each a union of disjoint closed intervals.

    Parameters
    ----------
    lower, upper : array, shape (intervals, replays, draws)
        Ends of the intervals in log ATPP. An interval with ``lower = inf`` is empty;
        ``lower = -inf`` reaches D = 0. Without `upper` each set is a single interval that has no
        upper end.

    Examples
    --------
    Four draws at one replay ratio; the last draw has no feasible budget.

    >>> sets = Intervals(np.array([[[1.0, 2.0, 3.0, np.inf]]]))
    >>> sets.fraction(np.array([2.5])).tolist()
    [[0.5]]
    >>> sets.smallest(rank=3).tolist()
    [3.0]
    """

    lower: Floats
    upper: Floats | None = None

    @property
    def upper_or_inf(self) -> Floats:
        """`upper`, or infinities where there is none."""
        return np.full_like(self.lower, np.inf) if self.upper is None else self.upper

    def take(self, draws: Ints) -> "Intervals":
        """The sets of some of the draws."""
        upper = None if self.upper is None else self.upper.take(draws, -1)
        return Intervals(self.lower.take(draws, -1), upper)

    def intersect(self, other: "Intervals") -> "Intervals":
        """Intersection, set by set."""
        if self.upper is None and other.upper is None:
            return Intervals(np.maximum(self.lower, other.lower))
        lower = np.maximum(self.lower[:, None], other.lower)
        upper = np.minimum(self.upper_or_inf[:, None], other.upper_or_inf)
        shape = (-1, *lower.shape[2:])
        return intervals(lower.reshape(shape), upper.reshape(shape))

    def contains(self, budget: float) -> Bools:
        """Whether each set contains a budget, shape (replays, draws)."""
        inside = (self.lower <= budget) & (budget <= self.upper_or_inf) & (self.lower < np.inf)
        return np.asarray(inside.any(0))

    def fraction(self, budgets: Floats) -> Floats:
        """Fraction of the draws whose set contains each budget, shape (budgets, replays)."""
        start, stop = (np.sort(self._flat(ends), -1) for ends in (self.lower, self.upper_or_inf))
        draws = self.lower.shape[-1]
        return np.stack(
            [
                (np.searchsorted(a, budgets, "right") - np.searchsorted(b, budgets, "left")) / draws
                for a, b in zip(start, stop, strict=True)
            ],
            -1,
        )

    def smallest(self, rank: int) -> Floats:
        """Smallest budget that lies in at least `rank` of the sets.

        Log ATPP, shape (replays,); infinite where there is no such budget.
        """
        start = self._flat(self.lower)
        found: Floats = np.partition(start, rank - 1, -1)[:, rank - 1].copy()
        if self.upper is None:
            return found
        # Where m intervals have ended before u, at least rank + m must have begun by u. Raising u
        # to that order statistic may pass further ends, so repeat until nothing changes.
        stop, size = self._flat(self.upper), start.shape[-1]
        ended = np.count_nonzero(stop < found[:, None], -1)
        left = np.flatnonzero(ended)
        start, stop, ended = np.sort(start[left], -1), stop[left], ended[left]
        while len(left):
            at, wanted = found[left], rank + ended
            begun = start[np.arange(len(left)), np.minimum(wanted, size) - 1]
            found[left] = np.where(wanted > size, np.inf, np.maximum(begun, at))
            raised = found[left] > at
            left, start, stop = left[raised], start[raised], stop[raised]
            ended = np.count_nonzero(stop < found[left, None], -1)
        return found

    def most_common(self, cap: float = np.inf) -> tuple[Ints, Floats]:
        """Largest number of sets with a common budget up to `cap`, and the smallest such budget.

        Both of shape (replays,).
        """
        if self.upper is None:
            lower = self.lower[0]
            below = (lower <= cap) & (lower < np.inf)
            counts: Ints = below.sum(-1)
            return counts, np.where(below, lower, -np.inf).max(-1)
        edges, covered = self._coverage()
        covered = np.where(edges <= cap, covered, 0)
        best = covered.argmax(-1)[:, None]
        return (
            np.take_along_axis(covered, best, -1)[:, 0],
            np.take_along_axis(edges, best, -1)[:, 0],
        )

    def _coverage(self) -> tuple[Floats, Ints]:
        """Ends in ascending order, and the number of sets that contain each.

        Both of shape (replays, 2 * intervals * draws).
        """
        start, stop = self._flat(self.lower), self._flat(self.upper_or_inf)
        edges = np.concatenate([start, stop], -1)
        # Intervals are closed: of equal ends, the stable sort puts lower ends first.
        order = np.argsort(edges, -1, kind="stable")
        edges = np.take_along_axis(edges, order, -1)
        steps = np.where(order < start.shape[-1], 1, -1)
        return edges, np.where(edges < np.inf, steps, 0).cumsum(-1)

    @staticmethod
    def _flat(ends: Floats) -> Floats:
        """Ends of all intervals and draws in one row per replay ratio."""
        return ends.swapaxes(0, 1).reshape(ends.shape[1], -1)


def intervals(lower: Floats, upper: Floats | None = None) -> Intervals:
    """Sets of budgets from the ends of their intervals, as of `Intervals`.

    Empty intervals, with ``lower > upper`` or beyond `MAX_LOG_ATPP`, are marked by ``lower = inf``.
    Those that are empty for all draws are dropped.
    """
    if upper is None:
        return Intervals(np.where(lower > MAX_LOG_ATPP, np.inf, lower))
    empty = lower > np.minimum(upper, MAX_LOG_ATPP)
    empty |= upper == -np.inf
    lower, upper = np.where(empty, np.inf, lower), np.where(empty, np.inf, upper)
    keep = (lower < np.inf).any((1, 2))
    keep[0] = True
    lower, upper = lower[keep], upper[keep]
    return Intervals(lower, None if len(lower) == 1 and np.isinf(upper).all() else upper)


def intersection(sets: Sequence[Intervals]) -> Intervals:
    """Budgets that lie in all of the sets, draw by draw."""
    return reduce(Intervals.intersect, sets)
