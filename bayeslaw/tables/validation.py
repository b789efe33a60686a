"""Validation of loss tables: column names, and covariates as numbers within their range."""

import warnings
from collections.abc import Iterable

import numpy as np
import pandas as pd

from bayeslaw.common.errors import TableError, TableWarning

COVARIATES = ("params", "tokens", "replay", "ptpp")
COLUMNS = (*COVARIATES, "unique_tokens", "loss")
FLAGS = ("annealed", "undertuned")
POSITIVE = {
    "params": "the number of parameters",
    "ptpp": "pre-training tokens per parameter",
    "unique_tokens": "the distinct tokens of the new data",
}
BASE_LOSSES = ("start_loss", "base_loss")
"""Losses of a row's base: on the row's domain, and on the domain it was pre-trained on."""
SUFFIXES = {"K": 1e3, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
SHORT = r"[0-9]*\.?[0-9]+[KkMBT]"
"""Counts as people write them, such as 1.3B."""
ALIASES = {"N": "params", "D": "tokens", "r": "replay", "PTPP": "ptpp"}


def canonical(frame: pd.DataFrame, name: str, required: Iterable[str]) -> pd.DataFrame:
    """Copy of a frame with canonical column names and validated covariates.

    `N`, `D`, `r` and `PTPP` are accepted as aliases; the columns `required` must exist. Covariates
    and losses become floats; the index 0, 1, ... Messages call the table `name`.

    Raises
    ------
    TableError
        If a required column is missing or a covariate is not a finite number in its range.
    """
    frame = frame.rename(columns=lambda column: ALIASES.get(str(column), str(column)))
    if repeated := sorted(set(frame.columns[frame.columns.duplicated()])):
        raise TableError(f"{name}: column {repeated[0]!r} is there twice; keep one.")
    if frame.empty:
        raise TableError(f"{name}: no rows.")
    for column in required:
        if column not in frame:
            alias = next((f" (or {a})" for a, c in ALIASES.items() if c == column), "")
            raise TableError(
                f"{name}: column {column!r}{alias} is missing; found: "
                f"{', '.join(map(str, frame.columns))}."
            )
    frame = frame.reset_index(drop=True)
    for column in frame.columns.intersection(list(COLUMNS)):
        frame[column] = _numeric(frame[column], name)
    for column in frame.columns.intersection(list(POSITIVE)):
        check_positive(frame, column, name, f"give {POSITIVE[column]}")
    for column in frame.columns.intersection(list(FLAGS)):
        known = frame[column].isin([0, 1])
        if "tokens" in frame:
            known |= frame[column].isna() & (frame["tokens"] == 0)
        _refuse(~known, frame[column], name, "is neither 0 or 1 nor True or False")
    if "tokens" in frame:
        tokens = frame["tokens"]
        _refuse(tokens < 0, tokens, name, "is negative; give D in tokens, 0 = baseline")
    if "replay" in frame:
        outside, what = ~frame["replay"].between(0, 1), "lies outside [0, 1]"
        _refuse(outside, frame["replay"], name, f"{what}; give a fraction, not a percentage")
    return frame


def _numeric(column: pd.Series, name: str) -> pd.Series:
    values = pd.to_numeric(column, errors="coerce").astype(float)
    text = column.where(values.isna()).astype("string").str.strip()
    short = text.str.fullmatch(SHORT).fillna(False).to_numpy(bool)
    if short.any():
        scale = text[short].str[-1].map(SUFFIXES).astype(float)
        values[short] = text[short].str[:-1].astype(float) * scale
        first = text[short].iloc[0]
        warnings.warn(
            f"{name}: column {str(column.name)!r} has suffixes; {first} is read as "
            f"{values[short].iloc[0]:g}.",
            TableWarning,
            stacklevel=5,
        )
    missing = values.isna() & column.isna()
    _refuse(missing, column, name, "is missing (NaN); fill it or drop the row")
    _refuse(values.isna(), column, name, "is not a number")
    _refuse(values.abs() == np.inf, column, name, "is infinite")
    return values


def check_positive(frame: pd.DataFrame, column: str, name: str, advice: str) -> None:
    """Raise `TableError` with advice unless all values of a column are positive."""
    _refuse(frame[column] <= 0, frame[column], name, f"is not positive; {advice}")


def _refuse(bad: pd.Series, column: pd.Series, name: str, what: str) -> None:
    """Raise `TableError` with the rows where `bad` is true, and their values."""
    if bad.any():
        values = column[bad].iloc[:5]
        seen = "" if values.isna().all() else f": {', '.join(map(str, values))}"
        raise TableError(f"{name}: column {str(column.name)!r} {what} ({row_numbers(bad)}{seen}).")


def row_numbers(mask: pd.Series) -> str:
    """Text that lists the rows where `mask` is true, at most five, counted from 0.

    Examples
    --------
    >>> row_numbers(pd.Series([False, True, True]))
    'rows 1, 2'
    """
    rows = [str(row) for row in np.flatnonzero(mask)[:5]]
    more = int(mask.sum()) - len(rows)
    label = "row" if mask.sum() == 1 else "rows"
    return f"{label} {', '.join(rows)}" + (f" and {more} more" if more else "")
