"""Figures of the measured results, from the CSV files of the benchmarks alone: a few seconds.

    python -m benchmarks figures

The numbers of each figure are kept in its PNG file too, so a test can tell whether a picture is of
today's CSV files.
"""

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import NullLocator

from bayeslaw.plots.style import INK, MARKERS, Look, key, look, style
from benchmarks import figure_numbers as numbers_of
from benchmarks.dots import WIDTH, Panel, coverage, dot_plot, keep
from benchmarks.figure_numbers import (
    ALL,
    COUPLED,
    CURVATURE,
    DEFAULT,
    EXACT,
    HUBER,
    LOSSES,
    MEAN,
    PLACES,
    RIVAL,
    SEPARABLE,
    SOURCES,
    WITHOUT,
)
from benchmarks.held_out import FAR_NAMES
from benchmarks.runner import FOLDER, Jobs, experiment

PICTURES = FOLDER.parent / "docs" / "pictures"

# -- how methods look --------------------------------------------------------------------------

LOOKS: dict[str, Look] = {
    DEFAULT: look(0, ms=6.5),
    CURVATURE: look(5, ms=7),
    EXACT: look(2),
    HUBER: look(4),
    RIVAL: look(1),
    SEPARABLE: look(3),
    COUPLED: look(6),
}
"""Methods in the order of the rows of a figure."""
FEW = {name: LOOKS[name] for name in (DEFAULT, EXACT, RIVAL)}
LAW_LOOKS = {
    "mixture": look(0, ms=6.5),
    "dcpt": look(1),
    "transfer": look(0, ms=6.5),
    "form1n": look(1),
}
COLUMN_LOOKS = {
    DEFAULT: LOOKS[DEFAULT],
    EXACT: LOOKS[EXACT],
    WITHOUT: look(6),
}
PLAN_LOOKS = {LOSSES["latent"]: look(0, ms=6.5), LOSSES["predictive"]: look(1)}

# -- axes of dot plots -------------------------------------------------------------------------


def error(
    limits: tuple[float, float], ticks: tuple[float, ...], ends: bool = False
) -> Panel:
    """The signed error of medians."""
    low, high = ("low_error", "high_error") if ends else ("", "")
    label = "error of the median (%), + is too high"
    return Panel("error", label, low, high, line=0, ticks=ticks, limits=limits)


def crps_panel(ticks: tuple[float, ...], limits: tuple[float, float]) -> Panel:
    """CRPS of log loss, on a logarithmic axis."""
    label = "CRPS of log loss, less is better"
    return Panel("crps", label, log=True, ticks=ticks, limits=limits)


RATIO = Panel(
    "ratio",
    "CRPS over that of the default",
    "least",
    "most",
    line=1,
    log=True,
    ticks=(0.5, 1, 2, 5, 10),
)


def kept_panel(level: int) -> Panel:
    """The share of plans that kept their limits, and what they stated."""
    label = f"plans that kept their limits (%),\nstated {level} %"
    ends = f"low_{level}", f"high_{level}"
    ticks = (0, 20, 40, 60, 80, 100)
    return Panel(
        f"kept_{level}", label, *ends, line=level, ticks=ticks, limits=(0, 102)
    )


def budget_panel(level: int) -> Panel:
    """Budgets of plans over the least that would have kept the limits."""
    label = f"budget over the least one,\nplans with a stated {level} %"
    ticks = (1, 2, 4)
    return Panel(
        f"budget_{level}", label, line=1, log=True, ticks=ticks, limits=(0.8, 5)
    )


RANGE = "#dcdcdc"
BANDS = {90: INK, 80: "#6b6b6b", 50: "#a0a0a0"}
"""Greys of bands, since colours are sources."""

# -- figures that are no dot plots -------------------------------------------------------------


def draw_distance(numbers: pd.DataFrame) -> Figure:
    """Signed errors on the left, shares inside bands on the right."""
    every = numbers[numbers["source"] == ALL]
    place = {name: i for i, name in enumerate(every["bin"])}
    x = every["bin"].map(place)
    with style():
        figure = Figure(figsize=(WIDTH, 4.4), layout="constrained")
        left, right = figure.subplots(1, 2)
        left.axhline(0, color=INK, lw=1, ls=(0, (4, 2)))
        left.fill_between(
            x, every["low_error"], every["high_error"], color=RANGE, lw=0, zorder=0
        )
        handles: list[Artist] = []
        for i, source in enumerate(SOURCES.values()):
            own = numbers[numbers["source"] == source]
            one = look(i, lw=0.9, ms=5, mec="white", mew=0.5, ls="-")
            left.plot(own["bin"].map(place), own["error"], **one)
            handles.append(key(source, **one))
        whole: Look = {"color": INK, "lw": 2.2, "marker": MARKERS[6], "ms": 6}
        left.plot(x, every["error"], **whole)
        handles.append(key("all, median", **whole))
        handles.append(Patch(label="all, middle 80 %", fc=RANGE))
        left.set_ylabel("error of the median (%), + is too high")
        below: Look = {"ncols": 3, "fontsize": 8.5, "loc": "outside lower left"}
        figure.legend(handles=handles, **below)
        handles = []
        for i, (level, colour) in enumerate(BANDS.items()):
            one = {"marker": MARKERS[i], "color": colour, "ms": 5.5, "ls": ""}
            steps = x + 0.14 * (i - 1)
            right.axhline(level, color=colour, lw=0.9, ls=(0, (4, 2)))
            ends = every[f"low_{level}"], every[f"high_{level}"]
            right.vlines(steps, *ends, colour, lw=1.1)
            right.plot(steps, every[f"inside_{level}"], **one)
            handles.append(key(f"{level} % band", **one))
        right.set(ylabel="losses inside the band (%)", ylim=(0, 103))
        below["loc"] = "outside lower right"
        figure.legend(handles=handles, **below | {"ncols": 1})
        labels = []
        for name, losses in zip(every["bin"], every["losses"], strict=True):
            bin_of_two_lines = name.replace(" ", "\n", 1)
            labels.append(f"{bin_of_two_lines}\n({losses:.0f})")
        for ax in (left, right):
            ax.set_xticks(x, labels, fontsize=8)
            ax.set_xlabel("decades beyond the fitted rows\n(number of losses)")
    return figure


def draw_anchors(numbers: pd.DataFrame) -> Figure:
    """Dots of the domains on one line, and their mean in black."""
    domains = [name for name in dict.fromkeys(numbers["method"]) if name != MEAN]
    looks = {name: look(i, ms=4.5) for i, name in enumerate(domains)}
    looks[MEAN] = {"color": INK, "marker": "|", "ms": 13, "mew": 2.2, "mec": INK}
    width = "mean width of the\n90 % band (% of the loss)"
    panels = (
        Panel("width", width, ticks=(0, 5, 10, 15, 20), limits=(0, 21)),
        Panel("crps", "CRPS of log loss,\nless is better", log=True,
              ticks=(0.003, 0.01, 0.03)),
        Panel("inside_90", "losses inside the\n90 % band (%)", line=90,
              ticks=(60, 70, 80, 90, 100), limits=(58, 102)),
    )  # fmt: skip
    return dot_plot(numbers, panels, looks, columns=3, dodge=False, key_columns=3)


def draw_runs(numbers: pd.DataFrame) -> Figure:
    """Width above, coverage below; the smallest sizes on the left, spread ones on the right."""
    shown = [name for name in FAR_NAMES if name in set(numbers["far"])]
    counts = sorted(set(numbers["rows"]))
    with style():
        figure = Figure(figsize=(WIDTH, 5.0), layout="constrained")
        grid = figure.subplots(2, 2, sharex=True, sharey="row")
        for (above, below), (place, title) in zip(grid.T, PLACES.items(), strict=True):
            below.axhline(90, color=INK, lw=1, ls=(0, (4, 2)))
            for i, far in enumerate(shown):
                own = numbers[(numbers["place"] == place) & (numbers["far"] == far)]
                x = own["rows"].map(counts.index)
                one = look(i, ms=5.5, mec="white", mew=0.5)
                above.plot(x, own["width_90"], **one)
                steps = x + 0.16 * (i - 1)
                below.vlines(steps, own["least"], own["inside_90"], one["color"], lw=1)
                below.plot(steps, own["inside_90"], **one | {"ls": ""})
                below.plot(steps, own["least"], "_", color=one["color"], ms=7)
            above.set(title=title, yscale="log", yticks=(5, 10, 20, 40))
            above.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            above.yaxis.set_minor_locator(NullLocator())
            below.set_xticks(range(len(counts)), counts)
            below.set(xlabel="number of fitted runs", ylim=(60, 102))
        grid[0, 0].set_ylabel("width of the 90 % band\n(% of the loss)")
        grid[1, 0].set_ylabel("losses inside\nthe 90 % band (%)")
        handles = []
        for i, far in enumerate(shown):
            handles.append(key(far.replace("to 0.5", "up to 0.5"), **look(i, ms=5.5)))
        title = "decades beyond the fitted runs"
        place_of: Look = {"ncols": 3, "fontsize": 8.5, "loc": "outside lower center"}
        figure.legend(handles=handles, title=title, title_fontsize=8.5, **place_of)
    return figure


# -- every figure ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Picture:
    """The numbers of a figure, and how they are drawn."""

    numbers: Callable[[], pd.DataFrame]
    draw: Callable[[pd.DataFrame], Figure]


def few_methods(numbers: pd.DataFrame) -> Figure:
    """README's variant: 90 % bands of three methods on the six sources."""
    numbers = numbers[~numbers["row"].str.startswith(ALL)]
    return dot_plot(numbers, [coverage(90)], FEW, columns=1, key_columns=3)


BOTH = (coverage(90), coverage(50))
FIGURES = {
    "coverage": Picture(
        numbers_of.six_sources, partial(dot_plot, panels=BOTH, looks=LOOKS)
    ),
    "coverage_few": Picture(numbers_of.six_sources, few_methods),
    "crps": Picture(
        numbers_of.crps_ratios,
        partial(
            dot_plot,
            panels=(RATIO, error((-10, 6), (-9, -6, -3, 0, 3, 6))),
            looks=LOOKS,
        ),
    ),
    "distance": Picture(numbers_of.distance, draw_distance),
    "real_models": Picture(
        numbers_of.real_models,
        partial(
            dot_plot,
            panels=(
                *BOTH,
                error((-2, 15), (0, 5, 10, 15)),
                crps_panel((0.003, 0.01, 0.03, 0.1), (0.0025, 0.16)),
            ),
            looks=LOOKS,
        ),
    ),
    "replay": Picture(
        numbers_of.replay,
        partial(
            dot_plot,
            panels=(
                *BOTH,
                error((-11, 11), (-10, -5, 0, 5, 10)),
                crps_panel((0.003, 0.01, 0.03, 0.1, 0.3), (0.0018, 0.6)),
            ),
            looks=LAW_LOOKS,
            row_height=0.38,
        ),
    ),
    "adaptation": Picture(
        numbers_of.adaptation,
        partial(
            dot_plot,
            panels=(
                *BOTH,
                error((-5, 3), (-4, -2, 0, 2), ends=True),
                crps_panel((0.003, 0.005, 0.01, 0.02), (0.0025, 0.025)),
            ),
            looks=LAW_LOOKS,
            row_height=0.34,
        ),
    ),
    "further_columns": Picture(
        numbers_of.further_columns,
        partial(
            dot_plot,
            panels=(
                *BOTH,
                error((-15, 12), (-10, -5, 0, 5, 10)),
                Panel(
                    "r2",
                    "R² of log losses, 1 is best",
                    line=1,
                    ticks=(-0.5, 0, 0.5, 1),
                    limits=(-0.55, 1.05),
                ),
            ),
            looks=COLUMN_LOOKS,
        ),
    ),
    "anchors": Picture(numbers_of.anchors, draw_anchors),
    "runs": Picture(numbers_of.runs, draw_runs),
    "plans_kept": Picture(
        numbers_of.plans,
        partial(
            dot_plot,
            panels=(
                kept_panel(80),
                kept_panel(90),
                budget_panel(80),
                budget_panel(90),
            ),
            looks=PLAN_LOOKS,
            row_height=0.36,
        ),
    ),
}
"""Every figure by the name of its file."""


@experiment(keep=False, folder=PICTURES)
def figures(options: Namespace) -> Jobs:
    """Figures of the measured results, from today's CSV files alone."""
    for name, picture in FIGURES.items():

        def job(name: str = name, picture: Picture = picture) -> dict[str, str]:
            path = Path(options.folder) / f"{name}.png"
            numbers = picture.numbers()
            keep(picture.draw(numbers), numbers, path)
            return {"path": str(path)}

        yield {"figure": name}, job
