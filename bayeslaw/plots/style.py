"""How every figure looks: colours and line styles that survive print, numbers as a person reads."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bayeslaw.common.formatting import count

# Okabe and Ito (2008): told apart by people with any colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 2)), (0, (8, 3)))
MARKERS = ("o", "s", "^", "D", "v", "P", "h")
INK, QUIET = "#1a1a1a", "#6b6b6b"

LABELS = {
    "params": "model size N (parameters)",
    "tokens": "tokens D",
    "replay": "replay ratio r",
    "ptpp": "pre-training tokens per parameter",
    "loss": "loss (nats per token)",
}
SHORT = {"params": "N", "tokens": "D", "replay": "r", "ptpp": "PTPP"}
RC = {
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


@contextmanager
def style() -> Iterator[None]:
    """Draw in the house style, whatever the user's own settings are."""
    rc: Any = {**mpl.rcParamsDefault, **RC, "backend": mpl.rcParams["backend"]}
    with mpl.rc_context(rc):
        yield


def log_axis(ax: Axes, values: Any, name: str) -> None:
    """Logarithmic x axis over `values`, with ticks at them if few, or at round numbers."""
    distinct = np.unique(np.asarray(values, float))
    low, high = distinct[0], distinct[-1]
    pad = (high / low) ** 0.07 if high > 1.001 * low else 1.5
    ax.set_xscale("log")
    ax.set_xlim(low / pad, high * pad)
    ax.xaxis.set_major_locator(FixedLocator(_ticks(distinct)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel(LABELS.get(name, name))


def _ticks(distinct: Any) -> list[float]:
    """First of several choices of ticks in which no two labels run into each other."""
    low, high = distinct[0], distinct[-1]
    if high <= 1.001 * low:
        return [float(low)]
    decades = np.arange(np.floor(np.log10(low)), np.log10(high) + 1)
    choices = [distinct] if len(distinct) <= 6 else []
    choices += [np.outer(10**decades, m).ravel() for m in ((1, 2, 5), (1, 3), (1,))]
    choices += [10 ** decades[::step] for step in range(2, 5)]
    for choice in choices:
        ticks = choice[(choice >= low) & (choice <= high)]
        gaps = np.diff(np.log(ticks)) / np.log(high / low)
        letters = max((len(count(tick)) for tick in ticks), default=0)
        if len(ticks) > 1 and gaps.min() > 0.055 * letters:
            return [float(tick) for tick in ticks]
    return [float(low), float(high)]


def axes(
    panels: int, *, columns: int = 4, width: float = 2.5, height: float = 2.4, **kwargs: Any
) -> tuple[Figure, list[Axes]]:
    """Figure with at least `panels` axes in reading order, at most `columns` of them in a row."""
    wide = min(panels, columns)
    rows = -(-panels // wide)
    size = (max(width * wide, 4.0), height * rows + 0.5)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, wide, squeeze=False, **kwargs)
    shown = list(grid.flat)
    for spare in shown[panels:]:
        spare.remove()
    return figure, shown[:panels]


def legend(figure: Figure, handles: list[Any], columns: int = 6) -> None:
    """One legend under the whole figure."""
    room = max(1, min(columns, int(figure.get_figwidth() // 1.55)))
    lines = -(-len(handles) // room)
    look: Any = {"frameon": False, "fontsize": 9, "loc": "outside lower center"}
    figure.legend(handles=handles, ncols=-(-len(handles) // lines), **look)


def from_arviz(draw: Callable[[], Any]) -> Figure:
    """Figure of an ArviZ plot, taken out of pyplot's hands so that it is shown only once."""
    import matplotlib.pyplot as plt

    with style():
        figure: Figure = draw().viz["figure"].item()
        plt.close(figure)
    return figure


def p_value(p: float) -> str:
    """Text of a p-value in a figure."""
    return f"test of uniformity: p = {p:.2g}" if p >= 0.001 else "test of uniformity: p < 0.001"
