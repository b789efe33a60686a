"""IsoFLOP curves, and compute-optimal model sizes and tokens of all budgets."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bayeslaw.common.arrays import Floats
from bayeslaw.common.formatting import count
from bayeslaw.derive.budgets import (
    WIDE_RATIO_STEP,
    Budgets,
    Range,
    budgets_of,
    positive,
    split_of,
    training_flops,
)
from bayeslaw.derive.intervals import determined
from bayeslaw.derive.law_as_stated import law_as_stated
from bayeslaw.derive.verdicts import checked
from bayeslaw.inference.pools import spread_draws
from bayeslaw.inference.posterior import Posterior
from bayeslaw.plots.style import (
    AHEAD,
    AXIS_LABELS,
    COLOURS,
    INK,
    QUIET,
    Look,
    axes,
    band,
    band_key,
    key,
    legend,
    log_axis,
    shade_ahead,
    size_colours,
    style,
    title,
)
from bayeslaw.tables.hull import farthest

FRONTIER_DRAWS = 1000
FRONTIER_BUDGETS = 25
"""Draws of a posterior, and budgets, for the frontier."""
ENDS_90 = (0.05, 0.5, 0.95)
BEST_MARK: Look = {"marker": "D", "ms": 5, "mec": INK, "mew": 0.8, "ls": ""}
ROW_MARK: Look = {"marker": "o", "ls": "", "ms": 3}
NEAR_LOG_FLOPS = 0.1
"""Difference of log FLOPs up to which a row is drawn beside an isoFLOP curve."""


@style()
def compute_optimal(
    posterior: Posterior,
    flops: float | Sequence[float],
    *,
    search: Range | None = None,
    replay: float | None = None,
    ptpp: float | None = None,
    drift: bool = False,
    **own: float,
) -> Figure:
    """IsoFLOP curves of some budgets, and the compute-optimal model and tokens of all budgets.

    On the left is the loss against N where C = 6 N D is constant: median and 90 % band of the fit,
    the recommended N with its 90 % interval, and fitted rows of about that budget. The others are
    best N and best tokens per parameter against C by the law as stated, with its 90 % band, and the
    fitted rows; the grey band is the 90 % band of the fit whose exponents drift as in forecasts.
    What counts as not determined is not drawn (`Derived.to_frame`). Losses are latent. Beyond the
    budgets of the fitted rows the background is grey.

    Parameters
    ----------
    posterior : Posterior
        Of a law that depends on N and D; at most 1000 of its draws are used.
    flops, search, replay, ptpp, drift, own
        As for `bayeslaw.derive.compute_optimal`.
    """
    isoflops = sorted(positive("flops", flops))
    checked(posterior)
    rows = posterior.table.measured.assign(compute=training_flops(posterior))
    law = posterior if drift else law_as_stated(posterior)
    covariates = {"replay": replay, "ptpp": ptpp, **own}
    budgets = _budgets_of_draws(posterior, search, covariates)
    rule = _budgets_of_draws(law, search, covariates)
    drifting = None if law is posterior else budgets
    colours = size_colours(isoflops)
    figure, (curves, *frontiers) = axes(3, width=3.4, height=3.3)
    best = np.array([rule.best(np.log(c)).ratio for c in isoflops])
    _iso_flops(curves, isoflops, colours, budgets, best, rows)
    least_flops = min(isoflops[0], rows["compute"].min())
    most_flops = max(isoflops[-1], rows["compute"].max())
    beyond = bool(most_flops > 1.001 * rows["compute"].max())
    along = np.geomspace(least_flops, most_flops, FRONTIER_BUDGETS)
    _frontiers(frontiers, along, rule, drifting, rows, beyond)
    handles: list[Artist] = []
    for c in isoflops:
        colour = colours.to_rgba(np.array(c))
        handles.append(key(f"C {c:.3g} FLOPs", color=colour))
    handles += _handles(drift=drift, banded=drifting is not None)
    if beyond:
        handles.append(Patch(label="beyond the fitted rows", **AHEAD))
    legend(figure, handles)
    verdict, _ = rule.splits(isoflops, best.T)
    words = []
    for position, distance in farthest(verdict.positions).items():
        words.append(f"best splits: {position} up to {distance}")
    title(figure, "; ".join(words))
    return figure


def _budgets_of_draws(
    fit: Posterior, search: Range | None, covariates: Mapping[str, float | None]
) -> Budgets:
    """Budgets under some of the draws of a fit, evenly spread."""
    draws = spread_draws(fit.count, FRONTIER_DRAWS)
    return budgets_of(fit, search, covariates, draws)


def _handles(*, drift: bool, banded: bool) -> list[Artist]:
    """Entries of the legend, without the budgets."""
    best = "best N, 90 %"
    line = "the fit, with drift"
    band_of_line = "its 90 % band"
    if not drift:
        best = "recommended N, 90 %"
        line = "the law as stated"
        band_of_line = "its 90 % band, if the law holds"
    handles: list[Artist] = [
        key(best, color=INK, **BEST_MARK),
        key("fitted rows", color=QUIET, **ROW_MARK),
        key(line, color=COLOURS[0]),
        band_key(band_of_line, COLOURS[0]),
    ]
    if banded:
        handles.append(band_key("90 % where exponents drift", QUIET))
    return handles


def _iso_flops(
    ax: Axes,
    isoflops: Sequence[float],
    colours: ScalarMappable,
    budgets: Budgets,
    best: Floats,
    rows: pd.DataFrame,
) -> None:
    """Loss against N at each budget, with the best N; `best` are log(D / N), (budgets, draws)."""
    log_flops = np.log(isoflops)[:, None]
    best_sizes = split_of(log_flops, best)["params"]
    intervals = np.quantile(best_sizes, ENDS_90, axis=1).T
    ratios = budgets.ratios(WIDE_RATIO_STEP)
    least_losses = []
    for c, (first, middle_size, last) in zip(isoflops, intervals, strict=True):
        colour = colours.to_rgba(np.array(c))
        sizes = split_of(np.log(c), ratios)["params"]
        losses = budgets.along(np.log(c), ratios)
        low, middle, high = np.quantile(losses, ENDS_90, axis=0)
        band(ax, sizes, low, high, colour)
        ax.plot(sizes, middle, color=colour)
        # Sizes fall with D / N.
        least_loss = float(np.interp(middle_size, sizes[::-1], middle[::-1]))
        least_losses.append(least_loss)
        distance = np.abs(np.log(rows["compute"] / c))
        near = rows[distance < NEAR_LOG_FLOPS]
        edges: Look = {"mec": "white", "mew": 0.3}
        ax.plot(near["params"], near["loss"], color=colour, **ROW_MARK, **edges)
        if determined(first, last):
            error = [[middle_size - first], [last - middle_size]]
            whisker: Look = {"xerr": error, "ecolor": INK, "zorder": 4, "capsize": 3}
            ax.errorbar(middle_size, least_loss, **whisker, mfc=colour, **BEST_MARK)
    least_size, most_size = _drawn_sizes(intervals)
    log_axis(ax, np.geomspace(least_size / 4, most_size * 4, 9), "params")
    ax.set_ylim(0.97 * min(least_losses), 1.12 * max(least_losses))
    ax.set_ylabel("latent " + AXIS_LABELS["loss"])


def _drawn_sizes(intervals: Floats) -> tuple[float, float]:
    """The least and the greatest end of the intervals that are determined, or of all if none is.

    So the whiskers end within the axis.
    """
    drawn = []
    for interval in intervals:
        if determined(interval[0], interval[2]):
            drawn.append(interval)
    if not drawn:
        drawn = [*intervals]
    return float(np.min(drawn)), float(np.max(drawn))


def _frontiers(
    panels: Sequence[Axes],
    flops: Floats,
    rule: Budgets,
    drift: Budgets | None,
    rows: pd.DataFrame,
    beyond: bool,
) -> None:
    """Best N and best D / N against the budget: by the law as stated, and with drift."""
    sizes_panel, ratios_panel = panels
    if drift is not None:
        _frontier(panels, flops, drift, QUIET, median=False)
    _frontier(panels, flops, rule, COLOURS[0], median=True)
    _fitted_rows(sizes_panel, rows, rows["params"])
    _fitted_rows(ratios_panel, rows, rows["tokens"] / rows["params"])
    for ax in panels:
        log_axis(ax, flops, "compute")
        ax.set_yscale("log")
        if beyond:
            shade_ahead(ax, rows["compute"].max())
    sizes_panel.set_ylabel(AXIS_LABELS["params"])
    ratios_panel.set_ylabel("tokens per parameter D / N")
    sizes_panel.yaxis.set_major_formatter(lambda value, _: count(value))
    ratios_panel.yaxis.set_major_formatter("{x:g}")


def _frontier(
    panels: Sequence[Axes],
    flops: Floats,
    budgets: Budgets,
    colour: str,
    *,
    median: bool,
) -> None:
    """The 90 % bands of best N and best D / N, where they are determined, and their medians."""
    best = np.array([budgets.best(np.log(c), WIDE_RATIO_STEP).ratio for c in flops])
    sizes = split_of(np.log(flops)[:, None], best)["params"]
    for ax, values in zip(panels, (sizes, np.exp(best)), strict=True):
        intervals = np.quantile(values, ENDS_90, axis=1)
        for i in range(len(flops)):
            if not determined(intervals[0, i], intervals[2, i]):
                intervals[:, i] = np.nan
        low, middle, high = intervals
        band(ax, flops, low, high, colour)
        if median:
            ax.plot(flops, middle, color=colour)


def _fitted_rows(ax: Axes, rows: pd.DataFrame, values: pd.Series) -> None:
    dots: Look = {"ms": 2.5, "color": QUIET, "alpha": 0.5, "mew": 0}
    ax.plot(rows["compute"], values, "o", **dots)
