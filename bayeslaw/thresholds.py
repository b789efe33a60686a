r"""Feasible budgets: for each draw and replay ratio, the set of D where a loss meets a limit.

A budget is ``u = log ATPP = log(D / N)``. Where a law has one term in D whose log is a polynomial
of degree 2 or less in log D, the set is closed form; the polynomial is read off the term's own
`shape`, and checked at further points. Any other law is bracketed on a fine grid of D and
its roots are bisected.

A D-term that is concave in log D rises, then falls. Left of its peak it is held at its peak:
extrapolated to D = 0 such a term vanishes, and would promise every target for nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw.intervals import Floats, Intervals, intervals
from bayeslaw.laws import Law
from bayeslaw.terms import Term, Values

NODES = np.linspace(np.log(1e-9), np.log(1e15), 193)
"""Where laws without a closed form are bracketed, in log ATPP; beyond, they stay as at the end."""
STEP = 8.0
"""Distance of the points that fix a term's polynomial: wide, so that rounding stays small."""


@dataclass(frozen=True)
class Curve:
    """A law at one model and stage, for many draws: a loss as a function of D and r.

    Parameters
    ----------
    law : Law
    p : mapping
        Term sizes at the point `at`, in nats, and exponents, each of shape (draws,).
    at : mapping
        Logarithms of the covariates where the sizes are stated.
    params, ptpp : float
        Parameters N of the model, and pre-training tokens per parameter.
    """

    law: Law
    p: Values
    at: Values
    params: float
    ptpp: float

    @property
    def draws(self) -> int:
        """Number of draws."""
        return len(self.p["E"])

    def take(self, index: Any) -> "Curve":
        """The curve for some of the draws."""
        return replace(self, p={name: value[index] for name, value in self.p.items()})

    def sliced(self, replay: Sequence[float] | Floats) -> "Slice":
        """The curve at given replay ratios."""
        model = {"params": self.params, "tokens": self.params, "ptpp": self.ptpp}
        rows = pd.DataFrame({"replay": np.asarray(replay, float)}).assign(**model)
        x = {
            name: values[:, None] if name in ("replay", "barrier") else values[:1, None]
            for name, values in self.law.covariates(rows).items()
        }
        x["share"] = rows["replay"].to_numpy()[:, None]  # in no term: keeps the number of ratios
        bare = Slice(self.law, self.p, self.at, x)
        bends, peaks = {term.coefficient: bare.bend(term) for term in bare.data}, {}
        for name, bend in bends.items():
            if bend is not None and (bend[1] < 0).any():
                c1, c2 = bend
                with np.errstate(divide="ignore", invalid="ignore"):
                    peaks[name] = np.where(c2 < 0, -0.5 * c1 / c2, -np.inf)
        return replace(bare, bends=bends, peaks=peaks)

    def loss(self, replay: Sequence[float] | Floats, budget: float | Floats) -> Floats:
        """Loss in nats per token, shape (replays, draws), at a budget in log ATPP."""
        here = self.sliced(replay)
        value = here.rest() + here.reach(budget)
        return np.broadcast_to(value, (len(replay), self.draws))

    def least(self, replay: float) -> Floats:
        """Smallest loss over all budgets, shape (draws,): the asymptote where loss falls in D."""
        here = self.sliced([replay])
        if here.closed:
            values = here.rest() + np.zeros((1, self.draws))
            for term in here.data:
                c0, c1, c2 = here.polynomial(term)
                with np.errstate(divide="ignore", invalid="ignore"):
                    level = np.where(c2 > 0, -0.25 * c1**2 / c2, -np.inf)
                level = np.where((c1 == 0) & (c2 == 0), 0.0, level)
                values = values + self.p[term.coefficient] * np.exp(c0 + level)
            return np.asarray(values[0])
        values = [np.broadcast_to(here.rest() + here.reach(u), (1, self.draws)) for u in NODES]
        return np.asarray(np.min(values, 0)[0])


@dataclass(frozen=True)
class Slice:
    """A curve at fixed replay ratios; arrays broadcast to (replays, draws)."""

    law: Law
    p: Values
    at: Values
    x: Values
    bends: Mapping[str, tuple[Any, Any] | None] = field(default_factory=dict)
    peaks: Values = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int]:
        """Replay ratios and draws."""
        return max(len(values) for values in self.x.values()), len(self.p["E"])

    @property
    def data(self) -> list[Term]:
        """The terms in D."""
        return [term for term in self.law.terms if "tokens" in term.covariates]

    @property
    def closed(self) -> bool:
        """Whether the feasible set is closed form."""
        return len(self.bends) < 2 and None not in self.bends.values()

    def log(self, term: Term, budget: Any) -> Any:
        """Log of a term over its reference value."""
        return term.shape(self.p, {**self.x, "tokens": self.x["tokens"] + budget}, self.at, np)

    def rest(self) -> Any:
        """Everything but the terms in D."""
        others = [term for term in self.law.terms if "tokens" not in term.covariates]
        return self.p["E"] + sum(
            (self.p[t.coefficient] * np.exp(self.log(t, 0.0)) for t in others), np.zeros((1, 1))
        )

    def reach(self, budget: Any) -> Any:
        """The terms in D, each held at its peak left of it."""
        total = np.zeros((1, 1)) if np.ndim(budget) == 0 else 0.0
        for term in self.data:
            held = np.maximum(budget, self.peaks.get(term.coefficient, -np.inf))
            total = total + self.p[term.coefficient] * np.exp(self.log(term, held))
        return total

    def polynomial(self, term: Term) -> tuple[Any, Any, Any]:
        """Coefficients of ``log term = c0 + c1 u + c2 u^2``, over its reference value."""
        bend = self.bends[term.coefficient]
        assert bend is not None
        return self.log(term, 0.0), *bend

    def bend(self, term: Term) -> tuple[Any, Any] | None:
        """c1 and c2, shape (1 or replays, draws); None if the term's log is no quadratic.

        They are found at the first, middle and last replay ratio, and anew at all of them only
        where these differ.
        """
        last = self.shape[0] - 1
        probe = self.rows([0, last // 2, last])
        bend = probe._bend(term)
        if bend is None:
            return None
        if all(np.allclose(c, c[:1], 1e-12, 1e-14) for c in bend):
            return bend[0][:1], bend[1][:1]
        return self._bend(term)

    def _bend(self, term: Term) -> tuple[Any, Any] | None:
        low, mid, high = (self.log(term, u) for u in (-STEP, 0.0, STEP))
        c1, c2 = (high - low) / (2 * STEP), (high - 2 * mid + low) / (2 * STEP**2)
        size = 1 + np.maximum(np.abs(high), np.abs(low))
        for u in (-0.6 * STEP, 0.3 * STEP, 1.4 * STEP):
            miss = np.abs(self.log(term, u) - (mid + u * (c1 + u * c2)))
            if not (miss <= 1e-9 * size).all():
                return None
        c2 = np.where(np.abs(c2) * STEP**2 > 1e-13 * size, c2, 0.0)  # rounding is no curvature
        return np.atleast_2d(c1), np.atleast_2d(c2)

    def rows(self, index: Any) -> "Slice":
        """The slice at some of its replay ratios."""

        def pick(values: Any) -> Any:
            return values[index] if len(values) > 1 else values

        return replace(
            self,
            x={name: pick(value) for name, value in self.x.items()},
            bends={n: bend and (pick(bend[0]), pick(bend[1])) for n, bend in self.bends.items()},
            peaks={name: pick(value) for name, value in self.peaks.items()},
        )

    def take(self, row: Any, draw: Any) -> "Slice":
        """Single elements of (replays, draws), as arrays of shape (elements,)."""

        def pick(values: Any) -> Any:
            rows, draws = np.shape(values)
            return values[row if rows > 1 else 0, draw if draws > 1 else 0]

        return Slice(
            self.law,
            {name: value[draw] for name, value in self.p.items()},
            self.at,
            {name: pick(value) for name, value in self.x.items()},
            peaks={name: pick(value) for name, value in self.peaks.items()},
        )


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
        lower, upper = _rooted(here, there, weight, room) if sets is None else sets
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
    lower, upper = np.empty_like(level), np.empty_like(level)
    for draws, solve in ((steep, _falling), (~steep, _general)):
        if draws.any():
            bends = (np.broadcast_to(c, (len(c), len(draws)))[:, draws] for c in (c1, c2))
            lower[:, draws], upper[:, draws] = solve(level[:, draws], *bends)
    return lower, upper


def _falling(level: Any, c1: Any, c2: Any) -> tuple[Any, Any]:
    """`_under` where the polynomial falls at u = 0: both curvatures by one formula."""
    root = np.sqrt(c1**2 + 4 * c2 * level)
    lower = 2 * level / (c1 - root)  # on the falling branch, without cancellation
    upper = np.where(c2 > 0, 0.5 * (root - c1) / c2, np.inf)
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


def _rooted(here: Slice, there: Slice | None, weight: Any, room: Any) -> Ends:
    """Bracket on `NODES`, split brackets at extrema that cross the limit, bisect."""
    shape = here.shape
    room, weight = np.broadcast_to(room, shape), np.broadcast_to(weight, shape)

    def excess(u: Any, row: Any = None, draw: Any = None) -> Any:
        if row is None:
            matched = 0.0 if there is None else weight * there.reach(u)
            return np.broadcast_to(here.reach(u) - matched - room, shape)
        at = 0 * row
        matched = 0.0 if there is None else weight[row, draw] * there.take(at, draw).reach(u)
        return here.take(row, draw).reach(u) - matched - room[row, draw]

    values = np.stack([excess(node) for node in NODES])
    ends, owners = [], []
    cell, row, draw = np.nonzero((values[1:] > 0) != (values[:-1] > 0))
    ends.append(_bisect(excess, NODES[cell], NODES[cell + 1], row, draw))
    owners.append(row * shape[1] + draw)
    for sign in (1.0, -1.0):  # a dip below 0, or a bump above it, between nodes
        side = sign * values
        turn = (side[1:-1] > 0) & (side[1:-1] <= side[2:]) & (side[1:-1] <= side[:-2])
        cell, row, draw = np.nonzero(turn & (side[2:] > 0) & (side[:-2] > 0))
        low, high = NODES[cell], NODES[cell + 2]
        least = _lowest(lambda u, r=row, d=draw, s=sign: s * excess(u, r, d), low, high)
        hit = sign * excess(least, row, draw) <= 0
        row, draw, low, high, least = row[hit], draw[hit], low[hit], high[hit], least[hit]
        for a, b in ((low, least), (least, high)):
            ends.append(_bisect(excess, a, b, row, draw))
            owners.append(row * shape[1] + draw)
    owner, end = np.concatenate(owners), np.concatenate(ends)
    order = np.lexsort((end, owner))
    owner, end = owner[order], end[order]
    # The k-th crossing of a set opens or closes it, by whether it holds at the first node.
    place = np.arange(len(owner)) - np.searchsorted(owner, owner)
    begins = (values[0] <= 0).ravel()
    slots = place + begins[owner]
    pieces = int(slots.max(initial=0)) // 2 + 1
    both = np.full((2 * pieces, values[0].size), np.inf)
    both[0, begins] = -np.inf
    both[slots, owner] = end
    both = both.reshape(2 * pieces, *shape)
    return both[::2], both[1::2]


def _bisect(excess: Any, low: Floats, high: Floats, row: Any, draw: Any) -> Floats:
    """Roots between `low` and `high`, one per element; the end inside the feasible set."""
    fails = excess(low, row, draw) > 0
    for _ in range(60):
        middle = 0.5 * (low + high)
        same = (excess(middle, row, draw) > 0) == fails
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    return np.where(fails, high, low)


def _lowest(value: Any, low: Floats, high: Floats) -> Floats:
    """Minimum of a function with one valley between `low` and `high`: golden section."""
    ratio = 0.5 * (np.sqrt(5) - 1)
    for _ in range(45):
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        left = value(a) <= value(b)
        low, high = np.where(left, low, a), np.where(left, b, high)
    return 0.5 * (low + high)
