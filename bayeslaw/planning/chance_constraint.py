r"""Chance constraints, as queries on a lattice of losses.

A plan is the smallest budget ``u``, the log of tokens per parameter, at which all limits ``i`` hold
with a probability of at least the `confidence` at some replay ratio ``r``. The probability is the
share of ``S`` paired posterior draws ``s`` whose losses ``L``, latent ones or those that one new
run will measure, are at most their thresholds ``t``:

.. math::

   \min_{u, r} u \quad \text{subject to} \quad
   \frac{1}{S} \sum_{s=1}^{S} \prod_i 1\{L_{is}(u, r) \le t_{is}\} \ge \text{confidence}

That is the sample average approximation [1]_ of a chance-constrained problem [2]_. The losses are
evaluated once, on a lattice of budgets and ratios; plans, frontiers, sensitivities and caps are
queries on it. A query finds the first budget of the lattice that is feasible, and below it, up to
the budget before, the smallest one with interpolated losses. Lattices of exact losses around that
point, each four times finer, correct the interpolation. So feasible windows that are narrower than
the lattice can be missed.

References
----------
.. [1] J. Luedtke and S. Ahmed (2008). A sample approximation approach for optimization with
   probabilistic constraints. SIAM Journal on Optimization, 19(2), 674-699.
.. [2] A. Charnes and W. W. Cooper (1959). Chance-constrained programming. Management Science, 6(1),
   73-79.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from bayeslaw.common.arrays import Bools, Floats, Ints
from bayeslaw.inference.pools import Fit
from bayeslaw.planning.planned_run import Domain, Farness, are_measured
from bayeslaw.tables.verdict import MEASURED_DECADES, TOO_FAR

NAMES = "target", "forgetting"
"""What the limits are on."""
SPACING = 0.2
"""Spacing of the lattice in e-folds of the budget."""
REACH = TOO_FAR * MEASURED_DECADES["tokens"] * math.log(10)
"""E-folds beyond the fitted budgets that are searched: as far as forecasts are made."""
ACCEPTED = np.arange(1.0, 9.0)
"""E-folds beyond those that are searched as well if the fits are accepted beyond the evidence."""
NO_TABLE = math.log(1e-3), math.log(1e6)
"""Fitted budgets, log ATPP, of laws without a table."""
FINER = 4
"""Nodes of a finer lattice, in each direction, and ratios of a query, for one of a lattice."""
EXACT_ZOOMS = 2
MOST_STEPS = 8
"""Finer lattices of a plan, for one of other queries, which are right to .1 %; and most of any."""
EXACT = 1e-10
"""E-folds to which a plan is the smallest one at its ratio; of a fixed budget, of the ratio."""


class Place(NamedTuple):
    """A budget, log ATPP, a replay ratio, and how many draws, or more, meet all limits there."""

    budget: float
    ratio: float
    held: int


@dataclass(frozen=True)
class Limit:
    """An upper limit on the loss of a target, or on the rise of a source's loss over its baseline.

    A limit on the loss has no `baseline`, which is a number or of shape (pairs,). A rise is in nats
    per token or, if `relative`, a fraction of the baseline.
    """

    domain: Domain
    most: float
    baseline: float | Floats | None = None
    relative: bool = False

    def text(self, value: float) -> str:
        """A value of what is limited; a loss goes without its unit."""
        if self.baseline is None:
            return f"{value:g}"
        return f"{100 * value:.3g} %" if self.relative else f"{value:.3g} nats"

    def threshold(self, *, measured: bool) -> Floats:
        """The limit as one on the latent loss, nats per token, shape (pairs,)."""
        start = 0.0 if self.baseline is None else self.baseline
        most = (1 + self.most) * start if self.relative else start + self.most
        # Noise moves the limit, once, in place of the losses at every node of a lattice.
        return np.asarray(most * np.exp(-measured * self.domain.deviation))

    def values(self, latent: Floats, *, measured: bool) -> Floats:
        """What is limited, in the unit of `most`, given latent losses of shape (..., pairs)."""
        loss = latent * np.exp(measured * self.domain.deviation)
        start = 0.0 if self.baseline is None else self.baseline
        return np.asarray(loss / start - 1 if self.relative else loss - start)


@dataclass(frozen=True)
class Lattice:
    """Latent losses of some domains, each (budgets, ratios, pairs); budgets are log ATPP."""

    budgets: Floats
    ratios: Floats
    losses: Sequence[Floats] = field(repr=False)


def lattice_of(domains: Sequence[Domain], budgets: Floats, ratios: Floats) -> Lattice:
    rows = domains[0].run.rows(
        np.repeat(budgets, len(ratios)), np.tile(ratios, len(budgets))
    )
    shape = len(budgets), len(ratios), -1
    return Lattice(
        budgets, ratios, [domain.losses(rows).reshape(shape) for domain in domains]
    )


def searched_budgets(fits: Collection[Fit], params: float) -> Floats:
    """Budgets of the lattice of a plan, log ATPP, from the least to the greatest."""
    lows = []
    highs = []
    for fit in fits:
        low, high = NO_TABLE
        if fit.table is not None:
            rows = fit.table.frame
            low = np.log(rows["tokens"] / np.maximum(rows["params"], params)).min()
            high = np.log(rows["tokens"].max() / params)
        lows.append(low)
        highs.append(high)
    low = min(lows) - REACH
    high = max(highs) + REACH
    budgets = np.linspace(low, high, math.ceil((high - low) / SPACING) + 1)
    if all("beyond-evidence" in fit.accepts for fit in fits):
        return np.concatenate([low - ACCEPTED[::-1], budgets, high + ACCEPTED])
    return budgets


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
    some : slice
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
    some: slice = slice(None)
    jointly: bool = True

    @property
    def params(self) -> float:
        return self.limits[0].domain.run.params

    @cached_property
    def thresholds(self) -> list[Floats]:
        return [
            limit.threshold(measured=self.measured)[self.some] for limit in self.limits
        ]

    @property
    def draws(self) -> int:
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
        return [limit.domain.losses(rows)[:, self.some] for limit in self.limits]

    def holds(self, losses: Sequence[Floats]) -> list[Bools]:
        """Whether each limit holds, (..., draws), given the latent losses."""
        return [
            loss <= most for loss, most in zip(losses, self.thresholds, strict=True)
        ]

    def number(self, losses: Sequence[Floats]) -> Ints:
        """Number of draws at which the limits hold, (...), given the latent losses."""
        holds = self.holds(losses)
        if self.jointly:
            return np.asarray(np.count_nonzero(np.logical_and.reduce(holds), axis=-1))
        return np.min([np.count_nonzero(held, axis=-1) for held in holds], axis=0)

    def held(self, budgets: float | Floats, ratios: float | Floats) -> Ints:
        """Number of draws at which the limits hold, for each pair of budget and ratio."""
        return self._within(self.number(self.losses(budgets, ratios)), budgets, ratios)

    def _within(
        self, counts: Ints, budgets: float | Floats, ratios: float | Floats
    ) -> Ints:
        """Counts, with 0 beyond the evidence."""
        if self.far is None:
            return counts
        places = tuple(np.broadcast_arrays(np.atleast_1d(budgets), ratios))
        return np.where(self.far(places) <= 0, counts, 0)

    def counted(self, lattice: Lattice) -> Ints:
        """`held` on a lattice, (budgets, ratios)."""
        counts = [
            self.number([losses[i, :, self.some] for losses in lattice.losses])
            for i in range(len(lattice.budgets))
        ]
        return self._within(np.array(counts), lattice.budgets[:, None], lattice.ratios)

    @cached_property
    def counts(self) -> Ints:
        """`held` on the lattice of the plan, (budgets, ratios)."""
        return self.counted(self.lattice)

    # -- queries ----------------------------------------------------------------------------------

    def smallest(
        self, confidence: float | None = None, *, exact: bool = False
    ) -> Place | None:
        """The smallest budget that meets all limits with a confidence, by default the problem's.

        At a fixed budget, its least replay ratio. `exact` finds the smallest budget to `EXACT`.
        """
        rank = self.rank(confidence)
        lattice = self.lattice
        if self.fixed is not None:
            return self._least_replay(rank)
        place, node = self._first(lattice, self.counts, rank)
        under = self._under_most_epochs(rank, place.budget, 3 if exact else 1)
        if under is not None:
            place = node = under
        elif node is None:
            node = self.likeliest()
            place = node
        if node.held < rank:
            return None
        i = int(np.searchsorted(lattice.budgets, node.budget))
        width = float(np.diff(lattice.budgets[max(i - 1, 0) : i + 1]).max(initial=0.0))
        step = float(np.diff(lattice.ratios).max(initial=0.0))
        ends = lattice.ratios[[0, -1]]
        zooms = EXACT_ZOOMS if exact else 1
        for _ in range(MOST_STEPS):
            finer = self._around(place, width, step)
            place, finer_node = self._first(finer, self.counted(finer), rank)
            node = finer_node or node
            place = place if finer_node else node
            # At an edge of the finer lattice the least budget may lie beyond it.
            lower = finer.budgets[0] == node.budget > lattice.budgets[0]
            aside = place.ratio in finer.ratios[[0, -1]] and place.ratio not in ends
            if not (lower or aside):
                zooms = zooms - 1
                width = width / FINER
                step = step / FINER**2
            if not zooms:
                break
        return self._lowest(place, node, width, rank) if exact else place

    def _under_most_epochs(self, rank: int, below: float, zooms: int) -> Place | None:
        """The smallest feasible budget that repeats data nearly as often as the evidence goes.

        That edge runs across the lattice, and budgets under it may lie between two nodes. None if
        no budget smaller than `below` is feasible there, or if no data repeat.
        """
        best: Place | None = None
        ratios = self.lattice.ratios
        ends = ratios[[0, -1]]
        step = float(np.diff(ratios).max(initial=0.0))
        if self.far is None:
            return None
        for _ in range(zooms):
            high = self.far.most_budgets(ratios)
            inside = (high - SPACING < below) & (high <= self.lattice.budgets[-1])
            inside[inside] = self.held(high[inside], ratios[inside]) >= rank
            if not inside.any():
                break
            ratios = ratios[inside]
            high = high[inside]
            low = high - SPACING
            while (high - low).max() > 1e-3:
                middle = (low + high) / 2
                enough = self.held(middle, ratios) >= rank
                low = np.where(enough, low, middle)
                high = np.where(enough, middle, high)
            k = int(high.argmin())
            if high[k] < below:
                best = Place(float(high[k]), float(ratios[k]), rank)
                below = best.budget
            ratios = ratios[k] + step * np.linspace(-1, 1, 2 * FINER + 1)
            ratios = np.unique(np.clip(ratios, *ends))
            step = step / FINER
        return best

    def _around(self, place: Place, width: float, step: float) -> Lattice:
        """Exact losses within half a width of a budget and a fourth of a step of a ratio."""
        low, high = self.lattice.budgets[[0, -1]]
        nodes = np.linspace(-1, 1, 2 * FINER + 1)
        budgets = np.unique(np.clip(place.budget + width / 2 * nodes[::2], low, high))
        ratios = np.unique(
            np.clip(place.ratio + step / 4 * nodes, *self.lattice.ratios[[0, -1]])
        )
        return lattice_of([limit.domain for limit in self.limits], budgets, ratios)

    def _first(
        self, lattice: Lattice, counts: Ints, rank: int
    ) -> tuple[Place, Place | None]:
        """The smallest feasible budget of interpolated losses, and the first feasible node."""
        feasible = (counts >= rank).any(1)
        if not feasible.any():
            return Place(math.inf, math.nan, 0), None
        i = int(feasible.argmax())
        j = int(counts[i].argmax())
        node = Place(
            float(lattice.budgets[i]), float(lattice.ratios[j]), int(counts[i, j])
        )
        if not i:
            return node, node
        ratios = np.interp(
            np.arange(0, len(lattice.ratios) - 1 + 1e-9, 1 / FINER),
            np.arange(len(lattice.ratios)),
            lattice.ratios,
        )
        below, above = lattice.budgets[i - 1 : i + 1]
        ends = [
            [_interpolated(losses[k, :, self.some], FINER) for k in (i - 1, i)]
            for losses in lattice.losses
        ]
        low = 0.0
        high = 1.0
        best = node
        while high - low > 1e-3:
            share = (low + high) / 2
            budget = below + share * (above - below)
            losses = [start + share * (end - start) for start, end in ends]
            held = self._within(self.number(losses), budget, ratios)
            enough = held >= rank
            if not enough.any():
                low = share
                continue
            high = share
            k = int(held.argmax())
            best = Place(float(budget), float(ratios[k]), int(held[k]))
            # Ratios that need more than this budget cannot need the least.
            ratios = ratios[enough]
            ends = [[losses[enough] for losses in pair] for pair in ends]
        return best, node

    def _lowest(self, place: Place, node: Place, width: float, rank: int) -> Place:
        """The smallest budget at the ratio of a place; that of the node if none is feasible."""
        ratio = place.ratio
        distances = width * np.r_[10.0 ** -np.arange(8), 0.0]
        near = place.budget + np.r_[-distances, distances[::-1]]
        least = first_that(lambda budgets: self.held(budgets, ratio) >= rank, near)
        return node if least is None else Place(least, ratio, rank)

    def _least_replay(self, rank: int) -> Place | None:
        """The least ratio that meets all limits; without any limit, that of the best target loss.

        The best loss is the least that holds with the confidence.
        """
        budget = self.fixed or 0.0
        ratios = self.lattice.ratios
        if any(limit.most < math.inf for limit in self.limits):
            ratio = first_that(lambda r: self.held(budget, r) >= rank, ratios)
            return None if ratio is None else Place(budget, ratio, rank)
        target = self.limits[0]
        nodes = ratios
        while True:
            rows = target.domain.run.rows(budget, nodes)
            values = target.values(target.domain.losses(rows), measured=self.measured)
            values = values[:, self.some]
            stated = np.sort(values, axis=-1)[:, rank - 1]
            stated = np.where(
                self._within(np.ones(len(nodes), int), budget, nodes), stated, np.inf
            )
            k = int(np.argmin(stated))
            step = float(np.diff(nodes).max(initial=0.0))
            if step < 1e-5:
                break
            nodes = nodes[k] + step * np.linspace(-1, 1, 2 * FINER + 1)
            nodes = np.unique(np.clip(nodes, *ratios[[0, -1]]))
        return (
            Place(budget, float(nodes[k]), self.draws) if stated[k] < np.inf else None
        )

    def likeliest(self, cap: float = math.inf) -> Place:
        """Most draws that meet all limits together at a budget up to `cap`, and where that is.

        Of equally probable budgets it is the smallest.
        """
        lattice = self.lattice
        budgets = lattice.budgets
        counts = self.counts
        if cap < budgets[-1]:  # often the likeliest choice spends all that is allowed
            counts = np.vstack([counts[budgets < cap], self.held(cap, lattice.ratios)])
            budgets = np.append(budgets[budgets < cap], cap)
        i, j = np.unravel_index(counts.argmax(), counts.shape)
        best = Place(float(budgets[i]), float(lattice.ratios[j]), int(counts[i, j]))
        if self.far is not None and self.far.most_epochs < math.inf:
            # Between two nodes, with nearly as many epochs, more draws may meet the limits.
            most = self.far.most_budgets(lattice.ratios).clip(
                max=min(cap, lattice.budgets[-1])
            )
            held = self.held(most, lattice.ratios)
            if held.max() > best.held:
                k = int(held.argmax())
                best = Place(float(most[k]), float(lattice.ratios[k]), int(held[k]))
        width = 2 * SPACING
        step = float(np.diff(lattice.ratios).max(initial=0.0))
        for _ in range(5 if best.held else 0):
            finer = self._around(best, width, 4 * step)
            below = finer.budgets <= cap
            counts = self.counted(finer)[below]
            if below.any() and counts.max() > best.held:
                i, j = np.unravel_index(counts.argmax(), counts.shape)
                best = Place(
                    float(finer.budgets[i]), float(finer.ratios[j]), int(counts[i, j])
                )
            width = width / 2
            step = step / 2
        return best

    def binding(self) -> str:
        """Which limits make the problem infeasible: those that cannot be met alone, or all."""
        most = {}
        for k, (name, limit) in enumerate(zip(NAMES, self.limits, strict=True)):
            lattice = replace(self.lattice, losses=[self.lattice.losses[k]])
            most[name] = (
                replace(self, limits=(limit,), lattice=lattice).likeliest().held
            )
        failing = " and ".join(
            name for name, held in most.items() if held < self.rank()
        )
        shares = ", ".join(
            f"P({n}) up to {held / self.draws:.3g}" for n, held in most.items()
        )
        words = f"{failing or 'the limits together'}; alone, {shares}"
        within = "" if self.far is None else " within the evidence"
        for k, (name, limit) in enumerate(zip(NAMES, self.limits, strict=True)):
            least = self.reachable(k)
            if most[name] < self.rank() and math.isfinite(least):
                what = "target loss" if name == "target" else "rise of the source loss"
                words += f"; the lowest {what} that is reached with probability "
                reached = limit.text(float(f"{least:.4g}"))
                words += f"{100 * self.confidence:g} %{within} is {reached}"
        return words

    def reachable(self, k: int) -> float:
        """Least value of what limit `k` is on that holds with the confidence, on the lattice.

        Infinite where no run is within the evidence.
        """
        lattice = self.lattice
        limit = self.limits[k]
        rank = self.rank()
        least = math.inf
        for budget, losses in zip(lattice.budgets, lattice.losses[k], strict=True):
            values = limit.values(losses, measured=self.measured)[:, self.some]
            stated = np.partition(values, rank - 1, axis=-1)[:, rank - 1]
            near = (
                self._within(np.ones(len(lattice.ratios), int), budget, lattice.ratios)
                > 0
            )
            least = min(least, float(stated[near].min(initial=math.inf)))
        return least

    def held_out(self) -> float:
        """P(both) on half of the draws of a plan of the other half, mean of both directions."""
        # In order: of alternating draws, which are correlated, each half would know the other.
        middle = self.draws // 2
        held = []
        one, other = (
            replace(self, some=half) for half in (slice(middle), slice(middle, None))
        )
        for half, rest in ((one, other), (other, one)):
            if (plan := half.smallest()) is not None:
                held.append(rest.held(plan.budget, plan.ratio)[0] / rest.draws)
        return float(np.mean(held)) if held else math.nan


FIRST_NODES = 17
"""Points between which `first_that` divides an interval."""


def first_that(holds: Callable[[Floats], Bools], points: Floats) -> float | None:
    """The first of some points at which something holds, refined to `EXACT` towards the last."""
    while (held := holds(points)).any():
        k = int(held.argmax())
        if not k or abs(points[k] - points[k - 1]) <= EXACT:
            return float(points[k])
        points = np.linspace(points[k - 1], points[k], FIRST_NODES)
    return None


def _interpolated(losses: Floats, parts: int) -> Floats:
    """Losses of shape (ratios, draws) at ratios that divide each interval into some parts."""
    if len(losses) == 1:
        return losses
    shares = np.arange(parts)[:, None] / parts
    between = losses[:-1, None] + shares * (losses[1:] - losses[:-1])[:, None]
    return np.concatenate([between.reshape(-1, losses.shape[1]), losses[-1:]])
