"""Figures of forecasts against measured losses, and of plans."""

import math

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from scipy.stats import binom

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import TableError
from bayeslaw.common.formatting import count
from bayeslaw.evaluate._backtest import Backtest
from bayeslaw.evaluate.scores import row_name
from bayeslaw.inference.forecast import Forecast
from bayeslaw.planning.result import Plan
from bayeslaw.plots.curves import CROSS
from bayeslaw.plots.style import (
    COLOURS,
    INK,
    LINES,
    QUIET,
    Look,
    axes,
    axis_label,
    first_column,
    key,
    legend,
    log_axis,
    look,
    style,
)
from bayeslaw.tables.covariates import TABLE
from bayeslaw.tables.validation import COVARIATES

# -- forecasts against measured losses ------------------------------------------------------------

NOMINAL = np.linspace(0.05, 0.95, 19)
# Scores drawn, with the value of a perfect forecast.
DRAWN_SCORES = {
    "rmse_log": ("RMSE of log loss", 0.0),
    "mae_rel": ("mean relative error", 0.0),
    "slope": ("calibration slope", 1.0),
    "coverage_90": ("coverage of the 90 % band", 0.9),
    "crps": ("CRPS of log loss", 0.0),
    "winkler_90": ("Winkler score, 90 %", 0.0),
}
DIAGONAL: Look = {"color": QUIET, "lw": 1, "ls": "--"}
ENVELOPE: Look = {"color": QUIET, "alpha": 0.18, "lw": 0}


def _measured(predicted: Forecast) -> Floats:
    if "loss" not in predicted.frame:
        raise TableError("these rows have no column 'loss'; the figure needs measured losses.")
    return predicted.frame["loss"].to_numpy(float)


def pit_values(predicted: Forecast) -> Floats:
    """Return the probability integral transform (PIT) of measured losses.

    That is the forecast probability of a loss below the measured one. PIT values are uniform if
    the forecast is calibrated.

    Parameters
    ----------
    predicted : Forecast
        Of rows with a measured loss.

    Returns
    -------
    array, shape (rows,)

    Raises
    ------
    TableError
        If the rows have no measured loss.
    """
    loss, draws = _measured(predicted), predicted.samples
    below = (draws < loss).sum(0) + 0.5 * (draws == loss).sum(0)
    return np.asarray((below + 0.5) / (len(draws) + 1))


@style()
def observed(predicted: Forecast) -> Figure:
    """Measured loss against posterior predictive median, with 90 % bands and a colour per size.

    Parameters
    ----------
    predicted : Forecast
        Of rows with a measured loss.

    Raises
    ------
    TableError
        If the rows have no measured loss.
    """
    loss, frame = _measured(predicted), predicted.to_frame((0.9,))
    out = frame[~frame["inside_90"]]
    figure, (ax,) = axes(1, width=4.6, height=4.2)
    ends = [min(frame["lower_90"].min(), loss.min()), max(frame["upper_90"].max(), loss.max())]
    ax.plot(ends, ends, **DIAGONAL)
    handles: list[Artist] = [key("measured = median", **DIAGONAL)]
    for i, (size, rows) in enumerate(frame.groupby("params")):
        median, dots = rows["median"], look(i, ls="", ms=4.5)
        band = [median - rows["lower_90"], rows["upper_90"] - median]
        ax.errorbar(median, rows["loss"], xerr=band, elinewidth=1, mec="white", mew=0.4, **dots)
        handles.append(key(f"N {count(float(str(size)))}", **dots))
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

    Parameters
    ----------
    predicted : Forecast
        Of rows with a measured loss.

    Raises
    ------
    TableError
        If the rows have no measured loss.
    """
    distance = 2 * np.abs(pit_values(predicted) - 0.5)
    covered = np.array([(distance <= level).mean() for level in NOMINAL])
    low, high = np.asarray(binom.interval(0.9, len(distance), NOMINAL)) / len(distance)
    figure, (ax,) = axes(1, width=4.6, height=3.2)
    ax.fill_between(100 * NOMINAL, 100 * low, 100 * high, **ENVELOPE)
    ax.plot([0, 100], [0, 100], **DIAGONAL)
    ax.plot(100 * NOMINAL, 100 * covered, color=COLOURS[0], marker="o", ms=4)
    ax.set(xlabel="nominal level of the band (%)", ylabel=f"coverage (% of {len(distance)} losses)")
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

    Raises
    ------
    TableError
        If the rows have no measured loss, or if no covariate varies.
    """
    dots: list[Look] = [
        {"label": "training", "color": QUIET, "marker": "o", "alpha": 0.45},
        {"label": "held out", "color": COLOURS[1], "marker": "D", "alpha": 0.9},
    ]
    parts = [predicted] if fitted is None else [fitted, predicted]
    frames = [f.frame.assign(residual=100 * (_measured(f) / f.median - 1)) for f in parts]
    both = pd.concat(frames)
    own = {c: row for c, row in predicted.about.items() if c not in COVARIATES}
    across = [c for c in (*COVARIATES, *own) if c in both and both[c].nunique() > 1]
    if not across:
        raise TableError("no covariate varies in these rows; give rows of several sizes or tokens.")
    figure, panels = axes(len(across), columns=2, width=3.6, height=2.3, sharey=True)
    for ax, column in zip(panels, across, strict=True):
        ax.axhline(0, color=INK, lw=0.8)
        for frame, marks in zip(frames, dots[-len(frames) :], strict=True):
            ax.plot(frame[column], frame["residual"], ls="", ms=4, **marks)
        if not (TABLE | own)[column].logged:  # may be 0
            ax.set_xlabel(axis_label(column, own))
        else:
            log_axis(ax, both[column], column)
            ax.set_xlabel(axis_label(column, own))
        if first_column(ax):
            ax.set_ylabel("residual (% of the median)")
    legend(figure, panels[0].get_legend_handles_labels()[0])
    return figure


@style()
def compare(scores: pd.DataFrame) -> Figure:
    """Scores of several laws; a dashed line marks the score of a perfect forecast.

    Parameters
    ----------
    scores : DataFrame
        From `bayeslaw.compare`: one row per law, or per domain and law.

    Raises
    ------
    TableError
        If none of `DRAWN_SCORES` has a value.
    """
    drawn = [m for m in DRAWN_SCORES if m in scores and scores[m].notna().any()]
    if not drawn:
        raise TableError(f"no score to draw among {', '.join(DRAWN_SCORES)}.")
    laws, places = [row_name(row) for row in scores.index], np.arange(len(scores))[::-1]
    figure, panels = axes(len(drawn), columns=3, width=2.9, height=0.7 + 0.32 * len(laws))
    for ax, metric in zip(panels, drawn, strict=True):
        label, ideal = DRAWN_SCORES[metric]
        ax.axvline(ideal, color=INK, lw=0.8, ls=LINES[1])
        ax.plot(scores[metric], places, ls="", marker="o", ms=6, color=COLOURS[0])
        ax.set_yticks(places, laws if first_column(ax) else [])
        ax.set_ylim(-0.6, len(laws) - 0.4)
        ax.margins(x=0.12)
        ax.set_xlabel(label)
        ax.locator_params(axis="x", nbins=4)
    return figure


@style()
def backtest(found: Backtest) -> Figure:
    """Errors of later rows against how far they lay beyond the cut, one panel per model.

    The error is that of the median forecast in percent. Lines are the 90 % bands of the rows, and
    measured losses outside them are crossed.

    Parameters
    ----------
    found : Backtest
    """
    figure, panels = axes(len(found.models), columns=3, width=3.4, height=2.6, sharey=True)
    for ax, model in zip(panels, found.models, strict=True):
        rows = found.rows[found.rows["model"] == model]
        inside = rows["inside_90"].to_numpy(bool)
        far, error = rows["decades"].to_numpy(), -100 * rows["error"].to_numpy()
        low, high = (100 * np.log(rows[c] / rows["median"]) for c in ("lower_90", "upper_90"))
        ax.vlines(far, low, high, color=COLOURS[0], alpha=0.25, lw=2)
        ax.plot(far[inside], error[inside], "o", color=INK, ms=3)
        ax.plot(far[~inside], error[~inside], "x", color=COLOURS[1], ms=5)
        ax.axhline(0, color=INK, lw=0.8)
        held = f"{inside.sum()} of {len(inside)} in the 90 % band"
        ax.set(title=f"{model}: {held}", xlabel=f"decades of {found.along} beyond the cut")
        ax.set_xlim(0, 1.05 * np.max(far))
    panels[0].set_ylabel("measured over forecast (%)")
    return figure


# -- plans ----------------------------------------------------------------------------------------

CONTOURS = (0.5, 0.8, 0.9, 0.95)  # P(both) of the contours, beside the confidence asked for
LIMIT, CONTOUR = COLOURS[1], INK
DIAMOND: Look = {"marker": "D", "ms": 7, "mfc": COLOURS[5], "mec": "black", "ls": ""}
HATCHED: Look = {"fc": (1, 1, 1, 0.45), "ec": (0, 0, 0, 0.4), "hatch": "//", "lw": 0}
SURFACE_DRAWS = 1000  # draws for the medians of the coloured surfaces; P(both) uses all draws


@style()
def plan_landscape(plan: Plan, *, points: int = 81) -> Figure:
    """Forgetting and target loss over replay ratio and budget.

    Colours are posterior medians. The thick line is the limit applied to the median; thin lines are
    contours of P(both), the probability that all limits are met. The star is the plan, and the
    diamond is the deterministic plan. Hatching marks extrapolation, outside the training rows.

    Parameters
    ----------
    plan : Plan
    points : int
        Number of replay ratios, and of budgets, at which the surfaces are evaluated.

    Returns
    -------
    Figure
        One panel for each domain.
    """
    ratios, budgets = np.linspace(0.005, 0.995, points), np.geomspace(*_reach(plan), points)
    problem = plan.problem
    few = slice(None, None, math.ceil(plan.draws / SURFACE_DRAWS))
    chance, medians = np.empty((points, points)), np.empty((len(problem.limits), points, points))
    for i, budget in enumerate(np.log(budgets)):
        losses = problem.losses(budget, ratios)
        chance[i] = problem.number(losses) / plan.draws
        for k, limit in enumerate(problem.limits):
            values = limit.values(losses[k], measured=problem.measured)
            medians[k, i] = np.median(values[:, few], axis=-1)
    target, source = problem.limits
    scale, unit = (100, "%") if source.relative else (1, "nats")
    drawn = [
        (f"forgetting of the source ({unit})", scale * medians[1], scale * source.most),
        ("target loss (nats per token)", medians[0], target.most),
    ]
    figure, panels = axes(len(drawn), columns=3, width=4.0, height=3.5, sharey=True)
    for ax, (title, surface, most) in zip(panels, drawn, strict=True):
        steps = MaxNLocator(12).tick_values(*np.quantile(surface, (0.02, 0.9)))
        look: Look = {"cmap": "cividis_r", "extend": "both"}
        filled = ax.contourf(100 * ratios, budgets, surface, steps, **look)
        figure.colorbar(filled, ax=ax, format="%.4g", pad=0.02)
        if surface.min() < most < surface.max():
            ax.contour(100 * ratios, budgets, surface, [most], colors=LIMIT, linewidths=2.5)
        ax.grid(visible=False)
        _contours(ax, 100 * ratios, budgets, chance, plan.confidence)
        ax.set_yscale("log")
        ax.set(title=title, xlabel="replay ratio (%)", xlim=(0, 100), ylim=budgets[[0, -1]])
        _hatch(ax, plan)
        if math.isfinite(plan.deterministic.atpp):
            point = plan.deterministic
            ax.plot(100 * point.replay, point.atpp, **DIAMOND, zorder=5)
        if math.isfinite(plan.chosen.atpp):
            ax.plot(100 * plan.chosen.replay, plan.chosen.atpp, **_star(plan))
        _budget_ticks(ax)
    panels[0].set_ylabel("budget (adaptation tokens per parameter)")
    figure.suptitle(_headline(plan), fontsize=9)
    others = ", ".join(f"{100 * level:g}" for level in CONTOURS if level != plan.confidence)
    handles: list[Artist] = [
        key("plan" if plan.best is None else "largest P(both); no plan", **_star(plan)),
        key("deterministic plan", **DIAMOND),
        key("limit on the median", color=LIMIT, lw=2.5),
        key(f"P(both) = {100 * plan.confidence:g} %", color=CONTOUR, lw=1.1),
        key(f"P(both) = {others} %", color=CONTOUR, lw=1.1, ls="--"),
    ]
    if plan.data:
        handles.append(Patch(fc="#d9d7cb", ec="#777777", hatch="///", label="outside the data"))
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
    certain = plan.deterministic
    if math.isfinite(certain.atpp):
        words = f"deterministic plan: {certain.atpp:.3g} ATPP, P(both) {certain.p_both:.2f}"
        _level(ax, certain.atpp, words, LIMIT, "--")
    elif feasible.empty:
        ax.set_ylim(*_reach(plan))
    for name, end in zip(("least", "largest"), plan.data.get("replay", ()), strict=False):
        _level(below, 100 * end, f"{name} replay in training", QUIET, ":")
    ax.set(ylabel="ATPP", title=_headline(plan).replace(": ", ":\n", 1), yscale="log")
    _budget_ticks(ax)
    below.set(ylabel="replay (%)", xlabel="confidence (%)", xlim=(49, 100), ylim=(0, 100))
    never = rows.loc[~np.isfinite(rows["atpp"]), "confidence"]
    if not never.empty:
        first = 100 * float(never.min())
        for panel in (ax, below):
            panel.axvspan(first, 100, fc="none", ec=QUIET, hatch="///", alpha=0.4)
        # Beside a strip that is too narrow for the word.
        side, gap = ("right", -3) if first > 90 else ("left", 3)
        inside: Look = {"xytext": (gap, 4), "textcoords": "offset points", "ha": side}
        at: Look = {"xycoords": ("data", "axes fraction"), "fontsize": 8}
        ax.annotate("infeasible", (first, 0), **inside, **at)
    return figure


def _reach(plan: Plan) -> tuple[float, float]:
    low, high = plan.data.get("atpp", (1.0, 100.0))
    choices = (plan, plan.best or plan, plan.deterministic)
    known = [c.atpp for c in choices if low / 100 < c.atpp < 100 * high] or [low, high]
    return min(known) / 6, max(known) * 6


def _contours(ax: Axes, ratios: Floats, budgets: Floats, chance: Floats, confidence: float) -> None:
    """Draw contours of P(both), each labelled at a different budget unless labels would overlap."""
    levels = [v for v in sorted({*CONTOURS, confidence}) if chance.min() < v < chance.max()]
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


def _hatch(ax: Axes, plan: Plan) -> None:
    low, high = (100 * end for end in plan.data.get("replay", (0.0, 1.0)))
    ax.axvspan(0, low, **HATCHED)
    ax.axvspan(high, 100, **HATCHED)
    bottom, top = ax.get_ylim()
    least, most = plan.data.get("atpp", (bottom, top))
    for start, end in ((bottom, min(least, top)), (max(most, bottom), top)):
        if start < end:
            ax.axhspan(start, end, low / 100, high / 100, **HATCHED)


def _level(ax: Axes, value: float, words: str, colour: str, line: str) -> None:
    ax.axhline(value, color=colour, linestyle=line, linewidth=1)
    above: Look = {"xytext": (0, 3), "textcoords": "offset points", "color": colour, "fontsize": 8}
    ax.annotate(words, (0.02, value), xycoords=("axes fraction", "data"), **above)


def _headline(plan: Plan) -> str:
    synthetic = "Synthetic data. " if plan.synthetic else ""
    where = f"{synthetic}{plan.model}"
    ends = {name: plan.data[name] for name in ("params", "ptpp") if name in plan.data}
    asked = {name: plan.limits[name] for name in ends if plan.limits[name] is not None}
    beyond = [n for n, value in asked.items() if not ends[n][0] <= value <= ends[n][1]]
    if beyond:
        where += f" ({' and '.join(beyond)} outside the data)"
    if plan.best is not None:
        best = f"at most {100 * plan.best.p_both:.1f} %"
        return f"{where}: infeasible at {100 * plan.confidence:g} %, {best}"
    chosen = f"{plan.atpp:.3g} ATPP at {100 * plan.replay:.0f} % replay"
    beyond_evidence = " (beyond the evidence)" if plan.status != "feasible" else ""
    return f"{where}: {chosen}{beyond_evidence}, P(both) {100 * plan.p_both:.1f} %"


def _budget_ticks(ax: Axes) -> None:
    low, high = ax.get_ylim()
    subs = (1.0,) if high > 1e3 * low else (1.0, 3.0) if high > 30 * low else (1.0, 1.5, 2, 3, 5, 7)
    ax.yaxis.set_major_locator(LogLocator(subs=subs, numticks=20))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def _star(plan: Plan) -> Look:
    face = "#F0E442" if plan.best is None else "white"
    return {"marker": "*", "ms": 15, "mfc": face, "mec": "black", "ls": "", "zorder": 5}
