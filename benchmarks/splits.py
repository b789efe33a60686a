"""Error, coverage and scores of several methods to make bands, on held-out rows of real tables.

Methods ("ways"): the posterior of the law as written ("plain"), that of the law with its
discrepancy ("curvature", the default), and two bootstraps of the Huber fit with residual noise: of
rows ("pairs") and of model sizes ("sizes"). Bands are for a new measured loss; widths, CRPS and
Winkler scores are on log loss. A posterior that fails its gate is scored nevertheless, and marked.

    python benchmarks/splits.py [--only TEXT] [--laws form1] [--ways plain,curvature] [--out FILE]
                                [--short]

Rows already in --out are not run again; the pooled table is of all rows in it.
"""

import argparse
import time
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tables import splits

import bayeslaw as bl
from bayeslaw.evaluate.scores import band_scores, point_scores

WAYS = ("plain", "curvature", "pairs", "sizes")
COLUMNS = ["rmse_log", "coverage_50", "coverage_90", "width_90", "crps", "winkler_90"]
RESAMPLES = 1000
SHORT = {"draws": 1000, "tune": 1000, "target_accept": 0.95, "retry": False}


def main() -> None:
    """Print a row per table, split, law and method, then scores pooled over each source."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="part of the name of a split")
    parser.add_argument("--laws", default="chinchilla,form1,form3,dcpt")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--out", default="splits.csv", type=Path)
    parser.add_argument("--short", action="store_true", help=f"posteriors with {SHORT}")
    args = parser.parse_args()
    warnings.simplefilter("ignore", bl.FitWarning)
    for name, train, test, laws in splits():
        for law in (law for law in args.laws.split(",") if law in laws):
            for way in args.ways.split(","):
                done = pd.read_csv(args.out) if args.out.is_file() else pd.DataFrame()
                key = {"table": name, "law": law, "way": way}
                if args.only not in name or (
                    len(done) and (done[list(key)] == key).all(axis=1).any()
                ):
                    continue
                row = (
                    key
                    | {"test": len(test)}
                    | measure(law, way, train, test, SHORT if args.short else {})
                )
                pd.concat([done, pd.DataFrame([row])]).to_csv(args.out, index=False)
                cells = (f"{v:.4f}" if isinstance(v, float) else str(v) for v in row.values())
                print(" | ".join(cells), flush=True)
    pooled = pool(pd.read_csv(args.out))
    print(" | ".join(["", *pooled.columns]))
    for name, row in pooled.iterrows():
        print(" | ".join([str(name), f"{row['rows']:.0f}", *(f"{v:.4f}" for v in row.iloc[1:])]))


def measure(
    law: str, way: str, train: bl.LossTable, test: bl.LossTable, settings: dict[str, Any]
) -> dict[str, object]:
    """Scores of one method on one split, and its seconds."""
    start = time.perf_counter()
    if way in ("plain", "curvature"):
        fit = bl.fit(law, train, discrepancy="none" if way == "plain" else way, **settings)
        scores = bl.score(fit, test, allow_unconverged=True)
        note = "; ".join(fit.convergence.failures) or "passed"
    else:
        draws, note = bootstrap(law, train, test, way), ""
        scores = point_scores(np.median(draws, axis=0), test.loss)
        scores |= band_scores(np.log(draws), np.log(test.loss))
    took = time.perf_counter() - start
    return {name: float(scores[name]) for name in COLUMNS} | {"gate": note, "seconds": took}


def bootstrap(law: str, train: bl.LossTable, test: bl.LossTable, way: str) -> np.ndarray:
    """Forecast from refits of resampled rows or sizes, with residuals of the fit as noise."""
    rng, frame = np.random.default_rng(0), train.frame
    draws = np.empty((RESAMPLES, len(test)))
    residuals = np.log(train.loss / bl.fit_huber(law, train, delta=1e-3).predict(train))
    sizes = np.unique(frame["params"])

    @cache  # Few sizes have few distinct resamples: 35 for four.
    def refit(rows: tuple[int, ...]) -> bl.PointFit | None:
        sample = bl.LossTable(frame.iloc[list(rows)].reset_index(drop=True), train.baselines)
        try:
            return bl.fit_huber(law, sample, delta=1e-3, starts=16, polish=2)
        except bl.BayeslawError:  # a covariate may not vary in a resample
            return None

    for i in range(RESAMPLES):
        fit = None
        while fit is None:
            if way == "pairs":
                rows = rng.integers(len(frame), size=len(frame))
            else:
                chosen = np.sort(rng.choice(sizes, len(sizes)))
                rows = np.concatenate([np.flatnonzero(frame["params"] == n) for n in chosen])
            fit = refit(tuple(rows))
        draws[i] = fit.predict(test) * np.exp(rng.choice(residuals, len(test)))
    return draws


def pool(rows: pd.DataFrame) -> pd.DataFrame:
    """Means over the test rows of each source, and the least coverage of its splits."""
    source = (
        rows["table"]
        .str.replace(r" .*", "", regex=True)
        .where(~rows["table"].str.startswith("tinycpt"), rows["table"])
    )
    pooled = {}
    for key, part in rows.groupby([source, rows["law"], rows["way"]]):
        means = {c: float(np.average(part[c], weights=part["test"])) for c in COLUMNS}
        least = {"least coverage_90": part["coverage_90"].min()}
        pooled[" ".join(key)] = {"rows": part["test"].sum()} | means | least
    return pd.DataFrame(pooled).T


if __name__ == "__main__":
    main()
