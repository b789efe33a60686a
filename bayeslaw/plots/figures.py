"""Figures of forecasts against measured losses."""

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
    first_column,
    key,
    legend,
    log_axis,
    look,
    style,
)
from bayeslaw.tables.covariates import TABLE
from bayeslaw.tables.validation import COVARIATES

NOMINAL = np.linspace(0.05, 0.95, 19)
DIAGONAL: Look = {"color": QUIET, "lw": 1, "ls": "--"}
ENVELOPE: Look = {"color": QUIET, "alpha": 0.18, "lw": 0}


def _measured(predicted: Forecast) -> Floats:
    if "loss" not in predicted.frame:
        raise TableError("these rows have no column 'loss'; the figure needs measured losses.")
    return predicted.frame["loss"].to_numpy(float)


def pit_values(predicted: Forecast) -> Floats:
    """Return the probability integral transform (PIT) of measured losses.

    That is the forecast probability of a loss below the measured one. PIT values are uniform if
    the forecast is calibrated.

    Parameters
    ----------
    predicted : Forecast
        Of rows with a measured loss.

    Returns
    -------
    array, shape (rows,)
    """
    loss, draws = _measured(predicted), predicted.samples
    below = (draws < loss).sum(0) + 0.5 * (draws == loss).sum(0)
    return np.asarray((below + 0.5) / (len(draws) + 1))


@style()
def observed(predicted: Forecast) -> Figure:
    """Measured loss against posterior predictive median, with 90 % bands and a colour per size.

    Parameters
    ----------
    predicted : Forecast
        Of rows with a measured loss.
    """
    loss, frame = _measured(predicted), predicted.to_frame((0.9,))
    out = frame[~frame["inside_90"]]
    figure, (ax,) = axes(1, width=4.6, height=4.2)
    ends = [min(frame["lower_90"].min(), loss.min()), max(frame["upper_90"].max(), loss.max())]
    ax.plot(ends, ends, **DIAGONAL)
    handles: list[Artist] = [key("measured = median", **DIAGONAL)]
    for i, (size, rows) in enumerate(frame.groupby("params")):
        median, dots = rows["median"], look(i, ls="", ms=4.5)
        band = [median - rows["lower_90"], rows["upper_90"] - median]
        ax.errorbar(median, rows["loss"], xerr=band, elinewidth=1, mec="white", mew=0.4, **dots)
        handles.append(key(f"N {count(float(str(size)))}", **dots))
    if not out.empty:
        ax.plot(out["median"], out["loss"], **CROSS)
        handles.append(key("outside the 90 % band", **CROSS))
    ax.set_xlabel("forecast: median and 90 % band (nats per token)")
    ax.set_ylabel("measured loss (nats per token)")
    legend(figure, handles, columns=4)
    return figure


@style()
def coverage(predicted: Forecast) -> Figure:
    """Coverage: fraction of measured losses inside central bands, against their nominal level.

    The grey region has 90 % of the coverage of as many independent rows if the bands are exact.

    Parameters
    ----------
    predicted : Forecast
        Of rows with a measured loss.
    """
    distance = 2 * np.abs(pit_values(predicted) - 0.5)
    covered = np.array([(distance <= level).mean() for level in NOMINAL])
    low, high = np.asarray(binom.interval(0.9, len(distance), NOMINAL)) / len(distance)
    figure, (ax,) = axes(1, width=4.6, height=3.2)
    ax.fill_between(100 * NOMINAL, 100 * low, 100 * high, **ENVELOPE)
    ax.plot([0, 100], [0, 100], **DIAGONAL)
    ax.plot(100 * NOMINAL, 100 * covered, color=COLOURS[0], marker="o", ms=4)
    ax.set(xlabel="nominal level of the band (%)", ylabel=f"coverage (% of {len(distance)} losses)")
    ax.set(xlim=(0, 100), ylim=(-3, 103))
    expected = Patch(label="90 % of independent samples", **ENVELOPE)
    legend(figure, [key("exact bands", **DIAGONAL), expected])
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
    dots: list[Look] = [
        {"label": "training", "color": QUIET, "marker": "o", "alpha": 0.45},
        {"label": "held out", "color": COLOURS[1], "marker": "D", "alpha": 0.9},
    ]
    parts = [predicted] if fitted is None else [fitted, predicted]
    frames = [f.frame.assign(residual=100 * (_measured(f) / f.median - 1)) for f in parts]
    both = pd.concat(frames)
    own = {c: row for c, row in predicted.about.items() if c not in COVARIATES}
    across = [c for c in (*COVARIATES, *own) if c in both and both[c].nunique() > 1]
    if not across:
        raise TableError("no covariate varies in these rows; give rows of several sizes or tokens.")
    figure, panels = axes(len(across), columns=2, width=3.6, height=2.3, sharey=True)
    for ax, column in zip(panels, across, strict=True):
        ax.axhline(0, color=INK, lw=0.8)
        for frame, marks in zip(frames, dots[-len(frames) :], strict=True):
            ax.plot(frame[column], frame["residual"], ls="", ms=4, **marks)
        if not (TABLE | own)[column].logged:  # may be 0
            ax.set_xlabel(axis_label(column, own))
        else:
            log_axis(ax, both[column], column)
            ax.set_xlabel(axis_label(column, own))
        if first_column(ax):
            ax.set_ylabel("residual (% of the median)")
    legend(figure, panels[0].get_legend_handles_labels()[0])
    return figure


@style()
def backtest(found: Backtest) -> Figure:
    """Errors of later rows against how far they lay beyond the cut, one panel per model.

    The error is that of the median forecast in percent. Lines are the 90 % bands of the rows, and
    measured losses outside them are crossed.

    Parameters
    ----------
    found : Backtest
    """
    figure, panels = axes(len(found.models), columns=3, width=3.4, height=2.6, sharey=True)
    for ax, model in zip(panels, found.models, strict=True):
        rows = found.rows[found.rows["model"] == model]
        inside = rows["inside_90"].to_numpy(bool)
        far, error = rows["decades"].to_numpy(), -100 * rows["error"].to_numpy()
        low, high = (100 * np.log(rows[c] / rows["median"]) for c in ("lower_90", "upper_90"))
        ax.vlines(far, low, high, color=COLOURS[0], alpha=0.25, lw=2)
        ax.plot(far[inside], error[inside], "o", color=INK, ms=3)
        ax.plot(far[~inside], error[~inside], "x", color=COLOURS[1], ms=5)
        ax.axhline(0, color=INK, lw=0.8)
        held = f"{inside.sum()} of {len(inside)} in the 90 % band"
        ax.set(title=f"{model}: {held}", xlabel=f"decades of {found.along} beyond the cut")
        ax.set_xlim(0, 1.05 * np.max(far))
    panels[0].set_ylabel("measured over forecast (%)")
    return figure
