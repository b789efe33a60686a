"""Plans: the smallest budget and its replay ratio that meet two limits with stated probability.

A budget is D/N, adaptation tokens per parameter (ATPP). Each posterior draw has, at each replay
ratio, a set of budgets that meet both limits (`bayeslaw.thresholds`); the plan is the smallest
budget that lies in the sets of at least a share `confidence` of the draws.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw import noise as noises
from bayeslaw.chance import (
    NOWHERE,
    Choice,
    Problem,
    binding,
    bootstrap,
    cheapest,
    choose,
    held_out,
    rank_of,
)
from bayeslaw.errors import BayeslawError, unknown
from bayeslaw.huber import PointFit
from bayeslaw.intervals import Floats
from bayeslaw.laws import Law
from bayeslaw.posterior import Posterior
from bayeslaw.terms import ORIGIN
from bayeslaw.thresholds import Curve

type Fit = Posterior | PointFit

REPLAY = np.linspace(0.005, 0.995, 199)
CONFIDENCES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True, kw_only=True)
class Plan(Choice):
    """The smallest budget that meets both limits with the stated probability, or why there is none.

    Parameters
    ----------
    status : {"feasible", "infeasible"}
    confidence : float
        Probability asked for.
    binds : str
        Where infeasible, what prevents it.
    best : Choice or None
        Where infeasible, the choice most likely to meet both limits, however large its budget.
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
    unconverged : tuple of str
        What fails in posteriors that failed the convergence gate.
    """

    status: str
    confidence: float
    draws: int
    pairing: str
    noise: str
    baseline: str
    limits: Mapping[str, float | bool | str]
    binds: str
    best: Choice | None
    deterministic: Choice
    point: str
    held_out: float
    error: Mapping[str, Any]
    outside: tuple[str, ...]
    unconverged: tuple[str, ...]
    note: str = ""
    problem: Problem = field(repr=False)
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
        which = {"target": 0, "forgetting": 1, "both": 2}
        if limit not in which:
            raise BayeslawError(unknown("limit", limit, which))
        shares = []
        with np.errstate(divide="ignore"):
            budgets = np.log(np.asarray(atpp, float))
        for ratio in _ratios(replay):
            target, source = self.problem.sets([ratio])
            shares.append((target, source, target.meet(source))[which[limit]].share(budgets)[:, 0])
        columns = pd.Index(_ratios(replay), name="replay")
        return pd.DataFrame(np.stack(shares, 1), pd.Index(atpp, name="atpp"), columns)

    def frontier(self, confidences: Sequence[float] = CONFIDENCES) -> pd.DataFrame:
        """Smallest budget against confidence; an infinite budget is infeasible."""
        rows = []
        for confidence in confidences:
            rank = rank_of(confidence, self.problem.draws)
            choice = cheapest(self.problem, rank, self.replay_grid)
            rows.append({"confidence": confidence} | vars(choice))
        return pd.DataFrame(rows)

    def sensitivity(
        self, *, max_loss: float = 0.0025, max_forgetting: float = 0.1, baseline: float = 0.0025
    ) -> pd.DataFrame:
        """Plans under limits and a baseline moved down and up by a share of themselves.

        `held` is P(both) of this plan, unchanged, under the moved limit. A baseline that is
        not a number is not moved.
        """
        moves = {"max_loss": max_loss, "max_forgetting": max_forgetting, "baseline": baseline}
        rank = rank_of(self.confidence, self.problem.draws)
        rows: list[dict[str, Any]] = []
        for name, share in moves.items():
            at = getattr(self.problem, name)
            for factor in (1 - share, 1 + share) if not isinstance(at, str) else ():
                moved = replace(self.problem, **{name: factor * at})
                choice = cheapest(moved, rank, self.replay_grid)
                held = math.nan
                if self.status == "feasible":
                    held = choose(moved, math.log(self.atpp), self.replay).p_both
                rows.append({"quantity": name, "value": factor * at} | vars(choice))
                rows[-1] |= {"held": held}
        return pd.DataFrame(rows)

    def within(self, *, tokens: float = math.inf, flops: float = math.inf) -> Choice:
        """The likeliest choice under a cap on tokens or FLOPs: largest P(both), least budget."""
        params = self.problem.target.params
        most = min(tokens, flops / (6 * params))
        if not most > 0:
            raise BayeslawError(f"a cap of {most:g} tokens leaves no budget; give a positive cap.")
        count, budget, ratio = self.problem.likeliest(math.log(most / params), self.replay_grid)
        return choose(self.problem, budget, ratio, most) if count else NOWHERE

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain numbers and text for JSON; what is not finite is None."""
        return {
            name: _plain(value)
            for name, value in vars(self).items()
            if name not in ("problem", "replay_grid")
        }


def _plain(value: Any) -> Any:
    if isinstance(value, Choice):
        return _plain(vars(value) | {"p_failure": value.p_failure})
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def plan(
    *,
    target: Fit,
    source: Fit,
    params: float,
    ptpp: float,
    max_loss: float,
    max_forgetting: float,
    baseline: float | str | None = None,
    confidence: float = 0.9,
    relative: bool = True,
    noise: str = "latent",
    replay_grid: Sequence[float] | Floats | None = None,
    point: tuple[PointFit, PointFit] | None = None,
    seed: int = 0,
    allow_unconverged: bool = False,
    note: str = "",
) -> Plan:
    """Smallest budget that meets a target and a forgetting limit with stated probability.

    Parameters
    ----------
    target, source : Posterior or PointFit
        Fits of the domain adapted to and of the domain that may be forgotten; a PointFit counts as
        certain.
    params, ptpp : float
        Parameters of the model, and its pre-training tokens per parameter.
    max_loss : float
        Limit of the target loss, nats per token.
    max_forgetting : float
        Limit of the rise of the source loss over `baseline`: a share of it, or nats per token.
    baseline : float, "asymptote" or "matched", optional
        Source loss of the un-adapted model, measured; the least that pure replay can reach; or that
        of pure replay for the same D. Without it, the row with ``tokens = 0`` of the source's table
        for this model and stage.
    confidence : float
        Probability with which both limits are to be met.
    relative : bool
        Whether `max_forgetting` is relative to the baseline.
    noise : {"latent", "predictive"}
        Limits on the laws' losses, or on measured ones.
    replay_grid : sequence of float, optional
        Replay ratios searched, then refined between the best's neighbours; one value fixes r. By
        default 199 from .005 to .995.
    point : tuple of PointFit, optional
        Target and source fits of the deterministic plan; by default the medians of the posteriors'
        reference coordinates.
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
    ratios = _ratios(REPLAY if replay_grid is None else replay_grid)
    positive = {"params": params, "ptpp": ptpp, "max_loss": max_loss}
    for name, value in positive.items():
        if not 0 < value < math.inf:
            raise BayeslawError(f"{name}={value:g}: give a positive number.")
    if not -1 < max_forgetting < math.inf:
        raise BayeslawError(f"max_forgetting={max_forgetting:g}: 0.02 allows a rise of 2 %.")
    if not 0 < confidence < 1:
        raise BayeslawError(f"confidence={confidence:g} is not between 0 and 1; 0.9 is 90 %.")
    base, words = _baseline(baseline, source, params, ptpp)
    unconverged = []
    for fit in (target, source):
        if isinstance(fit, Posterior):
            fit.require_converged(allow_unconverged)
            unconverged += [f"{fit.table.name}: {what}" for what in fit.convergence.failures]
    rng = np.random.default_rng(seed)
    index, pairing = _pair(target, source)
    problem = Problem(
        target=_curve(target, params, ptpp).take(index[0]),
        source=_curve(source, params, ptpp).take(index[1]),
        max_loss=max_loss,
        max_forgetting=max_forgetting,
        baseline=base,
        relative=relative,
        noise=(_noise(target, noise, rng)[index[0]], _noise(source, noise, rng)[index[1]]),
    )
    rank = rank_of(confidence, problem.draws)
    found, replay, per_ratio = problem.smallest(rank, ratios)
    best = None
    if found == math.inf:
        count, budget, ratio = problem.likeliest(math.inf, ratios)
        best = choose(problem, budget, ratio) if count else replace(NOWHERE, p_both=0.0)
        if count >= rank:  # only between two ratios of the grid
            (found, replay, _), best = problem.smallest(rank, np.array([ratio])), None
    feasible = best is None
    chosen = choose(problem, found, replay) if feasible else NOWHERE
    alone = replace(
        problem,
        target=_point(target, params, ptpp, point and point[0]),
        source=_point(source, params, ptpp, point and point[1]),
        noise=(np.zeros(1), np.zeros(1)),
    )
    certain = cheapest(alone, 1, ratios)
    if certain.atpp < math.inf:
        certain = choose(problem, math.log(certain.atpp), certain.replay, certain.tokens)
    return Plan(
        **vars(chosen),
        status="feasible" if feasible else "infeasible",
        confidence=confidence,
        draws=problem.draws,
        pairing=pairing,
        noise=noise,
        baseline=words,
        limits={
            **positive,
            "max_forgetting": max_forgetting,
            "relative": relative,
            "baseline": base,
        },
        binds="" if feasible else binding(problem, rank, ratios),
        best=best,
        deterministic=certain,
        point="point fits as given" if point else "point fits, or medians of reference coordinates",
        held_out=held_out(problem, confidence, ratios) if feasible else math.nan,
        error=bootstrap(problem, rank, ratios, per_ratio, replay, rng, _block(target, source)),
        outside=_outside(best or chosen, target, source, params, ptpp),
        unconverged=tuple(unconverged),
        note=note,
        problem=problem,
        replay_grid=ratios,
    )


# -- parts ----------------------------------------------------------------------------------------


def _ratios(replay: Sequence[float] | Floats) -> Floats:
    ratios = np.unique(np.asarray(replay, float))
    if not len(ratios) or not ((ratios >= 0) & (ratios <= 1)).all():
        raise BayeslawError("replay ratios lie in [0, 1]; give at least one, as fractions.")
    return ratios


def _baseline(
    baseline: float | str | None, source: Fit, params: float, ptpp: float
) -> tuple[float | str, str]:
    """The baseline, and what it is in words."""
    if isinstance(baseline, str):
        words = {
            "asymptote": "least source loss that pure replay can reach, draw by draw",
            "matched": "source loss of pure replay for the same tokens, draw by draw",
        }
        if baseline not in words:
            raise BayeslawError(unknown("baseline", baseline, words))
        return baseline, words[baseline]
    if baseline is not None:
        if not 0 < baseline < math.inf:
            raise BayeslawError(f"baseline={baseline:g}: give a source loss in nats per token.")
        return float(baseline), "measured source loss of the un-adapted model, as given"
    why = (
        f"the law {source.law.name} has no value at D = 0, where its term in D diverges, so the "
        "un-adapted model's loss cannot come from the fit: pass baseline= as the measured source "
        "loss of that model, 'asymptote', or 'matched'"
    )
    if source.table is None:
        raise BayeslawError(f"No baseline: {why}.")
    rows, name = source.table.baselines, source.table.name
    for column, value in (("params", params), ("ptpp", ptpp)):
        if column in rows:
            rows = rows[np.isclose(rows[column], value, rtol=1e-6, atol=0)]
    if len(rows) != 1:
        raise BayeslawError(
            f"{name}: {len(rows)} rows with tokens = 0 for params = {params:g}, ptpp = {ptpp:g}, "
            f"not one; {why}."
        )
    return float(rows["loss"].iloc[0]), f"row with tokens = 0 of {name}"


def _pair(target: Fit, source: Fit) -> tuple[tuple[Any, Any], str]:
    """Which draws of each go together, and that in words."""
    sizes = [_draws(fit) for fit in (target, source)]
    if isinstance(target, PointFit) or isinstance(source, PointFit):
        draws = max(sizes)
        pair = tuple(np.arange(draws) % size for size in sizes)
        words = "one fit is certain: draws of the other alone"
        return (pair[0], pair[1]), "no draws: both fits are certain" if draws == 1 else words
    joint = target.settings.get("joint")
    if joint is not None and joint == source.settings.get("joint") and sizes[0] == sizes[1]:
        index = np.arange(sizes[0])
        return (index, index), "jointly: draw by draw of one fit"
    draws = min(sizes)
    one, two = (np.arange(draws) * size // draws for size in sizes)
    # Half a turn, because chains of equal seeds may move in step.
    return (one, np.roll(two, draws // 2)), "independently: two fits, draws paired at random"


def _draws(fit: Fit) -> int:
    return 1 if isinstance(fit, PointFit) else fit.draws.sizes["chain"] * fit.draws.sizes["draw"]


def _block(target: Fit, source: Fit) -> int:
    """Length over which draws are dependent: draws per effective draw, the slower fit's."""
    fits = [fit for fit in (target, source) if isinstance(fit, Posterior)]
    return max([1, *(math.ceil(_draws(f) / max(f.convergence.ess_bulk, 1)) for f in fits)])


def _curve(fit: Fit, params: float, ptpp: float) -> Curve:
    law: Law = fit.law
    if isinstance(fit, PointFit):
        p = {name: np.array([float(value)]) for name, value in fit.parameters.items()}
        return Curve(law, p, ORIGIN, params, ptpp)
    q = {name: value.ravel() for name, value in fit.values().items()}
    return Curve(law, law.sizes(q, fit.at), fit.at, params, ptpp)


def _point(fit: Fit, params: float, ptpp: float, given: PointFit | None) -> Curve:
    if given is not None or isinstance(fit, PointFit):
        return _curve(given or fit, params, ptpp)
    q = {name: np.median(value, keepdims=True)[0] for name, value in fit.values().items()}
    return Curve(fit.law, fit.law.sizes(q, fit.at), fit.at, params, ptpp)


def _noise(fit: Fit, kind: str, rng: np.random.Generator) -> Floats:
    """Noise on log loss of a measured loss, shape (draws,)."""
    if kind not in ("latent", "predictive"):
        raise BayeslawError(unknown("noise", kind, ("latent", "predictive")))
    if kind == "latent":
        return np.zeros(_draws(fit))
    if isinstance(fit, PointFit):
        raise BayeslawError(
            f"a point fit of {fit.law.name} has no noise; give a posterior or noise='latent'."
        )
    q = {name: value.ravel() for name, value in fit.values().items()}
    dof = q["dof_above_floor"] + noises.DOF_FLOOR if "dof_above_floor" in q else np.inf
    return noises.sample(
        fit.spec.likelihood, rng, q["sigma"].shape, q["sigma"], dof, fit.spec.delta
    )


def _outside(
    choice: Choice, target: Fit, source: Fit, params: float, ptpp: float
) -> tuple[str, ...]:
    """What lies outside the rows that each law was fitted to."""
    found = []
    asked = {"params": params, "ptpp": ptpp, "replay": choice.replay, "atpp": choice.atpp}
    for name, fit in (("target", target), ("source", source)):
        if fit.table is None:
            continue
        rows = fit.table.frame.assign(atpp=fit.table.frame["tokens"] / fit.table.frame["params"])
        for column, value in asked.items():
            if column in rows and math.isfinite(value):
                low, high = rows[column].min(), rows[column].max()
                if not low * (1 - 1e-9) <= value <= high * (1 + 1e-9):
                    rows_of = f"the {name}'s rows, {low:.4g} to {high:.4g}"
                    found.append(f"{column} {value:.4g} is outside {rows_of}")
    return tuple(found)
