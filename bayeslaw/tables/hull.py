"""Where rows lie with respect to training rows: interpolation, extrapolation or projection.

The training rows span a convex hull in log10 N, log10 D, log10 PTPP and r. A row inside it is a
weighted mean of training rows. An empty corner of a grid lies outside, although each covariate
alone is within its range.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import TableError, unknown
from bayeslaw.tables.covariates import TABLE, Columns, Covariate, about
from bayeslaw.tables.table import Rows, rows_of
from bayeslaw.tables.validation import COVARIATES, check_positive

INTERPOLATION = "interpolation"
EXTRAPOLATION = "extrapolation"
PROJECTION = "projection"
INSIDE_DECADES = 0.0022
"""Distance that counts as inside: half a percent of N, D or PTPP, since D is whole batches."""
NEAR_DECADES = 0.05
"""Distance that is next to the fitted rows, in decades: 12 % of N, D or PTPP."""
MANY_EPOCHS = 4
"""Epochs up to which repeated data are worth about as much as new ones (Muennighoff et al.)."""
EPOCHS = Covariate(
    "epochs", "", "epochs", "epochs", "epochs of the new data", "epochs", 0.15
)
"""How often data repeat, compared with the most fitted epochs where a table has repeated data."""
BEYOND_PREFIX = "beyond_"
"""Prefix of the columns with the distance along one covariate."""


def locate(
    train: Rows | pd.DataFrame,
    rows: Rows | pd.DataFrame,
    columns: Columns | None = None,
) -> pd.DataFrame:
    """Where rows lie with respect to training rows, and how many decades outside.

    Parameters
    ----------
    train, rows : LossTable or DataFrame
        Rows with covariates; losses are not used.
    columns : sequence of str, or mapping of str to Covariate, optional
        Covariates of the hull, such as `Law.columns`, or `Law.about` of a law that declares some.
        By default all that both tables have. Each other covariate that both tables have is
        compared with its range alone.

    Returns
    -------
    DataFrame
        One row per row of `rows`.

        - `position`: ``"projection"`` if a covariate differs from its only value in the training
          rows; else ``"extrapolation"`` outside the hull or the range of another covariate; else
          ``"interpolation"``.
        - `decades`: distance to the nearest point of the hull, Euclidean in log10 N, log10 D, log10
          PTPP and r, where 1 in r counts as one decade. Inside the hull it is the distance of the
          other covariates from their ranges. Distances up to half a percent are 0. Of a declared
          covariate that is not logged, the range of the training rows counts as one decade.
        - `beyond_params`, `beyond_tokens` and so on: decades of each covariate beyond its range in
          the training rows; `beyond_epochs`, of tables with `unique_tokens`: above their most.
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
            position  decades  beyond_params  beyond_tokens
    0  interpolation     0.00            0.0            0.0
    1  extrapolation     0.71            0.0            0.0
    """
    if columns is not None and not isinstance(columns, Mapping):
        columns = list(columns)
        if other := [name for name in columns if name not in COVARIATES]:
            raise TableError(unknown("covariate", other[0], COVARIATES))
    covariates = TABLE | about(columns or ())
    seen = _valid(train, "training rows", covariates)
    new = _valid(rows, "rows", covariates)
    if "unique_tokens" in seen and "tokens" in seen and "tokens" in new:
        covariates |= {EPOCHS.name: EPOCHS}
        seen, new = (
            frame.assign(**{EPOCHS.name: epochs(frame)}) for frame in (seen, new)
        )
    shared = [c for c in covariates if c in seen and c in new]
    of_hull = (
        [c for c in shared if c != EPOCHS.name] if columns is None else list(columns)
    )
    if absent := [name for name in of_hull if name not in shared]:
        raise TableError(
            f"column {absent[0]!r} is missing; the training rows and the rows need it."
        )
    if not of_hull:
        raise TableError("the training rows and the rows have no covariate in common.")
    points, at = (
        axes(frame, {c: covariates[c] for c in shared}, seen) for frame in (seen, new)
    )
    low = points.min(0)
    high = points.max(0)
    # Rows that repeat less are nearer to new data, whose worth is certain: in data/datablations
    # bands of fits to runs of 4 to 16 epochs held 23 of 26 losses of runs of one epoch that were
    # within the other ranges, with a mean error of 0.1 %.
    low = np.where(np.array(shared) == EPOCHS.name, -np.inf, low)
    beyond = np.maximum(np.maximum(low - at, at - high), 0)
    unvaried = (high - points.min(0) <= INSIDE_DECADES) & (beyond > INSIDE_DECADES)
    outside = decades(seen, new, {c: covariates[c] for c in of_hull})
    # Inside the hull, covariates that it does not have may lie outside their ranges.
    beyond_ranges = np.linalg.norm(beyond[:, ~np.isin(shared, of_hull)], axis=1)
    away = np.where(outside > INSIDE_DECADES, outside, beyond_ranges)
    away = np.where(away > INSIDE_DECADES, away, 0)
    positions = np.where(away > 0, EXTRAPOLATION, INTERPOLATION)
    columns_beyond = np.where(beyond > INSIDE_DECADES, beyond, 0).T
    return pd.DataFrame(
        {
            "position": np.where(unvaried.any(axis=1), PROJECTION, positions),
            "decades": away,
            **{
                BEYOND_PREFIX + c: far
                for c, far in zip(shared, columns_beyond, strict=True)
            },
            "unvaried": [", ".join(np.array(shared)[row]) for row in unvaried],
        },
        index=new.index,
    )


def _valid(
    rows: Rows | pd.DataFrame, name: str, covariates: Mapping[str, Covariate]
) -> pd.DataFrame:
    """Rows with numbers on logarithmic axes."""
    frame = rows_of(
        rows, name, declared={c: row for c, row in covariates.items() if c not in TABLE}
    ).frame
    if "tokens" in frame:
        check_positive(frame, "tokens", name, "log D needs tokens > 0")
    return frame


def epochs(frame: pd.DataFrame) -> pd.Series:
    """How often the new data of each row, a share ``1 - replay`` of its tokens, are seen."""
    if "unique_tokens" not in frame:
        return pd.Series(1.0, frame.index)
    fresh = frame["tokens"] * (1 - frame.get("replay", 0.0))
    return (fresh / frame["unique_tokens"]).clip(lower=1.0)


def in_words(positions: pd.DataFrame) -> str:
    """How many rows from `locate` are of each position, and how far the farthest lies."""
    far = farthest(positions)
    parts = []
    for name in (INTERPOLATION, EXTRAPOLATION, PROJECTION):
        rows = positions[positions["position"] == name]
        if rows.empty:
            continue
        notes = ["up to " * (len(rows) > 1) + far[name]] if name in far else []
        if name == PROJECTION:
            names = dict.fromkeys(", ".join(rows["unvaried"]).split(", "))
            notes.append(f"the training rows have one value of {', '.join(names)}")
        text = f"{len(rows)} {name}{'s' * (len(rows) > 1)}"
        parts.append(text + (f" ({'; '.join(notes)})" if notes else ""))
    return "; ".join(parts)


def farthest(positions: pd.DataFrame) -> dict[str, str]:
    """Largest distance of the extrapolations and of the projections, and along covariates."""
    columns = [str(c) for c in positions if str(c).startswith(BEYOND_PREFIX)]
    distances = {}
    for position, rows in positions[positions["decades"] > 0].groupby("position"):
        most = rows.max(numeric_only=True)
        along = [
            f"{c.removeprefix(BEYOND_PREFIX)} {most[c]:.2g}"
            for c in columns
            if most[c] > 0
        ]
        beyond = (
            ": " + ", ".join(along) if along else ", each covariate within its range"
        )
        distances[str(position)] = f"{rows['decades'].max():.2g} decades{beyond}"
    return distances


def decades(train: pd.DataFrame, rows: pd.DataFrame, columns: Columns) -> Floats:
    """Distance of rows from the convex hull of training rows in some covariates, in decades."""
    away = displacement(axes(train, columns, train), axes(rows, columns, train))
    return np.asarray(np.linalg.norm(away, axis=1))


def displacement(points: Floats, rows: Floats) -> Floats:
    """Rows less their nearest points of the convex hull of some points, (rows, dimensions).

    The points, shape (points, dimensions), may lie in a subspace, or be one.
    """
    corners = np.unique(points, axis=0)
    asked, inverse = np.unique(rows, axis=0, return_inverse=True)
    target = np.append(np.zeros(rows.shape[1]), 1.0)
    away = np.empty_like(asked, float)
    # Let the columns of A be the points less the row. Over weights w >= 0 of sum 1, |A w| is the
    # distance from the row. Non-negative least squares minimises |A u|^2 + (sum(u) - 1)^2, for
    # u = s w of a sum s > 0 this is s^2 |A w|^2 + (s - 1)^2: u / sum(u) is the best w.
    jitter = 1e-10 * np.random.default_rng(0).standard_normal(corners.shape)
    for i, row in enumerate(asked):
        for near in corners, corners + jitter, corners - jitter:
            a = np.vstack([(near - row).T, np.ones(len(near))])
            weights, _ = nnls(a, target)
            # Points in one plane are dependent, and nnls then sometimes stops before the minimum,
            # where the slope along the weights in use is zero.
            if abs(weights @ (a.T @ (a @ weights - target))) < 1e-9:
                break
        away[i] = (row - near).T @ weights / weights.sum()
    return np.asarray(away[inverse])


def axes(frame: pd.DataFrame, columns: Columns, fitted: pd.DataFrame) -> Floats:
    """Covariates on the axes of the hull, shape (rows, covariates): r as it is, log10 of others.

    A covariate of a law's own that is not logged is divided by its range in the `fitted` rows.
    """
    covariates = about(columns)
    values = frame[list(covariates)].to_numpy(float)
    logged = np.array([row.logged for row in covariates.values()])
    ranges = [
        1.0 if c in TABLE else np.ptp(fitted[c].to_numpy(float)) or 1.0
        for c in covariates
    ]
    return np.where(
        logged, np.log10(np.where(logged, values, 1.0)), values / np.array(ranges)
    )
