"""Three tries to lower medians that are too high beyond the rows, on splits of six sources.

"shifted" moves the default's forecast by a bias per decade learnt on the other sources, "shifted as
measured" by that of its own source, which no forecast knows. "continued" lets the walks go on as in
the last e-folds. "short trend" is a trend with steps correlated over one e-fold. "one of walk, ..."
is the discrepancy that forecasts the last training rows best.
"""

import math
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import pandas as pd

import bayeslaw as bl
from bayeslaw.common.arrays import Floats
from bayeslaw.laws.law import Law
from bayeslaw.laws.symbols import Values
from bayeslaw.model.discrepancy import Trend, WalkingExponents
from bayeslaw.tables.table import Rows, subset
from benchmarks.held_out import LAW, pooled
from benchmarks.methods import scores
from benchmarks.runner import FOLDER, Jobs, Tables, experiment
from benchmarks.splits import benched, shipped

CHOICES = ("walk", "trend", "curvature", "none")
SHIFTED = ("shifted", "shifted as measured")
WAYS = (
    "walk",
    *SHIFTED,
    "continued",
    "trend",
    "short trend",
    *(f"cut {kind}" for kind in CHOICES),
)
PENALTY = 1.0
"""Weight of the mean error beside CRPS, both of log loss, where the discrepancy is chosen."""
# .01 and .02 had a CRPS of 1.04 and 1.11 times the default's.
SLOPE = 0.005
"""Prior standard deviation of the mean bias of all sources, log loss per decade."""


@dataclass(frozen=True)
class Continued(WalkingExponents):
    """Walks whose steps beyond the rows are correlated with the mean of the last ones within."""

    window: float = 2.0  # over which the last steps are averaged, in e-folds
    length: float = 2.0  # over which the steps beyond them are correlated, in e-folds
    kind: ClassVar[str] = "continued"

    def extend(
        self, law: Law, q: Mapping[str, Floats], at: Values, rows: Rows, seed: int
    ) -> tuple[Law, dict[str, Floats]]:
        longer, drawn = super().extend(law, q, at, rows, seed)
        for fitted, walk in zip(law.walks, longer.walks, strict=True):
            steps, old, new = drawn[walk.steps].copy(), fitted.knots, walk.knots
            averaged = max(1, round(self.window / new.spacing))
            rho = math.exp(-new.spacing / self.length)
            for first, inside, count in (
                (0, old.above, new.above),
                (new.above, old.below, new.below),
            ):
                beyond, end = first + inside, first + count
                step = steps[..., max(first, beyond - averaged) : beyond].mean(axis=-1)
                for j in range(beyond, end):
                    step = rho * step + math.sqrt(1 - rho**2) * steps[..., j]
                    steps[..., j] = step
            drawn[walk.steps] = steps
        return longer, drawn


def bias_per_decade(source: str, *, own: bool = False) -> float:
    """Mean bias of the other sources in distance.csv, shrunk to 0; or the source's own."""
    rows = pd.read_csv(FOLDER / "distance.csv")
    products = pd.DataFrame(
        {"error": rows["error"] * rows["decades"], "square": rows["decades"] ** 2}
    )
    sums = products.groupby(rows["source"]).sum()
    slopes = sums["error"] / sums["square"]
    if own:
        return float(slopes[source])
    slopes = slopes.drop(source)
    return float(slopes.mean() * SLOPE**2 / (SLOPE**2 + slopes.var() / len(slopes)))


def last_rows(
    train: bl.LossTable, test: bl.LossTable
) -> tuple[bl.LossTable, bl.LossTable]:
    """Training rows cut where the test rows lie farthest: about a quarter come after the cut."""
    amounts = {
        "params": 1.0,
        "tokens": 1.0,
        "tokens / params": 1.0,
        "params * tokens": 0.5,
    }
    distances = {
        along: weight
        * np.log(test.frame.eval(along) / train.frame.eval(along).max())
        .clip(lower=0)
        .mean()
        for along, weight in amounts.items()
    }
    for along in sorted(distances, key=lambda name: -distances[name]):
        value = train.frame.eval(along).to_numpy()
        shares = {cut: (value > cut).mean() for cut in np.unique(value)}
        able = [cut for cut, share in shares.items() if 0.1 <= share <= 0.45]
        for cut in sorted(able, key=lambda cut: abs(shares[cut] - 0.25)):
            before = train.frame[value <= cut]
            if len(before) >= 8 and (before[["params", "tokens"]].nunique() >= 3).all():
                return subset(train, value <= cut), subset(train, value > cut)
    raise ValueError(f"{train.name}: no cut")


def by_source(rows: pd.DataFrame) -> Tables:
    """Tables of `pooled`, relative to the default, and how often each discrepancy was chosen."""
    truth = pd.read_csv(FOLDER / "truth.csv").replace({"way": {"plain": "none"}})
    scored = pd.concat([rows, truth[truth["way"].isin(("curvature", "none"))]])
    scored = scored.drop_duplicates(["table", "way"]).set_index(
        ["table", "way"], drop=False
    )
    costs = (scored["crps"] + PENALTY * scored["bias_log"].abs()).unstack("way")
    costs = costs.reindex(columns=[f"cut {kind}" for kind in CHOICES]).dropna()
    chosen, counts = [rows[~rows["way"].str.startswith("cut")]], {}
    for count in (1, 2, len(CHOICES)) if len(costs) else ():
        # One of one is the default on the same splits.
        best = costs.iloc[:, :count].idxmin(axis=1).str.removeprefix("cut ")
        way = "one of " + ", ".join(CHOICES[:count])
        chosen.append(scored.loc[[*best.items()]].assign(way=way))
        counts[way] = best.value_counts()
    every = pd.concat(chosen, ignore_index=True).assign(law=LAW)
    return pooled(every, "walk") | {"chosen": pd.DataFrame(counts)}


@experiment(by_source, bench=None)
def far(options: Namespace) -> Jobs:
    """Shifted, continued and chosen forecasts, and the default's, beyond the rows."""

    @cache
    def fitted(name: str, kind: str) -> tuple[bl.Posterior, bl.LossTable]:
        train, test = tables[name]
        if kind.startswith("cut"):
            train, test = last_rows(train, test)
        settings = {
            "draws": 500 if len(train) >= 30 else 1500,
            "retry": False,
            "cores": 1,
        }
        discrepancy = (
            Trend(correlation=1.0)
            if kind == "short trend"
            else kind.removeprefix("cut ")
        )
        return bl.fit(
            LAW, train, discrepancy=discrepancy, **settings | options.settings
        ), test

    tables = {}
    for name, source, train, test, laws in chain(shipped(), benched(options.bench)):
        if LAW not in laws:
            continue
        tables[name] = train, test
        for way in WAYS:

            def job(
                name: str = name, source: str = source, way: str = way
            ) -> dict[str, Any]:
                fit, test = fitted(
                    name, "walk" if way in (*SHIFTED, "continued") else way
                )
                gate = "; ".join(fit.convergence.failures) or "passed"
                if way == "continued":
                    fit = replace(fit, spec=replace(fit.spec, discrepancy=Continued()))
                forecast = fit.accepted(unconverged=True).forecast(test)
                drawn = forecast.samples
                if way in SHIFTED:
                    decades = forecast.positions["decades"].to_numpy()
                    bias = bias_per_decade(source, own=way == "shifted as measured")
                    drawn = drawn * np.exp(-bias * decades)
                return {"source": source, "test": len(test), "gate": gate} | scores(
                    drawn, test
                )

            yield {"table": name, "way": way}, job
