"""Registered forecasts beside the losses that were measured afterwards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw.common.defaults import COVARIATE_TOLERANCE
from bayeslaw.common.errors import BayeslawError, FileError
from bayeslaw.common.files import digest, held, write_json
from bayeslaw.common.formatting import jsonable
from bayeslaw.common.shown import SYNTHETIC, Block, Note, Showing, Shown
from bayeslaw.evaluate.matching import rows_of_measured
from bayeslaw.evaluate.registered_file import (
    SCHEMA,
    RegisteredForecast,
    about_table,
    now,
    read_registered,
)
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
from bayeslaw.tables.reading import from_frame
from bayeslaw.tables.table import LossTable
from bayeslaw.tables.units import bits_for_nats
from bayeslaw.tables.validation import (
    COVARIATES,
    row_numbers,
)


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
        unmeasured = self.frame["loss"].isna()
        return tuple(int(row) for row in self.frame.loc[unmeasured, "row"])

    def shown(self) -> Shown:
        """The registered rows that are measured beside their losses, and their scores."""
        count = len(self.frame)
        measured = count - len(self.missing)
        blocks = self._origin()
        if measured:
            blocks += self._measured()
        else:
            past = len(self.results)
            noun = "result" if past == 1 else "results"
            blocks.append(f"{past} {noun} in the file; no losses to score.")
        registered = self.forecast
        document = {
            "sha256": self.sha256,
            "registered": registered["date"],
            "law": registered["law"],
            "synthetic": bool(registered["synthetic"]),
            "losses_known": registered["losses_known"],
            "failures": registered["failures"],
            "missing": list(self.missing),
            "extra": list(self.extra),
            "rows": self.frame.to_dict("records"),
            "scores": self.scores.to_dict() if measured else None,
            "results": list(self.results),
        }
        title = f"{registered['law']}: {count} rows registered {registered['date']}"
        return Shown(title, blocks, document)

    def _origin(self) -> list[Block]:
        """What was registered, from which fits, and what speaks against it."""
        registered = self.forecast
        blocks: list[Block] = []
        if registered["synthetic"]:
            blocks.append(Note(SYNTHETIC, "synthetic"))
        blocks.append(f"SHA-256 {self.sha256}")
        blocks.append(Note("unchanged since it was registered", "ok"))
        for label, fit in registered["fits"].items():
            training = fit["training"]
            blocks.append(
                f"{label}: fitted to {training['rows']} rows of {training['name']}, SHA-256 "
                f"{training['sha256'][:12]}..."
            )
        if registered["failures"]:
            failures = "; ".join(registered["failures"])
            words = f"NOT CONVERGED when it was registered: {failures}."
            blocks.append(Note(words, "refuse"))
        measured_before = registered["losses_known"]
        if measured_before:
            words = (
                f"Not blind: {measured_before} of {len(self.frame)} rows already had a measured "
                "loss when the forecast was registered."
            )
            blocks.append(Note(words, "caution"))
        return blocks

    def _measured(self) -> list[Block]:
        """The measured rows with their bands, their scores, and doubts about them."""
        missing = self.frame["loss"].isna().reset_index(drop=True)
        measured = self.frame[self.frame["loss"].notna()]
        words = f"{len(measured)} of {len(self.frame)} rows are measured"
        if self.missing:
            words += f"; missing: {row_numbers(missing)}"
        levels = BAND_LEVELS[::2]
        blocks: list[Block] = [
            f"{words}.",
            band_table(measured, ["row", *self._covariates()], levels),
            inside_words(measured, levels),
            *shown_scores(self.scores).blocks,
        ]
        if not measured["inside_90"].astype(bool).any():
            doubt = bits_for_nats(
                measured["loss"].to_numpy(float), measured["median"].to_numpy(float)
            )
            if doubt:
                blocks.append(Note(doubt, "caution"))
        if "draws" not in self.forecast:
            words = "No CRPS: the forecast was registered without draws."
            blocks.append(Note(words, "quiet"))
        if self.extra:
            numbers = np.arange(max(self.extra) + 1)
            extra = pd.Series(np.isin(numbers, self.extra))
            blocks.append(f"Not forecast: {row_numbers(extra)} of the measured.")
        return blocks

    def _covariates(self) -> list[str]:
        """Covariates of the registered fits, those of loss tables first."""
        used: list[str] = []
        for fit in self.forecast["fits"].values():
            used += fit["covariates"]
        return [name for name in dict.fromkeys((*COVARIATES, *used)) if name in used]


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
    document = read_registered(path)
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
        if not isinstance(measured, LossTable):
            measured = from_frame(measured, "measured")
        row_of = rows_of_measured(registered, measured, tolerance)
        matched = row_of >= 0
        loss[row_of[matched]] = measured.loss[matched]
    frame = frame.assign(loss=loss, error=frame["median"] / loss - 1)
    frame = pd.concat([frame, inside(frame, BAND_LEVELS)], axis=1)
    verified = Verification(
        document["sha256"],
        registered,
        frame,
        scores=_scores(registered, frame),
        extra=tuple(np.flatnonzero(row_of < 0).tolist()),
        results=document["results"],
    )
    if measured is None:
        return verified
    result = _result(verified, measured, tolerance)
    with held(path):
        # Another verification may have ended since the file was read.
        document = read_registered(path)
        results = [*document["results"], result]
        changed = {
            "schema": SCHEMA,
            "results": results,
            "results_sha256": digest(results),
        }
        write_json(document | changed, path)
    return replace(verified, results=results)


def _result(
    verified: Verification, measured: LossTable, tolerance: float
) -> dict[str, Any]:
    """The result of a verification, as the file has it."""
    frame = verified.frame
    scored = frame.loc[frame["loss"].notna(), ["row", "loss", "error"]]
    return {
        "date": now(),
        "bayeslaw": version("bayeslaw"),
        "measured": about_table(measured),
        "tolerance": tolerance,
        "scored": len(scored),
        "missing": list(verified.missing),
        "extra": list(verified.extra),
        "scores": jsonable(verified.scores.to_dict()),
        "losses": jsonable(scored.to_dict("records")),
    }


def _scores(registered: RegisteredForecast, frame: pd.DataFrame) -> pd.Series:
    """Scores over the measured rows, if any, of the registered median, bands and draws."""
    measured = frame["loss"].notna().to_numpy()
    rows = frame[measured]
    scores: dict[str, float] = {}
    if measured.any():
        loss = rows["loss"].to_numpy(float)
        truth = np.log(loss)
        bands = {}
        for level in BAND_LEVELS:
            ends = rows[band_columns(level)].to_numpy(float)
            bands[level] = np.log(ends.T)
        scores |= point_scores(rows["median"].to_numpy(float), loss)
        scores |= interval_scores(bands, truth)
        if "draws" in registered:
            draws = np.array(registered["draws"], float)
            samples = np.log(draws[measured].T)
            scores["crps"] = float(crps(samples, truth).mean())
    return pd.Series(scores, index=[*POINT_SCORES, *BAND_SCORES], dtype=float)
