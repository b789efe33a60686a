"""Registration of a forecast in a file with its hash, and its verification by measured losses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.common.defaults import TOLERANCE
from bayeslaw.common.errors import BayeslawError, FileError, TableError, argument
from bayeslaw.common.files import digest, read_json, write_json
from bayeslaw.common.formatting import jsonable
from bayeslaw.evaluate.scores import BANDS, POINT, crps, interval_scores, point_scores
from bayeslaw.inference.posterior import LEVELS, Forecast, band_columns
from bayeslaw.laws.adjustments import ABSENT, ANNEALED, UNIQUE
from bayeslaw.model import effects
from bayeslaw.tables.reading import from_frame, is_synthetic
from bayeslaw.tables.table import LossTable
from bayeslaw.tables.validation import BASE_LOSSES, COVARIATES, label_texts, row_numbers

FORMAT = "bayeslaw registered forecast"
SCHEMA = 1
"""Version of the file's layout; a file with a larger one is refused."""
FEWEST_DRAWS = 100
"""Least number of draws stored: from n draws, a calibrated forecast's CRPS is too large by 1/n."""
OTHERS = (UNIQUE, ANNEALED)
"""Columns by which rows are matched, though a table may lack them."""
LABELS = ("domain", "base", "run")
"""Columns that identify a row beside its covariates, with those of the fit's random effects."""


def register(forecast: Forecast, path: str | Path, *, draws: int = 0) -> str:
    """Write a forecast to a file before the losses are measured; `verify` scores it afterwards.

    The file is JSON that can be read without this package: date, hashes of the specification and
    of the training table, versions, seeds, and for each row its covariates, labels, median and 50,
    80 and 90 % bands. The hash in the file shows that the forecast was edited, not when it was
    made, and who edits the file can replace the hash too. Put the file, or the hash, where others
    can see the date.

    Parameters
    ----------
    forecast : Forecast
        Of kind ``"predictive"``.
    path : str or Path
        File that does not exist yet.
    draws : int
        Draws per row that are stored, evenly spaced among the forecast's: none, or at least 100.
        Without draws the CRPS is not available afterwards.

    Returns
    -------
    str
        SHA-256 of the forecast.

    Raises
    ------
    BayeslawError
        If the forecast is latent, does not know its fit or is not finite, or `draws` is too small.
    TableError
        If two rows have the same covariates and labels.
    FileError
        If the file exists, or cannot be written.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> train, test = bl.example_table().split("scale <= 3e20", "scale >= 1e21")
    >>> planned = test.frame.drop(columns="loss")
    >>> settings = {"discrepancy": "none", "effects": "none", "draws": 500}
    >>> fc = bl.fit("chinchilla", train, **settings).forecast(planned)
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "planned.json"
    ...     sha256 = bl.register(fc, path)
    ...     result = bl.verify(path, test, sha256=sha256)
    >>> len(sha256), bool(0 <= result.scores["coverage_90"] <= 1)
    (64, True)
    """
    check_new(path, draws)
    if not isinstance(forecast, Forecast):
        raise BayeslawError("register needs a posterior's forecast; a point fit has no bands.")
    if forecast.kind != "predictive":
        raise BayeslawError(
            f"a {forecast.kind} forecast has no noise, so measured losses cannot verify its bands; "
            f"register one with {argument('kind', 'predictive')}."
        )
    if not forecast.fits:
        raise BayeslawError("this forecast does not know its fit; make it with fit.forecast(rows).")
    if not np.isfinite(forecast.samples).all():
        raise BayeslawError("some draws of this forecast are not finite; it cannot be registered.")
    content = _content(forecast, draws)
    sha256, parts = digest(content), _parts(content)
    document = {"format": FORMAT, "schema": SCHEMA, "sha256": sha256, "forecast": content}
    write_json(document | {"parts": parts, "results": []}, path)
    return sha256


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
    covariates. Where the forecast depends on them, so must `unique_tokens` and `annealed` agree,
    which stand for no repeated tokens and 1 where a table lacks them. The result is appended to the
    file; the forecast in it is not touched.

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
    frame = pd.DataFrame(registered["rows"])
    loss = np.full(len(frame), np.nan)
    place = np.array([], int)
    table = None
    if measured is not None:
        table = measured if isinstance(measured, LossTable) else from_frame(measured, "measured")
        place = _places(registered, table, tolerance)
        loss[place[place >= 0]] = table.loss[place >= 0]
    frame = _beside(frame, loss)
    found = Verification(
        document["sha256"],
        registered,
        frame,
        _scores(registered, frame),
        extra=tuple(np.flatnonzero(place < 0).tolist()),
        results=document["results"],
    )
    if table is None:
        return found
    losses = frame.loc[frame["loss"].notna(), ["row", "loss", "error"]].to_dict("records")
    result = {
        "date": _now(),
        "bayeslaw": version("bayeslaw"),
        "measured": _about(table),
        "tolerance": tolerance,
        "scored": len(losses),
        "missing": list(found.missing),
        "extra": list(found.extra),
        "scores": jsonable(found.scores.to_dict()),
        "losses": jsonable(losses),
    }
    results = [*document["results"], result]
    write_json({**document, "results": results}, path)
    return replace(found, results=results)


def check_new(path: str | Path, draws: int) -> None:
    """Raise `BayeslawError` if a forecast with so many draws cannot be registered at `path`."""
    if Path(path).exists():
        raise FileError(f"{path}: exists; a registered forecast is never replaced. Choose a name.")
    if draws < 0 or 0 < draws < FEWEST_DRAWS:
        raise BayeslawError(f"draws={draws}: store none, or at least {FEWEST_DRAWS} for the CRPS.")


def read(path: str | Path) -> dict[str, Any]:
    """The document of a registered forecast, whose forecast has the hash it was registered with.

    Raises
    ------
    FileError
        If the file is missing, not a registered forecast, or of a newer version, or if the forecast
        was edited; the message names the parts that changed.
    """
    try:
        document = read_json(path, FORMAT, SCHEMA, "a registered forecast")
        now, then = digest(document["forecast"]), document["sha256"]
        if now != then:
            changed = _changed(_parts(document["forecast"]), document["parts"])
            raise FileError(
                f"{path}: the forecast was edited after it was registered: {changed}. Its SHA-256 "
                f"is {now}, registered was {then}. Nothing was scored; restore the file."
            )
        if not isinstance(document["results"], list):
            raise TypeError("its results are not a list")  # noqa: TRY301
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileError(f"{path}: not a registered forecast, or damaged ({error}).") from error
    return document


def _now() -> str:
    """Date and time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _about(table: LossTable) -> dict[str, Any]:
    return {"name": table.name, "rows": len(table), "sha256": table.sha256}


def _content(forecast: Forecast, draws: int) -> dict[str, Any]:
    """The registered part of the document, which the hash is of and which never changes."""
    frame, fits = forecast.frame, forecast.fits
    laws = [fit.law for fit in fits.values()]
    levels = [level for fit in fits.values() for level in fit.spec.effects]
    match = [c for c in COVARIATES if c in frame]
    match += [UNIQUE] * any(law.repetition is not None for law in laws)
    match += [ANNEALED] * any(law.offset is not None for law in laws)
    match += [c for c in BASE_LOSSES if c in frame and any(law.bases is not None for law in laws)]
    frame = frame.assign(**{column: _numbers(frame, column) for column in match})
    labels = [*LABELS, *(effects.level(level).column for level in levels)]
    match += [c for c in dict.fromkeys(labels) if c in frame and c not in match]
    if (same := frame.duplicated(match, keep=False)).any():
        raise TableError(
            f"{row_numbers(same)} of the forecast have the same {', '.join(match)}, so a measured "
            "loss could be of either; drop all but one, or add a column 'run'."
        )
    ends = [column for level in LEVELS for column in band_columns(level)]
    bands = frame[match].join(forecast.to_frame(LEVELS)[["position", "median", *ends]])
    content: dict[str, Any] = {
        "date": _now(),
        "bayeslaw": version("bayeslaw"),
        "law": forecast.law,
        "fits": {
            label: {
                "title": fit.law.title,
                "covariates": list(fit.law.columns),
                "specification": fit.spec.identity,
                "likelihood": fit.spec.likelihood.kind,
                "discrepancy": fit.spec.discrepancy.kind,
                "effects": list(fit.spec.effects),
                "errors": fit.spec.errors,
                "training": _about(fit.table),
                "settings": dict(fit.settings),
            }
            for label, fit in fits.items()
        },
        "failures": list(forecast.convergence.failures),
        "seed": forecast.seed,
        "synthetic": is_synthetic(frame) or any(is_synthetic(fit.table) for fit in fits.values()),
        "losses_known": int(frame["loss"].notna().sum()) if "loss" in frame else 0,
        "units": "nats per token",
        "match": match,
        "rows": [{"row": i} | jsonable(row) for i, row in enumerate(bands.to_dict("records"))],
    }
    if draws:
        samples = forecast.samples
        spaced = np.linspace(0, len(samples) - 1, min(draws, len(samples))).astype(int)
        content["draws"] = samples[spaced].T.tolist()
    return content


def _parts(content: Mapping[str, Any]) -> dict[str, str]:
    """Short hashes of the parts of a forecast, to name those that were edited."""
    parts = {name: content[name] for name in content if name not in ("fits", "rows", "draws")}
    for label, fit in content.get("fits", {}).items():
        parts |= {f"{name} of {label}": value for name, value in fit.items()}
    parts |= {f"row {row.get('row')}": row for row in content.get("rows", ())}
    parts |= {f"draws of row {i}": drawn for i, drawn in enumerate(content.get("draws", ()))}
    return {name: digest(value)[:12] for name, value in parts.items()}


def _changed(now: Mapping[str, str], then: Mapping[str, str]) -> str:
    names = [name for name in then if name in now and now[name] != then[name]]
    names += [f"{name} (removed)" for name in then if name not in now]
    names += [f"{name} (added)" for name in now if name not in then]
    return ", ".join(names) or "the hash itself, or the order of the rows"


def _places(registered: Mapping[str, Any], table: LossTable, tolerance: float) -> Ints:
    """Row of the forecast that each measured row belongs to, -1 for none; shape (measured,)."""
    planned = pd.DataFrame(registered["rows"])
    fits = np.ones((len(table), len(planned)), bool)
    for column in registered["match"]:
        if column not in table.frame and column in BASE_LOSSES:
            continue
        if column not in table.frame and column not in OTHERS:
            raise TableError(
                f"{table.name}: no column {column!r}, by which measured rows are matched to the "
                f"forecast's ({', '.join(registered['match'])}); add it."
            )
        if column in (*COVARIATES, *OTHERS, *BASE_LOSSES):
            a, b = _numbers(table.frame, column)[:, None], _numbers(planned, column)
            # A base whose loss is not known on either side may be the same.
            fits &= ~(np.abs(a - b) > tolerance * np.maximum(np.abs(a), np.abs(b)))
        else:  # a planned row without a label takes any
            own, other = (label_texts(each[column]).to_numpy() for each in (table.frame, planned))
            fits &= (own[:, None] == other) | pd.isna(other)
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


def _numbers(frame: pd.DataFrame, column: str) -> Floats:
    """A column as numbers, also if it is `ABSENT`, shape (rows,)."""
    known = frame if column in frame else frame.assign(**{column: ABSENT[column]})
    numbers = known[column].to_numpy(float)
    # Beyond the tokens of a row its distinct tokens make no difference.
    most = frame["tokens"].to_numpy(float) if column == UNIQUE else np.inf
    return np.asarray(np.minimum(numbers, most))


def _beside(frame: pd.DataFrame, loss: Floats) -> pd.DataFrame:
    """The registered rows beside their measured losses, which may be missing."""
    frame = frame.assign(loss=loss, error=frame["median"] / loss - 1)
    for level in LEVELS:
        lower, upper = (frame[column] for column in band_columns(level))
        inside = frame["loss"].between(lower, upper).astype("boolean")
        frame[f"inside_{100 * level:g}"] = inside.where(frame["loss"].notna())
    return frame


def _scores(registered: Mapping[str, Any], frame: pd.DataFrame) -> pd.Series:
    """Scores over the measured rows, if any, of the registered median, bands and draws."""
    there = frame["loss"].notna().to_numpy()
    rows, scores = frame[there], {}
    if there.any():
        truth = np.log(rows["loss"].to_numpy(float))
        bands = {p: np.log(rows[band_columns(p)].to_numpy(float).T) for p in LEVELS}
        scores = point_scores(rows["median"].to_numpy(float), rows["loss"].to_numpy(float))
        scores |= interval_scores(bands, truth)
        if "draws" in registered:
            samples = np.log(np.array(registered["draws"], float)[there].T)
            scores["crps"] = float(crps(samples, truth).mean())
    return pd.Series(scores, index=[*POINT, *BANDS], dtype=float)
