"""Registration: a forecast in a readable file with its hash, before the losses are measured."""

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw.common.errors import BayeslawError, FileError, TableError
from bayeslaw.common.files import write_json
from bayeslaw.evaluate.forecast import LEVELS, Forecast
from bayeslaw.inference.posterior import Posterior
from bayeslaw.model import random_effects
from bayeslaw.tables.reading import is_synthetic
from bayeslaw.tables.validation import COVARIATES, row_numbers

FORMAT = "bayeslaw registered forecast"
SCHEMA = 1
"""Version of the file's layout; a file with a larger one is refused."""
FEWEST_DRAWS = 100
"""Least number of draws stored: from n draws, a calibrated forecast's CRPS is too large by 1/n."""
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
    check_new(path)
    if forecast.kind != "predictive":
        raise BayeslawError(
            f"a {forecast.kind} forecast has no noise, so measured losses cannot verify its bands; "
            "register one with kind='predictive'."
        )
    if not forecast.fits:
        raise BayeslawError("this forecast does not know its fit; make it with fit.forecast(rows).")
    if draws < 0 or 0 < draws < FEWEST_DRAWS:
        raise BayeslawError(f"draws={draws}: store none, or at least {FEWEST_DRAWS} for the CRPS.")
    if not np.isfinite(forecast.samples).all():
        raise BayeslawError("some draws of this forecast are not finite; it cannot be registered.")
    content = _content(forecast, draws)
    document = {
        "format": FORMAT,
        "schema": SCHEMA,
        "sha256": digest(content),
        "forecast": content,
        "parts": _parts(content),
        "results": [],
    }
    write_json(document, path)
    return str(document["sha256"])


def check_new(path: str | Path) -> None:
    """Raise `FileError` if there is a file at `path`: a registered forecast is not replaced."""
    if Path(path).exists():
        raise FileError(f"{path}: exists; a registered forecast is never replaced. Choose a name.")


def read(path: str | Path) -> dict[str, Any]:
    """The document of a registered forecast, whose forecast has the hash it was registered with.

    Raises
    ------
    FileError
        If the file is missing, not a registered forecast, or of a newer version, or if the forecast
        was edited; the message names the parts that changed.
    """
    path = Path(path)
    if not path.is_file():
        raise FileError(f"{path}: no such file.")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["format"] != FORMAT:
            raise FileError(f"{path}: not a registered forecast of bayeslaw.")
        if document["schema"] > SCHEMA:
            raise FileError(
                f"{path}: schema {document['schema']} is newer than this version reads ({SCHEMA}); "
                "upgrade bayeslaw."
            )
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
    return dict(document)


def digest(value: object) -> str:
    """SHA-256 of plain data: equal for equal data, however the file is laid out.

    Examples
    --------
    >>> digest({"a": 1, "b": 0.5}) == digest({"b": 0.5, "a": 1.0})
    True
    """
    numbers = json.loads(json.dumps(value), parse_int=_number)
    text = json.dumps(numbers, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def now() -> str:
    """Date and time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def plain(value: object) -> Any:
    """A cell of a data frame as JSON can hold it; missing values become None."""
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or value is pd.NA or value != value:
        return None
    return value if isinstance(value, bool | int | float | str) else str(value)


def _content(forecast: Forecast, draws: int) -> dict[str, Any]:
    """The registered part of the document, which the hash is of and which never changes."""
    frame = forecast.frame
    match = [c for c in COVARIATES if c in frame]
    levels = [level for fit in forecast.fits.values() for level in fit.spec.effects]
    labels = [*LABELS, *(random_effects.level(level).column for level in levels)]
    match += [c for c in dict.fromkeys(labels) if c in frame and c not in match]
    if (same := frame.duplicated(match, keep=False)).any():
        raise TableError(
            f"{row_numbers(same)} of the forecast have the same {', '.join(match)}, so a measured "
            "loss could be of either; drop all but one, or add a column 'run'."
        )
    bands = forecast.to_frame(LEVELS).drop(columns="unconverged", errors="ignore")
    ends = [f"{side}_{100 * level:g}" for level in LEVELS for side in ("lower", "upper")]
    kept = [*match, "position", "median", *ends]
    rows = [
        {"row": i, **{str(name): plain(value) for name, value in row.items()}}
        for i, row in enumerate(bands[kept].to_dict("records"))
    ]
    synthetic = [is_synthetic(frame), *(is_synthetic(fit.table) for fit in forecast.fits.values())]
    content: dict[str, Any] = {
        "date": now(),
        "bayeslaw": version("bayeslaw"),
        "law": forecast.law,
        "fits": {label: _fit(fit) for label, fit in forecast.fits.items()},
        "failures": list(forecast.convergence.failures),
        "seed": forecast.seed,
        "synthetic": any(synthetic),
        "losses_known": int(frame["loss"].notna().sum()) if "loss" in frame else 0,
        "units": "nats per token",
        "match": match,
        "rows": rows,
    }
    if draws:
        samples = forecast.samples
        spaced = np.linspace(0, len(samples) - 1, min(draws, len(samples))).astype(int)
        content["draws"] = samples[spaced].T.tolist()
    return content


def _fit(fit: Posterior) -> dict[str, Any]:
    spec, table = fit.spec, fit.table
    return {
        "title": spec.law.title,
        "covariates": list(spec.law.columns),
        "specification": spec.identity,
        "likelihood": spec.likelihood.kind,
        "discrepancy": spec.discrepancy.kind,
        "noise": spec.noise,
        "effects": list(spec.effects),
        "training": {"name": table.name, "rows": len(table), "sha256": table.sha256},
        "settings": dict(fit.settings),
    }


def _parts(content: Mapping[str, Any]) -> dict[str, str]:
    """Short hashes of the parts of a forecast, to name those that were edited."""
    parts = {name: content[name] for name in content if name not in ("fits", "rows", "draws")}
    for label, fit in content.get("fits", {}).items():
        parts |= {f"{name} of {label}": value for name, value in fit.items()}
    parts |= {f"row {row.get('row')}": row for row in content.get("rows", ())}
    parts |= {f"draws of row {i}": drawn for i, drawn in enumerate(content.get("draws", ()))}
    return {name: digest(value)[:12] for name, value in parts.items()}


def _changed(now: Mapping[str, str], then: Mapping[str, str]) -> str:
    gone = [f"{name} (removed)" for name in then if name not in now]
    added = [f"{name} (added)" for name in now if name not in then]
    edited = [name for name in then if name in now and now[name] != then[name]]
    return ", ".join(edited + gone + added) or "the hash itself, or the order of the rows"


def _number(text: str) -> float:
    """An integer as a float where that is exact: other programs write 1e9 for 1000000000."""
    return float(text) if int(text) == float(text) else int(text)
