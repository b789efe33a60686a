"""Verification: a registered forecast, scored on the losses measured so far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Bools, Floats, Ints
from bayeslaw.common.defaults import TOLERANCE
from bayeslaw.common.errors import BayeslawError, FileError, TableError
from bayeslaw.common.files import write_json
from bayeslaw.evaluate.forecast import LEVELS
from bayeslaw.evaluate.registration import now, plain, read
from bayeslaw.evaluate.scores import BANDS, POINT, crps, interval_scores, point_scores
from bayeslaw.tables.reading import from_frame
from bayeslaw.tables.table import LossTable
from bayeslaw.tables.validation import COVARIATES, row_numbers


@dataclass(frozen=True)
class Verification:
    """A registered forecast beside the losses measured so far.

    Parameters
    ----------
    sha256 : str
        Hash of the forecast, which is the one it was registered with.
    forecast : mapping
        The registered forecast, as in the file.
    frame : DataFrame
        Its rows with median and bands in nats per token; `loss`, `error` (median over loss, less
        one) and `inside_50`, `inside_80`, `inside_90` are missing where no loss is measured yet.
    scores : Series
        As from `bayeslaw.score`, over the measured rows. The bands are the registered ones; `crps`
        is of the registered draws, or NaN if there are none.
    extra : tuple of int
        Measured rows that were not forecast, counted from 0.
    results : sequence of mapping
        All results in the file, this one last.
    """

    sha256: str
    forecast: Mapping[str, Any] = field(repr=False)
    frame: pd.DataFrame = field(repr=False)
    scores: pd.Series
    extra: tuple[int, ...] = ()
    results: Sequence[Mapping[str, Any]] = field(default=(), repr=False)

    @property
    def missing(self) -> tuple[int, ...]:
        """Rows of the forecast without a measured loss, counted from 0."""
        return tuple(int(row) for row in self.frame.loc[self.frame["loss"].isna(), "row"])


def verify(
    path: str | Path,
    measured: LossTable | pd.DataFrame | None = None,
    *,
    sha256: str | None = None,
    tolerance: float = TOLERANCE,
) -> Verification:
    """Check that a registered forecast is unchanged, and score it on what has been measured.

    A measured row belongs to the row of the forecast with its labels and, up to `tolerance`, its
    covariates. The result is appended to the file; the forecast in it is not touched.

    Parameters
    ----------
    path : str or Path
        File written by `register`.
    measured : LossTable or DataFrame, optional
        Measured losses; some rows of the forecast may be missing, and others are named in `extra`.
        Without it the forecast is checked, and nothing is scored or written.
    sha256 : str, optional
        Hash that was published when the forecast was registered.
    tolerance : float
        Largest relative difference between a planned and a measured covariate.

    Returns
    -------
    Verification

    Raises
    ------
    FileError
        If the file is missing or damaged, the forecast was edited, or its hash is not `sha256`.
    TableError
        If no measured row was forecast, a column by which rows are matched is missing, or two
        measured rows belong to one row of the forecast.

    Examples
    --------
    >>> verify("absent.json")
    Traceback (most recent call last):
    ...
    bayeslaw.common.errors.FileError: absent.json: no such file.
    """
    document = read(path)
    registered = document["forecast"]
    if sha256 is not None and sha256.lower() != document["sha256"]:
        raise FileError(
            f"{path}: its SHA-256 is {document['sha256']}, not {sha256}: it is another forecast, "
            "or its hash was replaced with it."
        )
    if not 0 <= tolerance < 1:
        raise BayeslawError(f"tolerance={tolerance:g}: give a relative difference, such as 0.001.")
    if measured is None:
        frame = _beside(registered, np.full(len(registered["rows"]), np.nan))
        empty = pd.Series(np.nan, index=[*POINT, *BANDS])
        return Verification(
            document["sha256"], registered, frame, empty, results=document["results"]
        )
    table = measured if isinstance(measured, LossTable) else from_frame(measured, "measured")
    place = _places(registered, table, tolerance)
    loss = np.full(len(registered["rows"]), np.nan)
    loss[place[place >= 0]] = table.loss[place >= 0]
    frame = _beside(registered, loss)
    scores = _scores(registered, frame)
    found = Verification(
        document["sha256"],
        registered,
        frame,
        scores,
        extra=tuple(int(row) for row in np.flatnonzero(place < 0)),
    )
    result = _result(found, table, tolerance)
    results = [*document["results"], result]
    write_json({**document, "results": results}, path)
    return replace(found, results=results)


def _places(registered: Mapping[str, Any], table: LossTable, tolerance: float) -> Ints:
    """Row of the forecast that each measured row belongs to, -1 for none; shape (measured,)."""
    planned = pd.DataFrame(registered["rows"])
    fits = np.ones((len(table), len(planned)), bool)
    for column in registered["match"]:
        if column not in table.frame:
            raise TableError(
                f"{table.name}: no column {column!r}, by which measured rows are matched to the "
                f"forecast's ({', '.join(registered['match'])}); add it."
            )
        if column in COVARIATES:
            fits &= _near(table.frame[column], planned[column], tolerance)
        else:
            fits &= _same(table.frame[column], planned[column])
    if (several := pd.Series(fits.sum(1) > 1)).any():
        raise TableError(
            f"{table.name}: {row_numbers(several)} lie within {tolerance:g} of several rows of the "
            "forecast; give a smaller tolerance."
        )
    if (repeated := fits.sum(0) > 1).any():
        of_one = pd.Series(fits[:, int(repeated.argmax())])
        raise TableError(
            f"{table.name}: {row_numbers(of_one)} are all measurements of row "
            f"{repeated.argmax()} of the forecast; keep one, such as with where."
        )
    if not fits.any():
        raise TableError(
            f"{table.name}: none of its {len(table)} rows was forecast; rows are matched by "
            f"{', '.join(registered['match'])}, covariates up to a relative {tolerance:g}."
        )
    return np.asarray(np.where(fits.any(1), fits.argmax(1), -1))


def _near(one: pd.Series, two: pd.Series, tolerance: float) -> Bools:
    """Whether covariates are equal up to a relative tolerance, shape (one, two)."""
    a, b = one.to_numpy(float)[:, None], two.to_numpy(float)
    return np.asarray(np.abs(a - b) <= tolerance * np.maximum(np.abs(a), np.abs(b)))


def _same(one: pd.Series, two: pd.Series) -> Bools:
    """Whether labels are equal, shape (one, two); a planned row without a label takes any."""
    a, b = (np.array([_label(value) for value in column], object) for column in (one, two))
    return np.asarray((a[:, None] == b) | (b == ""), bool)


def _label(value: object) -> str:
    """A label as text; a missing one among integers turns these into floats."""
    value = plain(value)
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _beside(registered: Mapping[str, Any], loss: Floats) -> pd.DataFrame:
    frame = pd.DataFrame(registered["rows"]).assign(loss=loss)
    frame["error"] = frame["median"] / frame["loss"] - 1
    for level in LEVELS:
        name = f"{100 * level:g}"
        inside = frame["loss"].between(frame[f"lower_{name}"], frame[f"upper_{name}"])
        frame[f"inside_{name}"] = inside.astype("boolean").where(frame["loss"].notna())
    return frame


def _scores(registered: Mapping[str, Any], frame: pd.DataFrame) -> pd.Series:
    """Scores over the measured rows, of the registered median, bands and draws."""
    there = frame["loss"].notna().to_numpy()
    rows = frame[there]
    truth = np.log(rows["loss"].to_numpy(float))
    bands = {
        level: (
            np.log(rows[f"lower_{100 * level:g}"].to_numpy(float)),
            np.log(rows[f"upper_{100 * level:g}"].to_numpy(float)),
        )
        for level in LEVELS
    }
    scores = point_scores(rows["median"].to_numpy(float), rows["loss"].to_numpy(float))
    scores |= interval_scores(bands, truth)
    if "draws" in registered:
        samples = np.log(np.array(registered["draws"], float)[there].T)
        scores["crps"] = float(crps(samples, truth).mean())
    return pd.Series(scores, index=[*POINT, *BANDS], dtype=float)


def _result(found: Verification, table: LossTable, tolerance: float) -> dict[str, Any]:
    """The record that a verification appends to the file."""
    measured = found.frame[found.frame["loss"].notna()]
    losses = measured[["row", "loss", "error"]].to_dict("records")
    return {
        "date": now(),
        "bayeslaw": version("bayeslaw"),
        "measured": {"name": table.name, "rows": len(table), "sha256": table.sha256},
        "tolerance": tolerance,
        "scored": len(losses),
        "missing": list(found.missing),
        "extra": list(found.extra),
        "scores": {str(name): plain(value) for name, value in found.scores.items()},
        "losses": [{str(name): plain(value) for name, value in row.items()} for row in losses],
    }
