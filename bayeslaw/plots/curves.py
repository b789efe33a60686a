"""Loss against tokens: curves of a fit, their bands, and measured losses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bayeslaw.common.arrays import Bools
from bayeslaw.common.errors import TableError
from bayeslaw.common.formatting import count
from bayeslaw.common.progress import step
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.inference.pools import Fit
from bayeslaw.laws.departure import Departure
from bayeslaw.laws.steps import ANNEALED, UNIQUE
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

POINTS = 25  # of a curve
NEAR_SIZES = 1.05  # ratio of sizes up to which they share a panel
PANELS = 16  # at most; of more model sizes some are left out, and the title says so
SHADES: dict[str, Look] = {
    position: {"fc": "#eeeeea", "ec": "#c4c4bd", "hatch": hatch, "zorder": 0, "lw": 0}
    for position, hatch in ((EXTRAPOLATION, None), (PROJECTION, "////"))
}
THIN = "thin line: extrapolation"

type Cell = Mapping[str, float]  # values of covariates that select a panel or a line


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
    return _curves(
        fit, rows_of(rows, "grid", fit.columns).frame, ("ptpp", "replay"), seed
    )


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
    kept = dict.fromkeys(("base", "tokens", *fit.columns, UNIQUE, ANNEALED, "loss"))
    rows = fit.table.measured[[c for c in kept if c in fit.table.measured]].reset_index(
        drop=True
    )
    return _curves(fit, rows, ("replay", "ptpp"), seed)


@style()
def _curves(fit: Fit, frame: pd.DataFrame, across: Sequence[str], seed: int) -> Figure:
    """Draw a panel per size; the columns `across`, if they vary, give rows of panels and lines."""
    if "tokens" not in frame:
        raise TableError(
            f"{fit.name}: these rows have no tokens to draw losses against; use plots.overview."
        )
    frame = frame.assign(
        panel=_near_sizes(frame["params"]) if "params" in fit.columns else 0.0
    )
    layout = _layout(frame, fit.columns, across)
    points = _predicted(fit, frame, seed)
    curves = _predicted(fit, _paths(fit, frame), seed)
    # A curve ends where the tokens fall or their distinct ones change.
    ends = curves["tokens"].diff() <= 0
    ends |= curves[UNIQUE].diff().fillna(0) != 0 if UNIQUE in curves else False
    curves["path"] = ends.cumsum()

    columns = layout.columns
    few = len(layout.panels) < 4
    width = 3.3 if few else 2.5 if columns <= 4 else 2.1
    height = 2.9 if len(layout.panels) <= 4 else 2.4
    figure, panels = axes(
        len(layout.panels), columns=columns, width=width, height=height
    )
    thin = False
    for ax, panel in zip(panels, layout.panels, strict=True):
        of_panel = select(curves, panel)
        log_axis(ax, select(frame, panel)["tokens"], "tokens")
        for position in SHADES:
            _shade(ax, of_panel, position)
        mixed = len(layout.lines) > 1 and of_panel["position"].nunique() > 1
        thin |= mixed
        for i, line in enumerate(layout.lines):
            for _, path in select(of_panel, line).groupby("path"):
                _line(
                    ax,
                    path,
                    i,
                    thin=mixed & path["position"].ne(INTERPOLATION).to_numpy(),
                )
            _points(ax, select(points, {**panel, **line}), i)
        titles = [_titled(fit, frame, c, v) for c, v in reversed([*panel.items()])]
        ax.set_title("\n".join(titles), loc="left")
    for ax in panels[::columns]:
        ax.set_ylabel(AXIS_LABELS["loss"])
    far = farthest(pd.concat([curves, points[points["position"] == PROJECTION]]))
    title = _title(fit, frame, layout, far)
    figure.suptitle(title, x=0.01, ha="left", fontsize=9)
    shades: list[Artist] = [Patch(label=name, **SHADES[name]) for name in far]
    shades += [key(THIN, color=INK, lw=0.7)] * thin
    legend(figure, [*_handles(layout.lines, points, fit), *shades])
    return figure


def _title(
    fit: Fit, frame: pd.DataFrame, layout: "_Layout", far: Mapping[str, str]
) -> str:
    """What all panels have in common, and how far the curves lie from the fitted rows."""
    drawn = len(layout.panels)
    common = [f"{drawn} of {layout.sizes} model sizes"] * (drawn < layout.sizes)
    common += [_titled(fit, frame, c, frame[c].iloc[0]) for c in layout.fixed]
    adjusted = [c for c in _adjusted(fit, frame) if frame[c].nunique() == 1]
    common += [f"{c} {count(frame[c].iloc[0])}" for c in adjusted]
    lines = [
        ", ".join(common),
        *(f"{name} up to {words}" for name, words in far.items()),
    ]
    return "\n".join(filter(None, lines))


@dataclass(frozen=True)
class _Layout:
    """The panels in reading order, the lines of each, and what all rows have in common."""

    panels: list[Cell]
    lines: list[Cell]
    columns: int
    sizes: int  # panels, if none were left out
    fixed: list[str]


def _layout(
    frame: pd.DataFrame, columns: Sequence[str], across: Sequence[str]
) -> _Layout:
    declared = [c for c in columns if c not in COVARIATES]  # by the laws
    used = [c for c in (*across, *declared) if c in columns]
    vary = [c for c in used if frame[c].nunique() > 1]
    lines: list[Cell] = [{}]
    if vary:
        lines = [{vary[-1]: value} for value in sorted(frame[vary[-1]].unique())]
    by = [*vary[:-1], *(["panel"] if "params" in columns else [])]
    panels: list[Cell] = [{}]
    if by:
        distinct = frame[by].drop_duplicates().sort_values(by).to_numpy()
        panels = [dict(zip(by, values, strict=True)) for values in distinct]
    wide = 4
    sizes = len(panels)
    if len(vary) > 1:
        wide = frame[by[-1]].nunique() if len(by) > 1 else 1
    elif sizes > PANELS:
        panels = [
            panels[i] for i in np.linspace(0, sizes - 1, PANELS).round().astype(int)
        ]
    return _Layout(panels, lines, wide, sizes, [c for c in used if c not in vary])


def _adjusted(fit: Fit, frame: pd.DataFrame) -> list[str]:
    """Columns beside the covariates on which the forecast of these rows depends."""
    called = {step.called_by for law in fit.laws for step in law.steps}
    return [c for c in (UNIQUE, ANNEALED) if c in called and c in frame]


def _paths(fit: Fit, frame: pd.DataFrame) -> pd.DataFrame:
    """Rows along the tokens of each group of rows that differ in nothing else."""
    kept = [*fit.columns, *_adjusted(fit, frame)]
    # Of a law that starts from the base, a curve is that of the first base of its N and P; what
    # the law lacks is that of the first row, and says whether the curve is a projection.
    starting = ["base"] if any(law.step(Departure) for law in fit.laws) else []
    labels = [
        c for c in (*COVARIATES, *starting, "panel") if c in frame and c not in kept
    ]
    paths = []
    for _, rows in frame.groupby(
        [c for c in kept if c != "tokens"] or np.zeros(len(frame))
    ):
        low = rows["tokens"].min()
        high = rows["tokens"].max()
        tokens = np.geomspace(low, high, POINTS if high > low else 1)
        first = {c: rows[c].iloc[0] for c in (*kept, *labels)}
        paths.append(pd.DataFrame(first | {"tokens": tokens}))
    return pd.concat(paths, ignore_index=True)


def _predicted(fit: Fit, rows: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Rows with median and position, and with bands, or with the range of a point fit."""
    if isinstance(fit, PointFit):
        positions = fit.verdict(rows).positions
        ranges = (
            fit.forecast(rows)
            .set_index(rows.index)
            .rename(columns={"prediction": "median"})
        )
        return ranges.join(positions).assign(inside_90=True)
    predictive = fit.accepted("beyond-evidence").forecast(rows, seed=seed)
    return predictive.to_frame((0.5, 0.9)).join(
        predictive.positions.filter(like=BEYOND_PREFIX)
    )


def _titled(fit: Fit, frame: pd.DataFrame, column: str, value: float) -> str:
    """A covariate's value, and its ratio to the largest training value if that is less."""
    column = "params" if column == "panel" else column
    fitted = frame if fit.table is None else fit.table.frame
    text = f"{fit.about[column].alias} {count(value)}"
    most = fitted[column].max()
    beyond = fit.about[column].logged and value > 1.005 * most
    return f"{text} ({value / most:.2g} × largest fitted)" if beyond else text


def _near_sizes(sizes: pd.Series) -> pd.Series:
    """The least of the sizes that share a panel, `NEAR_SIZES` apart at most, for each size."""
    least = 0.0
    panels = {}
    for size in np.unique(sizes):
        least = size if size > NEAR_SIZES * least else least
        panels[size] = least
    return sizes.map(panels)


def select(frame: pd.DataFrame, cell: Cell) -> pd.DataFrame:
    for column, value in cell.items():
        frame = frame[frame[column] == value]
    return frame


def _shade(ax: Axes, curves: pd.DataFrame, position: str) -> None:
    """Shade the tokens at which all curves have this position."""
    tokens = np.unique(curves["tokens"])
    left, right = ax.get_xlim()
    edges = [left, *np.sqrt(tokens[1:] * tokens[:-1]), right]
    shares = [
        np.interp(tokens, path["tokens"], path["position"] == position, np.nan, np.nan)
        for _, path in curves.groupby("path")
    ]
    everywhere = np.nanmin(shares, axis=0) > 0.5
    changes = np.flatnonzero(np.diff(np.concatenate([[0], everywhere, [0]])))
    for first, last in changes.reshape(-1, 2):
        ax.axvspan(edges[first], edges[last], **SHADES[position])


def _line(ax: Axes, path: pd.DataFrame, i: int, *, thin: Bools) -> None:
    """Draw the median, thin where so marked, and bands; one budget has bars instead."""
    colour = look(i)["color"]
    dashes = look(i)["ls"]
    tokens = path["tokens"]
    median = path["median"].to_numpy()
    single = len(path) == 1
    if "lower_90" in path:
        names = ("lower_90", "lower_50", "upper_50", "upper_90")
        low, lower, upper, high = (path[c].to_numpy() for c in names)
        if single:
            outer = [median - low, high - median]
            inner = [median - lower, upper - median]
            ax.errorbar(
                tokens, median, outer, color=colour, lw=1, capsize=3, marker="_"
            )
            ax.errorbar(tokens, median, inner, color=colour, lw=5, alpha=0.4)
            return
        band(ax, tokens, low, high, colour, ls=dashes)
        band(ax, tokens, lower, upper, colour, fill=FILL_50, edges=False)
    marker = "_" if single else ""
    if thin.any():
        ax.plot(tokens, median, color=colour, ls=dashes, lw=0.7)
    ax.plot(
        tokens, np.where(thin, np.nan, median), color=colour, ls=dashes, marker=marker
    )


def _points(ax: Axes, points: pd.DataFrame, i: int) -> None:
    dots = look(i, ls="")
    if "unique" in points and not points["unique"].all():
        names = ("tokens", "median", "lowest", "highest")
        tokens, middle, low, high = (
            points.loc[~points["unique"], c].to_numpy() for c in names
        )
        bars: Look = {
            "color": dots["color"],
            "ls": "",
            "lw": 1,
            "alpha": 0.7,
            "zorder": 1.5,
        }
        ax.errorbar(tokens, middle, [middle - low, high - middle], capsize=2, **bars)
    if "loss" in points:
        held = points[points["inside_90"]]
        out = points[~points["inside_90"]]
        ax.plot(held["tokens"], held["loss"], **dots, ms=4.5, mec="white", mew=0.5)
        ax.plot(out["tokens"], out["loss"], **dots, ms=5.5, mfc="white")
        ax.plot(out["tokens"], out["loss"], **CROSS)


def _handles(lines: list[Cell], points: pd.DataFrame, fit: Fit) -> list[Artist]:
    measured = "loss" in points
    banded = "lower_90" in points
    names = [
        f"{fit.about[c].alias} {count(v)}" for line in lines for c, v in line.items()
    ]
    marked: Look = {"ms": 4.5} if names and measured else {"ms": 4.5, "marker": ""}
    labels = names or ["median" if banded else "point fit"]
    handles: list[Artist] = [
        key(label, **look(i) | marked) for i, label in enumerate(labels)
    ]
    if banded:
        handles += [*band_keys(COLOURS[0])]
    elif not points["unique"].all():
        handles.append(
            key("range of fits that agree", ls="", color=INK, marker="|", ms=10)
        )
    if measured and not names:
        handles.append(key("measured", **look(0, ls="", ms=4.5)))
    if measured and not points["inside_90"].all():
        handles.append(key("measured, outside the 90 % band", **CROSS))
    return handles
