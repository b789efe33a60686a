"""Scores of predictions on measured losses: the paper's point metrics, and scores of bands.

All but `mae_rel` and `mape_clip` are computed on log loss. A difference of .01 in log loss is a
relative error of about 1 %.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy.special import huber

from bayeslaw.common.arrays import Floats
from bayeslaw.common.defaults import DELTA
from bayeslaw.common.errors import TableError
from bayeslaw.evaluate.forecast import LEVELS, Forecast
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.inference.pools import Pool
from bayeslaw.inference.posterior import Posterior
from bayeslaw.tables.table import LossTable

POINT = ("huber_log", "rmse_log", "mae_rel", "mape_clip", "intercept", "slope")
BANDS = ("coverage_50", "coverage_80", "coverage_90", "width_90", "crps", "winkler_90")
CLIP = 1e-8
"""Lower bound of the denominator of `mape_clip`; for larger losses it equals `mae_rel`."""


def score(
    prediction: PointFit | Posterior | Pool | Forecast,
    table: LossTable,
    *,
    seed: int = 0,
    allow_unconverged: bool = False,
) -> pd.Series:
    """Score a fit or a forecast on measured losses.

    Parameters
    ----------
    prediction : PointFit, Posterior or Forecast
        A forecast must be for the rows of `table`. A point fit has no bands, so their scores are
        NaN.
    table : LossTable
        Measured losses, held out from the fit or not.
    seed : int
        Seed of the predictive noise if `prediction` is a posterior.
    allow_unconverged : bool
        Whether to score a posterior that failed the convergence checks.

    Returns
    -------
    Series
        `huber_log`, `rmse_log`, `mae_rel`, `mape_clip`, `intercept`, `slope`: the metrics of
        the paper's Appendix A, of the point prediction. `coverage_50`, `coverage_80`,
        `coverage_90`: fraction of rows inside the band. `width_90`, `crps`, `winkler_90`: means
        over rows of the width, the continuous ranked probability score and the Winkler score.

    Raises
    ------
    TableError
        If the forecast and the table differ in length.
    NotConverged
        If the posterior failed the convergence checks and `allow_unconverged` is false.

    Examples
    --------
    >>> import bayeslaw as bl
    >>> truth = {"E": 1.7, "A": 400, "alpha": 0.34, "B": 410, "beta": 0.28}
    >>> design = bl.grid(params=[1e8, 3e8, 1e9], tokens=[1e9, 3e9, 1e10, 3e10, 1e11])
    >>> train, test = bl.simulate("chinchilla", truth, design).split("tokens < 5e10")
    >>> scores = bl.score(bl.fit_huber("chinchilla", train), test)
    >>> bool(scores["rmse_log"] < 1e-4), bool(scores.isna()["crps"])
    (True, True)
    """
    if isinstance(prediction, PointFit):
        point, samples = prediction.predict(table), None
    else:
        if isinstance(prediction, Posterior | Pool):
            prediction = prediction.forecast(table, seed=seed, allow_unconverged=allow_unconverged)
        point, samples = prediction.median, np.log(prediction.samples)
        if len(point) != len(table):
            raise TableError(f"the forecast has {len(point)} rows, {table.name} has {len(table)}.")
    scores = point_scores(point, table.loss)
    if samples is not None:
        scores |= band_scores(samples, np.log(table.loss))
    return pd.Series(scores, index=[*POINT, *BANDS], dtype=float)


def point_scores(predicted: Floats, loss: Floats) -> dict[str, float]:
    """Metrics of point predictions, as in the paper's Appendix A.

    Parameters
    ----------
    predicted, loss : array, shape (rows,)
        Nats per token.

    Returns
    -------
    mapping of metric to float
        `intercept` and `slope` are of the regression of log loss on predicted log loss.

    Examples
    --------
    >>> scores = point_scores(np.array([2.0, 3.0]), np.array([2.0, 3.3]))
    >>> round(scores["rmse_log"], 4), round(scores["mae_rel"], 4)
    (0.0674, 0.0455)
    """
    r = np.log(predicted) - np.log(loss)
    error = np.abs(predicted - loss)
    intercept, slope = _line(np.log(predicted), np.log(loss))
    return {
        "huber_log": float(huber(DELTA, r).mean()),
        "rmse_log": float(np.sqrt(np.mean(r**2))),
        "mae_rel": float(np.mean(error / loss)),
        "mape_clip": float(np.mean(error / np.maximum(loss, CLIP))),
        "intercept": intercept,
        "slope": slope,
    }


def band_scores(samples: Floats, truth: Floats) -> dict[str, float]:
    """Coverage, width, CRPS and Winkler score of central bands.

    Parameters
    ----------
    samples : array, shape (draws, rows)
        Draws of log loss.
    truth : array, shape (rows,)
        Measured log loss.

    Returns
    -------
    mapping of score to float
        Means over rows.

    References
    ----------
    .. [1] Gneiting and Raftery, Strictly proper scoring rules, prediction, and estimation. Journal
       of the American Statistical Association 102 (2007).
    """
    quantiles = {
        level: np.quantile(samples, [(1 - level) / 2, (1 + level) / 2], axis=0) for level in LEVELS
    }
    bands = {level: (lower, upper) for level, (lower, upper) in quantiles.items()}
    return interval_scores(bands, truth) | {"crps": float(crps(samples, truth).mean())}


def interval_scores(
    bands: Mapping[float, tuple[Floats, Floats]], truth: Floats
) -> dict[str, float]:
    """Coverage of central bands, and width and Winkler score of the 90 % band.

    Parameters
    ----------
    bands : mapping of level to (lower, upper)
        Bounds of log loss, each of shape (rows,); a band of level 0.9 must be among them.
    truth : array, shape (rows,)
        Measured log loss.

    Returns
    -------
    mapping of score to float
        Means over rows.

    Examples
    --------
    >>> bands = {0.9: (np.array([0.0, 0.0]), np.array([1.0, 1.0]))}
    >>> interval_scores(bands, np.array([0.5, 1.25]))
    {'coverage_90': 0.5, 'width_90': 1.0, 'winkler_90': 3.5}
    """
    scores = {
        f"coverage_{100 * level:g}": float(((lower <= truth) & (truth <= upper)).mean())
        for level, (lower, upper) in bands.items()
    }
    (lower, upper), alpha = bands[0.9], 0.1
    width = upper - lower
    distance = np.maximum(lower - truth, 0) + np.maximum(truth - upper, 0)
    scores["width_90"] = float(width.mean())
    scores["winkler_90"] = float(np.mean(width + 2 / alpha * distance))
    return scores


def crps(samples: Floats, truth: Floats) -> Floats:
    """Continuous ranked probability score (CRPS) of draws.

    ``E|X - y| - E|X - X'| / 2`` for draws X and X' and the truth y. The second mean, over all pairs
    of draws, is computed from the sorted draws.

    Parameters
    ----------
    samples : array, shape (draws, rows)
    truth : array, shape (rows,)

    Returns
    -------
    array, shape (rows,)

    References
    ----------
    .. [1] Gneiting and Raftery, Strictly proper scoring rules, prediction, and estimation. Journal
       of the American Statistical Association 102 (2007), equation 21.

    Examples
    --------
    >>> crps(np.array([[0.0], [1.0]]), np.array([0.5])).tolist()
    [0.25]
    """
    n = len(samples)
    rank = (2 * np.arange(1, n + 1) - n - 1)[:, None]
    spread = (rank * np.sort(samples, axis=0)).sum(0) / n**2
    return np.asarray(np.abs(samples - truth).mean(0) - spread)


def _line(x: Floats, y: Floats) -> tuple[float, float]:
    """Intercept and slope of the regression of y on x; NaN if x does not vary."""
    spread = x - x.mean()
    if not spread @ spread > 0:
        return np.nan, np.nan
    slope = float(spread @ y / (spread @ spread))
    return float(y.mean() - slope * x.mean()), slope
