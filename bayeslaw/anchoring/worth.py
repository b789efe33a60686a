"""What anchors are worth to a plan: FLOPs saved on the target run against FLOPs spent on them.

The expected value of sample information, by simulation and refit: draw a truth from the posterior,
simulate what the anchors would measure in it, refit both laws, plan again (Raiffa and Schlaifer
1961, *Applied Statistical Decision Theory*).
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw.anchoring.costs import costs
from bayeslaw.errors import BayeslawError
from bayeslaw.planning.planner import Plan, plan
from bayeslaw.posterior import Posterior
from bayeslaw.refits import joined, refit
from bayeslaw.tables import LossTable, canonical


def anchor_value(
    sets: Mapping[str, pd.DataFrame],
    *,
    target: Posterior,
    source: Posterior,
    simulations: int = 20,
    cost: str = "flops",
    seed: int = 0,
    jobs: int = 1,
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
        Of the domain adapted to and of the one that may be forgotten.
    simulations : int
        Truths drawn from the posteriors, the same for all sets; each costs two refits a set.
    cost : "flops", "adaptation", or a column
        See `bayeslaw.choose_anchors`.
    seed : int
    jobs : int
        Processes.
    allow_unconverged : bool
        Start although a posterior failed the convergence gate. Refits are short, and are planned
        with whether they pass or not; the column `rhat` says how they did.
    sampling : mapping, optional
        Sampler settings of the refits; see `bayeslaw.refits.refit`.
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
        If no set is given, or there is no plan now whose budget could fall.
    """
    from joblib import Parallel, delayed

    if not sets:
        raise BayeslawError("sets is empty: give at least one set of anchors.")
    planned |= {"seed": seed, "allow_unconverged": True}
    run = dict(sampling or {})
    for fit in (target, source):
        fit.require_converged(allow_unconverged)
    now = plan(target=target, source=source, **planned)
    if not math.isfinite(now.atpp):
        raise BayeslawError(f"no plan now, so no budget that could fall: {now.binds}")
    fits, rng = (target, source), np.random.default_rng(seed)
    draws = [rng.integers(len(fit.values()["sigma"]), size=simulations) for fit in fits]
    tasks, spent = [], []
    for name, rows in sets.items():
        frame = canonical(rows, f"anchors {name!r}", target.law.columns)
        frame = frame.drop(columns="domain", errors="ignore")  # each fit's own
        price = costs(frame, target.law, cost=cost, fitted=target.table.frame)
        spent.append(price.total(range(len(frame))))
        measured = [
            (fit.latent(frame) * np.exp(fit.residuals(frame, np.random.default_rng(seed))))[index]
            for fit, index in zip(fits, draws, strict=True)
        ]
        tasks += [
            delayed(_after)(
                fits, [frame.assign(loss=each[i]) for each in measured], i, run, planned
            )
            for i in range(simulations)
        ]
    found = np.array(Parallel(n_jobs=jobs)(tasks)).reshape(len(sets), simulations, 3)
    records = []
    for name, flops, (atpp, after, rhat) in zip(sets, spent, found.transpose(0, 2, 1), strict=True):
        saved, ends = now.flops - after, np.isfinite(after)
        records.append(
            {
                "set": name,
                "flops": flops,
                "atpp_now": now.atpp,
                "atpp": np.quantile(atpp, 0.5, method="higher"),
                "atpp_90": np.quantile(atpp, 0.9, method="higher"),
                "less": (atpp < now.atpp).mean(),
                "infeasible": 1 - ends.mean(),
                "saved": np.quantile(saved, 0.5, method="lower"),
                "net": np.quantile(saved, 0.5, method="lower") - flops,
                "saved_mean": saved[ends].mean(),
                "saved_error": saved[ends].std(ddof=1) / np.sqrt(ends.sum()),
                "rhat": float(np.median(rhat)),
            }
        )
    return pd.DataFrame(records)


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
