"""`plan`: the smallest budget, with its replay ratio, that meets limits on loss and forgetting."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import LawError, TableError
from bayeslaw.common.formatting import digits
from bayeslaw.common.progress import step
from bayeslaw.inference.pools import Fit
from bayeslaw.planning.arguments import are_measured, check_fits, check_limits
from bayeslaw.planning.baseline import Baseline, baseline_of
from bayeslaw.planning.chance_constraint import Candidate, Problem
from bayeslaw.planning.choices import INFEASIBLE, Choice, choice_at, replay_ratios
from bayeslaw.planning.domains import domains_of, spread
from bayeslaw.planning.evidence import Farness, common_ranges, farness, verdict_on_run
from bayeslaw.planning.lattice import lattice_of, searched_budgets
from bayeslaw.planning.likeliest import binding, likeliest
from bayeslaw.planning.limits import Limit
from bayeslaw.planning.monte_carlo import monte_carlo
from bayeslaw.planning.planned_run import PlannedRun, run_of
from bayeslaw.planning.result import BEYOND, FEASIBLE, Plan
from bayeslaw.planning.smallest import smallest
from bayeslaw.tables.covariates import FLOPS
from bayeslaw.tables.table import is_synthetic
from bayeslaw.tables.verdict import TOO_FAR

RATIOS = 34
LEAST_RATIO = 0.005
"""Replay ratios of the lattice of a plan; the least of them, and of 1 less the greatest."""


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
    unconverged: list[str] = []
    for fit in both:
        unconverged += fit.require_converged()

    domains, pairing = domains_of(both, run)
    start = baseline_of(baseline, domains[1])
    # A limit that is not given always holds.
    most_loss = math.inf if max_loss is None else float(max_loss)
    most_rise = math.inf if max_forgetting is None else float(max_forgetting)
    fixed = None if atpp is None else math.log(atpp)
    budgets = searched_budgets(both, run.params) if fixed is None else np.array([fixed])
    everywhere = Problem(
        (
            Limit(domains[0], most_loss),
            Limit(domains[1], most_rise, start.loss, relative),
        ),
        lattice_of(domains, budgets, ratios),
        confidence,
        measured=measured,
        fixed=fixed,
    )
    far = _far_or_refused(fits, run)
    answer = _answer(everywhere, far)
    problem = answer.problem
    best = answer.best
    shown = best or choice_at(problem, answer.candidate)
    verdict, outside = verdict_on_run(
        fits, run.at(shown.tokens, shown.replay), refuse=best is None
    )
    if verdict.level == "refuse":
        raise _no_evidence(losses, shown, answer.likeliest, verdict.words)
    evidence = verdict.evidence
    if answer.cheaper is not None:
        # The plan lies within the evidence, so the words are of the cheaper one, which does not.
        cheaper_run = run.at(answer.cheaper.tokens, answer.cheaper.replay)
        evidence = verdict_on_run(fits, cheaper_run)[0].evidence
    if best is None:
        status = FEASIBLE if verdict.level == "ok" else BEYOND
        found = shown
        binds = ""
        error, held_out = monte_carlo(problem, answer.candidate)
    else:
        status = "infeasible"
        found = INFEASIBLE
        binds = binding(problem)
        error, held_out = monte_carlo(problem, None)
    parts = pd.DataFrame()
    if answer.candidate is not None:
        named = dict(zip(fits, domains, strict=True))
        parts = spread(named, shown.tokens, shown.replay, measured=measured)
    other_problem = replace(everywhere, measured=not measured)
    other_plan = found
    other_status = status
    # The two kinds of losses of point fits are equal, and so are their plans.
    if everywhere.noisy:
        other_plan, other_status = _plan_of(other_problem, far, fits)
    if replay is None:
        outside += _at_end(ratios, shown.replay)
    arguments = {
        "params": run.params,
        "ptpp": run.ptpp,
        "base": run.base,
        "unique_tokens": run.unique_tokens,
        **limits,
        "baseline": start.argument,
        "relative": relative,
    }
    if atpp is not None:
        arguments["atpp"] = atpp
    return Plan(
        **vars(found),
        status=status,
        evidence=evidence,
        cheaper=answer.cheaper,
        likeliest=answer.likeliest,
        best=best,
        confidence=confidence,
        draws=problem.draws,
        pairing=pairing,
        losses=losses,
        other=choice_at(other_problem, answer.candidate, shown.tokens),
        other_plan=other_plan,
        other_status=other_status,
        spread=parts,
        base=base_words,
        baseline=start.words,
        limits=arguments,
        binds=binds,
        deterministic=_deterministic(problem),
        held_out=held_out,
        error=error,
        outside=outside,
        data=common_ranges(both),
        unconverged=tuple(unconverged),
        synthetic=any(is_synthetic(fit.table) for fit in both),
        seed=seed,
        problem=problem,
        run=run,
    )


def fitted_ratios(fits: Collection[Fit]) -> Floats:
    """Replay ratios that all fits have rows of; from 0 to 1 without tables that have several."""
    low, high = common_ranges(fits).get("replay", (0.0, 1.0))
    if not low < high:
        low = 0.0
        high = 1.0
    least = max(low, LEAST_RATIO)
    most = min(high, 1 - LEAST_RATIO)
    return np.linspace(least, most, RATIOS)


def _at_end(ratios: Floats, ratio: float) -> tuple[str, ...]:
    """What to do about a plan at an end of the fitted ratios."""
    for name, end in (("least", ratios[0]), ("greatest", ratios[-1])):
        if np.isclose(ratio, end) and LEAST_RATIO < end < 1 - LEAST_RATIO:
            how = "replay= (--replay) searches beyond"
            return (f"the plan has the {name} fitted replay ratio; {how}.",)
    return ()


class _Answer(NamedTuple):
    """The problem that is answered, its candidate, and the choices that a plan has beside it.

    Of a problem without a plan, the candidate is that of `best`, if any draw meets the limits.
    """

    problem: Problem
    candidate: Candidate | None
    best: Choice | None = None
    cheaper: Choice | None = None
    likeliest: Choice | None = None


def _answer(everywhere: Problem, far: Farness | None) -> _Answer:
    """The plan within the evidence if there is one, and what else there is to know."""
    anywhere = smallest(everywhere, exact=True)
    # Where no run at all is within the evidence, the smallest budget is all there is to show.
    none_within = far is None or far.least > 0
    within = everywhere if none_within else replace(everywhere, far=far)
    if anywhere is not None and _is_within(within, anywhere):
        return _Answer(within, anywhere)
    nearest = smallest(within, exact=True)
    if nearest is not None:
        cheaper = None
        if anywhere is not None and anywhere.budget < nearest.budget:
            cheaper = choice_at(within, anywhere)
        return _Answer(within, nearest, cheaper=cheaper)
    best = likeliest(within)
    candidate = best if best.meeting else None
    choice = replace(INFEASIBLE, p_both=0.0)
    if candidate is not None:
        choice = choice_at(within, candidate)
    if anywhere is not None:
        return _Answer(everywhere, anywhere, likeliest=choice)
    return _Answer(within, candidate, best=choice)


def _is_within(problem: Problem, candidate: Candidate) -> bool:
    """Whether a candidate lies within the evidence of a problem."""
    if problem.far is None:
        return True
    return bool(problem.far((candidate.budget, candidate.ratio)) <= 0)


def _plan_of(
    everywhere: Problem, far: Farness | None, fits: Mapping[str, Fit]
) -> tuple[Choice, str]:
    """A plan and its status, of a kind of losses that is not the one asked for.

    A plan that would be refused counts as infeasible.
    """
    answer = _answer(everywhere, far)
    if answer.best is not None:
        return INFEASIBLE, "infeasible"
    found = choice_at(answer.problem, answer.candidate)
    run = everywhere.limits[0].domain.run
    row = run.at(found.tokens, found.replay)
    verdict, _ = verdict_on_run(fits, row, refuse=True)
    if verdict.level == "refuse":
        return INFEASIBLE, "infeasible"
    return found, FEASIBLE if verdict.level == "ok" else BEYOND


def _deterministic(problem: Problem) -> Choice:
    """The plan of the median losses, with its probabilities under all draws.

    A median loss meets its limit if at least half of the draws do.
    """
    limits = []
    for limit in problem.limits:
        if limit.baseline is not None:
            limit = replace(limit, baseline=float(np.median(limit.baseline)))
        limits.append(limit)
    medians = replace(
        problem,
        limits=tuple(limits),
        confidence=0.5,
        measured=False,
        jointly=False,
        far=None,
    )
    return choice_at(problem, smallest(medians))


def _far_or_refused(fits: Mapping[str, Fit], run: PlannedRun) -> Farness | None:
    """`farness`; `TableError` for a run too far in params or PTPP, wherever the plan may lie."""
    far = farness(fits, run)
    # The values are distances over the measured one, less 1: any plan would be refused.
    if far is None or far.least < TOO_FAR - 1:
        return far
    tables = [fit.table for fit in fits.values() if fit.table is not None]
    rows = tables[0].frame
    # In the middle of the rows in tokens and replay, so that only size and stage are too far.
    typical = {}
    for name in ("tokens", "replay"):
        if name in rows:
            typical[name] = rows[name].median()
    row = run.row.assign(**typical)
    verdict_on_run(fits, row, refuse=True)[0].require("plan")
    return far


def _no_evidence(
    losses: str, chosen: Choice, near: Choice | None, evidence: str
) -> TableError:
    within = "there is no run"
    if near is not None:
        within = f"P(both) of {losses} losses is at most {near.p_both:.3f}"
    return TableError(
        f"no plan within the evidence: {within} there. Beyond it, at {digits(chosen.atpp)} "
        f"ATPP and {100 * chosen.replay:.1f} % replay: {evidence}"
    )
