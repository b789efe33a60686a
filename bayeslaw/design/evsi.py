"""Expected value of sample information (EVSI): what a plan saves once runs are measured.

Measured losses are simulated, both laws refitted with them, and planned again [1]_. The value is
the FLOPs saved on the target run, to be compared with the FLOPs spent on the anchors.

References
----------
.. [1] H. Raiffa and R. Schlaifer (1961). Applied Statistical Decision Theory. Harvard University.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.common.errors import BayeslawError
from bayeslaw.common.files import results
from bayeslaw.design.search import costs
from bayeslaw.inference.fitting import joined, refit
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.residuals import residual_draws
from bayeslaw.inference.settings import RefitSettings
from bayeslaw.laws.adjustments import ABSENT, completed
from bayeslaw.planning.planner import plan
from bayeslaw.planning.result import Plan
from bayeslaw.tables.table import LossTable
from bayeslaw.tables.validation import COVARIATES, canonical


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
    rows, code = distinct_rows(frames)
    losses = simulated_losses(fits, rows, simulations, seed)
    spent, calls = [], []
    for frame, own in zip(frames, code, strict=True):
        price = costs(frame, target.columns, cost=cost, fitted=target.table)
        spent.append(price.total(range(len(frame))))
        # The rows are measured in both domains; their tables have the column.
        bare = frame.drop(columns="domain", errors="ignore")
        for i in range(simulations):
            measured = [bare.assign(loss=domain[i, own]) for domain in losses]
            calls.append((_refitted_plan, (fits, measured, i, run, planned)))
    found = list(results(calls, jobs, "refits and plans", progress))
    parts = np.array(found).reshape(len(sets), simulations, 3)
    return pd.DataFrame(
        {"set": name, "flops": flops} | summary_of_set(now, flops, *part.T)
        for name, flops, part in zip(sets, spent, parts, strict=True)
    )


def distinct_rows(frames: Sequence[pd.DataFrame]) -> tuple[pd.DataFrame, list[Ints]]:
    """Distinct rows of all frames, and the positions of each frame's rows among them."""
    rows = pd.concat(completed(frames), ignore_index=True)
    same = [name for name in ("run", *ABSENT, *COVARIATES) if name in rows]
    code = rows.groupby(same, sort=False, dropna=False).ngroup().to_numpy()
    ends = np.cumsum([len(frame) for frame in frames])
    return rows[~rows.duplicated(same)].reset_index(drop=True), np.split(code, ends[:-1])


def simulated_losses(
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


def summary_of_set(
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
