"""Loss against compute and against tokens, on one picture with the fitted runs."""

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import TableError
from bayeslaw.common.formatting import count, listed
from bayeslaw.inference.forecast import Forecast
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
)
from bayeslaw.tables.covariates import FLOPS
from bayeslaw.tables.table import Rows, rows_of

CURVE_POINTS = 15
MOST_CURVES = 24  # of fitted runs; of more, some are left out
MEASURED_MARK: Look = {"ls": "", "marker": "D", "ms": 5, "mec": INK, "mew": 0.8}
KEY_COLOUR = "#31688e"
LADDER_POINTS = 60  # of the curve of a law of compute alone


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
    predictive = fit.accepted("beyond-evidence").forecast(valid, seed=seed)
    # A fitted row is a fitted run; if all are, they are what was asked for.
    forecast = _with_compute(predictive.held_out.to_frame((0.5, 0.9)))
    train = _with_compute(fit.table.measured)
    same = [*dict.fromkeys(["params", *(c for c in fit.columns if c != "tokens")])]
    curves = _law_curves(fit, train, same, seed)
    # The law up to single runs, which would stand alone otherwise.
    single = [
        path for _, path in forecast.groupby(same) if path["tokens"].nunique() == 1
    ]
    if single:
        ends = pd.concat(single, ignore_index=True)
        starts = ends.assign(tokens=np.minimum(ends["tokens"], train["tokens"].min()))
        curves += _law_curves(
            fit, pd.concat([starts, ends], ignore_index=True), same, seed
        )
    sizes = np.concatenate([train["params"], forecast["params"]])
    colours = size_colours(sizes)
    figure, panels = axes(2, width=4.1, height=3.6, sharey=True)
    beyond = False
    for ax, x in zip(panels, ("compute", "tokens"), strict=True):
        for curve in curves:
            colour = colours.to_rgba(curve["params"].iloc[0])
            ax.plot(curve[x], curve["median"], color=colour, lw=0.8, alpha=0.7)
        dots = colours.to_rgba(train["params"].to_numpy())
        ax.scatter(train[x], train["loss"], s=14, c=dots, lw=0)
        for _, path in forecast.groupby(same):
            _draw_forecast(
                ax, path.sort_values(x), x, colours.to_rgba(path["params"].iloc[0])
            )
        log_axis(ax, np.concatenate([train[x], forecast[x]]), x)
        if forecast[x].max() > 1.001 * train[x].max():
            beyond = True
            shade_ahead(ax, train[x].max())
    _loss_axis(
        panels[0],
        np.concatenate([train["loss"], forecast.get("loss", forecast["median"])]),
    )
    panels[0].set_ylabel(AXIS_LABELS["loss"])
    distinct = np.unique(sizes)
    bar = figure.colorbar(colours, ax=panels[1], pad=0.02, label="model size N")
    bar.set_ticks(distinct[:: max(1, len(distinct) // 6)].tolist())
    bar.ax.yaxis.set_major_formatter(lambda size, _: count(size))
    bar.minorticks_off()
    others = [c for c in same[1:] if pd.concat([train[c], forecast[c]]).nunique() > 1]
    if others:
        texts = [fit.about[c].text for c in others]
        asked = [
            f"{fit.about[c].alias} {', '.join(count(v) for v in np.unique(forecast[c]))}"
            for c in others
            if forecast[c].nunique() <= 4
        ]
        title = f"Runs of one size differ in {listed(texts)}"
        title += f"; forecast: {', '.join(asked)}" if asked else ""
        figure.suptitle(title, x=0.01, ha="left", fontsize=9)
    shade = [Patch(label="beyond the fitted runs", **AHEAD)] * beyond
    legend(figure, [*_overview_handles(forecast, bool(curves)), *shade])
    return figure


def _ladder(fit: Posterior | Pool, rows: pd.DataFrame, seed: int) -> Figure:
    """The overview of a law of compute alone."""
    if {*fit.columns} != {FLOPS}:
        others = listed([text for text in fit.columns if text != FLOPS])
        raise TableError(
            f"{fit.name}: overview draws loss against flops alone, and this law reads {others} "
            "too; use plots.observed or plots.residuals."
        )
    asked = fit.accepted("beyond-evidence").forecast(rows, seed=seed).held_out
    forecast = asked.to_frame((0.5, 0.9))
    train = fit.table.measured
    flops = np.concatenate([train[FLOPS], forecast[FLOPS]])
    path = pd.DataFrame({FLOPS: np.geomspace(flops.min(), flops.max(), LADDER_POINTS)})
    curve = _curve(fit, path, seed).to_frame((0.5, 0.9))
    figure, (ax,) = axes(1, width=5.2, height=3.6)
    for level, fill in ((90, FILL_90), (50, FILL_50)):
        low = curve[f"lower_{level}"]
        high = curve[f"upper_{level}"]
        band(ax, curve[FLOPS], low, high, KEY_COLOUR, fill=fill, edges=level == 90)
    ax.plot(curve[FLOPS], curve["median"], color=KEY_COLOUR, lw=0.8)
    ax.plot(train[FLOPS], train["loss"], color=KEY_COLOUR, marker="o", ls="", ms=4)
    if "loss" in forecast:
        missed = forecast[~forecast["inside_90"]]
        ax.plot(forecast[FLOPS], forecast["loss"], mfc=KEY_COLOUR, **MEASURED_MARK)
        ax.plot(missed[FLOPS], missed["loss"], **CROSS)
    log_axis(ax, flops, "compute")
    ax.set_xlabel("training compute (FLOPs)")
    shade: list[Artist] = []
    if flops.max() > 1.001 * train[FLOPS].max():
        shade_ahead(ax, train[FLOPS].max())
        shade = [Patch(label="beyond the fitted runs", **AHEAD)]
    _loss_axis(ax, np.concatenate([train["loss"], curve["median"]]))
    ax.set_ylabel(AXIS_LABELS["loss"])
    legend(figure, [*_overview_handles(forecast, curves=True), *shade], columns=3)
    return figure


def _curve(fit: Posterior | Pool, path: pd.DataFrame, seed: int) -> Forecast:
    """The forecast along a path that is not warned of: its end was asked for."""
    return fit.accepted("beyond-evidence").forecast(path, seed=seed)


def _with_compute(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(compute=6 * rows["params"] * rows["tokens"])


def _law_curves(
    fit: Posterior | Pool, train: pd.DataFrame, same: list[str], seed: int
) -> list[pd.DataFrame]:
    """The law's median along the tokens of fitted runs that differ in nothing else."""
    paths = [path for _, path in train.groupby(same) if path["tokens"].nunique() > 1]
    kept = [
        c
        for c in (*fit.columns, "base", UNIQUE, ANNEALED)
        if c in train and c != "tokens"
    ]
    curves = [
        path[kept]
        .iloc[[0] * CURVE_POINTS]
        .assign(
            tokens=np.geomspace(
                path["tokens"].min(), path["tokens"].max(), CURVE_POINTS
            )
        )
        for path in paths[:: -(-len(paths) // MOST_CURVES) or 1]
    ]
    if not curves:
        return []
    rows = rows_of(pd.concat(curves, ignore_index=True), "grid", fit.columns).frame
    forecast = fit.accepted("beyond-evidence").forecast(rows, seed=seed)
    drawn = _with_compute(forecast.frame.assign(median=forecast.median))
    return [drawn[i : i + CURVE_POINTS] for i in range(0, len(drawn), CURVE_POINTS)]


def _draw_forecast(ax: Axes, path: pd.DataFrame, x: str, colour: Floats) -> None:
    """Bands of runs that differ in tokens only, as a fan, or as bars of a single run."""
    for level, fill, width in ((90, FILL_90, 2), (50, FILL_50, 6)):
        low = path[f"lower_{level}"]
        high = path[f"upper_{level}"]
        if len(path) == 1:
            ax.vlines(path[x], low, high, color=colour, lw=width, alpha=2 * fill)
        else:
            band(ax, path[x], low, high, colour, fill=fill, edges=level == 90)
    ax.plot(
        path[x],
        path["median"],
        color=colour,
        lw=1.5,
        marker="_" if len(path) == 1 else "",
    )
    if "loss" in path:
        missed = path[~path["inside_90"]]
        ax.plot(path[x], path["loss"], mfc=colour, **MEASURED_MARK)
        ax.plot(missed[x], missed["loss"], **CROSS)


def _loss_axis(ax: Axes, losses: Floats) -> None:
    """A logarithmic axis of losses with plain numbers, some four to eight of them."""
    low = float(np.min(losses))
    high = float(np.max(losses))
    ax.set_yscale("log")
    ticks = MaxNLocator(8, steps=[1, 2, 5, 10]).tick_values(low, high)
    ax.yaxis.set_major_locator(FixedLocator(ticks))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_locator(NullLocator())


def _overview_handles(forecast: pd.DataFrame, curves: bool) -> list[Artist]:
    handles: list[Artist] = [
        key("fitted run", color=KEY_COLOUR, marker="o", ls="", ms=4)
    ]
    handles += [key("law (median)", color=KEY_COLOUR, lw=0.8)] * curves
    handles += [*band_keys(KEY_COLOUR)]
    if "loss" in forecast:
        handles.append(key("measured", mfc=KEY_COLOUR, **MEASURED_MARK))
        missed = not forecast["inside_90"].all()
        handles += [key("outside the 90 % band", **CROSS)] * missed
    return handles
