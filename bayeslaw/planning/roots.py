"""Feasible budgets of laws without a closed form: brackets on a fine grid of D, then roots."""

from functools import partial
from typing import Any

import numpy as np
from scipy.optimize import elementwise

from bayeslaw.planning.curves import NODES, Slice, find_minimum
from bayeslaw.planning.intervals import Floats

find_root: Any = elementwise.find_root  # its type knows no `args`
HIGH = 1e300
"""In the place of infinity, which root finding refuses."""
FINE = {"xatol": 1e-12, "xrtol": 1e-12}


def rooted(
    here: Slice, there: Slice | None, weight: Any, room: Any
) -> tuple[Floats, Floats | None]:
    """Bracket on `NODES`, split brackets at extrema that cross the limit, find the roots."""
    shape = here.shape
    room, weight = np.broadcast_to(room, shape), np.broadcast_to(weight, shape)

    def excess(u: Any, row: Any = None, draw: Any = None) -> Any:
        if row is None:
            matched = 0.0 if there is None else weight * there.reach(u)
            return np.broadcast_to(np.minimum(here.reach(u) - matched - room, HIGH), shape)
        at = 0 * row
        matched = 0.0 if there is None else weight[row, draw] * there.take(at, draw).reach(u)
        return np.minimum(here.take(row, draw).reach(u) - matched - room[row, draw], HIGH)

    cells, dips = _scan(excess)
    cell, row, draw = cells
    ends = [crossing(excess, NODES[cell], NODES[cell + 1], row, draw)]
    owners = [row * shape[1] + draw]
    for sign, (middle, row, draw) in dips.items():
        if not len(middle):
            continue
        low, mid, high = (NODES[middle + i] for i in (-1, 0, 1))
        least = find_minimum(partial(_turned, excess, sign), (low, mid, high), args=(row, draw)).x
        hit = sign * excess(least, row, draw) <= 0
        row, draw, low, high, least = row[hit], draw[hit], low[hit], high[hit], least[hit]
        for pair in ((low, least), (least, high)):
            ends.append(crossing(excess, *pair, row, draw))
            owners.append(row * shape[1] + draw)
    owner, end = np.concatenate(owners), np.concatenate(ends)
    order = np.lexsort((end, owner))
    owner, end = owner[order], end[order]
    # The k-th crossing of a set opens or closes it, by whether it holds at the first node.
    place = np.arange(len(owner)) - np.searchsorted(owner, owner)
    begins = (excess(NODES[0]) <= 0).ravel()
    slots = place + begins[owner]
    pieces = int(slots.max(initial=0)) // 2 + 1
    both = np.full((2 * pieces, begins.size), np.inf)
    both[0, begins] = -np.inf
    both[slots, owner] = end
    both = both.reshape(2 * pieces, *shape)
    return both[::2], both[1::2]


def _scan(excess: Any) -> tuple[Any, dict[float, Any]]:
    """Where the limit is crossed between nodes, and where it may be crossed twice around one.

    Each is (node, row, draw); the second by sign, 1 for a dip above the limit (a valley between
    its neighbours) and -1 for a bump below it.
    """
    crossed: list[Any] = []
    turned: dict[float, list[Any]] = {1.0: [], -1.0: []}
    last, fell = excess(NODES[0]), None
    for node in range(1, len(NODES)):
        value = excess(NODES[node])
        falls = value < last
        crossed.append(_places(node - 1, (value > 0) != (last > 0)))
        if fell is not None:
            turned[1.0].append(_places(node - 1, fell & ~falls & (last > 0)))
            turned[-1.0].append(_places(node - 1, ~fell & falls & (last < 0)))
        last, fell = value, falls
    return _together(crossed), {sign: _together(found) for sign, found in turned.items()}


def _places(node: int, found: Any) -> Any:
    row, draw = np.nonzero(found)
    return np.full(len(row), node), row, draw


def _together(parts: list[Any]) -> Any:
    return [np.concatenate(values) for values in zip(*parts, strict=True)]


def _turned(excess: Any, sign: float, u: Any, row: Any, draw: Any) -> Any:
    return sign * excess(u, row, draw)


def crossing(excess: Any, low: Floats, high: Floats, *args: Any) -> Floats:
    """Roots between `low` and `high`, one per element; the end where `excess` is not positive."""
    if not len(low):
        return low
    found = find_root(excess, (low, high), args=args, tolerances=FINE)
    left, right = found.bracket
    end = np.where(found.f_bracket[0] <= 0, left, right)
    return np.asarray(np.where(found.f_x <= 0, found.x, end))
