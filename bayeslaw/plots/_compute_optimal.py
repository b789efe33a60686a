"""IsoFLOP curves, and compute-optimal model sizes and tokens of all budgets."""

from collections.abc import Sequence

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
)
from bayeslaw.tables.hull import farthest

# Of a posterior, and budgets, for the frontier.
FRONTIER_DRAWS, FRONTIER_BUDGETS = (
    1000,
    25,
)
ENDS_90 = (0.05, 0.5, 0.95)
BEST_MARK: Look = {"marker": "D", "ms": 5, "mec": INK, "mew": 0.8, "ls": ""}
NEAR_LOG_FLOPS = (
    0.1  # difference of log FLOPs up to which a row is drawn beside an isoFLOP curve
)


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
    asked = sorted(positive("flops", flops))
    checked(posterior)
    rows = posterior.table.measured.assign(compute=training_flops(posterior))
    ends = min(asked[0], rows["compute"].min()), max(asked[-1], rows["compute"].max())
    given = {"replay": replay, "ptpp": ptpp, **own}
    law = posterior if drift else law_as_stated(posterior)
    budgets, rule = (
        budgets_of(fit, search, given, spread_draws(fit.count, FRONTIER_DRAWS))
        for fit in (posterior, law)
    )
    colours = size_colours(asked)
    figure, (curves, *frontiers) = axes(3, width=3.4, height=3.3)
    best = np.array([rule.best(np.log(c))[0] for c in asked])
    _iso_flops(curves, asked, colours, budgets, best, rows)
    beyond = bool(ends[1] > 1.001 * rows["compute"].max())
    drifting = None if law is posterior else budgets
    _frontiers(
        frontiers, np.geomspace(*ends, FRONTIER_BUDGETS), rule, drifting, rows, beyond
    )
    line = "the fit, with drift" if drift else "the law as stated"
    handles: list[Artist] = [
        *(key(f"C {c:.3g} FLOPs", color=colours.to_rgba(np.array(c))) for c in asked),
        key("best N, 90 %" if drift else "recommended N, 90 %", color=INK, **BEST_MARK),
        key("fitted rows", color=QUIET, marker="o", ls="", ms=3),
        key(line, color=COLOURS[0]),
        band_key(
            "its 90 % band" if drift else "its 90 % band, if the law holds", COLOURS[0]
        ),
    ]
    if drifting is not None:
        handles.append(band_key("90 % where exponents drift", QUIET))
    handles += [Patch(label="beyond the fitted rows", **AHEAD)] * beyond
    legend(figure, handles)
    far = farthest(rule.splits(asked, best.T)[0].positions)
    title = "; ".join(
        f"best splits: {name} up to {words}" for name, words in far.items()
    )
    figure.suptitle(title, x=0.01, ha="left", fontsize=9)
    return figure


def _iso_flops(
    ax: Axes,
    asked: Sequence[float],
    colours: ScalarMappable,
    budgets: Budgets,
    best: Floats,
    rows: pd.DataFrame,
) -> None:
    """Loss against N at each budget, with the best N; `best` are log(D / N), (budgets, draws)."""
    best_sizes = np.quantile(
        split_of(np.log(asked)[:, None], best)["params"], ENDS_90, axis=1
    ).T
    least_losses = []
    for c, (first, middle_size, last) in zip(asked, best_sizes, strict=True):
        colour = colours.to_rgba(np.array(c))
        sizes = split_of(np.log(c), (ratios := budgets.ratios(WIDE_RATIO_STEP)))[
            "params"
        ]
        low, middle, high = np.quantile(
            budgets.along(np.log(c), ratios), ENDS_90, axis=0
        )
        band(ax, sizes, low, high, colour)
        ax.plot(sizes, middle, color=colour)
        # Sizes fall with D / N.
        least_losses.append(float(np.interp(middle_size, sizes[::-1], middle[::-1])))
        near = rows[np.abs(np.log(rows["compute"] / c)) < NEAR_LOG_FLOPS]
        ax.plot(
            near["params"], near["loss"], "o", color=colour, ms=3, mec="white", mew=0.3
        )
        if determined(first, last):
            error = [[middle_size - first], [last - middle_size]]
            whisker: Look = {"xerr": error, "ecolor": INK, "zorder": 4, "capsize": 3}
            ax.errorbar(
                middle_size, least_losses[-1], **whisker, mfc=colour, **BEST_MARK
            )
    # Whiskers end within the axis.
    drawn = [sizes for sizes in best_sizes if determined(sizes[0], sizes[2])] or [
        *best_sizes
    ]
    log_axis(ax, np.geomspace(np.min(drawn) / 4, np.max(drawn) * 4, 9), "params")
    ax.set_ylim(0.97 * min(least_losses), 1.12 * max(least_losses))
    ax.set_ylabel("latent " + AXIS_LABELS["loss"])


def _frontiers(
    panels: Sequence[Axes],
    flops: Floats,
    rule: Budgets,
    drift: Budgets | None,
    rows: pd.DataFrame,
    beyond: bool,
) -> None:
    """Best N and best D / N against the budget: by the law as stated, and with drift."""
    fitted = {"params": rows["params"], "ratio": rows["tokens"] / rows["params"]}
    drifting = [] if drift is None else [(drift, QUIET)]
    for splitting, colour in [*drifting, (rule, COLOURS[0])]:
        best = np.array([splitting.best(np.log(c), WIDE_RATIO_STEP)[0] for c in flops])
        values = split_of(np.log(flops)[:, None], best) | {"ratio": np.exp(best)}
        for ax, name in zip(panels, fitted, strict=True):
            low, middle, high = np.quantile(values[name], ENDS_90, axis=1)
            shown = np.array(
                [determined(*pair) for pair in zip(low, high, strict=True)]
            )
            low, middle, high = (
                np.where(shown, ends, np.nan) for ends in (low, middle, high)
            )
            band(ax, flops, low, high, colour)
            if splitting is rule:
                ax.plot(flops, middle, color=colour)
    labels = AXIS_LABELS["params"], "tokens per parameter D / N"
    for ax, label, values_of_rows in zip(panels, labels, fitted.values(), strict=True):
        ax.plot(
            rows["compute"], values_of_rows, "o", ms=2.5, color=QUIET, alpha=0.5, mew=0
        )
        log_axis(ax, flops, "compute")
        ax.set(yscale="log", ylabel=label)
        if beyond:
            shade_ahead(ax, rows["compute"].max())
    panels[0].yaxis.set_major_formatter(lambda value, _: count(value))
    panels[1].yaxis.set_major_formatter("{x:g}")
