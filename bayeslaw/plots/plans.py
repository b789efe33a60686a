"""Figures of plans: P(both) over budget and replay ratio, and the frontier of confidences."""

import math
import textwrap

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullFormatter

from bayeslaw.common.arrays import Floats
from bayeslaw.planning.result import Plan
from bayeslaw.plots.style import COLOURS, INK, QUIET, Look, axes, key, legend, style

CONTOURS = (0.5, 0.8, 0.9, 0.95)
"""P(both) of the contours, beside the confidence of the plan."""
CONTOUR = COLOURS[1]
LINE_LENGTH = 64
"""Letters in a line of the title."""
DIAMOND: Look = {"marker": "D", "ms": 7, "mfc": COLOURS[5], "mec": "black", "ls": ""}
STAR: Look = {"marker": "*", "ms": 15, "mec": "black", "ls": "", "zorder": 5}
HATCHED: Look = {"fc": "none", "ec": (0, 0, 0, 0.3), "hatch": "///", "lw": 0}


@style()
def plan_landscape(plan: Plan, *, points: int = 61) -> Figure:
    """P(both), the probability that all limits are met, over replay ratio and budget.

    The losses are of the kind that the plan is for. The star is the plan, and the diamond is the
    deterministic plan. The solid line is P(both) at the confidence asked for. Hatching marks
    extrapolation, outside the training rows.

    Parameters
    ----------
    points : int
        Number of replay ratios, and of budgets, at which P(both) is evaluated.
    """
    ratios = np.linspace(0.005, 0.995, points)
    least, most = reach(plan)
    budgets = np.geomspace(least, most, points)
    chance = plan.surface(budgets, ratios).to_numpy()
    figure, (ax,) = axes(1, width=5.4, height=4.0)
    tenths = np.linspace(0, 1, 11)
    percents = 100 * ratios
    filled = ax.contourf(percents, budgets, chance, tenths, cmap="Blues")
    label = f"P(both), {plan.losses} losses"
    figure.colorbar(filled, ax=ax, label=label, pad=0.02)
    ax.grid(visible=False)
    _contours(ax, percents, budgets, chance, plan.confidence)
    ax.set_yscale("log")
    ax.set_xlabel("replay ratio (%)")
    ax.set_xlim(0, 100)
    ax.set_ylim(budgets[0], budgets[-1])
    _hatch(ax, plan)
    deterministic = plan.deterministic
    if math.isfinite(deterministic.atpp):
        percent = 100 * deterministic.replay
        ax.plot(percent, deterministic.atpp, **DIAMOND, zorder=5)
    chosen = plan.chosen
    if math.isfinite(chosen.atpp):
        percent = 100 * chosen.replay
        ax.plot(percent, chosen.atpp, **_star(plan))
    _budget_ticks(ax)
    ax.set_ylabel("budget (adaptation tokens per parameter)")
    ax.set_title(_headline(plan), loc="left")
    legend(figure, _landscape_handles(plan), columns=3)
    return figure


def _landscape_handles(plan: Plan) -> list[Artist]:
    """Entries of the legend of a landscape."""
    name = "plan"
    if plan.best is not None:
        name = "largest P(both); no plan"
    dashed = []
    for level in CONTOURS:
        if level != plan.confidence:
            dashed.append(f"{100 * level:g}")
    levels = ", ".join(dashed)
    contour: Look = {"color": CONTOUR, "lw": 1.1}
    handles: list[Artist] = [
        key(name, **_star(plan)),
        key("deterministic plan", **DIAMOND),
        key(f"P(both) = {100 * plan.confidence:g} %", **contour),
        key(f"P(both) = {levels} %", **contour, ls="--"),
    ]
    if plan.data:
        handles.append(Patch(label="outside the data", **HATCHED))
    return handles


@style()
def plan_frontier(plan: Plan, *, points: int = 25) -> Figure:
    """Smallest budget and its replay ratio, against the confidence from 50 to 99 %.

    The star is the plan, with its Monte Carlo error (90 %) as a bar. The dashed line is the budget
    of the deterministic plan, with the probability that it meets the limits. Hatching marks
    confidences that no budget reaches.

    Parameters
    ----------
    points : int
        Number of confidences.
    """
    confidences = np.linspace(0.5, 0.99, points)
    rows = plan.frontier(confidences.tolist())
    is_feasible = np.isfinite(rows["atpp"])
    feasible = rows[is_feasible]
    percents = 100 * feasible["confidence"]
    figure, (ax, below) = axes(2, columns=1, width=4.8, height=2.1, sharex=True)
    replay = 100 * feasible["replay"]
    ax.plot(percents, feasible["atpp"], color=COLOURS[0])
    below.plot(percents, replay, color=COLOURS[0])
    handles: list[Artist] = []
    if plan.best is None:
        _mark_plan(ax, below, plan)
        handles.append(key("plan", **_star(plan)))
    deterministic = plan.deterministic
    if math.isfinite(deterministic.atpp):
        dashed: Look = {"color": CONTOUR, "ls": "--", "lw": 1}
        ax.axhline(deterministic.atpp, **dashed)
        label = f"deterministic, P(both) {deterministic.p_both:.2f}"
        handles.append(key(label, **dashed))
    elif feasible.empty:
        least, most = reach(plan)
        ax.set_ylim(least, most)
    if "replay" in plan.data:
        dotted: Look = {"color": QUIET, "ls": ":", "lw": 1}
        for end in plan.data["replay"]:
            below.axhline(100 * end, **dotted)
        handles.append(key("ends of fitted replay", **dotted))
    infeasible = rows.loc[~is_feasible, "confidence"]
    if not infeasible.empty:
        start = 100 * infeasible.min()
        for panel in (ax, below):
            panel.axvspan(start, 100, **HATCHED)
        handles.append(Patch(label="infeasible", **HATCHED))
    ax.set_title(_headline(plan), loc="left")
    ax.set_ylabel(f"ATPP, {plan.losses} losses")
    ax.set_yscale("log")
    _budget_ticks(ax)
    below.set_ylabel("replay (%)")
    below.set_xlabel("confidence (%)")
    below.set_xlim(49, 100)
    below.set_ylim(0, 100)
    legend(figure, handles, columns=2)
    return figure


def _mark_plan(ax: Axes, below: Axes, plan: Plan) -> None:
    """Draw the plan, with the Monte Carlo error of its budget."""
    itself = (plan.atpp, plan.atpp)
    low, high = plan.error.get("atpp_90", itself)
    shorter = max(plan.atpp - low, 0)
    longer = max(high - plan.atpp, 0)
    error = [[shorter], [longer]]
    percent = 100 * plan.confidence
    replay = 100 * plan.replay
    star = _star(plan)
    ax.errorbar(percent, plan.atpp, error, **star, ecolor=INK)
    below.plot(percent, replay, **star)


def reach(plan: Plan) -> tuple[float, float]:
    """Budgets about the plan, in ATPP."""
    low, high = plan.data.get("atpp", (1.0, 100.0))
    budgets = []
    for choice in (plan, plan.chosen, plan.deterministic):
        if low / 100 < choice.atpp < 100 * high:
            budgets.append(choice.atpp)
    if not budgets:
        budgets = [low, high]
    least = min(budgets)
    most = max(budgets)
    return least / 6, most * 6


def _contours(
    ax: Axes, ratios: Floats, budgets: Floats, chance: Floats, confidence: float
) -> None:
    """Draw contours of P(both), solid at the confidence asked for."""
    levels = []
    styles = []
    for level in sorted({*CONTOURS, confidence}):
        if chance.min() < level < chance.max():
            levels.append(level)
            styles.append("solid" if level == confidence else "dashed")
    if not levels:
        return
    contours: Look = {"colors": CONTOUR, "linewidths": 1.1, "linestyles": styles}
    lines = ax.contour(ratios, budgets, chance, levels, **contours)
    labels = {level: f"{100 * level:g} %" for level in levels}
    ax.clabel(lines, fmt=labels, fontsize=7)


def _hatch(ax: Axes, plan: Plan) -> None:
    """Hatch the budgets and replay ratios outside the training rows."""
    least_replay, most_replay = plan.data.get("replay", (0.0, 1.0))
    low = 100 * least_replay
    high = 100 * most_replay
    ax.axvspan(0, low, **HATCHED)
    ax.axvspan(high, 100, **HATCHED)
    # As shares of the axis.
    least_share = low / 100
    most_share = high / 100
    bottom, top = ax.get_ylim()
    least, most = plan.data.get("atpp", (bottom, top))
    below = (bottom, min(least, top))
    above = (max(most, bottom), top)
    for start, end in (below, above):
        if start < end:
            ax.axhspan(start, end, least_share, most_share, **HATCHED)


def _headline(plan: Plan) -> str:
    synthetic = "Synthetic data. " if plan.synthetic else ""
    text = f"{synthetic}{plan.model}: {plan.verdict}"
    # No line starts with the sign of per cent.
    unbroken = text.replace(" %", "\u00a0%")
    return textwrap.fill(unbroken, LINE_LENGTH)


def _budget_ticks(ax: Axes) -> None:
    low, high = ax.get_ylim()
    subs: tuple[float, ...] = (1.0, 1.5, 2, 3, 5, 7)
    if high > 1e3 * low:
        subs = (1.0,)
    elif high > 30 * low:
        subs = (1.0, 3.0)
    locator = LogLocator(subs=subs, numticks=20)
    ax.yaxis.set_major_locator(locator)
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_formatter(NullFormatter())


def _star(plan: Plan) -> Look:
    """The mark of the plan, filled if it is feasible."""
    face = "#F0E442" if plan.best is None else "white"
    return {**STAR, "mfc": face}
