"""Figures of plans: the landscape over budget and replay, and the frontier by confidence."""

import math
import textwrap

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from bayeslaw.common.arrays import Floats
from bayeslaw.planning.result import Plan
from bayeslaw.plots.style import COLOURS, INK, QUIET, Look, axes, key, legend, style

CONTOURS = (0.5, 0.8, 0.9, 0.95)  # P(both) of the contours, beside the confidence asked for
CONTOUR = COLOURS[1]
DIAMOND: Look = {"marker": "D", "ms": 7, "mfc": COLOURS[5], "mec": "black", "ls": ""}
HATCHED: Look = {"fc": "none", "ec": (0, 0, 0, 0.3), "hatch": "///", "lw": 0}


@style()
def plan_landscape(plan: Plan, *, points: int = 61) -> Figure:
    """P(both), the probability that all limits are met, over replay ratio and budget.

    The star is the plan, and the diamond is the deterministic plan. The solid line is P(both)
    at the confidence asked for. Hatching marks extrapolation, outside the training rows.

    Parameters
    ----------
    plan : Plan
    points : int
        Number of replay ratios, and of budgets, at which P(both) is evaluated.
    """
    ratios, budgets = np.linspace(0.005, 0.995, points), np.geomspace(*reach(plan), points)
    chance = plan.surface(budgets, ratios).to_numpy()
    figure, (ax,) = axes(1, width=5.4, height=4.0)
    filled = ax.contourf(100 * ratios, budgets, chance, np.linspace(0, 1, 11), cmap="Blues")
    figure.colorbar(filled, ax=ax, label="P(both)", pad=0.02)
    ax.grid(visible=False)
    _contours(ax, 100 * ratios, budgets, chance, plan.confidence)
    ax.set(yscale="log", xlabel="replay ratio (%)", xlim=(0, 100), ylim=budgets[[0, -1]])
    _hatch(ax, plan)
    certain = plan.deterministic
    if math.isfinite(certain.atpp):
        ax.plot(100 * certain.replay, certain.atpp, **DIAMOND, zorder=5)
    if math.isfinite(plan.chosen.atpp):
        ax.plot(100 * plan.chosen.replay, plan.chosen.atpp, **_star(plan))
    _budget_ticks(ax)
    ax.set_ylabel("budget (adaptation tokens per parameter)")
    ax.set_title(_headline(plan), loc="left")
    others = ", ".join(f"{100 * level:g}" for level in CONTOURS if level != plan.confidence)
    handles: list[Artist] = [
        key("plan" if plan.best is None else "largest P(both); no plan", **_star(plan)),
        key("deterministic plan", **DIAMOND),
        key(f"P(both) = {100 * plan.confidence:g} %", color=CONTOUR, lw=1.1),
        key(f"P(both) = {others} %", color=CONTOUR, lw=1.1, ls="--"),
    ]
    if plan.data:
        handles.append(Patch(label="outside the data", **HATCHED))
    legend(figure, handles, columns=3)
    return figure


@style()
def plan_frontier(plan: Plan, *, points: int = 25) -> Figure:
    """Smallest budget and its replay ratio, against the confidence from 50 to 99 %.

    The star is the plan, with its Monte Carlo error (90 %) as a bar. The dashed line is the budget
    of the deterministic plan, with the probability that it meets the limits. Hatching marks
    confidences that no budget reaches.

    Parameters
    ----------
    plan : Plan
    points : int
        Number of confidences.
    """
    rows = plan.frontier(np.linspace(0.5, 0.99, points).tolist())
    feasible = rows[np.isfinite(rows["atpp"])]
    figure, (ax, below) = axes(2, columns=1, width=4.8, height=2.1, sharex=True)
    ax.plot(100 * feasible["confidence"], feasible["atpp"], color=COLOURS[0])
    below.plot(100 * feasible["confidence"], 100 * feasible["replay"], color=COLOURS[0])
    if plan.best is None:
        low, high = plan.error.get("atpp_90", (plan.atpp, plan.atpp))
        error = [[max(plan.atpp - low, 0)], [max(high - plan.atpp, 0)]]
        ax.errorbar(100 * plan.confidence, plan.atpp, error, **_star(plan), ecolor=INK)
        below.plot(100 * plan.confidence, 100 * plan.replay, **_star(plan))
    handles: list[Artist] = [key("plan", **_star(plan))] * (plan.best is None)
    certain = plan.deterministic
    if math.isfinite(certain.atpp):
        look: Look = {"color": CONTOUR, "ls": "--", "lw": 1}
        ax.axhline(certain.atpp, **look)
        handles.append(key(f"deterministic, P(both) {certain.p_both:.2f}", **look))
    elif feasible.empty:
        ax.set_ylim(*reach(plan))
    if ends := plan.data.get("replay"):
        look = {"color": QUIET, "ls": ":", "lw": 1}
        for end in ends:
            below.axhline(100 * end, **look)
        handles.append(key("ends of fitted replay", **look))
    never = rows.loc[~np.isfinite(rows["atpp"]), "confidence"]
    if not never.empty:
        for panel in (ax, below):
            panel.axvspan(100 * never.min(), 100, **HATCHED)
        handles.append(Patch(label="infeasible", **HATCHED))
    ax.set_title(_headline(plan), loc="left")
    ax.set(ylabel="ATPP", yscale="log")
    _budget_ticks(ax)
    below.set(ylabel="replay (%)", xlabel="confidence (%)", xlim=(49, 100), ylim=(0, 100))
    legend(figure, handles, columns=2)
    return figure


def reach(plan: Plan) -> tuple[float, float]:
    """Budgets about the plan, in ATPP."""
    low, high = plan.data.get("atpp", (1.0, 100.0))
    choices = (plan, plan.best or plan, plan.deterministic)
    budgets = [c.atpp for c in choices if low / 100 < c.atpp < 100 * high] or [low, high]
    return min(budgets) / 6, max(budgets) * 6


def _contours(ax: Axes, ratios: Floats, budgets: Floats, chance: Floats, confidence: float) -> None:
    """Draw contours of P(both), solid at the confidence asked for."""
    levels = [v for v in sorted({*CONTOURS, confidence}) if chance.min() < v < chance.max()]
    if not levels:
        return
    styles = ["solid" if level == confidence else "dashed" for level in levels]
    look: Look = {"colors": CONTOUR, "linewidths": 1.1, "linestyles": styles}
    lines = ax.contour(ratios, budgets, chance, levels, **look)
    ax.clabel(lines, fmt=lambda level: f"{100 * level:g} %", fontsize=7)


def _hatch(ax: Axes, plan: Plan) -> None:
    low, high = (100 * end for end in plan.data.get("replay", (0.0, 1.0)))
    ax.axvspan(0, low, **HATCHED)
    ax.axvspan(high, 100, **HATCHED)
    bottom, top = ax.get_ylim()
    least, most = plan.data.get("atpp", (bottom, top))
    for start, end in ((bottom, min(least, top)), (max(most, bottom), top)):
        if start < end:
            ax.axhspan(start, end, low / 100, high / 100, **HATCHED)


def _headline(plan: Plan) -> str:
    synthetic = "Synthetic data. " if plan.synthetic else ""
    return textwrap.fill(f"{synthetic}{plan.model}: {plan.verdict}".replace(" %", "\u00a0%"), 64)


def _budget_ticks(ax: Axes) -> None:
    low, high = ax.get_ylim()
    subs = (1.0,) if high > 1e3 * low else (1.0, 3.0) if high > 30 * low else (1.0, 1.5, 2, 3, 5, 7)
    ax.yaxis.set_major_locator(LogLocator(subs=subs, numticks=20))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def _star(plan: Plan) -> Look:
    face = "#F0E442" if plan.best is None else "white"
    return {"marker": "*", "ms": 15, "mfc": face, "mec": "black", "ls": "", "zorder": 5}
