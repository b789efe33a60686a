"""The finding about outliers: runs, bases, sizes and rows far from the others."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy import stats

from bayeslaw.checks.findings import RARE, Finding
from bayeslaw.checks.prior_draws import prior_of
from bayeslaw.checks.refits import converged_in_words, forecast_of_any
from bayeslaw.common.arrays import Bools, Floats
from bayeslaw.common.errors import TableError
from bayeslaw.common.formatting import count, listed
from bayeslaw.common.progress import step
from bayeslaw.inference.fitting import refit
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.residuals import innovations, residual
from bayeslaw.model import effects
from bayeslaw.tables.table import LossTable, subset

# Least distance of an outlier from the others, in scales.
OUTLYING = 3.0
# Outliers that are named and left out: those with the largest deviations.
MAX_OUTLIERS = 5
# R-hat beyond which the numbers of a short refit are not shown.
UNRELIABLE = 1.1

type Outlier = tuple[str, object, str, float]
"""Level ("row", or that of a random effect), label, name in words, and deviation."""


@step("checking the forecast without outliers")
def judge_outliers(fit: Posterior, rows: LossTable | None, seed: int = 0) -> Finding:
    """Name outliers, and compare the forecast of `rows` with that of a refit without them."""
    # One run far from the law widens the band of every new run, by the estimated spread of runs.
    far = [*outlying_groups(fit), *outlying_rows(fit)]
    outliers = pd.DataFrame(far, columns=["level", "label", "name", "deviation"])
    if outliers.empty:
        text = "No run, base, size or row stands out."
        return Finding("outliers", "ok", (text,), outliers)
    outliers = outliers.sort_values(
        "deviation", key=abs, ascending=False, ignore_index=True
    )
    outliers = outliers[:MAX_OUTLIERS]
    named = []
    for name, deviation in zip(outliers["name"], outliers["deviation"], strict=True):
        percent = 100 * deviation
        named.append(f"{name} ({percent:+.2g} %)")
    farthest = f"Farthest from the others, in loss: {listed(named)}."
    if rows is None:
        return Finding("outliers", "ok", (farthest,), outliers)
    level, text, facts = _without(fit, rows, outliers, seed)
    return Finding("outliers", level, (farthest, text), outliers, facts)


def outlying_groups(fit: Posterior) -> Iterator[Outlier]:
    """Groups whose random effect is far from the median one.

    The distance is from the median, because the law itself moves towards an outlier. Far is beyond
    three times both the prior median of the effects' standard deviation and their scaled median
    absolute deviation.
    """
    prior = prior_of(fit)
    for level in fit.spec.fitted_effects:
        fitted = fit.draws[f"{level}_effect"].median(("chain", "draw"))
        values = fitted.values
        middle = float(fitted.median())
        expected = float(np.median(prior[f"tau_{level}"]))
        observed = float(stats.median_abs_deviation(values, scale="normal"))
        limit = OUTLYING * max(expected, observed)
        for label, value in zip(fitted[level].values, values, strict=True):
            if abs(value - middle) <= limit:
                continue
            is_size = level == effects.SIZE.name
            written = count(float(label)) if is_size else label
            yield level, label, f"{level} {written}", float(value)


def outlying_rows(fit: Posterior) -> Iterator[Outlier]:
    """Rows whose error is beyond three scales of the noise, and beyond what chance gives."""
    frame = fit.table.frame
    residuals = residual(fit, fit.table, fit.spec.effects)
    error, scale = innovations(fit, frame, residuals, fit.scale(frame))
    even = fit.spec.likelihood.even(error, fit.values(), np)
    scaled = np.median(even / scale, axis=0)
    # The farthest of many rows is farther than 3 scales by chance.
    by_chance = stats.norm.isf(RARE / (2 * len(scaled)))
    limit = max(OUTLYING, float(by_chance))
    for i in np.flatnonzero(np.abs(scaled) > limit):
        values = []
        for column in fit.columns:
            value = frame[column].iloc[i]
            values.append(f"{column} {count(value)}")
        name = f"the row at {', '.join(values)}"
        deviation = float(np.median(residuals[:, i]))
        yield "row", i, name, deviation


def _without(
    fit: Posterior, rows: LossTable, outliers: pd.DataFrame, seed: int
) -> tuple[str, str, dict[str, object]]:
    """Level, words and numbers of the forecast without the outliers."""
    kept = _kept_rows(fit.table.frame, outliers)
    remaining = subset(fit.table, kept)
    try:
        shortly = refit(fit.spec, remaining, seed)
    except TableError as error:
        return "ok", f"The law cannot be fitted without them: {error}", {}
    gate = converged_in_words(shortly)
    if shortly.convergence.rhat > UNRELIABLE:
        text = f"A short refit without them did not converge ({gate})."
        return "ok", text, {"gate": gate}
    before, middle_before = _band(fit, rows, seed)
    after, middle_after = _band(shortly, rows, seed)
    move = middle_after - middle_before
    most = move[np.abs(move).argmax()]
    half_before = 100 * np.median(before) / 2
    half_after = 100 * np.median(after) / 2
    text = (
        f"Without them, by a short refit to {kept.sum()} rows ({gate}), the forecasts move by up "
        f"to {100 * most:+.2g} %, and the 90 % band is ± {half_after:.2g} % instead of "
        f"± {half_before:.2g} %."
    )
    # A move that the band allows for is no reason to distrust it.
    too_far = np.abs(move) > before / 4
    level = "caution" if too_far.any() else "ok"
    facts: dict[str, object] = {
        "move": float(most),
        "half_width": half_before,
        "half_width_without": half_after,
        "gate": gate,
    }
    return level, text, facts


def _kept_rows(frame: pd.DataFrame, outliers: pd.DataFrame) -> Bools:
    """Rows that are no outliers and belong to none."""
    kept = np.ones(len(frame), bool)
    for level, label in zip(outliers["level"], outliers["label"], strict=True):
        if level == "row":
            kept &= np.arange(len(frame)) != label
        else:
            kept &= effects.labels(frame, level) != label
    return kept


def _band(fit: Posterior, rows: LossTable, seed: int) -> tuple[Floats, Floats]:
    """Width of the 90 % band of log loss, and median log loss, of each row."""
    forecast = forecast_of_any(fit, rows, seed)
    low, middle, high = np.log(forecast.quantile([0.05, 0.5, 0.95]))
    return high - low, middle
