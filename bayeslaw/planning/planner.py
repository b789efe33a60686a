"""Plans: the smallest budget, with its replay ratio, that meets limits on loss and forgetting.

A budget is D/N, adaptation tokens per parameter (ATPP). The plan is the smallest budget at which
the limits hold for at least a fraction `confidence` of the posterior draws, at any replay ratio. It
is found on a grid that is refined (`bayeslaw.planning.grid`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, Never

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import REMOVED, BayeslawError, unknown
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.inference.pools import Fit, convergence_failures, pair_draws
from bayeslaw.planning.arguments import (
    NOISE,
    Baseline,
    Request,
    baseline_draws,
    replay_ratios,
    requested,
)
from bayeslaw.planning.choices import (
    INFEASIBLE,
    Choice,
    binding_limits,
    cheapest,
    choice_at,
    monte_carlo,
)
from bayeslaw.planning.planned_run import (
    Deviation,
    PlannedRun,
    common_ranges,
    curve_of,
    deviations,
    extrapolations,
    moving_size_effect,
    spread,
)
from bayeslaw.planning.problem import RATIOS, Problem, likeliest, refined, smallest
from bayeslaw.planning.result import Plan

MOST_DRAWS = 4000
"""Most paired draws, evenly spread."""
PASSES, CLOSE = 4, 0.05
"""Most repetitions of a plan with the effects of new sizes where it lies, and the distance in log
tokens and replay at which they are near enough."""


def plan(
    *,
    target: Fit | Sequence[Fit],
    source: Fit | Sequence[Fit],
    params: float,
    ptpp: float,
    max_loss: float | Sequence[float],
    max_forgetting: float | Sequence[float],
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
    **others: Never,
) -> Plan:
    """Smallest budget that meets target and forgetting limits with stated probability.

    The chance-constrained problem is: minimise D/N over D and the replay ratio such that all limits
    hold with probability `confidence`, estimated by the fraction of the posterior draws.

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
        Limit of the rise of the source loss over `baseline`: a fraction of the baseline, at most 1,
        or nats per token; of several sources, one each.
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
        Of the noise, the bootstrap, and random effects of a size without training rows.
    allow_unconverged : bool
        Plan although a posterior failed the convergence check; the result lists the failures.
    note : str
        Text copied to the result.
    **others
        Refused: a misspelt argument, or one that was removed.

    Returns
    -------
    Plan

    Raises
    ------
    NotConverged
        If a posterior failed the convergence check and `allow_unconverged` is false.
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
    for name in others:
        removed = REMOVED.get(name)
        valid = signature(plan).parameters
        raise BayeslawError(f"{name}= {removed}" if removed else unknown("argument", name, valid))
    request = requested(
        target,
        source,
        max_loss,
        max_forgetting,
        baseline,
        PlannedRun(params, ptpp, base, unique_tokens, seed),
        confidence=confidence,
        relative=relative,
        ratios=None if replay_grid is None else replay_ratios(replay_grid),
        noise=noise,
    )
    run, fits = request.run, list(request.fits.values())
    unconverged = convergence_failures(fits, allow_unconverged)
    starts = [
        baseline_draws(level, fit, run)
        for level, fit in zip(request.baselines, request.sources, strict=True)
    ]
    deterministic = _deterministic(request, starts, point or fits)
    solved = _solution_with_sizes(request, starts)
    problem, ratios, block = solved.problem, solved.ratios, solved.block
    chosen, best, shown = solved.chosen, solved.best, solved.shown
    error, held_out = dict[str, Any](), math.nan
    if best is None:
        error, held_out = monte_carlo(problem, ratios, chosen, block, np.random.default_rng(seed))
    latent, measured = (
        choice_at(solved.problems[kind], shown.budget, shown.replay, shown.tokens) for kind in NOISE
    )
    shares = pd.DataFrame()
    if 0 < shown.tokens < math.inf:
        noisy, streams = solved.noisy, request.streams
        shares = spread(request.fits, noisy, streams, run, shown.tokens, shown.replay)
    return Plan(
        **vars(chosen),
        status="feasible" if best is None else "infeasible",
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
        point=_point_description(point or fits),
        held_out=held_out,
        error=error,
        outside=extrapolations(request.fits, params, ptpp, shown.replay, shown.atpp),
        data=common_ranges(fits),
        unconverged=unconverged,
        note=note,
        seed=seed,
        problem=problem,
        deterministic_problem=deterministic,
        replay_grid=ratios,
        run=solved.run,
    )


# -- steps ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Solution:
    """The plan of a problem, or the likeliest choice, with the problem that was solved.

    Parameters
    ----------
    run : PlannedRun
        With the tokens and the replay ratio at which the effects of new sizes are taken.
    problems : mapping of str to Problem
        The limits for paired draws, on latent and on measured losses.
    problem : Problem
        The one of them that was solved.
    pairing : str
    noisy : list of Deviation
        As of `_paired_problems`.
    block : int
        Draws that count as one independent draw.
    ratios : array
    chosen, best
        As of `_search`.
    """

    run: PlannedRun
    problems: Mapping[str, Problem]
    problem: Problem
    pairing: str
    noisy: list[Deviation]
    block: int
    ratios: Floats
    chosen: Choice
    best: Choice | None

    @property
    def shown(self) -> Choice:
        """The plan, or the likeliest choice."""
        return self.best or self.chosen


def _solution(request: Request, starts: Sequence[float | Floats | str]) -> _Solution:
    """The plan with the effects of new sizes at the tokens and replay of the request's run."""
    problems, pairing, noisy = _paired_problems(request, starts)
    problems, block = _thinned(problems, _autocorrelation_length(list(request.fits.values())))
    problem, ratios = problems[request.noise], request.ratios
    ratios = RATIOS if ratios is None else ratios
    found = _search(problem, ratios)
    return _Solution(request.run, problems, problem, pairing, noisy, block, ratios, *found)


def _solution_with_sizes(request: Request, starts: Sequence[float | Floats | str]) -> _Solution:
    """The plan with the effects of new sizes at the plan itself."""
    found = _solution(request, starts)
    if not any(moving_size_effect(fit, request.run) for fit in request.fits.values()):
        return found
    for _ in range(PASSES):
        there, taken = found.shown, found.run
        if not 0 < there.tokens < math.inf:
            break
        moved = abs(math.log(there.tokens / (taken.tokens or taken.params)))
        if max(moved, abs(there.replay - taken.replay)) < CLOSE:
            break
        run = replace(taken, tokens=there.tokens, replay=there.replay)
        found = _solution(replace(request, run=run), starts)
    return found


def _paired_problems(
    request: Request, starts: Sequence[float | Floats | str]
) -> tuple[dict[str, Problem], str, list[Deviation]]:
    """The limits for paired draws, on latent and on measured losses.

    Besides, how the draws were paired, and the deviation of each fit for all of its draws. `starts`
    are the baselines of the sources, unpaired.
    """
    run, fits, streams = request.run, list(request.fits.values()), request.streams
    in_turn = [fits[streams.index(k)] for k in range(len(fits))]
    drawn, pairing = pair_draws(in_turn)
    noisy = deviations(in_turn, run)
    index, noisy = [drawn[k] for k in streams], [noisy[k] for k in streams]
    own = zip(fits, streams, index, strict=True)
    curves = [curve_of(fit, run, seed=[run.seed, k]).take(i) for fit, k, i in own]
    paired = [
        start[i] if isinstance(start, np.ndarray) else start
        for start, i in zip(starts, index[len(request.targets) :], strict=True)
    ]
    latent = request.problem(curves, paired, index)
    noise = (each.take(i).noise for each, i in zip(noisy, index, strict=True))
    return {"latent": latent, "predictive": latent.with_noise(noise)}, pairing, noisy


def _deterministic(
    request: Request, starts: Sequence[float | Floats | str], fits: Sequence[Fit]
) -> Problem:
    """The limits for one curve per fit: that of a point fit, or at the posterior medians."""
    curves = [curve_of(fit, request.run, median=True) for fit in fits]
    middle = [start if isinstance(start, str) else float(np.median(start)) for start in starts]
    return request.problem(curves, middle)


def _thinned(problems: dict[str, Problem], block: int) -> tuple[dict[str, Problem], int]:
    """At most `MOST_DRAWS` draws, and the length of their blocks."""
    draws = problems["latent"].draws
    if draws <= MOST_DRAWS:
        return problems, block
    thinned = {name: problem.thinned(MOST_DRAWS) for name, problem in problems.items()}
    return thinned, math.ceil(block * MOST_DRAWS / draws)


def _search(problem: Problem, ratios: Floats) -> tuple[Choice, Choice | None]:
    """The smallest feasible choice, and if there is none the one most likely to meet the limits."""
    (chosen,) = cheapest(problem, ratios)
    if chosen is not INFEASIBLE:
        return chosen, None
    count, budget, ratio = likeliest(problem, ratios)
    if count >= problem.rank:  # feasible between the nodes
        near = [np.array([budget - 0.5, budget]), np.array([ratio])]
        return choice_at(problem, *refined(problem, near, ratios[[0, -1]])), None
    best = choice_at(problem, budget, ratio) if count else replace(INFEASIBLE, p_both=0.0)
    return INFEASIBLE, best


def _point_description(fits: Sequence[Fit]) -> str:
    """Describe the parameters of the deterministic plan: those that `curve_of` takes of `fits`."""
    points = sum(isinstance(fit, PointFit) for fit in fits)
    medians = "posterior medians of the reference coordinates"
    if points == len(fits):
        return "point fits as given"
    return f"{medians}, and point fits as given" if points else medians


def _autocorrelation_length(fits: Sequence[Fit]) -> int:
    """Number of draws per effective draw, rounded up, of the fit with the most."""
    posteriors = [fit for fit in fits if not isinstance(fit, PointFit)]
    return max(
        [1, *(math.ceil(fit.count / max(fit.convergence.ess_bulk, 1)) for fit in posteriors)]
    )
