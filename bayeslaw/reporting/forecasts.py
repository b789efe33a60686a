"""Sections on a forecast: its curves and bands, its scores, its calibration."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import binom

from bayeslaw import plots
from bayeslaw.common.formatting import count, digits
from bayeslaw.evaluate.forecast import Forecast
from bayeslaw.evaluate.scores import BANDS, POINT
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.inference.posterior import Posterior
from bayeslaw.plots.style import SHORT
from bayeslaw.reporting.pages import Section, Sheet, picture
from bayeslaw.tables.validation import COVARIATES

LEVELS = (0.5, 0.8, 0.9)
MEANINGS = {
    "huber_log": "mean Huber loss of log residuals, threshold .02",
    "rmse_log": "root mean square of log residuals; .01 is about 1 %",
    "mae_rel": "mean of |forecast − measured| / measured",
    "mape_clip": "the same with small losses clipped; equal here unless a loss is below 1e-8",
    "intercept, slope": "of log measured on log forecast; 0 and 1 are ideal",
    "coverage_50, _80, _90": "share of measured losses inside the band; ideal is its level",
    "width_90": "mean width of the 90 % band, in log loss",
    "crps, winkler_90": "proper scores of the whole forecast and of the 90 % band; lower is better",
}


def forecast(fit: Posterior, fc: Forecast, run: dict[str, Any]) -> Section:
    """Curves and bands of the forecast rows, and of the fitted ones."""
    frame, median = fc.frame, fc.median
    said = f"Forecast loss against tokens, {_axes(fit, frame)}. The median runs from "
    said += f"{median.max():.3f} to {median.min():.3f} nats per token."
    if "loss" in frame:
        held = inside(fc)
        said += f" {held[0.9]} of {len(frame)} held-out losses lie in the 90 % band."
    rms = np.sqrt(np.mean(np.log(fit.table.loss / np.median(fit.latent(fit.table), 0)) ** 2))
    grid = (
        f"Fitted curves through {len(fit.table)} training losses, {_axes(fit, fit.table.frame)}. "
        f"Root mean square residual {100 * rms:.2g} %."
    )
    return Section(
        "forecast",
        "Forecast",
        [
            picture(
                plots.forecast(fit, frame, **run),
                said,
                "Forecast by model size, with 50 and 90 % bands for a measured loss of a new run. "
                "Filled markers are measured losses; a cross marks one outside the 90 % band. Each "
                "panel has its own loss axis.",
            ),
            _bands(fc),
            picture(
                plots.in_sample(fit, **run),
                grid,
                "The same for the fitted rows: how well the law describes what it was fitted to.",
            ),
        ],
    )


def _axes(fit: Posterior, frame: pd.DataFrame) -> str:
    """The figure's panels and lines in words."""
    words = []
    for column in ("params", "replay", "ptpp"):
        if column in fit.law.columns:
            values = [count(v) for v in sorted(frame[column].unique())]
            many = len(values) > 6
            words.append(f"{SHORT[column]} {values[0]} to {values[-1]}" if many else
                         f"{SHORT[column]} {', '.join(values)}")  # fmt: skip
    return "; ".join(words) or "one panel"


def _bands(fc: Forecast) -> Sheet:
    """Each row's median and bands, beside its measured loss."""
    frame = fc.to_frame((0.5, 0.9))
    shown = [c for c in COVARIATES if c in frame]
    repeated = bool(frame.duplicated(shown).any())
    labels = [c for c in ("run", "base") if c in frame][:1] if repeated else []
    measured = "loss" in frame
    head = [
        *labels,
        *(SHORT[c] for c in shown),
        *["measured"] * measured,
        "median",
        "50 % band",
        "90 % band",
    ]
    rows = []
    for _, row in frame.iterrows():
        cells = [*(str(row[c]) for c in labels), *(count(row[c]) for c in shown)]
        cells += [f"{row['loss']:.4f}"] if measured else []
        cells.append(f"{row['median']:.4f}")
        for level in ("50", "90"):
            low, high = row[f"lower_{level}"], row[f"upper_{level}"]
            verdict = ("  in" if low <= row["loss"] <= high else " out") if measured else ""
            cells.append(f"{low:.4f}–{high:.4f}{verdict}")
        rows.append(cells)
    tall = len(rows) > 20
    caption = f"All {len(rows)} rows, nats per token" + ("; the table scrolls" if tall else "")
    return Sheet(caption, head, rows, tall=tall)


def scores(scores: pd.DataFrame | None, point: PointFit) -> Section | None:
    """The paper's scores and those of the bands; nothing without measured losses."""
    if scores is None:
        return None

    def sheet(caption: str, columns: Sequence[str], names: Sequence[str]) -> Sheet:
        rows = [[name, *(digits(float(scores[name][c])) for c in columns)] for name in names]
        return Sheet(caption, ["", *columns], rows)

    agree = f"{100 * point.agreeing:.0f} % of its polished starts agree."
    bounds = ", ".join(f"{n} = {v:g}" for n, v in point.at_bounds.items())
    return Section(
        "scores",
        "Scores on the held-out rows",
        [
            "The posterior is scored by its median and its bands, the paper's Huber fit of the "
            f"same law by its prediction; {agree}" + (f" On a bound: {bounds}." if bounds else ""),
            sheet("The paper's six columns", POINT, [str(name) for name in scores]),
            sheet("Bands, on log loss", BANDS, ["posterior"]),
            [f"{name}: {meaning}." for name, meaning in MEANINGS.items()],
        ],
    )


def calibration(fc: Forecast, fitted: Forecast, seed: int) -> Section:
    """Whether bands hold what they promise on the held-out rows."""
    n, held = len(fc.frame), inside(fc)
    pit = plots.pit_values(fc)
    miss = 100 * (fc.frame["loss"].to_numpy() / fc.median - 1)
    rows = []
    for level in LEVELS:
        low, high = binom.interval(0.9, n, level)
        rows.append([f"{100 * level:g} %", f"{held[level]} of {n}", f"{low:.0f} to {high:.0f}"])
    caption = (
        f"Measured losses inside each band; what {n} independent rows would give 9 times of 10"
    )
    parts: list[Any] = [
        Sheet(caption, ["band", "inside", "if exact"], rows),
        "Rows of one forecast share its errors, so they spread wider than independent ones.",
        picture(
            plots.observed(fc),
            f"Measured against forecast loss for {n} rows; measured less forecast runs from "
            f"{miss.min():+.2f} to {miss.max():+.2f} %.",
            "On the dashed line the forecast's median is exact.",
        ),
        picture(
            plots.coverage(fc),
            f"Coverage by nominal level: {held[0.5]} of {n} in the 50 % band, {held[0.8]} in the "
            f"80 % band, {held[0.9]} in the 90 % band.",
            "Above the dashed line bands are too wide, below too narrow; grey is what as many "
            "independent rows would give.",
        ),
    ]
    if n >= 4:
        said = f"PIT values of {n} rows: {(pit < 0.5).sum()} below one half, mean {pit.mean():.2f}."
        why = "Above zero, losses came out lower than forecast; below zero, higher."
        parts.append(picture(plots.pit(fc, seed=seed), said, why))
    said = (
        f"Residuals of held-out rows: mean {miss.mean():+.2f} %, from {miss.min():+.2f} to "
        f"{miss.max():+.2f} %, against the covariates that vary; fitted rows behind them."
    )
    why = "A trend here is what the law misses."
    return Section(
        "calibration",
        "Calibration",
        [*parts, picture(plots.residuals(fc, fitted), said, why)],
    )


def inside(fc: Forecast) -> dict[float, int]:
    """Measured losses inside each central band."""
    frame, inside = fc.to_frame(LEVELS), {}
    for level in LEVELS:
        low, high = frame[f"lower_{100 * level:g}"], frame[f"upper_{100 * level:g}"]
        inside[level] = int(frame["loss"].between(low, high).sum())
    return inside
