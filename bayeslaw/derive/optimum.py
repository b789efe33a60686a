"""Compute-optimal splits of budgets, budgets that losses need, their ratios, and crossovers."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Bools, Floats, Ints
from bayeslaw.common.errors import BayeslawError
from bayeslaw.derive.result import Derived, checked, derived
from bayeslaw.derive.surface import (
    FLOPS,
    SEARCH,
    Range,
    check_budgets,
    flops_ratios,
    flops_to,
    optimum,
    reach_of,
    surface_at,
    surface_of,
)
from bayeslaw.inference.pools import pair_draws
from bayeslaw.inference.posterior import Posterior
from bayeslaw.planning.feasible_budgets import root_between
from bayeslaw.tables.validation import check_units

TOKENS_STEP = 0.25
"""Distance of grid points in log D."""


def compute_optimal(
    posterior: Posterior,
    flops: float | Sequence[float],
    *,
    span: float = 10.0,
    search: Range = SEARCH,
    replay: float | None = None,
    ptpp: float | None = None,
    allow_unconverged: bool = False,
) -> Derived:
    """Compute-optimal model size and tokens of a budget, and the loss there.

    Parameters
    ----------
    posterior : Posterior
        Of a law that depends on N and D.
    flops : float or sequence of float
        Budgets C, in FLOPs; C = 6 N D.
    span : float
        Factor of budget, around C, over which the exponents of N and D are mean slopes.
    search : tuple of float
        Least and greatest tokens per parameter among which the best is searched.
    replay, ptpp : float, optional
        Replay ratio, and pre-training tokens per parameter, of a law that depends on them.
    allow_unconverged : bool
        Whether to use a posterior that failed the convergence checks.

    Returns
    -------
    Derived
        `params`, `tokens`, `tokens_per_param`, `loss` (nats per token), and the exponents
        `params_exponent` and `tokens_exponent`: the mean of d log N / d log C and of
        d log D / d log C over `span`. They add up to 1. An optimum on a bound of `search` is the
        bound, and `at_bound` says so.

    Raises
    ------
    NotConverged
        If the posterior failed the convergence checks and `allow_unconverged` is false.
    LawError
        If the law does not depend on N and D, or `replay` or `ptpp` is lacking.
    BayeslawError
        If a budget is not positive, or a range is empty.

    Examples
    --------
    >>> table = bl.simulate(
    ...     "chinchilla",
    ...     {"E": 1.7, "A": 400.0, "alpha": 0.34, "B": 410.0, "beta": 0.28},
    ...     bl.grid(params=[1e8, 3e8, 1e9, 3e9], tokens=[1e9, 3e9, 1e10, 3e10, 1e11]),
    ...     sigma=0.003,
    ... )
    >>> fit = bl.fit("chinchilla", table, discrepancy="none")  # doctest: +SKIP
    >>> best = bl.derive.compute_optimal(fit, [1e21, 1e24])  # doctest: +SKIP
    >>> best.to_frame()[["quantity", "flops", "median"]]  # doctest: +SKIP
    """
    budgets = _positive("flops", flops)
    if not span > 1:
        raise BayeslawError(f"span {span:g} is not above 1; it is a factor of budget.")
    failures = checked([posterior], allow_unconverged)
    check_budgets([posterior], budgets)
    ends = (min(budgets) / math.sqrt(span), max(budgets) * math.sqrt(span))
    surface = surface_at(posterior, ends, search, replay, ptpp)
    half = 0.5 * math.log(span)
    found = [
        [optimum(surface, math.log(c) + shift, search) for shift in (-half, 0.0, half)]
        for c in budgets
    ]
    log_ratio, loss, slope = (
        np.stack(each, axis=-1)
        for each in (
            [mid.log_ratio for _, mid, _ in found],
            [mid.loss for _, mid, _ in found],
            [(high.log_ratio - low.log_ratio) / (2 * half) for low, _, high in found],
        )
    )
    log_nd = np.log(np.array(budgets) / FLOPS)
    at_bound = np.stack([mid.at_bound for _, mid, _ in found], axis=-1)
    somewhere = np.stack([low.at_bound | high.at_bound for low, _, high in found], axis=-1)
    numbers = {
        "params": (np.exp(0.5 * (log_nd - log_ratio)), "parameters"),
        "tokens": (np.exp(0.5 * (log_nd + log_ratio)), "tokens"),
        "tokens_per_param": (np.exp(log_ratio), "tokens per parameter"),
        "params_exponent": (0.5 * (1 - slope), "1"),
        "tokens_exponent": (0.5 * (1 + slope), "1"),
        "loss": (loss, "nats per token"),
    }
    bounded = {name: somewhere if "exponent" in name else at_bound for name in numbers}
    notes = [_searched(search), f"exponents: mean slopes over a factor {span:g} of budget"]
    cases = pd.DataFrame({"flops": budgets})
    return derived(numbers, cases, at_bound=bounded, notes=notes, failures=failures)


def flops_to_reach(
    posterior: Posterior,
    loss: float | Sequence[float],
    *,
    search: Range = SEARCH,
    replay: float | None = None,
    ptpp: float | None = None,
    allow_unconverged: bool = False,
) -> Derived:
    """Smallest budget that reaches a loss, if it is split compute-optimally.

    Budgets are searched from 1e-2 times the least to 1e9 times the greatest budget 6 N D of the
    training rows. The first crossing is found on a grid of e-folds, then refined.

    Parameters
    ----------
    posterior : Posterior
        Of a law that depends on N and D.
    loss : float or sequence of float
        Losses to reach, nats per token.
    search, replay, ptpp, allow_unconverged
        As for `compute_optimal`.

    Returns
    -------
    Derived
        `flops`. Infinity where the loss is at or below the floor, or is not reached by the
        budgets searched; the least budget, marked in `at_bound`, where that reaches it already.

    Raises
    ------
    NotConverged
        If the posterior failed the convergence checks and `allow_unconverged` is false.
    LawError
        If the law does not depend on N and D, or `replay` or `ptpp` is lacking.
    BayeslawError
        If a loss is not positive, or a range is empty.

    Examples
    --------
    >>> bl.derive.flops_to_reach(fit, [2.2, 2.0]).to_frame()  # doctest: +SKIP
    """
    targets = _positive("loss", loss)
    failures = checked([posterior], allow_unconverged)
    reach = reach_of([posterior])
    surface = surface_at(posterior, reach, search, replay, ptpp)
    flops, at_bound = flops_to(surface, targets, reach, search)
    return derived(
        {"flops": (flops, "FLOPs")},
        pd.DataFrame({"loss": targets}),
        at_bound={"flops": at_bound},
        notes=[_searched(search), _budgets(reach)],
        failures=failures,
    )


def compute_multiplier(
    posterior: Posterior,
    base: Posterior,
    loss: float | Sequence[float],
    *,
    search: Range = SEARCH,
    allow_unconverged: bool = False,
) -> Derived:
    """Compute multiplier of one recipe over another: ratio of their FLOPs to reach a loss.

    Parameters
    ----------
    posterior, base : Posterior
        Of the recipe, and of the recipe it is compared with; both of losses on the same data.
    loss : float or sequence of float
        Losses to reach, nats per token.
    search, allow_unconverged
        As for `compute_optimal`.

    Returns
    -------
    Derived
        `multiplier`: FLOPs of `base` over FLOPs of `posterior`; 2 means half the FLOPs. Infinity
        where only `base` does not reach the loss, 0 where only `posterior` does not, NaN where
        neither does. `notes` says how draws were paired: those of separate fits are independent,
        those of a joint fit are paired draw by draw.

    Raises
    ------
    NotConverged
        If a posterior failed the convergence checks and `allow_unconverged` is false.
    LawError
        If a law does not depend on N and D alone.
    BayeslawError
        If a loss is not positive, or a range is empty.

    Examples
    --------
    >>> bl.derive.compute_multiplier(fit, base, 2.2).to_frame()  # doctest: +SKIP
    """
    targets, fits = _positive("loss", loss), [posterior, base]
    failures = checked(fits, allow_unconverged)
    pairs, how = pair_draws(fits)
    reach = reach_of(fits)
    own = [surface_at(fit, reach, search).take(i) for fit, i in zip(fits, pairs, strict=True)]
    ((ratio, at_bound),) = flops_ratios(own[::-1], targets, reach, search)
    return derived(
        {"multiplier": (ratio, "1")},
        pd.DataFrame({"loss": targets}),
        at_bound={"multiplier": at_bound},
        notes=[f"draws paired {how}", _searched(search), _budgets(reach)],
        failures=failures,
    )


def _positive(name: str, values: float | Sequence[float]) -> list[float]:
    given = [float(value) for value in np.atleast_1d(np.asarray(values, float))]
    if not given or not all(0 < value < math.inf for value in given):
        raise BayeslawError(f"{name} must be positive numbers; got {values!r}.")
    return given


def _searched(search: Range) -> str:
    return f"searched {search[0]:g} to {search[1]:g} tokens per parameter"


def _budgets(reach: Range) -> str:
    return f"searched {reach[0]:.3g} to {reach[1]:.3g} FLOPs"


def crossover(
    posterior: Posterior,
    scratch: Posterior,
    params: float,
    *,
    replay: float | None = None,
    ptpp: float | None = None,
    search: tuple[float, float] = SEARCH,
    allow_unconverged: bool = False,
) -> Derived:
    """Tokens at which continual pre-training from a base beats training from scratch.

    Both models have N parameters and train on the same number of tokens D, thus on the same FLOPs;
    the pre-training of the base is not counted. Crossings are found on a grid of quarter e-folds
    in D, then refined.

    Parameters
    ----------
    posterior : Posterior
        Of losses on the target data after continual pre-training.
    scratch : Posterior
        Of losses on the same data after training from scratch; its law depends on N and D at most.
    params : float
        Parameters N of both models.
    replay, ptpp : float, optional
        Replay ratio of continual pre-training, and pre-training tokens per parameter of its base;
        needed if its law depends on them.
    search : tuple of float
        Least and greatest tokens per parameter, D / N, that are searched.
    allow_unconverged : bool
        Whether to use posteriors that failed the convergence checks.

    Returns
    -------
    Derived
        `tokens_from`: the fewest tokens with which continual pre-training has the lower loss or
        the same; the least of the range, marked in `at_bound`, where it has from the start, and
        infinity where it never has. `tokens_until`: the tokens from which training from scratch
        has the lower loss again; infinity where it never has again, NaN where `tokens_from` is
        infinite. `notes` says how draws were paired: those of separate fits are independent.

    Raises
    ------
    NotConverged
        If a posterior failed the convergence checks and `allow_unconverged` is false.
    LawError
        If `replay` or `ptpp` is lacking, or a law depends on other things.
    BayeslawError
        If `params` is not positive, or the range is empty.

    Examples
    --------
    >>> bl.derive.crossover(cpt, scratch, 1e9, replay=0.3, ptpp=20)  # doctest: +SKIP
    """
    low, high = search
    if not 0 < params < math.inf:
        raise BayeslawError(f"params must be a positive number; got {params!r}.")
    if not 0 < low < high < math.inf:
        raise BayeslawError(f"search {low:g} to {high:g} is not a range of tokens per parameter.")
    fits = [posterior, scratch]
    failures = checked(fits, allow_unconverged)
    for fit in fits:
        check_units(pd.DataFrame({"params": [params]}), "crossover", fit.table.frame)
    (mine, theirs), how = pair_draws(fits)
    model, tokens = (params, params), (low * params, high * params)
    cpt = surface_of(posterior, model, tokens, replay=replay, ptpp=ptpp).take(mine)
    new = surface_of(scratch, model, tokens).take(theirs)
    log_params = np.array([math.log(params)])
    least, most = np.log(tokens)
    nodes = np.linspace(least, most, max(2, math.ceil((most - least) / TOKENS_STEP) + 1))
    ahead = cpt.loss(log_params, nodes) <= new.loss(log_params, nodes)

    def excess(log_tokens: Floats, draw: Ints, sign: Floats) -> Floats:
        pair = (each.take(draw).loss(log_params, log_tokens[:, None]) for each in (cpt, new))
        own, other = pair
        return np.asarray(sign * (own - other)[:, 0])

    def change(found: Bools, first: Ints, sign: float) -> Floats:
        """Log D of the first node where something holds, from its change before that node."""
        place = np.full(cpt.draws, np.inf)
        place[found & (first == 0)] = least
        rows = np.flatnonzero(found & (first > 0))
        ends = nodes[first[rows] - 1], nodes[first[rows]]
        place[rows] = root_between(excess, *ends, rows, np.full(len(rows), sign))
        return place

    any_ahead, start = ahead.any(1), ahead.argmax(1)
    behind_again = ~ahead & (np.arange(len(nodes)) > start[:, None])
    log_from = change(any_ahead, start, 1.0)
    log_until = change(any_ahead & behind_again.any(1), behind_again.argmax(1), -1.0)
    log_until[~any_ahead] = np.nan
    numbers = {
        "tokens_from": (np.exp(log_from)[:, None], "tokens"),
        "tokens_until": (np.exp(log_until)[:, None], "tokens"),
    }
    asked = {"params": params, "replay": replay, "ptpp": ptpp}
    cases = pd.DataFrame([{name: value for name, value in asked.items() if value is not None}])
    notes = [f"draws paired {how}", f"searched {tokens[0]:.3g} to {tokens[1]:.3g} tokens"]
    at_bound = {"tokens_from": (log_from == least)[:, None]}
    return derived(numbers, cases, at_bound=at_bound, notes=notes, failures=failures)
