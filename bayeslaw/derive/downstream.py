"""Accuracy on a task from the forecast loss, by a curve fitted to pairs of loss and accuracy.

The curve is ``floor + (ceiling - floor) sigmoid((mid - loss) / width)``, the second step of the
OLMo ladder (Bhagia et al. 2024, arXiv:2412.04403), with the floor free: models that know nothing
score below chance where answers are normalised by length. Deviations of the pairs from the curve
are normal with one standard deviation. Tried once on 165 held-out accuracies of
`data/gadre/accuracy.csv`, at their measured losses: 90 % bands held 0.89, with CRPS 0.0071. With a
standard deviation that grows with the slope they held 0.90, with CRPS 0.0073. With binomial noise
added they held 0.92, with CRPS 0.0071, and were 6 % wider. Models answer the same questions, so the
curve has most of that noise already.
"""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import expit, stdtr, stdtrit

from bayeslaw.common.arrays import Bools, Floats
from bayeslaw.common.errors import BayeslawError, TableError
from bayeslaw.derive.derived import Derived, derived
from bayeslaw.inference.forecast import Forecast
from bayeslaw.tables.comparison import check_domain
from bayeslaw.tables.files import read_frame
from bayeslaw.tables.queries import chosen
from bayeslaw.tables.units import in_nats
from bayeslaw.tables.validation import COVARIATES, label_texts, row_numbers

MIN_PAIRS = 8
"""Pairs that a curve of four parameters and its noise need."""
CURVE_NODES = (60, 40, 40)
"""Values of mid, log width and floor at which the posterior is evaluated."""
ZOOMS = 3
NEGLIGIBLE = 1e-5
"""How often the grid closes in on the posterior, and the density, over its mode, beyond it."""
LEAST_RMS = 1e-5
"""Least root mean square of the deviations, so that pairs exactly on a curve have a posterior."""
OPPOSITE = 0.01
"""p-value of a rank correlation from which a note says that accuracy falls as the loss falls."""
LEAST_OUTSIDE_SHARE = 0.05
"""Fraction of the draws of a loss outside the pairs' losses from which a note says so."""


def accuracy(
    forecast: Forecast,
    pairs: pd.DataFrame | str | Path,
    *,
    seed: int = 0,
    loss_unit: str | None = None,
    bytes_per_token: float | None = None,
) -> Derived:
    """Accuracy on tasks at the forecast losses, by curves fitted to pairs of loss and accuracy.

    The band is of a measured accuracy of a new model: it has the uncertainty of the loss, that of
    the curve, and the deviations of single models from it. Rows whose median loss lies outside the
    losses of the pairs are refused: their accuracy is NaN.

    Parameters
    ----------
    forecast : Forecast
        Posterior predictive, of the validation set that the losses of the pairs are of.
    pairs : DataFrame or path of a CSV or Parquet file
        Measured models, at least 8: `loss`, in nats per token unless `loss_unit` says otherwise;
        `accuracy`, between 0 and 1, which rises as the loss falls; and, if there are several tasks,
        `task`, each of which has a curve of its own. They should be trained on the data of the
        models that are forecast: data shift the curve.
    seed : int
        Of the draws of the curve and of the deviations.
    loss_unit, bytes_per_token
        Unit of the losses of the pairs, as for `bayeslaw.from_frame`.

    Returns
    -------
    Derived
        `accuracy`, or one number by the name of each task, without a unit.

    Raises
    ------
    BayeslawError
        If the forecast is latent or of a point fit, or every loss lies outside those of the pairs.

    Examples
    --------
    >>> found = bl.derive.accuracy(fit.forecast(rows), "pairs.csv")  # doctest: +SKIP
    >>> found.to_frame()[["quantity", "median", "lower_90", "upper_90"]]  # doctest: +SKIP
    """
    if not isinstance(forecast, Forecast):
        raise BayeslawError(
            "accuracy needs a posterior's forecast; a point fit has no draws."
        )
    if forecast.kind != "predictive":
        raise BayeslawError(
            f"a {forecast.kind} forecast has no noise, but pairs have measured losses; "
            "leave out kind."
        )
    frame = read_pairs(pairs, loss_unit=loss_unit, bytes_per_token=bytes_per_token)
    name = _name_of(pairs)
    check_domain(frame, name, forecast.frame)
    rng = np.random.default_rng(seed)
    numbers = {}
    notes = []
    for task, rows in frame.groupby(_tasks(frame, name), sort=False):
        losses = rows["loss"].to_numpy(float)
        measured = rows["accuracy"].to_numpy(float)
        if len(losses) < MIN_PAIRS or losses.min() == losses.max():
            raise TableError(
                f"{name}: {len(losses)} pairs of {task}; give at least {MIN_PAIRS}, of different "
                "losses."
            )
        notes += _falling(str(task), losses, measured)
        values = accuracies(forecast.samples, losses, measured, rng)
        span = (
            f"the losses of the {len(losses)} pairs of {task}, "
            f"{losses.min():.4g} to {losses.max():.4g}"
        )
        refused, notes_of_task = _outside(forecast, losses, span, name)
        values[:, refused] = np.nan
        numbers[str(task)] = values, "1"
        notes += notes_of_task
    ordered = dict.fromkeys((*COVARIATES, *forecast.columns))
    columns = [column for column in ordered if column in forecast.frame]
    cases = forecast.frame[columns].reset_index(drop=True)
    found = derived(numbers, cases.assign(loss=forecast.median), notes=notes)
    return replace(found, failures=forecast.convergence.failures)


def _name_of(pairs: pd.DataFrame | str | Path) -> str:
    """How messages call the pairs."""
    return "pairs" if isinstance(pairs, pd.DataFrame) else str(pairs)


def _tasks(frame: pd.DataFrame, name: str) -> pd.Series:
    """The task of each pair; `TableError` if one has none, or a name that the result takes."""
    tasks = pd.Series("accuracy", frame.index)
    if "task" in frame:
        tasks = label_texts(frame["task"])
    if tasks.isna().any():
        raise TableError(
            f"{name}: {row_numbers(tasks.isna())}: task is empty; give each pair one."
        )
    taken = sorted({"draw", "case"} & set(tasks))
    if taken:
        raise TableError(
            f"{name}: a task cannot be called {taken[0]!r}; choose another name."
        )
    return tasks


def _falling(task: str, losses: Floats, measured: Floats) -> list[str]:
    """A note if the accuracy falls as the loss falls."""
    # Imported here: it takes a second, and other numbers need none of it.
    from scipy.stats import kendalltau

    rank, p = kendalltau(losses, measured)  # NaN if all accuracies are equal
    if not (rank > 0 and p < OPPOSITE):
        return []
    return [
        f"the accuracy of {task} falls as the loss falls (rank correlation {rank:.2f}), "
        "which the curve cannot: of an error rate give 1 - rate"
    ]


def _outside(
    forecast: Forecast, losses: Floats, span: str, name: str
) -> tuple[Bools, list[str]]:
    """Rows whose median loss lies outside the losses of the pairs, and notes about these."""
    least = losses.min()
    most = losses.max()
    median = forecast.median
    refused = (median < least) | (median > most)
    if refused.all():
        forecast_span = f"{median.min():.4g} to {median.max():.4g}"
        raise BayeslawError(
            f"{name}: every forecast loss ({forecast_span}) lies "
            f"outside {span}: measure the accuracy of models with such losses."
        )
    notes = []
    if refused.any():
        rows = _listed_rows(refused)
        notes.append(f"refused: rows {rows}, whose loss lies outside {span}")
    draws = forecast.samples
    shares = ((draws < least) | (draws > most)).mean(0)
    partly = ~refused & (shares >= LEAST_OUTSIDE_SHARE)
    if partly.any():
        greatest = 100 * shares[partly].max()
        notes.append(
            f"rows {_listed_rows(partly)}: up to {greatest:.0f} % of the draws of the loss "
            f"lie outside {span}"
        )
    return refused, notes


def _listed_rows(marked: Bools) -> str:
    return ", ".join(map(str, np.flatnonzero(marked)))


def read_pairs(
    pairs: pd.DataFrame | str | Path,
    query: str | None = None,
    *,
    loss_unit: str | None = None,
    bytes_per_token: float | None = None,
) -> pd.DataFrame:
    """Pairs of loss in nats and accuracy, those that a query selects, checked."""
    name = _name_of(pairs)
    frame = pairs if isinstance(pairs, pd.DataFrame) else read_frame(pairs)
    if query is not None:
        frame = frame[chosen(frame, query, name)]
    _check_column(frame, name, "loss", np.inf, "is not a positive number")
    _check_column(
        frame,
        name,
        "accuracy",
        1.0,
        "is not between 0 and 1; divide per cent by 100",
    )
    if frame.empty:
        selected = f" satisfy {query!r}" if query else ""
        raise TableError(f"{name}: no pairs{selected}.")
    return in_nats(frame, name, loss_unit, bytes_per_token)


def _check_column(
    frame: pd.DataFrame, name: str, column: str, high: float, words: str
) -> None:
    """Raise `TableError` unless a column has numbers from 0 to `high`, and no loss of 0."""
    if (frame.columns == column).sum() > 1:
        raise TableError(f"{name}: column {column!r} is there twice; keep one.")
    if column not in frame:
        raise TableError(
            f"{name}: no column {column!r}; pairs have 'loss' and 'accuracy'."
        )
    values = pd.to_numeric(frame[column], errors="coerce")
    right = (values >= 0) & (values <= high) & (values < np.inf)
    if column == "loss":
        right &= values > 0
    if not right.all():
        rows = row_numbers(~right)
        value = frame[column][~right].iloc[0]
        raise TableError(f"{name}: {rows}: {column} {value!s} {words}.")


def accuracies(loss: Floats, x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    """Accuracies of new models at draws of the loss, (draws, rows), given pairs (x, y)."""
    drawn = curves(x, y, len(loss), rng)
    mid, width, floor, ceiling, sigma = drawn[..., None]
    rise = expit((mid - loss) / width)
    deviations = sigma * rng.normal(size=loss.shape)
    values = floor + (ceiling - floor) * rise + deviations
    return np.asarray(np.clip(values, 0, 1))


def curves(x: Floats, y: Floats, count: int, rng: np.random.Generator) -> Floats:
    """Posterior draws of mid, width, floor, ceiling and sigma, shape (5, draws).

    Priors are flat: floor and ceiling with 0 <= floor <= ceiling <= 1, mid up to the range of the
    losses beyond them, log width from a hundredth of that range to all of it, and log sigma. Given
    mid, width and floor the curve is linear in the ceiling, so that ceiling and sigma integrate out
    to a truncated Student t; the other three are on a grid, which closes in on the posterior.
    """
    n = len(x)
    extent = float(np.ptp(x))
    limits = [
        (x.min() - extent, x.max() + extent),
        (np.log(extent / 100), np.log(extent)),
        (0.0, 1.0),
    ]
    spans = limits
    for _ in range(1 + ZOOMS):
        axes = []
        for span, nodes_of_axis in zip(spans, CURVE_NODES, strict=True):
            axes.append(np.linspace(*span, nodes_of_axis))
        mid, log_width, floor = np.meshgrid(*axes, indexing="ij", sparse=True)
        rise = expit((mid - x) / np.exp(log_width))  # (mid, width, pair)
        log_density, ceilings = _ceilings(rise, floor, y)
        density = np.exp(log_density - log_density.max())
        spans = []
        for i, axis in enumerate(axes):
            across = tuple({0, 1, 2} - {i})
            spans.append(_closer(axis, limits[i], density.max(across)))
    probabilities = density / density.sum()
    nodes = rng.choice(density.size, count, p=probabilities.ravel())
    index = np.unravel_index(nodes, density.shape)
    mid = axes[0][index[0]]
    log_width = axes[1][index[1]]
    floor = axes[2][index[2]]
    best, scale, squares, below, above = (part.ravel()[nodes] for part in ceilings)
    # A t between those of the least and the greatest ceiling.
    probability = below + rng.random(count) * (above - below)
    t = stdtrit(n - 1, probability)
    ceiling = np.clip(best + scale * t, floor, 1)
    # The sum of squares at the ceiling that was drawn.
    squares = squares * (1 + t**2 / (n - 1))
    sigma = np.sqrt(squares / rng.chisquare(n, count))
    width = np.exp(log_width)
    return np.array([mid, width, floor, ceiling, sigma])


def _closer(
    axis: Floats, limit: tuple[float, float], density: Floats
) -> tuple[float, float]:
    """The ends of the part of an axis that is not negligible, and a step beyond, in the limits."""
    kept = axis[density > NEGLIGIBLE]
    step = axis[1] - axis[0]
    low = max(limit[0], kept[0] - step)
    high = min(limit[1], kept[-1] + step)
    return low, high


class _Ceilings(NamedTuple):
    """The Student t of the ceiling at each node of the grid.

    Its centre, its scale, the least sum of squares, and the probabilities of the t below the least
    and the greatest ceiling.
    """

    best: Floats
    scale: Floats
    squares: Floats
    below: Floats
    above: Floats


def _ceilings(rise: Floats, floor: Floats, y: Floats) -> tuple[Floats, _Ceilings]:
    """Log density of the nodes of the grid, and the distribution of the ceiling at each."""
    n = len(y)
    # 0 where no pair has left the floor.
    squared_rise = (rise**2).sum(-1)
    of_rise = np.maximum(squared_rise, 1e-100)[..., None]
    # Sums over pairs of rise (y - floor (1 - rise)) and of the square of the latter factor.
    fall = 1 - rise
    measured = (rise @ y)[..., None]
    of_both = (rise * fall).sum(-1)[..., None]
    cross = measured - floor * of_both
    of_fall = (fall @ y)[..., None]
    squared_fall = (fall**2).sum(-1)[..., None]
    total = (y @ y) - 2 * floor * of_fall + floor**2 * squared_fall
    best = cross / of_rise
    squares = np.maximum(total - cross * best, n * LEAST_RMS**2)
    scale = np.sqrt(squares / ((n - 1) * of_rise))
    below = stdtr(n - 1, (floor - best) / scale)
    above = stdtr(n - 1, (1 - best) / scale)
    with np.errstate(divide="ignore"):
        log_density = (
            np.log(np.maximum(above - below, 0))
            - 0.5 * (n - 1) * np.log(squares)
            - 0.5 * np.log(of_rise)
        )
    return log_density, _Ceilings(best, scale, squares, below, above)
