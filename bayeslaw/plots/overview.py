"""Fitted runs, the law, and forecasts with their bands and measured losses, in one figure."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogFormatterSciNotation,
    LogLocator,
    NullLocator,
)

from bayeslaw.common.arrays import Floats
from bayeslaw.common.formatting import count
from bayeslaw.inference.pools import Pool
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.adjustments import ANNEALED, UNIQUE
from bayeslaw.plots.style import INK, Look, axes, key, legend, log_axis, style
from bayeslaw.tables.table import LossTable
from bayeslaw.tables.validation import canonical

POINTS = 15  # of a curve
MOST_CURVES = 24  # of fitted runs; of more, none are drawn
BEYOND: Look = {"fc": "#eeeeea", "lw": 0, "zorder": 0}
MEASURED: Look = {"ls": "", "marker": "D", "ms": 5, "mec": INK, "mew": 0.8}
MISSED: Look = {"ls": "", "marker": "x", "ms": 10, "mew": 1.2, "color": INK}


@style()
def overview(
    fit: Posterior | Pool,
    rows: LossTable | pd.DataFrame,
    *,
    seed: int = 0,
    allow_unconverged: bool = False,
) -> Figure:
    """Loss against compute and against tokens: fitted runs, the law, bands and measured losses.

    Dots are fitted runs, coloured by model size; lines are the law's median through them. Forecast
    runs have their median, 50 and 90 % bands, and a diamond where the loss was measured, crossed
    if it lies outside the 90 % band. Compute is 6 N D in FLOPs. Grey is beyond the fitted runs.

    Parameters
    ----------
    fit : Posterior or Pool
    rows : LossTable or DataFrame
        Rows to forecast; a measured `loss` (nats per token) is drawn as well.
    seed : int
        Of the predictive noise.
    allow_unconverged : bool
        Draw a posterior that has not converged.

    Raises
    ------
    NotConverged
        If the posterior has not converged and `allow_unconverged` is false.
    TableError
        If a covariate of the law is missing.
    """
    frame = rows.frame if isinstance(rows, LossTable) else canonical(rows, "grid", fit.columns)
    predicted = fit.forecast(frame, seed=seed, allow_unconverged=allow_unconverged)
    forecast = _with_compute(predicted.to_frame((0.5, 0.9)))
    train = _with_compute(fit.table.frame)
    same = [c for c in fit.columns if c != "tokens"]
    paths = [path for _, path in train.groupby(same) if path["tokens"].nunique() > 1]
    curves = [] if len(paths) > MOST_CURVES else [_curve(fit, path, seed) for path in paths]

    sizes = np.concatenate([train["params"], forecast["params"]])
    colours = ScalarMappable(LogNorm(sizes.min(), max(sizes.max(), 1.01 * sizes.min())), "viridis")
    figure, panels = axes(2, width=4.1, height=3.6, sharey=True)
    for ax, x in zip(panels, ("compute", "tokens"), strict=True):
        for curve in curves:
            colour = colours.to_rgba(curve["params"].iloc[0])
            ax.plot(curve[x], curve["median"], color=colour, lw=0.8, alpha=0.7)
        ax.scatter(
            train[x], train["loss"], s=14, c=colours.to_rgba(train["params"].to_numpy()), lw=0
        )
        for _, path in forecast.groupby(same):
            _draw_forecast(ax, path.sort_values(x), x, colours.to_rgba(path["params"].iloc[0]))
        both = np.concatenate([train[x], forecast[x]])
        log_axis(ax, both, x)
        left, right = ax.get_xlim()
        if forecast[x].max() > 1.001 * train[x].max():
            ax.axvspan(train[x].max(), right, **BEYOND)
            ax.set_xlim(left, right)
    _loss_axis(panels[0], np.concatenate([train["loss"], forecast.get("loss", forecast["median"])]))
    panels[0].xaxis.set_major_locator(LogLocator())
    panels[0].xaxis.set_major_formatter(LogFormatterSciNotation())
    panels[0].set_xlabel("compute 6 N D (FLOPs)")
    panels[0].set_ylabel("loss (nats per token)")
    bar = figure.colorbar(colours, ax=panels[1], pad=0.02, label="model size N")
    ticks = np.unique(sizes)[:: max(1, len(np.unique(sizes)) // 6)]
    bar.ax.yaxis.set_major_locator(FixedLocator(ticks.tolist()))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda size, _: count(size)))
    bar.ax.yaxis.set_minor_locator(NullLocator())
    beyond = any(forecast[x].max() > 1.001 * train[x].max() for x in ("compute", "tokens"))
    shade = [Patch(label="beyond the fitted runs", **BEYOND)] if beyond else []
    legend(figure, [*_handles(forecast, bool(curves)), *shade])
    return figure


def _with_compute(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(compute=6 * rows["params"] * rows["tokens"])


def _curve(fit: Posterior | Pool, path: pd.DataFrame, seed: int) -> pd.DataFrame:
    """The law's median along the tokens of fitted runs that differ in nothing else."""
    tokens = np.geomspace(path["tokens"].min(), path["tokens"].max(), POINTS)
    known = [c for c in (*fit.columns, "base", UNIQUE, ANNEALED) if c in path and c != "tokens"]
    fixed = {name: path[name].iloc[0] for name in known}
    rows = canonical(pd.DataFrame(fixed | {"tokens": tokens}), "grid", fit.columns)
    forecast = fit.forecast(rows, seed=seed, allow_unconverged=True)
    return _with_compute(rows.assign(median=forecast.median))


def _draw_forecast(ax: Axes, path: pd.DataFrame, x: str, colour: Any) -> None:
    """Bands of runs that differ in tokens only, as a fan, or as bars of a single run."""
    for level, width, alpha in ((90, 2, 0.25), (50, 6, 0.4)):
        low, high = path[f"lower_{level}"], path[f"upper_{level}"]
        if len(path) == 1:
            ax.vlines(path[x], low, high, colors=[colour], lw=width, alpha=alpha)
        else:
            ax.fill_between(path[x], low, high, color=colour, alpha=alpha, lw=0)
    ax.plot(path[x], path["median"], color=colour, lw=1.5, marker="_" if len(path) == 1 else "")
    if "loss" in path:
        inside = path["loss"].between(path["lower_90"], path["upper_90"])
        ax.plot(path[x], path["loss"], mfc=colour, **MEASURED)
        ax.plot(path[x][~inside], path["loss"][~inside], **MISSED)


def _loss_axis(ax: Axes, losses: Floats) -> None:
    """A logarithmic axis of losses with plain numbers, some four to eight of them."""
    low, high = float(np.min(losses)), float(np.max(losses))
    ax.set_yscale("log")
    steps = [s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0) if (high - low) / s <= 8]
    step = steps[0] if steps else 5.0
    ticks = np.arange(np.floor(low / step), high / step + 2) * step
    ax.yaxis.set_major_locator(FixedLocator(ticks.tolist()))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda loss, _: f"{loss:.3g}"))
    ax.yaxis.set_minor_locator(NullLocator())


def _handles(forecast: pd.DataFrame, curves: bool) -> list[Artist]:
    colour = "#31688e"
    handles: list[Artist] = [key("fitted run", color=colour, marker="o", ls="", ms=4)]
    handles += [key("law (median)", color=colour, lw=0.8)] if curves else []
    handles += [
        Patch(color=colour, alpha=0.55, label="50 % band"),
        Patch(color=colour, alpha=0.25, label="90 % band"),
    ]
    if "loss" in forecast:
        handles.append(key("measured afterwards", mfc=colour, **MEASURED))
        inside = forecast["loss"].between(forecast["lower_90"], forecast["upper_90"])
        handles += [] if inside.all() else [key("outside the 90 % band", **MISSED)]
    return handles
