"""Where rows lie with respect to training rows: interpolation, extrapolation or projection.

The training rows span a convex hull in log N, log D, log PTPP and r. A row inside it is a weighted
mean of training rows. An empty corner of a grid lies outside, although each covariate alone is
within its range.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import TableError, unknown
from bayeslaw.tables.table import LossTable
from bayeslaw.tables.validation import COVARIATES, canonical, check_positive

INTERPOLATION, EXTRAPOLATION, PROJECTION = "interpolation", "extrapolation", "projection"
POSITIONS = (INTERPOLATION, EXTRAPOLATION, PROJECTION)
EDGE = 0.005
"""Distance that counts as inside: half a percent of N, D or PTPP, since D is whole batches."""


def locate(
    train: LossTable | pd.DataFrame,
    rows: LossTable | pd.DataFrame,
    columns: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Where rows lie with respect to training rows, and how far outside.

    Parameters
    ----------
    train, rows : LossTable or DataFrame
        Rows with covariates; losses are not used.
    columns : sequence of str, optional
        Covariates of the hull, such as `Law.columns`. By default all that both tables have. Each
        other covariate that both tables have is compared with its range alone.

    Returns
    -------
    DataFrame
        One row per row of `rows`.

        - `position`: ``"projection"`` if a covariate differs from its only value in the training
          rows; else ``"extrapolation"`` outside the hull or the range of another covariate; else
          ``"interpolation"``.
        - `efolds`: distance to the nearest point of the hull in e-folds, Euclidean in log N, log D,
          log PTPP and r, where 1 in r counts as one e-fold. Inside the hull it is the distance of
          the other covariates from their ranges. Distances up to .005 are 0.
        - `decades`: log10 of the FLOPs (6 N D) of the row over those of that nearest point:
          negative if the row has fewer, and possibly 0 outside. NaN if N or D is not in `columns`.
        - `unvaried`: the covariates that make the row a projection, separated by commas.

    Raises
    ------
    TableError
        If a covariate is missing or invalid, D = 0, or the tables have no covariate in common.

    Examples
    --------
    The larger model was trained on few tokens only. On more it is outside, though N and D are each
    within their range:

    >>> import bayeslaw as bl
    >>> train = bl.grid(params=[1e8, 1e9], tokens=[1e9, 1e10]).iloc[:3]
    >>> rows = bl.grid(params=1e9, tokens=[1e9, 1e10])
    >>> bl.locate(train, rows).drop(columns="unvaried").round(2)
            position  efolds  decades
    0  interpolation    0.00      0.0
    1  extrapolation    1.63      1.0
    """
    seen, new = _frame(train, "training rows"), _frame(rows, "rows")
    shared = [c for c in COVARIATES if c in seen and c in new]
    used = shared if columns is None else list(columns)
    for name in used:
        if name not in COVARIATES:
            raise TableError(unknown("covariate", name, COVARIATES))
        if name not in shared:
            raise TableError(f"column {name!r} is missing; the training rows and the rows need it.")
    if not used:
        raise TableError("the training rows and the rows have no covariate in common.")
    x, at = ({c: coordinate(frame, c) for c in shared} for frame in (seen, new))
    beyond = {c: outside(x[c], at[c]) for c in shared}
    unvaried = {c: beyond[c] > EDGE for c in shared if np.ptp(x[c]) <= EDGE}
    away = displacement(*(np.stack([each[c] for c in used], 1) for each in (x, at)))
    efolds = np.linalg.norm(away, axis=1)
    away[efolds <= EDGE] = 0
    others = np.linalg.norm([beyond[c] for c in shared if c not in used] or [0 * efolds], axis=0)
    efolds = np.where(efolds > EDGE, efolds, np.where(others > EDGE, others, 0))
    decades = np.full(len(new), np.nan)
    if {"params", "tokens"} <= set(used):
        decades = away[:, [used.index("params"), used.index("tokens")]].sum(1) / math.log(10)
        decades = np.round(decades, 12) + 0.0  # no rounding errors, no -0
    names = [", ".join(c for c in unvaried if unvaried[c][i]) for i in range(len(new))]
    position = np.where(efolds > 0, EXTRAPOLATION, INTERPOLATION)
    position = np.where([bool(name) for name in names], PROJECTION, position)
    return pd.DataFrame(
        {"position": position, "efolds": efolds, "decades": decades, "unvaried": names},
        index=new.index,
    )


def in_words(found: pd.DataFrame) -> str:
    """How many rows are interpolations, extrapolations and projections, and how far the farthest.

    `found` is from `locate`.

    Examples
    --------
    >>> import bayeslaw as bl
    >>> train = bl.grid(params=[1e8, 1e9], tokens=[1e9, 1e10], ptpp=20)
    >>> in_words(bl.locate(train, bl.grid(params=[1e8, 2e9], tokens=1e10, ptpp=20)))
    '1 interpolation; 1 extrapolation (0.69 e-folds, 0.3 decades of FLOPs)'
    >>> in_words(bl.locate(train, bl.grid(params=[1e8, 1e9], tokens=1e10, ptpp=40)))
    '2 projections (up to 0.69 e-folds; the training rows have one value of ptpp)'
    """
    far, parts = farthest(found), []
    for name in POSITIONS:
        rows = found[found["position"] == name]
        if rows.empty:
            continue
        notes = ["up to " * (len(rows) > 1) + far[name]] if name in far else []
        if name == PROJECTION:
            names = dict.fromkeys(", ".join(rows["unvaried"]).split(", "))
            notes.append(f"the training rows have one value of {', '.join(names)}")
        text = f"{len(rows)} {name}{'s' * (len(rows) > 1)}"
        parts.append(text + (f" ({'; '.join(notes)})" if notes else ""))
    return "; ".join(parts)


def farthest(found: pd.DataFrame) -> dict[str, str]:
    """Largest distance of the extrapolations, and of the projections, if there are any.

    `found` is from `locate`.

    Examples
    --------
    >>> import bayeslaw as bl
    >>> train = bl.grid(params=[1e8, 1e9], tokens=[1e9, 1e10])
    >>> farthest(bl.locate(train, bl.grid(params=[1e9, 2e9], tokens=[1e10, 2e10])))
    {'extrapolation': '0.98 e-folds, 0.6 decades of FLOPs'}
    """
    return {
        str(name): distance(float(rows["efolds"].max()), float(rows["decades"].max()))
        for name, rows in found[found["efolds"] > 0].groupby("position")
    }


def distance(efolds: float, decades: float) -> str:
    """Write a distance from the hull.

    Examples
    --------
    >>> distance(1.36, 0.59), distance(2.2, 0), distance(2.2, math.nan)
    ('1.4 e-folds, 0.59 decades of FLOPs', '2.2 e-folds', '2.2 e-folds')
    """
    flops = f", {decades:.2g} decades of FLOPs" if abs(decades) > EDGE else ""
    return f"{efolds:.2g} e-folds{flops}"


def displacement(points: Floats, rows: Floats) -> Floats:
    """Rows less their nearest points of the convex hull of some points, (rows, dimensions).

    The points, shape (points, dimensions), may lie in a subspace, or be one.

    Notes
    -----
    Let the columns of A be the points less the row. Over weights w >= 0 of sum 1, ``|A w|`` is the
    distance from the row. Non-negative least squares minimises ``|A u|^2 + (sum(u) - 1)^2``. For
    ``u = s w`` of any sum s > 0 that is ``s^2 |A w|^2 + (s - 1)^2``: ``u / sum(u)`` is the best w.

    Examples
    --------
    The nearest point of the segment from (0, 0) to (2, 0) is (1, 0), and (2, 0):

    >>> found = displacement(np.array([[0.0, 0], [2, 0]]), np.array([[1.0, 3], [5, 0]]))
    >>> found.round(9).tolist()
    [[0.0, 3.0], [3.0, 0.0]]
    """
    corners = np.unique(points, axis=0)
    asked, inverse = np.unique(rows, axis=0, return_inverse=True)
    target = np.append(np.zeros(rows.shape[1]), 1.0)
    found = np.empty_like(asked, float)
    for i, row in enumerate(asked):
        weights, _ = nnls(np.vstack([(corners - row).T, np.ones(len(corners))]), target)
        found[i] = (row - corners).T @ weights / weights.sum()
    return np.asarray(found[inverse])


def outside(values: Floats, others: Floats) -> Floats:
    """How far each of `others` lies outside the range of `values`."""
    return np.maximum(np.maximum(values.min() - others, others - values.max()), 0)


def coordinate(frame: pd.DataFrame, column: str) -> Floats:
    """A covariate on the axis of the hull: r as it is, the logarithm of any other."""
    values = frame[column].to_numpy(float)
    return values if column == "replay" else np.log(values)


def _frame(rows: LossTable | pd.DataFrame, name: str) -> pd.DataFrame:
    """Validated rows, which logarithms can be taken of."""
    frame = rows.frame if isinstance(rows, LossTable) else canonical(rows, name, ())
    if "tokens" in frame:
        check_positive(frame, "tokens", name, "log D needs tokens > 0")
    return frame
