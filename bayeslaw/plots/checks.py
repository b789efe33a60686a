"""Forecasts against measured losses: calibration, residuals, scores of several laws, backtests."""

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
from bayeslaw.evaluate.scores import row_name
from bayeslaw.inference.posterior import Forecast
from bayeslaw.plots.style import (
    COLOURS,
    CROSS,
    INK,
    LABELS,
    LINES,
    QUIET,
    Look,
    axes,
    first_column,
    from_arviz,
    key,
    legend,
    log_axis,
    look,
    style,
)
from bayeslaw.tables.validation import COVARIATES

NOMINAL = np.linspace(0.05, 0.95, 19)
SCORES = {
    "rmse_log": ("RMSE of log loss", 0.0),
    "mae_rel": ("mean relative error", 0.0),
    "slope": ("calibration slope", 1.0),
    "coverage_90": ("coverage of the 90 % band", 0.9),
    "crps": ("CRPS of log loss", 0.0),
    "winkler_90": ("Winkler score, 90 %", 0.0),
}
"""Scores drawn, with the value of a perfect forecast."""
DIAGONAL: Look = {"color": QUIET, "lw": 1, "ls": "--"}
ENVELOPE: Look = {"color": QUIET, "alpha": 0.18, "lw": 0}
LOOKS: dict[str, Look] = {
    "training": {"color": QUIET, "marker": "o", "alpha": 0.45},
    "held out": {"color": COLOURS[1], "marker": "D", "alpha": 0.9},
}
"""Look of residuals."""


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

    Raises
    ------
    TableError
        If the rows have no measured loss.
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

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    TableError
        If the rows have no measured loss.
    """
    loss, frame = _measured(predicted), predicted.to_frame((0.9,))
    out = frame[~frame["loss"].between(frame["lower_90"], frame["upper_90"])]
    figure, (ax,) = axes(1, width=4.6, height=4.2)
    ends = [min(frame["lower_90"].min(), loss.min()), max(frame["upper_90"].max(), loss.max())]
    ax.plot(ends, ends, **DIAGONAL)
    handles: list[Artist] = [key("measured = median", **DIAGONAL)]
    for i, size in enumerate(sorted(frame["params"].unique())):
        part, dots = frame[frame["params"] == size], look(i, ls="", ms=4.5)
        x, y = part["median"], part["loss"]
        reach = [x - part["lower_90"], part["upper_90"] - x]
        ax.errorbar(x, y, xerr=reach, elinewidth=1, mec="white", mew=0.4, **dots)
        handles.append(key(f"N {count(size)}", **dots))
    if not out.empty:
        ax.plot(out["median"], out["loss"], **CROSS)
        handles.append(key("outside the 90 % band", **CROSS))
    ax.set_xlabel("forecast: median and 90 % band (nats per token)")
    ax.set_ylabel("measured loss (nats per token)")
    legend(figure, handles, columns=4)
    return figure


def pit(predicted: Forecast, *, seed: int = 0) -> Figure:
    """PIT of measured losses: difference between its ECDF and the uniform one.

    Drawn by ArviZ's ``plot_ecdf_pit``, whose p-value is from a test for dependent PIT values. The
    envelope contains 94 % of the curves of as many independent uniform values.

    Parameters
    ----------
    predicted : Forecast
        Of four or more rows with a measured loss.
    seed : int
        Of the simulation of the envelope.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    TableError
        If the rows have no measured loss, or are fewer than four.
    """
    import arviz as az
    from arviz_stats.ecdf_utils import ecdf_pit

    values = pit_values(predicted)
    if len(values) < 4:
        raise TableError(f"{len(values)} measured rows are too few for a PIT plot; give 4 or more.")
    tree = az.from_dict({"pit": {"loss": values}}, sample_dims=["row"])
    figure = from_arviz(
        lambda: az.plot_ecdf_pit(
            tree,
            group="pit",
            sample_dims=["row"],
            visuals={
                "title": False,
                "xlabel": False,
                "ecdf_lines": {"color": COLOURS[0]},
                "suspicious_points": False,
                "p_value_text": {"text": _p_value},
            },
            figure_kwargs={"figsize": (4.6, 3.4), "layout": "constrained"},
        )
    )
    rng = np.random.default_rng(seed)
    uniform = np.linspace(0, 1, len(values))
    at, _, low, high = ecdf_pit(uniform, 0.94, n_simulations=2000, rng=rng)
    (ax,) = figure.axes
    ax.fill_between(at, low - at, high - at, step="mid", zorder=0, **ENVELOPE)
    drawn = [line.get_ydata() for line in ax.lines] + [high - at, low - at]
    reach = 1.25 * max(float(np.max(np.abs(np.asarray(y, float)))) for y in drawn)
    for text in list(ax.texts):  # ArviZ puts the text where it may cover the curve
        ax.set_title(f"{text.get_text()}; grey: 94 % envelope", loc="left", fontsize=9)
        text.remove()
    ax.set_xlabel("probability integral transform (PIT) of the measured loss")
    ax.set(ylabel="ECDF − uniform", ylim=(-reach, reach))
    return figure


@style()
def coverage(predicted: Forecast) -> Figure:
    """Coverage: fraction of measured losses inside central bands, against their nominal level.

    The grey region has 90 % of the coverage of as many independent rows if the bands are exact.

    Parameters
    ----------
    predicted : Forecast
        Of rows with a measured loss.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    TableError
        If the rows have no measured loss.
    """
    distance = 2 * np.abs(pit_values(predicted) - 0.5)
    covered = [(distance <= level).mean() for level in NOMINAL]
    low, high = np.asarray(binom.interval(0.9, len(distance), NOMINAL)) / len(distance)
    figure, (ax,) = axes(1, width=4.6, height=3.2)
    ax.fill_between(100 * NOMINAL, 100 * low, 100 * high, **ENVELOPE)
    ax.plot([0, 100], [0, 100], **DIAGONAL)
    ax.plot(100 * NOMINAL, 100 * np.asarray(covered), color=COLOURS[0], marker="o", ms=4)
    ax.set(xlabel="nominal level of the band (%)", ylabel=f"coverage (% of {len(distance)} losses)")
    ax.set(xlim=(0, 100), ylim=(-3, 103))
    expected = Patch(label="90 % of independent samples", **ENVELOPE)
    legend(figure, [key("exact bands", **DIAGONAL), expected])
    return figure


@style()
def residuals(predicted: Forecast, fitted: Forecast | None = None) -> Figure:
    """Residuals in percent of the median, against each of N, D, PTPP and r that varies.

    Parameters
    ----------
    predicted : Forecast
        Of held-out rows with a measured loss.
    fitted : Forecast, optional
        Of the training rows; drawn behind the held-out ones.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    TableError
        If the rows have no measured loss, or if no covariate varies.
    """
    parts = {} if fitted is None else {"training": fitted}
    parts["held out"] = predicted
    frames = {
        n: f.frame.assign(residual=100 * (_measured(f) / f.median - 1)) for n, f in parts.items()
    }
    both = pd.concat(frames.values())
    across = [c for c in COVARIATES if c in both and both[c].nunique() > 1]
    if not across:
        raise TableError("no covariate varies in these rows; give rows of several sizes or tokens.")
    figure, panels = axes(len(across), columns=2, width=3.6, height=2.3, sharey=True)
    for ax, column in zip(panels, across, strict=True):
        ax.axhline(0, color=INK, lw=0.8)
        for name, frame in frames.items():
            ax.plot(frame[column], frame["residual"], ls="", ms=4, label=name, **LOOKS[name])
        if column == "replay":
            ax.set_xlabel(LABELS[column])
        else:
            log_axis(ax, both[column], column)
        if first_column(ax):
            ax.set_ylabel("residual (% of the median)")
    legend(figure, panels[0].get_legend_handles_labels()[0])
    return figure


@style()
def compare(scores: pd.DataFrame, metrics: Sequence[str] | None = None) -> Figure:
    """Scores of several laws; a dashed line marks the score of a perfect forecast.

    Parameters
    ----------
    scores : DataFrame
        From `bayeslaw.compare`: one row per law, or per domain and law.
    metrics : sequence of str, optional
        Columns to draw; by default those of `SCORES` that have values.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    TableError
        If none of the metrics has a value.
    """
    wanted = SCORES if metrics is None else metrics
    drawn = [m for m in wanted if m in scores and scores[m].notna().any()]
    if not drawn:
        raise TableError(f"no score to draw among {', '.join(wanted)}.")
    laws, place = [row_name(row) for row in scores.index], np.arange(len(scores))[::-1]
    figure, panels = axes(len(drawn), columns=3, width=2.9, height=0.7 + 0.32 * len(laws))
    for ax, metric in zip(panels, drawn, strict=True):
        label, ideal = SCORES.get(metric, (metric, 0.0))
        ax.axvline(ideal, color=INK, lw=0.8, ls=LINES[1])
        ax.plot(scores[metric], place, ls="", marker="o", ms=6, color=COLOURS[0])
        ax.set_yticks(place, laws if first_column(ax) else [])
        ax.set_ylim(-0.6, len(laws) - 0.4)
        ax.margins(x=0.12)
        ax.set_xlabel(label)
        ax.locator_params(axis="x", nbins=4)
    return figure


@style()
def backtest(found: Backtest) -> Figure:
    """Errors of later rows against how far they lay beyond the cut, one panel per model.

    The error is that of the median forecast in percent. Lines are the 90 % bands of the rows, and
    measured losses outside them are crossed.

    Parameters
    ----------
    found : Backtest

    Returns
    -------
    matplotlib.figure.Figure
    """
    figure, shown = axes(len(found.models), columns=3, width=3.4, height=2.6, sharey=True)
    for ax, model in zip(shown, found.models, strict=True):
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
    shown[0].set_ylabel("measured over forecast (%)")
    return figure


def _p_value(p: float) -> str:
    return f"test of uniformity: p = {p:.2g}" if p >= 0.001 else "test of uniformity: p < 0.001"


def _measured(predicted: Forecast) -> Floats:
    if "loss" not in predicted.frame:
        raise TableError("these rows have no column 'loss'; the figure needs measured losses.")
    return predicted.frame["loss"].to_numpy(float)
