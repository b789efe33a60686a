"""Forecasts that are registered before the losses are measured, and verified afterwards."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw.common.errors import BayeslawError, FileError, TableError, argument
from bayeslaw.common.files import digest, write_json
from bayeslaw.common.formatting import jsonable
from bayeslaw.evaluate.matching import matched_columns
from bayeslaw.evaluate.registered_file import (
    FORMAT,
    SCHEMA,
    RegisteredForecast,
    about_table,
    hashes_of_parts,
    now,
)
from bayeslaw.inference.bands import (
    BAND_LEVELS,
    band_columns,
)
from bayeslaw.inference.fitted import FittedLaw
from bayeslaw.inference.forecast import Forecast
from bayeslaw.tables.comparison import same_rows
from bayeslaw.tables.validation import (
    row_numbers,
)

FEWEST_DRAWS = 100
"""Least number of draws stored: from n draws, a calibrated forecast's CRPS is too large by 1/n."""


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
    document = {
        "format": FORMAT,
        "schema": SCHEMA,
        "sha256": sha256,
        "forecast": content,
        "parts": hashes_of_parts(content),
        "results": [],
        "results_sha256": digest([]),
    }
    try:
        write_json(document, path, new=True)
    except FileError:
        # If another forecast was registered there in the meantime, the error says so.
        check_new(path, draws)
        raise
    return sha256


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


def _content(forecast: Forecast, draws: int) -> RegisteredForecast:
    """What is registered of a forecast, with so many draws of each row."""
    frame = forecast.stated
    match = matched_columns(forecast)
    _check_distinct(frame, match)
    columns = ["position", "median"]
    for level in BAND_LEVELS:
        columns += band_columns(level)
    bands = frame[match].join(forecast.to_frame(BAND_LEVELS)[columns])
    rows = []
    for i, row in enumerate(bands.to_dict("records")):
        rows.append({"row": i} | jsonable(row))
    measured = int(frame["loss"].notna().sum()) if "loss" in frame else 0
    content: RegisteredForecast = {
        "date": now(),
        "bayeslaw": version("bayeslaw"),
        "law": forecast.law,
        "fits": {label: _about_fit(fit) for label, fit in forecast.fits.items()},
        "failures": list(forecast.convergence.failures),
        "seed": forecast.seed,
        "synthetic": forecast.synthetic,
        "losses_known": measured,
        "units": "nats per token",
        "match": match,
        "rows": rows,
    }
    if draws:
        samples = forecast.samples
        stored = min(draws, len(samples))
        spaced = np.linspace(0, len(samples) - 1, stored).astype(int)
        content["draws"] = samples[spaced].T.tolist()
    return content


def _check_distinct(frame: pd.DataFrame, match: list[str]) -> None:
    """Raise `TableError` if a measured loss could be of either of two rows of a forecast."""
    blocks = same_rows(frame, frame, match, mutual=True)
    counts = [same.sum(axis=1) for same in blocks]
    repeated = pd.Series(np.concatenate(counts) > 1, frame.index)
    if repeated.any():
        raise TableError(
            f"{row_numbers(repeated)} of the forecast have the same {', '.join(match)}, so a "
            "measured loss could be of either; drop all but one, or add a column 'run'."
        )


def _about_fit(fit: FittedLaw) -> dict[str, Any]:
    return {
        "title": fit.law.title,
        "covariates": list(fit.law.columns),
        "specification": fit.spec.identity,
        "likelihood": fit.spec.likelihood.kind,
        "discrepancy": fit.spec.discrepancy.kind,
        "effects": list(fit.spec.effects),
        "errors": fit.spec.errors,
        "training": about_table(fit.table),
        "settings": dict(fit.settings),
    }
