"""Budgets below a limit for losses without a closed form: brackets on a grid, then root finding.

The excess of the loss over its limit is evaluated on `NODES`. A change of its sign brackets one
root. Where the excess has a local extremum between nodes that may cross zero, two roots may lie in
neighbouring cells without a change of sign at the nodes; the extremum is located and, if it does
cross, splits the bracket. Roots are found by Chandrupatla's method [1]_, all elements at once.

References
----------
.. [1] T. R. Chandrupatla (1997). A new hybrid quadratic/bisection algorithm for finding the zero
   of a nonlinear function without using derivatives. Advances in Engineering Software, 28(3),
   145-149.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from scipy.optimize.elementwise import find_minimum, find_root

from bayeslaw.common.arrays import Bools, Floats, Ints
from bayeslaw.planning.loss_curves import NODES, ReplaySlice
from bayeslaw.planning.pooled_curves import PooledSlice

LARGE = 1e300
"""Replaces infinity, which the root finder does not accept."""

type Places = tuple[Ints, Ints, Ints]
"""Node, replay ratio and draw of each element, as indices of shape (elements,)."""


class Excess(Protocol):
    """Excess of a loss over its limit at given budgets, elements of (replays, draws)."""

    def __call__(self, u: Floats, replay: Ints, draw: Ints) -> Floats:
        """Excess in nats, shape (elements,)."""


def budgets_by_roots(
    here: ReplaySlice | PooledSlice,
    pure: ReplaySlice | PooledSlice | None,
    weight: float | Floats,
    margin: float | Floats,
    nodes: Floats = NODES,
) -> tuple[Floats, Floats]:
    """Budgets where ``data(D, r) - weight data(D, 1) <= margin``.

    Parameters
    ----------
    here : ReplaySlice
        The law at the replay ratios r.
    pure : ReplaySlice or None
        The law in pure replay, ``r = 1``; None leaves its term out.
    weight : float or array, shape (draws,)
    margin : float or array, broadcast to (replays, draws)
        Bound on the data terms, nats per token.
    nodes : array
        Ascending log ATPP. Beyond the first and last, the sets go on as at these.

    Returns
    -------
    lower, upper : array, shape (intervals, replays, draws)
        Ends of the intervals in log ATPP; unused intervals have ``lower = inf``.
    """
    shape = here.shape
    margin, weight = np.broadcast_to(margin, shape), np.broadcast_to(weight, shape)

    def everywhere(u: float) -> Floats:
        matched = 0.0 if pure is None else weight * pure.data_terms(u)
        value = np.minimum(here.data_terms(u) - matched - margin, LARGE)
        return np.broadcast_to(value, shape)

    def excess(u: Floats, replay: Ints, draw: Ints) -> Floats:
        first = 0 * replay
        matched: Floats | float = 0.0
        if pure is not None:
            matched = weight[replay, draw] * pure.take(first, draw).data_terms(u)
        value = here.take(replay, draw).data_terms(u) - matched - margin[replay, draw]
        return np.asarray(np.minimum(value, LARGE))

    begins, (cell, row, draw), extrema = _brackets(everywhere, nodes)
    roots = [root_between(excess, nodes[cell], nodes[cell + 1], row, draw)]
    owners = [row * shape[1] + draw]
    for sign, (middle, row, draw) in extrema.items():
        if not len(middle):
            continue
        low, mid, high = (nodes[middle + i] for i in (-1, 0, 1))
        found = find_minimum(_signed(excess, sign), (low, mid, high), args=(row, draw))
        least = np.asarray(found.x)
        crosses = sign * excess(least, row, draw) <= 0
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
    place = np.arange(len(owner)) - np.searchsorted(owner, owner)
    slots = place + begins[owner]
    count = int(slots.max(initial=0)) // 2 + 1
    ends = np.full((2 * count, begins.size), np.inf)
    ends[0, begins] = -np.inf
    ends[slots, owner] = root
    return ends[::2].reshape(count, *shape), ends[1::2].reshape(count, *shape)


def _brackets(
    everywhere: Callable[[float], Floats], nodes: Floats
) -> tuple[Bools, Places, dict[float, Places]]:
    """Brackets of single roots, and of local extrema around which two roots may lie.

    Returns
    -------
    array, shape (replays * draws,)
        Whether the limit holds at the first node.
    Places
        The lower node of each cell in which the sign changes.
    dict of sign to Places
        The middle node of each extremum: 1 for a minimum of positive excess, -1 for a maximum of
        negative excess.
    """
    crossed: list[Places] = []
    extrema: dict[float, list[Places]] = {1.0: [], -1.0: []}
    before, last = None, everywhere(nodes[0])
    begins = np.asarray(last <= 0).ravel()
    for node in range(1, len(nodes)):
        value = everywhere(nodes[node])
        crossed.append(_places(node - 1, (value > 0) != (last > 0)))
        if before is not None:
            fell, falls = last < before, value < last
            near = near_zero(before, last, value)
            extrema[1.0].append(_places(node - 1, near & fell & ~falls & (last > 0)))
            extrema[-1.0].append(_places(node - 1, near & ~fell & falls & (last < 0)))
        before, last = last, value
    joined = {sign: _joined(found) for sign, found in extrema.items()}
    return begins, _joined(crossed), joined


def near_zero(before: Floats, middle: Floats, after: Floats) -> Bools:
    """Whether an extremum near the middle of three nodes may cross zero.

    The parabola through them would have to come half of the way there from the middle one.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        moved = (after - before) ** 2 / (8 * (after - 2 * middle + before))
    return ~(np.abs(moved) < 0.5 * np.abs(middle))


def _places(node: int, found: Bools) -> Places:
    row, draw = np.nonzero(found)
    return np.full(len(row), node), row, draw


def _joined(parts: list[Places]) -> Places:
    node, row, draw = (np.concatenate(values) for values in zip(*parts, strict=True))
    return node, row, draw


def _signed(excess: Excess, sign: float) -> Excess:
    def signed(u: Floats, replay: Ints, draw: Ints) -> Floats:
        return np.asarray(sign * excess(u, replay, draw))

    return signed


def root_between(excess: Callable[..., Floats], low: Floats, high: Floats, *index: Ints) -> Floats:
    """Roots between `low` and `high`, one per element.

    Of the last bracket, the point is returned at which `excess` is not positive, so that the limit
    holds there.

    Parameters
    ----------
    excess : callable
        Of the budgets and of the elements' indices `index`.
    low, high : array, shape (elements,)
    """
    if not len(low):
        return low
    found = find_root(excess, (low, high), args=index, tolerances={"xatol": 1e-12, "xrtol": 1e-12})
    left, right = found.bracket
    end = np.where(found.f_bracket[0] <= 0, left, right)
    return np.asarray(np.where(found.f_x <= 0, found.x, end))
