"""Compute-optimal splits of budgets: model size and tokens, and the loss there."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from bayeslaw.common.errors import BayeslawError
from bayeslaw.common.formatting import count
from bayeslaw.common.progress import step
from bayeslaw.derive.budgets import (
    Budgets,
    Range,
    budgets_of,
    checked_flops,
    split_of,
)
from bayeslaw.derive.derived import Derived, derived
from bayeslaw.derive.intervals import is_determined
from bayeslaw.derive.law_as_stated import law_as_stated
from bayeslaw.derive.verdicts import checked, warn_beyond
from bayeslaw.inference.posterior import Posterior

WHY = (
    "It is the best split of the law itself, fitted to the same rows without discrepancy: a rule "
    "for sizes is a statement about the law, and drift serves forecasts. Its interval holds if the "
    "law does."
)
WITH_DRIFT = (
    "with drift: best split of the fit whose exponents drift, and the loss that this fit forecasts "
    "for the recommended split"
)


@step("compute-optimal N and D")
def compute_optimal(
    posterior: Posterior,
    flops: float | Sequence[float],
    *,
    span: float = 10.0,
    search: Range | None = None,
    replay: float | None = None,
    ptpp: float | None = None,
    drift: bool = False,
    **own: float,
) -> Derived:
    """Compute-optimal model size and tokens of a budget, and the loss there.

    The recommended split is that of the law as stated. Of a fit with a discrepancy, whose exponents
    drift, it comes from a second fit of the same law to the same rows without discrepancy, which is
    sampled here in a few seconds: it is ``fit(law, table, discrepancy="none")`` with the priors,
    the likelihood and the seed of the posterior. A rule for sizes is a statement about the law, and
    its interval holds if the law does; drift serves forecasts. The best split of the fit whose
    exponents drift is beside it, in `with_drift`, with the loss that this fit gives the recommended
    split.

    Parameters
    ----------
    posterior : Posterior
        Of a law that depends on N and D.
    flops : float or sequence of float
        Budgets C, in FLOPs; C = 6 N D.
    span : float
        Factor of budget, around C, over which the exponents of N and D are mean slopes.
    search : tuple of float, optional
        Least and greatest tokens per parameter among which the best is searched; by default those
        of the fitted rows, and .83 decades beyond: as far as bands were tested along D.
    replay, ptpp : float, optional
        Replay ratio, and pre-training tokens per parameter, of a law that depends on them.
    drift : bool
        Give the best split of the fit as it is, with exponents that drift, and recommend none. Of
        a fit that was saved without its losses there is no other.
    **own : float
        Covariates that the law declares, by their names.

    Returns
    -------
    Derived
        `params`, `tokens`, `tokens_per_param`, `loss` (nats per token), and the exponents
        `params_exponent` and `tokens_exponent`: the mean of d log N / d log C and of
        d log D / d log C over `span`. They add up to 1. An optimum on a bound of `search` is the
        bound, and `at_bound` says so. `places` says how far the split of each budget lies beyond
        the fitted rows, with the median N and D.

    Raises
    ------
    LawError
        If the law does not depend on N and D, or another of its covariates is lacking.
    FitError
        If the law has to be fitted without discrepancy, and the losses were not saved.
    NotConverged
        If a fit failed the convergence checks, unless that is `accepted` of the posterior.

    Warns
    -----
    TableWarning
        If a split lies so far out that `bayeslaw forecast` would refuse it.
    FitWarning
        If random effects explain what the law should explain in the fit without discrepancy.

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
    budgets = checked_flops([posterior], flops)
    if not span > 1:
        raise BayeslawError(f"span {span:g} is not above 1; it is a factor of budget.")
    checked(posterior)
    covariates = {"replay": replay, "ptpp": ptpp, **own}
    drifting = budgets_of(posterior, search, covariates)
    if drift:
        found = _optimum(drifting, budgets, span)
        warn_beyond(found.verdicts, [posterior])
        return found
    law = law_as_stated(posterior)
    by_law = replace(drifting, fit=law, losses=law.losses)
    found = _optimum(by_law, budgets, span)
    warn_beyond(found.verdicts, [posterior])
    found = replace(found, answers=_recommended(found))
    if law is posterior:
        return found
    return _beside(found, drifting, _optimum(drifting, budgets, span))


def _recommended(found: Derived) -> tuple[str, ...]:
    """The recommended split of each budget, in words."""
    answers = []
    for case, flops in enumerate(found.cases["flops"]):
        words = _recommended_split(found, case)
        answers.append(f"Recommended for {flops:.3g} FLOPs: {words}.")
    return tuple(answers)


def _recommended_split(found: Derived, case: int) -> str:
    params, tokens, ratio = (
        found.draws[name].values[:, case]
        for name in ("params", "tokens", "tokens_per_param")
    )
    if not is_determined(params):
        return "no size, since the best one is not determined"
    # Of at least half of the draws, the median is the bound.
    if found.at_bound["params"][:, case].mean() >= 0.5:
        return "no size, since the best one lies at an end of the range searched"
    size = count(np.median(params))
    words = f"{size} parameters, {count(np.median(tokens))} tokens"
    if is_determined(ratio):
        words += f" ({np.median(ratio):.3g} per parameter)"
    return words


def _beside(rule: Derived, drifting: Budgets, drift: Derived) -> Derived:
    """The rule of the law as stated, beside what the fit whose exponents drift says."""
    # The least loss of each draw would be below that of any one split, which is what is trained.
    ratios = rule.draws["tokens_per_param"].values
    log_ratio = np.log(np.median(ratios, axis=0))
    log_flops = np.log(rule.cases["flops"].to_numpy())
    losses = drifting.along(log_flops, log_ratio)
    loss = (("draw", "case"), losses, drift.draws["loss"].attrs)
    at_bound = {**drift.at_bound}
    at_bound.pop("loss", None)
    failures = [*drift.failures]
    for failure in rule.failures:
        failures.append(f"without discrepancy, {failure}")
    draws = drift.draws.assign(loss=loss)
    with_drift = replace(drift, draws=draws, at_bound=at_bound)
    return replace(
        rule,
        answers=(*rule.answers, WHY),
        notes=(*rule.notes, WITH_DRIFT),
        failures=tuple(failures),
        with_drift=with_drift,
    )


def _optimum(budgets: Budgets, flops: Sequence[float], span: float) -> Derived:
    """The best splits of budgets, and mean slopes over a span of each."""
    # At the ends of the span and in the middle: with kinks, a mean slope over the span is
    # determined where a derivative jumps.
    half_span = 0.5 * np.log(span)
    low = []
    middle = []
    high = []
    least = []
    for c in flops:
        best = budgets.best(np.log(c))
        middle.append(best.ratio)
        least.append(best.loss)
        low.append(budgets.best(np.log(c) - half_span).ratio)
        high.append(budgets.best(np.log(c) + half_span).ratio)
    low_ratio = np.array(low).T
    log_ratio = np.array(middle).T
    high_ratio = np.array(high).T
    slope = (high_ratio - low_ratio) / math.log(span)
    split = split_of(np.log(flops), log_ratio)
    numbers = {
        "params": (split["params"], "parameters"),
        "tokens": (split["tokens"], "tokens"),
        "tokens_per_param": (np.exp(log_ratio), "tokens per parameter"),
        "params_exponent": (0.5 * (1 - slope), "1"),
        "tokens_exponent": (0.5 * (1 + slope), "1"),
        "loss": (np.array(least).T, "nats per token"),
    }
    at_bound = budgets.on_bounds(log_ratio).any(-1)
    at_low = budgets.on_bounds(low_ratio).any(-1)
    at_high = budgets.on_bounds(high_ratio).any(-1)
    bounded = {}
    for name in numbers:
        bounded[name] = at_low | at_high if "exponent" in name else at_bound
    verdict, notes = budgets.splits(flops, log_ratio)
    notes.append(f"exponents: mean slopes over a factor {span:g} of budget")
    return derived(
        numbers,
        pd.DataFrame({"flops": flops}),
        [budgets.fit],
        at_bound=bounded,
        notes=notes,
        verdicts={"": verdict},
    )
