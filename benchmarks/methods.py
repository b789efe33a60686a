"""Ways to make bands: posteriors, bootstraps, a Gaussian process, a peer; their scores.

A way takes training and test rows and gives draws of new measured losses, shape (draws, rows).
"""

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares, minimize
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
    "curvature run": {"discrepancy": "curvature", "errors": "run"},
    "adaptation run": {"discrepancy": "adaptation", "errors": "run"},
}
"""Settings of each way that is a posterior."""
PEERS = {"peer": "separable-power", "peer kappa": "skaling-joint-power"}
"""Laws of simple-scaling-laws, which is not installed by default."""
WAYS = (*list(POSTERIORS)[2:], "pairs", "sizes", "kappa pairs", "gp", "three laws")
ADAPTED = ("form1", "form1n", "form3", "dcpt", "mixture", "transfer", "adaptation")
UNSUITED = {
    "walk": ADAPTED,
    **dict.fromkeys(("curvature run", "adaptation run"), ("chinchilla",)),
    "pairs": ("adaptation",), "sizes": ("adaptation",),
    **dict.fromkeys(("kappa pairs", "gp", "three laws", *PEERS), ADAPTED),
}  # fmt: skip
"""Laws that a way is not for."""
SCORES = [
    "rmse_log", "bias_log", "coverage_50", "coverage_80", "coverage_90", "width_90", "crps",
    "winkler_90",
]  # fmt: skip
FITS: dict[tuple[str, str, str], tuple[bl.Posterior, float]] = {}


def measured(
    law: str,
    way: str,
    train: bl.LossTable,
    test: bl.LossTable,
    draws: int | None,
    resamples: int,
) -> pd.DataFrame:
    """Scores of a way on a split; of a pool, of each of its laws too."""
    if way not in POSTERIORS:
        if way in PEERS:
            drawn = peer(PEERS[way], train, test, resamples)
        elif way == "gp":
            drawn = gaussian_process(law, train, test, resamples)
        elif way == "three laws":
            drawn = three_laws(train, test, resamples)
        else:
            own = "skaling" if way == "kappa pairs" else law
            drawn = bootstrap(own, train, test, way.removeprefix("kappa "), resamples)
        row = {"law": law, "test": len(test), "gate": ""}
        return pd.DataFrame([row | scores(drawn, test)])
    rows, fits = [], {}
    for name in POOLS.get(law, (law,)):
        key = (
            name,
            way,
            train.sha256,
        )  # splits that differ in their test rows share a fit
        if key not in FITS:
            settings = POSTERIORS[way] | {
                "draws": draws,
                "retry": None if draws is None else False,
            }
            start = time.process_time()
            FITS[key] = bl.fit(name, train, **settings), time.process_time() - start
        fits[name], seconds = FITS[key]
        rows.append({"law": name} | scored(fits[name], test) | {"seconds": seconds})
        if way == "default":
            parts = bl.check(fits[name], test.frame.drop(columns="loss")).parts
            said = [
                f"{part.name}: {part.level}" for part in parts if part.level != "ok"
            ]
            rows[-1]["check"] = "; ".join(said) or "ok"
    if law in POOLS:
        rows.append({"law": law} | scored(bl.Pool(fits), test))
    return pd.DataFrame(rows)


def scored(fit: bl.Posterior | bl.Pool, test: bl.LossTable) -> dict[str, Any]:
    """Scores of a fit's forecast of measured losses, converged or not; what failed of the check."""
    gate = "; ".join(fit.convergence.failures) or "passed"
    drawn = fit.accepted("unconverged").forecast(test).samples
    return {"test": len(test), "gate": gate} | scores(drawn, test)


def scores(drawn: Floats, test: bl.LossTable) -> dict[str, float]:
    """Means over rows of scores of draws, shape (draws, rows)."""
    middle = np.median(drawn, axis=0)
    found = point_scores(middle, test.loss) | band_scores(
        np.log(drawn), np.log(test.loss)
    )
    found["bias_log"] = np.mean(np.log(middle / test.loss))
    return {name: float(found[name]) for name in SCORES}


def by_row(
    drawn: Floats, test: bl.LossTable, levels: tuple[int, ...] = (90,)
) -> pd.DataFrame:
    """The same of each row: error and CRPS of log loss, width, and whether it is inside."""
    logs, truth = np.log(drawn), np.log(test.loss)
    rows = pd.DataFrame(
        {"error": np.median(logs, axis=0) - truth, "crps": crps(logs, truth)}
    )
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
                rows = np.concatenate(
                    [np.flatnonzero(frame["params"] == n) for n in chosen]
                )
            fit = refit(tuple(rows))
        draws[i] = fit.predict(test) * np.exp(rng.choice(residuals, len(test)))
    return draws


def gaussian_process(
    law: str, train: bl.LossTable, test: bl.LossTable, draws: int
) -> Floats:
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
    theta = min(
        (minimize(loss, s, bounds=limits) for s in starts), key=lambda found: found.fun
    ).x
    own = kernel(theta, old, old) + np.exp(2 * theta[3]) * np.eye(len(old))
    gain = np.linalg.solve(own, kernel(theta, old, new)).T
    variance = np.exp(2 * theta[2]) - (gain * kernel(theta, new, old)).sum(axis=1)
    scale = np.sqrt(np.maximum(variance, 0) + np.exp(2 * theta[3]))
    noise = np.random.default_rng(0).standard_normal((draws, len(new)))
    return fit.predict(test) * np.exp(gain @ residuals + scale * noise)


# -- three power laws -------------------------------------------------------------------------

HUBER_DELTA = 0.005
"""Error of log loss beyond which the Huber loss is linear."""
PULL = 1e-3
"""Residual for each unit between a parameter and its usual value.

A resample may hold too few sizes or token counts for all parameters. Beside an error of 0.005 this
is a prior with a standard deviation of 5 in the log of a parameter.
"""
NOISE_DOF = 5
"""Degrees of freedom of the Student-t noise."""
LAW_PARAMETERS = 5
"""Parameters that a law is counted as, where the variance of its residuals is estimated."""
STARTS = ((0.6, 0.35, 0.35), (0.3, 0.2, 0.3), (0.75, 0.5, 0.5))
"""Floor as a share of the least loss, and both exponents; those of the first are the usual ones."""
COUPLING = 0.8
"""Usual value of the exponent of the coupled law."""

type PowerLaw = Callable[[Floats, Floats], Floats]
"""Log losses of parameters and points.

Parameters are the logs of the floor, of the size term and its exponent, of the token term and its
exponent, and of the coupling. Points are log N and log D from their means, in two columns.
"""


def additive_law(parameters: Floats, points: Floats) -> Floats:
    """Log of ``E + A / N^alpha + B / D^beta``."""
    return np.logaddexp(parameters[0], log_terms(parameters, points))


def coupled_law(parameters: Floats, points: Floats) -> Floats:
    """Log of ``E + (A / N^alpha + B / D^beta)^kappa``."""
    kappa = np.exp(parameters[5])
    return np.logaddexp(parameters[0], kappa * log_terms(parameters, points))


def product_law(parameters: Floats, points: Floats) -> Floats:
    """Log of ``E + A / (N^alpha D^beta)``."""
    floor, term, alpha, _, beta, _ = parameters
    return np.logaddexp(
        floor, term - np.exp(alpha) * points[:, 0] - np.exp(beta) * points[:, 1]
    )


def log_terms(parameters: Floats, points: Floats) -> Floats:
    """Log of ``A / N^alpha + B / D^beta``."""
    _, size_term, alpha, token_term, beta, _ = parameters
    of_size = size_term - np.exp(alpha) * points[:, 0]
    of_tokens = token_term - np.exp(beta) * points[:, 1]
    return np.logaddexp(of_size, of_tokens)


POWER_LAWS: tuple[PowerLaw, ...] = (additive_law, coupled_law, product_law)


def starting_values(log_loss: Floats) -> list[Floats]:
    """Parameters to start a fit from: both terms share what the mean loss has above the floor."""
    starts = []
    for share, alpha, beta in STARTS:
        floor = share * np.exp(log_loss.min())
        term = (np.exp(log_loss.mean()) - floor) / 2
        starts.append(np.log([floor, term, alpha, term, beta, COUPLING]))
    return starts


def fit_power_law(
    law: PowerLaw, points: Floats, log_loss: Floats, starts: list[Floats], usual: Floats
) -> Floats:
    """Parameters with the least Huber loss of the log losses, from the best of several starts."""

    def residuals(parameters: Floats) -> Floats:
        errors = law(parameters, points) - log_loss
        return np.concatenate([errors, PULL * (parameters - usual)])

    fits = [
        least_squares(residuals, start, loss="huber", f_scale=HUBER_DELTA, max_nfev=60)
        for start in starts
    ]
    return min(fits, key=lambda fit: fit.cost).x


def three_laws(train: bl.LossTable, test: bl.LossTable, resamples: int) -> Floats:
    """Draws of an equal pool of three power laws, each refitted to resampled rows.

    The laws take turns, so each has a third of the resamples. Nothing here is of bayeslaw: it is
    what a user would write in an afternoon.
    """
    rng = np.random.default_rng(0)
    old, new = (
        np.log(table.frame[["params", "tokens"]].to_numpy()) for table in (train, test)
    )
    middle = old.mean(axis=0)
    old, new = old - middle, new - middle
    log_loss = np.log(train.loss)
    starts = starting_values(log_loss)
    usual = starts[0]
    # Of a table of few rows half are counted as free.
    free = max(len(log_loss) - LAW_PARAMETERS, len(log_loss) // 2)
    fits: list[tuple[PowerLaw, Floats, float]] = []
    for law in POWER_LAWS:
        fitted = fit_power_law(law, old, log_loss, starts, usual)
        errors = log_loss - law(fitted, old)
        fits.append((law, fitted, float(np.sqrt((errors**2).sum() / free))))
    draws = np.empty((resamples, len(new)))
    for i in range(resamples):
        law, fitted, noise = fits[i % len(fits)]
        rows = rng.integers(len(log_loss), size=len(log_loss))
        again = fit_power_law(law, old[rows], log_loss[rows], [fitted], usual)
        draws[i] = law(again, new) + noise * rng.standard_t(NOISE_DOF, len(new))
    return np.exp(draws)


# -- a peer -----------------------------------------------------------------------------------


def peer(law: str, train: bl.LossTable, test: bl.LossTable, draws: int) -> Floats:
    """Quantiles of a new run's loss by simple-scaling-laws, as draws."""
    import polars as pl
    from simple_scaling_laws import fit

    names = {
        "params": "model_size__n",
        "tokens": "dataset_size__d",
        "loss": "test_loss__loss",
    }
    old, new = ({names[c]: t.frame[c].to_list() for c in names} for t in (train, test))
    runs = {"training_run_id": [f"run {i}" for i in range(len(train))]} | old
    model = fit(pl.DataFrame(runs), law=law, n_draws=draws, seed=0)
    levels = (np.arange(199) + 0.5) / 199
    found = model.predict(pl.DataFrame(new), "new-run", quantiles=list(levels))
    columns = [
        column for column in found.columns if column.startswith("test_loss__loss__")
    ]
    return np.sort(found.select(columns).to_numpy().T, axis=0)
