r"""Parts of a check about rows beyond the training rows: distance, curvature, bounds by stage.

Levels of `extrapolation` are decided by the distance along each covariate. Rows in an empty corner
are within each range and outside the convex hull of the training rows.

Let the loss at one N, D and r fall with PTPP, and let it be convex in log PTPP. Then beyond two
stages P1 < P2 it lies above the straight line through them and below its value at the second:

    L(P2) - (R - 1) Delta  <=  L(P3)  <=  L(P2),
    Delta = L(P1) - L(P2),  R = log(P3/P1) / log(P2/P1).

``F / P^eta`` is such a term for every eta > 0: eta -> 0 attains the line, eta -> inf the last
value. So is every sum of such terms. A data term with an exponent that depends on PTPP, a term of
the law of forgetting, or a curved term need not satisfy the bounds.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import stats

from bayeslaw.checks.identifiability import spread
from bayeslaw.checks.part import LEVELS, NAMES, NEAR, RARE, Part, Target, listed
from bayeslaw.common.arrays import Bools, Floats
from bayeslaw.evaluate.datatree import prior_draws
from bayeslaw.evaluate.residuals import covariance
from bayeslaw.inference.posterior import Posterior
from bayeslaw.model.random_effects import SIZE
from bayeslaw.tables.hull import coordinate, displacement, distance, in_words, locate, outside
from bayeslaw.tables.validation import COVARIATES

FAR = 1.0
"""Here the effect of a curvature that the training rows cannot show is 17 times as large."""
TOO_FAR = 3.0
"""Here it is 97 times as large: an error of .1 % within the training range becomes 10 %."""
FEWEST_VALUES = 3
"""With fewer distinct values of a covariate no curvature is identified: FAR is then too far."""
CELL = ("params", "tokens", "replay")
"""Covariates that are equal within a cell; the stages differ."""


def extrapolation_part(fit: Posterior, to: Target) -> Part:
    """Distance of the rows beyond the training rows, and whether the data support it."""
    seen, columns = fit.table.frame, fit.law.columns
    frame, hull = distances(fit, to.frame), hull_distances(fit, to.frame)
    found = locate(fit.table, to.frame, columns)
    values = {name: int(seen[name].nunique()) for name in COVARIATES if name in seen}
    words, levels = [], ["ok"]
    for name in map(str, frame):
        far, label = float(frame[name].max()), NAMES[name]
        if far < NEAR:
            continue
        if name not in columns:
            if math.isinf(far):
                words.append(
                    f"{label} differs from its only value in the training rows, and the law has no "
                    "term in it."
                )
                levels.append("caution")
            continue
        count = values[name]
        if name == "params" and count < SIZE.fewest:
            limit, level = NEAR, "refuse"
            reason = f", and {count} sizes are too few to estimate the random effect of size"
        elif count < FEWEST_VALUES:
            limit, level = FAR, "refuse" if far > FAR else "caution"
            reason = f", and {count} values cannot identify a curvature"
        else:
            limit = TOO_FAR
            level = "refuse" if far > TOO_FAR else "caution" if far > FAR else "ok"
            reason = (
                "; a curvature too small to detect in the training rows has "
                f"{amplification(far):.0f} times the effect there"
            )
        end = f": too far to forecast (limit {limit:g})." if level == "refuse" else "."
        words.append(
            f"{label} lies up to {far:.2g} training ranges beyond the training rows{reason}{end}"
        )
        levels.append(level)
    corner = found[(frame[list(columns)] < NEAR).all(axis=1) & (hull >= NEAR)]
    if len(corner):
        apart = distance(float(corner["efolds"].max()), float(corner["decades"].max()))
        words.append(
            f"{len(corner)} of {len(found)} rows lie in an empty corner: each covariate is within "
            f"its range, but together they are up to {apart} outside the convex hull of the "
            "training rows."
        )
    if words and not fit.law.discrepancy_parameters:
        levels.append("caution")
        words.append(
            "The law is taken as exact (no discrepancy): beyond the training rows its bands ignore "
            "that measured losses deviate from the law."
        )
    words = words or ["All rows lie within, or next to, the range of the training rows."]
    words.append(f"Rows to forecast: {in_words(found)}.")
    frame = frame.assign(hull=hull, **found[["position", "efolds", "decades"]])
    level = max(levels, key=LEVELS.index)
    return Part("extrapolation", level, tuple(words), frame, {"levels": values})


def distances(fit: Posterior, rows: pd.DataFrame) -> pd.DataFrame:
    """Distance of each row beyond the training rows, in units of their range.

    One column per covariate that both tables have, in log N, log D, log PTPP and in r. It is 0
    inside the training range, and 1 at one range beyond it. It is infinite if the covariate has
    only one value in the training table and the row has another.
    """
    seen, columns = fit.table.frame, {}
    for name in COVARIATES:
        if name not in seen or name not in rows:
            continue
        old, new = (coordinate(frame, name) for frame in (seen, rows))
        beyond, width = outside(old, new), np.ptp(old)
        beyond[beyond < 1e-9] = 0.0  # rounding
        columns[name] = beyond / width if width else np.where(beyond > 0, np.inf, 0.0)
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


def amplification(distance: Floats | float) -> Floats:
    """Error of a straight line beyond the training range over its error inside.

    The truth is ``x^2 / 2``, and the range is [0, 1]. Every line misses it by at least 1/16
    somewhere in the range. The best line misses it at distance d beyond the range by
    ``(8 (d^2 + d) + 1) / 16``.
    The distance is in training ranges; 0 is the end of the range.

    Examples
    --------
    >>> amplification([0.0, 1.0, 3.0]).tolist()
    [1.0, 17.0, 97.0]
    """
    d = np.asarray(distance)
    return np.asarray(8 * (d**2 + d) + 1)


def curvature_part(fit: Posterior, to: Target | None) -> Part | None:
    """Whether the data imply more curvature than the prior of the discrepancy expects.

    The distance of the posterior median from the prior median, in prior standard deviations, of
    each parameter of the discrepancy. The threshold is exceeded by one fit in a hundred if the law
    and the prior are right. A forecast that extrapolates such a curvature is refused. None if the
    law has no discrepancy.
    """
    if not fit.law.discrepancy_parameters:
        return None
    prior, drawn = prior_draws(fit), fit.values()
    off = {
        name: float(np.median(drawn[name]) - np.median(prior[name])) / spread(prior[name])
        for name in fit.law.discrepancy_parameters
    }
    frame = pd.DataFrame({"off": off}).rename_axis("name")
    far = frame["off"].abs().sort_values(ascending=False)
    strained = far[far > stats.norm.isf(RARE / (2 * len(far)))]
    if strained.empty:
        words = (
            "The curvature of the discrepancy is consistent with its prior (posterior medians at "
            f"most {far.iloc[0]:.1f} prior sds from the prior median: {far.index[0]})."
        )
        return Part("curvature", "ok", (words,), frame)
    each = [f"{name} by {value:.1f}" for name, value in strained.items()]
    words = (
        "The data imply more curvature than the prior of the discrepancy expects, in prior sds: "
        f"{listed(each)}."
    )
    beyond: list[str] = []
    if to is not None:
        away = distances(fit, to.frame).max()
        along = fit.law.covariates_of
        followed = {c for name in strained.index for c in along[str(name)]}
        beyond = [NAMES[str(c)] for c in away.index[away >= NEAR] if c in followed]
    if beyond:
        text = (
            f"A forecast beyond the {listed(beyond)} of the training rows extrapolates this "
            "curvature: choose another law."
        )
        return Part("curvature", "refuse", (words, text), frame)
    return Part("curvature", "caution", (words,), frame)


def stage_bounds_part(fit: Posterior, to: Target | None) -> Part | None:
    """Bounds that hold for every eta, the forecast against them, and the training rows.

    None if the law has no PTPP, or if no cell was measured at the stages that are needed.
    """
    if "ptpp" not in fit.law.columns:
        return None
    words: list[str] = []
    facts: dict[str, object] = {}
    frame = pd.DataFrame(columns=["rows"]) if to is None else stage_bounds(fit, to.frame)
    if to is not None and len(frame):
        text, facts = _forecast_in_bounds(fit, to, frame)
        words.append(text)
    shape = stage_shape(fit)
    limit = stats.norm.isf(RARE)
    for stage, row in shape.iterrows():
        for side, bound in (("below", "lower"), ("above", "upper")):
            if row[f"z_{side}"] > limit:
                words.append(
                    f"The mean loss of the {row['cells']:.0f} cells measured at PTPP {stage:g} is "
                    f"{row[side]:.3g} nats {side} the {bound} bound from the two stages before it "
                    f"({row[f'z_{side}']:.1f} sd): no term F/P^eta can produce this."
                )
    broken = len(words) > bool(facts)
    if len(shape) and not broken:
        words.append("The losses at the measured stages satisfy these bounds.")
    if not words:
        return None
    level = "caution" if broken or facts.get("outside") else "ok"
    facts |= {"shape": shape.reset_index().to_dict("records")}
    return Part("bounds", level, tuple(words), frame.drop(columns="rows"), facts)


def _forecast_in_bounds(
    fit: Posterior, to: Target, frame: pd.DataFrame
) -> tuple[str, dict[str, object]]:
    """Bounds and forecast of the mean loss at the latest stage, in words and numbers."""
    stage, last = frame.index[-1], frame.iloc[-1]
    loss = float(np.median(fit.latent(to.frame.iloc[last["rows"]]), 0).mean())
    low, high = last["lower"] - 2 * last["lower_sd"], last["upper"] + 2 * last["upper_sd"]
    broken = not low <= loss <= high
    text = (
        "If the loss falls with log PTPP at a decreasing rate, as F/P^eta does for every eta, then "
        f"the losses measured at the last two stages bound the mean loss at PTPP {stage:g} between "
        f"{last['lower']:.4g} (sd {last['lower_sd']:.2g}) and {last['upper']:.4g} "
        f"(sd {last['upper_sd']:.2g}) nats. The median of the forecast is {loss:.4g}"
        f"{', outside these bounds' * broken}."
    )
    others = [t for t in fit.law.terms if "ptpp" in t.covariates and not t.plain.convex_in_ptpp]
    if others or fit.law.discrepancy_parameters:
        text += " Not all terms of this law need satisfy these bounds."
    return text, {"stage": float(stage), "median": loss, "outside": broken}


def reach(first: float, second: float, later: float) -> float:
    """R of the module's formula: distance of a later stage in steps between the first two.

    Examples
    --------
    >>> round(reach(15, 31, 279), 2)
    4.03
    """
    return float(np.log(later / first) / np.log(second / first))


def stage_bounds(fit: Posterior, rows: pd.DataFrame) -> pd.DataFrame:
    """Bounds on the mean loss of the rows at each stage beyond the training table.

    They follow from the measured losses of the same N, D and r at the last two training stages.
    Rows without such measurements are left out.

    Per stage: `rows`, the positions of its rows in `rows`; `lower` and `upper` in nats per token;
    `lower_sd` and `upper_sd`, their standard errors from noise and random effects.
    """
    seen = fit.table.frame
    first, second = np.sort(seen["ptpp"].unique())[-2:]
    found = []
    for stage in np.sort(rows.loc[rows["ptpp"] > second, "ptpp"].unique()):
        here = np.flatnonzero(rows["ptpp"] == stage)
        measured, weights = _cells_at(rows.iloc[here], seen, (first, second))
        if measured.any():
            (one, two), r = weights, reach(first, second, stage)
            lower, upper = _estimate(fit, (1 - r) * one + r * two), _estimate(fit, two)
            found.append((stage, here[measured], *lower, *upper))
    columns = pd.Index(["ptpp", "rows", "lower", "lower_sd", "upper", "upper_sd"])
    return pd.DataFrame(found, columns=columns).set_index("ptpp")


def stage_shape(fit: Posterior) -> pd.DataFrame:
    """Whether the training losses at each third stage satisfy the bounds from the two before it.

    Per stage with two before it: `cells`, the number of cells (N, D, r) measured at all three;
    `below` and `above`, mean distance below the lower and above the upper bound in nats per token,
    positive outside; `z_below` and `z_above`, the same in standard errors.
    """
    seen = fit.table.frame
    cells = seen.drop_duplicates([c for c in CELL if c in seen])
    stages, found = np.sort(seen["ptpp"].unique()), []
    for first, second, third in zip(stages, stages[1:], stages[2:], strict=False):
        measured, weights = _cells_at(cells, seen, (first, second, third))
        if measured.any():
            (one, two, three), r = weights, reach(first, second, third)
            below = _estimate(fit, (1 - r) * one + r * two - three)
            above = _estimate(fit, three - two)
            z = below[0] / below[1], above[0] / above[1]
            found.append((third, int(measured.sum()), below[0], above[0], *z))
    columns = pd.Index(["ptpp", "cells", "below", "above", "z_below", "z_above"])
    return pd.DataFrame(found, columns=columns).set_index("ptpp")


def _cells_at(
    rows: pd.DataFrame, seen: pd.DataFrame, stages: Sequence[float]
) -> tuple[Bools, list[Floats]]:
    """Whether the cell of each row was measured at all stages, and weights at each stage.

    They are those of the training rows in the mean, over such rows, of the mean loss of the cell.
    """
    columns = [c for c in CELL if c in seen and c in rows]
    own, other = (frame[columns].to_numpy(float) for frame in (rows, seen))
    same = (own[:, None] == other).all(-1)
    at = [same & (seen["ptpp"] == stage).to_numpy() for stage in stages]
    measured = np.logical_and.reduce([each.any(1) for each in at])
    if not measured.any():
        return measured, []
    at = [each[measured] for each in at]
    return measured, [(each / each.sum(1, keepdims=True)).mean(0) for each in at]


def _estimate(fit: Posterior, weights: Floats) -> tuple[float, float]:
    """A weighted sum of the training losses and its standard error."""
    loss = weights * fit.table.loss
    return float(weights @ fit.table.loss), float(np.sqrt(loss @ covariance(fit) @ loss))
