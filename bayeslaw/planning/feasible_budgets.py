r"""Budgets at which a loss meets its limit, for each draw and replay ratio.

A budget is ``u = log ATPP = log(D / N)``. Where a law has one data term and its log is a polynomial
of degree 2 or less in u, the set of budgets has a closed form: the solutions of a quadratic
inequality. The polynomial comes from the term's own formula (`bayeslaw.planning.loss_curves`).
For any other law the ends of the set are found numerically (`bayeslaw.planning.roots`).

In this module K, or `factor`, is the size of the data term, and ``q(u) = c0 + c1 u + c2 u^2`` its
log over that size.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bayeslaw.common.arrays import Floats
from bayeslaw.planning.intervals import Intervals, intervals
from bayeslaw.planning.loss_curves import NODES, LossCurve, ReplaySlice, losses_at_nodes
from bayeslaw.planning.pooled_curves import PooledCurve, PooledSlice
from bayeslaw.planning.roots import budgets_by_roots

type Ends = tuple[Floats, Floats | None]
"""Lower and upper ends of intervals; without upper ends they are unbounded above."""


@dataclass(frozen=True)
class Bound:
    """A limit: ``L(D, r) - weight L(D, 1) <= limit``, draw by draw.

    Parameters
    ----------
    curve : LossCurve or PooledCurve
    limit : array, shape (draws,)
        In nats per token.
    weight : array, shape (draws,), optional
        Without it, the loss of pure replay does not count.
    """

    curve: LossCurve | PooledCurve
    limit: Floats
    weight: Floats | None = None

    def budgets(self, replay: Sequence[float] | Floats, nodes: Floats) -> Intervals:
        """Budgets that meet the limit."""
        here = self.curve.at_replay(replay)
        if self.weight is None:
            return budgets_below(here, self.limit, nodes=nodes)
        return budgets_below(here, self.limit, self.curve.at_replay([1.0]), self.weight, nodes)

    def excess(self, replay: Sequence[float] | Floats, budget: float) -> Floats:
        """Excess over the limit at a budget in log ATPP, nats per token, (replays, draws)."""
        loss = self.curve.loss(replay, budget) - self.limit
        return loss if self.weight is None else loss - self.weight * self.curve.loss([1.0], budget)

    def excess_at_nodes(self, replay: Floats) -> Floats:
        """`excess` at `NODES`, shape (nodes, replays, draws)."""
        loss = losses_at_nodes(self.curve, replay) - self.limit
        if self.weight is not None:
            loss -= self.weight * losses_at_nodes(self.curve, np.ones(1))
        return loss


def budgets_below(
    here: ReplaySlice | PooledSlice,
    limit: float | Floats,
    pure: ReplaySlice | PooledSlice | None = None,
    weight: float | Floats = 0.0,
    nodes: Floats = NODES,
) -> Intervals:
    """Budgets where ``L(D, r) <= limit``, or ``L(D, r) - weight L(D, 1) <= limit``.

    Parameters
    ----------
    here : ReplaySlice
        The law at the replay ratios r.
    limit : float or array, shape (draws,)
        In nats per token.
    pure : ReplaySlice, optional
        The law in pure replay, ``r = 1``.
    weight : float or array, shape (draws,)
    nodes : array
        Log ATPP between which laws without a closed form are bracketed.

    Returns
    -------
    Intervals

    Examples
    --------
    ``1 + D^-0.5 <= 1.1`` holds from D = 100 on, for a model of one parameter:

    >>> from bayeslaw.laws.lawfiles import load_law
    >>> from bayeslaw.laws.terms import ORIGIN
    >>> from bayeslaw.planning.loss_curves import LossCurve
    >>> p = {"E": 1.0, "A": 0.0, "alpha": 0.3, "B": 1.0, "beta": 0.5}
    >>> draws = {name: np.array([value]) for name, value in p.items()}
    >>> curve = LossCurve(load_law("chinchilla"), draws, ORIGIN, params=1.0, ptpp=20.0)
    >>> sets = budgets_below(curve.at_replay([0.5]), 1.1)
    >>> np.exp(sets.lower).round(6).tolist()
    [[[100.0]]]
    """
    pure_terms = 0.0 if pure is None else weight * pure.constant_terms()
    margin = limit - here.constant_terms() + pure_terms
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ends: Ends | None = _closed_form(here, pure, weight, margin)
        if ends is None:
            ends = budgets_by_roots(here, pure, weight, margin, nodes)
        lower, upper = ends
        full = len(lower), *here.shape
        lower = np.broadcast_to(lower, full)
        return intervals(lower, None if upper is None else np.broadcast_to(upper, full))


def _closed_form(
    here: ReplaySlice | PooledSlice,
    pure: ReplaySlice | PooledSlice | None,
    weight: float | Floats,
    margin: Floats,
) -> Ends | None:
    """Budgets where the data terms are at most `margin`; None if there is no closed form.

    With `pure`, the two data terms must have the same c1 and c2, so that their difference is one
    term of size K.
    """
    if not (isinstance(here, ReplaySlice) and here.closed_form) or isinstance(pure, PooledSlice):
        return None
    if not here.data:
        return np.where(margin >= 0, -np.inf, np.inf)[None], None
    term = here.data[0]
    size = here.p[term.coefficient]
    c0, c1, c2 = here.polynomial(term)
    if pure is None:
        level = np.log(np.maximum(margin, 0.0)) - (np.log(size) + c0)
        if not size.all():
            level = np.where((size == 0) & (margin >= 0), np.inf, level)
            level = np.where((size == 0) & (margin < 0), -np.inf, level)
        lower, upper = _polynomial_below(level, c1, c2)
        return lower[None], None if upper is None else upper[None]
    other = pure.polynomial(term)
    if not all(np.allclose(a, b, 1e-12, 1e-14) for a, b in zip((c1, c2), other[1:], strict=True)):
        return None
    # K exp(q) <= margin, with K of either sign.
    factor = size * (np.exp(c0) - weight * np.exp(other[0]))
    level = np.where(margin * factor > 0, np.log(margin / factor), -np.inf)
    lower, upper = _polynomial_below(level, c1, c2)
    upper = np.full_like(lower, np.inf) if upper is None else upper
    # With K < 0 the condition is exp(q) >= margin / K: the complement of the interval.
    always = (factor <= 0) & (margin >= 0)
    never = (factor == 0) & (margin < 0)
    complement = (factor < 0) & (margin < 0)
    empty = lower == np.inf
    lower_1 = np.where(always | complement, -np.inf, np.where(never, np.inf, lower))
    upper_1 = np.where(
        always | never | complement & empty, np.inf, np.where(complement, lower, upper)
    )
    lower_2 = np.where(complement & ~empty, upper, np.inf)  # inf if there is no second interval
    return np.stack([lower_1, lower_2]), np.stack([upper_1, np.full_like(lower_2, np.inf)])


def _polynomial_below(level: Floats, c1: Floats, c2: Floats) -> Ends:
    """Ends of ``c1 u + c2 u^2 <= level``.

    Where c2 < 0, the polynomial equals its maximum for all u below that of the maximum; see
    `bayeslaw.planning.loss_curves`.
    """
    if not np.any(c2) and (c1 < 0).all():
        return level / c1, None
    negative = (c1 < 0).all(0)
    if negative.all():
        return _negative_slope(level, c1, c2)
    lower, upper = np.empty_like(level), np.empty_like(level)
    for draws, solve in ((negative, _negative_slope), (~negative, _any_slope)):
        if draws.any():
            own = (np.broadcast_to(c, (len(c), len(draws)))[:, draws] for c in (c1, c2))
            lower[:, draws], upper[:, draws] = solve(level[:, draws], *own)
    return lower, upper


def _negative_slope(level: Floats, c1: Floats, c2: Floats) -> tuple[Floats, Floats]:
    """`_polynomial_below` where c1 < 0: one formula for either sign of c2.

    Most of a plan's time is spent here, so the arithmetic is done in place.
    """
    root = 4 * c2 * level
    root += c1**2
    np.sqrt(root, out=root)
    root -= c1
    # The root on the falling branch in the form without cancellation.
    lower = -2 * level
    lower /= root
    upper = root * np.where(c2 > 0, 0.5 / c2, np.inf)
    # No real root, or an infinite level.
    row, draw = np.nonzero(np.isnan(lower))
    odd, curvature = level[row, draw], c2[row if len(c2) > 1 else 0, draw]
    none = (odd == -np.inf) | (curvature > 0) & (odd < np.inf)
    lower[row, draw] = np.where(none, np.inf, -np.inf)
    upper[row, draw] = np.inf
    return lower, upper


def _any_slope(level: Floats, c1: Floats, c2: Floats) -> tuple[Floats, Floats]:
    """`_polynomial_below` for coefficients of any sign."""
    disc = c1**2 + 4 * c2 * level
    s = -0.5 * (c1 + np.copysign(np.sqrt(np.maximum(disc, 0)), c1))
    one, two = s / c2, -level / s  # both roots without cancellation, also as c2 goes to 0
    two = np.where(s == 0, one, two)
    linear = c2 == 0
    near = np.where(linear, level / c1, np.minimum(one, two))
    far = np.where(linear, level / c1, np.maximum(one, two))
    lower = np.where(c2 > 0, near, np.where((c2 < 0) | (c1 < 0), far, -np.inf))
    upper = np.where(c2 > 0, far, np.where((c2 < 0) | (c1 < 0), np.inf, far))
    constant = linear & (c1 == 0)
    always = (level == np.inf) | (c2 < 0) & (disc <= 0) | constant & (level >= 0)
    never = (level == -np.inf) | (c2 > 0) & (disc < 0) | constant & (level < 0)
    lower = np.where(always, -np.inf, np.where(never, np.inf, lower))
    return lower, np.where(always | never, np.inf, upper)
