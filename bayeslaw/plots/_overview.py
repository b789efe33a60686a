"""Fitted runs, the law through them, and the forecast: loss against compute and tokens."""

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bayeslaw.common.arrays import Floats
from bayeslaw.common.formatting import count
from bayeslaw.inference.pools import Pool
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.steps import ANNEALED, UNIQUE
from bayeslaw.plots.curves import frame_of
from bayeslaw.plots.style import (
    AHEAD,
    AXIS_LABELS,
    CROSS,
    FILL_50,
    FILL_90,
    INK,
    SIZES,
    Look,
    axes,
    band,
    band_keys,
    flops_axis,
    key,
    legend,
    log_axis,
    style,
)
from bayeslaw.tables.table import Rows, rows_of

CURVE_POINTS = 15
MOST_CURVES = 24  # of fitted runs; of more, some are left out
MEASURED_MARK: Look = {"ls": "", "marker": "D", "ms": 5, "mec": INK, "mew": 0.8}
KEY_COLOUR = "#31688e"


@style()
def overview(fit: Posterior | Pool, rows: Rows | pd.DataFrame, *, seed: int = 0) -> Figure:
    """Loss against compute and against tokens: fitted runs, the law, bands and measured losses.

    Dots are fitted runs, coloured by model size; lines are the law's median through them. Forecast
    runs have their median, 50 and 90 % bands, and a diamond where the loss was measured, crossed
    if it lies outside the 90 % band. Compute is 6 N D in FLOPs. Grey is beyond the fitted runs.

    Parameters
    ----------
    fit : Posterior or Pool
    rows, seed
        As for `forecast`.
    """
    predictive = fit.accepted(beyond_evidence=True).forecast(frame_of(fit, rows), seed=seed)
    forecast = _with_compute(predictive.to_frame((0.5, 0.9)))
    train = _with_compute(fit.table.measured)
    same = [*dict.fromkeys(["params", *(c for c in fit.columns if c != "tokens")])]
    curves = _law_curves(fit, train, same, seed)
    sizes = np.concatenate([train["params"], forecast["params"]])
    colours = ScalarMappable(LogNorm(sizes.min(), max(sizes.max(), 1.01 * sizes.min())), SIZES)
    figure, panels = axes(2, width=4.1, height=3.6, sharey=True)
    beyond = False
    for ax, x in zip(panels, ("compute", "tokens"), strict=True):
        for curve in curves:
            colour = colours.to_rgba(curve["params"].iloc[0])
            ax.plot(curve[x], curve["median"], color=colour, lw=0.8, alpha=0.7)
        dots = colours.to_rgba(train["params"].to_numpy())
        ax.scatter(train[x], train["loss"], s=14, c=dots, lw=0)
        for _, path in forecast.groupby(same):
            _draw_forecast(ax, path.sort_values(x), x, colours.to_rgba(path["params"].iloc[0]))
        log_axis(ax, np.concatenate([train[x], forecast[x]]), x)
        if forecast[x].max() > 1.001 * train[x].max():
            beyond = True
            left, right = ax.get_xlim()
            ax.axvspan(train[x].max(), right, **AHEAD)
            ax.set_xlim(left, right)
    _loss_axis(panels[0], np.concatenate([train["loss"], forecast.get("loss", forecast["median"])]))
    flops_axis(panels[0])
    panels[0].set_ylabel(AXIS_LABELS["loss"])
    bar = figure.colorbar(colours, ax=panels[1], pad=0.02, label="model size N")
    distinct = np.unique(sizes)
    bar.ax.yaxis.set_major_locator(FixedLocator(distinct[:: max(1, len(distinct) // 6)].tolist()))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda size, _: count(size)))
    bar.ax.yaxis.set_minor_locator(NullLocator())
    shade = [Patch(label="beyond the fitted runs", **AHEAD)] * beyond
    legend(figure, [*_handles(forecast, bool(curves)), *shade])
    return figure


def _with_compute(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(compute=6 * rows["params"] * rows["tokens"])


def _law_curves(
    fit: Posterior | Pool, train: pd.DataFrame, same: list[str], seed: int
) -> list[pd.DataFrame]:
    """The law's median along the tokens of fitted runs that differ in nothing else."""
    paths = [path for _, path in train.groupby(same) if path["tokens"].nunique() > 1]
    kept = [c for c in (*fit.columns, "base", UNIQUE, ANNEALED) if c in train and c != "tokens"]
    curves = [
        path[kept]
        .iloc[[0] * CURVE_POINTS]
        .assign(tokens=np.geomspace(path["tokens"].min(), path["tokens"].max(), CURVE_POINTS))
        for path in paths[:: -(-len(paths) // MOST_CURVES) or 1]
    ]
    if not curves:
        return []
    rows = rows_of(pd.concat(curves, ignore_index=True), "grid", fit.columns).frame
    forecast = fit.accepted(beyond_evidence=True).forecast(rows, seed=seed)
    drawn = _with_compute(forecast.frame.assign(median=forecast.median))
    return [drawn[i : i + CURVE_POINTS] for i in range(0, len(drawn), CURVE_POINTS)]


def _draw_forecast(ax: Axes, path: pd.DataFrame, x: str, colour: Floats) -> None:
    """Bands of runs that differ in tokens only, as a fan, or as bars of a single run."""
    for level, fill, width in ((90, FILL_90, 2), (50, FILL_50, 6)):
        low, high = path[f"lower_{level}"], path[f"upper_{level}"]
        if len(path) == 1:
            ax.vlines(path[x], low, high, color=colour, lw=width, alpha=2 * fill)
        else:
            band(ax, path[x], low, high, colour, fill=fill, edges=level == 90)
    ax.plot(path[x], path["median"], color=colour, lw=1.5, marker="_" if len(path) == 1 else "")
    if "loss" in path:
        missed = path[~path["inside_90"]]
        ax.plot(path[x], path["loss"], mfc=colour, **MEASURED_MARK)
        ax.plot(missed[x], missed["loss"], **CROSS)


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
    handles: list[Artist] = [key("fitted run", color=KEY_COLOUR, marker="o", ls="", ms=4)]
    handles += [key("law (median)", color=KEY_COLOUR, lw=0.8)] * curves
    handles += [*band_keys(KEY_COLOUR)]
    if "loss" in forecast:
        handles.append(key("measured", mfc=KEY_COLOUR, **MEASURED_MARK))
        missed = not forecast["inside_90"].all()
        handles += [key("outside the 90 % band", **CROSS)] * missed
    return handles
