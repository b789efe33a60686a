"""What is said of a fit: verdicts of `check`, and moves between seeds."""

from argparse import Namespace
from functools import partial
from itertools import chain, product

import numpy as np
import pandas as pd

import bayeslaw as bl
from bayeslaw.tables.verdict import SEVERITIES
from benchmarks.held_out import LAW
from benchmarks.methods import POSTERIORS, scored
from benchmarks.runner import Jobs, Rows, Tables, experiment
from benchmarks.splits import benched, shipped

# -- verdicts ----------------------------------------------------------------------------------

HELD = 0.8
"""Least share of losses in a 90 % band that held."""


def by_verdict(rows: pd.DataFrame) -> Tables:
    """How many bands held, by the verdict of `check` without the test losses."""
    fits = rows[rows["gate"] == "passed"]
    groups = fits.groupby(["law", "way", "level"])["coverage_90"]
    found = groups.agg(
        splits="size", held=lambda c: (c >= HELD).sum(), mean="mean", least="min"
    )
    failed = (rows["gate"] != "passed").groupby([rows["law"], rows["way"]])
    return {
        "verdict of fits that pass the convergence check": found,
        "fits that fail it": failed.agg(["sum", "size"]),
    }


def judged(
    law: str,
    way: str,
    train: bl.LossTable,
    test: bl.LossTable,
    settings: dict[str, object],
) -> dict[str, object]:
    """Coverage of the test losses, and the verdict of `check` without them, by part."""
    fit = bl.fit(law, train, **POSTERIORS[way] | settings)
    score = scored(fit, test)
    found = bl.check(fit, test.frame.drop(columns="loss"))
    own = found["held out"]
    row = {
        name: score[name]
        for name in ("test", "gate", "coverage_50", "coverage_90", "crps")
    }
    row["level"] = max(
        (part.level for part in found.parts if part.name != "convergence"),
        key=SEVERITIES.index,
    )
    row |= {part.name: part.level for part in found.parts}
    row["decades"] = found["extrapolation"].frame["decades"].max()
    row |= {
        f"own {name}": own.facts.get(name)
        for name in ("held", "independent", "p", "gate")
    }
    return row


@experiment(by_verdict, bench=None)
def verdicts(options: Namespace) -> Jobs:
    """How often the verdict of `check` is right, on 35 splits in N and D."""
    for name, source, train, test, laws in chain(shipped(), benched(options.bench)):
        for way in ("default", "plain") if LAW in laws else ():
            key = {"table": name, "source": source, "law": LAW, "way": way}
            yield key, partial(judged, LAW, way, train, test, options.settings)


# -- seeds -------------------------------------------------------------------------------------

FEW_DRAWS = (150, 250, 600, 1000)
LEAST_ESS = (0.0, 200.0, 400.0, 800.0, np.inf)
FRESH_SEEDS = range(10, 20)
"""Seeds of the sampler that no setting was chosen on."""


def by_ess(rows: pd.DataFrame) -> Tables:
    """How far forecasts of one fit are from the mean of all fits to its table, by their ESS."""
    ends = ["low", "median", "high"]
    middle = rows.groupby(["table", "row"])[ends].transform("mean")
    width = middle["high"] - middle["low"]
    moved = (rows[ends] - middle).abs().div(width, axis=0)
    rows = rows.assign(
        median_moved=100 * moved["median"],
        ends_moved=100 * moved[["low", "high"]].max(axis=1),
        ess=pd.cut(rows["ess"], LEAST_ESS, right=False),
    )
    fits = rows.groupby(["table", "seed", "draws"])
    of_fits = (
        fits[["median_moved", "ends_moved"]].max().join(fits[["ess", "passed"]].first())
    )
    groups = rows.groupby("ess", observed=True)[["median_moved", "ends_moved"]]
    worst = of_fits.groupby("ess", observed=True)[["median_moved", "ends_moved"]]
    moves = groups.mean().join(worst.quantile(0.9), rsuffix="_worst_row")
    moves = moves.join(worst.max(), rsuffix="_worst_fit").assign(fits=worst.size())
    passed = of_fits.groupby(["table", "draws"])["passed"].agg(["sum", "size"])
    return {
        "moves, in percent of the width of the 90 % band": moves,
        "first runs that pass": passed,
    }


@experiment(by_ess)
def seeds(options: Namespace) -> Jobs:
    """How far forecasts move between seeds and numbers of draws, on three tables."""
    few = bl.example_table().split("scale <= 3e20", "scale >= 1e21")
    tables = {name: (train, test) for name, _, train, test, _ in shipped()}
    chosen = {
        "example": few,
        **{name: tables[name] for name in ("olmo c4_en", "gadre rpj")},
    }
    for (name, (train, test)), seed, draws in product(
        chosen.items(), FRESH_SEEDS, FEW_DRAWS
    ):

        def job(
            train: bl.LossTable = train,
            test: bl.LossTable = test,
            seed: int = seed,
            draws: int = draws,
        ) -> Rows:
            settings = {"draws": draws, "retry": False} | options.settings
            fit = bl.fit(LAW, train, seed=seed, **settings)
            state = fit.convergence
            drawn = np.log(fit.accepted("unconverged").forecast(test).samples)
            low, median, high = np.quantile(drawn, [0.05, 0.5, 0.95], axis=0)
            frame = pd.DataFrame({"low": low, "median": median, "high": high})
            return (
                frame.rename_axis("row")
                .reset_index()
                .assign(
                    ess=min(state.ess_bulk, state.ess_tail),
                    rhat=state.rhat,
                    passed=not state.missed,
                )
            )

        yield {"table": name, "seed": seed, "draws": draws}, job
