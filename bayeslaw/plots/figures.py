"""Figures of forecasts against measured losses."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from scipy.stats import binom

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import TableError
from bayeslaw.common.formatting import count
from bayeslaw.evaluate._backtest import Backtest
from bayeslaw.inference.forecast import Forecast
from bayeslaw.plots.style import (
    COLOURS,
    CROSS,
    INK,
    QUIET,
    Look,
    axes,
    axis_label,
    key,
    legend,
    log_axis,
    look,
    style,
)
from bayeslaw.tables.covariates import FLOPS, TABLE
from bayeslaw.tables.validation import COVARIATES

NOMINAL = np.linspace(0.05, 0.95, 19)
DIAGONAL: Look = {"color": QUIET, "lw": 1, "ls": "--"}
ENVELOPE: Look = {"color": QUIET, "alpha": 0.18, "lw": 0}
TRAINING: Look = {"label": "training", "color": QUIET, "marker": "o", "alpha": 0.45}
HELD_OUT: Look = {
    "label": "held out",
    "color": COLOURS[1],
    "marker": "D",
    "alpha": 0.9,
}


def _measured(predicted: Forecast) -> Floats:
    if "loss" not in predicted.frame:
        raise TableError(
            "these rows have no column 'loss'; the figure needs measured losses."
        )
    return predicted.frame["loss"].to_numpy(float)


def pit_values(predicted: Forecast) -> Floats:
    """Return the probability integral transform (PIT) of measured losses, shape (rows,).

    That is the forecast probability of a loss below the measured one. PIT values are uniform if
    the forecast is calibrated.
    """
    predicted = predicted.held_out
    loss = _measured(predicted)
    draws = predicted.samples
    below = (draws < loss).sum(0)
    equal = (draws == loss).sum(0)
    ranks = below + 0.5 * equal
    pit = (ranks + 0.5) / (len(draws) + 1)
    return np.asarray(pit)


@style()
def observed(predicted: Forecast) -> Figure:
    """Measured loss against posterior predictive median, with 90 % bands and a colour per size."""
    predicted = predicted.held_out
    loss = _measured(predicted)
    frame = predicted.to_frame((0.9,))
    figure, (ax,) = axes(1, width=4.6, height=4.2)
    least_band = frame["lower_90"].min()
    most_band = frame["upper_90"].max()
    ends = [min(least_band, loss.min()), max(most_band, loss.max())]
    ax.plot(ends, ends, **DIAGONAL)
    handles: list[Artist] = [key("measured = median", **DIAGONAL)]
    column = "params" if "params" in frame else FLOPS
    letter = "N" if "params" in frame else "C"
    for i, (size, rows) in enumerate(frame.groupby(column)):
        median = rows["median"]
        dots = look(i, ls="", ms=4.5)
        below = median - rows["lower_90"]
        above = rows["upper_90"] - median
        edges: Look = {"elinewidth": 1, "mec": "white", "mew": 0.4}
        error = [below, above]
        ax.errorbar(median, rows["loss"], xerr=error, **edges, **dots)
        amount = float(str(size))
        handles.append(key(f"{letter} {count(amount)}", **dots))
    outside = frame[~frame["inside_90"]]
    if not outside.empty:
        ax.plot(outside["median"], outside["loss"], **CROSS)
        handles.append(key("outside the 90 % band", **CROSS))
    ax.set_xlabel("forecast: median and 90 % band (nats per token)")
    ax.set_ylabel("measured loss (nats per token)")
    legend(figure, handles, columns=4)
    return figure


@style()
def coverage(predicted: Forecast) -> Figure:
    """Coverage: fraction of measured losses inside central bands, against their nominal level.

    The grey region has 90 % of the coverage of as many independent rows if the bands are exact.
    """
    distance = 2 * np.abs(pit_values(predicted) - 0.5)
    rows = len(distance)
    shares = [(distance <= level).mean() for level in NOMINAL]
    covered = np.array(shares)
    counts = np.asarray(binom.interval(0.9, rows, NOMINAL))
    low, high = 100 * (counts / rows)
    percents = 100 * NOMINAL
    figure, (ax,) = axes(1, width=4.6, height=3.2)
    ax.fill_between(percents, low, high, **ENVELOPE)
    ax.plot([0, 100], [0, 100], **DIAGONAL)
    dots: Look = {"color": COLOURS[0], "marker": "o", "ms": 4}
    ax.plot(percents, 100 * covered, **dots)
    ax.set_xlabel("nominal level of the band (%)")
    ax.set_ylabel(f"coverage (% of {rows} losses)")
    ax.set_xlim(0, 100)
    ax.set_ylim(-3, 103)
    exact = key("exact bands", **DIAGONAL)
    expected = Patch(label="90 % of independent samples", **ENVELOPE)
    legend(figure, [exact, expected])
    return figure


@style()
def residuals(predicted: Forecast, fitted: Forecast | None = None) -> Figure:
    """Residuals in percent of the median, against each covariate that varies.

    Parameters
    ----------
    predicted : Forecast
        Of held-out rows with a measured loss.
    fitted : Forecast, optional
        Of the training rows; drawn behind the held-out ones.
    """
    predicted = predicted.held_out
    drawn: list[tuple[pd.DataFrame, Look]] = []
    if fitted is not None:
        drawn.append((_with_residuals(fitted), TRAINING))
    drawn.append((_with_residuals(predicted), HELD_OUT))
    rows = pd.concat([frame for frame, _ in drawn])
    declared = {}
    for column, covariate in predicted.about.items():
        if column not in COVARIATES:
            declared[column] = covariate
    columns = [*COVARIATES, *declared]
    across = _varying(rows, columns)
    if not across:
        raise TableError(
            "no covariate varies in these rows; give rows of several sizes or tokens."
        )
    figure, panels = axes(len(across), columns=2, width=3.6, height=2.3, sharey=True)
    for ax, column in zip(panels, across, strict=True):
        ax.axhline(0, color=INK, lw=0.8)
        for frame, marks in drawn:
            # Rows to forecast may have columns that the training rows lack.
            if column in frame:
                ax.plot(frame[column], frame["residual"], ls="", ms=4, **marks)
        covariate = declared.get(column) or TABLE[column]
        if covariate.logged:  # the values of other covariates may be 0
            log_axis(ax, rows[column].dropna(), column)
        ax.set_xlabel(axis_label(column, declared))
    for ax in panels[::2]:
        ax.set_ylabel("residual (% of the median)")
    handles, _ = panels[0].get_legend_handles_labels()
    legend(figure, handles)
    return figure


def _varying(rows: pd.DataFrame, columns: Sequence[str]) -> list[str]:
    """The columns that have several values."""
    varying = []
    for column in columns:
        if column in rows and rows[column].nunique() > 1:
            varying.append(column)
    return varying


def _with_residuals(predicted: Forecast) -> pd.DataFrame:
    """The rows of a forecast, with residuals in percent of the median."""
    ratio = _measured(predicted) / predicted.median
    residual = 100 * (ratio - 1)
    return predicted.frame.assign(residual=residual)


@style()
def backtest(result: Backtest) -> Figure:
    """Errors of later rows against how far they lay beyond the cut, one panel per model.

    The error is that of the median forecast in percent. Lines are the 90 % bands of the rows, and
    measured losses outside them are crossed.
    """
    figure, panels = axes(
        len(result.models), columns=3, width=3.4, height=2.6, sharey=True
    )
    for ax, model in zip(panels, result.models, strict=True):
        rows = result.rows[result.rows["model"] == model]
        inside = rows["inside_90"].to_numpy(bool)
        far = rows["decades"].to_numpy()
        error = -100 * rows["error"].to_numpy()
        median = rows["median"]
        low = 100 * np.log(rows["lower_90"] / median)
        high = 100 * np.log(rows["upper_90"] / median)
        outside = ~inside
        bands: Look = {"color": COLOURS[0], "alpha": 0.25, "lw": 2}
        ax.vlines(far, low, high, **bands)
        dots: Look = {"color": INK, "ms": 3}
        ax.plot(far[inside], error[inside], "o", **dots)
        crosses: Look = {"color": COLOURS[1], "ms": 5}
        ax.plot(far[outside], error[outside], "x", **crosses)
        ax.axhline(0, color=INK, lw=0.8)
        count_inside = inside.sum()
        held = f"{count_inside} of {len(inside)} in the 90 % band"
        ax.set_title(f"{model}: {held}")
        ax.set_xlabel(f"decades of {result.along} beyond the cut")
        ax.set_xlim(0, 1.05 * np.max(far))
    panels[0].set_ylabel("measured over forecast (%)")
    return figure
