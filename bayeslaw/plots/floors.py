"""Forecasts and derived numbers against the floor E."""

import numpy as np
from matplotlib.figure import Figure

from bayeslaw.common.formatting import digits
from bayeslaw.derive.exponents import FloorSensitivity
from bayeslaw.plots.style import COLOURS, axes, style

MOST = 12
"""Largest number of panels; of more numbers the first are drawn."""


def floor_sensitivity(found: FloorSensitivity) -> Figure:
    """Median and 80 % interval of each number, with the floor E in a slice of its posterior.

    The dashed line is the median over all draws. The title states the fraction of the number's
    variance that E explains. Slices where the median is infinite are not drawn, and an infinite end
    of an interval is drawn at the greatest median.

    Parameters
    ----------
    found : FloorSensitivity
        From `bayeslaw.derive.floor_sensitivity`.

    Returns
    -------
    matplotlib.figure.Figure
    """
    shown = found.summary.head(MOST)
    slices = len(found.profile) // len(found.summary)
    asked = [c for c in shown.columns[1:] if c in found.profile and c != "median"]
    with style():
        figure, panels = axes(len(shown), columns=3)
        for i, (ax, (_, row)) in enumerate(zip(panels, shown.iterrows(), strict=True)):
            profile = found.profile.iloc[i * slices : (i + 1) * slices]
            finite = profile[np.isfinite(profile["median"])]
            upper = finite["upper_80"].replace(np.inf, finite["median"].max())
            ax.fill_between(finite["E"], finite["lower_80"], upper, color=COLOURS[0], alpha=0.25)
            ax.plot(finite["E"], finite["median"], color=COLOURS[0], marker="o", ms=3)
            if np.isfinite(row["median"]):
                ax.axhline(row["median"], color=COLOURS[1], ls="--", lw=1)
            if row["median"] > 1e4 and (finite["lower_80"] > 0).all():
                ax.set_yscale("log")
            where = ", ".join(f"{c} {row[c]:.3g}" for c in asked)
            share = f"E explains {digits(100 * row['explained'], 2)} %"
            ax.set_title("\n".join(filter(None, [str(row["quantity"]), where, share])))
            ax.set_xlabel("floor E (nats per token)")
    return figure
