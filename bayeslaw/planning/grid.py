"""Losses of every draw on a grid of budgets and replay ratios, and searches on such grids.

Plans, derived numbers, the expected value of anchors and the explorer page ask the same thing: what
each draw of a posterior says about the loss over a range of budgets, and where a number made of
these losses is smallest, or first reaches a value. This module answers it with arrays alone; the
axis of draws is always the last one.

`LawDraws` and `Curve` are the losses; `search`, `minima` and `first` look at a grid first, so that
of several minima the lowest at its nodes is refined. A search ends with a spacing, not with a root
of an equation: no law needs to be monotone or smooth.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from bayeslaw.common.arrays import Bools, Floats, Ints
from bayeslaw.laws.law import Law
from bayeslaw.laws.steps import until_repeated
from bayeslaw.tables.hull import MEASURED_DECADES, TOO_FAR

NEAR_BUDGETS = np.linspace(np.log(1e-7), np.log(1e9), 49)
"""Budgets, log ATPP, of the first grid. Below the first one the loss is that of the first one."""
FAR_BUDGETS = np.array([25.0, 32.0, 45.0, 65.0, 100.0, 160.0, 260.0, 400.0, 600.0])
"""Budgets beyond `NEAR_BUDGETS`, for limits that are met only near the floor of a law."""
BELOW = TOO_FAR * MEASURED_DECADES["tokens"] * math.log(10)
"""E-folds below the fitted budgets from which forecasts are refused."""
BUDGETS = np.concatenate([NEAR_BUDGETS, FAR_BUDGETS])
"""Log ATPP of the first grid of a plan."""
REPLAY_RATIOS = np.linspace(0.005, 0.995, 34)
"""Replay ratios of the first grid of a plan."""
GRIDS = 200
"""Most grids of a search; one that moves at every step is not refined."""
BLOCK = 1 << 18
"""Losses that are evaluated at once. It bounds the memory; smaller arrays stay in the cache."""


COARSE = 1000
"""Draws of the first grid of a plan; those near its best nodes are searched with all draws."""


# -- losses ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LawDraws:
    """Draws of a law's parameters, the arguments `p` of `Law.loss`, stated at the point `at`.

    Shapes are (draws,) or, of steps of walks, (draws, knots). `base` are covariates of the base,
    `start` and `deviation`, (draws,), of a law that starts from it; `unique` the distinct tokens of
    the new data, for a law with repetition.
    """

    law: Law
    p: Mapping[str, Floats]
    at: Mapping[str, float]
    base: Mapping[str, Floats] = field(default_factory=dict)
    unique: float | None = None

    @property
    def count(self) -> int:
        return len(self.p["E"])

    def take(self, draws: Ints | slice) -> "LawDraws":
        p, base = (
            # With the draws of a knot side by side, losses of a grid take a tenth less time.
            {n: np.asfortranarray(v[draws]) for n, v in values.items()}
            for values in (self.p, self.base)
        )
        return replace(self, p=p, base=base)

    def loss(
        self,
        params: float | Floats,
        tokens: float | Floats,
        replay: float | Floats | None = None,
        ptpp: float | Floats | None = None,
    ) -> Floats:
        """Loss in nats per token, shape (..., draws).

        Arguments are in the units of a table, and broadcast with (..., draws): an axis of length 1
        at their end stands for the draws. A law without replay or PTPP needs none;
        what a law declares, it holds. Where a law has no value, as at D = 0, the loss is infinite
        or NaN.
        """
        with np.errstate(all="ignore"):
            x = {"params": np.log(params), "tokens": np.log(tokens) - np.log(self.law.token_unit)}
            return self._at(x, replay, ptpp)

    def _at(
        self,
        x: dict[str, Floats],
        replay: float | Floats | None,
        ptpp: float | Floats | None,
    ) -> Floats:
        ptpp, replay = (
            self.law.held.get(name) if value is None else value
            for name, value in (("ptpp", ptpp), ("replay", replay))
        )
        if ptpp is not None:
            x["ptpp"] = np.log(ptpp)
        for name, row in self.law.declared.items():
            if name in self.law.held:
                value = np.asarray(self.law.held[name])
                x[name] = np.log(value) if row.logged else value
        if replay is not None:
            x |= self.law.shares(np.asarray(replay, float))
        if self.unique is not None:
            share = 0.0 if replay is None else replay
            x["unique"] = until_repeated(self.unique / self.law.token_unit, share)
        shape = np.broadcast_shapes(*map(np.shape, x.values()), (self.count,))
        # With fewer than two axes, columns of knots would be taken for those of rows of a table.
        x = {name: np.reshape(v, (1,) * (2 - np.ndim(v)) + np.shape(v)) for name, v in x.items()}
        loss = self.law.loss(self.p, x | dict(self.base), self.at)
        return np.asarray(np.broadcast_to(loss, (1,) * (2 - len(shape)) + shape)).reshape(shape)

    def knots(self, along: str, over: str = "") -> Floats:
        """Log N ("params"), log D ("tokens") or log(D/N) where exponents change, shape (knots,).

        The last is that of ``along="tokens", over="params"``. There a loss may have a minimum that
        is no smooth one.
        """
        places = [
            walk.knots.positions + self.at[along] - (self.at[over] if over else 0.0)
            for walk in self.law.walks
            if (walk.along, walk.over) == (along, over) and walk.knots is not None
        ]
        unit = np.log(self.law.token_unit) if along == "tokens" else 0.0
        return np.asarray(np.unique(np.concatenate([*places, []])) + unit)


@dataclass(frozen=True)
class Curve:
    """Loss as a function of log ATPP and replay ratio, at one model and stage, for many draws.

    It is that of `FittedLaw.latent`, also beyond the fitted rows, and may rise or fall with D. Only
    beyond `extent`, where forecasts are refused, losses with deviations stay as they are: near
    D = 0 a deviation outweighs every term, so that the loss vanishes or diverges.

    `members` are one `LawDraws`, or those of a pool; `places` are those of each member's draws
    among the draws of the curve. `lowest` is the smallest log ATPP of a fitted row. `kept` are
    losses that were asked for, by budgets and ratios, of a curve that keeps them.
    """

    members: tuple[LawDraws, ...]
    places: tuple[Ints, ...]
    params: float
    ptpp: float | None
    lowest: float = -math.inf
    kept: dict[tuple[tuple[int, ...], bytes, bytes], Floats] | None = field(
        default=None, repr=False
    )

    @property
    def extent(self) -> tuple[float, float]:
        """Log ATPP between which deviations are extrapolated."""
        return max(NEAR_BUDGETS[0], self.lowest - BELOW), NEAR_BUDGETS[-1]

    @property
    def draws(self) -> int:
        return sum(map(len, self.places))

    def take(self, draws: Ints) -> "Curve":
        # Draws may come in another order, so each finds its member and its place there.
        owner, rank = np.empty(self.draws, int), np.empty(self.draws, int)
        for k, place in enumerate(self.places):
            owner[place], rank[place] = k, np.arange(len(place))
        places = [np.flatnonzero(owner[draws] == k) for k in range(len(self.members))]
        kept = [k for k, place in enumerate(places) if len(place)]
        members = tuple(self.members[k].take(rank[draws[places[k]]]) for k in kept)
        places = [places[k] for k in kept]
        return replace(self, members=members, places=tuple(places), kept=None)

    @cached_property
    def coarse(self) -> "Curve":
        """The curve for at most `COARSE` draws, which keeps its losses.

        A plan searches the same first grid for each confidence, and for limits that are moved.
        """
        return replace(self.take(spaced(self.draws, COARSE)), kept={})

    def loss(self, budgets: Sequence[float] | Floats, replay: Sequence[float] | Floats) -> Floats:
        """Loss in nats per token, shape (budgets, replays, draws).

        Budgets are log ATPP, shape (budgets,), or (budgets, replays) where each ratio has its own.
        """
        u, ratios = np.asarray(budgets, float), np.asarray(replay, float)[:, None]
        u = u[..., None] if u.ndim > 1 else u[:, None, None]
        key = u.shape, u.tobytes(), ratios.tobytes()
        if self.kept is not None and key in self.kept:
            return self.kept[key]
        loss = self._joined([self._of_member(k, u, ratios) for k in range(len(self.members))])
        if self.kept is not None:
            self.kept[key] = loss
        return loss

    def loss_at_zero(self) -> Floats:
        """Loss at D = 0 in nats per token, (draws,); not finite where a term diverges there."""
        # Replay has no part in it, as no token was seen; any ratio does.
        return self._joined([m.loss(self.params, 0.0, 1.0, self.ptpp) for m in self.members])

    def minimum(self, replay: float) -> Floats:
        """Smallest loss from the fitted budgets on, (draws,): the asymptote if it falls with D."""
        # Below the fitted budgets a deviation may outweigh every term, and the loss vanish.
        nodes = np.unique(np.maximum(BUDGETS, self.lowest))
        return minima(lambda u: self.along(u, replay), nodes[:, None])[1]

    def along(self, budgets: Floats, replay: float) -> Floats:
        """Loss at one ratio and budgets of shape (points, 1 or draws), shape (points, draws)."""
        budgets = np.broadcast_to(budgets, (len(budgets), self.draws))
        ratio = np.array([[replay]])
        parts = [
            self._of_member(k, budgets[:, None, place], ratio)[:, 0]
            for k, place in enumerate(self.places)
        ]
        return self._joined(parts)

    def _joined(self, parts: Sequence[Floats]) -> Floats:
        """Values of the members, whose last axis is that of draws, in the order of the draws."""
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts, axis=-1)[..., np.argsort(np.concatenate(self.places))]

    def _of_member(self, k: int, u: Floats, ratios: Floats) -> Floats:
        member = self.members[k]
        # Without deviations the law holds at any budget, up to its asymptote.
        ends = self.extent if member.law.deviations else (NEAR_BUDGETS[0], math.inf)
        tokens = self.params * np.exp(np.clip(u, *ends))
        return member.loss(self.params, tokens, ratios, self.ptpp)


def spaced(draws: int, most: int) -> Ints:
    """At most so many of some draws, evenly spread."""
    return np.linspace(0, draws - 1, min(draws, most)).round().astype(int)


# -- searches -------------------------------------------------------------------------------------


def search(
    worth: Callable[..., tuple[Floats, Floats]],
    axes: Sequence[Floats],
    bounds: Sequence[tuple[float, float]],
    tolerance: Sequence[float],
) -> tuple[float, tuple[float, ...]]:
    """Least value of a function, and where it is, on grids that are refined around the best point.

    `worth` takes one array for each axis, and gives what is minimised and what decides between
    equal values, each of the shape of the grid. `axes` are the nodes of the first grid, ascending;
    an axis of one node stays there. `bounds` are the ends of each axis, `tolerance` the spacing at
    which the search ends.
    """
    steps: list[float] = []
    least, place = (math.inf, math.inf), tuple(float(axis[0]) for axis in axes)
    for _ in range(GRIDS):
        value, tie = worth(*axes)
        index = np.unravel_index(np.lexsort((tie.ravel(), value.ravel()))[0], value.shape)
        lowest = float(value[index]), float(tie[index])
        if lowest < least:
            least, place = lowest, tuple(float(a[i]) for a, i in zip(axes, index, strict=True))
        if not steps:
            near = [a[max(i - 1, 0) : i + 2] for a, i in zip(axes, index, strict=True)]
            steps = [float(np.diff(nodes).max(initial=0.0)) for nodes in near]
        if all(step <= most for step, most in zip(steps, tolerance, strict=True)):
            break
        for k, axis in enumerate(axes):
            # At an end of its grid the best point may lie beyond, so that the grid only moves.
            inner = place[k] not in (axis[0], axis[-1]) or place[k] in bounds[k]
            steps[k] *= 0.5 if inner else 1.0
        axes = [
            np.unique(np.clip(centre + step * np.arange(-2, 3), *ends)) if step else axis
            for axis, centre, step, ends in zip(axes, place, steps, bounds, strict=True)
        ]
    return least[0], place


def minima(
    function: Callable[[Floats], Floats], nodes: Floats, tolerance: float = 1e-9
) -> tuple[Floats, Floats]:
    """Where each element of a function of one axis is least, and its value there; (elements,).

    The function takes points of shape (points, elements), and gives values of that shape. `nodes`,
    (nodes, 1 or elements), ascend; the lowest is refined between its neighbours, so that they must
    be near enough to tell which of several minima is the least.
    """
    values = function(nodes)
    nodes = np.broadcast_to(nodes, values.shape)
    node, element = values.argmin(0), np.arange(values.shape[1])
    low, high = (np.clip(node + step, 0, len(nodes) - 1) for step in (-1, 1))
    place, least = zoom(function, nodes[low, element], nodes[high, element], tolerance)
    # With several minima beside the node, the refined one may be above the node.
    better = values[node, element] <= least
    return (
        np.where(better, nodes[node, element], place),
        np.where(better, values[node, element], least),
    )


def zoom(
    function: Callable[[Floats], Floats], low: Floats, high: Floats, tolerance: float = 1e-9
) -> tuple[Floats, Floats]:
    """The minimum of each element between two points, and its value, each of shape (elements,)."""
    fractions = np.linspace(0, 1, 9)[:, None]
    while True:
        points = low + (high - low) * fractions
        values = function(points)
        node, element = values.argmin(0), np.arange(values.shape[1])
        if (high - low).max(initial=0.0) <= tolerance:
            return points[node, element], values[node, element]
        low, high = (
            points[np.maximum(node - 1, 0), element],
            points[np.minimum(node + 1, 8), element],
        )


def first(holds: Callable[[Floats], Bools], nodes: Floats, tolerance: float = 1e-12) -> Floats:
    """First point of each element at which something holds, shape (elements,).

    `holds` takes points of shape (points, elements), and gives booleans of that shape. `nodes`,
    (nodes, 1 or elements), are in the order in which they are tried, so that descending ones give
    the last point. The first at which it holds is refined towards the one before, to a tolerance
    that is relative beyond 1. It holds at the point that is returned, which is infinite if it
    holds at none.
    """
    held = holds(nodes)
    nodes = np.broadcast_to(nodes, held.shape)
    node, element = held.argmax(0), np.arange(held.shape[1])
    after, before = nodes[node, element], nodes[np.maximum(node - 1, 0), element]
    never = ~held.any(0)
    # No interval is left to refine, so that the loop can end.
    before = np.where(never, after, before)
    fractions = np.array([[0.25], [0.5], [0.75], [1.0]])
    while (np.abs(after - before) > tolerance * np.maximum(np.abs(after), 1.0)).any():
        points = before + (after - before) * fractions
        # The last of the four points is `after`, where it is known to hold.
        node = np.vstack([holds(points[:3]), np.ones((1, len(element)), bool)]).argmax(0)
        before = np.where(node > 0, points[node - 1, element], before)
        after = np.where(node < 3, points[node, element], after)
    return np.where(never, np.inf, after)
