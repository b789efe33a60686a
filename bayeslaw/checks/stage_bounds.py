r"""Part of a check: bounds on the loss at a later pre-training stage that hold for every eta.

Let the loss at one N, D and r fall with PTPP, and let it be convex in log PTPP. Then beyond two
stages P1 < P2 it lies above the straight line through them and below its value at the second:

    L(P2) - (R - 1) Delta  <=  L(P3)  <=  L(P2),
    Delta = L(P1) - L(P2),  R = log(P3/P1) / log(P2/P1).

``F / P^eta`` is such a term for every eta > 0: eta -> 0 attains the line, eta -> inf the last
value. So is every sum of such terms. A data term with an exponent that depends on PTPP, a term of
the law of forgetting, or a curved term need not satisfy the bounds.
"""

from itertools import pairwise

import numpy as np
import pandas as pd
from scipy import stats

from bayeslaw.checks.part import RARE, Part, Target
from bayeslaw.common.arrays import Bools, Floats
from bayeslaw.evaluate.densities import covariance
from bayeslaw.inference.posterior import Posterior

CELL = ("params", "tokens", "replay")
"""Covariates that are equal within a cell; the stages differ."""


def stage_bounds_part(fit: Posterior, to: Target | None) -> Part | None:
    """Bounds that hold for every eta, the forecast against them, and the training rows.

    Returns
    -------
    Part or None
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
    outside = not low <= loss <= high
    text = (
        "If the loss falls with log PTPP at a decreasing rate, as F/P^eta does for every eta, then "
        f"the losses measured at the last two stages bound the mean loss at PTPP {stage:g} between "
        f"{last['lower']:.4g} (sd {last['lower_sd']:.2g}) and {last['upper']:.4g} "
        f"(sd {last['upper_sd']:.2g}) nats. The median of the forecast is {loss:.4g}"
        f"{', outside these bounds' * outside}."
    )
    others = [t for t in fit.law.terms if "ptpp" in t.covariates and not t.plain.convex_in_ptpp]
    if others or fit.law.discrepancy_parameters:
        text += " Not all terms of this law need satisfy these bounds."
    return text, {"stage": float(stage), "median": loss, "outside": outside}


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

    Parameters
    ----------
    fit : Posterior
    rows : DataFrame

    Returns
    -------
    DataFrame
        Per stage: `rows`, the positions of its rows in `rows`; `lower` and `upper` in nats per
        token; `lower_sd` and `upper_sd`, their standard errors from noise and random effects.
    """
    seen = fit.table.frame
    first, second = np.sort(seen["ptpp"].unique())[-2:]
    same = _same_cell(rows, seen)
    found = []
    for stage in np.sort(rows.loc[rows["ptpp"] > second, "ptpp"].unique()):
        near = [same & (seen["ptpp"] == p).to_numpy() for p in (first, second)]
        usable = (rows["ptpp"] == stage).to_numpy() & near[0].any(1) & near[1].any(1)
        if usable.any():
            one, two = (_mean_weights(each[usable]) for each in near)
            r = reach(first, second, stage)
            lower, upper = _estimate(fit, (1 - r) * one + r * two), _estimate(fit, two)
            found.append((stage, np.flatnonzero(usable), *lower, *upper))
    columns = pd.Index(["ptpp", "rows", "lower", "lower_sd", "upper", "upper_sd"])
    return pd.DataFrame(found, columns=columns).set_index("ptpp")


def stage_shape(fit: Posterior) -> pd.DataFrame:
    """Whether the training losses at each third stage satisfy the bounds from the two before it.

    Returns
    -------
    DataFrame
        Per stage with two before it: `cells`, the number of cells (N, D, r) measured at all three;
        `below` and `above`, mean distance below the lower and above the upper bound in nats per
        token, positive outside; `z_below` and `z_above`, the same in standard errors.
    """
    seen = fit.table.frame
    cells = seen.drop_duplicates([c for c in CELL if c in seen])
    same, stages = _same_cell(cells, seen), np.sort(seen["ptpp"].unique())
    found = []
    for (one, two), (_, three) in pairwise(pairwise(stages)):
        at = [same & (seen["ptpp"] == p).to_numpy() for p in (one, two, three)]
        usable = np.logical_and.reduce([each.any(1) for each in at])
        if usable.any():
            means, r = [_mean_weights(each[usable]) for each in at], reach(one, two, three)
            below = _estimate(fit, (1 - r) * means[0] + r * means[1] - means[2])
            above = _estimate(fit, means[2] - means[1])
            z = below[0] / below[1], above[0] / above[1]
            found.append((three, int(usable.sum()), below[0], above[0], *z))
    columns = pd.Index(["ptpp", "cells", "below", "above", "z_below", "z_above"])
    return pd.DataFrame(found, columns=columns).set_index("ptpp")


def _same_cell(rows: pd.DataFrame, seen: pd.DataFrame) -> Bools:
    """Whether a row and a training row have the same N, D and r, shape (rows, training rows)."""
    columns = [c for c in CELL if c in seen and c in rows]
    left, right = (frame[columns].to_numpy(float) for frame in (rows, seen))
    return np.asarray((left[:, None] == right).all(-1))


def _mean_weights(same: Bools) -> Floats:
    """Weights of the training rows in the mean, over rows, of the mean loss of each row's cell."""
    return np.asarray((same / same.sum(1, keepdims=True)).mean(0))


def _estimate(fit: Posterior, weights: Floats) -> tuple[float, float]:
    """A weighted sum of the training losses and its standard error."""
    loss = fit.table.loss
    spread = weights * loss
    return float(weights @ loss), float(np.sqrt(spread @ covariance(fit) @ spread))
