"""Loss against tokens: curves of posteriors with bands, of point fits, and measured losses."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bayeslaw.common.errors import TableError
from bayeslaw.common.formatting import count
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.inference.pools import Pool
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.adjustments import ANNEALED, UNIQUE
from bayeslaw.plots.style import (
    COLOURS,
    CROSS,
    INK,
    LABELS,
    SHORT,
    Look,
    axes,
    first_column,
    key,
    legend,
    log_axis,
    look,
    style,
)
from bayeslaw.tables.hull import BEYOND, EXTRAPOLATION, PROJECTION, farthest, locate
from bayeslaw.tables.table import LossTable
from bayeslaw.tables.validation import canonical

POINTS = 25
"""Points of a curve."""
MOST = 16
"""Largest number of panels; of more model sizes some are left out, and the title says so."""
SHADES: dict[str, Look] = {
    position: {"fc": "#eeeeea", "ec": "#c4c4bd", "hatch": hatch, "zorder": 0, "lw": 0}
    for position, hatch in ((EXTRAPOLATION, None), (PROJECTION, "////"))
}
"""Background of a panel where rows have a position outside the training rows."""
COLUMNS = ("lower_90", "lower_50", "median", "upper_50", "upper_90")
ADJUSTED = (UNIQUE, ANNEALED)
"""Columns beside a law's covariates that a curve depends on."""

type Cell = Mapping[str | None, float | None]
"""Values of covariates that select a panel or a line; the key None selects nothing."""
type Fit = Posterior | Pool | PointFit


def forecast(
    fit: Fit,
    rows: LossTable | pd.DataFrame,
    *,
    seed: int = 0,
    allow_unconverged: bool = False,
) -> Figure:
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
    allow_unconverged : bool
        Draw a posterior that has not converged.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    NotConverged
        If the posterior has not converged and `allow_unconverged` is false.
    TableError
        If a covariate of the law is missing.
    """
    return _curves(fit, rows, ("ptpp", "replay"), seed, allow_unconverged)


def in_sample(fit: Fit, *, seed: int = 0, allow_unconverged: bool = False) -> Figure:
    """Fitted curves and training losses, with 50 and 90 % bands, or those of a point fit.

    The figure has a row of panels per replay ratio, a column per model size and a line per
    pre-training budget, as the in-sample grid in the paper's appendix C. The bands are those of a
    new run and base, and losses are compared with these. A point fit has no bands; see `forecast`.

    Parameters
    ----------
    fit : Posterior, Pool or PointFit
    seed : int
        Of the predictive noise of a posterior.
    allow_unconverged : bool
        Draw a posterior that has not converged.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    NotConverged
        If the posterior has not converged and `allow_unconverged` is false.
    TableError
        If a point fit has no training table.
    """
    if fit.table is None:
        raise TableError("this point fit has no training table; use forecast.")
    known = [c for c in ("base", *fit.columns, *ADJUSTED) if c in fit.table.frame]
    rows = fit.table.frame[[*known, "loss"]]
    return _curves(fit, rows, ("replay", "ptpp"), seed, allow_unconverged)


@style()
def _curves(
    fit: Fit,
    rows: LossTable | pd.DataFrame,
    across: tuple[str, str],
    seed: int,
    allow_unconverged: bool,
) -> Figure:
    """Draw a panel per size; of the columns `across` that vary, the last gives a line per value.

    If both vary, the first gives a row of panels per value.
    """
    frame = rows.frame if isinstance(rows, LossTable) else canonical(rows, "grid", ())
    train = frame if fit.table is None else fit.table.frame
    columns = fit.columns
    vary = [c for c in across if c in columns and frame[c].nunique() > 1]
    line = vary[-1] if vary else None
    row = vary[0] if len(vary) > 1 else None
    panel = "params" if "params" in columns else None
    kinds = _values(frame, line)

    # Of a law that starts from the base, a curve is that of the first base of its N and P.
    starting = not isinstance(fit, PointFit) and any(m.law.departure for m, *_ in fit.by_member())
    based = ["base"] if "base" in frame and starting else []
    adjusted = [c for c in ADJUSTED if c in frame and _uses(fit, c)]
    kept = [*columns, *adjusted]
    groups = frame.groupby([c for c in kept if c != "tokens"] or np.zeros(len(frame)))
    drawn = pd.concat([_path(part[[*kept, *based]]) for _, part in groups], ignore_index=True)
    curves, points = (_predicted(fit, x, train, seed, allow_unconverged) for x in (drawn, frame))
    frame = frame.assign(position=points["position"].to_numpy())
    reach = farthest(pd.concat([curves, points[points["position"] == PROJECTION]]))

    every: list[Cell] = [
        {row: r, panel: p} for r, p in product(_values(frame, row), _values(frame, panel))
    ]
    cells = shown = [cell for cell in every if not _at(frame, cell).empty]
    if len(cells) > MOST and row is None:
        shown = [cells[i] for i in np.linspace(0, len(cells) - 1, MOST).round().astype(int)]
    wide = 4 if row is None else len(_values(frame, panel))
    width = 3.3 if len(shown) < 4 else 2.5 if wide <= 4 else 2.1
    height = 2.9 if len(shown) <= 4 else 2.4
    figure, panels = axes(len(shown), columns=wide, width=width, height=height)
    for ax, here in zip(panels, shown, strict=True):
        for i, kind in enumerate(kinds):
            _line(ax, _at(curves, {**here, line: kind}), i, alone=len(kinds) == 1)
            _points(ax, _at(points, {**here, line: kind}), i)
        log_axis(ax, _at(frame, here)["tokens"], "tokens")
        for _, piece in _pieces(_at(curves, here)):
            _shade(ax, piece, EXTRAPOLATION)
        _shade(ax, _at(frame, here), PROJECTION)
        chosen = [(c, v) for c, v in here.items() if c is not None and v is not None]
        title = "\n".join(_covariate(c, v, train) for c, v in reversed(chosen))
        ax.set_title(title, loc="left")
        if first_column(ax):
            ax.set_ylabel(LABELS["loss"])
    note = [f"{len(shown)} of {len(cells)} model sizes"] if len(shown) < len(cells) else []
    fixed = {c: frame[c].iloc[0] for c in across if c in columns and c not in vary}
    note += [_covariate(c, v, train) for c, v in fixed.items()]
    one = [c for c in adjusted if frame[c].nunique() == 1]
    note += [f"{c} {count(float(frame[c].iloc[0]))}" for c in one]
    lines = [", ".join(note), *(f"{name} up to {far}" for name, far in reach.items())]
    if any(lines):
        figure.suptitle("\n".join(filter(None, lines)), x=0.01, ha="left", fontsize=9)
    shades = [Patch(label=name, **SHADES[name]) for name in reach]
    legend(figure, [*_handles(line, kinds, points), *shades])
    return figure


def _uses(fit: Fit, column: str) -> bool:
    """Whether a law depends on a column beside its covariates."""
    laws = [m.law for m, *_ in fit.by_member()] if isinstance(fit, Pool) else [fit.law]
    return any(law.repetition if column == UNIQUE else law.offset for law in laws)


def _predicted(
    fit: Fit, frame: pd.DataFrame, train: pd.DataFrame, seed: int, allow_unconverged: bool
) -> pd.DataFrame:
    """Return the rows with median and bands, or with prediction and range of a point fit."""
    if isinstance(fit, PointFit):
        found = locate(train, frame, fit.columns).set_index(frame.index)
        return fit.forecast(frame).set_index(frame.index).join(found)
    forecast = fit.forecast(frame, seed=seed, allow_unconverged=allow_unconverged)
    return forecast.to_frame((0.5, 0.9)).join(forecast.positions.filter(like=BEYOND))


def _values(frame: pd.DataFrame, column: str | None) -> list[float | None]:
    return sorted(frame[column].unique()) if column else [None]


def _path(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of one curve over the range of tokens of `rows`."""
    low, high = rows["tokens"].min(), rows["tokens"].max()
    tokens = np.geomspace(low, high, POINTS if high > low else 1)
    return pd.DataFrame({c: rows[c].iloc[0] for c in rows} | {"tokens": tokens})


def _at(frame: pd.DataFrame, where: Cell) -> pd.DataFrame:
    for column, value in where.items():
        if column is not None:
            frame = frame[frame[column] == value]
    return frame


def _pieces(curves: pd.DataFrame) -> Iterable[tuple[object, pd.DataFrame]]:
    """Group rows of one curve, which ends where the tokens fall or their distinct ones change."""
    ends = curves["tokens"].diff() <= 0
    ends |= curves[UNIQUE].diff().fillna(0) != 0 if UNIQUE in curves else False
    return curves.groupby(ends.cumsum())


def _line(ax: Axes, curve: pd.DataFrame, i: int, alone: bool) -> None:
    """Draw the curves of one panel and line style, broken where another covariate changes."""
    colour, dashes = look(i)["color"], look(i)["ls"]
    for _, part in _pieces(curve):
        x, single = part["tokens"], len(part) == 1
        if "prediction" in part:
            marker = "_" if single else ""
            ax.plot(x, part["prediction"], color=colour, ls=dashes, marker=marker)
            continue
        low, lower, median, upper, high = (part[c].to_numpy() for c in COLUMNS)
        if single:  # one budget has no curve; draw its bands as bars
            wide, narrow = [median - low, high - median], [median - lower, upper - median]
            ax.errorbar(x, median, wide, color=colour, lw=1, capsize=3, marker="_")
            ax.errorbar(x, median, narrow, color=colour, lw=5, alpha=0.4)
            continue
        # Edges separate bands that overlap.
        ax.fill_between(x, low, high, color=colour, alpha=0.16 if alone else 0.08, lw=0)
        ax.fill_between(x, lower, upper, color=colour, alpha=0.26, lw=0)
        for edge in () if alone else (low, high):
            ax.plot(x, edge, color=colour, ls=dashes, lw=0.6, alpha=0.8)
        ax.plot(x, median, color=colour, ls=dashes)


def _shade(ax: Axes, rows: pd.DataFrame, position: str) -> None:
    """Shade the budgets of a panel at which rows have this position."""
    tokens = np.unique(rows["tokens"])
    left, right = ax.get_xlim()
    edges = [left, *np.sqrt(tokens[1:] * tokens[:-1]), right]
    for budget in rows["tokens"][rows["position"] == position].unique():
        i = int(np.searchsorted(tokens, budget))
        ax.axvspan(edges[i], edges[i + 1], **SHADES[position])


def _points(ax: Axes, points: pd.DataFrame, i: int) -> None:
    """Draw the measured losses of one line, and the bars of a point fit that is not unique."""
    dots = look(i, ls="")
    if "prediction" in points and not points["unique"].all():
        wide = points[~points["unique"]]
        x, middle, low, high = (
            wide[c].to_numpy() for c in ("tokens", "prediction", "lowest", "highest")
        )
        bars: Look = {"color": dots["color"], "ls": "", "lw": 1, "alpha": 0.7, "zorder": 1.5}
        ax.errorbar(x, middle, [middle - low, high - middle], capsize=2, **bars)
    if "loss" not in points:
        return
    inside = _inside(points)
    ax.plot(points["tokens"][inside], points["loss"][inside], **dots, ms=4.5, mec="white", mew=0.5)
    out = points[~inside]
    ax.plot(out["tokens"], out["loss"], **dots, ms=5.5, mfc="white")
    ax.plot(out["tokens"], out["loss"], **CROSS)


def _inside(points: pd.DataFrame) -> "pd.Series[bool]":
    """Which measured losses lie in their 90 % band; all if there is no band."""
    if "lower_90" not in points:
        return pd.Series(data=True, index=points.index)
    return points["loss"].between(points["lower_90"], points["upper_90"])


def _covariate(column: str, value: float, train: pd.DataFrame) -> str:
    """Write a covariate's value, and its ratio to the largest training value if that is less."""
    text, most = f"{SHORT[column]} {count(value)}", train[column].max()
    if column == "replay" or value <= 1.005 * most:
        return text
    return f"{text} ({value / most:.2g} × largest fitted)"


def _handles(line: str | None, kinds: Sequence[float | None], points: pd.DataFrame) -> list[Artist]:
    measured, banded = "loss" in points, "lower_90" in points
    marked: Look = {"ms": 4.5} if line is not None and measured else {"ms": 4.5, "marker": ""}
    middle = "median" if banded else "point fit"
    labels = [middle if line is None or k is None else f"{SHORT[line]} {count(k)}" for k in kinds]
    handles: list[Artist] = [key(label, **look(i) | marked) for i, label in enumerate(labels)]
    if banded:
        handles += [
            Patch(color=COLOURS[0], alpha=0.42, label="50 % band"),
            Patch(color=COLOURS[0], alpha=0.16, label="90 % band"),
        ]
    elif not points["unique"].all():
        handles.append(key("range of fits that agree", ls="", color=INK, marker="|", ms=10))
    if measured and line is None:
        handles.append(key("measured", **look(0, ls="", ms=4.5)))
    if measured and not _inside(points).all():
        handles.append(key("measured, outside the 90 % band", **CROSS))
    return handles
