"""Common style of all figures: colours, line styles, labels, axes and legends."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import (
    FixedLocator,
    LogFormatterSciNotation,
    LogLocator,
    NullLocator,
)
from matplotlib.typing import ColorType, LineStyleType, RcKeyType

from bayeslaw.common.arrays import Floats
from bayeslaw.common.formatting import count
from bayeslaw.tables.covariates import TABLE, Covariate

# Okabe and Ito (2008): distinct for people with any colour vision. Lines and markers are distinct
# without colour.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINES: tuple[LineStyleType, ...] = (
    "-",
    "--",
    "-.",
    ":",
    (0, (6, 1, 1, 1, 1, 1)),
    (0, (1, 2)),
    (0, (8, 3)),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "h")
INK = "#1a1a1a"
QUIET = "#6b6b6b"
SIZES = ListedColormap(mpl.colormaps["viridis"](np.linspace(0, 0.85, 256)))
"""Colours of model sizes and budgets. The end of viridis is left out: yellow on white is faint."""

AXIS_LABELS = {c: row.label for c, row in TABLE.items()}
AXIS_LABELS |= {"loss": "loss (nats per token)", "compute": "compute 6 N D (FLOPs)"}
RC: dict[RcKeyType, object] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "axes.edgecolor": QUIET,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "svg.hashsalt": "bayeslaw",  # same figure, same bytes
}

type Look = dict[str, Any]
"""Properties of an artist, under the short names of `matplotlib.lines.Line2D`."""


CROSS: Look = {"ls": "", "marker": "x", "ms": 9, "mew": 1, "color": INK}
"""Of a measured loss outside its 90 % band."""
FILL_90 = 0.12
FILL_50 = 0.2
"""Opacity of 90 % bands, and of 50 % bands, which are drawn above them."""
AHEAD: Look = {"fc": "#eeeeea", "lw": 0, "zorder": 0}
"""Beyond the fitted rows."""


def look(i: int, **more: Any) -> Look:
    """Colour, line and marker of line i, and further properties."""
    n = i % len(COLOURS)
    properties: Look = {
        "color": COLOURS[n],
        "ls": LINES[n],
        "marker": MARKERS[n],
    }
    return properties | more


def key(label: str, **properties: Any) -> Line2D:
    return Line2D([], [], label=label, **properties)


@contextmanager
def style() -> Iterator[None]:
    """The common style, whatever the user's own is; also a decorator, ``@style()``."""
    # The backend stays the user's; to read which it is would import pyplot.
    defaults: dict[RcKeyType, object] = {**mpl.rcParamsDefault}
    del defaults["backend"]
    with mpl.rc_context({**defaults, **RC}):
        yield


def axis_label(column: str, declared: Mapping[str, Covariate]) -> str:
    """Label of an axis; of a covariate that a law declares with its unit."""
    if column not in declared:
        return AXIS_LABELS.get(column, column)
    row = declared[column]
    if row.unit == "1":
        return row.label
    return f"{row.label} ({row.unit})"


def log_axis(ax: Axes, values: npt.ArrayLike, name: str) -> None:
    """Make the x axis logarithmic over `values`, with ticks at these if few, or round numbers.

    FLOPs have ticks at powers of ten.
    """
    distinct = np.unique(np.asarray(values, float))
    low = distinct[0]
    high = distinct[-1]
    pad = (high / low) ** 0.07 if high > 1.001 * low else 1.5
    ax.set_xscale("log")
    ax.set_xlim(low / pad, high * pad)
    if name == "compute":
        ax.xaxis.set_major_locator(LogLocator())
        ax.xaxis.set_major_formatter(LogFormatterSciNotation())
    else:
        ax.xaxis.set_major_locator(FixedLocator(_ticks(distinct)))
        ax.xaxis.set_major_formatter(lambda value, _: count(value))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel(AXIS_LABELS.get(name, name))


def _ticks(distinct: Floats) -> list[float]:
    """The first of several choices of ticks in which no two labels overlap."""
    low = distinct[0]
    high = distinct[-1]
    if high <= 1.001 * low:
        return [float(low)]
    decades = np.arange(np.floor(np.log10(low)), np.log10(high) + 1)
    choices = []
    if len(distinct) <= 6:
        choices.append(distinct)
    for multiples in ((1, 2, 5), (1, 3), (1,)):
        choices.append(np.outer(10**decades, multiples).ravel())
    for step in range(2, 5):
        choices.append(10 ** decades[::step])
    for choice in choices:
        ticks = choice[(choice >= low) & (choice <= high)]
        if len(ticks) < 2:
            continue
        extent = np.log(high / low)
        gaps = np.diff(np.log(ticks)) / extent
        letters = max(len(count(tick)) for tick in ticks)
        # A letter takes 0.055 of the narrowest panel; a test measures the labels.
        if gaps.min() > 0.055 * letters:
            return [float(tick) for tick in ticks]
    return [float(low), float(high)]


def axes(
    panels: int,
    *,
    columns: int = 4,
    width: float = 2.5,
    height: float = 2.4,
    sharex: bool = False,
    sharey: bool = False,
) -> tuple[Figure, list[Axes]]:
    """A figure with `panels` axes in reading order, at most `columns` of them in a row."""
    wide = min(panels, columns)
    rows = math.ceil(panels / wide)
    size = (max(width * wide, 4.0), height * rows + 0.5)
    # Not from pyplot, which would show the figure a second time in a notebook.
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, wide, squeeze=False, sharex=sharex, sharey=sharey)
    in_order = list(grid.flat)
    for spare in in_order[panels:]:
        spare.remove()
    return figure, in_order[:panels]


def band(
    ax: Axes,
    x: npt.ArrayLike,
    low: npt.ArrayLike,
    high: npt.ArrayLike,
    colour: ColorType | Floats,
    *,
    fill: float = FILL_90,
    edges: bool = True,
    ls: LineStyleType = "-",
) -> None:
    """Fill between two curves, lightly; bands that overlap are told apart by their edges."""
    ax.fill_between(x, low, high, color=colour, alpha=fill, lw=0)
    if edges:
        line: Look = {"color": colour, "ls": ls, "lw": 0.6, "alpha": 0.8}
        ax.plot(x, low, **line)
        ax.plot(x, high, **line)


def band_key(
    label: str, colour: ColorType, *, fill: float = FILL_90, edges: bool = True
) -> Patch:
    width = 0.6 if edges else 0
    return Patch(label=label, fc=(colour, fill), ec=colour, lw=width)


def band_keys(colour: ColorType) -> tuple[Patch, Patch]:
    fifty = band_key("50 % band", colour, fill=FILL_90 + FILL_50, edges=False)
    return fifty, band_key("90 % band", colour)


def size_colours(sizes: Floats | Sequence[float]) -> ScalarMappable:
    """Colours of model sizes, or of budgets, on a logarithmic scale."""
    low = float(np.min(sizes))
    high = float(np.max(sizes))
    return ScalarMappable(LogNorm(low, max(high, 1.01 * low)), SIZES)


def shade_ahead(ax: Axes, end: float) -> None:
    """Shade what is beyond the `end` of the fitted rows."""
    right = ax.get_xlim()[1]
    ax.axvspan(end, right, **AHEAD)
    ax.set_xlim(right=right)


def title(figure: Figure, text: str) -> None:
    """Write text above the whole figure, on the left."""
    figure.suptitle(text, x=0.01, ha="left", fontsize=9)


def legend(figure: Figure, handles: Sequence[Artist], columns: int = 6) -> None:
    """Add one legend under the whole figure, with entries in at most `columns` columns."""
    fitting = int(figure.get_figwidth() // 1.55)
    most = max(1, min(columns, fitting))
    rows = math.ceil(len(handles) / most)
    wide = math.ceil(len(handles) / rows)
    figure.legend(handles=handles, ncols=wide, fontsize=9, loc="outside lower center")
