"""Forecasts that are registered before the losses are measured, and verified afterwards.

The file is JSON: the forecast, its SHA-256, short hashes of its parts, by which its reader is told
which of them was edited, and the results of verifications.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Ints
from bayeslaw.common.defaults import COVARIATE_TOLERANCE
from bayeslaw.common.errors import BayeslawError, FileError, TableError, argument
from bayeslaw.common.files import digest, held, read_json, write_json
from bayeslaw.common.formatting import jsonable
from bayeslaw.common.shown import SYNTHETIC, Block, Note, Showing, Shown
from bayeslaw.evaluate.scores import (
    BAND_SCORES,
    POINT_SCORES,
    crps,
    interval_scores,
    point_scores,
    shown_scores,
)
from bayeslaw.inference.bands import (
    BAND_LEVELS,
    band_columns,
    band_table,
    inside,
    inside_words,
)
from bayeslaw.inference.fitted import FittedLaw
from bayeslaw.inference.forecast import Forecast
from bayeslaw.laws.departure import Departure
from bayeslaw.laws.steps import ANNEALED, UNIQUE
from bayeslaw.tables.comparison import same_rows
from bayeslaw.tables.reading import from_frame
from bayeslaw.tables.table import LossTable
from bayeslaw.tables.units import bits_for_nats
from bayeslaw.tables.validation import (
    BASE_LOSSES,
    COVARIATES,
    NUMBERS,
    OF_DOMAIN,
    row_numbers,
)

FORMAT = "bayeslaw registered forecast"
SCHEMA = 2
FEWEST_DRAWS = 100
"""Least number of draws stored: from n draws, a calibrated forecast's CRPS is too large by 1/n."""


class RegisteredForecast(TypedDict):
    """What is registered: the part of the file that its hash is of, and that never changes."""

    date: str
    bayeslaw: str
    law: str
    # By label: the law, the model, the training table, settings.
    fits: dict[str, dict[str, Any]]
    failures: list[str]  # of the convergence check
    seed: int
    synthetic: bool
    losses_known: int  # rows that had a measured loss already
    units: str
    match: list[str]  # columns by which measured rows are matched
    rows: list[dict[str, Any]]  # covariates, labels, position, median and bands
    draws: NotRequired[list[list[float]]]  # by row


class Document(TypedDict):
    """The file of a registered forecast."""

    format: str
    schema: int
    sha256: str
    forecast: RegisteredForecast
    parts: dict[str, str]  # short hashes
    results: list[dict[str, Any]]  # of verifications
    results_sha256: NotRequired[str]  # from schema 2 on


OPTIONAL = (UNIQUE, ANNEALED, *OF_DOMAIN)
"""Columns by which rows are matched, though tables may lack them."""


def register(forecast: Forecast, path: str | Path, *, draws: int = 0) -> str:
    """Write a forecast to a file before the losses are measured; `verify` scores it afterwards.

    The file is JSON: date, hashes of the specification and of the training table, versions, seeds,
    and for each row its covariates, labels, median and 50, 80 and 90 % bands. Its hash shows that
    the forecast was edited, not when it was made, and who edits the file can replace the hash too:
    put the file, or the hash, where others can see the date.

    Parameters
    ----------
    forecast : Forecast
        Of kind ``"predictive"``.
    path : str or Path
        Of a file that does not exist yet.
    draws : int
        Draws per row that are stored, evenly spaced among the forecast's: none, or at least 100.
        Without draws the CRPS is not available afterwards.

    Returns
    -------
    str
        SHA-256 of the forecast.

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
        raise BayeslawError(
            "register needs a posterior's forecast; a point fit has no bands."
        )
    if forecast.kind != "predictive":
        raise BayeslawError(
            f"a {forecast.kind} forecast has no noise, so measured losses cannot verify its bands; "
            f"register one with {argument('kind', 'predictive')}."
        )
    if not forecast.fits:
        raise BayeslawError(
            "this forecast does not know its fit; make it with fit.forecast(rows)."
        )
    if not np.isfinite(forecast.samples).all():
        raise BayeslawError(
            "some draws of this forecast are not finite; it cannot be registered."
        )
    content = _content(forecast, draws)
    sha256 = digest(content)
    parts = _parts(content)
    document = {
        "format": FORMAT,
        "schema": SCHEMA,
        "sha256": sha256,
        "forecast": content,
    }
    document |= {"parts": parts, "results": [], "results_sha256": digest([])}
    try:
        write_json(document, path, new=True)
    except FileError:
        check_new(path, draws)  # if another was registered there in the meantime
        raise
    return sha256


@dataclass(frozen=True)
class Verification(Showing):
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
    forecast: RegisteredForecast = field(repr=False)
    frame: pd.DataFrame = field(repr=False)
    scores: pd.Series
    extra: tuple[int, ...] = ()
    results: Sequence[Mapping[str, Any]] = field(default=(), repr=False)

    @property
    def missing(self) -> tuple[int, ...]:
        """Rows of the forecast without a measured loss, counted from 0."""
        return tuple(
            int(row) for row in self.frame.loc[self.frame["loss"].isna(), "row"]
        )

    def shown(self) -> Shown:
        """The registered rows that are measured beside their losses, and their scores."""
        registered = self.forecast
        frame = self.frame
        done = frame[frame["loss"].notna()]
        measured = len(self.frame) - len(self.missing)
        synthetic = bool(registered["synthetic"])
        blocks: list[Block] = [Note(SYNTHETIC, "synthetic")] * synthetic
        blocks += [
            f"SHA-256 {self.sha256}",
            Note("unchanged since it was registered", "ok"),
        ]
        for label, fit in registered["fits"].items():
            about = fit["training"]
            words = (
                f"{label}: fitted to {about['rows']} rows of {about['name']}, SHA-256 "
            )
            blocks.append(f"{words}{about['sha256'][:12]}...")
        if registered["failures"]:
            words = f"NOT CONVERGED when it was registered: {'; '.join(registered['failures'])}."
            blocks.append(Note(words, "refuse"))
        if before := registered["losses_known"]:
            words = f"{before} of {len(frame)} rows already had a measured loss when the forecast "
            blocks.append(Note(f"Not blind: {words}was registered.", "caution"))
        document = {
            "sha256": self.sha256,
            "registered": registered["date"],
            "law": registered["law"],
            "synthetic": synthetic,
            "losses_known": registered["losses_known"],
            "failures": registered["failures"],
            "missing": list(self.missing),
            "extra": list(self.extra),
            "rows": frame.to_dict("records"),
            "scores": self.scores.to_dict() if measured else None,
            "results": list(self.results),
        }
        title = (
            f"{registered['law']}: {len(frame)} rows registered {registered['date']}"
        )
        if not measured:
            past = len(self.results)
            blocks.append(
                f"{past} result{'s' * (past != 1)} in the file; no losses to score."
            )
            return Shown(title, blocks, document)
        missing = frame["loss"].isna().reset_index(drop=True)
        words = f"; missing: {row_numbers(missing)}" if self.missing else ""
        blocks.append(f"{measured} of {len(frame)} rows are measured{words}.")
        used = dict.fromkeys(
            n for fit in registered["fits"].values() for n in fit["covariates"]
        )
        columns = [
            "row",
            *(name for name in dict.fromkeys((*COVARIATES, *used)) if name in used),
        ]
        blocks.append(band_table(done, columns, BAND_LEVELS[::2]))
        blocks += [
            inside_words(done, BAND_LEVELS[::2]),
            *shown_scores(self.scores).blocks,
        ]
        if not done["inside_90"].astype(bool).any():
            doubt = bits_for_nats(
                done["loss"].to_numpy(float), done["median"].to_numpy(float)
            )
            blocks += [Note(doubt, "caution")] if doubt else []
        if "draws" not in registered:
            note = "No CRPS: the forecast was registered without draws."
            blocks.append(Note(note, "quiet"))
        if self.extra:
            extra = pd.Series(np.isin(np.arange(max(self.extra) + 1), self.extra))
            blocks.append(f"Not forecast: {row_numbers(extra)} of the measured.")
        return Shown(title, blocks, document)


def verify(
    path: str | Path,
    measured: LossTable | pd.DataFrame | None = None,
    *,
    sha256: str | None = None,
    tolerance: float = COVARIATE_TOLERANCE,
) -> Verification:
    """Check that a registered forecast is unchanged, and score it on what has been measured.

    A measured row belongs to the row of the forecast with its labels and, up to `tolerance`, its
    covariates, `unique_tokens` and `annealed`, which stand for no repeated tokens and 1 where a
    table lacks them. A forecast that does not state them is of the kind, the domain and the role
    of its fitted rows, if these have only one. The result is appended to the file; the forecast in
    it is not touched.

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

    """
    document = _read(path)
    registered = document["forecast"]
    if sha256 is not None and sha256.lower() != document["sha256"]:
        raise FileError(
            f"{path}: its SHA-256 is {document['sha256']}, not {sha256}: it is another forecast, "
            "or its hash was replaced with it."
        )
    if not 0 <= tolerance < 1:
        raise BayeslawError(
            f"tolerance={tolerance:g}: give a relative difference, such as 0.001."
        )
    frame = pd.DataFrame(registered["rows"])
    loss = np.full(len(frame), np.nan)
    row_of = np.array([], int)
    if measured is not None:
        measured = (
            measured
            if isinstance(measured, LossTable)
            else from_frame(measured, "measured")
        )
        row_of = _rows_of(registered, measured, tolerance)
        loss[row_of[row_of >= 0]] = measured.loss[row_of >= 0]
    frame = frame.assign(loss=loss, error=frame["median"] / loss - 1)
    frame = pd.concat([frame, inside(frame, BAND_LEVELS)], axis=1)
    extra = tuple(np.flatnonzero(row_of < 0).tolist())
    scores = _scores(registered, frame)
    results = document["results"]
    verified = Verification(
        document["sha256"], registered, frame, scores, extra, results
    )
    if measured is None:
        return verified
    losses = frame.loc[frame["loss"].notna(), ["row", "loss", "error"]].to_dict(
        "records"
    )
    result = {
        "date": _now(),
        "bayeslaw": version("bayeslaw"),
        "measured": _about(measured),
        "tolerance": tolerance,
        "scored": len(losses),
        "missing": list(verified.missing),
        "extra": list(extra),
        "scores": jsonable(scores.to_dict()),
        "losses": jsonable(losses),
    }
    with held(path):
        # Another verification may have ended since the file was read.
        document = _read(path)
        results = [*document["results"], result]
        added = {
            "schema": SCHEMA,
            "results": results,
            "results_sha256": digest(results),
        }
        write_json(document | added, path)
    return replace(verified, results=results)


def _read(path: str | Path) -> Document:
    """The document of a registered forecast; `FileError` names the parts that were edited."""
    try:
        document = cast(
            "Document", read_json(path, FORMAT, SCHEMA, "a registered forecast")
        )
        sha256 = digest(document["forecast"])
        written = document["sha256"]
        if sha256 != written:
            now = _parts(document["forecast"])
            then = document["parts"]
            edited = [part for part in then if part in now and now[part] != then[part]]
            edited += [f"{part} (removed)" for part in then if part not in now]
            edited += [f"{part} (added)" for part in now if part not in then]
            changed = ", ".join(edited) or "the hash itself, or the order of the rows"
            raise FileError(
                f"{path}: the forecast was edited after it was registered: {changed}. Its SHA-256 "
                f"is {sha256}, written was {written}. Nothing was scored; restore the file."
            )
        # With that hash, but not as `register` writes it: made by another program.
        _check_content(document["forecast"])
        results = document["results"]
        if not (
            isinstance(results, list)
            and all(isinstance(each, dict) for each in results)
        ):
            raise TypeError("its results are not a list of objects")  # noqa: TRY301
        if document["schema"] > 1 and digest(results) != document["results_sha256"]:
            raise FileError(
                f"{path}: the results of its verifications were edited after they were written; "
                "the forecast was not. Nothing was scored; restore the file."
            )
    except (
        ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError,
    ) as error:  # fmt: skip
        why = f"no {error}" if isinstance(error, KeyError) else error
        raise FileError(
            f"{path}: not a registered forecast of bayeslaw, or damaged ({why})."
        ) from error
    return document


def _check_content(content: Mapping[str, Any]) -> None:
    """Raise ValueError, KeyError or TypeError unless a forecast has all that `verify` reads."""

    def need(valid: bool, what: str) -> None:
        if not valid:
            raise ValueError(what)

    def texts(value: object) -> bool:
        return isinstance(value, list) and all(isinstance(text, str) for text in value)

    def positive(value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return 0 < float(value) < math.inf

    for name in ("date", "law"):
        need(isinstance(content[name], str), f"its {name} is no text")
    need(
        isinstance(content["synthetic"], bool),
        "its 'synthetic' is neither true nor false",
    )
    need(isinstance(content["losses_known"], int), "its 'losses_known' is no number")
    for name in ("failures", "match"):
        need(texts(content[name]), f"its {name!r} is no list of texts")
    need(isinstance(content["fits"], dict), "its fits are no object")
    for label, fit in content["fits"].items():
        about = fit["training"]
        need(
            texts(fit["covariates"]), f"the covariates of {label} are no list of texts"
        )
        known = isinstance(about["name"], str) and isinstance(about["sha256"], str)
        need(
            known and isinstance(about["rows"], int),
            f"the training table of {label} is none",
        )
    rows = content["rows"]
    match = content["match"]
    need(isinstance(rows, list) and len(rows) > 0, "it has no rows")
    losses = ["median", *(end for level in BAND_LEVELS for end in band_columns(level))]
    for i, row in enumerate(rows):
        need(row["row"] == i, f"row {i} has another number")
        for name in losses:
            need(positive(row[name]), f"{name!r} of row {i} is no loss")
        for name in match:
            single = row[name] is None or isinstance(row[name], str | int | float)
            number = name not in NUMBERS or not isinstance(row[name], str)
            need(single and number, f"{name!r} of row {i} is no value of that column")
    if "draws" in content:
        draws = content["draws"]
        need(
            isinstance(draws, list) and len(draws) == len(rows),
            "it has draws of other rows",
        )
        for i, drawn in enumerate(draws):
            need(
                len(drawn) == len(draws[0]) > 0, f"row {i} has another number of draws"
            )
            need(all(map(positive, drawn)), f"a draw of row {i} is no loss")


def _parts(content: Mapping[str, Any]) -> dict[str, str]:
    """Short hashes of the parts of a forecast, to name those that were edited."""
    parts = {
        name: content[name] for name in content if name not in ("fits", "rows", "draws")
    }
    for label, fit in content["fits"].items():
        parts |= {f"{name} of {label}": value for name, value in fit.items()}
    parts |= {f"row {row.get('row')}": row for row in content["rows"]}
    parts |= {
        f"draws of row {i}": drawn for i, drawn in enumerate(content.get("draws", ()))
    }
    return {name: digest(value)[:12] for name, value in parts.items()}


def check_new(path: str | Path, draws: int) -> None:
    """Raise `BayeslawError` if a forecast with so many draws cannot be registered at `path`."""
    if Path(path).exists():
        raise FileError(
            f"{path}: exists; a registered forecast is never replaced. Choose a name."
        )
    if draws < 0 or 0 < draws < FEWEST_DRAWS:
        raise BayeslawError(
            f"draws={draws}: store none, or at least {FEWEST_DRAWS} for the CRPS."
        )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _about(table: LossTable) -> dict[str, Any]:
    # Not its folder, which is nobody's business, and changes.
    name = Path(table.name).name or table.name
    return {"name": name, "rows": len(table), "sha256": table.sha256}


def _content(forecast: Forecast, draws: int) -> RegisteredForecast:
    frame = forecast.stated
    fits = forecast.fits
    match = _matched_columns(forecast)
    alike = [same.sum(axis=1) for same in same_rows(frame, frame, match, mutual=True)]
    if (same := pd.Series(np.concatenate(alike) > 1, frame.index)).any():
        raise TableError(
            f"{row_numbers(same)} of the forecast have the same {', '.join(match)}, so a measured "
            "loss could be of either; drop all but one, or add a column 'run'."
        )
    ends = [column for level in BAND_LEVELS for column in band_columns(level)]
    bands = frame[match].join(
        forecast.to_frame(BAND_LEVELS)[["position", "median", *ends]]
    )
    content: RegisteredForecast = {
        "date": _now(),
        "bayeslaw": version("bayeslaw"),
        "law": forecast.law,
        "fits": {label: _about_fit(fit) for label, fit in fits.items()},
        "failures": list(forecast.convergence.failures),
        "seed": forecast.seed,
        "synthetic": forecast.synthetic,
        "losses_known": int(frame["loss"].notna().sum()) if "loss" in frame else 0,
        "units": "nats per token",
        "match": match,
        "rows": [
            {"row": i} | jsonable(row) for i, row in enumerate(bands.to_dict("records"))
        ],
    }
    if draws:
        samples = forecast.samples
        spaced = np.linspace(0, len(samples) - 1, min(draws, len(samples))).astype(int)
        content["draws"] = samples[spaced].T.tolist()
    return content


def _matched_columns(forecast: Forecast) -> list[str]:
    """Columns of a forecast by which its rows are found among measured ones."""
    names = [*COVARIATES, *forecast.columns, UNIQUE, ANNEALED]
    if any(fit.law.step(Departure) for fit in forecast.fits.values()):
        names += BASE_LOSSES
    return [
        c for c in dict.fromkeys((*names, *forecast.labels)) if c in forecast.stated
    ]


def _about_fit(fit: FittedLaw) -> dict[str, Any]:
    return {
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


def _rows_of(
    registered: RegisteredForecast, table: LossTable, tolerance: float
) -> Ints:
    """Row of the forecast that each measured row belongs to, -1 for none; shape (measured,)."""
    planned = pd.DataFrame(registered["rows"])
    optional = [c for c in OPTIONAL if c in table.frame or c in planned]
    match = list(dict.fromkeys([*registered["match"], *optional]))
    for column in registered["match"]:
        if column not in (*table.frame, *OPTIONAL, *BASE_LOSSES):
            raise TableError(
                f"{table.name}: no column {column!r}, by which measured rows are matched to the "
                f"forecast's ({', '.join(registered['match'])}); add it."
            )
    row_of = np.full(len(table), -1)
    matches = np.zeros(len(table), int)
    repeated = -1
    row = 0
    for block in same_rows(planned, table.frame, match, tolerance):
        matches += block.sum(axis=0)
        for measured in block:
            row_of[measured] = row
            if measured.sum() > 1 and repeated < 0:
                repeated = row
                measurements = measured
            row += 1
    if (several := pd.Series(matches > 1)).any():
        raise TableError(
            f"{table.name}: {row_numbers(several)} lie within {tolerance:g} of several rows of the "
            "forecast; give a smaller tolerance."
        )
    if repeated >= 0:
        raise TableError(
            f"{table.name}: {row_numbers(pd.Series(measurements))} are all measurements of row "
            f"{repeated} of the forecast; keep one, such as with where."
        )
    if not matches.any():
        raise TableError(
            f"{table.name}: none of its {len(table)} rows was forecast; rows are matched by "
            f"{', '.join(match)}, covariates up to a relative {tolerance:g}."
        )
    return row_of


def _scores(registered: RegisteredForecast, frame: pd.DataFrame) -> pd.Series:
    """Scores over the measured rows, if any, of the registered median, bands and draws."""
    measured = frame["loss"].notna().to_numpy()
    rows = frame[measured]
    scores = {}
    if measured.any():
        truth = np.log(rows["loss"].to_numpy(float))
        bands = {
            p: np.log(rows[band_columns(p)].to_numpy(float).T) for p in BAND_LEVELS
        }
        scores = point_scores(
            rows["median"].to_numpy(float), rows["loss"].to_numpy(float)
        )
        scores |= interval_scores(bands, truth)
        if "draws" in registered:
            samples = np.log(np.array(registered["draws"], float)[measured].T)
            scores["crps"] = float(crps(samples, truth).mean())
    return pd.Series(scores, index=[*POINT_SCORES, *BAND_SCORES], dtype=float)
