"""Strategies of buying runs at equal cost, compared by the forecasts of refits with these runs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Unpack

import numpy as np
import pandas as pd

from bayeslaw.anchors.costs import Costs, costs
from bayeslaw.anchors.prediction import predicted_sd
from bayeslaw.common.errors import BayeslawError, unknown
from bayeslaw.common.files import Call, results
from bayeslaw.evaluate import scores
from bayeslaw.inference.fitting import SHORT_REFIT, joined, refit
from bayeslaw.inference.settings import FitKeywords, shows_settings
from bayeslaw.laws.law import Law
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.tables.table import LossTable

DESIGNS = ("none", "random", "cheapest", "grid")


@shows_settings("cores", "retry", **SHORT_REFIT)
def study(
    law: str | Law,
    train: LossTable,
    pool: LossTable,
    targets: LossTable,
    *,
    designs: Sequence[str] = DESIGNS,
    seeds: Sequence[int] = range(10),
    budget: float | None = None,
    cost: str = "adaptation",
    jobs: int = 2,
    **settings: Unpack[FitKeywords],
) -> pd.DataFrame:
    """Buy runs by several designs at equal cost, refit, forecast the targets and score.

    Parameters
    ----------
    law : str, path or Law
    train, pool, targets : LossTable
        Rows of the first fit, rows that can be bought, and rows to forecast, all with losses.
    designs : sequence of {"none", "random", "cheapest", "grid"}
        ``"grid"`` buys the rows of the smallest N.
    seeds : sequence of int
        Of random runs and of the sampler; each design is tried once with each.
    budget : float, optional
        Cost of every design; by default that of ``"grid"``.
    cost : "flops", "adaptation", or a column of the pool
        See `bayeslaw.choose_anchors`.
    jobs : int
        Number of processes.
    **settings
        Arguments of `bayeslaw.inference.fitting.refit`. By default sampler runs are short and the
        model has no discrepancy.

    Returns
    -------
    DataFrame
        One row per seed and design: `seed`, `design`; `cost`, `runs`, `rows`; the scores of
        `bayeslaw.score` at the targets; `sd`, the posterior standard deviation of log loss at the
        targets after the refit (median), and `sd_predicted`, its Bayes-linear prediction; `rhat`.

    Examples
    --------
    >>> table = bl.example_table()
    >>> train, rest = table.split("scale <= 3e19", "scale > 3e19")
    >>> pool, targets = rest.split("scale < 1e21", "scale >= 1e21")
    >>> settings = {"designs": ["none", "random"], "seeds": [0], "jobs": 1}
    >>> scores = bl.study("chinchilla", train, pool, targets, **settings)
    >>> scores[["design", "seed"]].to_numpy().tolist()
    [['none', 0], ['random', 0]]
    """
    for design in designs:
        if design not in DESIGNS:
            raise BayeslawError(unknown("design", design, DESIGNS))
    if budget is not None and not 0 < budget < math.inf:
        raise BayeslawError(f"budget={budget:g}: give a positive cost.")
    progress = settings.pop("progress", None)  # of the study, not of each fit
    columns = load_law(law).columns
    price = costs(pool.frame, columns, cost=cost, fitted=train)
    cheapest = price.alone.argsort(kind="stable")
    smallest = pool.frame["params"] == pool.frame["params"].min()
    of_grid = cheapest[np.isin(cheapest, price.code[smallest])]
    most = price.total(of_grid) if budget is None else budget
    calls: list[Call[pd.DataFrame]] = []
    for seed in seeds:
        orders = {
            "none": cheapest[:0],
            "random": price.shuffled([seed, 0]),
            "cheapest": cheapest,
            "grid": of_grid,
        }
        bought = {}
        for name in designs:
            bought[name] = price.buy(orders[name], len(cheapest), most)
        tables = (train, pool, targets)
        calls.append((_scored, (law, tables, price, bought, seed, settings)))
    frames = results(calls, jobs, "seeds", progress)
    return pd.concat(frames, ignore_index=True)


def _scored(
    law: str | Law,
    tables: tuple[LossTable, LossTable, LossTable],
    price: Costs,
    bought: Mapping[str, list[int]],
    seed: int,
    settings: FitKeywords,
) -> pd.DataFrame:
    """Scores of the designs of one seed, which buy these runs."""
    train, pool, targets = tables
    fit = refit(law, train, seed, **settings)
    rows = []
    for design, runs in bought.items():
        measured = pool.frame[np.isin(price.code, runs)]
        both = joined(train, replace(pool, frame=measured))
        after = refit(law, both, seed, **settings) if runs else fit
        # Bands of refits that did not converge are scored as well: leaving them out would favour
        # the designs whose posteriors are hard to sample.
        accepting = after.accepted({"unconverged", "beyond-evidence"})
        forecast = accepting.forecast(targets, seed=seed)
        sd = predicted_sd(after, measured[:0], targets)
        sd_before = predicted_sd(fit, measured, targets)
        row = {
            "seed": seed,
            "design": design,
            "cost": price.total(runs),
            "runs": len(runs),
            "rows": len(measured),
            **scores.score(forecast, targets),
            "sd": np.median(sd),
            "sd_predicted": np.median(sd_before),
            "rhat": after.convergence.rhat,
        }
        rows.append(row)
    return pd.DataFrame(rows)
