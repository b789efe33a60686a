"""Plans: the smallest budget, with its replay ratio, that meets limits on loss and forgetting.

A budget is D/N, adaptation tokens per parameter (ATPP). The plan is the smallest budget at which
the limits hold for at least a fraction `confidence` of the posterior draws, at any replay ratio. It
is found on a grid that is refined (`bayeslaw.planning.grid`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from scipy.interpolate import RegularGridInterpolator

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.common.errors import BayeslawError, TableError, argument, unknown
from bayeslaw.common.formatting import digits
from bayeslaw.common.progress import step
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.inference.pools import Fit, check_roles, pair_draws, with_draws
from bayeslaw.laws.law import Law
from bayeslaw.laws.steps import Bases, Departure, Repetition
from bayeslaw.planning.grid import REPLAY_RATIOS, Curve
from bayeslaw.planning.planned_run import (
    NEW_BASE,
    PlannedRun,
    common_ranges,
    curve_of,
    deviations,
    extrapolations,
    farness,
    moving_size_effect,
    planned_base,
    spread,
)
from bayeslaw.planning.problem import (
    Deviations,
    Limit,
    Problem,
    binding_limits,
    likeliest,
    monte_carlo,
    numbered,
    refined,
    smallest,
)
from bayeslaw.planning.result import INFEASIBLE, Choice, Plan, cheapest, choice_at, replay_ratios
from bayeslaw.tables.hull import TOO_FAR
from bayeslaw.tables.table import Rows, is_synthetic, of_domains
from bayeslaw.tables.validation import check_units, label_texts

MOST_DRAWS = 4000
"""Most paired draws, evenly spread."""
MOST_PASSES, SETTLED_DISTANCE = 4, 0.05
"""Most repetitions of a plan with the effects of new sizes where it lies, and the distance in log
tokens and replay at which they are near enough."""
BASELINES = {
    "asymptote": "least source loss that pure replay can reach, draw by draw",
    "law": "source law's own loss at D = 0, draw by draw",
}
"""Baselines that are computed from the source law, and their descriptions."""
LIMIT_KINDS = ("latent", "predictive")
"""Whether limits are on latent losses, or on measured losses of a new run."""
type Baseline = float | tuple[float, float] | str | None
"""Argument of `bayeslaw.plan`: a loss, a loss and its standard deviation, a name, or none."""


@step("planning")
def plan(
    *,
    target: Fit | Sequence[Fit],
    source: Fit | Sequence[Fit],
    params: float,
    ptpp: float | None = None,
    max_loss: float | Sequence[float] | None = None,
    max_forgetting: float | Sequence[float] | None = None,
    atpp: float | None = None,
    baseline: Baseline | Sequence[Baseline] = None,
    base: str | None = None,
    unique_tokens: float | None = None,
    confidence: float = 0.9,
    relative: bool = True,
    noise: str | None = None,
    replay_grid: Sequence[float] | Floats | None = None,
    point: Sequence[PointFit] | None = None,
    seed: int = 0,
    note: str = "",
) -> Plan:
    """Smallest budget that meets target and forgetting limits with stated probability.

    The chance-constrained problem is: minimise D/N over D and the replay ratio such that all limits
    hold with probability `confidence`, estimated by the fraction of the posterior draws. Of the
    runs that meet the limits, those as near to the fitted rows as bands were ever measured come
    first.

    At a fixed budget `atpp`, the least replay ratio that meets the limits given is sought; without
    any limit, the ratio whose target loss, as it holds with probability `confidence`, is least.

    Parameters
    ----------
    target, source : Posterior, Pool or PointFit, or a sequence of them
        Fits of the domains adapted to, and of those that may be forgotten. A PointFit has no
        uncertainty.
    params : float
        Parameters N of the model.
    ptpp : float, optional
        Its pre-training tokens per parameter. By default the only value in the tables, if there is
        one; not needed where no law knows it.
    max_loss : float, or a sequence of them
        Limit of the loss of each target, nats per token; may be left out with `atpp`.
    max_forgetting : float, or a sequence of them
        Limit of the rise of the source loss over `baseline`: a fraction of the baseline, at most 1,
        or nats per token; of several sources, one each. May be left out with `atpp`.
    atpp : float, optional
        A fixed budget, adaptation tokens per parameter.
    baseline : float, (float, float), "asymptote" or "law", optional
        Source loss of the un-adapted model: a measured loss in nats per token, or that and its
        standard deviation; the least loss that pure replay can reach; or the source law's loss
        at D = 0, if it is finite. By default the row with
        ``tokens = 0`` of the base in the source's table; for a new base, draws of its loss, if the
        source's law starts from the base. Several sources take a list, in which only the first may
        be a name.
    base : str, optional
        The pre-trained model that the run starts from: its label in the tables' column `base`, or
        "new". The effect of a base with training rows is its posterior, that of a new one is drawn;
        a law that starts from the base takes its losses at ``tokens = 0``, and draws those of a new
        one. By default the only base of that model and stage in the tables, or else a new one.
    unique_tokens : float, optional
        Distinct tokens of the new data. Further ones repeat, and are worth what a target's fit to
        a table with that column says. By default no data repeat.
    confidence : float
        Probability with which all limits must hold.
    relative : bool
        Whether `max_forgetting` is relative to the baseline.
    noise : {"predictive", "latent"}, optional
        Whether the limits are on the measured losses of a new run, the default, or on latent
        losses. The result has the probabilities of both. Plans of point fits alone are latent.
    replay_grid : sequence of float, optional
        Replay ratios searched; the best is then refined between its neighbours. A single value
        fixes r; laws without replay need 1. By default 34 from .005 to .995.
    point : sequence of PointFit, optional
        Fits of the deterministic plan: the targets', then the source's. By default it is made at
        the posterior medians of the reference coordinates.
    seed : int
        Of the noise, and random effects of a size without training rows.
    note : str
        Text copied to the result.

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
    BayeslawError
        If an argument is not valid, or there is no baseline.

    Notes
    -----
    See `bayeslaw.planning.problem` for the method and its references.

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
    request = requested(
        target,
        source,
        max_loss,
        max_forgetting,
        baseline,
        PlannedRun(params, ptpp, base, unique_tokens, seed),
        confidence=confidence,
        relative=relative,
        ratios=REPLAY_RATIOS if replay_grid is None else replay_ratios(replay_grid),
        noise=noise,
        atpp=atpp,
    )
    run, fits, ratios = request.run, list(request.fits.values()), request.ratios
    unconverged = tuple(failure for fit in fits for failure in fit.require_converged())
    # One curve per fit: that of a point fit, or at the posterior medians.
    centres = [curve_of(fit, run, median=True) for fit in point or fits]
    # The deterministic plan is of single curves, so of a single baseline each.
    middle = [float(np.median(s)) if isinstance(s, np.ndarray) else s for s in request.starts]
    deterministic = request.problem(centres, middle)
    points = [not fit.members for fit in point or fits]
    described = "point fits as given"
    if not all(points):
        medians = "posterior medians of the reference coordinates"
        described = f"{medians}, and {described}" if any(points) else medians
    # The values are distances over the measured one, less 1: any plan would be refused.
    if request.far is not None and request.far.values.min() >= TOO_FAR - 1:
        _check_reach(request)
    solved = _solution_with_sizes(request)
    problem = solved.problems[request.noise]
    chosen, best, shown = solved.chosen, solved.best, solved.shown
    level, evidence, outside = _judged(request, shown, refuse=best is None)
    if level == "refuse":
        raise _no_evidence(solved, evidence)
    status = "feasible" if level == "ok" else "feasible, beyond the evidence"
    # The plan lies within the evidence, so the words are of the cheaper one, which does not.
    if solved.cheaper is not None:
        evidence = _judged(request, solved.cheaper)[1]
    error, held_out = dict[str, Any](), math.nan
    if best is None:
        place = chosen.budget, chosen.replay
        error, held_out = monte_carlo(problem, ratios, place)
    latent, measured = (
        choice_at(solved.problems[kind], shown.budget, shown.replay, shown.tokens)
        for kind in LIMIT_KINDS
    )
    shares = pd.DataFrame()
    if 0 < shown.tokens < math.inf:
        of = request.streams, run, shown.tokens, shown.replay
        shares = spread(request.fits, solved.noise, *of)
    return Plan(
        **vars(chosen),
        status="infeasible" if best is not None else status,
        evidence=evidence,
        cheaper=solved.cheaper,
        likeliest=solved.likeliest,
        confidence=confidence,
        draws=problem.draws,
        pairing=solved.pairing,
        noise=request.noise,
        latent=latent,
        measured=measured,
        spread=shares,
        base=request.base,
        baseline=request.baseline,
        limits=request.limits,
        binds="" if best is None else binding_limits(problem, ratios),
        best=best,
        deterministic=choice_at(problem, *smallest(deterministic, ratios)[0]),
        point=described,
        held_out=held_out,
        error=error,
        outside=outside,
        data=common_ranges(fits),
        unconverged=unconverged,
        note=note,
        synthetic=any(is_synthetic(fit.table) for fit in fits),
        seed=seed,
        problem=problem,
        replay_grid=ratios,
        far=request.far,
        run=solved.run,
    )


def _check_reach(request: "Request") -> None:
    """Raise `TableError` for a run too far in params or PTPP, wherever the plan may lie."""
    seen = next(fit.table.frame for fit in request.fits.values() if fit.table is not None)
    # In the middle of the rows in tokens and replay, so that only size and stage can be too far.
    typical = {c: seen[c].median() for c in ("tokens", "replay") if c in seen}
    row = request.run.row.assign(**typical)
    level, words, _ = extrapolations(request.fits, row, refuse=True)
    if level == "refuse":
        raise TableError(f"plan: {words}")


def _no_evidence(solved: "_Solution", evidence: str) -> TableError:
    near, chosen = solved.likeliest, solved.chosen
    within = f"P(both) is at most {near.p_both:.3f}" if near else "there is no run"
    return TableError(
        f"no plan within the evidence: {within} there. Beyond it, at {digits(chosen.atpp)} "
        f"ATPP and {100 * chosen.replay:.1f} % replay: {evidence}"
    )


# -- arguments ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """What a plan is asked of: the arguments of `bayeslaw.plan`, checked and with their defaults.

    `baseline` and `base` are descriptions; `limits` are `Plan.limits`; `far` is from `farness`.
    """

    fits: Mapping[str, Fit]  # by name, those of the targets first
    most: Sequence[float]  # the limit of each fit
    # Of each fit, its place in the order of random numbers: those of the first source come last.
    streams: Sequence[int]
    starts: Sequence[float | Floats | str | None]  # baselines, unpaired; None of a target
    limits: Mapping[str, Any]
    run: PlannedRun
    ratios: Floats
    confidence: float
    relative: bool
    noise: str
    atpp: float | None
    baseline: str
    base: str
    far: RegularGridInterpolator | None

    def problem(
        self,
        curves: Sequence[Curve],
        starts: Sequence[float | Floats | str | None],
        index: Sequence[Ints] | None = None,
    ) -> Problem:
        """The limits on latent losses, for curves of all fits and baselines of the sources."""
        # The limits on measured losses are made from these by `with_noise`.
        silent = Deviations({"noise": np.zeros(curves[0].draws)})
        places: Sequence[Ints | None] = index or [None] * len(curves)
        limits = [
            Limit(curve, most, silent, draws, start, self.relative and start is not None)
            for curve, most, draws, start in zip(curves, self.most, places, starts, strict=True)
        ]
        fixed = None if self.atpp is None else math.log(self.atpp)
        return Problem(tuple(limits), self.confidence, fixed=fixed)


def requested(
    target: Fit | Sequence[Fit],
    source: Fit | Sequence[Fit],
    max_loss: float | Sequence[float] | None,
    max_forgetting: float | Sequence[float] | None,
    baseline: Baseline | Sequence[Baseline],
    run: PlannedRun,
    *,
    ratios: Floats,
    confidence: float,
    relative: bool,
    noise: str | None,
    atpp: float | None = None,
) -> Request:
    """Check the arguments of `bayeslaw.plan`, and find the base and the baselines."""
    targets, sources = (
        list(fits) if isinstance(fits, Sequence) else [fits] for fits in (target, source)
    )
    fits = [*targets, *sources]
    for fit in fits:
        if not isinstance(fit, PointFit):
            with_draws(fit, "plan")
    if atpp is None and (max_loss is None or max_forgetting is None):
        lacking = "max_loss" if max_loss is None else "max_forgetting"
        raise BayeslawError(
            f"a plan needs {lacking} ({argument(lacking, 0.02 if 'f' in lacking else 1.8)}), or a "
            f"fixed budget ({argument('atpp', 8)})."
        )
    if atpp is not None and max_loss is None and max_forgetting is None and len(targets) > 1:
        raise BayeslawError("without limits, the best loss is of one target; give one, or limits.")
    # A limit that is not given always holds.
    losses, rises = (
        np.atleast_1d(np.asarray(x, float)).tolist() if x is not None else [math.inf] * len(those)
        for x, those in ((max_loss, targets), (max_forgetting, sources))
    )
    given: list[Any] = baseline if isinstance(baseline, list) else [baseline]
    given = given * len(sources) if given == [None] else given
    run = replace(run, ptpp=stage_of(fits, run.ptpp))
    for what, values in (("max_forgetting", rises), ("baseline", given)):
        if len(values) != len(sources):
            few = f"{len(sources)} sources and {len(values)} of {what}"
            raise BayeslawError(f"{few}; give each source its own.")
    for name in given[1:]:
        if isinstance(name, str):
            raise BayeslawError(
                f"baseline={name!r}: only the first source may have a baseline by name; give "
                "the others' measured losses."
            )
    if not targets or len(targets) != len(losses):
        few = f"{len(targets)} targets and {len(losses)} limits max_loss"
        raise BayeslawError(f"{few}; give each target its own.")
    given_losses = [] if max_loss is None else losses
    given_rises = [] if max_forgetting is None else rises
    _check_numbers(run, given_losses, given_rises, confidence, relative, atpp)
    _check_fits(targets, sources, run, ratios)
    # A law that was fitted to one ratio knows no other.
    fixed = {law.held["replay"] for law in laws_of(*fits) if "replay" in law.held}
    run = replace(run, replay=fixed.pop()) if fixed else run
    label, base = planned_base(fits, run)
    run = replace(run, base=label)
    known = [baseline_of(*pair, run) for pair in zip(given, sources, strict=True)]
    levels, texts = zip(*known, strict=True)
    points = [fit for fit in fits if not fit.members]
    if noise is None:
        noise = "latent" if len(points) == len(fits) else "predictive"
    if noise not in LIMIT_KINDS:
        raise BayeslawError(unknown("noise", noise, LIMIT_KINDS))
    if noise == "predictive" and points:
        raise BayeslawError(
            f"a point fit of {points[0].name} has no noise; give a posterior or "
            f"{argument('noise', 'latent')}."
        )
    names = numbered("target", len(targets)) + numbered("source", len(sources))
    named = dict(zip(names, fits, strict=True))
    several = {"max_loss": losses, "max_forgetting": rises, "baseline": [*levels]}
    limits = {name: getattr(run, name) for name in ("params", "ptpp", "base", "unique_tokens")}
    limits |= {name: each[0] if len(each) == 1 else each for name, each in several.items()}
    limits |= {"max_loss": None} if max_loss is None else {}
    limits |= {"max_forgetting": None} if max_forgetting is None else {}
    limits |= {"atpp": atpp} if atpp is not None else {}
    starts = [baseline_draws(*pair, run) for pair in zip(levels, sources, strict=True)]
    return Request(
        fits=named,
        most=losses + rises,
        streams=[*range(len(targets)), len(fits) - 1, *range(len(targets), len(fits) - 1)],
        starts=[*(None for _ in targets), *starts],
        limits=limits | {"relative": relative},
        run=run,
        ratios=ratios,
        confidence=confidence,
        relative=relative,
        noise=noise,
        atpp=atpp,
        baseline="; ".join(dict.fromkeys(texts)),
        base=base,
        far=farness(named, run),
    )


def _check_numbers(
    run: PlannedRun,
    losses: list[float],
    rises: list[float],
    confidence: float,
    relative: bool,
    atpp: float | None,
) -> None:
    """Raise `BayeslawError` unless all numbers are in range."""
    positive = [("params", run.params, ""), ("ptpp", run.ptpp, ""), ("atpp", atpp, "")]
    positive += [("max_loss", loss, "") for loss in losses]
    positive.append(("unique_tokens", run.unique_tokens, " of tokens"))
    for name, value, of_what in positive:
        if value is not None and not 0 < value < math.inf:
            raise BayeslawError(f"{name}={value:g}: give a positive number{of_what}.")
    for rise in rises:
        if not -1 < rise < math.inf:
            raise BayeslawError(f"max_forgetting={rise:g}: 0.02 allows a rise of 2 %.")
        if relative and rise > 1:
            raise BayeslawError(
                f"max_forgetting={rise:g}: give a fraction, not a percentage; {rise / 100:g} "
                f"allows a rise of {rise:g} %. Limits in nats need relative=False (--absolute)."
            )
    if not 0 < confidence < 1:
        raise BayeslawError(f"confidence={confidence:g} is not between 0 and 1; 0.9 is 90 %.")


def _check_fits(
    targets: Sequence[Fit], sources: Sequence[Fit], run: PlannedRun, ratios: Floats
) -> None:
    """Raise `BayeslawError` unless the fits know what is planned."""
    for law in laws_of(*targets):
        if run.unique_tokens is not None and not law.step(Repetition):
            raise BayeslawError(
                f"unique_tokens: {law.name} was fitted to a table without the column "
                "unique_tokens, so it does not know what repeated tokens are worth; add "
                "the column and fit again."
            )
    if any(_same(*pair) for pair in product(targets, sources)):
        raise BayeslawError(
            "target and source are one posterior; give that of the domain adapted to, and "
            "that of the domain that may be forgotten."
        )
    check_roles(targets, sources)
    # Tokens and replay are what the plan looks for.
    asked = run.row.drop(columns=["tokens", "replay"])
    for law in laws_of(*targets, *sources):
        only = law.held.get("replay", 1.0)
        if "replay" not in law.columns and (ratios != only).any():
            why = "does not know replay, so no ratio can be planned: fit one that does, such as"
            why = f"{why} form1n" if only == 1 else f"was fitted to replay {only:g} alone"
            raise BayeslawError(
                f"the law {law.name} {why}, or fix replay_grid=[{only:g}] (--replay {only:g})."
            )
        law.at_held(asked, "plan")
    for fit in (*targets, *sources):
        if fit.table is not None:
            check_units(asked, "plan", fit.table.frame)


def stage_of(fits: Sequence[Fit], ptpp: float | None) -> float | None:
    """Pre-training tokens per parameter: as given, or the only value in the fits' tables."""
    tables = [fit.table.frame for fit in fits if fit.table is not None]
    known = {float(value) for rows in tables if "ptpp" in rows for value in rows["ptpp"]}
    if ptpp is None and len(known) == 1:
        return known.pop()
    for fit in fits:
        if own := [c for law in fit.laws for c in law.declared if c in law.columns]:
            raise BayeslawError(
                f"{fit.name}: a plan does not know {', '.join(own)}; fit the rows of one value, "
                f"such as {argument('where', f'{own[0]} == 8')}."
            )
    if ptpp is None and any("ptpp" in fit.columns for fit in fits):
        raise BayeslawError("a plan needs ptpp= (--ptpp): the laws know pre-training budgets.")
    return ptpp


def baseline_of(
    baseline: Baseline, source: Fit, run: PlannedRun
) -> tuple[float | tuple[float, float] | str, str]:
    """Baseline of forgetting, and its description.

    None stands for the row with ``tokens = 0`` of the base in the source's table, on its domain.
    """
    if isinstance(baseline, str) and baseline not in BASELINES:
        raise BayeslawError(unknown("baseline", baseline, BASELINES))
    if baseline is not None and not isinstance(baseline, str):
        loss, *sd = np.atleast_1d(np.asarray(baseline, float)).tolist()
        if not 0 < loss < math.inf or any(not 0 <= each < math.inf for each in sd) or len(sd) > 1:
            stated = f"{loss:g}" if not sd else f"{baseline}"
            raise BayeslawError(
                f"baseline={stated}: give a source loss in nats per token, or that and its "
                "standard deviation."
            )
        text = "measured source loss of the un-adapted model, as given"
        return ((loss, sd[0]), f"{text}, with sd {sd[0]:g}") if sd else (loss, text)
    params, ptpp, base = run.params, run.ptpp, run.base
    # At D = 0 no token repeats, and a source need not know what repeated ones are worth.
    finite = np.isfinite(curve_of(source, replace(run, unique_tokens=None)).loss_at_zero()).all()
    ways = ", ".join(repr(name) for name in BASELINES if finite or name != "law")
    why = f"pass baseline= (--baseline) as the measured source loss of that model, or one of {ways}"
    if not finite:
        why = (
            f"the law {source.name} has no value at D = 0, where its term in D diverges, so "
            f"the un-adapted model's loss cannot come from the fit: {why}"
        )
    if baseline == "law" and not finite:
        raise BayeslawError(f"baseline='law': {why}.")
    if baseline is not None:
        return baseline, BASELINES[baseline]
    bases = law_of_bases(source)
    if base == NEW_BASE and bases is not None and NEW_BASE not in bases.known:
        return "drawn", "starting loss of a new base, drawn from the law of the bases"
    if source.table is None:
        raise BayeslawError(f"No baseline for the un-adapted model: {why}.")
    rows, name = of_domains(source.table.baselines, source.table.frame), source.table.name
    for column, value in (("params", params), ("ptpp", ptpp)):
        if column in rows and value is not None:
            rows = rows[np.isclose(rows[column], value, rtol=1e-6, atol=0)]
    if base is not None and "base" in rows:
        rows = rows[label_texts(rows["base"]) == base]
    if len(rows) != 1:
        raise BayeslawError(
            f"{name}: {len(rows)} rows with tokens = 0 for params = {params:g}"
            f"{'' if ptpp is None else f', ptpp = {ptpp:g}'}"
            f"{'' if base is None else f', base {base}'}, not one; {why}."
        )
    return float(rows["loss"].iloc[0]), f"row with tokens = 0 of {name}"


def laws_of(*fits: Fit) -> list[Law]:
    return [law for fit in fits for law in fit.laws]


def _same(one: Fit, other: Fit) -> bool:
    """Whether two fits are one posterior, or pools of the same posteriors."""
    pairs = [*zip(one.members.values(), other.members.values(), strict=False)]
    # A file that is loaded twice gives two objects with the same draws.
    same = all(a.draws is b.draws or a.draws.equals(b.draws) for a, b in pairs)
    return bool(pairs) and same and len(one.members) == len(other.members)


def law_of_bases(source: Fit) -> Bases | None:
    """Losses of pre-trained models that a source's fit knows, and their laws, if it does."""
    laws = (member.law for member in source.members.values())
    return next((each.bases for law in laws if (each := law.step(Departure))), None)


def baseline_draws(
    baseline: float | tuple[float, float] | str, source: Fit, run: PlannedRun
) -> float | Floats | str:
    """Baseline of a limit: a number, a name, or draws of shape (draws,).

    Draws of a new base are those that the source's curve starts from, where its law starts from
    the base.
    """
    # A stream beside those of noise and effects, which have the same seed.
    row, rng = run.row, np.random.default_rng([run.seed, 11])
    if isinstance(baseline, tuple):
        return baseline[0] + baseline[1] * rng.standard_normal(source.count)
    known = law_of_bases(source)
    if baseline != "drawn" or known is None:
        return baseline
    losses = np.empty(source.count)
    for fit, draws, at in source.by_member():
        if fit.law.step(Departure):
            start = np.broadcast_to(fit.covariates(Rows(row))["start"][..., 0], fit.count)
        else:
            drawn = known.draws(row, fit.count, [int(rng.integers(2**32))])
            start = known.logs(row, drawn)[0][:, 0]
        losses[at] = np.exp(start)[draws]
    return losses


# -- steps ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Solution:
    """The limits for paired draws, and their plan, or `best`, the likeliest choice, without one."""

    run: PlannedRun  # with the tokens and the replay ratio at which effects of new sizes are taken
    problems: Mapping[str, Problem]  # on latent and on measured losses
    pairing: str
    noise: list[Deviations]  # of each fit, for all of its draws
    chosen: Choice
    best: Choice | None
    cheaper: Choice | None = None  # than one within the evidence
    likeliest: Choice | None = None  # within the evidence, beside one beyond

    @property
    def shown(self) -> Choice:
        return self.best or self.chosen


def _judged(
    request: Request, at: Choice, *, refuse: bool = False
) -> tuple[str, str, tuple[str, ...]]:
    """`extrapolations` of a choice; one of no tokens, or of none at all, is not judged."""
    if not 0 < at.tokens < math.inf:
        return "ok", "", ()
    row = request.run.row.assign(tokens=at.tokens, replay=at.replay)
    return extrapolations(request.fits, row, refuse=refuse)


@step("planning: losses by tokens and replay, and the least budget")
def _solution(request: Request) -> _Solution:
    """The plan with the effects of new sizes at the tokens and replay of the request's run.

    A plan within the evidence is searched first, unless the smallest budget of all lies there.
    """
    run, far, streams = request.run, request.far, request.streams
    fits = list(request.fits.values())
    # Random numbers are drawn in the order of the streams; then all is in that of the fits again.
    in_turn = [fits[streams.index(k)] for k in range(len(fits))]
    drawn, pairing = pair_draws(in_turn)
    noise = deviations(in_turn, run)
    index, noise = [drawn[k] for k in streams], [noise[k] for k in streams]
    draws_of = zip(fits, streams, index, strict=True)
    curves = [curve_of(fit, run, seed=[run.seed, k]).take(i) for fit, k, i in draws_of]
    paired = [
        start[i] if isinstance(start, np.ndarray) else start
        for start, i in zip(request.starts, index, strict=True)
    ]
    latent = request.problem(curves, paired, index)
    measured = latent.with_noise(part.take(i) for part, i in zip(noise, index, strict=True))
    problems = {
        kind: problem.thinned(MOST_DRAWS)
        for kind, problem in zip(LIMIT_KINDS, (latent, measured), strict=True)
    }
    chosen, best = _search(problems[request.noise], request.ratios)
    solved = _Solution(run, problems, pairing, noise, chosen, best)
    # No run at all is within the evidence: the smallest budget is all there is to show.
    if far is None or (far.values > 0).all():
        return solved
    within = {kind: replace(problem, beyond=far) for kind, problem in problems.items()}
    # No tokens at all lie beyond the evidence, as the fewest that `far` knows.
    if best is None and far((max(chosen.budget, far.grid[0][0]), chosen.replay)) <= 0:
        return replace(solved, problems=within)
    # The smallest budget lies beyond the evidence, or there is none: look within it.
    nearer, likeliest = _search(within[request.noise], request.ratios)
    if likeliest is None:
        cheaper = chosen if best is None else None
        return replace(solved, problems=within, chosen=nearer, best=None, cheaper=cheaper)
    if best is None:
        return replace(solved, likeliest=likeliest)
    return replace(solved, problems=within, best=likeliest)


def _solution_with_sizes(request: Request) -> _Solution:
    """The plan with the effects of new sizes at the plan itself."""
    solved = _solution(request)
    if not any(moving_size_effect(fit, request.run) for fit in request.fits.values()):
        return solved
    # Without it, plans of a new size beside three had P(both) of .87 to .88 where .90 was stated.
    for _ in range(MOST_PASSES):
        there, run = solved.shown, solved.run
        if not 0 < there.tokens < math.inf:
            break
        moved = abs(math.log(there.tokens / (run.tokens or run.params)))
        if max(moved, abs(there.replay - run.replay)) < SETTLED_DISTANCE:
            break
        run = replace(run, tokens=there.tokens, replay=there.replay)
        solved = _solution(replace(request, run=run))
    return solved


def _search(problem: Problem, ratios: Floats) -> tuple[Choice, Choice | None]:
    """The smallest feasible choice, and if there is none the one most likely to meet the limits."""
    (chosen,) = cheapest(problem, ratios)
    if chosen is not INFEASIBLE:
        return chosen, None
    count, budget, ratio = likeliest(problem, ratios)
    if count >= problem.rank and problem.fixed is not None:
        return choice_at(problem, budget, ratio), None
    if count >= problem.rank:  # feasible between the nodes
        near = [np.array([budget - 0.5, budget]), np.array([ratio])]
        return choice_at(problem, *refined(problem, near, ratios[[0, -1]])), None
    best = choice_at(problem, budget, ratio) if count else replace(INFEASIBLE, p_both=0.0)
    return INFEASIBLE, best
