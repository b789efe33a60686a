"""Tokens at which continual pre-training beats training from scratch, at one model size."""

import math

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Bools, Floats, Ints
from bayeslaw.common.errors import BayeslawError
from bayeslaw.derive.optimum import SEARCH
from bayeslaw.derive.result import Derived, derived
from bayeslaw.derive.surface import surface_of
from bayeslaw.inference.posterior import Posterior
from bayeslaw.planning.feasible_budgets import root_between
from bayeslaw.planning.fits import convergence_failures, pair_draws

STEP = 0.25
"""Distance of grid points in log D."""


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
    failures = convergence_failures(fits, allow_unconverged)
    (mine, theirs), how = pair_draws(fits)
    model, tokens = (params, params), (low * params, high * params)
    cpt = surface_of(posterior, model, tokens, replay=replay, ptpp=ptpp).take(mine)
    new = surface_of(scratch, model, tokens).take(theirs)
    log_params = np.array([math.log(params)])
    least, most = np.log(tokens)
    nodes = np.linspace(least, most, max(2, math.ceil((most - least) / STEP) + 1))
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
