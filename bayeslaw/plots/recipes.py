"""Figures of recipes that are compared."""

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayeslaw.common.arrays import Floats
from bayeslaw.derive._frontier import ON_FRONTIER, Frontier
from bayeslaw.derive.intervals import interval, quantile
from bayeslaw.plots.style import COLOURS, INK, QUIET, Look, axes, key, legend, style

FEW = 12
"""Recipes that are all named; of more, only those on the frontier."""
POINTS = 80
"""Target losses at which the frontier's band is evaluated."""
ON: Look = {"marker": "o", "ls": "", "color": COLOURS[0], "ms": 5}
OFF: Look = {"marker": "o", "ls": "", "color": QUIET, "ms": 4, "mfc": "white"}
CHOSEN: Look = {"marker": "*", "ls": "", "ms": 15, "mfc": "#F0E442", "mec": "black"}
BAND: Look = {"color": COLOURS[0], "alpha": 0.12, "lw": 0}


@style()
def frontier(result: Frontier) -> Figure:
    """Source loss against target loss of each recipe, with 90 % bands and the frontier's band.

    Filled points are on the frontier with probability 0.5 or more. At each target loss the shaded
    band has 90 % of the draws of the least source loss of all recipes that are as good on the
    target. The star is the recipe to choose, and the dashed line the limit on the source loss.
    """
    frame = result.to_frame(0.9)
    figure, (ax,) = axes(1, width=5.4, height=4.0)
    handles = [_band(ax, result)]
    groups = (
        ("on the frontier, P ≥ 0.5", frame["p_frontier"] >= ON_FRONTIER, ON),
        ("behind it", frame["p_frontier"] < ON_FRONTIER, OFF),
    )
    for label, of_group, marks in groups:
        rows = frame[of_group]
        if rows.empty:
            continue
        look: Look = {"elinewidth": 0.7, "alpha": 0.8, **marks}
        for axis, output in (("xerr", "target"), ("yerr", "source")):
            below = rows[output] - rows[f"{output}_lower"]
            above = rows[f"{output}_upper"] - rows[output]
            look[axis] = np.stack([below, above])
        ax.errorbar(rows["target"], rows["source"], **look)
        handles.append(key(label, **marks))
        if len(frame) <= FEW or marks is ON:
            for row in rows.to_dict("records"):
                place = (row["target"], row["source"])
                label_of_recipe = f" {row['recipe']}"
                ax.annotate(
                    label_of_recipe,
                    place,
                    (3, 3),
                    textcoords="offset points",
                    fontsize=7,
                    rotation=30,  # recipes of one source loss stand side by side
                )
    if result.choice is not None:
        chosen = frame[frame["recipe"] == result.choice]
        ax.plot(chosen["target"], chosen["source"], **CHOSEN, zorder=5)
        handles.append(key(f"to choose: {result.choice}", **CHOSEN))
    if result.limit is not None:
        line: Look = {"color": INK, "ls": "--", "lw": 1}
        ax.axhline(result.limit, **line)
        handles.append(key("limit on the source loss", **line))
    ax.margins(x=0.15)
    ax.set_xlabel("target loss (nats per token)")
    ax.set_ylabel("source loss (nats per token)")
    if result.synthetic:
        ax.set_title("Synthetic data", loc="left")
    legend(figure, handles, columns=2)
    return figure


def _band(ax: Axes, result: Frontier) -> Artist:
    """Draw the band of the least source loss of recipes that are as good on the target."""
    lowest, _ = interval(result.target.min(0), 0.9)
    highest = max(quantile(of_recipe, 0.5) for of_recipe in result.target)
    levels = np.linspace(lowest, highest, POINTS)
    low, high = np.full((2, POINTS), np.nan)
    for i, level in enumerate(levels):
        least: Floats = np.where(result.target <= level, result.source, np.inf).min(0)
        low[i] = quantile(least, 0.05)
        high[i] = quantile(least, 0.95)
    # Where some draws have no recipe that good, the band is open above.
    top = max(quantile(of_recipe, 0.95) for of_recipe in result.source)
    drawn = np.isfinite(low)
    high = np.where(np.isfinite(high), high, top)
    return ax.fill_between(
        levels[drawn], low[drawn], high[drawn], label="frontier, 90 %", **BAND
    )
