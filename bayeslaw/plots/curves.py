"""Loss against tokens or compute: curves of posteriors and point fits, bands, measured losses."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogFormatterSciNotation,
    LogLocator,
    NullLocator,
)

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import TableError
from bayeslaw.common.formatting import count
from bayeslaw.common.progress import step
from bayeslaw.derive.derived import checked, determined
from bayeslaw.derive.optimum import (
    WIDE_RATIO_STEP,
    Range,
    budgets_of,
    positive,
    split_of,
    splits,
    training_flops,
)
from bayeslaw.derive.without_drift import spread_draws
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.inference.pools import Fit, Pool
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.steps import ANNEALED, RATE_COLUMN, UNIQUE, Departure
from bayeslaw.plots.style import (
    AXIS_LABELS,
    COLOURS,
    INK,
    QUIET,
    SIZES,
    Look,
    axes,
    first_column,
    key,
    legend,
    log_axis,
    look,
    style,
)
from bayeslaw.tables.hull import BEYOND_PREFIX, EXTRAPOLATION, PROJECTION, farthest, locate
from bayeslaw.tables.table import Rows, rows_of
from bayeslaw.tables.validation import COVARIATES

CROSS: Look = {"ls": "", "marker": "x", "ms": 9, "mew": 1, "color": INK}  # outside its 90 % band
POINTS = 25  # of a curve
NEAR_SIZES = 1.05  # ratio of sizes up to which they share a panel
PANELS = 16  # at most; of more model sizes some are left out, and the title says so
SHADES: dict[str, Look] = {
    position: {"fc": "#eeeeea", "ec": "#c4c4bd", "hatch": hatch, "zorder": 0, "lw": 0}
    for position, hatch in ((EXTRAPOLATION, None), (PROJECTION, "////"))
}
OVERVIEW_POINTS = 15  # of a curve of the overview
MOST_CURVES = 24  # of fitted runs in the overview; of more, some are left out
AHEAD: Look = {"fc": "#eeeeea", "lw": 0, "zorder": 0}
MEASURED_MARK: Look = {"ls": "", "marker": "D", "ms": 5, "mec": INK, "mew": 0.8}
MISSED: Look = {"ls": "", "marker": "x", "ms": 10, "mew": 1.2, "color": INK}

FRONTIER_DRAWS, FRONTIER_BUDGETS = 1000, 25  # of a posterior, and budgets, for the frontier
ENDS_90 = (0.05, 0.5, 0.95)
BEST_MARK: Look = {"marker": "D", "ms": 5, "mec": INK, "mew": 0.8, "ls": ""}
NEAR_LOG_FLOPS = 0.1  # difference of log FLOPs up to which a row is drawn beside an isoFLOP curve

type Cell = Mapping[str, float]  # values of covariates that select a panel or a line


def forecast(fit: Fit, rows: Rows | pd.DataFrame, *, seed: int = 0) -> Figure:
    """Posterior predictive loss against tokens, with 50 and 90 % bands, or that of a point fit.

    The figure has a panel per model size, a line per replay ratio, and a row of panels per
    pre-training budget, as figure 1 of the paper. The bands are those of a new run and base. A
    measured loss has a filled marker inside its 90 % band, and a cross outside it. A point fit has
    no bands: bars are the range of the forecasts of starts that agree, where it is not unique.
    Where a line is an extrapolation the panel is grey, and hatched where it is a projection
    (`bayeslaw.locate`).

    Parameters
    ----------
    fit : Posterior, Pool or PointFit
    rows : LossTable or DataFrame
        Rows to forecast; a measured `loss` (nats per token) is drawn as well.
    seed : int
        Of the predictive noise of a posterior.

    Raises
    ------
    TableError
        If a covariate of the law is missing.
    """
    return _curves(fit, _frame(fit, rows), ("ptpp", "replay", *_own(fit)), seed)


@step("forecasting the fitted rows")
def in_sample(fit: Fit, *, seed: int = 0) -> Figure:
    """Fitted curves and training losses, with 50 and 90 % bands, or those of a point fit.

    The figure has a row of panels per replay ratio, a column per model size and a line per
    pre-training budget, as the in-sample grid in the paper's appendix C. The bands are those of a
    new run and base, and losses are compared with these. A point fit has no bands; see `forecast`.

    Parameters
    ----------
    fit : Posterior, Pool or PointFit
    seed
        As for `forecast`.

    Raises
    ------
    TableError
        If a point fit has no training table.
    """
    if fit.table is None:
        raise TableError("this point fit has no training table; use forecast.")
    # Without the runs, so that the bands are those of a new run.
    told = dict.fromkeys(("base", "tokens", *fit.columns, UNIQUE, ANNEALED, RATE_COLUMN))
    known = [c for c in told if c in fit.table.frame]
    rows = fit.table.measured[[*known, "loss"]].reset_index(drop=True)
    return _curves(fit, rows, ("replay", "ptpp", *_own(fit)), seed)


def _frame(fit: Fit, rows: Rows | pd.DataFrame) -> pd.DataFrame:
    return rows_of(rows, "grid", fit.columns).frame


def _own(fit: Fit) -> list[str]:
    """Covariates that the laws declare."""
    return [c for c in fit.columns if c not in COVARIATES]


@style()
def _curves(fit: Fit, frame: pd.DataFrame, across: Sequence[str], seed: int) -> Figure:
    """Draw a panel per size; the columns `across`, if they vary, give rows of panels and lines."""
    train = frame if fit.table is None else fit.table.frame

    def predicted(rows: pd.DataFrame) -> pd.DataFrame:
        """Rows with median, and with bands, or with the range of a point fit."""
        if isinstance(fit, PointFit):
            places = locate(train, rows, fit.about).set_index(rows.index)
            bars = fit.forecast(rows).set_index(rows.index).rename(columns={"prediction": "median"})
            return bars.join(places).assign(inside_90=True)
        fc = fit.accepted(beyond_evidence=True).forecast(rows, seed=seed)
        return fc.to_frame((0.5, 0.9)).join(fc.positions.filter(like=BEYOND_PREFIX))

    def titled(column: str, value: float) -> str:
        """A covariate's value, and its ratio to the largest training value if that is less."""
        column = "params" if column == "panel" else column
        text, most = f"{fit.about[column].alias} {count(value)}", train[column].max()
        beyond = fit.about[column].logged and value > 1.005 * most
        return f"{text} ({value / most:.2g} × largest fitted)" if beyond else text

    columns = fit.columns
    frame = frame.assign(panel=_near_sizes(frame["params"]) if "params" in columns else 0.0)
    vary = [c for c in across if c in columns and frame[c].nunique() > 1]
    line = vary[-1] if vary else None
    kinds: list[Cell] = [{line: v} for v in sorted(frame[line].unique())] if line else [{}]
    by = [*vary[:-1], *(["panel"] if "params" in columns else [])]
    cells: list[Cell] = [{}]
    if by:
        distinct = frame[by].drop_duplicates().sort_values(by)
        cells = [dict(zip(by, values, strict=True)) for values in distinct.to_numpy()]
    wide, shown = 4, cells
    if len(vary) > 1:
        wide = frame[by[-1]].nunique() if len(by) > 1 else 1
    elif len(cells) > PANELS:
        places = np.linspace(0, len(cells) - 1, PANELS).round().astype(int)
        shown = [cells[i] for i in places]

    called = {step.called_by for law in fit.laws for step in law.steps}
    adjusted = [c for c in (UNIQUE, ANNEALED) if c in called and c in frame]
    # Of a law that starts from the base, a curve is that of the first base of its N and P.
    starting = any(member.law.step(Departure) for member in fit.members.values())
    based = ["base"] if "base" in frame and starting else []
    kept = [*columns, *adjusted]
    curves = predicted(_paths(frame, kept, [*based, "panel"]))
    # A curve ends where the tokens fall or their distinct ones change.
    ends = curves["tokens"].diff() <= 0
    ends |= curves[UNIQUE].diff().fillna(0) != 0 if UNIQUE in curves else False
    curves["path"] = ends.cumsum()
    points = predicted(frame)
    frame = frame.assign(position=points["position"].to_numpy())
    reach = farthest(pd.concat([curves, points[points["position"] == PROJECTION]]))

    width = 3.3 if len(shown) < 4 else 2.5 if wide <= 4 else 2.1
    height = 2.9 if len(shown) <= 4 else 2.4
    figure, panels = axes(len(shown), columns=wide, width=width, height=height)
    for ax, cell in zip(panels, shown, strict=True):
        for i, kind in enumerate(kinds):
            _line(ax, _at(curves, {**cell, **kind}), i, alone=len(kinds) == 1)
            _points(ax, _at(points, {**cell, **kind}), i)
        rows = _at(frame, cell)
        log_axis(ax, rows["tokens"], "tokens")
        for _, path in _at(curves, cell).groupby("path"):
            _shade(ax, path, EXTRAPOLATION)
        _shade(ax, rows, PROJECTION)
        ax.set_title("\n".join(titled(c, v) for c, v in reversed([*cell.items()])), loc="left")
        if first_column(ax):
            ax.set_ylabel(AXIS_LABELS["loss"])
    note = [f"{len(shown)} of {len(cells)} model sizes"] if len(shown) < len(cells) else []
    fixed = [c for c in across if c in columns and c not in vary]
    note += [titled(c, frame[c].iloc[0]) for c in fixed]
    note += [f"{c} {count(frame[c].iloc[0])}" for c in adjusted if frame[c].nunique() == 1]
    lines = [", ".join(note), *(f"{name} up to {far}" for name, far in reach.items())]
    if any(lines):
        figure.suptitle("\n".join(filter(None, lines)), x=0.01, ha="left", fontsize=9)
    shades = [Patch(label=name, **SHADES[name]) for name in reach]
    legend(figure, [*_handles(kinds, points, fit), *shades])
    return figure


def _paths(frame: pd.DataFrame, kept: Sequence[str], labels: Sequence[str]) -> pd.DataFrame:
    """Rows along the tokens of each group of rows that agree in the other columns `kept`."""
    paths = []
    for _, rows in frame.groupby([c for c in kept if c != "tokens"] or np.zeros(len(frame))):
        low, high = rows["tokens"].min(), rows["tokens"].max()
        tokens = np.geomspace(low, high, POINTS if high > low else 1)
        first = {c: rows[c].iloc[0] for c in (*kept, *labels)}
        paths.append(pd.DataFrame(first | {"tokens": tokens}))
    return pd.concat(paths, ignore_index=True)


def _near_sizes(sizes: pd.Series) -> pd.Series:
    """The least of the sizes that share a panel, `NEAR_SIZES` apart at most, for each size."""
    least, panels = 0.0, {}
    for size in np.unique(sizes):
        least = size if size > NEAR_SIZES * least else least
        panels[size] = least
    return sizes.map(panels)


def _at(frame: pd.DataFrame, cell: Cell) -> pd.DataFrame:
    for column, value in cell.items():
        frame = frame[frame[column] == value]
    return frame


def _line(ax: Axes, curve: pd.DataFrame, i: int, alone: bool) -> None:
    colour, dashes = look(i)["color"], look(i)["ls"]
    for _, path in curve.groupby("path"):
        tokens, median, single = path["tokens"], path["median"].to_numpy(), len(path) == 1
        if "lower_90" not in path:
            ax.plot(tokens, median, color=colour, ls=dashes, marker="_" if single else "")
            continue
        names = ("lower_90", "lower_50", "upper_50", "upper_90")
        low, lower, upper, high = (path[c].to_numpy() for c in names)
        if single:  # one budget has no curve; draw its bands as bars
            outer, inner = [median - low, high - median], [median - lower, upper - median]
            ax.errorbar(tokens, median, outer, color=colour, lw=1, capsize=3, marker="_")
            ax.errorbar(tokens, median, inner, color=colour, lw=5, alpha=0.4)
            continue
        ax.fill_between(tokens, low, high, color=colour, alpha=0.16 if alone else 0.08, lw=0)
        ax.fill_between(tokens, lower, upper, color=colour, alpha=0.26, lw=0)
        for edge in () if alone else (low, high):  # edges separate bands that overlap
            ax.plot(tokens, edge, color=colour, ls=dashes, lw=0.6, alpha=0.8)
        ax.plot(tokens, median, color=colour, ls=dashes)


def _shade(ax: Axes, rows: pd.DataFrame, position: str) -> None:
    tokens = np.unique(rows["tokens"])
    left, right = ax.get_xlim()
    edges = [left, *np.sqrt(tokens[1:] * tokens[:-1]), right]
    for budget in rows["tokens"][rows["position"] == position].unique():
        i = int(np.searchsorted(tokens, budget))
        ax.axvspan(edges[i], edges[i + 1], **SHADES[position])


def _points(ax: Axes, points: pd.DataFrame, i: int) -> None:
    dots = look(i, ls="")
    if "unique" in points and not points["unique"].all():
        names = ("tokens", "median", "lowest", "highest")
        tokens, middle, low, high = (points.loc[~points["unique"], c].to_numpy() for c in names)
        bars: Look = {"color": dots["color"], "ls": "", "lw": 1, "alpha": 0.7, "zorder": 1.5}
        ax.errorbar(tokens, middle, [middle - low, high - middle], capsize=2, **bars)
    if "loss" in points:
        held, out = points[points["inside_90"]], points[~points["inside_90"]]
        ax.plot(held["tokens"], held["loss"], **dots, ms=4.5, mec="white", mew=0.5)
        ax.plot(out["tokens"], out["loss"], **dots, ms=5.5, mfc="white")
        ax.plot(out["tokens"], out["loss"], **CROSS)


def _handles(kinds: list[Cell], points: pd.DataFrame, fit: Fit) -> list[Artist]:
    measured, banded = "loss" in points, "lower_90" in points
    lines = [f"{fit.about[c].alias} {count(v)}" for kind in kinds for c, v in kind.items()]
    marked: Look = {"ms": 4.5} if lines and measured else {"ms": 4.5, "marker": ""}
    labels = lines or ["median" if banded else "point fit"]
    handles: list[Artist] = [key(label, **look(i) | marked) for i, label in enumerate(labels)]
    if banded:
        bands = {"50 % band": 0.42, "90 % band": 0.16}
        handles += [Patch(color=COLOURS[0], alpha=a, label=name) for name, a in bands.items()]
    elif not points["unique"].all():
        handles.append(key("range of fits that agree", ls="", color=INK, marker="|", ms=10))
    if measured and not lines:
        handles.append(key("measured", **look(0, ls="", ms=4.5)))
    if measured and not points["inside_90"].all():
        handles.append(key("measured, outside the 90 % band", **CROSS))
    return handles


# -- overview -------------------------------------------------------------------------------------


@style()
def overview(fit: Posterior | Pool, rows: Rows | pd.DataFrame, *, seed: int = 0) -> Figure:
    """Loss against compute and against tokens: fitted runs, the law, bands and measured losses.

    Dots are fitted runs, coloured by model size; lines are the law's median through them. Forecast
    runs have their median, 50 and 90 % bands, and a diamond where the loss was measured, crossed
    if it lies outside the 90 % band. Compute is 6 N D in FLOPs. Grey is beyond the fitted runs.

    Parameters
    ----------
    fit : Posterior or Pool
    rows, seed
        As for `forecast`.

    Raises
    ------
    TableError
        As for `forecast`.
    """
    frame = _frame(fit, rows)
    predicted = fit.accepted(beyond_evidence=True).forecast(frame, seed=seed)
    forecast = _with_compute(predicted.to_frame((0.5, 0.9)))
    train = _with_compute(fit.table.measured)
    same = [*dict.fromkeys(["params", *(c for c in fit.columns if c != "tokens")])]
    paths = [path for _, path in train.groupby(same) if path["tokens"].nunique() > 1]
    some = paths[:: -(-len(paths) // MOST_CURVES) or 1]
    curves = [_law_curve(fit, path, seed) for path in some]

    sizes = np.concatenate([train["params"], forecast["params"]])
    colours = ScalarMappable(LogNorm(sizes.min(), max(sizes.max(), 1.01 * sizes.min())), SIZES)
    figure, panels = axes(2, width=4.1, height=3.6, sharey=True)
    for ax, x in zip(panels, ("compute", "tokens"), strict=True):
        for curve in curves:
            colour = colours.to_rgba(curve["params"].iloc[0])
            ax.plot(curve[x], curve["median"], color=colour, lw=0.8, alpha=0.7)
        ax.scatter(
            train[x], train["loss"], s=14, c=colours.to_rgba(train["params"].to_numpy()), lw=0
        )
        for _, path in forecast.groupby(same):
            _draw_forecast(ax, path.sort_values(x), x, colours.to_rgba(path["params"].iloc[0]))
        both = np.concatenate([train[x], forecast[x]])
        log_axis(ax, both, x)
        left, right = ax.get_xlim()
        if forecast[x].max() > 1.001 * train[x].max():
            ax.axvspan(train[x].max(), right, **AHEAD)
            ax.set_xlim(left, right)
    _loss_axis(panels[0], np.concatenate([train["loss"], forecast.get("loss", forecast["median"])]))
    _flops_axis(panels[0])
    panels[0].set_ylabel("loss (nats per token)")
    bar = figure.colorbar(colours, ax=panels[1], pad=0.02, label="model size N")
    ticks = np.unique(sizes)[:: max(1, len(np.unique(sizes)) // 6)]
    bar.ax.yaxis.set_major_locator(FixedLocator(ticks.tolist()))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda size, _: count(size)))
    bar.ax.yaxis.set_minor_locator(NullLocator())
    beyond = any(forecast[x].max() > 1.001 * train[x].max() for x in ("compute", "tokens"))
    shade = [Patch(label="beyond the fitted runs", **AHEAD)] if beyond else []
    legend(figure, [*_overview_handles(forecast, bool(curves)), *shade])
    return figure


def _with_compute(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(compute=6 * rows["params"] * rows["tokens"])


def _law_curve(fit: Posterior | Pool, path: pd.DataFrame, seed: int) -> pd.DataFrame:
    """The law's median along the tokens of fitted runs that differ in nothing else."""
    tokens = np.geomspace(path["tokens"].min(), path["tokens"].max(), OVERVIEW_POINTS)
    known = [c for c in (*fit.columns, "base", UNIQUE, ANNEALED) if c in path and c != "tokens"]
    fixed = {name: path[name].iloc[0] for name in known}
    rows = rows_of(pd.DataFrame(fixed | {"tokens": tokens}), "grid", fit.columns).frame
    forecast = fit.accepted(beyond_evidence=True).forecast(rows, seed=seed)
    return _with_compute(forecast.frame.assign(median=forecast.median))


def _draw_forecast(ax: Axes, path: pd.DataFrame, x: str, colour: Floats) -> None:
    """Bands of runs that differ in tokens only, as a fan, or as bars of a single run."""
    for level, width, alpha in ((90, 2, 0.25), (50, 6, 0.4)):
        low, high = path[f"lower_{level}"], path[f"upper_{level}"]
        if len(path) == 1:
            ax.vlines(path[x], low, high, color=colour, lw=width, alpha=alpha)
        else:
            ax.fill_between(path[x], low, high, color=colour, alpha=alpha, lw=0)
    ax.plot(path[x], path["median"], color=colour, lw=1.5, marker="_" if len(path) == 1 else "")
    if "loss" in path:
        missed = path[~path["inside_90"]]
        ax.plot(path[x], path["loss"], mfc=colour, **MEASURED_MARK)
        ax.plot(missed[x], missed["loss"], **MISSED)


def _flops_axis(ax: Axes) -> None:
    ax.xaxis.set_major_locator(LogLocator())
    ax.xaxis.set_major_formatter(LogFormatterSciNotation())
    ax.set_xlabel("compute 6 N D (FLOPs)")


def _loss_axis(ax: Axes, losses: Floats) -> None:
    """A logarithmic axis of losses with plain numbers, some four to eight of them."""
    low, high = float(np.min(losses)), float(np.max(losses))
    ax.set_yscale("log")
    steps = [s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0) if (high - low) / s <= 8]
    step = steps[0] if steps else 5.0
    ticks = np.arange(np.floor(low / step), high / step + 2) * step
    ax.yaxis.set_major_locator(FixedLocator(ticks.tolist()))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda loss, _: f"{loss:.3g}"))
    ax.yaxis.set_minor_locator(NullLocator())


def _overview_handles(forecast: pd.DataFrame, curves: bool) -> list[Artist]:
    colour = "#31688e"
    handles: list[Artist] = [key("fitted run", color=colour, marker="o", ls="", ms=4)]
    handles += [key("law (median)", color=colour, lw=0.8)] if curves else []
    handles += [
        Patch(color=colour, alpha=0.55, label="50 % band"),
        Patch(color=colour, alpha=0.25, label="90 % band"),
    ]
    if "loss" in forecast:
        handles.append(key("measured", mfc=colour, **MEASURED_MARK))
        missed = not forecast["inside_90"].all()
        handles += [key("outside the 90 % band", **MISSED)] * missed
    return handles


# -- compute-optimal splits -----------------------------------------------------------------------


@style()
def compute_optimal(
    posterior: Posterior,
    flops: float | Sequence[float],
    *,
    search: Range | None = None,
    replay: float | None = None,
    ptpp: float | None = None,
    **own: float,
) -> Figure:
    """IsoFLOP curves of some budgets, and the compute-optimal model and tokens of all budgets.

    On the left is the loss against N where C = 6 N D is constant: median and 90 % band, the best
    N of the rule with its 90 % interval, and fitted rows of about that budget. The others are best
    N and best tokens per parameter against C by the law's rule, with its 90 % band, and the fitted
    rows; where exponents drift as in forecasts, the 90 % band is grey. What counts as not
    determined is not drawn (`Derived.to_frame`). Losses are latent. Grey is beyond the budgets of
    the fitted rows.

    Parameters
    ----------
    posterior : Posterior
        Of a law that depends on N and D; at most 1000 of its draws are used.
    flops, search, replay, ptpp, own
        As for `bayeslaw.derive.compute_optimal`.

    Raises
    ------
    LawError, BayeslawError
        As for `bayeslaw.derive.compute_optimal`.
    """
    asked = sorted(positive("flops", flops))
    checked(posterior)
    rows = posterior.table.measured.assign(compute=training_flops(posterior))
    ends = min(asked[0], rows["compute"].min()), max(asked[-1], rows["compute"].max())
    few = spread_draws(posterior.count, FRONTIER_DRAWS)
    given = {"replay": replay, "ptpp": ptpp, **own}
    budgets, rule = (
        budgets_of(posterior, search, given, few, drift=drift)
        for drift in (True, not posterior.law.deviations)
    )
    colours = ScalarMappable(LogNorm(asked[0], max(asked[-1], 1.01 * asked[0])), SIZES)
    figure, (curves, *others) = axes(3, width=3.4, height=3.3)
    place = np.array([rule.best(np.log(c))[0] for c in asked])
    best_sizes = np.quantile(split_of(np.log(asked)[:, None], place)["params"], ENDS_90, axis=1)
    middles = []
    for c, (first, best, last) in zip(asked, best_sizes.T, strict=True):
        colour = colours.to_rgba(np.array(c))
        sizes = split_of(np.log(c), (ratios := budgets.ratios(WIDE_RATIO_STEP)))["params"]
        low, middle, high = np.quantile(budgets.along(np.log(c), ratios), ENDS_90, axis=0)
        curves.fill_between(sizes, low, high, color=colour, alpha=0.25, lw=0)
        curves.plot(sizes, middle, color=colour)
        # Sizes fall with D / N.
        middles.append(float(np.interp(best, sizes[::-1], middle[::-1])))
        near = rows[np.abs(np.log(rows["compute"] / c)) < NEAR_LOG_FLOPS]
        curves.plot(near["params"], near["loss"], "o", color=colour, ms=3, mec="white", mew=0.3)
        if determined(first, last):
            whisker: Look = {"xerr": [[best - first], [last - best]], "ecolor": INK, "zorder": 4}
            curves.errorbar(best, middles[-1], **whisker, capsize=3, mfc=colour, **BEST_MARK)
    known = [size for size in best_sizes.T if determined(size[0], size[2])] or [*best_sizes.T]
    shown_sizes = np.ravel(known)  # whiskers end within the axis
    log_axis(curves, np.geomspace(shown_sizes.min() / 4, shown_sizes.max() * 4, 9), "params")
    curves.set_ylim(0.97 * min(middles), 1.12 * max(middles))
    curves.set_ylabel("latent " + AXIS_LABELS["loss"])

    nodes = np.geomspace(*ends, FRONTIER_BUDGETS)
    drawn = (
        ("params", rows["params"], AXIS_LABELS["params"]),
        ("ratio", rows["tokens"] / rows["params"], "tokens per parameter D / N"),
    )
    bands = [(rule, COLOURS[0], 0.3)]
    if posterior.law.deviations:
        bands.insert(0, (budgets, QUIET, 0.25))
    for split, shade, alpha in bands:
        frontier = np.array([split.best(np.log(c), WIDE_RATIO_STEP)[0] for c in nodes])
        values = split_of(np.log(nodes)[:, None], frontier) | {"ratio": np.exp(frontier)}
        for ax, (name, _, _) in zip(others, drawn, strict=True):
            low, middle, high = np.quantile(values[name], ENDS_90, axis=1)
            told = np.array([determined(*pair) for pair in zip(low, high, strict=True)])
            ax.fill_between(nodes, low, high, where=told, color=shade, alpha=alpha, lw=0)
            if split is rule:
                ax.plot(nodes, np.where(told, middle, np.nan), color=shade)
    for ax, (_, fitted, label) in zip(others, drawn, strict=True):
        ax.plot(rows["compute"], fitted, "o", ms=2.5, color=QUIET, alpha=0.5, mew=0)
        log_axis(ax, nodes, "flops")
        _flops_axis(ax)
        ax.set(yscale="log", ylabel=label)
        if ends[1] > 1.001 * rows["compute"].max():
            right = ax.get_xlim()[1]
            ax.axvspan(rows["compute"].max(), right, **AHEAD)
            ax.set_xlim(right=right)
    others[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value)))
    others[1].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    handles: list[Artist] = [
        *(key(f"C {c:.3g} FLOPs", color=colours.to_rgba(np.array(c))) for c in asked),
        key("best N by the rule, 90 %", color=INK, **BEST_MARK),
        key("fitted rows", color=QUIET, marker="o", ls="", ms=3),
        key("the law's rule", color=COLOURS[0]),
        Patch(color=COLOURS[0], alpha=0.3, label="its 90 % band, if the law holds"),
    ]
    if posterior.law.deviations:
        handles.append(Patch(color=QUIET, alpha=0.25, label="90 % where exponents drift"))
    if ends[1] > 1.001 * rows["compute"].max():
        handles.append(Patch(label="beyond the fitted rows", **AHEAD))
    legend(figure, handles)
    far = farthest(splits(posterior, rule, asked, place.T))
    title = "; ".join(f"best splits: {name} up to {words}" for name, words in far.items())
    figure.suptitle(title, x=0.01, ha="left", fontsize=9)
    return figure
