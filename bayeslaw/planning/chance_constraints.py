"""Chance constraints: limits on the losses that must hold jointly with a stated probability.

The probability is estimated by the fraction of posterior draws at which all limits hold (sample
average approximation of a chance-constrained problem [1]_ [2]_). At a fixed replay ratio, each draw
has a set of budgets that meet its limits (`bayeslaw.planning.feasible_budgets`), so the fraction at
a budget is the fraction of sets that contain it, and the smallest feasible budget is exact for the
draws given. Only the replay ratio is searched (`bayeslaw.planning.replay_search`).

References
----------
.. [1] A. Charnes and W. W. Cooper (1959). Chance-constrained programming. Management Science, 6(1),
   73-79.
.. [2] J. Luedtke and S. Ahmed (2008). A sample approximation approach for optimization with
   probabilistic constraints. SIAM Journal on Optimization, 19(2), 674-699.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from bayeslaw.common.arrays import Bools, Floats, Ints
from bayeslaw.planning.feasible_budgets import Bound
from bayeslaw.planning.intervals import Intervals
from bayeslaw.planning.limits import ForgettingLimit, Limit, LossLimit, Noise, rank_of
from bayeslaw.planning.loss_curves import NODES

CHUNK = 1 << 16
"""Draws times replay ratios that are evaluated at once; it bounds the memory."""


@dataclass(frozen=True)
class Problem:
    """Limits on the losses of target domains and of source domains, for paired draws.

    Parameters
    ----------
    limits : tuple of Limit
        Those of the targets, then those of the sources, each in the user's order. All curves have
        the same number of draws; draw i of one is paired with draw i of the others.
    confidence : float
        Probability with which all limits must hold.
    """

    limits: tuple[Limit, ...]
    confidence: float

    @cached_property
    def targets(self) -> tuple[LossLimit, ...]:
        """Limits of the losses of the targets."""
        return tuple(each for each in self.limits if isinstance(each, LossLimit))

    @cached_property
    def sources(self) -> tuple[ForgettingLimit, ...]:
        """Limits of the forgetting of the sources."""
        return tuple(each for each in self.limits if isinstance(each, ForgettingLimit))

    @property
    def source(self) -> ForgettingLimit:
        """The limit of the first source."""
        return self.sources[0]

    @property
    def draws(self) -> int:
        """Number of paired draws."""
        return self.limits[0].curve.draws

    @property
    def params(self) -> float:
        """Parameters N of the model."""
        return self.limits[0].curve.params

    @property
    def rank(self) -> int:
        """Smallest number of draws whose fraction is at least the confidence."""
        return rank_of(self.confidence, self.draws)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the limits."""
        kinds = Counter(limit.kind for limit in self.limits)
        return tuple(name for kind, count in kinds.items() for name in numbered(kind, count))

    @property
    def part(self) -> dict[str, Bools]:
        """Which of the limits are of each kind, and which of any, shape (limits,)."""
        kinds = np.array([limit.kind for limit in self.limits])
        return {kind: kinds == kind for kind in kinds.tolist()} | {"both": kinds == kinds}

    @property
    def closed_form(self) -> bool:
        """Whether the feasible budgets of every law have a closed form, which is fast."""
        return all(limit.curve.closed_form for limit in self.limits)

    def with_noise(self, noise: Iterable[Noise]) -> "Problem":
        """The problem for losses with other noise, given in the order of the limits."""
        pairs = zip(self.limits, noise, strict=True)
        return replace(self, limits=tuple(replace(limit, noise=each) for limit, each in pairs))

    def take(self, draws: Ints) -> "Problem":
        """The problem for some of the draws."""
        return replace(self, limits=tuple(limit.take(draws) for limit in self.limits))

    def scaled(self, **factors: float) -> "Problem":
        """The problem with `max_loss`, `max_forgetting` or `baseline` multiplied by factors."""
        return replace(self, limits=tuple(limit.scaled(factors) for limit in self.limits))

    # -- sets of budgets ----------------------------------------------------------------------

    @property
    def bounds(self) -> list[Bound]:
        """Each limit as a bound on a latent loss."""
        return [limit.bound for limit in self.limits]

    def feasible_sets(
        self, replay: Sequence[float] | Floats, nodes: Floats = NODES
    ) -> list[Intervals]:
        """Budgets that meet each limit."""
        return [bound.budgets(replay, nodes) for bound in self.bounds]

    def meets(self, replay: Sequence[float] | Floats, budget: float) -> Bools:
        """Whether each limit holds at a budget in log ATPP, shape (limits, replays, draws)."""
        return np.stack([bound.excess(replay, budget) <= 0 for bound in self.bounds])

    def portions(self, replay: Floats) -> Iterator[Floats]:
        """Some replay ratios at a time, so that the memory stays bounded."""
        step = max(1, CHUNK // self.draws)
        for start in range(0, len(replay), step):
            yield replay[start : start + step]

    def chunks(
        self, replay: Floats, nodes: Floats = NODES
    ) -> Iterator[tuple[Floats, list[Intervals]]]:
        """Some replay ratios at a time, with their `feasible_sets`."""
        for ratios in self.portions(replay):
            yield ratios, self.feasible_sets(ratios, nodes)


def numbered(name: str, count: int) -> list[str]:
    """A name for each of some things: the name itself, or with numbers if there are several.

    Examples
    --------
    >>> numbered("target", 1), numbered("source", 2)
    (['target'], ['source 1', 'source 2'])
    """
    return [name] if count == 1 else [f"{name} {i + 1}" for i in range(count)]
