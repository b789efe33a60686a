r"""Chance constraints: how many posterior draws meet all limits, on a lattice of losses.

A plan is the smallest budget ``u``, the log of tokens per parameter, at which all limits ``i`` hold
with a probability of at least the `confidence` at some replay ratio ``r``. The probability is the
share of ``S`` paired posterior draws ``s`` whose losses ``L``, latent ones or those that one new
run will measure, are at most their thresholds ``t``:

.. math::

   \min_{u, r} u \quad \text{subject to} \quad
   \frac{1}{S} \sum_{s=1}^{S} \prod_i 1\{L_{is}(u, r) \le t_{is}\} \ge \text{confidence}

That is the sample average approximation [1]_ of a chance-constrained problem [2]_. The losses are
evaluated once, on a lattice of budgets and ratios. Plans, frontiers, sensitivities and caps are
queries on it: `bayeslaw.planning.smallest` and `bayeslaw.planning.likeliest`.

References
----------
.. [1] J. Luedtke and S. Ahmed (2008). A sample approximation approach for optimization with
   probabilistic constraints. SIAM Journal on Optimization, 19(2), 674-699.
.. [2] A. Charnes and W. W. Cooper (1959). Chance-constrained programming. Management Science, 6(1),
   73-79.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from bayeslaw.common.arrays import Bools, Floats, Ints
from bayeslaw.planning.arguments import are_measured
from bayeslaw.planning.evidence import Farness
from bayeslaw.planning.lattice import Lattice, lattice_of
from bayeslaw.planning.limits import Limit

FINER = 4
"""Nodes of a finer lattice, in each direction, and ratios of a query, for one of a lattice."""


class Candidate(NamedTuple):
    """A budget, log ATPP, a replay ratio, and how many draws, or more, meet all limits there."""

    budget: float
    ratio: float
    meeting: int


def candidate_at(lattice: Lattice, counts: Ints, i: int, j: int) -> Candidate:
    """The candidate at budget i and ratio j of a lattice, of which all draws were counted."""
    budget = float(lattice.budgets[i])
    ratio = float(lattice.ratios[j])
    return Candidate(budget, ratio, int(counts[i, j]))


@dataclass(frozen=True)
class Problem:
    """Limits on the losses of target and source, and the lattice of their losses.

    Parameters
    ----------
    limits : tuple of Limit
        Of the target and of the source.
    lattice : Lattice
        Of the domains of the limits, in their order.
    confidence : float
        Probability with which all limits must hold.
    measured : bool
        Whether the limits are on the losses that one new run will measure, or on latent ones.
    far : Farness, optional
        Of (log ATPP, replay ratio): positive beyond the evidence, where no limit counts as met.
    fixed : float, optional
        A fixed log ATPP, at which the least replay is sought.
    selected : slice
        Pairs of draws that count.
    jointly : bool
        Whether all limits must hold in the same draws, or each in so many draws of its own.
    """

    limits: tuple[Limit, ...]
    lattice: Lattice = field(repr=False)
    confidence: float
    measured: bool = False
    far: Farness | None = field(default=None, repr=False)
    fixed: float | None = None
    selected: slice = slice(None)
    jointly: bool = True

    @property
    def params(self) -> float:
        """Parameters N of the planned model."""
        return self.limits[0].domain.run.params

    @cached_property
    def thresholds(self) -> list[Floats]:
        """Of each limit the greatest latent loss that meets it, (draws,)."""
        thresholds = []
        for limit in self.limits:
            of_pairs = limit.threshold(measured=self.measured)
            thresholds.append(of_pairs[self.selected])
        return thresholds

    @property
    def draws(self) -> int:
        """Number of draws that count."""
        return len(self.thresholds[0])

    @property
    def noisy(self) -> bool:
        """Whether measured losses differ from latent ones; those of point fits do not."""
        return any(np.any(limit.domain.deviation) for limit in self.limits)

    def on(self, losses: str) -> "Problem":
        """The problem with its limits on a kind of losses."""
        return replace(self, measured=are_measured(losses))

    def rank(self, confidence: float | None = None) -> int:
        """Smallest number of draws whose fraction is at least a confidence."""
        share = self.confidence if confidence is None else confidence
        # The small number keeps .9 of 10 draws at 9 despite rounding.
        return max(1, math.ceil((share - 1e-9) * self.draws))

    def scaled(
        self, max_loss: float = 1.0, max_forgetting: float = 1.0, baseline: float = 1.0
    ) -> "Problem":
        """The problem with limits and baselines multiplied by factors."""
        limits = []
        for limit in self.limits:
            if limit.baseline is None:
                limits.append(replace(limit, most=limit.most * max_loss))
            else:
                start = limit.baseline * baseline
                most = limit.most * max_forgetting
                limits.append(replace(limit, most=most, baseline=start))
        return replace(self, limits=tuple(limits))

    def losses(self, budgets: float | Floats, ratios: float | Floats) -> list[Floats]:
        """Exact latent losses, of each limit (rows, draws), for each pair of budget and ratio."""
        rows = self.limits[0].domain.run.rows(budgets, ratios)
        losses = []
        for limit in self.limits:
            of_pairs = limit.domain.losses(rows)
            losses.append(of_pairs[:, self.selected])
        return losses

    def values(self, k: int, latent: Floats) -> Floats:
        """What limit `k` is on, (..., draws), given latent losses of all pairs, (..., pairs)."""
        of_pairs = self.limits[k].values(latent, measured=self.measured)
        return of_pairs[:, self.selected]

    # -- which draws meet the limits --------------------------------------------------------------

    def holds(self, losses: Sequence[Floats]) -> list[Bools]:
        """Whether each limit holds, (..., draws), given the latent losses."""
        holds = []
        for loss, threshold in zip(losses, self.thresholds, strict=True):
            holds.append(loss <= threshold)
        return holds

    def count(self, losses: Sequence[Floats]) -> Ints:
        """Number of draws that meet the limits, (...), given the latent losses."""
        holds = self.holds(losses)
        if self.jointly:
            return np.asarray(np.count_nonzero(np.logical_and.reduce(holds), axis=-1))
        counts = [np.count_nonzero(of_limit, axis=-1) for of_limit in holds]
        return np.min(counts, axis=0)

    def meeting(self, budgets: float | Floats, ratios: float | Floats) -> Ints:
        """Number of draws that meet the limits, for each pair of budget and ratio."""
        counts = self.count(self.losses(budgets, ratios))
        return self.none_beyond(counts, budgets, ratios)

    def none_beyond(
        self, counts: Ints, budgets: float | Floats, ratios: float | Floats
    ) -> Ints:
        """Counts of draws for budgets and ratios, with 0 for those beyond the evidence."""
        if self.far is None:
            return counts
        candidates = tuple(np.broadcast_arrays(np.atleast_1d(budgets), ratios))
        return np.where(self.far(candidates) <= 0, counts, 0)

    def within_evidence(self, budgets: float | Floats, ratios: Floats) -> Bools:
        """Whether candidates lie within the evidence, for each pair of budget and ratio."""
        return self.none_beyond(np.ones(len(ratios), int), budgets, ratios) > 0

    # -- on lattices ------------------------------------------------------------------------------

    def meeting_on(self, lattice: Lattice) -> Ints:
        """Number of draws that meet the limits on a lattice, (budgets, ratios)."""
        counts = []
        for i in range(len(lattice.budgets)):
            losses = [of_domain[i, :, self.selected] for of_domain in lattice.losses]
            counts.append(self.count(losses))
        return self.none_beyond(
            np.array(counts), lattice.budgets[:, None], lattice.ratios
        )

    @cached_property
    def counts(self) -> Ints:
        """Number of draws that meet the limits on the lattice of the plan, (budgets, ratios)."""
        return self.meeting_on(self.lattice)

    def finer_lattice(self, around: Candidate, width: float, step: float) -> Lattice:
        """Exact losses within half a width of a budget and a fourth of a step of a ratio."""
        low, high = self.lattice.budgets[[0, -1]]
        nodes = np.linspace(-1, 1, 2 * FINER + 1)
        budgets = around.budget + width / 2 * nodes[::2]
        ratios = around.ratio + step / 4 * nodes
        return lattice_of(
            [limit.domain for limit in self.limits],
            np.unique(np.clip(budgets, low, high)),
            np.unique(np.clip(ratios, *self.lattice.end_ratios)),
        )
