"""The paper's question on measured sweeps: forecasts of PTPP 279 from two budgets, and plans.

Budgets 15 and 31 are fitted at all sizes, with different purchases at 279. Forecast are the two
largest sizes at 279. A plan chooses among their measured runs, so each plan is checked by the
losses of the run that it chose.
"""

from argparse import Namespace
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import bayeslaw as bl
from bayeslaw.common.arrays import Floats
from bayeslaw.model.discrepancy import FromBase
from benchmarks.methods import scored
from benchmarks.runner import Jobs, Tables, experiment
from benchmarks.splits import one_seed_tables

STAGE = 279
"""The pre-training budget that is forecast, in tokens per parameter."""
ANCHORS = (
    (0, 0.25, 8), (0, 0.1, 16), (0, 0.5, 2), (1, 0.25, 8),
    (1, 0.1, 16), (1, 0.5, 2), (0, 0.25, 1), (1, 0.25, 20),
)  # fmt: skip
"""Cheap runs at 279 in the order in which they are bought: rank of the size, replay, ATPP."""
DESIGNS = (
    "two budgets", "1 anchor", "2 anchors", "4 anchors", "8 anchors", "two sizes",
    "pilot 0.5", "pilot 1", "pilot 2", "four budgets",
)  # fmt: skip
NEAR = 1.3
"""Factor by which the ATPP of a measured row may differ from that of a design."""
QUANTILES = (0.2, 0.4, 0.6, 0.8)
"""Quantiles of the measured losses of a size that are the limits of its plans."""
CONFIDENCES = (0.8, 0.9)


def bought(frame: pd.DataFrame, design: str) -> pd.Series:
    """Which rows of a sweep a design fits."""
    sizes, stages = np.unique(frame["params"]), frame["ptpp"]
    early, last, small = stages <= 31, stages == STAGE, frame["params"] <= sizes[1]
    if design == "two budgets":
        return early
    if design == "four budgets":
        return stages < STAGE
    if design == "two sizes":
        return early | (last & small)
    kind, number = sorted(design.split(), reverse=True)
    if kind == "pilot":
        return early | (last & (small | (frame["atpp"] <= float(number) * NEAR)))
    kept = early.copy()
    for rank, replay, atpp in ANCHORS[: int(number.removesuffix("s"))]:
        cell = frame[
            last & (frame["params"] == sizes[rank]) & (frame["replay"] == replay)
        ]
        kept[(np.log(cell["atpp"] / atpp)).abs().idxmin()] = True
    return kept


def designed(table: bl.LossTable, design: str) -> tuple[bl.LossTable, bl.LossTable]:
    """Training rows of a design, and the rows of the two largest sizes at 279 that it leaves."""
    frame = table.frame
    train = bought(frame, design)
    test = (
        (frame["ptpp"] == STAGE)
        & (frame["params"] > np.unique(frame["params"])[1])
        & ~train
    )

    def of(rows: pd.Series) -> bl.LossTable:
        kept = frame[rows].reset_index(drop=True)
        return bl.LossTable(kept, table.name, baselines=table.baselines)

    return of(train), of(test)


class Losses(NamedTuple):
    """Measured losses of the runs that a plan may choose, and draws of them, (draws, runs)."""

    measured: Floats
    draws: Floats


def plans(
    rows: pd.DataFrame, domains: Mapping[str, Losses], level: float
) -> dict[str, float]:
    """Plans of each size for limits at quantiles of its measured losses.

    `rows` are the runs, one for each loss. The plan is the run of least ATPP that keeps all limits
    with a probability of at least `level`; of several at one ATPP, the most probable. Domains are
    fits of their own, so their draws are independent.
    """
    counted = {"cases": 0, "made": 0, "kept": 0}
    costs: list[float] = []
    for _, of_size in rows.groupby("params"):
        place, atpp = of_size.index.to_numpy(), of_size["atpp"].to_numpy()
        for quantiles in product(QUANTILES, repeat=len(domains)):
            met, likely = np.ones(len(place), bool), np.ones(len(place))
            for q, (measured, draws) in zip(quantiles, domains.values(), strict=True):
                limit = np.quantile(measured[place], q)
                met &= measured[place] <= limit
                likely *= (draws[:, place] <= limit).mean(axis=0)
            if not met.any():
                continue
            counted["cases"] += 1
            chosen = np.flatnonzero(likely >= level)
            if not len(chosen):
                continue
            plan = min(chosen, key=lambda run: (atpp[run], -likely[run]))
            counted["made"] += 1
            counted["kept"] += int(met[plan])
            costs.append(np.log(atpp[plan] / atpp[met].min()))
    return counted | {"budget": float(np.exp(np.mean(costs))) if costs else np.nan}


def sweeps(options: Namespace) -> Iterator[tuple[str, dict[str, bl.LossTable]]]:
    """Tables of each sweep by domain, of one seed."""
    found: dict[str, dict[str, bl.LossTable]] = {}
    for name, table in one_seed_tables(options.bench):
        sweep, domain = name.split()
        found.setdefault(sweep, {})[domain] = table
    yield from found.items()


def by_design(rows: pd.DataFrame) -> Tables:
    """Forecasts over domains, and plans over sweeps, by way and design."""
    order = pd.Categorical(rows["design"], DESIGNS, ordered=True)
    rows = rows.assign(design=order)
    key = ["way", "design"]
    forecasts = rows[rows["kind"] == "forecast"]
    groups = forecasts.groupby(key, observed=True)
    found = groups[["coverage_90", "coverage_50", "crps", "width_90"]].mean()
    found = found.assign(least=groups["coverage_90"].min(), fits=groups.size())
    made = rows[rows["kind"] != "forecast"].assign(
        log_budget=lambda f: np.log(f["budget"])
    )
    made["log_budget"] *= made["made"]
    sums = made.groupby(["kind", "level", *key], observed=True)
    of_plans = sums[["cases", "made", "kept"]].sum()
    share = of_plans["kept"] / of_plans["made"]
    budget = np.exp(sums["log_budget"].sum() / of_plans["made"])
    return {"forecasts": found, "plans": of_plans.assign(share=share, budget=budget)}


WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "never exact": {"discrepancy": FromBase(exact=0.0)},
}
"""Settings of a fit of `transfer`."""


@experiment(by_design, bench=None)
def measured_plans(options: Namespace) -> Jobs:
    """Forecasts of PTPP 279 from two budgets and what is bought there, and plans among its runs."""
    for (sweep, tables), design, way in product(sweeps(options), DESIGNS, WAYS):

        def job(
            tables: dict[str, bl.LossTable] = tables,
            design: str = design,
            way: str = way,
        ) -> pd.DataFrame:
            rows: list[dict[str, object]] = []
            losses: dict[str, dict[str, Losses]] = {"predictive": {}, "latent": {}}
            for domain, table in tables.items():
                train, test = designed(table, design)
                fit = bl.fit("transfer", train, **WAYS[way] | options.settings)
                about = {"kind": "forecast", "domain": domain, "train": len(train)}
                rows.append(about | scored(fit, test))
                fit = fit.accepted({"unconverged", "beyond-evidence"})
                for kind, of_domain in losses.items():
                    samples = fit.forecast(test, kind=kind).samples
                    of_domain[domain] = Losses(test.loss, samples)
            for (kind, of_domain), level in product(losses.items(), CONFIDENCES):
                plan = plans(test.frame, of_domain, level)
                rows.append({"kind": kind, "level": level} | plan)
            return pd.DataFrame(rows)

        yield {"table": sweep, "design": design, "way": way}, job


# -- which runs to buy -------------------------------------------------------------------------

BUYERS = ("none", "random", "cheapest", "grid")
"""Ways to buy runs of `bayeslaw.study`; ``"none"`` buys nothing."""


def by_buyer(rows: pd.DataFrame) -> Tables:
    """Scores of each way over tables and seeds, and its CRPS over that of random runs."""
    groups = rows.groupby("design")
    found = groups[["coverage_90", "coverage_50", "width_90", "crps", "runs"]].mean()
    logs = np.log(rows.set_index(["table", "seed", "design"])["crps"]).unstack()
    ratios = np.exp(logs.sub(logs["random"], axis=0).mean())
    found = found.assign(least=groups["coverage_90"].min(), over_random=ratios)
    return {
        "ways to buy": found.reindex([name for name in BUYERS if name in found.index])
    }


@experiment(by_buyer, bench=None)
def purchases(options: Namespace) -> Jobs:
    """Runs of the two smallest sizes at 279, bought in several ways at the cost of four anchors."""
    for sweep, tables in sweeps(options):
        for domain, table in tables.items():
            train, test = designed(table, "two budgets")
            every, _ = designed(table, "two sizes")
            pool = every.query(f"ptpp == {STAGE}")
            four, _ = designed(table, "4 anchors")
            anchors = four.frame[four.frame["ptpp"] == STAGE]
            cost = float((6 * anchors["params"] * anchors["tokens"]).sum())

            def job(
                train: bl.LossTable = train,
                pool: bl.LossTable = pool,
                test: bl.LossTable = test,
                cost: float = cost,
            ) -> pd.DataFrame:
                how: dict[str, Any] = {
                    "discrepancy": "auto",
                    "effects": "auto",
                    "chains": 4,
                }
                how |= options.settings
                seeds = range(1 if options.smoke else 3)
                how |= {"budget": cost, "cost": "adaptation", "seeds": seeds, "jobs": 1}
                return bl.study("transfer", train, pool, test, designs=BUYERS, **how)

            yield {"table": f"{sweep} {domain}"}, job
