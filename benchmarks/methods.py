"""Ways to make bands: posteriors, bootstraps, a Gaussian process, and a peer; their scores.

A way takes training and test rows and gives draws of new measured losses, shape (draws, rows).
"""

import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import minimize
from scipy.stats import multivariate_normal

import bayeslaw as bl
from bayeslaw.common.arrays import Floats
from bayeslaw.evaluate.scores import band_scores, crps, point_scores
from bayeslaw.inference.pools import POOLS

POSTERIORS: dict[str, dict[str, Any]] = {
    "default": {},
    "seed 1": {"seed": 1},
    "plain": {"discrepancy": "none", "errors": "independent"},
    "curvature": {"discrepancy": "curvature", "errors": "independent"},
    "walk": {"discrepancy": "walk"},
    "trend": {"discrepancy": "trend", "errors": "independent"},
    "curvature run": {"discrepancy": "curvature", "errors": "run"},
    "adaptation run": {"discrepancy": "adaptation", "errors": "run"},
}
"""Settings of each way that is a posterior."""
PEERS = {"peer": "separable-power", "peer kappa": "skaling-joint-power"}
"""Laws of simple-scaling-laws, which is not installed by default."""
WAYS = (*list(POSTERIORS)[2:], "pairs", "sizes", "kappa pairs", "gp")
ADAPTED = ("form1", "form1n", "form3", "dcpt", "mixture", "transfer", "adaptation")
UNSUITED = {
    **dict.fromkeys(("walk", "trend"), ADAPTED),
    **dict.fromkeys(("curvature run", "adaptation run"), ("chinchilla",)),
    "pairs": ("adaptation",), "sizes": ("adaptation",),
    **dict.fromkeys(("kappa pairs", "gp", *PEERS), ADAPTED),
}  # fmt: skip
"""Laws that a way is not for."""
SCORES = [
    "rmse_log", "bias_log", "coverage_50", "coverage_80", "coverage_90", "width_90", "crps",
    "winkler_90",
]  # fmt: skip
FITS: dict[tuple[str, str, str], tuple[bl.Posterior, float]] = {}


def measured(
    law: str, way: str, train: bl.LossTable, test: bl.LossTable, draws: int | None, resamples: int
) -> pd.DataFrame:
    """Scores of a way on a split; of a pool, of each of its laws too."""
    if way not in POSTERIORS:
        if way in PEERS:
            drawn = peer(PEERS[way], train, test, resamples)
        elif way == "gp":
            drawn = gaussian_process(law, train, test, resamples)
        else:
            own = "skaling" if way == "kappa pairs" else law
            drawn = bootstrap(own, train, test, way.removeprefix("kappa "), resamples)
        return pd.DataFrame([{"law": law, "gate": ""} | scores(drawn, test)])
    rows, fits = [], {}
    for name in POOLS.get(law, (law,)):
        key = name, way, train.sha256  # splits that differ in their test rows share a fit
        if key not in FITS:
            settings = POSTERIORS[way] | {"draws": draws, "retry": None if draws is None else False}
            start = time.process_time()
            FITS[key] = bl.fit(name, train, **settings), time.process_time() - start
        fits[name], seconds = FITS[key]
        rows.append({"law": name} | scored(fits[name], test) | {"seconds": seconds})
        if way == "default":
            parts = bl.check(fits[name], test.frame.drop(columns="loss")).parts
            said = [f"{part.name}: {part.level}" for part in parts if part.level != "ok"]
            rows[-1]["check"] = "; ".join(said) or "ok"
    if law in POOLS:
        rows.append({"law": law} | scored(bl.Pool(fits), test))
    return pd.DataFrame(rows)


def scored(fit: bl.Posterior | bl.Pool, test: bl.LossTable) -> dict[str, Any]:
    """Scores of a fit's forecast of measured losses, converged or not; what failed of the check."""
    gate = "; ".join(fit.convergence.failures) or "passed"
    drawn = fit.accepted(unconverged=True).forecast(test).samples
    return {"test": len(test), "gate": gate} | scores(drawn, test)


def scores(drawn: Floats, test: bl.LossTable) -> dict[str, float]:
    """Means over rows of scores of draws, shape (draws, rows)."""
    middle = np.median(drawn, axis=0)
    found = point_scores(middle, test.loss) | band_scores(np.log(drawn), np.log(test.loss))
    found["bias_log"] = np.mean(np.log(middle / test.loss))
    return {name: float(found[name]) for name in SCORES}


def by_row(drawn: Floats, test: bl.LossTable, levels: tuple[int, ...] = (90,)) -> pd.DataFrame:
    """The same of each row: error and CRPS of log loss, width, and whether it is inside."""
    logs, truth = np.log(drawn), np.log(test.loss)
    rows = pd.DataFrame({"error": np.median(logs, axis=0) - truth, "crps": crps(logs, truth)})
    for level in levels:
        low, high = np.quantile(logs, [0.5 - level / 200, 0.5 + level / 200], axis=0)
        rows[f"inside_{level}"] = ((low <= truth) & (truth <= high)).astype(int)
        rows[f"width_{level}"] = high - low
    return rows


def bootstrap(
    law: str | Path, train: bl.LossTable, test: bl.LossTable, way: str, resamples: int
) -> Floats:
    """Forecast from Huber fits of resampled rows or sizes, with residuals of the fit as noise."""
    rng, frame = np.random.default_rng(0), train.frame
    draws = np.empty((resamples, len(test)))
    residuals = np.log(train.loss / bl.fit_huber(law, train, delta=1e-3).predict(train))
    sizes = np.unique(frame["params"])

    @cache  # Few sizes have few distinct resamples: 35 for four.
    def refit(rows: tuple[int, ...]) -> bl.PointFit | None:
        sample = bl.LossTable(
            frame.iloc[list(rows)].reset_index(drop=True), baselines=train.baselines
        )
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


def gaussian_process(law: str, train: bl.LossTable, test: bl.LossTable, draws: int) -> Floats:
    """Draws of new losses by a Gaussian process of log N and log D around the Huber fit.

    Its squared exponential kernel has a length for each covariate; the lengths, its standard
    deviation and that of the noise have the largest marginal likelihood.
    """
    fit = bl.fit_huber(law, train, delta=1e-3)
    old, new = (np.log(t.frame[["params", "tokens"]].to_numpy()) for t in (train, test))
    residuals = np.log(train.loss / fit.predict(train))

    def kernel(theta: Floats, a: Floats, b: Floats) -> Floats:
        apart = (a[:, None] - b) / np.exp(theta[:2])
        return np.exp(2 * theta[2] - 0.5 * (apart**2).sum(axis=2))

    def loss(theta: Floats) -> float:
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


def peer(law: str, train: bl.LossTable, test: bl.LossTable, draws: int) -> Floats:
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
