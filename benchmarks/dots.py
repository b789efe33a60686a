"""Dot plots in the style of the package, and the numbers that a picture keeps of itself.

A dot plot has a row for each thing that was forecast, and a dot for each method. Its numbers are a
frame with a line for each dot: the columns `row` and `method`, and those that the panels name.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from scipy.stats import binomtest

from bayeslaw.plots.style import INK, Look, key, style

WIDTH = 7.0
"""Inches, of every picture: a page shows it 700 pixels wide."""
DPI = 200
NUMBERS = "Numbers"
"""Key of the PNG file's text under which a picture keeps the numbers that it shows."""
SHADE = "#f5f5f2"
"""Background of every other row."""


@dataclass(frozen=True)
class Panel:
    """One x axis: the column that it shows, and how.

    `low` and `high` name the columns of the ends of a line through the dot. A dot beyond the
    `limits` of the axis is an arrow at its edge, with its number.
    """

    value: str
    label: str
    low: str = ""
    high: str = ""
    line: float | None = None
    log: bool = False
    ticks: tuple[float, ...] = ()
    limits: tuple[float, float] | None = None


def coverage(level: int, losses: str = "losses") -> Panel:
    """The share of losses inside a band, with its interval and what the band promises."""
    ticks = (0, 25, 50, 75, 100) if level == 50 else (0, 30, 60, 90)
    return Panel(
        f"inside_{level}",
        f"{losses} inside the {level} % band (%)",
        f"low_{level}",
        f"high_{level}",
        line=level,
        ticks=ticks,
        limits=(-3, 103),
    )


def with_interval(rows: pd.DataFrame, level: int) -> pd.DataFrame:
    """Add the percentage of `losses` that are `in_LEVEL` bands, and its 95 % Wilson interval."""
    found = []
    for inside, losses in zip(rows[f"in_{level}"], rows["losses"], strict=True):
        count = round(float(inside))
        ends = binomtest(count, int(losses)).proportion_ci(method="wilson")
        found.append(
            {
                f"inside_{level}": 100 * count / losses,
                f"low_{level}": 100 * ends.low,
                f"high_{level}": 100 * ends.high,
            }
        )
    return rows.join(pd.DataFrame(found, index=rows.index))


def dot_plot(
    numbers: pd.DataFrame,
    panels: Sequence[Panel],
    looks: Mapping[str, Look],
    *,
    columns: int = 2,
    dodge: bool = True,
    row_height: float | None = None,
    key_columns: int = 3,
) -> Figure:
    """Draw the numbers: rows from the top in their order, methods in the order of `looks`.

    With `dodge` the methods of a row lie below each other, else on one line.
    """
    names = list(dict.fromkeys(numbers["row"]))
    methods = [name for name in looks if name in set(numbers["method"])]
    if row_height is None:
        row_height = 0.09 * len(methods) + 0.14 if dodge else 0.26
    grid_rows = -(-len(panels) // columns)
    keys = -(-len(methods) // key_columns)
    height = grid_rows * (row_height * len(names) + 0.55) + 0.2 * keys + 0.1
    with style():
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        grid = figure.subplots(grid_rows, columns, sharey=True, squeeze=False).flat
        for ax, panel in zip(grid, panels, strict=True):
            draw_panel(ax, panel, numbers, names, methods, looks, dodge=dodge)
        handles = [key(name, **_dot(looks[name])) for name in methods]
        figure.legend(
            handles=handles,
            ncols=min(key_columns, len(methods)),
            fontsize=8.5,
            loc="outside lower center",
            handletextpad=0.2,
            columnspacing=1.2,
        )
    return figure


def short(value: float) -> str:
    """A number as the ticks of Matplotlib show it, with a minus sign."""
    return f"{value:g}".replace("-", "\N{MINUS SIGN}")


def _dot(look: Look) -> Look:
    """A marker without a line."""
    return {"ms": 5, "mec": "white", "mew": 0.5} | look | {"ls": ""}


def draw_panel(
    ax: Axes,
    panel: Panel,
    numbers: pd.DataFrame,
    names: list[str],
    methods: list[str],
    looks: Mapping[str, Look],
    *,
    dodge: bool,
) -> None:
    """Draw one panel of a dot plot."""
    for place in range(0, len(names), 2):
        ax.axhspan(place - 0.5, place + 0.5, fc=SHADE, lw=0, zorder=0)
    if panel.line is not None:
        ax.axvline(panel.line, color=INK, lw=1, ls=(0, (4, 2)), zorder=1)
    # Two methods lie closer to each other than to those of the next row.
    apart = min(0.22, 0.76 / max(len(methods) - 1, 1)) if dodge else 0.0
    steps = apart * (np.arange(len(methods)) - (len(methods) - 1) / 2)
    for method, step in zip(methods, steps, strict=True):
        own = numbers[numbers["method"] == method].dropna(subset=panel.value)
        for _, dot in own.iterrows():
            _draw_dot(ax, panel, dot, names.index(dot["row"]) + step, looks[method])
    if panel.log:
        ax.set_xscale("log")
    if panel.limits is not None:
        ax.set_xlim(panel.limits)
    if panel.ticks:
        ax.xaxis.set_major_locator(FixedLocator(panel.ticks))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(lambda value, _: short(value))
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    ax.grid(visible=False, axis="y")
    ax.set_xlabel(panel.label)


def _draw_dot(ax: Axes, panel: Panel, dot: pd.Series, place: float, look: Look) -> None:
    """Draw a dot with its interval; beyond the axis an arrow with its number."""
    value = dot[panel.value]
    colour = look["color"]
    if panel.low:
        ends = [dot[panel.low], dot[panel.high]]
        ax.plot(ends, [place, place], color=colour, lw=1.1, alpha=0.65, zorder=2)
    low, high = panel.limits or (-np.inf, np.inf)
    if low <= value <= high:
        ax.plot(value, place, zorder=3, **_dot(look))
        return
    right = value > high
    edge = high if right else low
    arrow = {"marker": ">" if right else "<", "color": colour, "ms": 5}
    ax.plot(edge, place, clip_on=False, zorder=3, **arrow)
    ax.annotate(
        short(float(f"{value:.2g}")),
        (edge, place),
        (-6 if right else 6, 0),
        textcoords="offset points",
        ha="right" if right else "left",
        va="center",
        fontsize=7.5,
        color=colour,
    )


# -- numbers in a picture ----------------------------------------------------------------------


def keep(figure: Figure, numbers: pd.DataFrame, path: Path) -> None:
    """Save a picture, in 256 colours, with the numbers that it shows as text in the file."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=DPI, format="png")
    text = PngInfo()
    text.add_text(NUMBERS, numbers.to_csv(index=False, float_format="%.5g"))
    with Image.open(drawn) as image:
        few = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    few.save(path, pnginfo=text, optimize=True, dpi=(DPI, DPI))


def kept(path: Path) -> pd.DataFrame:
    """The numbers that a saved picture shows."""
    with Image.open(path) as image:
        return pd.read_csv(io.StringIO(image.text[NUMBERS]), keep_default_na=True)
