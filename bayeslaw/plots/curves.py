"""Loss against tokens: curves of a fit, their bands, and measured losses, in a panel per size."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bayeslaw.common.arrays import Bools, Floats
from bayeslaw.common.errors import TableError
from bayeslaw.common.formatting import count
from bayeslaw.common.progress import step
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.inference.pools import Fit
from bayeslaw.laws.departure import Departure
from bayeslaw.laws.steps import ANNEALED, UNIQUE
from bayeslaw.plots.panels import (
    Cell,
    Layout,
    adjusted_columns,
    figure_title,
    layout_of,
    near_sizes,
    panel_title,
    select,
)
from bayeslaw.plots.style import (
    AXIS_LABELS,
    COLOURS,
    CROSS,
    FILL_50,
    INK,
    Look,
    axes,
    band,
    band_keys,
    key,
    legend,
    log_axis,
    look,
    style,
    title,
)
from bayeslaw.tables.hull import (
    BEYOND_PREFIX,
    EXTRAPOLATION,
    INTERPOLATION,
    PROJECTION,
    farthest,
)
from bayeslaw.tables.table import Rows, rows_of
from bayeslaw.tables.validation import COVARIATES

POINTS = 25
"""Points of a curve."""
SHADE: Look = {"fc": "#eeeeea", "ec": "#c4c4bd", "zorder": 0, "lw": 0}
SHADES: dict[str, Look] = {
    EXTRAPOLATION: {**SHADE, "hatch": None},
    PROJECTION: {**SHADE, "hatch": "////"},
}
"""Backgrounds by the position of all curves."""
THIN = "thin line: extrapolation"


def forecast(fit: Fit, rows: Rows | pd.DataFrame, *, seed: int = 0) -> Figure:
    """Posterior predictive loss against tokens, with 50 and 90 % bands, or that of a point fit.

    The figure has a panel per model size, a line per replay ratio, and a row of panels per
    pre-training budget, as figure 1 of the paper. The bands are those of a new run and base. A
    measured loss has a filled marker inside its 90 % band, and a cross outside it. A point fit has
    no bands: bars are the range of the forecasts of starts that agree, where it is not unique.
    Where all lines are extrapolations the panel is grey, and hatched where they are projections
    (`bayeslaw.locate`). Where only some are, their lines are thin.

    Parameters
    ----------
    rows : Rows or DataFrame
        Rows to forecast; a measured `loss` (nats per token) is drawn as well.
    seed : int
        Of the predictive noise of a posterior.
    """
    frame = rows_of(rows, "grid", fit.columns).frame
    return _curves(fit, frame, ("ptpp", "replay"), seed)


@step("forecasting the fitted rows")
def in_sample(fit: Fit, *, seed: int = 0) -> Figure:
    """Fitted curves and training losses, with 50 and 90 % bands, or those of a point fit.

    The figure has a row of panels per replay ratio, a column per model size and a line per
    pre-training budget, as the in-sample grid in the paper's appendix C. The bands are those of a
    new run and base, and losses are compared with these. A point fit has no bands; see `forecast`.
    """
    if fit.table is None:
        raise TableError("this point fit has no training table; use forecast.")
    # Without the runs, so that the bands are those of a new run.
    measured = fit.table.measured
    kept = ("base", "tokens", *fit.columns, UNIQUE, ANNEALED, "loss")
    distinct = dict.fromkeys(kept)
    columns = [name for name in distinct if name in measured]
    rows = measured[columns].reset_index(drop=True)
    return _curves(fit, rows, ("replay", "ptpp"), seed)


@style()
def _curves(fit: Fit, frame: pd.DataFrame, across: Sequence[str], seed: int) -> Figure:
    """Draw a panel per size; the columns `across`, if they vary, give rows of panels and lines."""
    if "tokens" not in frame:
        raise TableError(
            f"{fit.name}: these rows have no tokens to draw losses against; use plots.overview."
        )
    frame = frame.assign(panel=0.0)
    if "params" in fit.columns:
        frame["panel"] = near_sizes(frame["params"])
    layout = layout_of(frame, fit.columns, across)
    points = _predicted(fit, frame, seed)
    curves = _predicted(fit, _paths(fit, frame), seed)
    curves["path"] = _numbered_paths(curves)
    figure, panels = _axes_of(layout)
    any_thin = False
    for ax, cell in zip(panels, layout.panels, strict=True):
        log_axis(ax, select(frame, cell)["tokens"], "tokens")
        some_thin = _draw_panel(
            ax,
            select(curves, cell),
            select(points, cell),
            layout.lines,
        )
        any_thin = any_thin or some_thin
        heading = panel_title(fit, frame, cell)
        ax.set_title(heading, loc="left")
    for ax in panels[:: layout.columns]:
        ax.set_ylabel(AXIS_LABELS["loss"])
    projected = points[points["position"] == PROJECTION]
    far = farthest(pd.concat([curves, projected]))
    title(figure, figure_title(fit, frame, layout, far))
    handles = _handles(layout.lines, points, fit)
    for position in far:
        handles.append(Patch(label=position, **SHADES[position]))
    if any_thin:
        handles.append(key(THIN, color=INK, lw=0.7))
    legend(figure, handles)
    return figure


def _draw_panel(
    ax: Axes,
    curves: pd.DataFrame,
    points: pd.DataFrame,
    lines: Sequence[Cell],
) -> bool:
    """Draw the lines of a panel, and its measured losses; return whether lines may be thin."""
    for position in SHADES:
        _shade(ax, curves, position)
    positions = curves["position"].nunique()
    mixed = len(lines) > 1 and positions > 1
    for i, line in enumerate(lines):
        of_line = select(curves, line)
        for _, path in of_line.groupby("path"):
            outside = path["position"].ne(INTERPOLATION)
            _line(ax, path, i, thin=mixed & outside.to_numpy())
        _points(ax, select(points, line), i)
    return mixed


def _axes_of(layout: Layout) -> tuple[Figure, list[Axes]]:
    """A figure with the panels of a layout, which are the larger the fewer there are."""
    panels = len(layout.panels)
    if panels < 4:
        width = 3.3
    elif layout.columns <= 4:
        width = 2.5
    else:
        width = 2.1
    height = 2.9 if panels <= 4 else 2.4
    return axes(panels, columns=layout.columns, width=width, height=height)


# -- rows to draw ---------------------------------------------------------------------------------


def _paths(fit: Fit, frame: pd.DataFrame) -> pd.DataFrame:
    """Rows along the tokens of each group of rows that differ in nothing else."""
    kept = [*fit.columns, *adjusted_columns(fit, frame)]
    groups = [name for name in kept if name != "tokens"]
    columns = kept + _labels(fit, frame, kept)
    paths = []
    one_group = np.zeros(len(frame))
    for _, rows in frame.groupby(groups or one_group):
        low = rows["tokens"].min()
        high = rows["tokens"].max()
        path = {}
        for name in columns:
            path[name] = rows[name].iloc[0]
        points = POINTS if high > low else 1
        tokens = np.geomspace(low, high, points)
        path["tokens"] = tokens
        paths.append(pd.DataFrame(path))
    return pd.concat(paths, ignore_index=True)


def _labels(fit: Fit, frame: pd.DataFrame, kept: Sequence[str]) -> list[str]:
    """Columns of which a curve has the value of its first row.

    Of a law that starts from the base, a curve is that of the first base of its N and P. Covariates
    that the law lacks say whether the curve is a projection.
    """
    labels = [*COVARIATES]
    if any(law.step(Departure) for law in fit.laws):
        labels.append("base")
    labels.append("panel")
    return [name for name in labels if name in frame and name not in kept]


def _numbered_paths(curves: pd.DataFrame) -> pd.Series:
    """A number for each curve, which ends where the tokens fall or their distinct ones change."""
    ends = curves["tokens"].diff() <= 0
    if UNIQUE in curves:
        changes = curves[UNIQUE].diff().fillna(0)
        ends |= changes != 0
    return ends.cumsum()


def _predicted(fit: Fit, rows: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Rows with median and position, and with bands, or with the range of a point fit."""
    if isinstance(fit, PointFit):
        ranges = fit.forecast(rows).set_index(rows.index)
        ranges = ranges.rename(columns={"prediction": "median"})
        positions = fit.verdict(rows).positions
        return ranges.join(positions).assign(inside_90=True)
    accepted = fit.accepted("beyond-evidence")
    predictive = accepted.forecast(rows, seed=seed)
    distances = predictive.positions.filter(like=BEYOND_PREFIX)
    return predictive.to_frame((0.5, 0.9)).join(distances)


# -- artists of a panel ---------------------------------------------------------------------------


def _shade(ax: Axes, curves: pd.DataFrame, position: str) -> None:
    """Shade the tokens at which all curves have this position."""
    tokens = np.unique(curves["tokens"])
    left, right = ax.get_xlim()
    products = tokens[1:] * tokens[:-1]
    between = np.sqrt(products)
    edges = [left, *between, right]
    shares = []
    for _, path in curves.groupby("path"):
        here = path["position"] == position
        # NaN outside the curve's own tokens.
        share = np.interp(tokens, path["tokens"], here, np.nan, np.nan)
        shares.append(share)
    everywhere = np.nanmin(shares, axis=0) > 0.5
    bounded = np.concatenate([[0], everywhere, [0]])
    changes = np.flatnonzero(np.diff(bounded))
    for first, last in changes.reshape(-1, 2):
        ax.axvspan(edges[first], edges[last], **SHADES[position])


def _line(ax: Axes, path: pd.DataFrame, i: int, *, thin: Bools) -> None:
    """Draw the median, thin where so marked, and bands; one budget has bars instead."""
    colour = look(i)["color"]
    dashes = look(i)["ls"]
    tokens = path["tokens"]
    median = path["median"].to_numpy()
    single = len(path) == 1
    if "lower_90" in path and single:
        outer = _whiskers(path, median, "90")
        inner = _whiskers(path, median, "50")
        thin_bar: Look = {"color": colour, "lw": 1, "capsize": 3, "marker": "_"}
        wide_bar: Look = {"color": colour, "lw": 5, "alpha": 0.4}
        ax.errorbar(tokens, median, outer, **thin_bar)
        ax.errorbar(tokens, median, inner, **wide_bar)
        return
    if "lower_90" in path:
        low = path["lower_90"].to_numpy()
        high = path["upper_90"].to_numpy()
        band(ax, tokens, low, high, colour, ls=dashes)
        low = path["lower_50"].to_numpy()
        high = path["upper_50"].to_numpy()
        band(ax, tokens, low, high, colour, fill=FILL_50, edges=False)
    line: Look = {"color": colour, "ls": dashes}
    if thin.any():
        ax.plot(tokens, median, **line, lw=0.7)
    thick = np.where(thin, np.nan, median)
    marker = "_" if single else ""
    ax.plot(tokens, thick, **line, marker=marker)


def _whiskers(path: pd.DataFrame, median: Floats, level: str) -> list[Floats]:
    """How far the band of a level reaches below the median, and above it."""
    below = median - path[f"lower_{level}"].to_numpy()
    above = path[f"upper_{level}"].to_numpy() - median
    return [below, above]


def _points(ax: Axes, points: pd.DataFrame, i: int) -> None:
    """Draw measured losses, and the ranges of a point fit that is not unique."""
    dots = look(i, ls="")
    if "unique" in points and not points["unique"].all():
        several = points[~points["unique"]]
        _ranges(ax, several, dots["color"])
    if "loss" in points:
        inside = points[points["inside_90"]]
        full: Look = {"ms": 4.5, "mec": "white", "mew": 0.5}
        ax.plot(inside["tokens"], inside["loss"], **dots, **full)
        outside = points[~points["inside_90"]]
        empty: Look = {"ms": 5.5, "mfc": "white"}
        ax.plot(outside["tokens"], outside["loss"], **dots, **empty)
        ax.plot(outside["tokens"], outside["loss"], **CROSS)


def _ranges(ax: Axes, points: pd.DataFrame, colour: str) -> None:
    """Draw bars over the forecasts of starts that agree."""
    tokens = points["tokens"].to_numpy()
    middle = points["median"].to_numpy()
    below = middle - points["lowest"].to_numpy()
    above = points["highest"].to_numpy() - middle
    bars: Look = {"color": colour, "ls": "", "lw": 1, "alpha": 0.7, "zorder": 1.5}
    ax.errorbar(tokens, middle, [below, above], capsize=2, **bars)


def _handles(lines: list[Cell], points: pd.DataFrame, fit: Fit) -> list[Artist]:
    """Entries of the legend for lines, bands and measured losses."""
    measured = "loss" in points
    banded = "lower_90" in points
    names = []
    for line in lines:
        for column, value in line.items():
            alias = fit.about[column].alias
            names.append(f"{alias} {count(value)}")
    marks: Look = {"ms": 4.5}
    if not (names and measured):
        marks["marker"] = ""
    labels = names or ["median" if banded else "point fit"]
    handles: list[Artist] = []
    for i, label in enumerate(labels):
        properties = look(i) | marks
        handles.append(key(label, **properties))
    if banded:
        handles += band_keys(COLOURS[0])
    elif not points["unique"].all():
        bar: Look = {"ls": "", "color": INK, "marker": "|", "ms": 10}
        handles.append(key("range of fits that agree", **bar))
    if measured and not names:
        dots = look(0, ls="", ms=4.5)
        handles.append(key("measured", **dots))
    if measured and not points["inside_90"].all():
        handles.append(key("measured, outside the 90 % band", **CROSS))
    return handles
