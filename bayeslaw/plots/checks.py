"""Forecasts against what was measured: misses, calibration, residuals, laws side by side."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.stats import binom

from bayeslaw.common.errors import TableError
from bayeslaw.common.formatting import count
from bayeslaw.evaluate.forecast import Forecast
from bayeslaw.plots.style import (
    COLOURS,
    INK,
    LABELS,
    LINES,
    MARKERS,
    QUIET,
    axes,
    from_arviz,
    legend,
    log_axis,
    p_value,
    style,
)
from bayeslaw.tables.validation import COVARIATES

type Floats = npt.NDArray[np.float64]

NOMINAL = np.linspace(0.05, 0.95, 19)
SCORES = {
    "rmse_log": ("RMSE of log loss", 0.0),
    "mae_rel": ("mean relative error", 0.0),
    "slope": ("calibration slope", 1.0),
    "coverage_90": ("share in the 90 % band", 0.9),
    "crps": ("CRPS of log loss", 0.0),
    "winkler_90": ("Winkler score, 90 %", 0.0),
}
"""Scores drawn, with the value of a perfect forecast."""


def pit_values(predicted: Forecast) -> Floats:
    """Probability of a loss below the measured one, shape (rows,); uniform if bands are exact.

    Argument and error as for `observed`.
    """
    loss, draws = _measured(predicted), predicted.samples
    below = (draws < loss).sum(0) + 0.5 * (draws == loss).sum(0)
    return np.asarray((below + 0.5) / (len(draws) + 1))


def observed(predicted: Forecast) -> Figure:
    """Measured loss against its forecast, nats per token, with 90 % bands; a colour per size.

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
    sizes = sorted(frame["params"].unique())
    inside = (frame["lower_90"] <= loss) & (loss <= frame["upper_90"])
    with style():
        figure, (ax,) = axes(1, width=4.6, height=4.2)
        ends = [min(frame["lower_90"].min(), loss.min()), max(frame["upper_90"].max(), loss.max())]
        ax.plot(ends, ends, color=QUIET, lw=1, ls="--")
        handles: list[Any] = [Line2D([], [], color=QUIET, lw=1, ls="--", label="equal")]
        for i, size in enumerate(sizes):
            part = frame[frame["params"] == size]
            look: Any = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}
            look |= {"ls": "", "ms": 4.5}
            x, y = part["median"], part["loss"]
            reach = [x - part["lower_90"], part["upper_90"] - x]
            ax.errorbar(x, y, xerr=reach, elinewidth=1, mec="white", mew=0.4, **look)
            handles.append(Line2D([], [], label=f"N {count(size)}", **look))
        if not inside.all():
            out = frame[~inside]
            (cross,) = ax.plot(out["median"], out["loss"], "x", color=INK, ms=9, mew=1)
            cross.set_label("outside 90 %")
            handles.append(cross)
        ax.set_xlabel("forecast loss, median and 90 % band (nats per token)")
        ax.set_ylabel("measured loss (nats per token)")
        legend(figure, handles, columns=4)
    return figure


def pit(predicted: Forecast, *, seed: int = 0) -> Figure:
    """PIT of measured losses: difference of its ECDF from the uniform one (ArviZ `plot_ecdf_pit`).

    The p-value is that of ArviZ's test for dependent PIT values. The envelope holds 94 % of the
    curves of as many independent uniform values; `seed` is that of its simulation. Otherwise as
    for `observed`; there must be four rows or more.
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
                "p_value_text": {"text": p_value},
            },
            figure_kwargs={"figsize": (4.6, 3.4), "layout": "constrained"},
        )
    )
    rng = np.random.default_rng(seed)
    uniform = np.linspace(0, 1, len(values))
    at, _, low, high = ecdf_pit(uniform, 0.94, n_simulations=2000, rng=rng)
    (ax,) = figure.axes
    ax.fill_between(at, low - at, high - at, step="mid", color=QUIET, alpha=0.18, lw=0, zorder=0)
    drawn = [line.get_ydata() for line in ax.lines] + [high - at, low - at]
    reach = 1.25 * max(float(np.max(np.abs(np.asarray(y, float)))) for y in drawn)
    ax.set_ylim(-reach, reach)
    for text in list(ax.texts):  # ArviZ writes it where the curve may be
        ax.set_title(text.get_text(), loc="left", fontsize=9)
        text.remove()
    ax.set_xlabel("probability of a lower loss (PIT)")
    ax.set_ylabel("ECDF − uniform")
    return figure


def coverage(predicted: Forecast) -> Figure:
    """Share of measured losses inside central bands, against the bands' nominal level.

    The grey region holds 90 % of what as many independent rows would give if bands were exact.
    Argument, result and error as for `observed`.
    """
    distance = 2 * np.abs(pit_values(predicted) - 0.5)
    held = [(distance <= level).mean() for level in NOMINAL]
    low, high = (
        np.asarray(end) / len(distance) for end in binom.interval(0.9, len(distance), NOMINAL)
    )
    with style():
        figure, (ax,) = axes(1, width=4.6, height=3.2)
        ax.fill_between(100 * NOMINAL, 100 * low, 100 * high, color=QUIET, alpha=0.18, lw=0)
        ax.plot([0, 100], [0, 100], color=QUIET, lw=1, ls="--")
        ax.plot(100 * NOMINAL, 100 * np.asarray(held), color=COLOURS[0], marker="o", ms=4)
        ax.set(xlim=(0, 100), ylim=(-3, 103))
        ax.set_xlabel("nominal level of the band (%)")
        ax.set_ylabel(f"measured inside (% of {len(distance)})")
    return figure


def residuals(predicted: Forecast, fitted: Forecast | None = None) -> Figure:
    """Measured over forecast loss, less one (%), against N, D, PTPP and r, where they vary.

    `predicted` is of held-out rows; `fitted`, of the training rows, is drawn behind them. Otherwise
    as for `observed`; a covariate must vary.
    """
    parts = {"held out": predicted} if fitted is None else {"fitted": fitted, "held out": predicted}
    frames = {n: f.frame.assign(miss=100 * (_measured(f) / f.median - 1)) for n, f in parts.items()}
    both = pd.concat(frames.values())
    across = [c for c in COVARIATES if c in both and both[c].nunique() > 1]
    if not across:
        raise TableError("no covariate varies in these rows; there is nothing to draw against.")
    looks = {"fitted": (QUIET, "o", 0.45), "held out": (COLOURS[1], "D", 0.9)}
    with style():
        figure, panels = axes(len(across), columns=2, width=3.6, height=2.3, sharey=True)
        for ax, column in zip(panels, across, strict=True):
            ax.axhline(0, color=INK, lw=0.8)
            for name, frame in frames.items():
                colour, marker, alpha = looks[name]
                x, y = frame[column], frame["miss"]
                ax.plot(x, y, ls="", marker=marker, ms=4, color=colour, alpha=alpha, label=name)
            if column == "replay":
                ax.set_xlabel(LABELS[column])
            else:
                log_axis(ax, both[column], column)
            if ax.get_subplotspec().is_first_col():  # type: ignore[union-attr]
                ax.set_ylabel("measured / forecast − 1 (%)")
        legend(figure, panels[0].get_legend_handles_labels()[0][-len(frames) :])
    return figure


def compare(scores: pd.DataFrame, metrics: Sequence[str] | None = None) -> Figure:
    """Laws side by side on their scores; a dashed line where a perfect forecast would be.

    Parameters
    ----------
    scores : DataFrame
        From `bayeslaw.compare`: one row per law.
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
    laws, place = [str(law) for law in scores.index], np.arange(len(scores))[::-1]
    with style():
        figure, panels = axes(len(drawn), columns=3, width=2.9, height=0.7 + 0.32 * len(laws))
        for ax, metric in zip(panels, drawn, strict=True):
            label, ideal = SCORES.get(metric, (metric, 0.0))
            ax.axvline(ideal, color=INK, lw=0.8, ls=LINES[1])
            ax.plot(scores[metric], place, ls="", marker="o", ms=6, color=COLOURS[0])
            ax.set_yticks(place, laws if ax.get_subplotspec().is_first_col() else [])  # type: ignore[union-attr]
            ax.set_ylim(-0.6, len(laws) - 0.4)
            ax.margins(x=0.12)
            ax.set_xlabel(label)
            ax.locator_params(axis="x", nbins=4)
    return figure


def _measured(predicted: Forecast) -> Floats:
    if "loss" not in predicted.frame:
        raise TableError("these rows have no column 'loss'; the figure needs measured losses.")
    return predicted.frame["loss"].to_numpy(float)
