"""Plans once runs are measured: expected value of sample information (EVSI), and predictions.

`anchor_value` simulates measured losses, refits both laws with them and plans again [1]_. The value
is the FLOPs saved on the target run, to be compared with the FLOPs spent on the anchors.

`plan_after` predicts the plan without a refit. Each simulation takes a posterior draw as the truth
and draws the losses that the runs would have. Every other draw is moved by its regression on the
measured losses (Matheron's rule [2]_), which gives draws of the Gaussian posterior after the
purchase, and the plan is made of them on a grid of budgets and replay ratios.

References
----------
.. [1] H. Raiffa and R. Schlaifer (1961). Applied Statistical Decision Theory. Harvard University.
.. [2] J. T. Wilson, V. Borovitskiy, A. Terenin, P. Mostowsky and M. P. Deisenroth (2021). Pathwise
   conditioning of Gaussian processes. Journal of Machine Learning Research, 22(105), 1-47.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.common.errors import BayeslawError
from bayeslaw.common.parallel import results
from bayeslaw.design.bayes_linear import JointGaussian
from bayeslaw.design.set_search import costs
from bayeslaw.inference.fitting import joined, refit
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.residuals import residual_draws
from bayeslaw.inference.settings import RefitSettings
from bayeslaw.laws.adjustments import ABSENT, completed
from bayeslaw.planning.planner import plan
from bayeslaw.planning.result import Plan
from bayeslaw.tables.table import LossTable
from bayeslaw.tables.validation import COVARIATES, canonical

BUDGETS = np.linspace(-3.0, 3.0, 61)
"""Budgets around the plan's, e-folds."""
NEAR, EVERY = np.linspace(-0.1, 0.1, 5), np.linspace(0.04, 0.96, 9)
"""Replay ratios next to the plan's, and others."""
TRUTHS, DRAWS = 100, 400
"""Simulations, and draws in each."""


def anchor_value(
    sets: Mapping[str, pd.DataFrame],
    *,
    target: Posterior,
    source: Posterior,
    simulations: int = 20,
    cost: str = "flops",
    seed: int = 0,
    jobs: int = 1,
    progress: bool = False,
    allow_unconverged: bool = False,
    sampling: RefitSettings | None = None,
    **planned: Any,
) -> pd.DataFrame:
    """Expected value of sample information of sets of anchors for a plan.

    Parameters
    ----------
    sets : mapping of name to DataFrame
        Rows to measure in both domains, such as ``choose_anchors(...).frame``. They are annealed
        and repeat no tokens, unless their columns `annealed` and `unique_tokens` say so.
    target, source : Posterior
        Posteriors of the domain adapted to and of the one that may be forgotten. Each is refitted
        alone.
    simulations : int
        Number of parameter draws taken as the truth. They are the same for all sets, and a row has
        the same simulated loss in all sets. Each requires two refits per set.
    cost : "flops", "adaptation", or a column
        See `bayeslaw.choose_anchors`; a column must be in FLOPs.
    seed : int
    jobs : int
        Number of processes.
    progress : bool
        Show a progress bar on stderr.
    allow_unconverged : bool
        Start although a posterior failed the convergence check. The refits are short and are used
        whether they pass the check or not; the column `rhat` shows their convergence.
    sampling : mapping, optional
        Sampler settings of the refits; see `bayeslaw.inference.fitting.refit`.
    **planned
        For `bayeslaw.plan`: ``params``, ``ptpp``, ``max_loss``, ``max_forgetting``, ``baseline``,
        ``confidence`` and so on.

    Returns
    -------
    DataFrame
        One row per set:

        - `flops`, its cost;
        - `atpp_now`, the planned budget before it;
        - `atpp`, `atpp_90`: median and 90 % quantile over simulations of the budget planned after
          it, where a simulation without a feasible plan counts as infinite;
        - `less`, `infeasible`: fraction of simulations in which the budget falls, and in which
          there is no feasible plan;
        - `saved`, `net`: median FLOPs saved on the target run, and the same minus `flops`;
        - `saved_mean`, `saved_error`: mean FLOPs saved over the simulations with a plan, which
          estimates the expected value of sample information, and its Monte Carlo standard error. A
          few simulations with very large budgets can dominate the mean;
        - `rhat`: median over simulations of the larger R-hat of the two refits.

    Raises
    ------
    NotConverged
        If a posterior failed the convergence check and `allow_unconverged` is false.
    BayeslawError
        If there is no set, no simulation, or no feasible plan before the anchors.
    """
    if not sets or simulations < 1:
        raise BayeslawError("give at least one set of anchors, and one simulation.")
    planned |= {"seed": seed, "allow_unconverged": True}
    run, fits = dict(sampling or {}), (target, source)
    for fit in fits:
        fit.require_converged(allow_unconverged)
    now = plan(target=target, source=source, **planned)
    if not math.isfinite(now.atpp):
        raise BayeslawError(f"no plan now, so no budget that could fall: {now.binds}")
    frames = [canonical(rows, f"anchors {name!r}", target.columns) for name, rows in sets.items()]
    rows, code = _distinct_rows(frames)
    losses = _simulated_losses(fits, rows, simulations, seed)
    spent, calls = [], []
    for frame, own in zip(frames, code, strict=True):
        price = costs(frame, target.columns, cost=cost, fitted=target.table)
        spent.append(price.total(range(len(frame))))
        # The rows are measured in both domains; their tables have the column.
        bare = frame.drop(columns="domain", errors="ignore")
        for i in range(simulations):
            measured = [bare.assign(loss=domain[i, own]) for domain in losses]
            calls.append((_refitted_plan, (fits, measured, i, run, planned)))
    found = results(calls, jobs, "refits and plans", progress)
    parts = np.array(found).reshape(len(sets), simulations, 3)
    return pd.DataFrame(
        {"set": name, "flops": flops} | _summary(now, flops, *part.T)
        for name, flops, part in zip(sets, spent, parts, strict=True)
    )


def _distinct_rows(frames: Sequence[pd.DataFrame]) -> tuple[pd.DataFrame, list[Ints]]:
    """Distinct rows of all frames, and the positions of each frame's rows among them."""
    rows = pd.concat(completed(frames), ignore_index=True)
    same = [name for name in ("run", *ABSENT, *COVARIATES) if name in rows]
    code = rows.groupby(same, sort=False, dropna=False).ngroup().to_numpy()
    ends = np.cumsum([len(frame) for frame in frames])
    return rows[~rows.duplicated(same)].reset_index(drop=True), np.split(code, ends[:-1])


def _simulated_losses(
    fits: tuple[Posterior, Posterior], rows: pd.DataFrame, count: int, seed: int
) -> list[Floats]:
    """Losses measured in each domain, (simulations, rows), where the truth is a posterior draw."""
    measured = []
    for i, fit in enumerate(fits):
        rng = np.random.default_rng([seed, i])
        truth = rng.integers(len(fit.values()["sigma"]), size=count)
        measured.append((fit.latent(rows) * np.exp(residual_draws(fit, rows, rng)))[truth])
    return measured


def _refitted_plan(
    fits: tuple[Posterior, Posterior],
    measured: list[pd.DataFrame],
    seed: int,
    sampling: RefitSettings,
    planned: Mapping[str, Any],
) -> tuple[float, float, float]:
    """ATPP and FLOPs of the plan made after refits with measured losses, and the larger R-hat."""
    target, source = (
        refit(fit.spec, joined(fit.table, LossTable(rows, rows.iloc[:0])), seed, **sampling)
        for fit, rows in zip(fits, measured, strict=True)
    )
    new: Plan = plan(target=target, source=source, **planned)
    return new.atpp, new.flops, max(target.convergence.rhat, source.convergence.rhat)


def _summary(
    now: Plan, spent: float, atpp: Floats, flops: Floats, rhat: Floats
) -> dict[str, object]:
    """Columns of `anchor_value` for one set; arrays are over simulations."""
    saved = now.flops - flops
    median = np.quantile(saved, 0.5, method="lower")
    feasible = pd.Series(saved[np.isfinite(flops)])
    return {
        "atpp_now": now.atpp,
        "atpp": np.quantile(atpp, 0.5, method="higher"),
        "atpp_90": np.quantile(atpp, 0.9, method="higher"),
        "less": (atpp < now.atpp).mean(),
        "infeasible": 1 - len(feasible) / len(saved),
        "saved": median,
        "net": median - spent,
        "saved_mean": feasible.mean(),
        "saved_error": feasible.sem(),
        "rhat": np.median(rhat),
    }


@dataclass(frozen=True)
class PlanAfter:
    """Fraction of simulations with a plan, and the median of its ATPP, infinite without one."""

    feasible: float
    atpp: float


def plan_after(
    plan: Plan, joint: JointGaussian, keep: Ints, picks: Sequence[int], seed: int = 0
) -> PlanAfter:
    """Plan after the candidates `picks` are measured; without any, the plan on the grid as it is.

    `joint` has the candidates at the plan's paired draws `keep`. Limits and baselines are the
    plan's, and replay ratios are in the range of its own. The truths are a random sample of the
    draws.
    """
    assert plan.chosen is not None
    rng = np.random.default_rng(seed)
    atpp = plan.chosen.atpp * np.exp(BUDGETS)
    least, most = plan.replay_grid[[0, -1]]
    ratios = np.unique(np.clip(np.r_[plan.chosen.replay + NEAR, EVERY], least, most))
    some = rng.permutation(len(keep))[:DRAWS]
    problem = plan.problem.take(keep[some])
    bounds = np.array([np.broadcast_to(b.limit, problem.draws) for b in problem.bounds])
    with np.errstate(invalid="ignore", divide="ignore"):
        margin = np.log(bounds)[:, None, None] - np.log(
            [[b.curve.loss(ratios, u) for u in np.log(atpp)] for b in problem.bounds]
        )
    margin = np.nan_to_num(margin, nan=-1.0, posinf=1.0, neginf=-1.0)  # limits, ATPP, r, draws
    have = joint.measurements_of(picks)
    if not len(have):
        found = _smallest(margin, atpp, problem.rank)
        return PlanAfter(float(np.isfinite(found)), found)
    x = joint.measured[some][:, have] * math.sqrt(len(joint.measured) - 1)
    noise = joint.noise_covariance(have)
    shape, flat = margin.shape, margin.reshape(-1, margin.shape[-1])
    moved = x - x.mean(0)
    total = moved.T @ moved / (len(x) - 1) + noise
    gain = (flat - flat.mean(1, keepdims=True)) @ moved / (len(x) - 1) @ np.linalg.inv(total)
    root = np.linalg.cholesky(noise)
    budgets = []
    for t in range(TRUTHS):
        # Errors of the other draws are drawn anew, so that their chance averages out over truths.
        seen = x + rng.standard_normal(x.shape) @ root.T
        truth = x[t % len(x)] + rng.standard_normal(x.shape[1]) @ root.T
        after = (flat + gain @ (truth - seen).T).reshape(shape)
        budgets.append(_smallest(after, atpp, problem.rank))
    return PlanAfter(
        float(np.isfinite(budgets).mean()),
        float(np.quantile(budgets, 0.5, method="higher")),
    )


def _smallest(margin: Floats, atpp: Floats, rank: int) -> float:
    """Smallest ATPP of the grid with at least `rank` draws within all limits at some ratio."""
    enough = ((margin >= 0).all(0).sum(-1) >= rank).any(-1)
    return float(atpp[enough.argmax()]) if enough.any() else math.inf
