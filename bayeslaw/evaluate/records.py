"""Files of results for later and for others: registered forecasts, and coefficients of a fit.

Both are JSON: the content under its name, its SHA-256, and short hashes of its parts, by which a
reader is told which of them was edited.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.common.defaults import TOLERANCE
from bayeslaw.common.errors import BayeslawError, FileError, LawError, TableError, argument
from bayeslaw.common.files import digest, locked, read_json, write_json
from bayeslaw.common.formatting import jsonable
from bayeslaw.common.shown import SYNTHETIC, Block, Note, Showing, Shown, Table
from bayeslaw.evaluate.scores import BANDS, POINT, crps, interval_scores, point_scores, shown_scores
from bayeslaw.inference.fitted import Convergence
from bayeslaw.inference.pools import of_one_law
from bayeslaw.inference.posterior import (
    LEVELS,
    Forecast,
    Posterior,
    band_columns,
    band_table,
    inside_words,
)
from bayeslaw.inference.residuals import LAST_ERROR, last_errors, too_few_sizes
from bayeslaw.inference.storage import with_units
from bayeslaw.laws.adjustments import ANNEALED, RATE, UNIQUE
from bayeslaw.laws.deviations import Knots
from bayeslaw.laws.law import Law
from bayeslaw.model.spec import spec_of
from bayeslaw.tables.table import LossTable, from_frame, is_synthetic
from bayeslaw.tables.validation import BASE_LOSSES, COVARIATES, row_numbers, same_rows

FORECAST = ("forecast", "bayeslaw registered forecast", 1)
COEFFICIENTS = ("coefficients", "bayeslaw coefficients", 2)
"""Name of the content, format and schema of a file."""
FEWEST_DRAWS = 100
"""Least number of draws stored: from n draws, a calibrated forecast's CRPS is too large by 1/n."""
OTHERS = (UNIQUE, ANNEALED, RATE, "domain")
"""Columns by which rows are matched, though tables may lack them."""
QUANTILES = {"median": 0.5, "q05": 0.05, "q25": 0.25, "q75": 0.75, "q95": 0.95}


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

    Raises
    ------
    BayeslawError
        If the forecast is latent, does not know its fit or is not finite, or `draws` is too small;
        `TableError` if two rows have the same covariates and labels; `FileError` if the file
        exists, or cannot be written.

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
    return _write(FORECAST, _forecast_content(forecast, draws), path, results=[])


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
    forecast: Mapping[str, Any] = field(repr=False)
    frame: pd.DataFrame = field(repr=False)
    scores: pd.Series
    extra: tuple[int, ...] = ()
    results: Sequence[Mapping[str, Any]] = field(default=(), repr=False)

    @property
    def missing(self) -> tuple[int, ...]:
        """Rows of the forecast without a measured loss, counted from 0."""
        return tuple(int(row) for row in self.frame.loc[self.frame["loss"].isna(), "row"])

    def shown(self) -> Shown:
        """The registered rows that are measured beside their losses, and their scores."""
        known, frame = self.forecast, self.frame
        done, measured = frame[frame["loss"].notna()], len(self.frame) - len(self.missing)
        synthetic = bool(known["synthetic"])
        blocks: list[Block] = [Note(SYNTHETIC, "synthetic")] * synthetic
        blocks += [f"SHA-256 {self.sha256}", Note("unchanged since it was registered", "ok")]
        for label, fit in known["fits"].items():
            about = fit["training"]
            words = f"{label}: fitted to {about['rows']} rows of {about['name']}, SHA-256 "
            blocks.append(f"{words}{about['sha256'][:12]}...")
        if known["failures"]:
            words = f"NOT CONVERGED when it was registered: {'; '.join(known['failures'])}."
            blocks.append(Note(words, "refuse"))
        if before := known["losses_known"]:
            words = f"{before} of {len(frame)} rows already had a measured loss when the forecast "
            blocks.append(Note(f"Not blind: {words}was registered.", "caution"))
        document = {
            "sha256": self.sha256,
            "registered": known["date"],
            "law": known["law"],
            "synthetic": synthetic,
            "losses_known": known["losses_known"],
            "failures": known["failures"],
            "missing": list(self.missing),
            "extra": list(self.extra),
            "rows": frame.to_dict("records"),
            "scores": self.scores.to_dict() if measured else None,
            "results": list(self.results),
        }
        title = f"{known['law']}: {len(frame)} rows registered {known['date']}"
        if not measured:
            past = len(self.results)
            blocks.append(f"{past} result{'s' * (past != 1)} in the file; no losses to score.")
            return Shown(title, blocks, document)
        missing = frame["loss"].isna().reset_index(drop=True)
        words = f"; missing: {row_numbers(missing)}" if self.missing else ""
        blocks.append(f"{measured} of {len(frame)} rows are measured{words}.")
        used = {name for fit in known["fits"].values() for name in fit["covariates"]}
        columns = ["row", *(name for name in COVARIATES if name in used)]
        blocks.append(band_table(done, columns, LEVELS[::2]))
        blocks += [inside_words(done, LEVELS[::2]), *shown_scores(self.scores).blocks]
        if "draws" not in known:
            note = "No CRPS: the forecast was registered without draws."
            blocks.append(Note(note, "quiet"))
        return Shown(title, blocks, document)


def verify(
    path: str | Path,
    measured: LossTable | pd.DataFrame | None = None,
    *,
    sha256: str | None = None,
    tolerance: float = TOLERANCE,
) -> Verification:
    """Check that a registered forecast is unchanged, and score it on what has been measured.

    A measured row belongs to the row of the forecast with its labels and, up to `tolerance`, its
    covariates, `unique_tokens`, `annealed` and `rate`, which stand for no repeated tokens, 1 and
    any rate where a table lacks them. A forecast that does not state them is of the rate, the kind
    and the domain of its fitted rows, if these have only one. The result is appended to the file;
    the forecast in it is not touched.

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

    Raises
    ------
    FileError
        If the file is missing or damaged, the forecast was edited, or its hash is not `sha256`.
    TableError
        If no measured row was forecast, a column by which rows are matched is missing, or two
        measured rows belong to one row of the forecast.
    """
    document = _read(path, FORECAST)
    registered = document["forecast"]
    if sha256 is not None and sha256.lower() != document["sha256"]:
        raise FileError(
            f"{path}: its SHA-256 is {document['sha256']}, not {sha256}: it is another forecast, "
            "or its hash was replaced with it."
        )
    if not 0 <= tolerance < 1:
        raise BayeslawError(f"tolerance={tolerance:g}: give a relative difference, such as 0.001.")
    frame = pd.DataFrame(registered["rows"])
    loss, place, table = np.full(len(frame), np.nan), np.array([], int), None
    if measured is not None:
        table = measured if isinstance(measured, LossTable) else from_frame(measured, "measured")
        place = _places(registered, table, tolerance)
        loss[place[place >= 0]] = table.loss[place >= 0]
    frame = frame.assign(loss=loss, error=frame["median"] / loss - 1)
    for level in LEVELS:
        lower, upper = (frame[column] for column in band_columns(level))
        inside = frame["loss"].between(lower, upper).astype("boolean")
        frame[f"inside_{100 * level:g}"] = inside.where(frame["loss"].notna())
    extra = tuple(np.flatnonzero(place < 0).tolist())
    verified = Verification(
        document["sha256"], registered, frame, _scores(registered, frame), extra,
        document["results"],
    )  # fmt: skip
    if table is None:
        return verified
    losses = frame.loc[frame["loss"].notna(), ["row", "loss", "error"]].to_dict("records")
    result = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "bayeslaw": version("bayeslaw"),
        "measured": _about(table),
        "tolerance": tolerance,
        "scored": len(losses),
        "missing": list(verified.missing),
        "extra": list(extra),
        "scores": jsonable(verified.scores.to_dict()),
        "losses": jsonable(losses),
    }
    with locked(path):
        document = _read(path, FORECAST)
        results = [*document["results"], result]
        write_json({**document, "results": results}, path)
    return replace(verified, results=results)


@dataclass(frozen=True)
class Coefficients(Showing):
    """Coefficients of a fit, read from a file; they forecast without the training losses.

    Parameters
    ----------
    law : Law
        The law that was fitted, with its discrepancy.
    parameters : DataFrame
        `point`, `median`, `q05`, `q25`, `q75`, `q95` and `unit` of each parameter, by its symbol in
        the paper. The points together give one curve, that of `predict` without draws. The medians
        are those of each parameter by itself, and together give another curve.
    document : mapping
        The content of the file: besides these the reference point, medians of the reference
        coordinates and of the noise, hash of the training table, settings and versions.
    """

    law: Law
    parameters: pd.DataFrame
    document: Mapping[str, Any] = field(repr=False)
    _fit: "_Exported" = field(repr=False)

    @property
    def convergence(self) -> Convergence:
        """Convergence checks of the fit."""
        return self._fit.convergence

    @property
    def draws(self) -> int:
        """Number of draws in the file."""
        return self._fit.count if self._fit.drawn else 0

    def latent(self, rows: LossTable | pd.DataFrame) -> Floats:
        """Noise-free loss per draw and row, nats per token; `BayeslawError` without draws."""
        return self._with_draws().latent(rows)

    def predict(self, rows: LossTable | pd.DataFrame, *, allow_unconverged: bool = False) -> Floats:
        """Central loss per row, nats per token: of the draws, or without draws of the medians.

        The medians keep the last exponent of walks beyond the training rows. `NotConverged` if the
        fit failed its convergence checks and `allow_unconverged` is false.
        """
        return self._fit.predict(rows, allow_unconverged=allow_unconverged)

    def forecast(
        self,
        rows: LossTable | pd.DataFrame,
        *,
        kind: str = "predictive",
        seed: int = 0,
        allow_unconverged: bool = False,
    ) -> Forecast:
        """Forecast the loss of each row as the fit does; `BayeslawError` without draws."""
        fit = self._with_draws()
        fc = fit.forecast(
            rows, kind=kind, seed=seed, allow_unconverged=allow_unconverged, beyond_evidence=True
        )
        return replace(fc, fits={})

    def shown(self) -> Shown:
        """Medians and intervals of the parameters."""
        frame, draws = self.parameters, self.draws
        names = {"point": "point", "median": "median", "q05": "5 %", "q25": "25 %", "q75": "75 %"}
        names |= {"q95": "95 %"}
        table = Table(frame[list(names)].rename(columns=names).rename_axis(None))
        words = f"{draws} draws." if draws else "no draws: point forecasts only."
        state = self.convergence
        note = Note(str(state), "ok" if state.ok else "refuse")
        document = {
            "draws_exported": draws,
            "sha256": self.document["training"]["sha256"],
            "parameters": frame.rename_axis("name").reset_index().to_dict("records"),
        }
        return Shown(f"Coefficients of {self.law.name}", [note, table, words], document)

    def _with_draws(self) -> "_Exported":
        if not self._fit.drawn:
            raise BayeslawError(
                "these coefficients have no draws, so no bands: export them with draws, or use "
                "predict for a point forecast."
            )
        return self._fit


def write_coefficients(
    fit: Posterior, path: str | Path, *, draws: int = 0, allow_unconverged: bool = False
) -> None:
    """Write the coefficients of a fit to a JSON file, without the training losses.

    The file states for each parameter, by its symbol in the paper, a point, the median, the 50 and
    90 % intervals and the unit, with the law, the reference point, the hash of the training table,
    the sampler and the versions. `read_coefficients` forecasts from it: a point from the medians of
    the reference coordinates, and bands from draws. With draws of a fit with errors correlated
    within runs it also has the residuals of the last row of each run, from which these go on.

    Parameters
    ----------
    fit : Posterior
    path : str or Path
    draws : int
        Number of joint draws of parameters and random effects to include, evenly spaced among those
        of the fit. With all of them, the forecasts equal those of the fit.
    allow_unconverged : bool
        Whether to write a posterior that failed the convergence checks. The file says so.

    Raises
    ------
    NotConverged
        If the posterior failed the convergence checks and `allow_unconverged` is false.
    BayeslawError
        If `draws` is negative, or draws alone cannot give the fit's forecasts: with a discrepancy
        and two or three model sizes these depend on the training losses.
    LawError
        If a file cannot name the class of the likelihood or the discrepancy.
    FileError
        If the file cannot be written.
    """
    one = of_one_law(fit, "write_coefficients")
    one.require_converged(allow_unconverged, parameters=True)
    if draws < 0:
        raise BayeslawError(f"draws={draws}: give the number of draws to include, 0 or more.")
    if draws and too_few_sizes(fit):
        raise BayeslawError(
            f"{fit.law.name} on {fit.table.name}: with so few model sizes, forecasts of others "
            "depend on the training losses, which draws do not contain; export without draws, "
            f"save the fit itself, or fit with {argument('effects', 'none')}."
        )
    _write(COEFFICIENTS, _coefficients_content(fit, draws), path)


def read_coefficients(path: str | Path) -> Coefficients:
    """Read coefficients written by `write_coefficients` or ``bayeslaw export``.

    Raises
    ------
    FileError
        If the file is missing, damaged, edited, of another version, or needs a likelihood or
        discrepancy that cannot be imported.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> train, test = bl.example_table().split("scale <= 3e20", "scale >= 1e21")
    >>> fit = bl.fit("chinchilla", train, discrepancy="none", effects="none", draws=500)
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "coefficients.json"
    ...     bl.write_coefficients(fit, path, draws=2000)
    ...     coefficients = bl.read_coefficients(path)
    >>> coefficients.parameters.loc["E", "unit"]
    'nats per token'
    >>> bool((coefficients.latent(test) == fit.latent(test)).all())
    True
    """
    content = _read(path, COEFFICIENTS)["coefficients"]
    stored, checks = content["rebuild"], content["convergence"]
    try:
        spec = spec_of(stored["specification"])
    except LawError as error:  # of a class that is not there
        raise FileError(f"{path}: {error}") from error
    law = spec.law
    known = {UNIQUE: law.repetition, ANNEALED: law.offset, RATE: law.tuning}
    columns = [*law.columns, "loss", *(column for column in known if known[column])]
    no_rows = pd.DataFrame(columns=columns, dtype=float)
    # A check that could not be made is NaN, for which JSON has null.
    checks = {name: math.nan if value is None else value for name, value in checks.items()}
    fit = _Exported(
        spec=replace(spec, new_sizes=False),  # where needed, it is not exported
        table=LossTable(no_rows, no_rows, content["training"]["name"]),
        at=stored["at"],
        draws=xr.Dataset.from_dict(stored["draws"] or stored["medians"]),
        stats=xr.Dataset(),
        convergence=Convergence(**checks | {"slow": tuple(checks["slow"])}),
        settings=content["settings"],
        knots={name: Knots(**knots) for name, knots in stored["knots"].items()},
        seed=stored["extension_seed"],
        drawn=stored["draws"] is not None,
    )
    return Coefficients(
        law=spec.law,
        parameters=pd.DataFrame(content["parameters"]).T.infer_objects(),
        document=content,
        _fit=fit,
    )


def _write(
    kind: tuple[str, str, int], content: Mapping[str, Any], path: str | Path, **others: object
) -> str:
    (name, form, schema), sha256 = kind, digest(content)
    document = {"format": form, "schema": schema, "sha256": sha256, name: content}
    write_json(document | {"parts": _parts(content)} | others, path)
    return sha256


def _read(path: str | Path, kind: tuple[str, str, int]) -> dict[str, Any]:
    """The document of a file; `FileError` names the parts of it that were edited."""
    name, form, schema = kind
    what = "a registered forecast" if kind == FORECAST else "coefficients"
    try:
        document = read_json(path, form, schema, what)
        if document["schema"] < schema:
            raise FileError(
                f"{path}: schema {document['schema']} is older than this version reads "
                f"({schema}); export the fit again."
            )
        sha256, written = digest(document[name]), document["sha256"]
        if sha256 != written:
            now, then = _parts(document[name]), document["parts"]
            parts = [part for part in then if part in now and now[part] != then[part]]
            parts += [f"{part} (removed)" for part in then if part not in now]
            parts += [f"{part} (added)" for part in now if part not in then]
            changed = ", ".join(parts) or "the hash itself, or the order of the rows"
            how, remedy = (
                ("the forecast was edited after it was registered", "Nothing was scored; restore")
                if kind == FORECAST
                else ("the coefficients were edited after they were exported", "Restore")
            )
            raise FileError(
                f"{path}: {how}: {changed}. Its SHA-256 is {sha256}, written was {written}. "
                f"{remedy} the file."
            )
        if kind == FORECAST and not isinstance(document["results"], list):
            raise TypeError("its results are not a list")  # noqa: TRY301
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileError(f"{path}: not {what} of bayeslaw, or damaged ({error}).") from error
    return document


def _parts(content: Mapping[str, Any]) -> dict[str, str]:
    """Short hashes of the parts of a content, to name those that were edited."""
    parts = {name: content[name] for name in content if name not in ("fits", "rows", "draws")}
    for label, fit in content.get("fits", {}).items():
        parts |= {f"{name} of {label}": value for name, value in fit.items()}
    parts |= {f"row {row.get('row')}": row for row in content.get("rows", ())}
    parts |= {f"draws of row {i}": drawn for i, drawn in enumerate(content.get("draws", ()))}
    return {name: digest(value)[:12] for name, value in parts.items()}


def check_new(path: str | Path, draws: int) -> None:
    """Raise `BayeslawError` if a forecast with so many draws cannot be registered at `path`."""
    if Path(path).exists():
        raise FileError(f"{path}: exists; a registered forecast is never replaced. Choose a name.")
    if draws < 0 or 0 < draws < FEWEST_DRAWS:
        raise BayeslawError(f"draws={draws}: store none, or at least {FEWEST_DRAWS} for the CRPS.")


def _about(table: LossTable) -> dict[str, Any]:
    return {"name": table.name, "rows": len(table), "sha256": table.sha256}


def _forecast_content(forecast: Forecast, draws: int) -> dict[str, Any]:
    """The registered part of the document, which the hash is of and which never changes."""
    frame, fits = forecast.stated, forecast.fits
    match = [c for c in (*COVARIATES, UNIQUE, ANNEALED, RATE) if c in frame]
    if any(fit.law.bases is not None for fit in fits.values()):
        match += [c for c in BASE_LOSSES if c in frame]
    match += [c for c in forecast.labels if c in frame and c not in match]
    either = same_rows(frame, frame, match)
    if (same := pd.Series((either & either.T).sum(axis=1) > 1, frame.index)).any():
        raise TableError(
            f"{row_numbers(same)} of the forecast have the same {', '.join(match)}, so a measured "
            "loss could be of either; drop all but one, or add a column 'run'."
        )
    ends = [column for level in LEVELS for column in band_columns(level)]
    bands = frame[match].join(forecast.to_frame(LEVELS)[["position", "median", *ends]])
    content: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
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


def _places(registered: Mapping[str, Any], table: LossTable, tolerance: float) -> Ints:
    """Row of the forecast that each measured row belongs to, -1 for none; shape (measured,)."""
    planned = pd.DataFrame(registered["rows"])
    known = [c for c in OTHERS if c in table.frame or c in planned]
    match = list(dict.fromkeys([*registered["match"], *known]))
    for column in registered["match"]:
        if column not in (*table.frame, *OTHERS, *BASE_LOSSES):
            raise TableError(
                f"{table.name}: no column {column!r}, by which measured rows are matched to the "
                f"forecast's ({', '.join(registered['match'])}); add it."
            )
    fits = same_rows(planned, table.frame, match, tolerance).T
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
            f"{', '.join(match)}, covariates up to a relative {tolerance:g}."
        )
    return np.asarray(np.where(fits.any(1), fits.argmax(1), -1))


def _scores(registered: Mapping[str, Any], frame: pd.DataFrame) -> pd.Series:
    """Scores over the measured rows, if any, of the registered median, bands and draws."""
    measured = frame["loss"].notna().to_numpy()
    rows, scores = frame[measured], {}
    if measured.any():
        truth = np.log(rows["loss"].to_numpy(float))
        bands = {p: np.log(rows[band_columns(p)].to_numpy(float).T) for p in LEVELS}
        scores = point_scores(rows["median"].to_numpy(float), rows["loss"].to_numpy(float))
        scores |= interval_scores(bands, truth)
        if "draws" in registered:
            samples = np.log(np.array(registered["draws"], float)[measured].T)
            scores["crps"] = float(crps(samples, truth).mean())
    return pd.Series(scores, index=[*POINT, *BANDS], dtype=float)


@dataclass(frozen=True, repr=False)
class _Exported(Posterior):
    """A posterior without training rows: what these determine comes from the file."""

    knots: Mapping[str, Knots] = field(default_factory=dict)
    seed: int = 0
    drawn: bool = True  # whether its draws are the fit's, or one draw of their medians

    @cached_property
    def law_with_knots(self) -> Law:
        return self.law.with_knots(self.knots)

    @property
    def extension_seed(self) -> int:
        return self.seed

    def extended(self, frame: pd.DataFrame) -> tuple[Law, dict[str, Floats]]:
        if self.drawn:
            return super().extended(frame)
        # Medians keep the last exponent of walks: steps drawn beyond the rows would be no median.
        return self.law_with_knots, self.values() | self.steps()


def _coefficients_content(fit: Posterior, draws: int) -> dict[str, Any]:
    law, table = fit.law, fit.table
    flat = drawn = _flat(fit.draws)
    if fit.spec.errors == "run":  # runs go on from their last residuals
        drawn = _flat(fit.draws.assign({LAST_ERROR: last_errors(fit)}))
    spaced = np.linspace(0, fit.count - 1, min(draws, fit.count)).astype(int)
    medians = flat.median("draw").expand_dims(draw=1, axis=1)
    centre = fit.medians(fit.law_with_knots, fit.values() | fit.steps())
    medians = medians.assign({n: medians[n].copy(data=centre[n]) for n in fit.steps()})
    point = law.to_paper({n: medians[n].item() for n in law.coordinates}, fit.at)
    paper = _summary(fit.paper, fit)
    others = [str(name) for name in fit.scalars.data_vars if name not in law.parameters]
    return {
        "bayeslaw": version("bayeslaw"),
        "law": {
            "name": law.name,
            "title": law.title,
            "reference": law.reference,
            "formula": law.without_discrepancy.latex(),
            "token_unit": law.token_unit,
            "discrepancy": fit.spec.discrepancy.words,
        },
        "parameters": {n: {"point": float(point[n]), **paper[n]} for n in law.parameters},
        "reference_point": law.point(fit.at),
        "reference": _summary(fit.scalars[others], fit),
        "training": _about(table) | {"synthetic": is_synthetic(table)},
        "settings": dict(fit.settings),
        "convergence": jsonable(asdict(fit.convergence)),
        "rebuild": {
            "specification": fit.spec.arguments,
            "at": dict(fit.at),
            "knots": {
                walk.steps: asdict(walk.knots) for walk in fit.law_with_knots.walks if walk.knots
            },
            "extension_seed": fit.extension_seed,
            "medians": medians.to_dict(),
            "draws": drawn.isel(draw=spaced).to_dict() if draws else None,
        },
    }


def _flat(draws: xr.Dataset) -> xr.Dataset:
    """The draws of all chains, one after the other, as a single chain."""
    flat = draws.stack(sample=("chain", "draw"), create_index=False)
    flat = flat.drop_vars(["chain", "draw"], errors="ignore").rename(sample="draw")
    return flat.expand_dims("chain").transpose("chain", "draw", ...)


def _summary(draws: xr.Dataset, fit: Posterior) -> dict[str, dict[str, float | str]]:
    return {
        str(name): {key: float(values.quantile(q)) for key, q in QUANTILES.items()}
        | {"unit": str(values.attrs.get("units", "dimensionless"))}
        for name, values in with_units(draws, fit).data_vars.items()
    }
