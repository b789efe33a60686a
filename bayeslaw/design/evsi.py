"""What anchors are worth to a plan: FLOPs saved on the target run against FLOPs spent on them.

The expected value of sample information, by simulation and refit: draw a truth from the posterior,
simulate what the anchors would measure in it, refit both laws, plan again (Raiffa and Schlaifer
1961, *Applied Statistical Decision Theory*).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from bayeslaw.common.errors import BayeslawError
from bayeslaw.common.progress import bar
from bayeslaw.design.costs import costs
from bayeslaw.evaluate.new_sizes import residual_draws
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.refits import joined, refit
from bayeslaw.planning.planner import plan
from bayeslaw.planning.result import Plan
from bayeslaw.tables.table import LossTable
from bayeslaw.tables.validation import COVARIATES, canonical

type Floats = npt.NDArray[np.float64]
type Ints = npt.NDArray[np.int64]


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
    sampling: Mapping[str, Any] | None = None,
    **planned: Any,
) -> pd.DataFrame:
    """Expected reduction of the planned budget by each of a few sets of anchors.

    Parameters
    ----------
    sets : mapping of name to DataFrame
        Rows to measure in both domains, such as ``choose_anchors(...).frame``.
    target, source : Posterior
        Of the domain adapted to and of the one that may be forgotten; each is refitted alone.
    simulations : int
        Truths drawn from the posteriors, the same for all sets, and in each of them one loss for a
        row, whatever sets it is in; each truth costs two refits a set.
    cost : "flops", "adaptation", or a column
        See `bayeslaw.choose_anchors`; a column must hold FLOPs.
    seed : int
    jobs : int
        Processes.
    progress : bool
        Show a progress bar on stderr.
    allow_unconverged : bool
        Start although a posterior failed the convergence gate. Refits are short, and are planned
        with whether they pass or not; the column `rhat` says how they did.
    sampling : mapping, optional
        Sampler settings of the refits; see `bayeslaw.inference.refits.refit`.
    **planned
        For `bayeslaw.plan`: ``params``, ``ptpp``, ``max_loss``, ``max_forgetting``, ``baseline``,
        ``confidence`` and so on.

    Returns
    -------
    DataFrame
        One row per set: `flops`, its cost; `atpp_now`, the planned budget; `atpp` and `atpp_90`,
        median and 90 % quantile of the budget planned after it, infinite where there is no plan;
        `less`, the share of simulations in which it falls, `infeasible`, in which no plan is left;
        `saved`, median FLOPs saved on the target run, and `net`, less those spent; `saved_mean`
        with its Monte Carlo standard error `saved_error`, the expected value of sample information
        over simulations with a plan, which a few hopeless truths can rule; `rhat`, median over
        refits.

    Raises
    ------
    NotConverged
        If a posterior failed the gate and `allow_unconverged` is false.
    BayeslawError
        If there is no set, no simulation, or no plan now whose budget could fall.
    """
    from joblib import Parallel, delayed

    if not sets or simulations < 1:
        raise BayeslawError("give at least one set of anchors, and one simulation.")
    planned |= {"seed": seed, "allow_unconverged": True}
    run, fits = dict(sampling or {}), (target, source)
    for fit in fits:
        fit.require_converged(allow_unconverged)
    now = plan(target=target, source=source, **planned)
    if not math.isfinite(now.atpp):
        raise BayeslawError(f"no plan now, so no budget that could fall: {now.binds}")
    frames = [
        canonical(rows, f"anchors {name!r}", target.law.columns) for name, rows in sets.items()
    ]
    rows, code = _distinct(frames)
    losses = _simulated(fits, rows, simulations, seed)
    spent, calls = [], []
    for frame, own in zip(frames, code, strict=True):
        price = costs(frame, target.law, cost=cost, fitted=target.table.frame)
        spent.append(price.total(range(len(frame))))
        bare = frame.drop(columns="domain", errors="ignore")  # each fit's own
        for i in range(simulations):
            measured = [bare.assign(loss=domain[i, own]) for domain in losses]
            calls.append(delayed(_after)(fits, measured, i, run, planned))
    found = []
    with bar(progress, "refits and plans", len(calls)) as tick:
        for each in Parallel(n_jobs=jobs, return_as="generator")(calls):
            found.append(each)
            tick()
    parts = np.array(found).reshape(len(sets), simulations, 3)
    return pd.DataFrame(
        {"set": name, "flops": flops} | _outcome(now, flops, *part.T)
        for name, flops, part in zip(sets, spent, parts, strict=True)
    )


def _distinct(frames: Sequence[pd.DataFrame]) -> tuple[pd.DataFrame, list[Ints]]:
    """Distinct rows of all frames, and the place of each frame's rows among them."""
    rows = pd.concat(frames, ignore_index=True)
    same = [name for name in ("run", "base", *COVARIATES) if name in rows]
    code = rows.groupby(same, sort=False, dropna=False).ngroup().to_numpy()
    ends = np.cumsum([len(frame) for frame in frames])
    return rows[~rows.duplicated(same)].reset_index(drop=True), np.split(code, ends[:-1])


def _simulated(
    fits: tuple[Posterior, Posterior], rows: pd.DataFrame, count: int, seed: int
) -> list[Floats]:
    """Measured losses in each domain, shape (truths, rows), of truths drawn from its fit."""
    measured = []
    for i, fit in enumerate(fits):
        rng = np.random.default_rng([seed, i])
        truth = rng.integers(len(fit.values()["sigma"]), size=count)
        measured.append((fit.latent(rows) * np.exp(residual_draws(fit, rows, rng)))[truth])
    return measured


def _after(
    fits: tuple[Posterior, Posterior],
    measured: list[pd.DataFrame],
    seed: int,
    sampling: Mapping[str, Any],
    planned: dict[str, Any],
) -> tuple[float, float, float]:
    """Budget and FLOPs of the plan after the anchors' losses, and the worse R-hat."""
    target, source = (
        refit(fit.spec, joined(fit.table, LossTable(rows, rows.iloc[:0])), seed, **sampling)
        for fit, rows in zip(fits, measured, strict=True)
    )
    new: Plan = plan(target=target, source=source, **planned)
    return new.atpp, new.flops, max(target.convergence.rhat, source.convergence.rhat)


def _outcome(now: Plan, spent: float, atpp: Floats, flops: Floats, rhat: Floats) -> dict[str, Any]:
    """What became of the budget over the simulations."""
    saved = now.flops - flops
    typical, sure = np.quantile(saved, 0.5, method="lower"), pd.Series(saved[np.isfinite(flops)])
    return {
        "atpp_now": now.atpp,
        "atpp": np.quantile(atpp, 0.5, method="higher"),
        "atpp_90": np.quantile(atpp, 0.9, method="higher"),
        "less": (atpp < now.atpp).mean(),
        "infeasible": 1 - len(sure) / len(saved),
        "saved": typical,
        "net": typical - spent,
        "saved_mean": sure.mean(),
        "saved_error": sure.sem(),
        "rhat": np.median(rhat),
    }
