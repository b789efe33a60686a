"""Loss against compute and against tokens: fitted runs, the law, and forecasts with bands."""

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import TableError
from bayeslaw.common.formatting import count, listed
from bayeslaw.inference.pools import Pool
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.steps import ANNEALED, UNIQUE
from bayeslaw.plots.style import (
    AHEAD,
    AXIS_LABELS,
    CROSS,
    FILL_50,
    FILL_90,
    INK,
    Look,
    axes,
    band,
    band_keys,
    key,
    legend,
    log_axis,
    shade_ahead,
    size_colours,
    style,
    title,
)
from bayeslaw.tables.covariates import FLOPS
from bayeslaw.tables.table import Rows, rows_of

CURVE_POINTS = 15
"""Points of the law's curve through a fitted run."""
MOST_CURVES = 24
"""Most curves of fitted runs; of more, some are left out."""
LADDER_POINTS = 60
"""Points of the curve of a law of compute alone."""
MOST_VALUES = 4
"""Most values of a covariate that the title lists."""
MEASURED_MARK: Look = {"ls": "", "marker": "D", "ms": 5, "mec": INK, "mew": 0.8}
KEY_COLOUR = "#31688e"


@style()
def overview(
    fit: Posterior | Pool, rows: Rows | pd.DataFrame, *, seed: int = 0
) -> Figure:
    """Loss against compute and against tokens: fitted runs, the law, bands and measured losses.

    Dots are fitted runs, coloured by model size; lines are the law's median through them. Forecast
    runs have their median, 50 and 90 % bands, and a diamond where the loss was measured, crossed
    if it lies outside the 90 % band. Compute is 6 N D in FLOPs. A line leads to a single run, and a
    title names other covariates in which runs of one size differ. Grey is beyond the fitted runs.
    `rows` and `seed` are as for `forecast`; rows that were fitted are fitted runs.

    Of a law of compute alone, such as ``ladder``, there is one panel: loss against FLOPs, with the
    bands of the law from the first fitted run to the last forecast.
    """
    valid = rows_of(rows, "grid", fit.columns).frame
    if FLOPS in fit.columns:
        return _ladder(fit, valid, seed)
    accepted = fit.accepted("beyond-evidence")
    predictive = accepted.forecast(valid, seed=seed)
    # A fitted row is a fitted run; if all are, they are what was asked for.
    new_runs = predictive.held_out.to_frame((0.5, 0.9))
    forecast = _with_compute(new_runs)
    train = _with_compute(fit.table.measured)
    same = _same_in_a_run(fit)
    curves = _law_curves(fit, train, same, seed)
    curves += _curves_to_single_runs(fit, train, forecast, same, seed)
    sizes = np.concatenate([train["params"], forecast["params"]])
    colours = size_colours(sizes)
    figure, panels = axes(2, width=4.1, height=3.6, sharey=True)
    beyond = False
    names = ("compute", "tokens")
    for ax, x in zip(panels, names, strict=True):
        for curve in curves:
            colour = colours.to_rgba(curve["params"].iloc[0])
            line: Look = {"color": colour, "lw": 0.8, "alpha": 0.7}
            ax.plot(curve[x], curve["median"], **line)
        sizes_of_runs = train["params"].to_numpy()
        dots = colours.to_rgba(sizes_of_runs)
        ax.scatter(train[x], train["loss"], s=14, c=dots, lw=0)
        for _, path in forecast.groupby(same):
            colour = colours.to_rgba(path["params"].iloc[0])
            _draw_forecast(ax, path.sort_values(x), x, colour)
        everywhere = np.concatenate([train[x], forecast[x]])
        log_axis(ax, everywhere, x)
        end = train[x].max()
        if forecast[x].max() > 1.001 * end:
            beyond = True
            shade_ahead(ax, end)
    new_losses = forecast.get("loss", forecast["median"])
    losses = np.concatenate([train["loss"], new_losses])
    _loss_axis(panels[0], losses)
    panels[0].set_ylabel(AXIS_LABELS["loss"])
    distinct_sizes = np.unique(sizes)
    _size_bar(figure, panels[1], colours, distinct_sizes)
    differences = _differences(fit, train, forecast, same[1:])
    if differences:
        title(figure, differences)
    handles = _handles(forecast, curves=bool(curves))
    if beyond:
        handles.append(Patch(label="beyond the fitted runs", **AHEAD))
    legend(figure, handles)
    return figure


def _with_compute(rows: pd.DataFrame) -> pd.DataFrame:
    compute = 6 * rows["params"] * rows["tokens"]
    return rows.assign(compute=compute)


def _same_in_a_run(fit: Posterior | Pool) -> list[str]:
    """Covariates that are the same in all rows of a run: N, and those beside it and tokens."""
    same = ["params"]
    for column in fit.columns:
        if column not in ("params", "tokens"):
            same.append(column)
    return same


# -- curves of the law ----------------------------------------------------------------------------


def _law_curves(
    fit: Posterior | Pool, train: pd.DataFrame, same: list[str], seed: int
) -> list[pd.DataFrame]:
    """The law's median along the tokens of fitted runs that differ in nothing else."""
    paths = []
    for _, path in train.groupby(same):
        if path["tokens"].nunique() > 1:
            paths.append(path)
    if not paths:
        return []
    kept = []
    for column in (*fit.columns, "base", UNIQUE, ANNEALED):
        if column in train and column != "tokens":
            kept.append(column)
    every = -(-len(paths) // MOST_CURVES)
    curves = []
    for path in paths[::every]:
        low = path["tokens"].min()
        high = path["tokens"].max()
        tokens = np.geomspace(low, high, CURVE_POINTS)
        first_rows = path[kept].iloc[[0] * CURVE_POINTS]
        curves.append(first_rows.assign(tokens=tokens))
    frame = pd.concat(curves, ignore_index=True)
    rows = rows_of(frame, "grid", fit.columns).frame
    accepted = fit.accepted("beyond-evidence")
    forecast = accepted.forecast(rows, seed=seed)
    medians = forecast.frame.assign(median=forecast.median)
    drawn = _with_compute(medians)
    starts = range(0, len(drawn), CURVE_POINTS)
    return [drawn[start : start + CURVE_POINTS] for start in starts]


def _curves_to_single_runs(
    fit: Posterior | Pool,
    train: pd.DataFrame,
    forecast: pd.DataFrame,
    same: list[str],
    seed: int,
) -> list[pd.DataFrame]:
    """The law from the least fitted tokens up to single runs, which would stand alone otherwise."""
    single = []
    for _, path in forecast.groupby(same):
        if path["tokens"].nunique() == 1:
            single.append(path)
    if not single:
        return []
    ends = pd.concat(single, ignore_index=True)
    least_fitted = train["tokens"].min()
    least_tokens = np.minimum(ends["tokens"], least_fitted)
    starts = ends.assign(tokens=least_tokens)
    runs = pd.concat([starts, ends], ignore_index=True)
    return _law_curves(fit, runs, same, seed)


# -- ladders --------------------------------------------------------------------------------------


def _ladder(fit: Posterior | Pool, rows: pd.DataFrame, seed: int) -> Figure:
    """The overview of a law of compute alone."""
    others = [column for column in fit.columns if column != FLOPS]
    if others:
        raise TableError(
            f"{fit.name}: overview draws loss against flops alone, and this law reads "
            f"{listed(others)} too; use plots.observed or plots.residuals."
        )
    accepted = fit.accepted("beyond-evidence")
    forecast = accepted.forecast(rows, seed=seed).held_out.to_frame((0.5, 0.9))
    train = fit.table.measured
    flops = np.concatenate([train[FLOPS], forecast[FLOPS]])
    points = np.geomspace(flops.min(), flops.max(), LADDER_POINTS)
    path = pd.DataFrame({FLOPS: points})
    curve = accepted.forecast(path, seed=seed).to_frame((0.5, 0.9))
    figure, (ax,) = axes(1, width=5.2, height=3.6)
    for level, fill in ((90, FILL_90), (50, FILL_50)):
        low = curve[f"lower_{level}"]
        high = curve[f"upper_{level}"]
        edges = level == 90
        band(ax, curve[FLOPS], low, high, KEY_COLOUR, fill=fill, edges=edges)
    ax.plot(curve[FLOPS], curve["median"], color=KEY_COLOUR, lw=0.8)
    dot: Look = {"color": KEY_COLOUR, "marker": "o", "ls": "", "ms": 4}
    ax.plot(train[FLOPS], train["loss"], **dot)
    if "loss" in forecast:
        outside = forecast[~forecast["inside_90"]]
        ax.plot(forecast[FLOPS], forecast["loss"], mfc=KEY_COLOUR, **MEASURED_MARK)
        ax.plot(outside[FLOPS], outside["loss"], **CROSS)
    log_axis(ax, flops, "compute")
    ax.set_xlabel("training compute (FLOPs)")
    losses = np.concatenate([train["loss"], curve["median"]])
    _loss_axis(ax, losses)
    ax.set_ylabel(AXIS_LABELS["loss"])
    handles = _handles(forecast, curves=True)
    end = train[FLOPS].max()
    if flops.max() > 1.001 * end:
        shade_ahead(ax, end)
        handles.append(Patch(label="beyond the fitted runs", **AHEAD))
    legend(figure, handles, columns=3)
    return figure


# -- artists --------------------------------------------------------------------------------------


def _draw_forecast(ax: Axes, path: pd.DataFrame, x: str, colour: Floats) -> None:
    """Bands of runs that differ in tokens only, as a fan, or as bars of a single run."""
    single = len(path) == 1
    along = path[x]
    for level, fill, width in ((90, FILL_90, 2), (50, FILL_50, 6)):
        low = path[f"lower_{level}"]
        high = path[f"upper_{level}"]
        if single:
            bar: Look = {"color": colour, "lw": width, "alpha": 2 * fill}
            ax.vlines(along, low, high, **bar)
        else:
            edges = level == 90
            band(ax, along, low, high, colour, fill=fill, edges=edges)
    marker = "_" if single else ""
    line: Look = {"color": colour, "lw": 1.5, "marker": marker}
    ax.plot(along, path["median"], **line)
    if "loss" in path:
        outside = path[~path["inside_90"]]
        ax.plot(along, path["loss"], mfc=colour, **MEASURED_MARK)
        ax.plot(outside[x], outside["loss"], **CROSS)


def _loss_axis(ax: Axes, losses: Floats) -> None:
    """A logarithmic axis of losses with plain numbers, some four to eight of them."""
    low = float(np.min(losses))
    high = float(np.max(losses))
    ax.set_yscale("log")
    locator = MaxNLocator(8, steps=[1, 2, 5, 10])
    ticks = locator.tick_values(low, high)
    ax.yaxis.set_major_locator(FixedLocator(ticks))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_locator(NullLocator())


def _size_bar(figure: Figure, ax: Axes, colours: ScalarMappable, sizes: Floats) -> None:
    """A colour bar of model sizes, with ticks at some of them."""
    bar = figure.colorbar(colours, ax=ax, pad=0.02, label="model size N")
    every = max(1, len(sizes) // 6)
    bar.set_ticks(sizes[::every].tolist())
    bar.ax.yaxis.set_major_formatter(lambda size, _: count(size))
    bar.minorticks_off()


def _differences(
    fit: Posterior | Pool,
    train: pd.DataFrame,
    forecast: pd.DataFrame,
    columns: list[str],
) -> str:
    """The covariates, of some, in which runs of one size differ; and their values in forecasts."""
    differing = []
    values = []
    for column in columns:
        all_values = pd.concat([train[column], forecast[column]])
        if all_values.nunique() <= 1:
            continue
        covariate = fit.about[column]
        differing.append(covariate.text)
        if forecast[column].nunique() <= MOST_VALUES:
            distinct = np.unique(forecast[column])
            numbers = ", ".join(count(value) for value in distinct)
            values.append(f"{covariate.alias} {numbers}")
    if not differing:
        return ""
    words = f"Runs of one size differ in {listed(differing)}"
    if values:
        words += f"; forecast: {', '.join(values)}"
    return words


def _handles(forecast: pd.DataFrame, *, curves: bool) -> list[Artist]:
    """Entries of the legend."""
    handles: list[Artist] = []
    dot: Look = {"marker": "o", "ls": "", "ms": 4}
    handles.append(key("fitted run", color=KEY_COLOUR, **dot))
    if curves:
        handles.append(key("law (median)", color=KEY_COLOUR, lw=0.8))
    handles += band_keys(KEY_COLOUR)
    if "loss" in forecast:
        handles.append(key("measured", mfc=KEY_COLOUR, **MEASURED_MARK))
        if not forecast["inside_90"].all():
            handles.append(key("outside the 90 % band", **CROSS))
    return handles
