r"""Parts of a check about rows beyond the training rows: distance, curvature, bounds by stage.

The coverage of bands was measured on held-out rows up to the distances `MEASURED` beyond the fitted
ones. Farther out it is not known, and forecasts from twice these distances are refused.

Let the loss at one N, D and r fall with PTPP, and let it be convex in log PTPP. Then beyond two
stages P1 < P2 it lies above the straight line through them and below its value at the second:

    L(P2) - (R - 1) Delta  <=  L(P3)  <=  L(P2),
    Delta = L(P1) - L(P2),  R = log(P3/P1) / log(P2/P1).

``F / P^eta`` is such a term for every eta > 0: eta -> 0 attains the line, eta -> inf the last
value. So is every sum of such terms. A data term with an exponent that depends on PTPP, a term of
the law of forgetting, or a curved term need not satisfy the bounds.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import stats

from bayeslaw.checks.identifiability import spread
from bayeslaw.checks.part import LEVELS, NAMES, RARE, Part, Target, listed
from bayeslaw.common.arrays import Bools, Floats
from bayeslaw.common.errors import argument
from bayeslaw.evaluate.datatree import prior_draws
from bayeslaw.evaluate.residuals import covariance
from bayeslaw.inference.pools import Pool
from bayeslaw.inference.posterior import Posterior
from bayeslaw.model.effects import SIZE
from bayeslaw.tables.hull import BEYOND, NEAR, in_words, locate
from bayeslaw.tables.validation import COVARIATES

MEASURED = {"params": 0.956, "tokens": 0.829, "ptpp": 0.955, "replay": 0.15, "decades": 1.385}
"""Farthest distance at which held-out losses were compared with bands, in decades.

Of each covariate beyond its range, and of a row from the hull: `benchmarks/distance.csv`, and for
PTPP and replay the splits of `benchmarks/adaptation.csv`.
"""
TOO_FAR = 2.0
"""Multiple of these distances from which a forecast is refused."""
FEWEST_VALUES = 3
"""With fewer distinct values of a covariate no curvature along it is identified."""
CELL = ("params", "tokens", "replay")
"""Covariates that are equal within a cell; the stages differ."""


def extrapolation_part(
    fit: Posterior | Pool, rows: pd.DataFrame, *, beyond_evidence: bool = False
) -> Part:
    """Distance of the rows beyond the training rows, and whether the data support it."""
    seen, first = fit.table.frame, fit.first if isinstance(fit, Pool) else fit
    found = locate(fit.table, rows, fit.columns)
    values = {name: int(seen[name].nunique()) for name in COVARIATES if name in seen}
    words, levels = [], ["ok"]
    for name in values:
        if BEYOND + name not in found or not (far := float(found[BEYOND + name].max())) > NEAR:
            continue
        label, count = NAMES[name], values[name]
        if name not in fit.columns:
            if count == 1:
                words.append(
                    f"{label} differs from its only value in the training rows, and the law has no "
                    "term in it."
                )
                levels.append("caution")
            continue
        text = f"{label} lies up to {far:.2g} decades beyond the training rows"
        if count == 1:
            words.append(f"{text}, and one value says nothing on others: too far to forecast.")
            levels.append("refuse")
        elif name == "params" and count < SIZE.fewest:
            words.append(f"{text}, and {count} sizes are too few to estimate the effect of a size.")
            levels.append("caution")
        elif count < FEWEST_VALUES:
            words.append(f"{text}, and {count} values cannot identify a curvature.")
            levels.append("caution")
    level, text = evidence(found, fit.columns, beyond_evidence=beyond_evidence)
    levels.append(level)
    words += [text] if text else []
    if found["decades"].max() > NEAR and not first.law.discrepancy_parameters:
        levels.append("caution")
        words.append(
            "The law is taken as exact (no discrepancy): beyond the training rows its bands ignore "
            "that measured losses deviate from the law. On 40 of 47 splits of public tables such "
            "bands held less than .8."
        )
    words.append(f"Rows to forecast: {in_words(found)}.")
    worst = max(levels, key=LEVELS.index)
    return Part("extrapolation", worst, tuple(words), found, {"levels": values})


def evidence(
    found: pd.DataFrame, columns: Sequence[str], *, beyond_evidence: bool = False
) -> tuple[str, str]:
    """Whether bands were ever measured as far out as some rows lie: a level, and words.

    `found` is from `locate`, and `columns` are the law's covariates. With `beyond_evidence` no
    distance is refused.
    """
    measured = {name: MEASURED[name] for name in (*columns, "decades")}
    far = {n: float(found[n if n == "decades" else BEYOND + n].max()) for n in measured}
    beyond = [n for n in measured if far[n] > measured[n]]
    if not beyond:
        return "ok", ""
    each = [
        f"{far[n]:.2g} decades{f' of {NAMES[n]}' if n in NAMES else ''} (bands were tested to "
        f"{measured[n]:.2g})"
        for n in ([n for n in beyond if n in NAMES] or beyond)
    ]
    text = f"No evidence: rows lie up to {listed(each)} beyond the training rows"
    if beyond_evidence or all(far[n] < TOO_FAR * measured[n] for n in beyond):
        return "no evidence", f"{text}."
    return "refuse", (
        f"{text}; from twice that on forecasts are refused: ask for nearer rows, or add "
        f"{argument('beyond_evidence', True)}."
    )


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
        found, along = locate(fit.table, to.frame, fit.columns), fit.law.covariates_of
        followed = {c for name in strained.index for c in along[str(name)]}
        away = {c: float(found[BEYOND + c].max()) for c in COVARIATES if c in followed}
        beyond = [NAMES[c] for c, far in away.items() if far > NEAR]
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
    others = [t for t in fit.law.terms if "ptpp" in t.covariates and not t.convex_in_ptpp]
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
