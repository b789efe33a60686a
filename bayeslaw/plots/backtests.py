"""Figure of a backtest: error and bands against the distance beyond the cut."""

import numpy as np
from matplotlib.figure import Figure

from bayeslaw.evaluate.backtesting import Backtest
from bayeslaw.plots.style import COLOURS, INK, axes, style


def backtest(found: Backtest) -> Figure:
    """Errors of later rows against how far they lay beyond the cut, one panel per model.

    The error is that of the median forecast in percent. Lines are the 90 % bands of the rows, and
    measured losses outside them are crossed.

    Parameters
    ----------
    found : Backtest

    Returns
    -------
    Figure
    """
    with style():
        figure, shown = axes(len(found.models), columns=3, width=3.4, height=2.6, sharey=True)
        for ax, model in zip(shown, found.models, strict=True):
            rows = found.rows[found.rows["model"] == model]
            inside = rows["inside_90"].to_numpy(bool)
            far, error = rows["decades"].to_numpy(), -100 * rows["error"].to_numpy()
            low, high = (
                100 * np.log(rows[end].to_numpy() / rows["median"].to_numpy())
                for end in ("lower_90", "upper_90")
            )
            ax.vlines(far, low, high, color=COLOURS[0], alpha=0.25, lw=2)
            ax.plot(far[inside], error[inside], "o", color=INK, ms=3)
            ax.plot(far[~inside], error[~inside], "x", color=COLOURS[1], ms=5)
            ax.axhline(0, color=INK, lw=0.8)
            held = f"{inside.sum()} of {len(inside)} in the 90 % band"
            ax.set(title=f"{model}: {held}", xlabel=f"decades of {found.along} beyond the cut")
            ax.set_xlim(0, 1.05 * np.max(far))
        shown[0].set_ylabel("measured over forecast (%)")
    return figure
