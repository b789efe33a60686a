"""Plans: the smallest budget and its replay ratio that meet two limits with stated probability.

A budget is D/N, adaptation tokens per parameter (ATPP). Each posterior draw has, at each replay
ratio, a set of budgets that meet all limits (`bayeslaw.planning.thresholds`); the plan is the
smallest budget that lies in the sets of at least a share `confidence` of the draws.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw.errors import BayeslawError, unknown
from bayeslaw.huber import PointFit
from bayeslaw.planning.chance import Problem, meet
from bayeslaw.planning.choices import (
    NOWHERE,
    Choice,
    binding,
    bootstrap,
    cheapest,
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
)
from bayeslaw.posterior import Posterior

REPLAY, COARSE = np.linspace(0.005, 0.995, 199), np.linspace(0.005, 0.995, 45)
"""Replay ratios searched by default: where sets of budgets are closed form, and elsewhere."""
CONFIDENCES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True, kw_only=True)
class Plan(Choice):
    """The smallest budget that meets all limits with the stated probability, or why there is none.

    Parameters
    ----------
    status : {"feasible", "infeasible"}
    confidence : float
        Probability asked for.
    binds : str
        Where infeasible, what prevents it.
    best : Choice or None
        Where infeasible, the choice most likely to meet all limits, however large its budget.
    deterministic : Choice
        The plan of the point fits, with its probabilities under the posterior.
    point : str
        What the point fits are.
    held_out : float
        P(both) on half of the draws of a plan made on the other half, mean of both ways round.
    error : mapping
        Monte Carlo error, from a bootstrap over draws in blocks as long as their autocorrelation:
        standard deviations ``atpp`` and ``replay``, 5 and 95 % quantiles ``atpp_90``, and the
        share of replicates that are ``infeasible``.
    outside : tuple of str
        What of the plan lies outside the training data.
    data : mapping
        Ranges of params, ptpp, replay and ATPP that the rows of all fits cover.
    unconverged : tuple of str
        What fails in posteriors that failed the convergence gate.
    """

    status: str
    confidence: float
    draws: int
    pairing: str
    noise: str
    baseline: str
    limits: Mapping[str, Any]
    binds: str
    best: Choice | None
    deterministic: Choice
    point: str
    held_out: float
    error: Mapping[str, Any]
    outside: tuple[str, ...]
    data: Mapping[str, tuple[float, float]]
    unconverged: tuple[str, ...]
    note: str = ""
    problem: Problem = field(repr=False)
    certain: Problem = field(repr=False)
    replay_grid: Floats = field(repr=False)

    def surface(
        self, atpp: Sequence[float] | Floats, replay: Sequence[float] | Floats, limit: str = "both"
    ) -> pd.DataFrame:
        """P(feasible) over budgets (index, ATPP) and replay ratios (columns).

        Parameters
        ----------
        atpp, replay : sequence of float
        limit : {"both", "target", "forgetting"}
        """
        which = {"target": slice(-1), "forgetting": slice(-1, None), "both": slice(None)}
        if limit not in which:
            raise BayeslawError(unknown("limit", limit, which))
        ratios = replay_ratios(replay)
        with np.errstate(divide="ignore"):
            budgets = np.log(np.asarray(atpp, float))
        shares = [meet(s[which[limit]]).share(budgets) for s in self.problem.pieces(ratios)]
        columns = pd.Index(ratios, name="replay")
        return pd.DataFrame(np.concatenate(shares, 1), pd.Index(atpp, name="atpp"), columns)

    def frontier(self, confidences: Sequence[float] = CONFIDENCES) -> pd.DataFrame:
        """Smallest budget against confidence; an infinite budget is infeasible."""
        rows = []
        for confidence in confidences:
            asked = replace(self.problem, confidence=confidence)
            rows.append({"confidence": confidence} | vars(cheapest(asked, self.replay_grid)))
        return pd.DataFrame(rows)

    def sensitivity(
        self, *, max_loss: float = 0.0025, max_forgetting: float = 0.1, baseline: float = 0.0025
    ) -> pd.DataFrame:
        """Plans under limits and a baseline moved down and up by a share of themselves.

        `held` is P(both) of this plan, unchanged, under the moved limit. Several target limits
        move together; a baseline that is not a number is not moved.
        """
        moves = {"max_loss": max_loss, "max_forgetting": max_forgetting, "baseline": baseline}
        rows: list[dict[str, Any]] = []
        for name, share in moves.items():
            at = getattr(self.problem, name)
            for factor in (1 - share, 1 + share) if not isinstance(at, str) else ():
                value = tuple(factor * v for v in at) if isinstance(at, tuple) else factor * at
                change: dict[str, Any] = {name: value}
                moved, held = replace(self.problem, **change), math.nan
                if self.status == "feasible":
                    held = choose(moved, math.log(self.atpp), self.replay).p_both
                row = {"quantity": name, "moved": factor - 1, "held": held}
                rows.append(row | vars(cheapest(moved, self.replay_grid)))
        return pd.DataFrame(rows)

    def within(self, *, tokens: float = math.inf, flops: float = math.inf) -> Choice:
        """The likeliest choice under a cap on tokens or FLOPs: largest P(both), least budget."""
        most = self._cap(tokens, flops)
        budget = math.log(most / self.problem.params)
        count, budget, ratio = self.problem.likeliest(budget, self.replay_grid)
        return choose(self.problem, budget, ratio, most) if count else NOWHERE

    def least_loss(self, *, tokens: float = math.inf, flops: float = math.inf) -> Choice:
        """Least expected target loss at a fixed budget, forgetting kept with the confidence.

        Of several targets the mean loss. Without a replay ratio that keeps the forgetting limit
        the choice is infinite.
        """
        most = self._cap(tokens, flops)
        if most == math.inf:
            raise BayeslawError("least_loss needs a fixed budget; give tokens= or flops=.")
        budget = math.log(most / self.problem.params)
        value, ratio = self.problem.lowest(budget, self.replay_grid)
        return choose(self.problem, budget, ratio, most) if value < math.inf else NOWHERE

    def _cap(self, tokens: float, flops: float) -> float:
        most = min(tokens, flops / (6 * self.problem.params))
        if not most > 0:
            raise BayeslawError(f"a cap of {most:g} tokens leaves no budget; give a positive cap.")
        return most

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain numbers and text for JSON; what is not finite is None."""
        hidden = ("problem", "certain", "replay_grid")
        return {name: plain(value) for name, value in vars(self).items() if name not in hidden}


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, Choice):
        return plain(vars(value) | {"p_failure": value.p_failure})
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def plan(
    *,
    target: Fit | Sequence[Fit],
    source: Fit,
    params: float,
    ptpp: float,
    max_loss: float | Sequence[float],
    max_forgetting: float,
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
    baseline : float, "asymptote" or "matched", optional
        Source loss of the un-adapted model, measured; the least that pure replay can reach; or that
        of pure replay for the same D. Without it, the row with ``tokens = 0`` of the source's table
        for this model and stage.
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
    check_limits(targets, most, params, ptpp, max_forgetting, confidence)
    base, words = baseline_of(baseline, source, params, ptpp)
    unconverged = []
    for fit in fits:
        if isinstance(fit, Posterior):
            fit.require_converged(allow_unconverged)
            unconverged += [f"{fit.table.name}: {what}" for what in fit.convergence.failures]
    rng = np.random.default_rng(seed)
    index, pairing = pair(fits)
    *curves, last = (
        curve_of(fit, params, ptpp).take(i) for fit, i in zip(fits, index, strict=True)
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
    )
    if replay_grid is None:
        replay_grid = REPLAY if problem.closed else COARSE
    ratios = replay_ratios(replay_grid)
    found, replay, per_ratio = problem.smallest(ratios)
    best = None
    if found == math.inf:
        count, budget, ratio = problem.likeliest(math.inf, ratios)
        best = choose(problem, budget, ratio) if count else replace(NOWHERE, p_both=0.0)
        if count >= problem.rank:  # only between two ratios of the grid
            (found, replay, _), best = problem.smallest(np.array([ratio])), None
    feasible, block = best is None, dependence(fits)
    # Halves of the draws scatter twice as much.
    near = contenders(problem, ratios, per_ratio, replay, 2 * block) if feasible else ratios
    chosen = choose(problem, found, replay) if feasible else NOWHERE
    *curves, last = (curve_of(fit, params, ptpp, median=True) for fit in point or fits)
    quiet = (np.zeros(1),) * len(fits)
    certain = replace(problem, targets=tuple(curves), source=last, noise=quiet)
    alone = cheapest(certain, ratios)
    if alone.atpp < math.inf:
        alone = choose(problem, math.log(alone.atpp), alone.replay, alone.tokens)
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
            "relative": relative,
            "baseline": base,
        },
        binds="" if feasible else binding(problem, ratios),
        best=best,
        deterministic=alone,
        point="point fits as given" if point else "point fits, or medians of reference coordinates",
        held_out=held_out(problem, near) if feasible else math.nan,
        error=bootstrap(problem, near, replay, rng, block) if feasible else {},
        outside=outside_data(best or chosen, fits, (*problem.names[:-1], "source"), params, ptpp),
        data=covered(fits),
        unconverged=tuple(unconverged),
        note=note,
        problem=problem,
        certain=certain,
        replay_grid=ratios,
    )
