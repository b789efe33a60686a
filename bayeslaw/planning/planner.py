"""`plan`: the smallest budget, with its replay ratio, that meets limits on loss and forgetting."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import LawError, TableError
from bayeslaw.common.formatting import digits
from bayeslaw.common.progress import step
from bayeslaw.inference.pools import Fit
from bayeslaw.planning.chance_constraint import (
    Limit,
    Place,
    Problem,
    lattice_of,
    searched_budgets,
)
from bayeslaw.planning.planned_run import (
    Baseline,
    Farness,
    PlannedRun,
    are_measured,
    baseline_of,
    check_fits,
    check_limits,
    common_ranges,
    domains_of,
    farness,
    judged,
    run_of,
    spread,
)
from bayeslaw.planning.result import (
    BEYOND,
    FEASIBLE,
    INFEASIBLE,
    Choice,
    Plan,
    choice_at,
    replay_ratios,
)
from bayeslaw.tables.covariates import FLOPS
from bayeslaw.tables.table import is_synthetic
from bayeslaw.tables.verdict import TOO_FAR

RATIOS = 34
LEAST_RATIO = 0.005
"""Replay ratios of the lattice of a plan; the least of them, and of 1 less the greatest."""
NORMAL_95 = 1.6449
"""Standard deviations from the median of a normal to its quantile at 95 %."""


@step("planning")
def plan(
    *,
    target: Fit,
    source: Fit,
    params: float | None = None,
    ptpp: float | None = None,
    max_loss: float | None = None,
    max_forgetting: float | None = None,
    atpp: float | None = None,
    baseline: Baseline = None,
    base: str | None = None,
    unique_tokens: float | None = None,
    confidence: float = 0.9,
    losses: Literal["latent", "predictive"] = "latent",
    relative: bool = True,
    replay: float | Sequence[float] | Floats | None = None,
    seed: int = 0,
) -> Plan:
    """Smallest budget that meets target and forgetting limits with stated probability.

    The chance-constrained problem is: minimise D/N over D and the replay ratio such that all limits
    hold with probability `confidence`, estimated by the fraction of the posterior draws. The limits
    are on latent losses, those of the law. The result has the plan for the losses that one new run
    will measure beside it, which costs more. Of the runs that meet the limits, those as near to the
    fitted rows as bands were ever measured come first. Budgets are searched as far beyond the rows
    as forecasts are made.

    At a fixed budget `atpp`, the least replay ratio that meets the limits given is sought; without
    any limit, the ratio whose target loss, as it holds with probability `confidence`, is least.

    Parameters
    ----------
    target, source : Posterior, Pool or PointFit
        Fits of the domain adapted to, and of the one that may be forgotten. A PointFit has neither
        uncertainty nor noise.
    params : float, optional
        Parameters N of the model. By default those of `base`.
    ptpp : float, optional
        Its pre-training tokens per parameter. By default those of `base`, or the only value in the
        tables, if there is one; not needed where no law knows it.
    max_loss : float
        Limit of the target loss, nats per token; may be left out with `atpp`.
    max_forgetting : float
        Limit of the rise of the source loss over `baseline`: a fraction of the baseline, at most 1,
        or nats per token; may be left out with `atpp`.
    atpp : float, optional
        A fixed budget, adaptation tokens per parameter.
    baseline : float or (float, float), optional
        Source loss of the un-adapted model: a measured loss in nats per token, or that and its
        standard deviation. By default the row with ``tokens = 0`` of the base in the source's
        table; for a new base, draws of its loss, if the source's law starts from the base.
    base : str, optional
        The pre-trained model that the run starts from: its label in the tables' column `base`, or
        "new". In predictive losses the effect of a base with training rows is its posterior, and
        that of a new one is drawn. A law that starts from the base takes its losses at
        ``tokens = 0``, and draws those of a new one. By default the only base of that model and
        stage in the tables, each up to 1 %, or else a new one. A base of the tables is planned for
        with its own N and P.
    unique_tokens : float, optional
        Distinct tokens of the new data. Further ones repeat, and are worth what a target's fit to
        a table with that column says. By default no data repeat.
    confidence : float
        Probability with which all limits must hold.
    losses : {"latent", "predictive"}
        What the limits are on: latent losses, which are those of the law without the noise of one
        run and the effects of base and run, or the losses that one new run will measure.
    relative : bool
        Whether `max_forgetting` is relative to the baseline.
    replay : float or sequence of float, optional
        Replay ratios of the lattice, between which it is refined. A single value fixes r; laws
        without replay need 1. By default 34 over the ratios that both fits have rows of: a search
        beyond them picks those whose losses happen to be forecast too low.
    seed : int
        Of the noise, and random effects of a size without training rows.

    Returns
    -------
    Plan

    Raises
    ------
    NotConverged
        If a posterior failed the convergence check; see `Posterior.accepted`. If that is accepted,
        the plan lists the failures.
    TableError
        If the limits are met only twice as far from the fitted rows as bands were ever measured,
        unless the fits are accepted there.

    Notes
    -----
    See `bayeslaw.planning.chance_constraint` for the method and its references.

    Examples
    --------
    The paper's use case with the true laws of its synthetic world, so without uncertainty:

    >>> import bayeslaw as bl
    >>> from bayeslaw.simulation.worlds import true_fits
    >>> world = bl.paper_world()
    >>> target, source = true_fits(world)
    >>> found = bl.plan(target=target, source=source, baseline=world.baseline(), **world.limits)
    >>> round(found.atpp, 1), round(found.replay, 2)
    (8.9, 0.34)
    """
    fits = {"target": target, "source": source}
    both = [target, source]
    for fit in both:
        if FLOPS in fit.columns:
            raise LawError(
                f"law {fit.name} reads flops; a plan needs a law of params, tokens and replay."
            )
    ratios = fitted_ratios(both) if replay is None else replay_ratios(replay)
    limits = {"max_loss": max_loss, "max_forgetting": max_forgetting}
    check_limits(limits, atpp, confidence, relative=relative)
    measured = are_measured(losses)
    run, base_words = run_of(both, params, ptpp, base, unique_tokens, seed)
    check_fits(target, source, ratios, repeated=unique_tokens is not None)
    unconverged = tuple(failure for fit in both for failure in fit.require_converged())

    domains, pairing = domains_of(both, run)
    start = baseline_of(baseline, domains[1])
    # A limit that is not given always holds.
    most, rise = (
        math.inf if limit is None else float(limit) for limit in limits.values()
    )
    fixed = None if atpp is None else math.log(atpp)
    budgets = searched_budgets(both, run.params) if fixed is None else np.array([fixed])
    everywhere = Problem(
        (Limit(domains[0], most), Limit(domains[1], rise, start.loss, relative)),
        lattice_of(domains, budgets, ratios),
        confidence,
        measured=measured,
        fixed=fixed,
    )
    far = _reach(fits, run)
    problem, place, others = _answer(everywhere, replace(everywhere, far=far))
    best, cheaper, likeliest = map(others.get, ("best", "cheaper", "likeliest"))
    shown = best or choice_at(problem, place)
    chosen = run.at(shown.tokens, shown.replay)
    verdict, outside = judged(fits, chosen, refuse=best is None)
    if verdict.level == "refuse":
        raise _no_evidence(losses, shown, likeliest, verdict.words)
    status = FEASIBLE if verdict.level == "ok" else BEYOND
    evidence = verdict.evidence
    # The plan lies within the evidence, so the words are of the cheaper one, which does not.
    if cheaper is not None:
        evidence = judged(fits, run.at(cheaper.tokens, cheaper.replay))[0].evidence
    error, held_out = monte_carlo(problem, None if best else place)
    asked = {
        name: getattr(run, name) for name in ("params", "ptpp", "base", "unique_tokens")
    }
    asked |= limits | {"baseline": start.stated, "relative": relative}
    named = dict(zip(fits, domains, strict=True))
    parts = pd.DataFrame()
    if place is not None:
        parts = spread(named, shown.tokens, shown.replay, measured=measured)
    other_problem = replace(everywhere, measured=not measured)
    other_plan = INFEASIBLE if best else shown
    other_status = "infeasible" if best else status
    # The two kinds of losses of point fits are equal, and so are their plans.
    if everywhere.noisy:
        other_plan, other_status = _plan_of(other_problem, far, fits)
    return Plan(
        **vars(INFEASIBLE if best else shown),
        status="infeasible" if best else status,
        evidence=evidence,
        cheaper=cheaper,
        likeliest=likeliest,
        best=best,
        confidence=confidence,
        draws=problem.draws,
        pairing=pairing,
        losses=losses,
        other=choice_at(other_problem, place, shown.tokens),
        other_plan=other_plan,
        other_status=other_status,
        spread=parts,
        base=base_words,
        baseline=start.words,
        limits=asked | ({} if atpp is None else {"atpp": atpp}),
        binds=problem.binding() if best else "",
        deterministic=_deterministic(problem),
        held_out=held_out,
        error=error,
        outside=outside + (_at_end(ratios, shown.replay) if replay is None else ()),
        data=common_ranges(both),
        unconverged=unconverged,
        synthetic=any(is_synthetic(fit.table) for fit in both),
        seed=seed,
        problem=problem,
        run=run,
    )


def fitted_ratios(fits: Collection[Fit]) -> Floats:
    """Replay ratios that all fits have rows of; from 0 to 1 without tables that have several."""
    low, high = common_ranges(fits).get("replay", (0.0, 1.0))
    low, high = (low, high) if low < high else (0.0, 1.0)
    return np.linspace(max(low, LEAST_RATIO), min(high, 1 - LEAST_RATIO), RATIOS)


def _at_end(ratios: Floats, ratio: float) -> tuple[str, ...]:
    """What to do about a plan at an end of the fitted ratios."""
    for name, end in (("least", ratios[0]), ("greatest", ratios[-1])):
        if np.isclose(ratio, end) and LEAST_RATIO < end < 1 - LEAST_RATIO:
            how = "replay= (--replay) searches beyond"
            return (f"the plan has the {name} fitted replay ratio; {how}.",)
    return ()


def _answer(
    everywhere: Problem, within: Problem
) -> tuple[Problem, Place | None, dict[str, Choice]]:
    """The plan within the evidence if there is one, and what else there is to know.

    Returns the problem that is answered, the place of its plan, or without one of the likeliest
    choice, and those of the choices `best`, `cheaper` and `likeliest` that a plan has.
    """
    anywhere = everywhere.smallest(exact=True)
    if within.far is None or within.far.least > 0:
        # No run at all is within the evidence: the smallest budget is all there is to show.
        within = everywhere
    if anywhere is not None and (within.far is None or within.far(anywhere[:2]) <= 0):
        return within, anywhere, {}
    nearest = within.smallest(exact=True)
    if nearest is not None:
        less = anywhere is not None and anywhere.budget < nearest.budget
        return within, nearest, {"cheaper": choice_at(within, anywhere)} if less else {}
    likeliest = within.likeliest()
    place = likeliest if likeliest.held else None
    choice = (
        replace(INFEASIBLE, p_both=0.0) if place is None else choice_at(within, place)
    )
    if anywhere is not None:
        return everywhere, anywhere, {"likeliest": choice}
    return within, place, {"best": choice}


def _plan_of(
    everywhere: Problem, far: Farness | None, fits: Mapping[str, Fit]
) -> tuple[Choice, str]:
    """A plan and its status, of a kind of losses that is not the one asked for.

    A plan that would be refused counts as infeasible.
    """
    problem, place, others = _answer(everywhere, replace(everywhere, far=far))
    if "best" in others:
        return INFEASIBLE, "infeasible"
    found = choice_at(problem, place)
    run = problem.limits[0].domain.run
    verdict, _ = judged(fits, run.at(found.tokens, found.replay), refuse=True)
    if verdict.level == "refuse":
        return INFEASIBLE, "infeasible"
    return found, FEASIBLE if verdict.level == "ok" else BEYOND


def _deterministic(problem: Problem) -> Choice:
    """The plan of the median losses, with its probabilities under all draws.

    A median loss meets its limit if at least half of the draws do.
    """
    limits = []
    for limit in problem.limits:
        start = None if limit.baseline is None else float(np.median(limit.baseline))
        limits.append(replace(limit, baseline=start))
    half = replace(problem, confidence=0.5, measured=False, jointly=False)
    medians = replace(half, limits=tuple(limits), far=None)
    return choice_at(problem, medians.smallest())


def monte_carlo(problem: Problem, place: Place | None) -> tuple[dict[str, Any], float]:
    """`Plan.error`, from plans of neighbouring ranks [1]_, and `Plan.held_out`.

    A plan is an order statistic of the budgets that draws need. Among other draws its rank is
    binomial, of as many trials as the draws are worth in independent ones. So the plans at
    quantiles of that rank are the ends of its interval.

    References
    ----------
    .. [1] W. J. Conover (1999). Practical Nonparametric Statistics, section 3.2. Wiley.
    """
    # Imported here, so that the command line starts fast.
    from arviz_stats.base import array_stats
    from scipy.stats import binom

    draws = problem.draws
    share = problem.rank() / problem.draws
    # Of point fits alone there are no other draws to vary with.
    if draws == 1 or place is None:
        return {}, math.nan
    # What counts is whether the limits hold: parameters may mix more slowly, or noise dominate.
    holds = np.logical_and.reduce(
        problem.holds(problem.losses(place.budget, place.ratio))
    )
    ess = array_stats.ess(holds.astype(float), method="mean")
    # NaN: few draws.
    trials = round(float(np.clip(ess, 1, draws))) if np.isfinite(ess) else draws
    quantiles = np.array(binom.ppf((0.05, 0.95), trials, share)) / trials
    low, high = (problem.smallest(float(quantile)) or NOWHERE for quantile in quantiles)
    atpp = math.exp(place.budget)
    ratio = place.ratio
    least = min(math.exp(low.budget), atpp)
    most = math.exp(high.budget)
    if high is NOWHERE:  # other draws may have no plan
        likeliest = max(problem.likeliest().held / draws, share)
        infeasible = float(binom.cdf(math.ceil(trials * share) - 1, trials, likeliest))
        width = (atpp - least) / NORMAL_95
        moved = abs(ratio - low.ratio) / NORMAL_95
    else:
        # The ends are the quantiles at 5 and 95 %, twice NORMAL_95 standard deviations apart.
        infeasible = 0.0
        width = (most - least) / NORMAL_95 / 2
        moved = abs(high.ratio - low.ratio) / NORMAL_95 / 2
    error = {"atpp": width, "replay": moved, "atpp_90": (least, most)}
    return error | {"infeasible": infeasible, "ess": trials}, problem.held_out()


NOWHERE = Place(math.inf, math.nan, 0)
"""The place of no plan."""


def _reach(fits: Mapping[str, Fit], run: PlannedRun) -> Farness | None:
    """`farness`; `TableError` for a run too far in params or PTPP, wherever the plan may lie."""
    far = farness(fits, run)
    # The values are distances over the measured one, less 1: any plan would be refused.
    if far is not None and far.least >= TOO_FAR - 1:
        fitted = next(fit.table.frame for fit in fits.values() if fit.table is not None)
        # In the middle of the rows in tokens and replay, so that only size and stage are too far.
        typical = {c: fitted[c].median() for c in ("tokens", "replay") if c in fitted}
        judged(fits, run.row.assign(**typical), refuse=True)[0].require("plan")
    return far


def _no_evidence(
    losses: str, chosen: Choice, near: Choice | None, evidence: str
) -> TableError:
    within = (
        f"P(both) of {losses} losses is at most {near.p_both:.3f}"
        if near
        else "there is no run"
    )
    return TableError(
        f"no plan within the evidence: {within} there. Beyond it, at {digits(chosen.atpp)} "
        f"ATPP and {100 * chosen.replay:.1f} % replay: {evidence}"
    )
