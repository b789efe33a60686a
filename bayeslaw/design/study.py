"""What measured anchors are worth: for a plan, and for forecasts, by simulations and refits.

The expected value of sample information (EVSI) is that of H. Raiffa and R. Schlaifer (1961),
Applied Statistical Decision Theory, Harvard University.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.common.errors import BayeslawError, unknown
from bayeslaw.common.files import Call, results
from bayeslaw.design.anchors import Costs, costs
from bayeslaw.design.gaussian import predicted_sd
from bayeslaw.evaluate import scores
from bayeslaw.inference.fitting import joined, refit
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.residuals import residual_draws
from bayeslaw.inference.sampling import RefitSettings
from bayeslaw.laws.law import Law
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.laws.steps import completed
from bayeslaw.planning.planner import plan
from bayeslaw.planning.result import Plan
from bayeslaw.tables.table import LossTable, rows_of
from bayeslaw.tables.validation import ABSENT, COVARIATES, OF_DOMAIN

DESIGNS = ("none", "random", "cheapest", "grid")

# -- for a plan -----------------------------------------------------------------------------------


def anchor_value(
    sets: Mapping[str, pd.DataFrame],
    *,
    target: Posterior,
    source: Posterior,
    simulations: int = 20,
    cost: str = "flops",
    seed: int = 0,
    jobs: int = 1,
    progress: bool | None = None,
    **planned: Any,
) -> pd.DataFrame:
    """Expected value of sample information of sets of anchors for a plan.

    Parameters
    ----------
    sets : mapping of name to DataFrame
        Rows to measure in both domains, such as ``choose_anchors(...).frame``. They are annealed,
        at their best rate, and repeat no tokens, unless their columns say so.
    target, source : Posterior
        Posteriors of the domain adapted to and of the one that may be forgotten. Each is refitted
        alone.
    simulations : int
        Number of parameter draws taken as the truth, the same for all sets. Each needs two refits
        per set, which are short, and are used whether they converge or not.
    cost : "flops", "adaptation", or a column in FLOPs
        See `bayeslaw.choose_anchors`.
    seed : int
    jobs : int
        Number of processes.
    progress : bool, optional
        As for `bayeslaw.fit`.
    **planned
        For `bayeslaw.plan`: ``params``, ``ptpp``, ``max_loss``, ``max_forgetting`` and so on.

    Returns
    -------
    DataFrame
        One row per set: `flops`, its cost; `atpp_now`, the budget planned before it; `atpp` and
        `atpp_90`, median and 90 % quantile over simulations of that after it, infinite where no
        plan is feasible; `less` and `infeasible`, fraction of simulations in which the budget
        falls, and in which there is no plan; `saved` and `net`, median FLOPs saved on the target
        run, and the same minus `flops`; `saved_mean` and `saved_error`, mean over the simulations
        with a plan, which a few large budgets can dominate, and its standard error; `rhat`, median
        of the larger R-hat of two refits.

    Raises
    ------
    BayeslawError
        If there is no set, no simulation, or no feasible plan before the anchors.
    """
    if not sets or simulations < 1:
        raise BayeslawError("give at least one set of anchors, and one simulation.")
    # The same noise before and after, so that budgets differ by the anchors alone.
    planned |= {"seed": seed}
    # These plans are compared and not followed, so they may lie anywhere.
    fits = target.accepted(beyond_evidence=True), source.accepted(beyond_evidence=True)
    now = plan(target=fits[0], source=fits[1], **planned)
    if not math.isfinite(now.atpp):
        raise BayeslawError(f"no plan now, so no budget that could fall: {now.binds}")
    frames = [
        rows_of(rows, f"anchors {name!r}", target.columns).frame for name, rows in sets.items()
    ]
    rows, code = distinct_rows(frames, target.columns)
    losses = simulated_losses(fits, rows, simulations, seed)
    spent, calls = [], []
    for frame, places in zip(frames, code, strict=True):
        price = costs(frame, target.columns, cost=cost, fitted=target.table)
        spent.append(price.total(price.code))
        # The rows are measured in both domains; their tables have the columns.
        bare = frame.drop(columns=[*OF_DOMAIN], errors="ignore")
        for i in range(simulations):  # the same truths for all sets, so that their values compare
            measured = [bare.assign(loss=domain[i, places]) for domain in losses]
            calls.append((_refitted_plan, (fits, measured, i, planned)))
    plans = list(results(calls, jobs, "refits and plans", progress))
    parts = np.array(plans).reshape(len(sets), simulations, 3)
    return pd.DataFrame(
        {"set": name, "flops": flops} | summary_of_set(now, flops, *part.T)
        for name, flops, part in zip(sets, spent, parts, strict=True)
    )


def distinct_rows(
    frames: Sequence[pd.DataFrame], columns: Sequence[str] = ()
) -> tuple[pd.DataFrame, list[Ints]]:
    """Distinct rows of all frames, and the positions of each frame's rows among them."""
    rows = pd.concat(completed(frames), ignore_index=True)
    # A row of several sets has one loss in a simulation, so that sets compare.
    known = dict.fromkeys(("run", *ABSENT, *COVARIATES, *columns))
    same = [name for name in known if name in rows]
    code = rows.groupby(same, sort=False, dropna=False).ngroup().to_numpy()
    ends = np.cumsum([len(frame) for frame in frames])
    return rows[~rows.duplicated(same)].reset_index(drop=True), np.split(code, ends[:-1])


def simulated_losses(
    fits: tuple[Posterior, Posterior], rows: pd.DataFrame, count: int, seed: int
) -> list[Floats]:
    """Losses measured in each domain, (simulations, rows), where the truth is a draw."""
    measured, rows = [], rows.drop(columns=[*OF_DOMAIN], errors="ignore")
    for i, fit in enumerate(fits):
        # Domains are independent, as they are in a plan.
        rng = np.random.default_rng([seed, i])
        truth = rng.integers(len(fit.values()["sigma"]), size=count)
        measured.append((fit.latent(rows) * np.exp(residual_draws(fit, rows, rng)))[truth])
    return measured


def _refitted_plan(
    fits: tuple[Posterior, Posterior],
    measured: list[pd.DataFrame],
    seed: int,
    planned: Mapping[str, Any],
) -> tuple[float, float, float]:
    """ATPP and FLOPs of the plan after refits with measured losses, and the larger R-hat."""
    refits = (
        refit(fit.spec, joined(fit.table, LossTable(rows)), seed)
        for fit, rows in zip(fits, measured, strict=True)
    )
    target, source = (fit.accepted(unconverged=True, beyond_evidence=True) for fit in refits)
    new: Plan = plan(target=target, source=source, **planned)
    return new.atpp, new.flops, max(target.convergence.rhat, source.convergence.rhat)


def summary_of_set(
    now: Plan, spent: float, atpp: Floats, flops: Floats, rhat: Floats
) -> dict[str, object]:
    saved = now.flops - flops
    # An order statistic: without a plan the saving is minus infinity, which has no mean.
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


# -- for forecasts --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Case:
    """One problem of a study, for one seed.

    Parameters
    ----------
    law : str, path or Law
    train, pool, targets : LossTable
        Rows of the first fit, rows that can be bought, and rows to forecast, all with losses.
    seed : int
        Of random runs and of the sampler.
    name : str
    """

    law: str | Law
    train: LossTable
    pool: LossTable
    targets: LossTable
    seed: int = 0
    name: str = ""


def study(
    cases: Iterable[Case],
    designs: Sequence[str] = DESIGNS,
    *,
    budget: float | None = None,
    cost: str = "adaptation",
    jobs: int = 2,
    progress: bool | None = None,
    **settings: Unpack[RefitSettings],
) -> pd.DataFrame:
    """Buy runs by several designs at equal FLOPs, refit, forecast the targets and score.

    Parameters
    ----------
    cases : iterable of Case
    designs : sequence of {"none", "random", "cheapest", "grid"}
        ``"grid"`` buys the rows of the smallest N.
    budget : float, optional
        FLOPs of every design; by default the cost of the design ``grid`` in each case.
    cost : "flops", "adaptation", or a column of the pool
        See `bayeslaw.choose_anchors`.
    jobs : int
        Number of processes.
    progress : bool, optional
        As for `bayeslaw.fit`.
    **settings
        Arguments of `bayeslaw.inference.fitting.refit`. By default sampler runs are short and the
        model has no discrepancy.

    Returns
    -------
    DataFrame
        One row per case and design: `case`, `seed`, `design`; `budget`, `flops`, `runs`, `rows`;
        the scores of `bayeslaw.score` at the targets; `sd`, the posterior standard deviation of log
        loss at the targets after the refit (median), and `sd_predicted`, its Bayes-linear
        prediction; `rhat`.

    Raises
    ------
    BayeslawError
        If a design or the cost is unknown.
    """
    for design in designs:
        if design not in DESIGNS:
            raise BayeslawError(unknown("design", design, DESIGNS))
    if budget is not None and not 0 < budget < math.inf:
        raise BayeslawError(f"budget={budget:g}: give positive FLOPs.")
    calls: list[Call[pd.DataFrame]] = []
    for case in cases:  # raises for a cost that no row has, before anything is fitted
        law = load_law(case.law)
        price = costs(case.pool.frame, law.columns, cost=cost, fitted=case.train)
        calls.append((_compared, (case, designs, price, budget, settings)))
    return pd.concat(results(calls, jobs, "cases", progress), ignore_index=True)


def buy(design: str, case: Case, price: Costs, budget: float) -> list[int]:
    """Runs of a case's pool that a design measures."""
    order = -price.further([])
    if design == "random":
        order = price.shuffled([case.seed, 0])
    elif design == "grid":
        smallest = case.pool.frame["params"] == case.pool.frame["params"].min()
        order[~np.isin(np.arange(len(order)), price.code[smallest])] = -math.inf
    return price.choose(lambda _: order, 0 if design == "none" else len(order), budget)


def _compared(
    case: Case,
    designs: Sequence[str],
    price: Costs,
    budget: float | None,
    settings: RefitSettings,
) -> pd.DataFrame:
    if budget is None:
        budget = price.total(buy("grid", case, price, math.inf))
    fit = refit(case.law, case.train, case.seed, **settings)
    rows = []
    for design in designs:
        picks = buy(design, case, price, budget)
        bought = case.pool.frame[np.isin(price.code, picks)]
        table = joined(case.train, replace(case.pool, frame=bought))
        after = refit(case.law, table, case.seed, **settings) if picks else fit
        # Bands of refits that did not converge are scored as well: leaving them out would favour
        # the designs whose posteriors are hard to sample.
        used = after.accepted(unconverged=True, beyond_evidence=True)
        forecast = used.forecast(case.targets, seed=case.seed)
        row = {"case": case.name, "seed": case.seed, "design": design, "budget": budget}
        row |= {"flops": price.total(picks), "runs": len(picks)}
        row |= {"rows": len(bought), **scores.score(forecast, case.targets)}
        row["sd"] = np.median(predicted_sd(after, bought.iloc[:0], case.targets))
        row["sd_predicted"] = np.median(predicted_sd(fit, bought, case.targets))
        rows.append(row | {"rhat": after.convergence.rhat})
    return pd.DataFrame(rows)
