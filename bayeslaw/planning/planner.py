"""Plans: the smallest budget and its replay ratio that meet two limits with stated probability.

A budget is D/N, adaptation tokens per parameter (ATPP). Each posterior draw has, at each replay
ratio, a set of budgets that meet all limits (`bayeslaw.planning.thresholds`); the plan is the
smallest budget that lies in the sets of at least a share `confidence` of the draws.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bayeslaw.huber.point_fit import PointFit
from bayeslaw.inference.posterior import Posterior
from bayeslaw.planning.chance import Problem
from bayeslaw.planning.choices import (
    NOWHERE,
    Choice,
    binding,
    bootstrap,
    choose,
    contenders,
    held_out,
)
from bayeslaw.planning.intervals import Floats
from bayeslaw.planning.limits import (
    Fit,
    baseline_of,
    check_limits,
    covered,
    curve_of,
    dependence,
    noise_of,
    outside_data,
    pair,
    replay_ratios,
    unconverged_of,
)
from bayeslaw.planning.result import Plan

REPLAY, COARSE = np.linspace(0.005, 0.995, 199), np.linspace(0.005, 0.995, 45)
"""Replay ratios searched by default: where sets of budgets are closed form, and elsewhere."""


def plan(
    *,
    target: Fit | Sequence[Fit],
    source: Fit,
    params: float,
    ptpp: float,
    max_loss: float | Sequence[float],
    max_forgetting: float,
    max_cvar: float = math.inf,
    baseline: float | str | None = None,
    confidence: float = 0.9,
    relative: bool = True,
    noise: str = "latent",
    replay_grid: Sequence[float] | Floats | None = None,
    point: Sequence[PointFit] | None = None,
    seed: int = 0,
    allow_unconverged: bool = False,
    note: str = "",
) -> Plan:
    """Smallest budget that meets target and forgetting limits with stated probability.

    Parameters
    ----------
    target : Posterior or PointFit, or a sequence of them
        Fits of the domains adapted to; a PointFit counts as certain.
    source : Posterior or PointFit
        Fit of the domain that may be forgotten.
    params, ptpp : float
        Parameters of the model, and its pre-training tokens per parameter.
    max_loss : float, or a sequence of them
        Limit of the loss of each target, nats per token.
    max_forgetting : float
        Limit of the rise of the source loss over `baseline`: a share of it, or nats per token.
    max_cvar : float, optional
        Limit of the conditional value at risk of the excess, in the unit of `max_forgetting`: of
        the draws with the largest rises, as many as `confidence` leaves out, the mean of the rise
        less `max_forgetting` is to be at most this. 0 keeps that mean within the limit itself.
    baseline : float, "asymptote", "law" or "matched", optional
        Source loss of the un-adapted model, measured; the least that pure replay can reach; the
        source law's value at D = 0, if it has one; or that of pure replay for the same D. Without
        it, the row with ``tokens = 0`` of the source's table for this model and stage.
    confidence : float
        Probability with which all limits are to be met.
    relative : bool
        Whether `max_forgetting` is relative to the baseline.
    noise : {"latent", "predictive"}
        Limits on the laws' losses, or on measured ones of a new run.
    replay_grid : sequence of float, optional
        Replay ratios searched, then refined between the best's neighbours; one value fixes r. By
        default 199 from .005 to .995, or 45 for laws whose sets of budgets are not closed form.
    point : sequence of PointFit, optional
        Fits of the deterministic plan: the targets', then the source's; by default the medians of
        the posteriors' reference coordinates.
    seed : int
        Of the noise and the bootstrap.
    allow_unconverged : bool
        Plan although a posterior failed the convergence gate; the result carries it.
    note : str
        Carried by the result.

    Returns
    -------
    Plan

    Raises
    ------
    NotConverged
        If a posterior failed the gate and `allow_unconverged` is false.
    BayeslawError
        If an argument is not valid, or there is no baseline.
    """
    targets = [target] if isinstance(target, Posterior | PointFit) else list(target)
    most = [float(loss) for loss in np.atleast_1d(np.asarray(max_loss, float))]
    fits = [*targets, source]
    check_limits(targets, most, params, ptpp, max_forgetting, max_cvar, confidence)
    base, words = baseline_of(baseline, source, params, ptpp)
    unconverged = unconverged_of(fits, allow_unconverged)
    rng = np.random.default_rng(seed)
    index, pairing = pair(fits)
    *curves, last = (
        curve_of(fit, params, ptpp, rng=np.random.default_rng([seed, k])).take(i)
        for k, (fit, i) in enumerate(zip(fits, index, strict=True))
    )
    drawn = (noise_of(fit, noise, params, ptpp, rng) for fit in fits)
    problem = Problem(
        targets=tuple(curves),
        source=last,
        max_loss=tuple(most),
        max_forgetting=max_forgetting,
        baseline=base,
        relative=relative,
        confidence=confidence,
        noise=tuple(values[i] for values, i in zip(drawn, index, strict=True)),
        max_cvar=max_cvar,
        index=tuple(index),
    )
    if replay_grid is None:
        replay_grid = REPLAY if problem.closed else COARSE
    ratios = replay_ratios(replay_grid)
    budget, replay, per_ratio, best = _search(problem, ratios)
    chosen, feasible = choose(problem, budget, replay), best is None
    error, held, block = {}, math.nan, dependence(fits)
    if feasible:  # halves of the draws scatter twice as much
        near = contenders(problem, ratios, per_ratio, replay, 2 * block)
        error, held = bootstrap(problem, near, rng, block), held_out(problem, near)
    *curves, last = (curve_of(fit, params, ptpp, median=True) for fit in point or fits)
    quiet = (np.zeros(1),) * len(fits)
    certain = replace(problem, targets=tuple(curves), source=last, noise=quiet)
    alone = choose(problem, *certain.smallest(ratios)[:2])
    return Plan(
        **vars(chosen),
        status="feasible" if feasible else "infeasible",
        confidence=confidence,
        draws=problem.draws,
        pairing=pairing,
        noise=noise,
        baseline=words,
        limits={
            "params": params,
            "ptpp": ptpp,
            "max_loss": most if len(most) > 1 else most[0],
            "max_forgetting": max_forgetting,
            "max_cvar": max_cvar,
            "relative": relative,
            "baseline": base,
        },
        binds="" if feasible else binding(problem, ratios),
        best=best,
        deterministic=alone,
        point="point fits as given" if point else "point fits, or medians of reference coordinates",
        held_out=held,
        error=error,
        outside=outside_data(best or chosen, fits, (*problem.names[:-1], "source"), params, ptpp),
        data=covered(fits),
        unconverged=unconverged,
        note=note,
        seed=seed,
        problem=problem,
        certain=certain,
        replay_grid=ratios,
    )


def _search(problem: Problem, ratios: Floats) -> tuple[float, float, Floats, Choice | None]:
    """Smallest budget, its replay ratio, the budgets of all ratios; the likeliest if none."""
    budget, replay, per_ratio = problem.smallest(ratios)
    if budget < math.inf:
        return budget, replay, per_ratio, None
    count, likeliest, ratio = problem.likeliest(math.inf, ratios)
    if count >= problem.rank:  # between two ratios of the grid, or CVaR prevents it
        budget, replay, _ = problem.smallest(np.array([ratio]))
    best = choose(problem, likeliest, ratio) if count else replace(NOWHERE, p_both=0.0)
    return budget, replay, per_ratio, best if budget == math.inf else None
