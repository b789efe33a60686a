"""Sets of budgets, one per replay ratio and draw, and how many draws agree on a budget."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

type Floats = npt.NDArray[np.float64]
type Counts = npt.NDArray[np.int64]

FAR = 600.0
"""A budget beyond e^FAR tokens per parameter is infinite."""


@dataclass(frozen=True)
class Intervals:
    """Sets of budgets, one per replay ratio and draw, as unions of disjoint closed intervals.

    Parameters
    ----------
    lower, upper : array, shape (pieces, replays, draws)
        Ends in log ATPP. A piece with ``lower = inf`` is empty; ``lower = -inf`` reaches D = 0.
        Without `upper` there is one piece, and a set once entered is never left.
    """

    lower: Floats
    upper: Floats | None = None

    @property
    def stop(self) -> Floats:
        """`upper`, infinite where there is none."""
        return np.full_like(self.lower, np.inf) if self.upper is None else self.upper

    def take(self, index: Any) -> "Intervals":
        """The sets of some of the draws."""
        upper = None if self.upper is None else self.upper.take(index, -1)
        return Intervals(self.lower.take(index, -1), upper)

    def meet(self, other: "Intervals") -> "Intervals":
        """Intersection, set by set."""
        if self.upper is None and other.upper is None:
            return Intervals(np.maximum(self.lower, other.lower))
        lower = np.maximum(self.lower[:, None], other.lower)
        upper = np.minimum(self.stop[:, None], other.stop)
        shape = (-1, *lower.shape[2:])
        return intervals(lower.reshape(shape), upper.reshape(shape))

    def contains(self, budget: float) -> npt.NDArray[np.bool_]:
        """Whether each set holds a budget, shape (replays, draws)."""
        inside = (self.lower <= budget) & (budget <= self.stop) & (self.lower < np.inf)
        return np.asarray(inside.any(0))

    def share(self, budgets: Floats) -> Floats:
        """Share of the draws whose set holds each budget, shape (budgets, replays)."""
        start, stop = (np.sort(self._flat(ends), -1) for ends in (self.lower, self.stop))
        draws = self.lower.shape[-1]
        return np.stack(
            [
                (np.searchsorted(a, budgets, "right") - np.searchsorted(b, budgets, "left")) / draws
                for a, b in zip(start, stop, strict=True)
            ],
            -1,
        )

    def first(self, rank: int, least: Any = -np.inf) -> Floats:
        """Smallest budget from `least` on that lies in at least `rank` sets; inf if none.

        Of shape (replays,), as `least` may be.
        """
        start = self._flat(self.lower)
        found: Floats = np.maximum(np.partition(start, rank - 1, -1)[:, rank - 1], least)
        if self.upper is None:
            return found
        # Where m sets have ended below u, at least rank + m must have begun by u: climb until so.
        stop, size = self._flat(self.upper), start.shape[-1]
        ended = np.count_nonzero(stop < found[:, None], -1)
        left = np.flatnonzero(ended)
        start, stop, ended = np.sort(start[left], -1), stop[left], ended[left]
        while len(left):
            at, wanted = found[left], rank + ended
            begun = start[np.arange(len(left)), np.minimum(wanted, size) - 1]
            found[left] = np.where(wanted > size, np.inf, np.maximum(begun, at))
            climbing = found[left] > at
            left, start, stop = left[climbing], start[climbing], stop[climbing]
            ended = np.count_nonzero(stop < found[left, None], -1)
        return found

    def most(self, cap: float = np.inf) -> tuple[Counts, Floats]:
        """Largest number of sets that share a budget up to `cap`, and the smallest such budget."""
        if self.upper is None:
            lower = self.lower[0]
            below = (lower <= cap) & (lower < np.inf)
            counts: Counts = below.sum(-1)
            return counts, np.where(below, lower, -np.inf).max(-1)
        edges, covered = self._sweep()
        covered = np.where(edges <= cap, covered, 0)
        best = covered.argmax(-1)[:, None]
        return (
            np.take_along_axis(covered, best, -1)[:, 0],
            np.take_along_axis(edges, best, -1)[:, 0],
        )

    def _sweep(self) -> tuple[Floats, Counts]:
        """Ends in order, and how many sets hold each; shapes (replays, 2 pieces draws)."""
        start, stop = self._flat(self.lower), self._flat(self.stop)
        edges = np.concatenate([start, stop], -1)
        order = np.argsort(edges, -1, kind="stable")  # starts before stops: intervals are closed
        edges = np.take_along_axis(edges, order, -1)
        steps = np.where(order < start.shape[-1], 1, -1)
        return edges, np.where(edges < np.inf, steps, 0).cumsum(-1)

    @staticmethod
    def _flat(ends: Floats) -> Floats:
        return ends.swapaxes(0, 1).reshape(ends.shape[1], -1)


def intervals(lower: Floats, upper: Floats | None) -> Intervals:
    """Intervals with empty pieces marked, and dropped where they are empty everywhere."""
    if upper is None:
        return Intervals(np.where(lower > FAR, np.inf, lower))
    empty = lower > np.minimum(upper, FAR)
    empty |= upper == -np.inf
    lower, upper = np.where(empty, np.inf, lower), np.where(empty, np.inf, upper)
    keep = (lower < np.inf).any((1, 2))
    keep[0] = True
    lower, upper = lower[keep], upper[keep]
    return Intervals(lower, None if len(lower) == 1 and np.isinf(upper).all() else upper)
