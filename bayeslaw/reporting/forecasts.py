"""Sections on a forecast: curves and bands, scores, calibration."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.stats import binom

from bayeslaw import plots
from bayeslaw.common.formatting import count, digits
from bayeslaw.evaluate.forecast import Forecast
from bayeslaw.evaluate.scores import BANDS, POINT
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.inference.pools import Pool
from bayeslaw.inference.posterior import Posterior
from bayeslaw.plots.style import SHORT
from bayeslaw.reporting.pages import Part, Section, Table, picture
from bayeslaw.tables.validation import COVARIATES

LEVELS = (0.5, 0.8, 0.9)
POSITION = (
    "An interpolation lies in the convex hull of the training rows, in the logarithms of the law's "
    "covariates; an extrapolation lies outside; a projection has another value of a covariate that "
    "was never varied. e-folds: distance from the hull. decades: log10 of the FLOPs (6 N D) over "
    "those of its nearest point."
)
MEANINGS = {
    "huber_log": "mean Huber loss of log residuals, threshold .02",
    "rmse_log": "root mean square of log residuals; .01 is about 1 %",
    "mae_rel": "mean of |forecast − measured| / measured",
    "mape_clip": "the same with small losses clipped; equal here unless a loss is below 1e-8",
    "intercept, slope": "of log measured on log forecast; 0 and 1 are ideal",
    "coverage_50, _80, _90": "fraction of measured losses inside the band; the ideal is its level",
    "width_90": "mean width of the 90 % band, in log loss",
    "crps, winkler_90": "proper scores of the whole forecast and of the 90 % band; lower is better",
}


def forecast(
    fit: Posterior | Pool, fc: Forecast, *, seed: int = 0, allow_unconverged: bool = False
) -> Section:
    """Show curves and bands of the rows to forecast, and of the training rows."""
    frame, median = fc.frame, fc.median
    alt = f"Posterior predictive loss against tokens, {_axes(fit, frame)}. The median runs from "
    alt += f"{median.max():.3f} to {median.min():.3f} nats per token."
    if "loss" in frame:
        within = inside(fc)
        alt += f" {within[0.9]} of {len(frame)} held-out losses lie in the 90 % band."
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
                plots.forecast(fit, frame, seed=seed, allow_unconverged=allow_unconverged),
                alt,
                "Posterior predictive median with 50 and 90 % bands of a new run, by "
                "model size. Filled markers are measured losses; a cross marks a loss outside its "
                "90 % band. Panels are grey where the forecast is an extrapolation, and hatched "
                "where it is a projection. Each panel has its own loss axis.",
            ),
            _bands(fc),
            POSITION,
            picture(
                plots.in_sample(fit, seed=seed, allow_unconverged=allow_unconverged),
                grid,
                "The same for the training rows.",
            ),
        ],
    )


def _axes(fit: Posterior | Pool, frame: pd.DataFrame) -> str:
    """Describe the panels and lines of a figure."""
    words = []
    for column in ("params", "replay", "ptpp"):
        if column in fit.columns:
            values = [count(v) for v in sorted(frame[column].unique())]
            many = len(values) > 6
            words.append(f"{SHORT[column]} {values[0]} to {values[-1]}" if many else
                         f"{SHORT[column]} {', '.join(values)}")  # fmt: skip
    return "; ".join(words) or "one panel"


def _bands(fc: Forecast) -> Table:
    """Tabulate median and bands of each row, its measured loss, and its position."""
    frame = fc.to_frame((0.5, 0.9))
    used = [c for c in COVARIATES if c in frame]
    shown = [c for c in used if c in fc.columns or frame[c].nunique() > 1]
    repeated = bool(frame.duplicated(shown).any())
    labels = [c for c in ("run", "base") if c in frame][:1] if repeated else []
    measured, flops = "loss" in frame, bool(frame["decades"].notna().any())
    head = [
        *labels,
        *(SHORT[c] for c in shown),
        *["measured"] * measured,
        "median",
        "50 % band",
        "90 % band",
        "position",
        "e-folds",
        *["decades"] * flops,
    ]
    rows = []
    for _, row in frame.iterrows():
        cells = [*(str(row[c]) for c in labels), *(count(row[c]) for c in shown)]
        cells += [f"{row['loss']:.4f}"] if measured else []
        cells.append(f"{row['median']:.4f}")
        for level in ("50", "90"):
            low, high = row[f"lower_{level}"], row[f"upper_{level}"]
            where = ("  in" if low <= row["loss"] <= high else " out") if measured else ""
            cells.append(f"{low:.4f}–{high:.4f}{where}")
        cells += [row["position"], f"{row['efolds']:.2f}"]
        rows.append([*cells, *[f"{row['decades']:.2f}"] * flops])
    tall = len(rows) > 20
    caption = f"All {len(rows)} rows, nats per token" + ("; the table scrolls" if tall else "")
    return Table(caption, head, rows, tall=tall)


def scores(scores: pd.DataFrame | None, point: PointFit) -> Section | None:
    """Show the paper's scores and those of the bands; None without measured losses."""
    if scores is None:
        return None

    def table(caption: str, columns: Sequence[str], names: Sequence[str]) -> Table:
        rows = [[name, *(digits(float(scores[name][c])) for c in columns)] for name in names]
        return Table(caption, ["", *columns], rows)

    agree = f"{100 * point.agreeing:.0f} % of its polished starts agree."
    bounds = ", ".join(f"{n} = {v:g}" for n, v in point.at_bounds.items())
    return Section(
        "scores",
        "Scores on the held-out rows",
        [
            "The posterior is scored by its median and its bands, the paper's Huber fit of the "
            f"same law by its prediction; {agree}" + (f" On a bound: {bounds}." if bounds else ""),
            table("The paper's six columns", POINT, [str(name) for name in scores]),
            table("Bands, on log loss", BANDS, ["posterior"]),
            [f"{name}: {meaning}." for name, meaning in MEANINGS.items()],
        ],
    )


def calibration(fc: Forecast, fitted: Forecast, seed: int) -> Section:
    """Compare the bands with the measured losses of the held-out rows."""
    n, within = len(fc.frame), inside(fc)
    pit = plots.pit_values(fc)
    residual = 100 * (fc.frame["loss"].to_numpy() / fc.median - 1)
    rows = []
    for level in LEVELS:
        low, high = binom.interval(0.9, n, level)
        rows.append([f"{100 * level:g} %", f"{within[level]} of {n}", f"{low:.0f} to {high:.0f}"])
    caption = f"Measured losses inside each band, and 90 % interval for {n} independent rows"
    parts: list[Part] = [
        Table(caption, ["band", "inside", "expected"], rows),
        "Forecast errors are correlated between rows, so the counts vary more than expected of "
        "independent rows.",
        picture(
            plots.observed(fc),
            f"Measured against forecast loss for {n} rows; measured less forecast runs from "
            f"{residual.min():+.2f} to {residual.max():+.2f} %.",
            "On the dashed line the measured loss equals the posterior predictive median.",
        ),
        picture(
            plots.coverage(fc),
            f"Coverage by nominal level: {within[0.5]} of {n} in the 50 % band, {within[0.8]} in "
            f"the 80 % band, {within[0.9]} in the 90 % band.",
            "Above the dashed line bands are too wide, below it too narrow. The grey region is the "
            "90 % interval of as many independent rows.",
        ),
    ]
    if n >= 4:
        alt = f"PIT values of {n} rows: {(pit < 0.5).sum()} below one half, mean {pit.mean():.2f}."
        caption = "Above zero, measured losses are lower than forecast; below zero, higher."
        parts.append(picture(plots.pit(fc, seed=seed), alt, caption))
    alt = (
        f"Residuals of held-out rows: mean {residual.mean():+.2f} %, from {residual.min():+.2f} to "
        f"{residual.max():+.2f} %, against the covariates that vary; training rows behind them."
    )
    caption = "A trend indicates a systematic error of the law."
    return Section(
        "calibration",
        "Calibration",
        [*parts, picture(plots.residuals(fc, fitted), alt, caption)],
    )


def inside(fc: Forecast) -> dict[float, int]:
    """Count the measured losses inside each central band."""
    frame, counts = fc.to_frame(LEVELS), {}
    for level in LEVELS:
        low, high = frame[f"lower_{100 * level:g}"], frame[f"upper_{100 * level:g}"]
        counts[level] = int(frame["loss"].between(low, high).sum())
    return counts
