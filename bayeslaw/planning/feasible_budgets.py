r"""Budgets at which a loss meets its limit, for each draw and replay ratio.

A budget is ``u = log ATPP = log(D / N)``. There are two solvers. Where a law has one data term and
its log is linear in u, they are a half-line. The slope comes from the term's own formula
(`bayeslaw.planning.loss_curves`).

For any other law the excess of the loss over its limit is evaluated on `NODES`. A change of its
sign brackets one root. Where the excess has a local extremum between nodes that may cross zero, two
roots may lie in neighbouring cells without a change of sign at the nodes; the extremum is located
and, if it does cross, splits the bracket. Roots are found by Chandrupatla's method [1]_, all
elements at once.

References
----------
.. [1] T. R. Chandrupatla (1997). A new hybrid quadratic/bisection algorithm for finding the zero
   of a nonlinear function without using derivatives. Advances in Engineering Software, 28(3),
   145-149.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize.elementwise import find_minimum, find_root

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.planning.intervals import Intervals, intervals
from bayeslaw.planning.loss_curves import (
    NODES,
    Curve,
    PooledCurve,
    ReplaySlice,
    losses_at_nodes,
)

LARGE = 1e300
"""Replaces infinity, which the root finder does not accept."""

type Places = tuple[Ints, Ints, Ints]
"""Node, replay ratio and draw of each element, as indices of shape (elements,)."""


@dataclass(frozen=True)
class Bound:
    """A limit: ``L(D, r) <= limit``, draw by draw.

    Parameters
    ----------
    curve : LossCurve or PooledCurve
    limit : float or array, shape (draws,)
        In nats per token.

    Examples
    --------
    ``1 + D^-0.5 <= 1.1`` holds from D = 100 on, for a model of one parameter:

    >>> from bayeslaw.laws.lawfiles import load_law
    >>> from bayeslaw.laws.terms import ORIGIN
    >>> from bayeslaw.planning.loss_curves import LossCurve
    >>> p = {"E": 1.0, "A": 0.0, "alpha": 0.3, "B": 1.0, "beta": 0.5}
    >>> draws = {name: np.array([value]) for name, value in p.items()}
    >>> curve = LossCurve(load_law("chinchilla"), draws, ORIGIN, params=1.0, ptpp=20.0)
    >>> np.exp(Bound(curve, 1.1).budgets([0.5]).lower).round(6).tolist()
    [[[100.0]]]
    """

    curve: Curve
    limit: float | Floats

    def budgets(self, replay: Sequence[float] | Floats, nodes: Floats = NODES) -> Intervals:
        """Budgets that meet the limit; those of laws without a closed form are sought on `nodes`.

        `nodes` are ascending log ATPP. Beyond the first and last, the sets go on as at these.
        """
        if isinstance(self.curve, PooledCurve):
            return self._of_parts(self.curve, replay, nodes)
        here = self.curve.at_replay(replay)
        margin = self.limit - here.constant_terms()
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            return in_closed_form(here, margin) or by_roots(here, margin, nodes)

    def _of_parts(
        self, curve: PooledCurve, replay: Sequence[float] | Floats, nodes: Floats
    ) -> Intervals:
        """`budgets` of a pool, law by law."""
        limit = np.broadcast_to(self.limit, curve.draws)
        found = [
            Bound(part, limit[at]).budgets(replay, nodes)
            for part, at in zip(curve.parts, curve.places, strict=True)
        ]
        shape = max(len(each.lower) for each in found), len(replay), curve.draws
        lower, upper = np.full(shape, np.inf), np.full(shape, np.inf)
        for each, at in zip(found, curve.places, strict=True):
            lower[: len(each.lower), :, at] = each.lower
            upper[: len(each.lower), :, at] = each.upper_or_inf
        # The sets of all laws end at the nodes, also where one has a closed form.
        lower = np.where(lower > nodes[-1], np.inf, np.where(lower <= nodes[0], -np.inf, lower))
        upper = np.where(upper >= nodes[-1], np.inf, np.where(upper < nodes[0], -np.inf, upper))
        return intervals(lower, upper)

    def excess(self, replay: Sequence[float] | Floats, budget: float) -> Floats:
        """Excess over the limit at a budget in log ATPP, nats per token, (replays, draws)."""
        return self.curve.loss(replay, budget) - self.limit

    def excess_at_nodes(self, replay: Floats) -> Floats:
        """`excess` at `NODES`, shape (nodes, replays, draws)."""
        return losses_at_nodes(self.curve, replay) - self.limit


# -- closed form ----------------------------------------------------------------------------------


def in_closed_form(here: ReplaySlice, margin: Floats) -> Intervals | None:
    """Budgets where ``data(D, r) <= margin``; None without a closed form.

    The data term is ``K exp(c0 + c1 u)``. `margin` is in nats, broadcast to (replays,
    draws).
    """
    if not here.closed_form:
        return None
    if not here.data:
        return _sets(here, np.where(margin >= 0, -np.inf, np.inf), None)
    term = here.data[0]
    factor = here.p[term.coefficient]
    c0, c1 = here.line(term)
    level = np.log(np.maximum(margin, 0.0)) - (np.log(factor) + c0)
    if not (factor > 0).all():
        # A term of size zero meets every margin that is not negative.
        level = np.where(factor > 0, level, np.where(margin >= 0, np.inf, -np.inf))
    return _sets(here, *_line_below(level, c1))


def _sets(here: ReplaySlice, lower: Floats, upper: Floats | None) -> Intervals:
    """Sets from the ends of one interval each."""
    lower, *uppers = (
        np.broadcast_to(ends, here.shape)[None] for ends in (lower, upper) if ends is not None
    )
    return intervals(lower, *uppers)


def _line_below(level: Floats, c1: Floats) -> tuple[Floats, Floats | None]:
    """Ends of ``c1 u <= level``; without upper ends the sets are unbounded above."""
    end = level / c1
    if (c1 < 0).all():
        return end, None
    lower = np.where(c1 < 0, end, np.where((c1 > 0) | (level >= 0), -np.inf, np.inf))
    return np.where(level == -np.inf, np.inf, lower), np.where(c1 > 0, end, np.inf)


# -- root finding ---------------------------------------------------------------------------------


def by_roots(here: ReplaySlice, margin: Floats, nodes: Floats = NODES) -> Intervals:
    """`in_closed_form` for any law, with brackets on `nodes`."""
    shape = here.shape
    margin = np.broadcast_to(margin, shape)

    def everywhere(u: float) -> Floats:
        return np.broadcast_to(here.data_terms(u) - margin, shape)

    def excess(u: Floats, replay: Ints, draw: Ints, sign: Floats | float = 1.0) -> Floats:
        value = here.take(replay, draw).data_terms(u)[0] - margin[replay, draw]
        return np.asarray(sign * np.minimum(value, LARGE))

    at_nodes = np.minimum(np.stack([everywhere(u) for u in nodes]), LARGE)
    holds = at_nodes <= 0
    cell, row, draw = np.nonzero(holds[1:] != holds[:-1])
    roots = [root_between(excess, nodes[cell], nodes[cell + 1], row, draw)]
    owners = [row * shape[1] + draw]
    for sign in (1.0, -1.0):
        node, row, draw = turning_points(at_nodes, sign)
        if not len(node):
            continue
        low, middle, high = (nodes[node + i] for i in (-1, 0, 1))
        turned = find_minimum(excess, (low, middle, high), args=(row, draw, 0 * low + sign))
        least = np.asarray(turned.x)
        crosses = excess(least, row, draw, sign) <= 0
        row, draw = row[crosses], draw[crosses]
        low, high, least = low[crosses], high[crosses], least[crosses]
        for pair in ((low, least), (least, high)):
            roots.append(root_between(excess, *pair, row, draw))
            owners.append(row * shape[1] + draw)
    owner, root = np.concatenate(owners), np.concatenate(roots)
    order = np.lexsort((root, owner))
    owner, root = owner[order], root[order]
    # The roots of a set are alternately upper and lower ends, starting with an upper one if the
    # first node lies in the set.
    begins = holds[0].ravel()
    place = np.arange(len(owner)) - np.searchsorted(owner, owner)
    slots = place + begins[owner]
    count = int(slots.max(initial=0)) // 2 + 1
    ends = np.full((2 * count, begins.size), np.inf)
    ends[0, begins] = -np.inf
    ends[slots, owner] = root
    return intervals(*ends.reshape(count, 2, *shape).swapaxes(0, 1))


def turning_points(excess: Floats, sign: float = 1.0) -> Places:
    """Middle nodes of extrema that may cross zero, at which two roots may lie between nodes.

    A minimum of positive excess (`sign` 1) or a maximum of negative excess (-1) may cross if the
    parabola through three nodes comes half of the way to zero from the middle one. The excess has
    shape (nodes, replays, draws).
    """
    falls, middle = excess[1:] < excess[:-1], excess[1:-1]
    if sign > 0:
        node, row, draw = np.nonzero(falls[:-1] & ~falls[1:] & (middle > 0))
    else:
        node, row, draw = np.nonzero(~falls[:-1] & falls[1:] & (middle < 0))
    before, middle, after = (excess[node + i, row, draw] for i in range(3))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        moved = (after - before) ** 2 / (8 * (after - 2 * middle + before))
    near = ~(np.abs(moved) < 0.5 * np.abs(middle))
    return node[near] + 1, row[near], draw[near]


def root_between(excess: Callable[..., Floats], low: Floats, high: Floats, *index: Ints) -> Floats:
    """Roots of `excess`, a function of budgets and indices, between `low` and `high`; (elements,).

    Of the last bracket, the point is returned at which `excess` is not positive, so that the limit
    holds there.
    """
    if not len(low):
        return low
    found = find_root(excess, (low, high), args=index, tolerances={"xatol": 1e-12, "xrtol": 1e-12})
    left, right = found.bracket
    end = np.where(found.f_bracket[0] <= 0, left, right)
    return np.asarray(np.where(found.f_x <= 0, found.x, end))
