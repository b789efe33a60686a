"""Error, coverage and scores of several methods to make bands, on held-out rows of real tables.

Methods ("ways"): the posterior with every default ("default"), without discrepancy ("plain"), with
one ("curvature", "walk", "trend"), with errors correlated within runs ("curvature run", "adaptation
run"); bootstraps of the Huber fit with residual noise, of rows ("pairs"), of model sizes ("sizes"),
and of rows with the law "skaling" ("kappa pairs"); a Gaussian process of log N and log D around the
Huber fit ("gp"); and the package simple-scaling-laws with its separable and its coupled law
("peer", "peer kappa"; `uv run --with simple-scaling-laws`). Bands are for a new measured loss;
widths, CRPS and Winkler scores are on log loss. A posterior that fails its convergence check is
scored nevertheless, and marked.

    python benchmarks/truth.py [--bench FOLDER] [--only TEXT] [--laws form1] [--ways walk]
                               [--real] [--out FILE]

FOLDER holds tables that may not be shipped, and their splits in splits.json. With --real the splits
are of real models that were adapted. For "default" the column `check` has what `bl.check` said
before it saw the losses: each part that is not ok. Rows already in --out are not run again. The
tables at the end pool all rows in it: measured losses inside the bands of each source; scores
relative to curvature, by source; and their means over sources.
"""

import argparse
import time
import warnings
from functools import cache
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import minimize
from scipy.stats import multivariate_normal
from tables import LAW_FILES, arguments, benched, real, splits

import bayeslaw as bl
from bayeslaw.evaluate.scores import band_scores, point_scores
from bayeslaw.inference.pools import POOLS

POSTERIORS: dict[str, dict[str, str]] = {
    "default": {},
    "plain": {"discrepancy": "none", "errors": "independent"},
    "curvature": {"discrepancy": "curvature", "errors": "independent"},
    "walk": {"discrepancy": "walk", "errors": "independent"},
    "trend": {"discrepancy": "trend", "errors": "independent"},
    "curvature run": {"discrepancy": "curvature", "errors": "run"},
    "walk run": {"discrepancy": "walk", "errors": "run"},
    "adaptation run": {"discrepancy": "adaptation", "errors": "run"},
}
"""Settings of each way that is a posterior."""
PEERS = {"peer": "separable-power", "peer kappa": "skaling-joint-power"}
"""Laws of simple-scaling-laws."""
WAYS = (*list(POSTERIORS)[1:], "pairs", "sizes", "kappa pairs", "gp")
ADAPTED = ("form1", "form1n", "form3", "dcpt", "transfer", "adaptation")
UNSUITED = {
    **dict.fromkeys(("walk", "trend", "walk run"), ADAPTED),
    **dict.fromkeys(("curvature run", "adaptation run"), ("chinchilla",)),
    "pairs": ("adaptation",), "sizes": ("adaptation",),
    **dict.fromkeys(("kappa pairs", "gp", *PEERS), ADAPTED),
}  # fmt: skip
"""Laws, or tables without runs, that a way is not for."""
COLUMNS = [
    "rmse_log", "bias_log", "coverage_50", "coverage_80", "coverage_90", "width_90", "crps",
    "winkler_90",
]  # fmt: skip
GROUPS = ["source", "law", "way"]
FITS: dict[tuple[str, str, str], bl.Posterior] = {}


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__)
    found.add_argument("--only", default="", help="part of the name of a split")
    found.add_argument("--laws", default="chinchilla,form1,form3,dcpt")
    found.add_argument("--ways", default=",".join(WAYS))
    found.add_argument("--out", default="truth.csv", type=Path)
    found.add_argument("--bench", type=Path, help="folder of splits.json")
    found.add_argument("--real", action="store_true", help="splits of adapted real models only")
    found.add_argument("--resamples", type=int, default=1000, help="of a bootstrap")
    found.add_argument("--draws", type=int, help="of each chain; by default until the gate")
    return found


def main() -> None:
    """Print a row per table, split, law and method, then scores pooled over each source."""
    args = parser().parse_args()
    resamples = 5 if args.smoke else args.resamples
    if args.smoke:
        args.draws = 20
    warnings.simplefilter("ignore", bl.FitWarning)
    every = chain(real() if args.real else splits(), benched(args.bench) if args.bench else ())
    for name, source, train, test, laws in islice(every, 1 if args.smoke else None):
        for law in (law for law in args.laws.split(",") if law in laws):
            for way in args.ways.split(","):
                if args.only not in name or law in UNSUITED.get(way, ()):
                    continue
                if way.endswith(" run") and not (
                    "run" in train.frame and train.frame["run"].duplicated().any()
                ):
                    continue
                done = pd.read_csv(args.out) if args.out.is_file() else pd.DataFrame()
                key = {"table": name, "source": source, "law": law, "way": way}
                if len(done) and (done[list(key)] == key).all(axis=1).any():
                    continue
                for own, found in measure(law, way, train, test, args.draws, resamples).items():
                    row = key | {"law": own, "test": len(test)} | found
                    done = pd.concat([done, pd.DataFrame([row])])
                    cells = (f"{v:.4f}" if isinstance(v, float) else str(v) for v in row.values())
                    print(" | ".join(cells), flush=True)
                done.to_csv(args.out, index=False, float_format="%.6g")
    rows = pd.read_csv(args.out)
    tables = {"by source, over rows": totals(rows)} | pool(rows)
    if rows["source"].isin(("tinycpt", "tinycode")).any():
        tables["by what was held out"] = by_part(rows)
    for title, pooled in tables.items():
        print(f"\n{title}\n{pooled.reset_index().to_markdown(index=False, floatfmt='.4g')}")


def measure(
    law: str, way: str, train: bl.LossTable, test: bl.LossTable, draws: int | None, resamples: int
) -> dict[str, dict[str, object]]:
    """Scores of one method on one split and its seconds, by law: of a pool, of its members too."""
    start = time.perf_counter()
    if way not in POSTERIORS:
        if way in PEERS:
            drawn = peer(PEERS[way], train, test, resamples)
        elif way == "gp":
            drawn = gaussian_process(law, train, test, resamples)
        else:
            own = "skaling" if way == "kappa pairs" else LAW_FILES.get(law, law)
            drawn = bootstrap(own, train, test, way.removeprefix("kappa "), resamples)
        return {law: scored(drawn, test) | {"gate": "", "seconds": time.perf_counter() - start}}
    found, fits = {}, {}
    for own in POOLS.get(law, (law,)):
        start = time.perf_counter()
        key = own, way, train.sha256  # splits that differ in their test rows share a fit
        if key not in FITS:
            FITS[key] = bl.fit(
                LAW_FILES.get(own, own), train, **POSTERIORS[way], draws=draws, retry=draws is None
            )
        fits[own] = FITS[key]
        seconds = time.perf_counter() - start
        drawn = fits[own].forecast(test, allow_unconverged=True).samples
        gate = "; ".join(fits[own].convergence.failures) or "passed"
        found[own] = scored(drawn, test) | {"gate": gate, "seconds": seconds}
        if way == "default":
            said = bl.check(fits[own], test.frame.drop(columns="loss")).parts
            levels = [f"{part.name}: {part.level}" for part in said if part.level != "ok"]
            found[own]["check"] = "; ".join(levels) or "ok"
    if law in POOLS:
        drawn = bl.Pool(fits).forecast(test, allow_unconverged=True).samples
        gate = "passed" if all(fit.convergence.ok for fit in fits.values()) else "a member fails"
        seconds = sum(row["seconds"] for row in found.values())
        found[law] = scored(drawn, test) | {"gate": gate, "seconds": seconds}
    return found


def scored(drawn: np.ndarray, test: bl.LossTable) -> dict[str, object]:
    """Scores of draws of measured losses, shape (draws, rows)."""
    middle = np.median(drawn, axis=0)
    scores = point_scores(middle, test.loss) | band_scores(np.log(drawn), np.log(test.loss))
    scores["bias_log"] = float(np.mean(np.log(middle / test.loss)))
    return {name: float(scores[name]) for name in COLUMNS}


def bootstrap(
    law: str | Path, train: bl.LossTable, test: bl.LossTable, way: str, resamples: int
) -> np.ndarray:
    """Forecast from refits of resampled rows or sizes, with residuals of the fit as noise."""
    rng, frame = np.random.default_rng(0), train.frame
    draws = np.empty((resamples, len(test)))
    residuals = np.log(train.loss / bl.fit_huber(law, train, delta=1e-3).predict(train))
    sizes = np.unique(frame["params"])

    @cache  # Few sizes have few distinct resamples: 35 for four.
    def refit(rows: tuple[int, ...]) -> bl.PointFit | None:
        sample = bl.LossTable(frame.iloc[list(rows)].reset_index(drop=True), train.baselines)
        try:
            return bl.fit_huber(law, sample, delta=1e-3, starts=16, polish=2)
        except bl.BayeslawError:  # a covariate may not vary in a resample
            return None

    for i in range(resamples):
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


def gaussian_process(law: str, train: bl.LossTable, test: bl.LossTable, draws: int) -> np.ndarray:
    """Draws of new losses by a Gaussian process of log N and log D around the Huber fit.

    Its squared exponential kernel has a length for each covariate; the lengths, its standard
    deviation and that of the noise have the largest marginal likelihood.
    """
    fit = bl.fit_huber(law, train, delta=1e-3)
    old, new = (np.log(t.frame[["params", "tokens"]].to_numpy()) for t in (train, test))
    residuals = np.log(train.loss / fit.predict(train))

    def kernel(theta: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        apart = (a[:, None] - b) / np.exp(theta[:2])
        return np.exp(2 * theta[2] - 0.5 * (apart**2).sum(axis=2))

    def loss(theta: np.ndarray) -> float:
        own = kernel(theta, old, old) + np.exp(2 * theta[3]) * np.eye(len(old))
        return -multivariate_normal.logpdf(residuals, cov=own, allow_singular=True)

    sd, ranges = np.log(residuals.std()), np.log(np.ptp(old, axis=0))
    limits = [*((r - 4, r + 4) for r in ranges), (sd - 6, sd + 3), (sd - 6, sd + 3)]
    starts = [np.r_[ranges + shift, sd, sd - 1] for shift in (-1.5, 0.0, 1.5)]
    theta = min((minimize(loss, s, bounds=limits) for s in starts), key=lambda found: found.fun).x
    own = kernel(theta, old, old) + np.exp(2 * theta[3]) * np.eye(len(old))
    gain = np.linalg.solve(own, kernel(theta, old, new)).T
    variance = np.exp(2 * theta[2]) - (gain * kernel(theta, new, old)).sum(axis=1)
    scale = np.sqrt(np.maximum(variance, 0) + np.exp(2 * theta[3]))
    noise = np.random.default_rng(0).standard_normal((draws, len(new)))
    return fit.predict(test) * np.exp(gain @ residuals + scale * noise)


def peer(law: str, train: bl.LossTable, test: bl.LossTable, draws: int) -> np.ndarray:
    """Quantiles of a new run's loss by simple-scaling-laws, as draws."""
    import polars as pl
    from simple_scaling_laws import fit

    names = {"params": "model_size__n", "tokens": "dataset_size__d", "loss": "test_loss__loss"}
    old, new = ({names[c]: t.frame[c].to_list() for c in names} for t in (train, test))
    runs = {"training_run_id": [f"run {i}" for i in range(len(train))]} | old
    model = fit(pl.DataFrame(runs), law=law, n_draws=draws, seed=0)
    levels = (np.arange(199) + 0.5) / 199
    found = model.predict(pl.DataFrame(new), "new-run", quantiles=list(levels))
    columns = [column for column in found.columns if column.startswith("test_loss__loss__")]
    return np.sort(found.select(columns).to_numpy().T, axis=0)


def totals(rows: pd.DataFrame) -> pd.DataFrame:
    """Measured losses in the bands of each source, and means of scores over them, by method."""
    scores = ["width_90", "crps", "winkler_90"]
    sums = rows[[*GROUPS, "test"]].assign(
        in_50=rows["coverage_50"] * rows["test"],
        in_90=rows["coverage_90"] * rows["test"],
        **{score: rows[score] * rows["test"] for score in scores},
    )
    found = sums.groupby(GROUPS).sum()
    found[scores] = found[scores].div(found["test"], axis=0)
    return found


def by_part(rows: pd.DataFrame) -> pd.DataFrame:
    """Coverage, its least, and CRPS over tables and domains, by what was held out of them."""
    own = rows[rows["source"].isin(("tinycpt", "tinycode"))]
    part = own["table"].str.split(n=2).str[2].rename("held out")
    groups = own.assign(log_crps=np.log(own["crps"])).groupby([part, "law", "way"])
    found = groups["coverage_90"].agg(["size", "mean", "min"])
    return found.assign(crps=np.exp(groups["log_crps"].mean())).round(4)


def pool(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Means over the splits of each source, and over sources, by law and method.

    Scores are geometric means, relative to the way "curvature" of the same splits.
    """
    keys = ["table", "source", "law"]
    base = rows[rows["way"] == "curvature"].set_index(keys)
    ratios = rows.set_index(keys)
    for score in ("crps", "winkler_90", "width_90"):
        ratios[f"log_{score}"] = np.log(ratios[score] / base[score].reindex(ratios.index))
    scores = ["log_crps", "log_winkler_90", "log_width_90"]
    means = ratios.groupby(GROUPS)[["coverage_50", "coverage_90", *scores]].mean()
    means["least"] = ratios.groupby(GROUPS)["coverage_90"].min()
    by_source = means.rename(columns=lambda name: name.removeprefix("log_"))
    by_source[["crps", "winkler_90", "width_90"]] = np.exp(means[scores])
    overall = means.drop(columns="least").groupby(["law", "way"]).mean()
    overall[scores] = np.exp(overall[scores])
    overall = overall.rename(columns=lambda name: name.removeprefix("log_"))
    return {"by source, over splits": by_source.round(3), "over sources": overall.round(3)}


if __name__ == "__main__":
    main()
