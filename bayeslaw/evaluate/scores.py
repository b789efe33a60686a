"""Scores of a prediction on measured losses: the paper's six, and proper scores of its bands.

All but `mae_rel` and `mape_clip` are taken on log loss, so widths and proper scores read as
relative errors: .01 is about 1 %.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import huber

from bayeslaw.common.defaults import DELTA
from bayeslaw.common.errors import TableError
from bayeslaw.evaluate.forecast import Forecast
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.inference.posterior import Posterior
from bayeslaw.tables.table import LossTable

type Floats = npt.NDArray[np.float64]

POINT = ("huber_log", "rmse_log", "mae_rel", "mape_clip", "intercept", "slope")
BANDS = ("coverage_50", "coverage_80", "coverage_90", "width_90", "crps", "winkler_90")
CLIP = 1e-8
"""Losses are clipped here in `mape_clip`; above it, `mape_clip` equals `mae_rel`."""


def score(
    prediction: PointFit | Posterior | Forecast,
    table: LossTable,
    *,
    seed: int = 0,
    allow_unconverged: bool = False,
) -> pd.Series:
    """Score a fit or a forecast on measured losses.

    Parameters
    ----------
    prediction : PointFit, Posterior or Forecast
        A forecast must have been made for the rows of `table`. A point fit has no bands: their
        scores are NaN.
    table : LossTable
    seed : int
        Of the predictive noise, if `prediction` is a posterior.

    Returns
    -------
    Series
        `huber_log`, `rmse_log`, `mae_rel`, `mape_clip`, `intercept`, `slope` as in the paper's
        Appendix A; `coverage_50`, `coverage_80`, `coverage_90`, shares of rows inside the band;
        `width_90`, `crps`, `winkler_90`, means over rows, on log loss.

    Raises
    ------
    TableError
        If the forecast and the table differ in length.
    NotConverged
        If the posterior failed its gate.
    """
    if isinstance(prediction, PointFit):
        point, samples = prediction.predict(table), None
    else:
        if isinstance(prediction, Posterior):
            prediction = prediction.forecast(table, seed=seed, allow_unconverged=allow_unconverged)
        point, samples = prediction.median, np.log(prediction.samples)
        if len(point) != len(table):
            raise TableError(f"the forecast has {len(point)} rows, {table.name} has {len(table)}.")
    scores = point_scores(point, table.loss)
    if samples is not None:
        scores |= band_scores(samples, np.log(table.loss))
    return pd.Series(scores, index=[*POINT, *BANDS], dtype=float)


def point_scores(predicted: Floats, loss: Floats) -> dict[str, float]:
    """The paper's six metrics (Appendix A); arrays of shape (rows,), nats per token."""
    r = np.log(predicted) - np.log(loss)
    miss = np.abs(predicted - loss)
    intercept, slope = _line(np.log(predicted), np.log(loss))
    return {
        "huber_log": float(huber(DELTA, r).mean()),
        "rmse_log": float(np.sqrt(np.mean(r**2))),
        "mae_rel": float(np.mean(miss / loss)),
        "mape_clip": float(np.mean(miss / np.maximum(loss, CLIP))),
        "intercept": intercept,
        "slope": slope,
    }


def band_scores(samples: Floats, truth: Floats) -> dict[str, float]:
    """Coverage, width, CRPS and Winkler score of draws (draws, rows) against (rows,)."""
    scores: dict[str, float] = {}
    for level in (0.5, 0.8, 0.9):
        lower, upper = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2], axis=0)
        inside = (lower <= truth) & (truth <= upper)
        scores[f"coverage_{100 * level:g}"] = float(inside.mean())
    alpha, width = 0.1, upper - lower
    miss = np.maximum(lower - truth, 0) + np.maximum(truth - upper, 0)
    scores["width_90"] = float(width.mean())
    scores["crps"] = float(crps(samples, truth).mean())
    scores["winkler_90"] = float(np.mean(width + 2 / alpha * miss))
    return scores


def crps(samples: Floats, truth: Floats) -> Floats:
    """Continuous ranked probability score of draws (draws, rows), shape (rows,).

    ``E|X - y| - E|X - X'| / 2``, the second mean over all pairs by sorting (Gneiting and
    Raftery 2007, equation 21).
    """
    n = len(samples)
    rank = (2 * np.arange(1, n + 1) - n - 1)[:, None]
    spread = (rank * np.sort(samples, axis=0)).sum(0) / n**2
    return np.asarray(np.abs(samples - truth).mean(0) - spread)


def _line(x: Any, y: Any) -> tuple[float, float]:
    """Intercept and slope of y on x by least squares; NaN where x does not vary."""
    spread = x - x.mean()
    if not spread @ spread > 0:
        return np.nan, np.nan
    slope = float(spread @ y / (spread @ spread))
    return float(y.mean() - slope * x.mean()), slope
