"""Figures of a plan: its landscape over budget and replay, and its budget by confidence."""

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from bayeslaw.common.arrays import Floats
from bayeslaw.common.formatting import count
from bayeslaw.planning.chance_constraints import Problem
from bayeslaw.planning.choices import Choice
from bayeslaw.planning.result import Plan
from bayeslaw.plots.style import COLOURS, INK, QUIET, Look, axes, key, legend, style

LEVELS = (0.5, 0.8, 0.9, 0.95)
"""P(both) of the contours, besides that of the confidence asked for."""
LIMIT, CONTOUR, BEST, POINT = COLOURS[1], INK, "#F0E442", COLOURS[5]
DIAMOND: Look = {"marker": "D", "ms": 7, "mfc": POINT, "mec": "black", "ls": ""}
HATCHED: Look = {"fc": "none", "ec": (1.0, 1.0, 1.0, 0.5), "hatch": "///", "lw": 0}
"""Hatching over the surfaces, outside the data."""
MOST = 1000
"""Largest number of draws for the medians of the coloured surfaces; P(both) uses all draws."""


@style()
def plan_landscape(plan: Plan, *, points: int = 81) -> Figure:
    """Forgetting and target loss over replay ratio and budget.

    Colours are posterior medians. The thick line is the limit applied to the median; thin lines are
    contours of P(both), the probability that all limits are met. The star is the plan, and the
    diamond is the plan of the point fits. Hatching marks extrapolation, outside the training rows.

    Parameters
    ----------
    plan : Plan
    points : int
        Number of replay ratios, and of budgets, at which the surfaces are evaluated.

    Returns
    -------
    Figure
        One panel for the source domain and one for each target.
    """
    ratios = np.linspace(0.005, 0.995, points)
    budgets = np.geomspace(*_reach(plan), points)
    chance = plan.surface(budgets, ratios).to_numpy()
    rise, losses = _medians(plan.problem, budgets, ratios)
    scale, unit = (100, "%") if plan.problem.source.relative else (1, "nats")
    titles = [f"{name} loss (nats per token)" for name in plan.problem.names[: len(losses)]]
    panels = [
        (
            f"forgetting of the source ({unit})",
            scale * rise,
            scale * plan.problem.source.most,
        ),
        *zip(titles, losses, (target.most for target in plan.problem.targets), strict=True),
    ]
    figure, shown = axes(len(panels), columns=3, width=4.0, height=3.5, sharey=True)
    for ax, (title, surface, limit) in zip(shown, panels, strict=True):
        _surface(ax, 100 * ratios, budgets, surface, limit)
        _contours(ax, 100 * ratios, budgets, chance, plan.confidence)
        ax.set_yscale("log")
        ax.set(title=title, xlabel="replay ratio (%)", xlim=(0, 100), ylim=budgets[[0, -1]])
        _outside(ax, plan.data)
        _stars(ax, plan)
        _budget_ticks(ax)
    shown[0].set_ylabel("budget (adaptation tokens per parameter)")
    figure.suptitle(_headline(plan), fontsize=9)
    legend(figure, _handles(plan), columns=3)
    return figure


@style()
def plan_frontier(plan: Plan, *, points: int = 25) -> Figure:
    """Smallest budget and its replay ratio, against the confidence from 50 to 99 %.

    The star is the plan, with its Monte Carlo error (90 %) as a bar. The dashed line is the budget
    of the point fits' plan, with the probability that it meets the limits. Hatching marks
    confidences that no budget reaches.

    Parameters
    ----------
    plan : Plan
    points : int
        Number of confidences.

    Returns
    -------
    Figure
    """
    rows = plan.frontier(np.linspace(0.5, 0.99, points).tolist())
    found = rows[np.isfinite(rows["atpp"])]
    figure, (ax, below) = axes(2, columns=1, width=4.8, height=2.1, sharex=True)
    ax.plot(100 * found["confidence"], found["atpp"], color=COLOURS[0])
    below.plot(100 * found["confidence"], 100 * found["replay"], color=COLOURS[0])
    if plan.status == "feasible":
        _planned(ax, below, plan)
    certain = plan.deterministic
    if math.isfinite(certain.atpp):
        words = f"plan of the point fits: {certain.atpp:.3g} ATPP, P(both) {certain.p_both:.2f}"
        _level(ax, certain.atpp, words, LIMIT, "--")
    elif found.empty:
        ax.set_ylim(*_reach(plan))
    for name, end in zip(("least", "largest"), plan.data.get("replay", ()), strict=False):
        _level(below, 100 * end, f"{name} replay in training", QUIET, ":")
    ax.set(ylabel="ATPP", title=_headline(plan).replace(": ", ":\n", 1), yscale="log")
    _budget_ticks(ax)
    below.set(ylabel="replay (%)", xlabel="confidence (%)", xlim=(49, 100), ylim=(0, 100))
    _infeasible(ax, below, rows)
    return figure


# -- parts ----------------------------------------------------------------------------------------


def _reach(plan: Plan) -> tuple[float, float]:
    """Return the range of budgets to show: around those found, if near the training rows."""
    low, high = plan.data.get("atpp", (1.0, 100.0))
    choices = (plan, plan.best or plan, plan.deterministic)
    known = [c.atpp for c in choices if low / 100 < c.atpp < 100 * high] or [low, high]
    return min(known) / 6, max(known) * 6


def _medians(problem: Problem, budgets: Floats, ratios: Floats) -> tuple[Floats, list[Floats]]:
    """Return median forgetting and target losses, each of shape (budgets, replays)."""
    some = problem.take(np.linspace(0, problem.draws - 1, min(problem.draws, MOST)).astype(int))
    at = np.log(budgets)
    rise = [np.median(some.source.value(ratios, u), -1) for u in at]
    losses = [[np.median(each.value(ratios, u), -1) for each in some.targets] for u in at]
    return np.array(rise), list(np.swapaxes(losses, 0, 1))


def _surface(ax: Axes, ratios: Floats, budgets: Floats, surface: Floats, limit: float) -> None:
    """Draw a surface in colours, and a limit as a thick line."""
    steps = MaxNLocator(12).tick_values(*np.quantile(surface, (0.02, 0.9)))
    filled = ax.contourf(ratios, budgets, surface, steps, cmap="cividis_r", extend="both")
    ax.figure.colorbar(filled, ax=ax, format="%.4g", pad=0.02)
    if surface.min() < limit < surface.max():
        ax.contour(ratios, budgets, surface, [limit], colors=LIMIT, linewidths=2.5)
    ax.grid(visible=False)


def _contours(ax: Axes, ratios: Floats, budgets: Floats, chance: Floats, confidence: float) -> None:
    """Draw contours of P(both), each labelled at a different budget unless labels would overlap."""
    levels = [v for v in sorted({*LEVELS, confidence}) if chance.min() < v < chance.max()]
    if not levels:
        return
    styles = ["solid" if level == confidence else "dashed" for level in levels]
    look: Look = {"colors": CONTOUR, "linewidths": 1.1, "linestyles": styles}
    lines = ax.contour(ratios, budgets, chance, levels, **look)
    heights = np.linspace(0.55, 0.95, len(levels)) * (len(budgets) - 1)
    middle = chance[int(0.75 * (len(budgets) - 1))]
    reached = [ratios[(middle >= level).argmax()] for level in levels if middle.max() >= level]
    if not reached or np.ptp(reached) < 5 * (len(levels) - 1):
        return  # labels would overlap; the legend names the solid line
    spots = [
        (ratios[(chance[row] >= level).argmax()], budgets[row])
        for level, row in zip(levels, heights.astype(int), strict=True)
        if chance[row].max() >= level
    ]
    ax.clabel(lines, fmt=lambda level: f"{100 * level:g} %", fontsize=7, manual=spots)


def _outside(ax: Axes, data: Mapping[str, tuple[float, float]]) -> None:
    """Hatch replay ratios and budgets outside the training rows."""
    low, high = (100 * end for end in data.get("replay", (0.0, 1.0)))
    ax.axvspan(0, low, **HATCHED)
    ax.axvspan(high, 100, **HATCHED)
    bottom, top = ax.get_ylim()
    least, most = data.get("atpp", (bottom, top))
    for start, end in ((bottom, min(least, top)), (max(most, bottom), top)):
        if start < end:
            ax.axhspan(start, end, low / 100, high / 100, **HATCHED)


def _stars(ax: Axes, plan: Plan) -> None:
    certain = plan.deterministic
    if math.isfinite(certain.atpp):
        ax.plot(100 * certain.replay, certain.atpp, **DIAMOND, zorder=5)
    chosen: Choice | None = plan if plan.status == "feasible" else plan.best
    if chosen is not None and math.isfinite(chosen.atpp):
        ax.plot(100 * chosen.replay, chosen.atpp, **_star(plan))


def _planned(ax: Axes, below: Axes, plan: Plan) -> None:
    """Draw the plan on the frontier, with its Monte Carlo error."""
    low, high = plan.error.get("atpp_90", (plan.atpp, plan.atpp))
    reach = [[max(plan.atpp - low, 0)], [max(high - plan.atpp, 0)]]
    ax.errorbar(100 * plan.confidence, plan.atpp, reach, **_star(plan), ecolor=INK)
    below.plot(100 * plan.confidence, 100 * plan.replay, **_star(plan))


def _infeasible(ax: Axes, below: Axes, rows: pd.DataFrame) -> None:
    """Hatch the confidences that no budget reaches."""
    never = rows.loc[~np.isfinite(rows["atpp"]), "confidence"]
    if not never.empty:
        first = 100 * float(never.min())
        for each in (ax, below):
            each.axvspan(first, 100, fc="none", ec=QUIET, hatch="///", alpha=0.4)
        ax.annotate("infeasible", (first, 0.9), xycoords=("data", "axes fraction"), fontsize=8)


def _level(ax: Axes, value: float, words: str, colour: str, line: str) -> None:
    """Draw a horizontal line with a label."""
    ax.axhline(value, color=colour, linestyle=line, linewidth=1)
    above: Look = {"xytext": (0, 3), "textcoords": "offset points", "color": colour, "fontsize": 8}
    ax.annotate(words, (0.02, value), xycoords=("axes fraction", "data"), **above)


def _handles(plan: Plan) -> list[Artist]:
    chosen = "plan" if plan.status == "feasible" else "largest P(both); no plan"
    handles: list[Artist] = [
        key(chosen, **_star(plan)),
        key("plan of the point fits", **DIAMOND),
        key("limit on the median", color=LIMIT, lw=2.5),
        key(f"P(both) = {100 * plan.confidence:g} %", color=CONTOUR, lw=1.1),
        key("P(both), other levels", color=CONTOUR, lw=1.1, ls="--"),
    ]
    if plan.data:
        handles.append(Patch(fc="#8d8a78", ec="white", hatch="///", label="outside the data"))
    return handles


def _headline(plan: Plan) -> str:
    where = f"N {count(plan.limits['params'])}, PTPP {plan.limits['ptpp']:g}"
    beyond = {text.split()[0] for text in plan.outside} & {"params", "ptpp"}
    if beyond:
        where += f" ({' and '.join(sorted(beyond))} outside the data)"
    if plan.status == "infeasible":
        best = plan.best.p_both if plan.best else 0.0
        return f"{where}: infeasible at {100 * plan.confidence:g} %, at most {100 * best:.1f} %"
    found = f"{plan.atpp:.3g} ATPP at {100 * plan.replay:.0f} % replay"
    return f"{where}: {found}, P(both) {100 * plan.p_both:.1f} %"


def _budget_ticks(ax: Axes) -> None:
    low, high = ax.get_ylim()
    subs = (1.0,) if high > 1e3 * low else (1.0, 3.0) if high > 30 * low else (1.0, 1.5, 2, 3, 5, 7)
    ax.yaxis.set_major_locator(LogLocator(subs=subs, numticks=20))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def _star(plan: Plan) -> Look:
    """Return the look of the plan, or of the likeliest choice if no plan is feasible."""
    face = BEST if plan.status == "feasible" else "white"
    return {"marker": "*", "ms": 15, "mfc": face, "mec": "black", "ls": "", "zorder": 5}
