"""The file of a registered forecast: its fields, and how it is read and checked.

The file is JSON: the forecast, its SHA-256, short hashes of its parts, by which its reader is told
which of them was edited, and the results of verifications.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

from bayeslaw.common.errors import FileError
from bayeslaw.common.files import digest, read_json
from bayeslaw.inference.bands import BAND_LEVELS, band_columns
from bayeslaw.tables.table import LossTable
from bayeslaw.tables.validation import NUMBERS

FORMAT = "bayeslaw registered forecast"
SCHEMA = 2


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


def now() -> str:
    """The date and time, as the file has them."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def about_table(table: LossTable) -> dict[str, Any]:
    """What the file says of a table."""
    # Not its folder, which is nobody's business, and changes.
    name = Path(table.name).name or table.name
    return {"name": name, "rows": len(table), "sha256": table.sha256}


def read_registered(path: str | Path) -> Document:
    """The document of a registered forecast; `FileError` names the parts that were edited."""
    try:
        document = cast(
            "Document", read_json(path, FORMAT, SCHEMA, "a registered forecast")
        )
        sha256 = digest(document["forecast"])
        written = document["sha256"]
        if sha256 != written:
            changed = _edited_parts(document)
            raise FileError(
                f"{path}: the forecast was edited after it was registered: {changed}. Its SHA-256 "
                f"is {sha256}, written was {written}. Nothing was scored; restore the file."
            )
        # With that hash, but not as `register` writes it: made by another program.
        _check_content(document["forecast"])
        results = document["results"]
        _need(_is_list_of(results, dict), "its results are not a list of objects")
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


def hashes_of_parts(content: Mapping[str, Any]) -> dict[str, str]:
    """Short hashes of the parts of a forecast, to name those that were edited."""
    parts: dict[str, object] = {}
    for name, value in content.items():
        if name not in ("fits", "rows", "draws"):
            parts[name] = value
    for label, fit in content["fits"].items():
        for name, value in fit.items():
            parts[f"{name} of {label}"] = value
    for row in content["rows"]:
        parts[f"row {row.get('row')}"] = row
    for i, draws_of_row in enumerate(content.get("draws", ())):
        parts[f"draws of row {i}"] = draws_of_row
    return {name: digest(value)[:12] for name, value in parts.items()}


def _edited_parts(document: Document) -> str:
    """The names of the parts of a forecast that differ from what was registered."""
    now = hashes_of_parts(document["forecast"])
    then = document["parts"]
    edited = [part for part in then if part in now and now[part] != then[part]]
    edited += [f"{part} (removed)" for part in then if part not in now]
    edited += [f"{part} (added)" for part in now if part not in then]
    return ", ".join(edited) or "the hash itself, or the order of the rows"


def _check_content(content: Mapping[str, Any]) -> None:
    """Raise ValueError, KeyError or TypeError unless a forecast has all that `verify` reads."""
    for name in ("date", "law"):
        _need(isinstance(content[name], str), f"its {name} is no text")
    _need(
        isinstance(content["synthetic"], bool),
        "its 'synthetic' is neither true nor false",
    )
    _need(isinstance(content["losses_known"], int), "its 'losses_known' is no number")
    for name in ("failures", "match"):
        _need(_is_list_of(content[name], str), f"its {name!r} is no list of texts")
    _need(isinstance(content["fits"], dict), "its fits are no object")
    for label, fit in content["fits"].items():
        _check_fit(label, fit)
    rows = content["rows"]
    _need(isinstance(rows, list) and len(rows) > 0, "it has no rows")
    for i, row in enumerate(rows):
        _check_row(i, row, content["match"])
    if "draws" in content:
        _check_draws(content["draws"], len(rows))


def _check_fit(label: str, fit: Mapping[str, Any]) -> None:
    """Raise an error unless a fit of the forecast says which covariates and table it has."""
    training = fit["training"]
    _need(
        _is_list_of(fit["covariates"], str),
        f"the covariates of {label} are no list of texts",
    )
    texts = isinstance(training["name"], str) and isinstance(training["sha256"], str)
    _need(
        texts and isinstance(training["rows"], int),
        f"the training table of {label} is none",
    )


def _check_row(i: int, row: Mapping[str, Any], match: Sequence[str]) -> None:
    """Raise an error unless a row of the forecast has losses, and values to match it by."""
    _need(row["row"] == i, f"row {i} has another number")
    losses = ["median"]
    for level in BAND_LEVELS:
        losses += band_columns(level)
    for name in losses:
        _need(_is_positive(row[name]), f"{name!r} of row {i} is no loss")
    for name in match:
        value = row[name]
        single = value is None or isinstance(value, str | int | float)
        misplaced = name in NUMBERS and isinstance(value, str)
        _need(
            single and not misplaced, f"{name!r} of row {i} is no value of that column"
        )


def _check_draws(draws: Any, rows: int) -> None:
    """Raise an error unless there are equally many draws of each row, all of them losses."""
    _need(isinstance(draws, list) and len(draws) == rows, "it has draws of other rows")
    for i, draws_of_row in enumerate(draws):
        _need(
            len(draws_of_row) == len(draws[0]) > 0,
            f"row {i} has another number of draws",
        )
        losses = all(map(_is_positive, draws_of_row))
        _need(losses, f"a draw of row {i} is no loss")


def _need(valid: bool, what: str) -> None:
    """Raise ValueError with these words unless something is valid."""
    if not valid:
        raise ValueError(what)


def _is_list_of(value: object, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


def _is_positive(value: object) -> bool:
    """Whether a value is a finite number greater than 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 < float(value) < math.inf
