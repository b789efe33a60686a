"""Rows compared: with each other, and with those that a law was fitted to."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from bayeslaw.common.arrays import Bools
from bayeslaw.common.errors import TableError
from bayeslaw.tables.units import check_units
from bayeslaw.tables.validation import (
    BASE_LOSSES,
    COVARIATES,
    LABEL_COLUMNS,
    NUMBERS,
    OF_DOMAIN,
    label_texts,
)

ABSENT: dict[str, Any] = {
    "unique_tokens": lambda frame: frame["tokens"],
    "annealed": 1,
    "rate": np.nan,
    "base": None,
    **dict.fromkeys(BASE_LOSSES, np.nan),
}
"""Columns that a table may lack, and what their absence stands for."""
IDENTITY = (*COVARIATES, "unique_tokens", "annealed", "rate", *BASE_LOSSES, *LABEL_COLUMNS)
"""Columns by which rows are told apart, with those of a fit's random effects."""
SAME_VALUE = 1e-6
"""Relative difference below which two numbers of a column are equal."""
UNLEARNED = {
    "unique_tokens": "what repeated tokens are worth",
    "annealed": "how annealed checkpoints differ from others",
    "rate": "what another rate does",
}
"""What a fit does not know without several values of a column, or without the column."""


def check_rows(rows: pd.DataFrame, name: str, fitted: pd.DataFrame) -> None:
    """Refuse rows on which a fit says nothing: in another unit, or unlike all fitted rows."""
    check_units(rows, name, fitted)
    check_like_fitted(rows, name, fitted)


def check_like_fitted(rows: pd.DataFrame, name: str, fitted: pd.DataFrame) -> None:
    """Refuse rows of a domain, a role, a rate or a kind that the fit does not know.

    Fitted rows of one rate do not say what another one does, nor annealed rows what others lose.
    Without the column, rows that state what its absence stands for pass, see `ABSENT`.
    """
    rows = rows if "tokens" in rows else rows.assign(tokens=np.finfo(float).max)
    for column in rows.columns.intersection(list(UNLEARNED)):
        known = distinct(fitted, column)
        if len(known) > 1 or (column == "unique_tokens" and column in fitted):
            continue
        one = rows.assign(**{column: known[0] if len(known) else ABSENT[column]})
        other = rows.loc[~agree(rows, one, column, paired=True), column]
        if len(other):
            to = f"{column} {float(known[0]):g} alone" if len(known) else f"rows without {column}"
            raise TableError(
                f"{name}: rows of {column} {float(other.iloc[0]):g}, but the law was fitted to "
                f"{to}, so it does not know {UNLEARNED[column]}; drop the column to take them for "
                "such, or fit a table in which it varies."
            )
    check_domain(rows, name, fitted)


def check_domain(rows: pd.DataFrame, name: str, fitted: pd.DataFrame) -> None:
    """Refuse rows of a domain, or of a role of their domain, that a law was not fitted to."""
    for column in OF_DOMAIN:
        known = labels_of(fitted, column)
        if known and (others := labels_of(rows, column) - known):
            drop = f", or drop the column {column!r} to take them for such" * (column in rows)
            raise TableError(
                f"{name}: rows of {column} {', '.join(sorted(others))}, but the law was fitted to "
                f"{', '.join(sorted(known))}; choose rows of that {column}{drop}."
            )


def labels_of(frame: pd.DataFrame, column: str) -> set[str]:
    """Labels that rows have in a column, without missing ones."""
    labels = _compared(frame, column)
    return set() if labels is None else set(labels.dropna())


def distinct(frame: pd.DataFrame, column: str) -> list[Any]:
    """Values of a column, without missing ones; none if it is absent."""
    return frame[column].dropna().unique().tolist() if column in frame else []


def role_by_losses(frame: pd.DataFrame) -> str:
    """Role of the domain of some rows by the losses of their bases; empty if these are not known.

    A base has one loss on both domains if these are one: the domain that it was pre-trained on.
    """
    if not {*BASE_LOSSES} <= {*frame}:
        return ""
    losses = frame[[*BASE_LOSSES]].dropna()
    one = (losses["start_loss"] == losses["base_loss"]).all()
    return ("source" if one else "target") if len(losses) else ""


def same_rows(
    asked: pd.DataFrame,
    measured: pd.DataFrame,
    columns: Iterable[str],
    tolerance: float = SAME_VALUE,
) -> Bools:
    """Which rows are the same: those that `agree` in all columns; shape (asked, measured)."""
    same = np.ones((len(asked), len(measured)), bool)
    for column in dict.fromkeys(columns):
        same &= agree(asked, measured, column, tolerance)
    return same


def fitted_rows(rows: pd.DataFrame, fitted: pd.DataFrame) -> Bools:
    """Which rows were fitted: those equal to a fitted row in every column, the loss among them.

    Equal losses alone do not show it: of two seeds, those rounded to two digits are the ones that
    agree best. A row whose loss is missing was not.
    """
    same = np.asarray(same_rows(rows, fitted, map(str, rows)).any(axis=1))
    return same & rows["loss"].notna().to_numpy()


def fitted_words(fitted: Bools) -> str:
    """What is said of rows to score some of which were fitted; empty if none was."""
    count, rows = int(np.count_nonzero(fitted)), len(fitted)
    if count == 0:
        return ""
    if count < rows:
        return f"{count} of these {rows} rows were fitted: not scored."
    if rows == 1:
        return "This row was fitted: its score says nothing about forecasts."
    return f"All {rows} rows were fitted: their scores say nothing about forecasts."


def agree(
    asked: pd.DataFrame,
    measured: pd.DataFrame,
    column: str,
    tolerance: float = SAME_VALUE,
    *,
    paired: bool = False,
) -> Bools:
    """Whether rows agree in a column, shape (asked, measured), or (rows,) if they are paired.

    What an asked row leaves open, and a column that a table lacks, agree with anything, unless
    absence has a value: no tokens repeat, and rows are annealed. Nor does the loss of a base
    differ from one that is not measured. Labels are compared as text, numbers up to a relative
    `tolerance`.
    """
    shape = (len(asked),) if paired else (len(asked), len(measured))
    one, two = (_compared(frame, column) for frame in (asked, measured))
    if one is None or two is None:
        return np.ones(shape, bool)
    if one.dtype == two.dtype == float:
        a, b = one.to_numpy(), two.to_numpy()
    else:
        codes = pd.factorize(pd.concat([label_texts(one), label_texts(two)]))[0].astype(float)
        a, b = np.split(np.where(codes < 0, np.nan, codes), [len(one)])
        tolerance = 0.0
    a = a if paired else a[:, None]
    same = np.abs(a - b) <= tolerance * np.maximum(np.abs(a), np.abs(b))
    same |= np.isnan(a) | (np.isnan(b) & (column in BASE_LOSSES))
    return np.asarray(np.broadcast_to(same, shape))


def _compared(frame: pd.DataFrame, column: str) -> pd.Series | None:
    """Values of a column as floats or labels, also if absence has a value; None without any."""
    if column == "role" and column not in frame:
        role = role_by_losses(frame)
        return pd.Series(role, frame.index, dtype=object) if role else None
    if column == "unique_tokens" and "tokens" in frame:
        # Beyond the new tokens of a row its distinct ones make no difference.
        new = frame["tokens"] * (1 - frame["replay"] if "replay" in frame else 1.0)
        return new if column not in frame else frame[column].astype(float).clip(upper=new)
    if column not in frame:
        return pd.Series(1.0, frame.index) if column == "annealed" else None
    if column in NUMBERS or (column not in LABEL_COLUMNS and is_numeric_dtype(frame[column])):
        return frame[column].astype(float)
    return label_texts(frame[column])


def check_same_rows(
    asked: pd.DataFrame,
    measured: pd.DataFrame,
    names: tuple[str, str],
    others: Iterable[str] = (),
) -> None:
    """Refuse two frames unless they are the same, row by row; `others` are columns of labels."""
    if len(asked) != len(measured):
        raise TableError(f"{names[0]} has {len(asked)} rows, {names[1]} has {len(measured)}.")
    for column in dict.fromkeys([*IDENTITY, *others]):
        differ = ~agree(asked, measured, column, paired=True)
        if differ.any():
            i = int(differ.argmax())
            a, b = (f[column].iloc[i] if column in f else "absent" for f in (asked, measured))
            raise TableError(
                f"row {i}: {column} is {a} in {names[0]} and {b} in {names[1]}; "
                "give the rows that were forecast, in that order."
            )
