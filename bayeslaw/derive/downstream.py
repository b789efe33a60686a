"""Accuracy on a task from the forecast loss, by a curve fitted to pairs of loss and accuracy.

The curve is ``floor + (ceiling - floor) sigmoid((mid - loss) / width)``, the second step of the
OLMo ladder (Bhagia et al. 2024, arXiv:2412.04403), with the floor free: models that know nothing
score below chance where answers are normalised by length. Deviations of the pairs from the curve
are normal with one standard deviation. Tried once on 165 held-out accuracies of
`data/gadre/accuracy.csv`, at their measured losses: 90 % bands held .89, with CRPS .0071; with a
standard deviation that grows with the slope .90 and .0073; with binomial noise added .92 and .0071,
bands 6 % wider. Models answer the same questions, so the curve has most of that noise already.
"""

from dataclasses import replace
from pathlib import Path

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
    name = "pairs" if isinstance(pairs, pd.DataFrame) else str(pairs)
    check_domain(frame, name, forecast.frame)
    tasks = (
        label_texts(frame["task"])
        if "task" in frame
        else pd.Series("accuracy", frame.index)
    )
    if tasks.isna().any():
        raise TableError(
            f"{name}: {row_numbers(tasks.isna())}: task is empty; give each pair one."
        )
    if taken := sorted({"draw", "case"} & set(tasks)):
        raise TableError(
            f"{name}: a task cannot be called {taken[0]!r}; choose another name."
        )
    rng = np.random.default_rng(seed)
    numbers = {}
    notes = []
    for task, rows in frame.groupby(tasks, sort=False):
        x, y = (rows[c].to_numpy(float) for c in ("loss", "accuracy"))
        if len(x) < MIN_PAIRS or x.min() == x.max():
            raise TableError(
                f"{name}: {len(x)} pairs of {task}; give at least {MIN_PAIRS}, of different losses."
            )
        notes += _falling(str(task), x, y)
        values = accuracies(forecast.samples, x, y, rng)
        span = f"the losses of the {len(x)} pairs of {task}, {x.min():.4g} to {x.max():.4g}"
        refused, remarks = _outside(forecast, x, span, name)
        values[:, refused] = np.nan
        numbers[str(task)] = values, "1"
        notes += remarks
    columns = dict.fromkeys((*COVARIATES, *forecast.columns))
    cases = forecast.frame[[c for c in columns if c in forecast.frame]].reset_index(
        drop=True
    )
    found = derived(numbers, cases.assign(loss=forecast.median), notes=notes)
    return replace(found, failures=forecast.convergence.failures)


def _falling(task: str, loss: Floats, accuracy: Floats) -> list[str]:
    """A note if the accuracy falls as the loss falls."""
    from scipy.stats import (
        kendalltau,
    )  # takes a second, and other numbers need none of it

    rank, p = kendalltau(loss, accuracy)  # NaN if all accuracies are equal
    if not (rank > 0 and p < OPPOSITE):
        return []
    return [
        f"the accuracy of {task} falls as the loss falls (rank correlation {rank:.2f}), "
        "which the curve cannot: of an error rate give 1 - rate"
    ]


def _outside(
    forecast: Forecast, x: Floats, span: str, name: str
) -> tuple[Bools, list[str]]:
    """Rows whose median loss lies outside the losses `x` of the pairs, and notes about these."""
    loss = forecast.samples
    median = forecast.median
    refused = (median < x.min()) | (median > x.max())
    if refused.all():
        raise BayeslawError(
            f"{name}: every forecast loss ({median.min():.4g} to {median.max():.4g}) lies "
            f"outside {span}: measure the accuracy of models with such losses."
        )
    notes = []
    if refused.any():
        where = ", ".join(map(str, np.flatnonzero(refused)))
        notes.append(f"refused: rows {where}, whose loss lies outside {span}")
    outside = ((loss < x.min()) | (loss > x.max())).mean(0)
    if (partly := ~refused & (outside >= LEAST_OUTSIDE_SHARE)).any():
        where = ", ".join(map(str, np.flatnonzero(partly)))
        notes.append(
            f"rows {where}: up to {100 * outside[partly].max():.0f} % of the draws of the loss "
            f"lie outside {span}"
        )
    return refused, notes


def read_pairs(
    pairs: pd.DataFrame | str | Path,
    query: str | None = None,
    *,
    loss_unit: str | None = None,
    bytes_per_token: float | None = None,
) -> pd.DataFrame:
    """Pairs of loss in nats and accuracy, those that a query selects, checked."""
    name = "pairs" if isinstance(pairs, pd.DataFrame) else str(pairs)
    frame = pairs if isinstance(pairs, pd.DataFrame) else read_frame(pairs)
    frame = frame if query is None else frame[chosen(frame, query, name)]
    for column, high, words in (
        ("loss", np.inf, "is not a positive number"),
        ("accuracy", 1.0, "is not between 0 and 1; divide per cent by 100"),
    ):
        if (frame.columns == column).sum() > 1:
            raise TableError(f"{name}: column {column!r} is there twice; keep one.")
        if column not in frame:
            raise TableError(
                f"{name}: no column {column!r}; pairs have 'loss' and 'accuracy'."
            )
        values = pd.to_numeric(frame[column], errors="coerce")
        wrong = ~((values >= 0) & (values <= high) & (values < np.inf))
        wrong |= (values == 0) & (column == "loss")
        if wrong.any():
            value = frame[column][wrong].iloc[0]
            raise TableError(
                f"{name}: {row_numbers(wrong)}: {column} {value!s} {words}."
            )
    if frame.empty:
        raise TableError(f"{name}: no pairs{f' satisfy {query!r}' if query else ''}.")
    return in_nats(frame, name, loss_unit, bytes_per_token)


def accuracies(loss: Floats, x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    """Accuracies of new models at draws of the loss, (draws, rows), given pairs (x, y)."""
    mid, width, floor, ceiling, sigma = curves(x, y, len(loss), rng)[..., None]
    rise = expit((mid - loss) / width)
    values = floor + (ceiling - floor) * rise + sigma * rng.normal(size=loss.shape)
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
        axes = [
            np.linspace(*span, k) for span, k in zip(spans, CURVE_NODES, strict=True)
        ]
        mid, log_width, floor = np.meshgrid(*axes, indexing="ij", sparse=True)
        rise = expit((mid - x) / np.exp(log_width))  # (mid, width, pair)
        log_density, *rest = _given(rise, floor, y)
        density = np.exp(log_density - log_density.max())
        spans = []
        for i, (axis, (low, high)) in enumerate(zip(axes, limits, strict=True)):
            marginal = density.max(tuple({0, 1, 2} - {i}))
            kept = axis[marginal > NEGLIGIBLE]
            step = axis[1] - axis[0]
            spans.append((max(low, kept[0] - step), min(high, kept[-1] + step)))
    nodes = rng.choice(density.size, count, p=(density / density.sum()).ravel())
    at = np.unravel_index(nodes, density.shape)
    mid, log_width, floor = (axis[i] for axis, i in zip(axes, at, strict=True))
    best, scale, squares, below, above = (part.ravel()[nodes] for part in rest)
    t = stdtrit(n - 1, below + rng.random(count) * (above - below))
    ceiling = np.clip(best + scale * t, floor, 1)
    # The sum of squares at the ceiling that was drawn.
    squares = squares * (1 + t**2 / (n - 1))
    sigma = np.sqrt(squares / rng.chisquare(n, count))
    return np.array([mid, np.exp(log_width), floor, ceiling, sigma])


def _given(rise: Floats, floor: Floats, y: Floats) -> tuple[Floats, ...]:
    """Log density of grid nodes, and of each the Student t of the ceiling.

    That is its centre, its scale, the least sum of squares, and the probabilities of the t below
    the least and the greatest ceiling.
    """
    n = len(y)
    # 0 where no pair has left the floor.
    of_rise = np.maximum((rise**2).sum(-1), 1e-100)[..., None]
    # Sums over pairs of rise (y - floor (1 - rise)) and of the square of the latter factor.
    fall = 1 - rise
    cross = (rise @ y)[..., None] - floor * (rise * fall).sum(-1)[..., None]
    total = (
        (y @ y)
        - 2 * floor * (fall @ y)[..., None]
        + floor**2 * (fall**2).sum(-1)[..., None]
    )
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
    return log_density, best, scale, squares, below, above
