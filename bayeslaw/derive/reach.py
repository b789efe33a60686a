"""Budgets that losses need, and compute multipliers of recipes, which are their ratios."""

import warnings
from collections.abc import Sequence

import numpy as np
import pandas as pd

from bayeslaw.common.errors import FitError, TableWarning
from bayeslaw.common.formatting import listed
from bayeslaw.common.progress import step
from bayeslaw.derive.budgets import Range, budgets_of, positive, reach_of
from bayeslaw.derive.derived import Derived, derived
from bayeslaw.derive.verdicts import checked, warn_beyond
from bayeslaw.inference.pools import pair_draws, role_of
from bayeslaw.inference.posterior import Posterior
from bayeslaw.tables.comparison import labels_of
from bayeslaw.tables.table import is_synthetic
from bayeslaw.tables.verdict import Verdict

REACHED = "searched {:.3g} to {:.3g} FLOPs"


@step("FLOPs to reach a loss")
def flops_to_reach(
    posterior: Posterior,
    loss: float | Sequence[float],
    *,
    search: Range | None = None,
    replay: float | None = None,
    ptpp: float | None = None,
    **own: float,
) -> Derived:
    """Smallest budget that reaches a loss, if it is split compute-optimally.

    Budgets are searched from the least to 1e9 times the greatest budget 6 N D of the
    training rows. The first crossing is found on budgets an e-fold apart, and refined.

    Parameters
    ----------
    posterior : Posterior
        Of a law that depends on N and D.
    loss : float or sequence of float
        Losses to reach, nats per token.
    search, replay, ptpp, own
        As for `compute_optimal`, as are errors and warnings.

    Returns
    -------
    Derived
        `flops`. Infinity where the loss is at or below the floor, or is not reached by the
        budgets searched; the least budget, marked in `at_bound`, where that reaches it already.
        `places` is of the split of the median budget.

    Examples
    --------
    >>> bl.derive.flops_to_reach(fit, [2.2, 2.0]).to_frame()  # doctest: +SKIP
    """
    targets = positive("loss", loss)
    checked(posterior)
    reach = reach_of([posterior])
    covariates = {"replay": replay, "ptpp": ptpp, **own}
    budgets = budgets_of(posterior, search, covariates)
    flops, at_bound = budgets.flops_to(targets, reach)
    verdict, notes = budgets.median_splits(flops)
    warn_beyond({"": verdict}, [posterior])
    return derived(
        {"flops": (flops, "FLOPs")},
        pd.DataFrame({"loss": targets}),
        [posterior],
        at_bound={"flops": at_bound},
        notes=[*notes, REACHED.format(*reach)],
        verdicts={"": verdict},
    )


@step("compute multipliers")
def compute_multiplier(
    posterior: Posterior,
    reference: Posterior,
    loss: float | Sequence[float],
    *,
    search: Range | None = None,
) -> Derived:
    """Compute multiplier of one recipe over another: ratio of their FLOPs to reach a loss.

    Parameters
    ----------
    posterior, reference : Posterior
        Of the recipe, and of the recipe it is compared with; both of losses on the same data.
    loss : float or sequence of float
        Losses to reach, nats per token.
    search
        As for `compute_optimal`.

    Returns
    -------
    Derived
        `multiplier`: FLOPs of `reference` over FLOPs of `posterior`; 2 means half the FLOPs.
        Infinity where only `reference` does not reach the loss, 0 where only `posterior` does not,
        NaN where neither does. `notes` says how draws were paired: those of separate fits are
        independent.

    Raises
    ------
    FitError
        If the fits are of other domains or roles.

    Warns
    -----
    TableWarning
        As for `compute_optimal`, and if a table does not say of which domain its losses are.

    Examples
    --------
    >>> bl.derive.compute_multiplier(fit, reference, 2.2).to_frame()  # doctest: +SKIP
    """
    targets = positive("loss", loss)
    fits = [posterior, reference]
    checked(*fits)
    check_same_data(fits)
    index, how = pair_draws(fits)
    reach = reach_of(fits)
    notes = [f"draws paired {how}"]
    flops = []
    at_bound = []
    verdicts: dict[str, Verdict] = {}
    names = ("recipe", "reference")
    for name, fit, draws in zip(names, fits, index, strict=True):
        budgets = budgets_of(fit, search, {}, draws)
        needed, bound = budgets.flops_to(targets, reach)
        flops.append(needed)
        at_bound.append(bound)
        verdicts[name], notes_of_fit = budgets.median_splits(needed)
        notes += [f"{name}: {note}" for note in notes_of_fit]
    with np.errstate(invalid="ignore"):  # infinity over infinity is not defined
        multiplier = flops[1] / flops[0]
    warn_beyond(verdicts, fits)
    return derived(
        {"multiplier": (multiplier, "1")},
        pd.DataFrame({"loss": targets}),
        fits,
        at_bound={"multiplier": at_bound[0] | at_bound[1]},
        notes=[*notes, REACHED.format(*reach)],
        verdicts=verdicts,
    )


def check_same_data(fits: Sequence[Posterior]) -> None:
    """Refuse fits whose losses are of other domains or roles; warn where a table names no domain.

    Losses of the domain pre-trained on are of no recipe for the domain adapted to.
    """
    same = "recipes are compared by losses on the same data"
    roles = {role_of(fit) for fit in fits}
    if {"target", "source"} <= roles:
        raise FitError(
            f"the fits are of role target and of role source, so of two domains; {same}."
        )
    domains: list[str] = []
    silent: list[str] = []
    for fit in fits:
        domain = ", ".join(sorted(labels_of(fit.table.frame, "domain")))
        if domain:
            domains.append(domain)
        elif not is_synthetic(fit.table):
            silent.append(fit.table.name)
    named = [*dict.fromkeys(domains)]
    if len(named) > 1:
        raise FitError(
            f"the fits are of losses of other domains ({'; '.join(named)}); {same}."
        )
    files = {fit.table.name for fit in fits}
    # All rows of one file without the column are of one validation set.
    if silent and len(files) > 1:
        names = [*dict.fromkeys(silent)]
        do = "does" if len(names) == 1 else "do"
        warnings.warn(
            f"{listed(names)} {do} not say which validation set the losses are of; {same}: "
            "check that they are, and give tables a column 'domain'.",
            TableWarning,
            stacklevel=3,
        )
