r"""Findings about rows beyond the training rows: their distance, and bounds on their losses.

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
from scipy.special import ndtri

from bayeslaw.checks.findings import LEVELS, NAMES, RARE, Finding, listed
from bayeslaw.common.arrays import Bools, Floats
from bayeslaw.common.errors import argument
from bayeslaw.inference.pools import Pool
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.residuals import covariance
from bayeslaw.model.effects import SIZE
from bayeslaw.tables.hull import BEYOND, NEAR, in_words, locate
from bayeslaw.tables.validation import COVARIATES

# Farthest distance at which held-out losses were compared with bands, in decades: of each covariate
# beyond its range, and of a row from the hull. From `benchmarks/distance.csv`, and for PTPP and
# replay from the splits of `benchmarks/adaptation.csv`.
MEASURED = {"params": 0.956, "tokens": 0.829, "ptpp": 0.955, "replay": 0.15, "decades": 1.385}
TOO_FAR = 2.0  # multiple of these distances from which a forecast is refused
FEWEST_VALUES = 3  # with fewer values of a covariate no curvature along it is identified
CELL = ("params", "tokens", "replay")  # equal within a cell; the stages differ

EXACT = (
    "The law is taken as exact (no discrepancy): beyond the training rows its bands ignore that "
    "measured losses deviate from the law. On 40 of 47 splits of public tables such bands held "
    "less than .8."
)


def judge_extrapolation(
    fit: Posterior | Pool, rows: pd.DataFrame, *, beyond_evidence: bool = False
) -> Finding:
    """Distance of the rows beyond the training rows, and whether the data support it."""
    # Of a pool the member with the most weight says whether its laws are taken as exact.
    seen, first = fit.table.frame, fit.first if isinstance(fit, Pool) else fit
    located = locate(fit.table, rows, fit.columns)
    values = {name: int(seen[name].nunique()) for name in COVARIATES if name in seen}
    words, levels = [], ["ok"]
    for name, count in values.items():
        far = float(located[BEYOND + name].max()) if BEYOND + name in located else 0.0
        if not far > NEAR:
            continue
        text = f"{NAMES[name]} lies up to {far:.2g} decades beyond the training rows"
        level = "caution"
        if name not in fit.columns:
            if count > 1:  # it varies in the training rows, and the law does without it
                continue
            text = f"{NAMES[name]} differs from its only value in the training rows, and the law "
            text += "has no term in it."
        elif count == 1:
            level, text = "refuse", f"{text}, and one value says nothing on others: too far to "
            text += "forecast."
        elif name == "params" and count < SIZE.fewest:
            text += f", and {count} sizes are too few to estimate the effect of a size."
        elif count < FEWEST_VALUES:
            text += f", and {count} values cannot identify a curvature."
        else:
            continue
        words.append(text)
        levels.append(level)
    level, text = evidence(located, fit.columns, beyond_evidence=beyond_evidence)
    levels.append(level)
    words += [text] if text else []
    if located["decades"].max() > NEAR and not first.law.discrepancy_parameters:
        levels.append("caution")
        words.append(EXACT)
    words.append(f"Rows to forecast: {in_words(located)}.")
    worst = max(levels, key=LEVELS.index)
    return Finding("extrapolation", worst, tuple(words), located, {"levels": values})


def evidence(
    located: pd.DataFrame, columns: Sequence[str], *, beyond_evidence: bool = False
) -> tuple[str, str]:
    """Whether bands were measured as far out as rows of `locate` lie: a level, and words."""
    measured = {name: MEASURED[name] for name in (*columns, "decades")}
    far = {n: float(located[n if n == "decades" else BEYOND + n].max()) for n in measured}
    beyond = [n for n in measured if far[n] > measured[n]]
    if not beyond:
        return "ok", ""
    distances = [
        f"{far[n]:.2g} decades{f' of {NAMES[n]}' if n in NAMES else ''} (bands were tested to "
        f"{measured[n]:.2g})"
        # The distance from the hull is told only where no covariate alone explains it.
        for n in ([n for n in beyond if n in NAMES] or beyond)
    ]
    text = f"No evidence: rows lie up to {listed(distances)} beyond the training rows"
    if beyond_evidence or all(far[n] < TOO_FAR * measured[n] for n in beyond):
        return "no evidence", f"{text}."
    return "refuse", (
        f"{text}; from twice that on forecasts are refused: ask for nearer rows, or add "
        f"{argument('beyond_evidence', True)}."
    )


def judge_bounds(fit: Posterior, rows: pd.DataFrame | None) -> Finding | None:
    """Bounds that hold for every eta, the forecast against them, and the training rows."""
    if "ptpp" not in fit.law.columns:
        return None
    words: list[str] = []
    facts: dict[str, object] = {}
    frame = pd.DataFrame(columns=["rows"]) if rows is None else stage_bounds(fit, rows)
    if rows is not None and len(frame):
        stage, last = frame.index[-1], frame.iloc[-1]
        loss = float(np.median(fit.latent(rows.iloc[last["rows"]]), 0).mean())
        # Two standard errors: cells have noise, and the bound extrapolates it.
        low, high = last["lower"] - 2 * last["lower_sd"], last["upper"] + 2 * last["upper_sd"]
        outside = not low <= loss <= high
        text = (
            "If the loss falls with log PTPP at a decreasing rate, as F/P^eta does for every eta, "
            "then the losses measured at the last two stages bound the mean loss at PTPP "
            f"{stage:g} between {last['lower']:.4g} (sd {last['lower_sd']:.2g}) and "
            f"{last['upper']:.4g} (sd {last['upper_sd']:.2g}) nats. The median of the forecast is "
            f"{loss:.4g}{', outside these bounds' * outside}."
        )
        others = [t for t in fit.law.terms if "ptpp" in t.covariates and not t.power_of("ptpp")]
        if others or fit.law.discrepancy_parameters:
            text += " Not all terms of this law need satisfy these bounds."
        words.append(text)
        facts = {"stage": float(stage), "median": loss, "outside": outside}
    shape, limit = stage_shape(fit), -ndtri(RARE)
    broken = False
    for stage, row in shape.iterrows():
        for side, bound in (("below", "lower"), ("above", "upper")):
            if row[f"z_{side}"] > limit:
                broken = True
                words.append(
                    f"The mean loss of the {row['cells']:.0f} cells measured at PTPP {stage:g} is "
                    f"{row[side]:.3g} nats {side} the {bound} bound from the two stages before it "
                    f"({row[f'z_{side}']:.1f} sd): no term F/P^eta can produce this."
                )
    if len(shape) and not broken:
        words.append("The losses at the measured stages satisfy these bounds.")
    if not words:
        return None
    level = "caution" if broken or facts.get("outside") else "ok"
    facts |= {"shape": shape.reset_index().to_dict("records")}
    return Finding("bounds", level, tuple(words), frame.drop(columns="rows"), facts)


def reach(first: float, second: float, later: float) -> float:
    """R of the module's formula: distance of a later stage in steps between the first two."""
    return float(np.log(later / first) / np.log(second / first))


def stage_bounds(fit: Posterior, rows: pd.DataFrame) -> pd.DataFrame:
    """Bounds on the mean loss of `rows` at later stages, from the last two training stages."""
    seen, bounds = fit.table.frame, []
    first, second = np.sort(seen["ptpp"].unique())[-2:]
    for stage in np.sort(rows.loc[rows["ptpp"] > second, "ptpp"].unique()):
        places = np.flatnonzero(rows["ptpp"] == stage)
        measured, weights = _cells_at(rows.iloc[places], seen, (first, second))
        if measured.any():
            (one, two), r = weights, reach(first, second, stage)
            lower, upper = _estimate(fit, (1 - r) * one + r * two), _estimate(fit, two)
            bounds.append((stage, places[measured], *lower, *upper))
    columns = pd.Index(["ptpp", "rows", "lower", "lower_sd", "upper", "upper_sd"])
    return pd.DataFrame(bounds, columns=columns).set_index("ptpp")


def stage_shape(fit: Posterior) -> pd.DataFrame:
    """How far training losses at each third stage are outside their bounds, in nats and in sd."""
    seen = fit.table.frame
    cells = seen.drop_duplicates([c for c in CELL if c in seen])
    stages, shapes = np.sort(seen["ptpp"].unique()), []
    for first, second, third in zip(stages, stages[1:], stages[2:], strict=False):
        measured, weights = _cells_at(cells, seen, (first, second, third))
        if measured.any():
            (one, two, three), r = weights, reach(first, second, third)
            below = _estimate(fit, (1 - r) * one + r * two - three)
            above = _estimate(fit, three - two)
            z = below[0] / below[1], above[0] / above[1]
            shapes.append((third, int(measured.sum()), below[0], above[0], *z))
    columns = pd.Index(["ptpp", "cells", "below", "above", "z_below", "z_above"])
    return pd.DataFrame(shapes, columns=columns).set_index("ptpp")


def _cells_at(
    rows: pd.DataFrame, seen: pd.DataFrame, stages: Sequence[float]
) -> tuple[Bools, list[Floats]]:
    """Rows whose cell was measured at all stages, and weights of the training rows at each."""
    columns = [c for c in CELL if c in seen and c in rows]
    asked, fitted = (frame[columns].to_numpy(float) for frame in (rows, seen))
    same = (asked[:, None] == fitted).all(-1)
    at_stages = [same & (seen["ptpp"] == stage).to_numpy() for stage in stages]
    measured = np.logical_and.reduce([at.any(1) for at in at_stages])
    if not measured.any():
        return measured, []
    counts = [at[measured] for at in at_stages]
    return measured, [(at / at.sum(1, keepdims=True)).mean(0) for at in counts]


def _estimate(fit: Posterior, weights: Floats) -> tuple[float, float]:
    """A weighted sum of the training losses and its standard error."""
    # The covariance is of log losses: losses times weights are its first-order factors.
    loss = weights * fit.table.loss
    return float(weights @ fit.table.loss), float(np.sqrt(loss @ covariance(fit) @ loss))
