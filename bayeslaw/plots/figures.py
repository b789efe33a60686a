"""Figures of forecasts against measured losses, and of plans."""

import math
import textwrap

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullFormatter
from scipy.stats import binom

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import TableError
from bayeslaw.common.formatting import count
from bayeslaw.evaluate._backtest import Backtest
from bayeslaw.inference.forecast import Forecast
from bayeslaw.planning.result import Plan
from bayeslaw.plots.style import (
    COLOURS,
    CROSS,
    INK,
    QUIET,
    Look,
    axes,
    axis_label,
    key,
    legend,
    log_axis,
    look,
    style,
)
from bayeslaw.tables.covariates import FLOPS, TABLE
from bayeslaw.tables.validation import COVARIATES

NOMINAL = np.linspace(0.05, 0.95, 19)
DIAGONAL: Look = {"color": QUIET, "lw": 1, "ls": "--"}
ENVELOPE: Look = {"color": QUIET, "alpha": 0.18, "lw": 0}


def _measured(predicted: Forecast) -> Floats:
    if "loss" not in predicted.frame:
        raise TableError(
            "these rows have no column 'loss'; the figure needs measured losses."
        )
    return predicted.frame["loss"].to_numpy(float)


def pit_values(predicted: Forecast) -> Floats:
    """Return the probability integral transform (PIT) of measured losses, shape (rows,).

    That is the forecast probability of a loss below the measured one. PIT values are uniform if
    the forecast is calibrated.
    """
    predicted = predicted.held_out
    loss = _measured(predicted)
    draws = predicted.samples
    below = (draws < loss).sum(0) + 0.5 * (draws == loss).sum(0)
    return np.asarray((below + 0.5) / (len(draws) + 1))


@style()
def observed(predicted: Forecast) -> Figure:
    """Measured loss against posterior predictive median, with 90 % bands and a colour per size."""
    predicted = predicted.held_out
    loss = _measured(predicted)
    frame = predicted.to_frame((0.9,))
    out = frame[~frame["inside_90"]]
    figure, (ax,) = axes(1, width=4.6, height=4.2)
    ends = [
        min(frame["lower_90"].min(), loss.min()),
        max(frame["upper_90"].max(), loss.max()),
    ]
    ax.plot(ends, ends, **DIAGONAL)
    handles: list[Artist] = [key("measured = median", **DIAGONAL)]
    column = "params" if "params" in frame else FLOPS
    letter = "N" if "params" in frame else "C"
    for i, (size, rows) in enumerate(frame.groupby(column)):
        median = rows["median"]
        dots = look(i, ls="", ms=4.5)
        band = [median - rows["lower_90"], rows["upper_90"] - median]
        ax.errorbar(
            median, rows["loss"], xerr=band, elinewidth=1, mec="white", mew=0.4, **dots
        )
        handles.append(key(f"{letter} {count(float(str(size)))}", **dots))
    if not out.empty:
        ax.plot(out["median"], out["loss"], **CROSS)
        handles.append(key("outside the 90 % band", **CROSS))
    ax.set_xlabel("forecast: median and 90 % band (nats per token)")
    ax.set_ylabel("measured loss (nats per token)")
    legend(figure, handles, columns=4)
    return figure


@style()
def coverage(predicted: Forecast) -> Figure:
    """Coverage: fraction of measured losses inside central bands, against their nominal level.

    The grey region has 90 % of the coverage of as many independent rows if the bands are exact.
    """
    distance = 2 * np.abs(pit_values(predicted) - 0.5)
    covered = np.array([(distance <= level).mean() for level in NOMINAL])
    low, high = np.asarray(binom.interval(0.9, len(distance), NOMINAL)) / len(distance)
    figure, (ax,) = axes(1, width=4.6, height=3.2)
    ax.fill_between(100 * NOMINAL, 100 * low, 100 * high, **ENVELOPE)
    ax.plot([0, 100], [0, 100], **DIAGONAL)
    ax.plot(100 * NOMINAL, 100 * covered, color=COLOURS[0], marker="o", ms=4)
    ax.set(
        xlabel="nominal level of the band (%)",
        ylabel=f"coverage (% of {len(distance)} losses)",
    )
    ax.set(xlim=(0, 100), ylim=(-3, 103))
    expected = Patch(label="90 % of independent samples", **ENVELOPE)
    legend(figure, [key("exact bands", **DIAGONAL), expected])
    return figure


@style()
def residuals(predicted: Forecast, fitted: Forecast | None = None) -> Figure:
    """Residuals in percent of the median, against each covariate that varies.

    Parameters
    ----------
    predicted : Forecast
        Of held-out rows with a measured loss.
    fitted : Forecast, optional
        Of the training rows; drawn behind the held-out ones.
    """
    dots: list[Look] = [
        {"label": "training", "color": QUIET, "marker": "o", "alpha": 0.45},
        {"label": "held out", "color": COLOURS[1], "marker": "D", "alpha": 0.9},
    ]
    predicted = predicted.held_out
    forecasts = [predicted] if fitted is None else [fitted, predicted]
    frames = [
        f.frame.assign(residual=100 * (_measured(f) / f.median - 1)) for f in forecasts
    ]
    both = pd.concat(frames)
    own = {c: row for c, row in predicted.about.items() if c not in COVARIATES}
    across = [c for c in (*COVARIATES, *own) if c in both and both[c].nunique() > 1]
    if not across:
        raise TableError(
            "no covariate varies in these rows; give rows of several sizes or tokens."
        )
    figure, panels = axes(len(across), columns=2, width=3.6, height=2.3, sharey=True)
    for ax, column in zip(panels, across, strict=True):
        ax.axhline(0, color=INK, lw=0.8)
        for frame, marks in zip(frames, dots[-len(frames) :], strict=True):
            ax.plot(frame[column], frame["residual"], ls="", ms=4, **marks)
        if (TABLE | own)[column].logged:  # others may be 0
            log_axis(ax, both[column], column)
        ax.set_xlabel(axis_label(column, own))
    for ax in panels[::2]:
        ax.set_ylabel("residual (% of the median)")
    legend(figure, panels[0].get_legend_handles_labels()[0])
    return figure


@style()
def backtest(result: Backtest) -> Figure:
    """Errors of later rows against how far they lay beyond the cut, one panel per model.

    The error is that of the median forecast in percent. Lines are the 90 % bands of the rows, and
    measured losses outside them are crossed.
    """
    figure, panels = axes(
        len(result.models), columns=3, width=3.4, height=2.6, sharey=True
    )
    for ax, model in zip(panels, result.models, strict=True):
        rows = result.rows[result.rows["model"] == model]
        inside = rows["inside_90"].to_numpy(bool)
        far = rows["decades"].to_numpy()
        error = -100 * rows["error"].to_numpy()
        low, high = (
            100 * np.log(rows[c] / rows["median"]) for c in ("lower_90", "upper_90")
        )
        ax.vlines(far, low, high, color=COLOURS[0], alpha=0.25, lw=2)
        ax.plot(far[inside], error[inside], "o", color=INK, ms=3)
        ax.plot(far[~inside], error[~inside], "x", color=COLOURS[1], ms=5)
        ax.axhline(0, color=INK, lw=0.8)
        held = f"{inside.sum()} of {len(inside)} in the 90 % band"
        ax.set(
            title=f"{model}: {held}", xlabel=f"decades of {result.along} beyond the cut"
        )
        ax.set_xlim(0, 1.05 * np.max(far))
    panels[0].set_ylabel("measured over forecast (%)")
    return figure


# -- plans -----------------------------------------------------------------------------------------

# P(both) of the contours, beside the confidence asked for.
CONTOURS = (
    0.5,
    0.8,
    0.9,
    0.95,
)
CONTOUR = COLOURS[1]
DIAMOND: Look = {"marker": "D", "ms": 7, "mfc": COLOURS[5], "mec": "black", "ls": ""}
HATCHED: Look = {"fc": "none", "ec": (0, 0, 0, 0.3), "hatch": "///", "lw": 0}


@style()
def plan_landscape(plan: Plan, *, points: int = 61) -> Figure:
    """P(both), the probability that all limits are met, over replay ratio and budget.

    Of the kind of losses that the plan is for. The star is the plan, and the diamond is the
    deterministic plan. The solid line is P(both)
    at the confidence asked for. Hatching marks extrapolation, outside the training rows.

    Parameters
    ----------
    points : int
        Number of replay ratios, and of budgets, at which P(both) is evaluated.
    """
    ratios = np.linspace(0.005, 0.995, points)
    budgets = np.geomspace(*reach(plan), points)
    chance = plan.surface(budgets, ratios).to_numpy()
    figure, (ax,) = axes(1, width=5.4, height=4.0)
    filled = ax.contourf(
        100 * ratios, budgets, chance, np.linspace(0, 1, 11), cmap="Blues"
    )
    figure.colorbar(filled, ax=ax, label=f"P(both), {plan.losses} losses", pad=0.02)
    ax.grid(visible=False)
    _contours(ax, 100 * ratios, budgets, chance, plan.confidence)
    ax.set(
        yscale="log", xlabel="replay ratio (%)", xlim=(0, 100), ylim=budgets[[0, -1]]
    )
    _hatch(ax, plan)
    certain = plan.deterministic
    if math.isfinite(certain.atpp):
        ax.plot(100 * certain.replay, certain.atpp, **DIAMOND, zorder=5)
    if math.isfinite(plan.chosen.atpp):
        ax.plot(100 * plan.chosen.replay, plan.chosen.atpp, **_star(plan))
    _budget_ticks(ax)
    ax.set_ylabel("budget (adaptation tokens per parameter)")
    ax.set_title(_headline(plan), loc="left")
    others = ", ".join(
        f"{100 * level:g}" for level in CONTOURS if level != plan.confidence
    )
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
    ax.set(ylabel=f"ATPP, {plan.losses} losses", yscale="log")
    _budget_ticks(ax)
    below.set(
        ylabel="replay (%)", xlabel="confidence (%)", xlim=(49, 100), ylim=(0, 100)
    )
    legend(figure, handles, columns=2)
    return figure


def reach(plan: Plan) -> tuple[float, float]:
    """Budgets about the plan, in ATPP."""
    low, high = plan.data.get("atpp", (1.0, 100.0))
    choices = (plan, plan.best or plan, plan.deterministic)
    budgets = [c.atpp for c in choices if low / 100 < c.atpp < 100 * high] or [
        low,
        high,
    ]
    return min(budgets) / 6, max(budgets) * 6


def _contours(
    ax: Axes, ratios: Floats, budgets: Floats, chance: Floats, confidence: float
) -> None:
    """Draw contours of P(both), solid at the confidence asked for."""
    levels = [
        v for v in sorted({*CONTOURS, confidence}) if chance.min() < v < chance.max()
    ]
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
    return textwrap.fill(
        f"{synthetic}{plan.model}: {plan.verdict}".replace(" %", "\u00a0%"), 64
    )


def _budget_ticks(ax: Axes) -> None:
    low, high = ax.get_ylim()
    subs = (
        (1.0,)
        if high > 1e3 * low
        else (1.0, 3.0)
        if high > 30 * low
        else (1.0, 1.5, 2, 3, 5, 7)
    )
    ax.yaxis.set_major_locator(LogLocator(subs=subs, numticks=20))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_formatter(NullFormatter())


def _star(plan: Plan) -> Look:
    face = "#F0E442" if plan.best is None else "white"
    return {"marker": "*", "ms": 15, "mfc": face, "mec": "black", "ls": "", "zorder": 5}
