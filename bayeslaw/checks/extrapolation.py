r"""How far rows lie outside the training table, and what bounds a later stage whatever eta is.

Let the loss at one N, D and r fall with PTPP, and let it be convex in log PTPP. Then beyond two
stages P1 < P2 it lies above the chord through them and below its value at the second:

    L(P2) - (R - 1) Delta  <=  L(P3)  <=  L(P2),
    Delta = L(P1) - L(P2),  R = log(P3/P1) / log(P2/P1).

``F / P^eta`` is such a term for every eta > 0 (eta -> 0 attains the chord, eta -> inf the last
value), and so is any sum of them. A data exponent gated by PTPP, or bent terms, need not be.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw.evaluate.densities import Floats, covariance
from bayeslaw.inference.posterior import Posterior
from bayeslaw.tables.validation import COVARIATES

CELL = ("params", "tokens", "replay")


def distances(fit: Posterior, rows: pd.DataFrame) -> pd.DataFrame:
    """Distance of each row beyond the training rows, in units of their range.

    Parameters
    ----------
    fit : Posterior
    rows : DataFrame

    Returns
    -------
    DataFrame
        One column per covariate that both have: 0 inside the range, 1 where a row is one range
        beyond it, in log N, log D, log PTPP and in r; infinite beyond a covariate that does not
        vary.
    """
    seen, columns = fit.table.frame, {}
    for name in COVARIATES:
        if name not in seen or name not in rows:
            continue
        old, new = (frame[name].to_numpy(float) for frame in (seen, rows))
        if name != "replay":
            old, new = np.log(old), np.log(new)
        outside = np.maximum(np.maximum(old.min() - new, new - old.max()), 0)
        outside[outside < 1e-9] = 0.0  # rounding
        width = np.ptp(old)
        columns[name] = outside / width if width else np.where(outside > 0, np.inf, 0.0)
    return pd.DataFrame(columns)


def levels(fit: Posterior) -> dict[str, int]:
    """Number of distinct values of each covariate in the training table."""
    seen = fit.table.frame
    return {name: int(seen[name].nunique()) for name in COVARIATES if name in seen}


def amplified(distance: Floats | float) -> Floats:
    """How much larger a bend that hides inside the training range is beyond it.

    Over a range of 1 a line misses ``x^2 / 2`` by at least 1/16 somewhere. The best one misses it
    at distance d beyond the end by ``(8 (d^2 + d) + 1) / 16``.
    """
    d = np.asarray(distance)
    return np.asarray(8 * (d**2 + d) + 1)


def reach(first: float, second: float, later: float) -> float:
    """R of the module's formula: distance of a later stage in steps of the first two."""
    return float(np.log(later / first) / np.log(second / first))


def stage_bounds(fit: Posterior, rows: pd.DataFrame) -> pd.DataFrame:
    """Bounds on the mean loss of the rows at each stage beyond the training table.

    From the measured losses of the same N, D and r at the last two stages; rows without are left
    out.

    Returns
    -------
    DataFrame
        Per stage: `rows`, their numbers in `rows`; `lower` and `upper` in nats per token, and
        `lower_sd`, `upper_sd`, the standard deviations that noise and group effects give them.
    """
    seen = fit.table.frame
    first, second = np.sort(seen["ptpp"].unique())[-2:]
    same = _same_cell(rows, seen)
    found = []
    for stage in np.sort(rows.loc[rows["ptpp"] > second, "ptpp"].unique()):
        near = [same & (seen["ptpp"] == p).to_numpy() for p in (first, second)]
        kept = (rows["ptpp"] == stage).to_numpy() & near[0].any(1) & near[1].any(1)
        if kept.any():
            one, two = (_mean(each[kept]) for each in near)
            r = reach(first, second, stage)
            lower, upper = _estimate(fit, (1 - r) * one + r * two), _estimate(fit, two)
            found.append((stage, np.flatnonzero(kept), *lower, *upper))
    columns = pd.Index(["ptpp", "rows", "lower", "lower_sd", "upper", "upper_sd"])
    return pd.DataFrame(found, columns=columns).set_index("ptpp")


def stage_shape(fit: Posterior) -> pd.DataFrame:
    """Whether the training table keeps to the bounds at every third stage.

    Returns
    -------
    DataFrame
        Per stage that has two before it: `cells` of one N, D and r measured at all three; mean
        distance `below` the lower and `above` the upper bound, nats per token, positive outside;
        and each in standard deviations, `z_below` and `z_above`.
    """
    seen = fit.table.frame
    cells = seen.drop_duplicates([c for c in CELL if c in seen])
    same, stages = _same_cell(cells, seen), np.sort(seen["ptpp"].unique())
    found = []
    for (one, two), (_, three) in pairwise(pairwise(stages)):
        at = [same & (seen["ptpp"] == p).to_numpy() for p in (one, two, three)]
        kept = np.logical_and.reduce([each.any(1) for each in at])
        if kept.any():
            means, r = [_mean(each[kept]) for each in at], reach(one, two, three)
            below = _estimate(fit, (1 - r) * means[0] + r * means[1] - means[2])
            above = _estimate(fit, means[2] - means[1])
            z = below[0] / below[1], above[0] / above[1]
            found.append((three, int(kept.sum()), below[0], above[0], *z))
    columns = pd.Index(["ptpp", "cells", "below", "above", "z_below", "z_above"])
    return pd.DataFrame(found, columns=columns).set_index("ptpp")


def _same_cell(rows: pd.DataFrame, seen: pd.DataFrame) -> Any:
    """Whether row and training row share N, D and r, shape (rows, training rows)."""
    columns = [c for c in CELL if c in seen and c in rows]
    left, right = (frame[columns].to_numpy(float) for frame in (rows, seen))
    return (left[:, None] == right).all(-1)


def _mean(same: Any) -> Floats:
    """Weights of the training rows in the mean, over rows, of the mean of each row's likes."""
    return np.asarray((same / same.sum(1, keepdims=True)).mean(0))


def _estimate(fit: Posterior, weights: Floats) -> tuple[float, float]:
    """A weighted sum of the training losses and its standard deviation."""
    loss = fit.table.loss
    spread = weights * loss
    return float(weights @ loss), float(np.sqrt(spread @ covariance(fit) @ spread))
