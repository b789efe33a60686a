r"""Feasible budgets: for each draw and replay ratio, the set of D where a loss meets a limit.

A budget is ``u = log ATPP = log(D / N)``. Where a law has one term in D whose log is a polynomial
of degree 2 or less in log D, the set is closed form; the polynomial is read off the term's own
`shape` (`bayeslaw.planning.curves`). Any other law is bracketed on a fine grid of D and its roots
are bisected (`bayeslaw.planning.roots`).
"""

from typing import Any

import numpy as np

from bayeslaw.planning.curves import Slice
from bayeslaw.planning.intervals import Floats, Intervals, intervals
from bayeslaw.planning.roots import rooted


def below(here: Slice, limit: Any, there: Slice | None = None, weight: Any = 0.0) -> Intervals:
    """Budgets where ``L(D, r) <= limit``, or ``L(D, r) - weight L(D, 1) <= limit``.

    Parameters
    ----------
    here : Slice
        The law at the replay ratios r.
    limit : float or array, shape (draws,)
        In nats per token.
    there : Slice, optional
        The law in pure replay, ``r = 1``.
    weight : float or array, shape (draws,)

    Returns
    -------
    Intervals
    """
    room = limit - here.rest() + (0.0 if there is None else weight * there.rest())
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        sets = _closed(here, there, weight, room)
        lower, upper = rooted(here, there, weight, room) if sets is None else sets
        full = len(lower), *here.shape
        lower = np.broadcast_to(lower, full)
        return intervals(lower, None if upper is None else np.broadcast_to(upper, full))


type Ends = tuple[Floats, Floats | None]


def _closed(here: Slice, there: Slice | None, weight: Any, room: Any) -> Ends | None:
    """Closed form: one term in D, log-quadratic, of the same bend at r and in pure replay."""
    if not here.closed:
        return None
    if not here.data:
        return np.where(room >= 0, -np.inf, np.inf)[None], None
    term = here.data[0]
    size = here.p[term.coefficient]
    c0, c1, c2 = here.polynomial(term)
    if there is None:
        level = np.log(np.maximum(room, 0.0)) - (np.log(size) + c0)
        if not size.all():
            level = np.where((size == 0) & (room >= 0), np.inf, level)
            level = np.where((size == 0) & (room < 0), -np.inf, level)
        lower, upper = _under(level, c1, c2)
        return lower[None], None if upper is None else upper[None]
    other = there.polynomial(term)
    if not all(np.allclose(a, b, 1e-12, 1e-14) for a, b in zip((c1, c2), other[1:], strict=True)):
        return None
    # K exp(q) <= room, K of either sign.
    factor = size * (np.exp(c0) - weight * np.exp(other[0]))
    level = np.where(room * factor > 0, np.log(room / factor), -np.inf)
    lower, upper = _under(level, c1, c2)
    upper = np.full_like(lower, np.inf) if upper is None else upper
    # K < 0 turns it into exp(q) >= room / K: all but the inside of the interval.
    free = (factor <= 0) & (room >= 0)
    never = (factor == 0) & (room < 0)
    outside = (factor < 0) & (room < 0)
    empty = lower == np.inf
    first = np.where(free | outside, -np.inf, np.where(never, np.inf, lower))
    until = np.where(free | never | outside & empty, np.inf, np.where(outside, lower, upper))
    again = np.where(outside & ~empty, upper, np.inf)  # inf: the interval has no end
    return np.stack([first, again]), np.stack([until, np.full_like(again, np.inf)])


def _under(level: Any, c1: Any, c2: Any) -> Ends:
    """Ends of ``c1 u + c2 u^2 <= level``, the polynomial held at its peak left of it."""
    if not np.any(c2) and (c1 < 0).all():
        return level / c1, None
    steep = (c1 < 0).all(0)
    if steep.all():
        return _falling(level, c1, c2)
    lower, upper = np.empty_like(level), np.empty_like(level)
    for draws, solve in ((steep, _falling), (~steep, _general)):
        if draws.any():
            bends = (np.broadcast_to(c, (len(c), len(draws)))[:, draws] for c in (c1, c2))
            lower[:, draws], upper[:, draws] = solve(level[:, draws], *bends)
    return lower, upper


def _falling(level: Any, c1: Any, c2: Any) -> tuple[Any, Any]:
    """`_under` where the polynomial falls at u = 0: both curvatures by one formula."""
    width = 4 * c2 * level  # in place from here on: this is the planner's innermost work
    width += c1**2
    np.sqrt(width, out=width)
    width -= c1
    lower = -2 * level
    lower /= width  # on the falling branch, without cancellation
    upper = width * np.where(c2 > 0, 0.5 / c2, np.inf)
    row, draw = np.nonzero(np.isnan(lower))
    odd, bend = level[row, draw], c2[row if len(c2) > 1 else 0, draw]
    lower[row, draw] = np.where((odd == -np.inf) | (bend > 0) & (odd < np.inf), np.inf, -np.inf)
    upper[row, draw] = np.inf
    return lower, upper


def _general(level: Any, c1: Any, c2: Any) -> tuple[Any, Any]:
    """`_under` for polynomials of any sign."""
    disc = c1**2 + 4 * c2 * level
    s = -0.5 * (c1 + np.copysign(np.sqrt(np.maximum(disc, 0)), c1))
    one, two = s / c2, -level / s  # without cancellation, also as c2 goes to 0
    two = np.where(s == 0, one, two)
    straight = c2 == 0
    near = np.where(straight, level / c1, np.minimum(one, two))
    far = np.where(straight, level / c1, np.maximum(one, two))
    lower = np.where(c2 > 0, near, np.where((c2 < 0) | (c1 < 0), far, -np.inf))
    upper = np.where(c2 > 0, far, np.where((c2 < 0) | (c1 < 0), np.inf, far))
    flat = straight & (c1 == 0)
    always = (level == np.inf) | (c2 < 0) & (disc <= 0) | flat & (level >= 0)
    never = (level == -np.inf) | (c2 > 0) & (disc < 0) | flat & (level < 0)
    lower = np.where(always, -np.inf, np.where(never, np.inf, lower))
    return lower, np.where(always | never, np.inf, upper)
