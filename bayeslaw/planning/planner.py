"""Plans: the smallest budget, with its replay ratio, that meets limits on loss and forgetting.

A budget is D/N, adaptation tokens per parameter (ATPP). At each replay ratio, each posterior draw
has a set of budgets that meet all limits (`bayeslaw.planning.feasible_budgets`). The plan is the
smallest budget that lies in the sets of at least a fraction `confidence` of the draws.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.inference.pools import Pool
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.terms import ORIGIN
from bayeslaw.planning.arguments import (
    Baseline,
    baseline_draws,
    baseline_of,
    check_limits,
    check_repetition,
    check_sources,
    planned_base,
    replay_ratios,
)
from bayeslaw.planning.chance_constraints import Problem, Source
from bayeslaw.planning.choices import (
    INFEASIBLE,
    Choice,
    binding_limits,
    bootstrap,
    choice_at,
    near_optimal,
    split_half_probability,
)
from bayeslaw.planning.deviations import Fit, deviations, planned_row, spread
from bayeslaw.planning.fits import (
    autocorrelation_length,
    common_ranges,
    convergence_failures,
    curve_of,
    extrapolations,
    noise_kind,
    pair_draws,
    point_description,
)
from bayeslaw.planning.replay_search import most_probable, smallest_budget
from bayeslaw.planning.result import Plan
from bayeslaw.simulation.worlds import World, paper_world

MOST = 4000
"""Most paired draws, evenly spread, of laws without closed-form budgets."""
REPLAY_GRID, COARSE_GRID = np.linspace(0.005, 0.995, 199), np.linspace(0.005, 0.995, 34)
"""Default grids of replay ratios, for laws with a closed form and for other laws."""


def plan(
    *,
    target: Fit | Sequence[Fit],
    source: Fit | Sequence[Fit],
    params: float,
    ptpp: float,
    max_loss: float | Sequence[float],
    max_forgetting: float | Sequence[float],
    max_cvar: float = math.inf,
    baseline: Baseline | Sequence[Baseline] = None,
    base: str | None = None,
    unique_tokens: float | None = None,
    confidence: float = 0.9,
    relative: bool = True,
    noise: str | None = None,
    replay_grid: Sequence[float] | Floats | None = None,
    point: Sequence[PointFit] | None = None,
    seed: int = 0,
    allow_unconverged: bool = False,
    note: str = "",
) -> Plan:
    """Smallest budget that meets target and forgetting limits with stated probability.

    The chance-constrained problem is: minimise D/N over D and the replay ratio such that all limits
    hold with probability `confidence`. It is solved exactly over D for the posterior draws.

    Parameters
    ----------
    target : Posterior, Pool or PointFit, or a sequence of them
        Fits of the domains adapted to. A PointFit has no uncertainty.
    source : Posterior, Pool or PointFit, or a sequence of them
        Fits of the domains that may be forgotten.
    params, ptpp : float
        Parameters N of the model, and its pre-training tokens per parameter.
    max_loss : float, or a sequence of them
        Limit of the loss of each target, nats per token.
    max_forgetting : float, or a sequence of them
        Limit of the rise of the source loss over `baseline`: a fraction of the baseline, or nats
        per token; of several sources, one each.
    max_cvar : float, optional
        Limit of the conditional value at risk of forgetting, in the unit of `max_forgetting`: over
        the fraction ``1 - confidence`` of the draws with the largest rises, the mean of the rise
        minus `max_forgetting` must be at most this. 0 keeps that mean within `max_forgetting`. Of
        several sources it is for the first.
    baseline : float, (float, float), "asymptote", "law" or "matched", optional
        Source loss of the un-adapted model: a measured loss in nats per token, or that and its
        standard deviation; the least loss that pure replay can reach; the source law's loss at
        D = 0, if it is finite; or the loss of pure replay for the same D. By default the row with
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
        fixes r. By default 199 from .005 to .995, or 34 for laws without closed-form budgets.
    point : sequence of PointFit, optional
        Fits of the deterministic plan: the targets', then the source's. By default it is made at
        the posterior medians of the reference coordinates.
    seed : int
        Of the noise, the bootstrap, and random effects of a size without training rows.
    allow_unconverged : bool
        Plan although a posterior failed the convergence gate; the result lists the failures.
    note : str
        Text copied to the result.

    Returns
    -------
    Plan

    Raises
    ------
    NotConverged
        If a posterior failed the gate and `allow_unconverged` is false.
    BayeslawError
        If an argument is not valid, or there is no baseline.

    Notes
    -----
    See `bayeslaw.planning.chance_constraints` for the method and its references.

    Examples
    --------
    The paper's use case with the true laws of its synthetic world, so without uncertainty:

    >>> import bayeslaw as bl
    >>> from bayeslaw.planning.planner import true_fits
    >>> world = bl.paper_world()
    >>> target, source = true_fits(world)
    >>> found = bl.plan(target=target, source=source, baseline=world.baseline(), **world.limits)
    >>> round(found.atpp, 1), round(found.replay, 2)
    (8.9, 0.34)
    """
    targets = [target] if isinstance(target, Posterior | Pool | PointFit) else list(target)
    most = [float(loss) for loss in np.atleast_1d(np.asarray(max_loss, float))]
    sources = [source] if isinstance(source, Posterior | Pool | PointFit) else list(source)
    rises = [float(rise) for rise in np.atleast_1d(np.asarray(max_forgetting, float))]
    given = baseline if isinstance(baseline, list) else [baseline]
    given = given * len(sources) if given == [None] else given
    check_sources(sources, rises, given)
    fits = [*targets, *sources[1:], sources[0]]
    for rise in rises:
        check_limits(targets, most, params, ptpp, rise, max_cvar, confidence)
    check_repetition(targets, unique_tokens)
    label, started = planned_base(fits, params, ptpp, base)
    known = [
        baseline_of(own, fit, params, ptpp, label) for own, fit in zip(given, sources, strict=True)
    ]
    levels, described = [level for level, _ in known], dict.fromkeys(text for _, text in known)
    kind = noise_kind(noise, fits)
    unconverged = convergence_failures(fits, allow_unconverged)
    rng = np.random.default_rng(seed)
    index, pairing = pair_draws(fits)
    curves = [
        curve_of(fit, params, ptpp, base=label, unique=unique_tokens, seed=[seed, k]).take(i)
        for k, (fit, i) in enumerate(zip(fits, index, strict=True))
    ]
    count, row = len(targets), planned_row(params, ptpp, label)
    # As in `fits`, the first source comes last.
    starts = [
        baseline_draws(level, fit, row, seed)
        for level, fit in zip((*levels[1:], levels[0]), fits[count:], strict=True)
    ]
    own = [
        start if isinstance(start, float | str) else start[i]
        for start, i in zip(starts, index[count:], strict=True)
    ]
    silent = Problem(
        targets=tuple(curves[:count]),
        sources=tuple(map(Source, curves[count:], (*rises[1:], rises[0]), own)),
        max_loss=tuple(most),
        relative=relative,
        confidence=confidence,
        noise=tuple(np.zeros(len(i)) for i in index),
        max_cvar=max_cvar,
        index=tuple(index),
    )
    noisy = deviations(fits, params, ptpp, label, seed)
    measured = silent.with_noise([each.take(i) for each, i in zip(noisy, index, strict=True)])
    problem, block = measured if kind == "predictive" else silent, autocorrelation_length(fits)
    if not problem.closed_form and problem.draws > MOST:
        some = np.linspace(0, problem.draws - 1, MOST).round().astype(int)
        block = math.ceil(block * MOST / problem.draws)
        problem, silent, measured = (each.take(some) for each in (problem, silent, measured))
    if replay_grid is None:
        replay_grid = REPLAY_GRID if problem.closed_form else COARSE_GRID
    ratios = replay_ratios(replay_grid)
    budget, replay, per_ratio, best = _search(problem, ratios)
    chosen, feasible = choice_at(problem, budget, replay), best is None
    error, held_out = dict[str, Any](), math.nan
    if feasible:
        # A plan made on half of the draws has twice the variance.
        near, sets = near_optimal(problem, ratios, per_ratio, replay, 2 * block)
        error = bootstrap(problem, near, sets, rng, block)
        held_out = split_half_probability(problem, near, sets)
    medians = [
        curve_of(fit, params, ptpp, base=label, unique=unique_tokens, median=True)
        for fit in point or fits
    ]
    deterministic = replace(
        silent,
        targets=tuple(medians[:count]),
        sources=tuple(
            replace(
                each, curve=curve, baseline=start if isinstance(start, str) else np.median(start)
            )
            for each, curve, start in zip(silent.sources, medians[count:], starts, strict=True)
        ),
        noise=(np.zeros(1),) * len(fits),
    )
    shown, beside = chosen if feasible else best, best or chosen
    names = problem.names[:count]
    several = len(sources) > 1
    names += tuple(f"source {i + 2}" for i in range(len(sources) - 1))
    named = dict(zip((*names, "source 1" if several else "source"), fits, strict=True))
    return Plan(
        **vars(chosen),
        status="feasible" if feasible else "infeasible",
        confidence=confidence,
        draws=problem.draws,
        pairing=pairing,
        noise=kind,
        latent=shown and choice_at(silent, shown.budget, shown.replay, shown.tokens),
        measured=shown and choice_at(measured, shown.budget, shown.replay, shown.tokens),
        spread=spread(
            named, noisy, params, ptpp, label, shown.tokens, shown.replay, seed, unique_tokens
        )
        if shown and 0 < shown.tokens < math.inf
        else pd.DataFrame(),
        base=started,
        baseline="; ".join(described),
        limits={
            "params": params,
            "ptpp": ptpp,
            "base": label,
            "unique_tokens": unique_tokens,
            "max_loss": most if len(most) > 1 else most[0],
            "max_forgetting": rises if several else rises[0],
            "max_cvar": max_cvar,
            "relative": relative,
            "baseline": levels if several else levels[0],
        },
        binds="" if feasible else binding_limits(problem, ratios),
        best=best,
        deterministic=choice_at(problem, *smallest_budget(deterministic, ratios)[:2]),
        point=point_description(point or fits),
        held_out=held_out,
        error=error,
        outside=extrapolations(named, params, ptpp, beside.replay, beside.atpp),
        data=common_ranges(fits),
        unconverged=unconverged,
        note=note,
        seed=seed,
        problem=problem,
        deterministic_problem=deterministic,
        replay_grid=ratios,
    )


def _search(problem: Problem, ratios: Floats) -> tuple[float, float, Floats, Choice | None]:
    """`smallest_budget`, and, if it is infinite, the choice most likely to meet all limits."""
    budget, replay, per_ratio = smallest_budget(problem, ratios)
    if budget < math.inf:
        return budget, replay, per_ratio, None
    count, likeliest, ratio = most_probable(problem, math.inf, ratios)
    if count >= problem.rank:
        # Feasible only between two ratios of the grid, or infeasible because of the limit of CVaR.
        budget, replay, _ = smallest_budget(problem, np.array([ratio]))
    best = choice_at(problem, likeliest, ratio) if count else replace(INFEASIBLE, p_both=0.0)
    return budget, replay, per_ratio, best if budget == math.inf else None


def plan_example(
    *, confidence: float = 0.9, discrepancy: str = "none", seed: int = 0, **settings: Any
) -> Plan:
    """Plan the paper's use case on the synthetic world that is calibrated to it.

    Posteriors are fitted to the synthetic tables' rows at PTPP 15 and 31 and to the world's anchors
    at PTPP 279. The deterministic plan is that of the true parameters.

    Parameters
    ----------
    confidence : float
        Probability with which both limits must hold.
    discrepancy : str
        Of the fits; by default none, since the laws are exact in this world.
    seed : int
        Of the tables, the fits and the plan.
    **settings
        For `bayeslaw.fit` (by default ``target_accept=0.995``), and ``allow_unconverged``,
        ``noise`` and ``replay_grid`` for `bayeslaw.plan`.

    Returns
    -------
    Plan
        Its `note` describes the data.
    """
    from bayeslaw.inference.fitting import fit

    world, train = paper_world(), "ptpp <= 31"
    for_plan = {"allow_unconverged", "noise", "replay_grid"}
    own = {name: settings.pop(name) for name in for_plan & settings.keys()}
    # With the default target_accept, a few trajectories of the source law diverge.
    settings = {"target_accept": 0.995} | settings | {"discrepancy": discrepancy, "seed": seed}
    fits, rows = [], 0
    for domain in (world.target, world.source):
        table, _ = world.table(domain, seed=seed).split(train, "ptpp == 279", world.anchors)
        fits.append(fit(world.laws[domain], table, **settings))
        rows += len(table)
    target, source = fits
    return plan(
        target=target,
        source=source,
        **world.limits,
        baseline=world.baseline(),
        point=true_fits(world),
        confidence=confidence,
        seed=seed,
        note=f"Synthetic: {rows} rows of {world.title}: {train}, or {world.anchors}; "
        f"discrepancy {discrepancy}. "
        "The deterministic plan is that of the true parameters.",
        **own,
    )


def true_fits(world: World) -> tuple[PointFit, PointFit]:
    """The true laws of a world's target and source domain, as point fits.

    Examples
    --------
    >>> target, source = true_fits(paper_world())
    >>> target.law.name, target.parameters["E"] > 0
    ('form3', True)
    """

    def true(domain: str) -> PointFit:
        return PointFit(world.laws[domain], world.truth[domain], ORIGIN, 0.0, 0.02, 0, 0, 1.0)

    return true(world.target), true(world.source)
