"""Correlation of errors within a run: a first-order autoregression along log D.

Measured log loss deviates from the modelled one by an error e. In a run, sorted by tokens,
``e_t = rho_t e_(t-1) + innovation``, with ``rho_t = exp(-(log D_t - log D_(t-1)) / ell)``. The
innovation has the likelihood's density, of scale ``sigma sqrt(1 - rho_t^2 + NUGGET)``, so the scale
of every row alone is sigma.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats, Ints, Namespace, Strings, Tensor
from bayeslaw.common.defaults import AUTO
from bayeslaw.common.errors import FitError, TableError, argument, unknown
from bayeslaw.laws.adjustments import unannealed
from bayeslaw.laws.priors import Prior
from bayeslaw.model import random_effects
from bayeslaw.model.likelihoods import Likelihood

ERRORS = ("run", "independent")
"""Kinds of errors: correlated within a run, and independent."""
LENGTH = "ell"
"""Name of the correlation length, in e-folds of D."""
PRIOR = Prior.parse("LogNormal(median=1, sigma=0.4)")
"""Prior of the correlation length."""
NUGGET = 1e-4
"""Share of the variance that neighbouring rows never have in common, so that it stays positive."""
FAR = 1e4
"""Distance, in e-folds, of the first row of a run from the row before it: no correlation."""


@dataclass(frozen=True)
class Order:
    """The row before each row in its run.

    Parameters
    ----------
    before : array of int, shape (rows,)
        Index of the row of the same run with the next smaller tokens; a first row's own.
    gap : array, shape (rows,)
        Distance to it in log tokens; `FAR` for a first row.
    """

    before: Ints
    gap: Floats


def runs(frame: pd.DataFrame) -> Strings:
    """Run of each row, shape (rows,); a run's rows that are not annealed count as another run.

    Examples
    --------
    >>> runs(pd.DataFrame({"run": ["a", "a"], "annealed": [1, 0]})).tolist()
    ['a', 'a unannealed']
    """
    run = random_effects.labels(frame, "run").astype(str)
    return np.where(unannealed(frame) == 1, np.char.add(run, " unannealed"), run)


def order(frame: pd.DataFrame) -> Order:
    """The row before each row in its run; rows without a label are runs of their own.

    Examples
    --------
    >>> rows = pd.DataFrame({"run": ["a", "b", "a"], "tokens": [4e9, 1e9, 1e9]})
    >>> order(rows).before.tolist(), order(rows).gap.round(3).tolist()
    ([2, 1, 2], [1.386, 10000.0, 10000.0])
    """
    run, log = runs(frame), np.log(frame["tokens"].to_numpy(float))
    sequence = np.lexsort([log, run])
    before, gap = np.arange(len(frame)), np.full(len(frame), FAR)
    one, two = sequence[:-1], sequence[1:]
    same = run[one] == run[two]
    before[two[same]], gap[two[same]] = one[same], (log[two] - log[one])[same]
    return Order(before, gap)


def choose(errors: str, frame: pd.DataFrame, name: str, columns: Collection[str]) -> str:
    """The kind of errors of a fit.

    Parameters
    ----------
    errors : {"auto", "run", "independent"}
        ``"auto"`` is ``"run"`` where runs have rows at several D, each D once, and the law depends
        on replay or a pre-training budget, or some rows are not annealed.
    frame : DataFrame
        Training rows.
    name : str
        Name of the table, for messages.
    columns : collection of str
        Covariates of the law.

    Raises
    ------
    FitError
        If the kind is unknown.
    TableError
        If errors of runs are asked for and rows do not say their run, or a run has one D twice.
    """
    if errors not in (AUTO, *ERRORS):
        raise FitError(unknown("errors", errors, (AUTO, *ERRORS)))
    apt = not {"replay", "ptpp"}.isdisjoint(columns) or np.ptp(unannealed(frame)) > 0
    if errors == "independent" or (errors == AUTO and not apt):
        return "independent"
    repeated = "run" in frame and frame["run"].dropna().duplicated().any()
    gaps = order(frame).gap if repeated else np.ones(0)
    if errors == AUTO:
        return "run" if repeated and (gaps > 0).all() else "independent"
    if not repeated:
        raise TableError(
            f"{name}: {argument('errors', 'run')} needs a column 'run' with several rows of a run."
        )
    if (gaps == 0).any():
        twice = runs(frame)[np.argmin(gaps)]
        raise TableError(
            f"{name}: run {str(twice)!r} has two rows of equal tokens; give them runs of their own."
        )
    return errors


def innovations(
    error: Tensor, sigma: Tensor, ell: Tensor, rows: Order, xp: Namespace
) -> tuple[Tensor, Tensor]:
    """Innovation of each row given the error before it, and its scale.

    Parameters
    ----------
    error : array, shape (..., rows)
        Errors of log loss.
    sigma, ell : array
        Scale of one error, and correlation length in e-folds; they broadcast to `error`.
    rows : Order
    xp : module
        Array namespace.
    """
    rho = decay(rows.gap, ell, xp)
    return error - rho * xp.take(error, rows.before, axis=-1), _scale(sigma, rho, xp)


def paths(
    drawn: Floats, ell: Floats, rows: Order, known: "tuple[Ints, Floats] | None" = None
) -> Floats:
    """Errors made of innovations, shape (draws, rows); the inverse of `innovations`.

    Parameters
    ----------
    drawn : array, shape (draws, rows)
    ell : array, shape (draws, 1)
    rows : Order
    known : (array of int, array of shape (draws, known)), optional
        Rows whose errors are given, and the errors.
    """
    error, rho = drawn.copy(), decay(rows.gap, ell)
    is_known = np.zeros(drawn.shape[1], bool)
    if known is not None:
        is_known[known[0]] = True
        error[:, known[0]] = known[1]
    first = rows.before == np.arange(len(rows.before))
    done = first | is_known
    while not done.all():
        ready = np.flatnonzero(~done & done[rows.before])
        error[:, ready] += rho[:, ready] * error[:, rows.before[ready]]
        done[ready] = True
    return error


def draw_paths(
    likelihood: Likelihood,
    rng: np.random.Generator,
    sigma: Floats,
    q: Mapping[str, Floats],
    rows: Order,
    known: "tuple[Ints, Floats] | None" = None,
) -> Floats:
    """Draws of the errors of some rows, shape (draws, rows).

    Parameters
    ----------
    likelihood : Likelihood
        Density of the innovations.
    rng : Generator
    sigma : array, broadcast to (draws, rows)
        Scale of one error.
    q : mapping
        Draws of `LENGTH` and of the likelihood's parameters, each of shape (draws, 1).
    rows, known
        As for `paths`.
    """
    scale = _scale(sigma, decay(rows.gap, q[LENGTH]), np)
    return paths(likelihood.sample(rng, scale.shape, scale, q), q[LENGTH], rows, known)


def correlation(run: Strings | Ints, tokens: Floats, ell: float) -> Floats:
    """Correlation of errors between rows, shape (rows, rows)."""
    log = np.log(tokens)
    return np.where(run[:, None] == run, decay(np.abs(log[:, None] - log), ell), 0.0)


def decay(apart: Tensor, ell: Tensor, xp: Namespace = np) -> Tensor:
    """Correlation of two errors of one run at a distance in log tokens."""
    return xp.exp(-apart / ell)


def _scale(sigma: Tensor, rho: Tensor, xp: Namespace) -> Tensor:
    return sigma * xp.sqrt(1 - rho**2 + NUGGET)
