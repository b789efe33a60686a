"""Latent loss of each draw at any N and D, and searches over splits of a budget and over budgets.

A budget of C FLOPs trains N parameters on D tokens with C = 6 N D [1]_. At a given C the loss
depends on D / N alone. It is evaluated on a grid in log(D / N) and at the knots of walking
exponents, because with these it may have several local minima; each of them is then refined by
Chandrupatla's method.

References
----------
.. [1] J. Hoffmann et al. (2022). Training compute-optimal large language models. arXiv:2203.15556.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.optimize.elementwise import find_minimum

from bayeslaw.common.arrays import Bools, Floats, Ints
from bayeslaw.common.errors import BayeslawError, LawError
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.law import Law
from bayeslaw.planning.feasible_budgets import LARGE, root_between
from bayeslaw.tables.table import grid
from bayeslaw.tables.validation import check_units

FLOPS = 6.0
"""FLOPs per parameter and token."""
SEARCH = (1e-3, 1e6)
"""Tokens per parameter among which the best is searched."""
FLOPS_REACH = (1e-2, 1e9)
"""Budgets searched for a loss, over the least and the greatest budget of the training rows."""
RATIO_STEP = 0.15
"""Distance of grid points in log(D / N). Of two minima that are closer, one may be missed."""
EDGE = 1e-4
"""Distance of a grid point beside each bound. A minimum that is nearer is taken to be at it."""
FLOPS_STEP = 1.0
"""Distance of grid points in log C."""
STEPS = 50
"""Most steps from a budget to the least that reaches a loss."""
TOLERANCE = 1e-10
"""Change of log C at which these steps end."""
BLOCK = 500
"""Draws of which a grid is evaluated at once."""

type Range = tuple[float, float]


@dataclass(frozen=True)
class Surface:
    """Loss as a function of log N and log D, for many draws.

    Parameters
    ----------
    law : Law
        With its discrepancy, extended to the range where the surface is used.
    p : mapping of str to array, shape (draws, 1) or (draws, 1, knots)
        Arguments of `Law.loss`, stated at the point `at`.
    at : mapping of str to float
    fixed : mapping of str to float
        Logarithms of the other covariates.
    """

    law: Law
    p: Mapping[str, Floats]
    at: Mapping[str, float]
    fixed: Mapping[str, float]

    @property
    def draws(self) -> int:
        """Number of draws."""
        return len(self.p["E"])

    def take(self, draws: Ints | slice) -> "Surface":
        """The surface of some of the draws."""
        return replace(self, p={name: value[draws] for name, value in self.p.items()})

    def knots(self, along: str, over: str = "") -> Floats:
        """Log N ("params"), log D ("tokens") or log(D/N) where exponents change, shape (knots,).

        The last is that of ``along="tokens", over="params"``.
        """
        places = [
            walk.knots.positions + self.at[along] - (self.at[over] if over else 0.0)
            for walk in self.law.walks
            if (walk.along, walk.over) == (along, over) and walk.knots is not None
        ]
        unit = np.log(self.law.token_unit) if along == "tokens" else 0.0
        return np.asarray(np.unique(np.concatenate([*places, []])) + unit)

    def loss(self, log_params: Floats, log_tokens: Floats) -> Floats:
        """Loss in nats per token, (draws, points); arguments are (points,) or (draws, points)."""
        n, d = np.broadcast_arrays(log_params, log_tokens)
        x = {name: np.full(n.shape, value) for name, value in self.fixed.items()}
        x |= {"params": n, "tokens": d - np.log(self.law.token_unit)}
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            loss = self.law.loss(self.p, x, self.at)
        shape = (self.draws, n.shape[-1])
        return np.asarray(np.fmin(np.broadcast_to(loss, shape), LARGE))


def surface_of(
    posterior: Posterior,
    params: Range,
    tokens: Range,
    *,
    replay: float | None = None,
    ptpp: float | None = None,
) -> Surface:
    """Return the surface of a posterior, with its discrepancy extended to a range of N and D.

    Raises
    ------
    LawError
        If a value is lacking, the law does not depend on it, or it starts from a base's loss.
    """
    if posterior.law.departure:
        raise LawError(
            f"law {posterior.law.name} starts from the loss of a base, of one N and P; derive "
            "from the fit of a law without one, such as form1n."
        )
    others = {"replay": replay, "ptpp": ptpp}
    given = {name: value for name, value in others.items() if value is not None}
    columns = posterior.law.columns
    for name in others:
        if name in columns and name not in given:
            raise LawError(f"law {posterior.law.name} depends on {name}; give it, as {name}=...")
        if name in given and name not in columns:
            raise LawError(f"law {posterior.law.name} does not depend on {name}; leave it out.")
    check_units(pd.DataFrame([given]), "derive", posterior.table.frame)
    frame = grid(params=params, tokens=tokens, **given)
    law, q = posterior.extended(frame)
    x = law.covariates(frame)
    fixed = {name: float(x[name][0]) for name in x if name not in ("params", "tokens")}
    return Surface(law, law.amounts(q, posterior.at), posterior.at, fixed)


def surface_at(
    posterior: Posterior,
    budgets: Range,
    search: Range,
    replay: float | None = None,
    ptpp: float | None = None,
) -> Surface:
    """Return the surface over all models of the budgets and tokens per parameter searched."""
    if lacking := {"params", "tokens"} - set(posterior.law.columns):
        raise LawError(
            f"law {posterior.law.name} does not depend on {', '.join(sorted(lacking))}; "
            "a compute-optimal split needs a law of both params and tokens."
        )
    low, high = search
    if not 0 < low < high < math.inf:
        raise BayeslawError(
            f"search {low:g} to {high:g} is not a range of tokens per parameter; "
            "write the least first, such as (0.1, 1e4)."
        )
    least, most = budgets[0] / FLOPS, budgets[1] / FLOPS
    params = (math.sqrt(least / high), math.sqrt(most / low))
    tokens = (math.sqrt(least * low), math.sqrt(most * high))
    return surface_of(posterior, params, tokens, replay=replay, ptpp=ptpp)


def training_flops(fit: Posterior) -> Floats:
    """FLOPs of the training rows, 6 N D."""
    rows = fit.table.frame
    return (FLOPS * rows["params"] * rows["tokens"]).to_numpy(float)


def check_budgets(fits: Sequence[Posterior], flops: Sequence[float]) -> None:
    """Raise `TableError` for budgets in another unit than FLOPs."""
    for fit in fits:
        fitted = pd.DataFrame({"flops": training_flops(fit)})
        check_units(pd.DataFrame({"flops": flops}), "derive", fitted)


def reach_of(fits: Sequence[Posterior]) -> Range:
    """Range of budgets that is searched for a loss."""
    flops = np.concatenate([training_flops(fit) for fit in fits])
    return FLOPS_REACH[0] * float(flops.min()), FLOPS_REACH[1] * float(flops.max())


@dataclass(frozen=True)
class Optimum:
    """Best log(D / N) of each draw, its loss, and whether it is a bound; each of shape (draws,)."""

    log_ratio: Floats
    loss: Floats
    at_bound: Bools


def optimum(surface: Surface, log_flops: float | Floats, search: Range) -> Optimum:
    """Best tokens per parameter of each draw at a budget, one for all draws or one for each."""
    budget = np.broadcast_to(log_flops, surface.draws)
    blocks = [slice(i, i + BLOCK) for i in range(0, surface.draws, BLOCK)]
    found = [_optimum(surface.take(block), budget[block], search) for block in blocks]
    fields = ("log_ratio", "loss", "at_bound")
    return Optimum(*(np.concatenate([getattr(each, f) for each in found]) for f in fields))


def _optimum(surface: Surface, budget: Floats, search: Range) -> Optimum:
    same = bool((budget == budget[0]).all())
    log_flops = budget[:1] if same else budget[:, None]
    nodes = _with_knots(surface, log_flops, search)
    losses = _loss(surface, log_flops, nodes[0] if same else nodes)
    nodes = np.broadcast_to(nodes, losses.shape)
    rows = np.arange(len(budget))
    log_ratio, least = nodes[rows, losses.argmin(1)], losses.min(1)
    middle, mid = nodes[:, 1:-1], losses[:, 1:-1]
    bracketed = (nodes[:, :-2] < middle) & (middle < nodes[:, 2:])
    draw, node = np.nonzero(bracketed & (mid <= losses[:, :-2]) & (mid <= losses[:, 2:]))
    if len(draw):

        def loss(log_ratio: Floats, draw: Ints) -> Floats:
            return _loss(surface.take(draw), budget[draw, None], log_ratio[:, None])[:, 0]

        bracket = (nodes[draw, node], nodes[draw, node + 1], nodes[draw, node + 2])
        refined = find_minimum(loss, bracket, args=(draw,))
        minima, places = np.asarray(refined.f_x), np.asarray(refined.x)
        np.minimum.at(least, draw, minima)
        chosen = minima <= least[draw]
        log_ratio[draw[chosen]] = places[chosen]
    at_bound = np.isclose(log_ratio[:, None], np.log(search), rtol=0, atol=1e-9).any(1)
    return Optimum(log_ratio, least, at_bound)


def _with_knots(surface: Surface, log_flops: Floats, search: Range) -> Floats:
    """Grid points of log(D / N) and, between them, the knots, shape (1 or draws, points).

    At a knot of a walking exponent the loss may have a minimum that is no smooth one.
    """
    log_nd, nodes = log_flops.reshape(-1, 1) - math.log(FLOPS), _nodes(search)
    at_params, at_tokens = (
        log_nd - 2 * surface.knots("params"),
        2 * surface.knots("tokens") - log_nd,
    )
    grid = np.broadcast_to(nodes, (len(log_nd), len(nodes)))
    ratios = surface.knots("tokens", "params")
    at_ratios = np.broadcast_to(ratios, (len(log_nd), len(ratios)))
    every = np.concatenate([grid, at_params, at_tokens, at_ratios], axis=1)
    return np.sort(np.clip(every, nodes[0], nodes[-1]), axis=1)


def _loss(surface: Surface, log_flops: Floats, log_ratio: Floats) -> Floats:
    log_nd = log_flops - math.log(FLOPS)
    return surface.loss(0.5 * (log_nd - log_ratio), 0.5 * (log_nd + log_ratio))


def flops_to(
    surface: Surface, targets: Sequence[float], reach: Range, search: Range
) -> tuple[Floats, Bools]:
    """Least budget of each draw that reaches each loss, and whether it is the least searched.

    Returns
    -------
    flops, at_bound : array, shape (draws, targets)
        Infinity where no budget searched reaches the loss.
    """
    low, high = np.log(reach)
    nodes = np.linspace(low, high, math.ceil((high - low) / FLOPS_STEP) + 1)
    least = best_losses(surface, nodes, search, until=min(targets))
    found = np.stack([_first(surface, nodes, least, t, search) for t in targets], axis=-1)
    return np.exp(found), found == low


def flops_ratios(
    surfaces: Sequence[Surface], targets: Sequence[float], reach: Range, search: Range
) -> list[tuple[Floats, Bools]]:
    """For each surface but the first: FLOPs of the first over its own, draw by draw; `flops_to`.

    NaN where neither reaches the loss. The second array says where one of both is at the bound.
    """
    (first, low), *others = (flops_to(each, targets, reach, search) for each in surfaces)
    with np.errstate(invalid="ignore"):  # infinity over infinity is not defined
        return [(first / own, low | own_low) for own, own_low in others]


def best_losses(surface: Surface, nodes: Floats, search: Range, until: float = -math.inf) -> Floats:
    """Least loss of each draw on the grid of D / N at each log budget, shape (draws, nodes).

    Infinite at budgets after the first at which all draws reach the loss `until`.
    """
    ratios, least = _nodes(search), np.full((surface.draws, len(nodes)), np.inf)
    for i, node in enumerate(nodes):
        least[:, i] = _loss(surface, np.array([node]), ratios).min(1)
        if (least[:, i] <= until).all():
            break
    return least


def _first(surface: Surface, nodes: Floats, least: Floats, target: float, search: Range) -> Floats:
    """Log of the least budget of each draw, from the least loss at each node.

    From a budget that reaches the loss, we go down at its best D / N until the loss is just
    reached, take the best D / N there, and so on until the budget stays.
    """
    reached = least <= target
    node = reached.argmax(1)
    found = np.where(reached.any(1), nodes[node], np.inf)
    draw = np.flatnonzero(reached.any(1) & (node > 0))

    for _ in range(STEPS):
        if not len(draw):
            break
        some = surface.take(draw)
        best = optimum(some, found[draw], search).log_ratio

        def excess(log_flops: Floats, i: Ints, some: Surface = some, best: Floats = best) -> Floats:
            return _loss(some.take(i), log_flops[:, None], best[i, None])[:, 0] - target

        below, every = nodes[node[draw] - 1], np.arange(len(draw))
        # A minimum between grid points of D / N may reach the loss at the node below already.
        early = excess(below, every) <= 0
        place, late = below.copy(), every[~early]
        place[late] = root_between(excess, below[late], found[draw[late]], late)
        moved = np.abs(place - found[draw]) > TOLERANCE
        found[draw] = place
        node[draw[early]] -= 1
        draw = draw[(moved | early) & (node[draw] > 0)]
    return found


def _nodes(search: Range) -> Floats:
    low, high = np.log(search)
    grid = np.linspace(low, high, max(3, math.ceil((high - low) / RATIO_STEP) + 1))
    # Beside each bound, so that a minimum near it is bracketed too.
    return np.concatenate([grid[:1], [low + EDGE], grid[1:-1], [high - EDGE], grid[-1:]])
