"""Part of a check: how far the rows to forecast lie beyond the training rows.

Levels are decided by the distance along each covariate. Rows in an empty corner are within each
range and outside the convex hull of the training rows.
"""

import math

import numpy as np
import pandas as pd

from bayeslaw.checks.part import NAMES, NEAR, Part, Target, worst
from bayeslaw.common.arrays import Floats
from bayeslaw.inference.posterior import Posterior
from bayeslaw.model.random_effects import SIZE
from bayeslaw.tables.hull import coordinate, displacement, distance, in_words, locate
from bayeslaw.tables.validation import COVARIATES

FAR = 1.0
"""Here the effect of a curvature that the training rows cannot show is 17 times as large."""
TOO_FAR = 3.0
"""Here it is 97 times as large: an error of .1 % within the training range becomes 10 %."""
FEWEST_VALUES = 3
"""With fewer distinct values of a covariate no curvature is identified: FAR is then too far."""


def extrapolation_part(fit: Posterior, to: Target) -> Part:
    """Distance of the rows beyond the training rows, and whether the data support it."""
    frame, hull = distances(fit, to.frame), hull_distances(fit, to.frame)
    found = locate(fit.table, to.frame, fit.law.columns)
    values, words, level = levels(fit), [], "ok"
    for name in frame:
        far, seen = float(frame[name].max()), values[str(name)]
        if far < NEAR:
            continue
        label = NAMES[str(name)]
        if name not in fit.law.columns:
            if math.isinf(far):
                words.append(
                    f"{label} differs from its only value in the training rows, and the law has no "
                    "term in it."
                )
                level = worst(level, "caution")
            continue
        text = f"{label} lies up to {far:.2g} training ranges beyond the training rows"
        if name == "params" and seen < SIZE.fewest:
            limit, mine = NEAR, "refuse"
            reason = f", and {seen} sizes are too few to estimate the random effect of size"
        elif seen < FEWEST_VALUES:
            limit, reason = FAR, f", and {seen} values cannot identify a curvature"
            mine = "refuse" if far > FAR else "caution"
        else:
            limit, larger = TOO_FAR, amplification(far)
            reason = (
                "; a curvature too small to detect in the training rows has "
                f"{larger:.0f} times the effect there"
            )
            mine = "refuse" if far > TOO_FAR else "caution" if far > FAR else "ok"
        end = f": too far to forecast (limit {limit:g})." if mine == "refuse" else "."
        words.append(text + reason + end)
        level = worst(level, mine)
    corner = found[(frame[list(fit.law.columns)] < NEAR).all(axis=1) & (hull >= NEAR)]
    if len(corner):
        outside = distance(float(corner["efolds"].max()), float(corner["decades"].max()))
        words.append(
            f"{len(corner)} of {len(found)} rows lie in an empty corner: each covariate is within "
            f"its range, but together they are up to {outside} outside the convex hull of the "
            "training rows."
        )
    if words and not fit.law.discrepancy_parameters:
        level = worst(level, "caution")
        words.append(
            "The law is taken as exact (no discrepancy): beyond the training rows its bands ignore "
            "that measured losses deviate from the law."
        )
    words = words or ["All rows lie within, or next to, the range of the training rows."]
    words.append(f"Rows to forecast: {in_words(found)}.")
    frame = frame.assign(hull=hull, **found[["position", "efolds", "decades"]])
    return Part("extrapolation", level, tuple(words), frame, {"levels": values})


def distances(fit: Posterior, rows: pd.DataFrame) -> pd.DataFrame:
    """Distance of each row beyond the training rows, in units of their range.

    Parameters
    ----------
    fit : Posterior
    rows : DataFrame

    Returns
    -------
    DataFrame
        One column per covariate that both tables have, in log N, log D, log PTPP and in r. It is 0
        inside the training range, and 1 at one range beyond it. It is infinite if the covariate
        has only one value in the training table and the row has another.
    """
    seen, columns = fit.table.frame, {}
    for name in COVARIATES:
        if name not in seen or name not in rows:
            continue
        old, new = (coordinate(frame, name) for frame in (seen, rows))
        outside = np.maximum(np.maximum(old.min() - new, new - old.max()), 0)
        outside[outside < 1e-9] = 0.0  # rounding
        width = np.ptp(old)
        columns[name] = outside / width if width else np.where(outside > 0, np.inf, 0.0)
    return pd.DataFrame(columns)


def hull_distances(fit: Posterior, rows: pd.DataFrame) -> Floats:
    """Distance of each row from the convex hull of the training rows, in units of their range.

    It is Euclidean in the law's covariates, and equal to that of `distances` where a row is beyond
    the training rows in one covariate and supported in the others.
    """
    columns = fit.law.columns
    old, new = (np.stack([coordinate(f, c) for c in columns], 1) for f in (fit.table.frame, rows))
    width = np.ptp(old, axis=0)
    return np.asarray(np.linalg.norm(displacement(old / width, new / width), axis=1))


def levels(fit: Posterior) -> dict[str, int]:
    """Number of distinct values of each covariate in the training table."""
    seen = fit.table.frame
    return {name: int(seen[name].nunique()) for name in COVARIATES if name in seen}


def amplification(distance: Floats | float) -> Floats:
    """Error of a straight line beyond the training range over its error inside.

    The truth is ``x^2 / 2``, and the range is [0, 1]. Every line misses it by at least 1/16
    somewhere in the range. The best line misses it at distance d beyond the range by
    ``(8 (d^2 + d) + 1) / 16``.

    Parameters
    ----------
    distance : float or array
        In training ranges; 0 is the end of the range.

    Returns
    -------
    array

    Examples
    --------
    >>> amplification([0.0, 1.0, 3.0]).tolist()
    [1.0, 17.0, 97.0]
    """
    d = np.asarray(distance)
    return np.asarray(8 * (d**2 + d) + 1)
