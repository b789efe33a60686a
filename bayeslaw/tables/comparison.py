"""Rows compared: with each other, and with those that a law was fitted to."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from bayeslaw.common.arrays import Bools, Floats
from bayeslaw.common.errors import TableError, argument
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
    "base": None,
    **dict.fromkeys(BASE_LOSSES, np.nan),
}
"""Columns that a table may lack, and what their absence stands for."""
IDENTITY = (
    *COVARIATES,
    "unique_tokens",
    "annealed",
    *BASE_LOSSES,
    *LABEL_COLUMNS,
)
"""Columns by which rows are told apart, with those of a fit's random effects."""
SAME_VALUE = 1e-6
"""Relative difference below which two numbers of a column are equal."""
PAIRS_AT_ONCE = 2**20
"""Pairs of rows that are compared at once: some 30 MB."""
UNLEARNED = {
    "unique_tokens": "what repeated tokens are worth",
    "annealed": "how annealed checkpoints differ from others",
}
"""What a fit does not know without several values of a column, or without the column."""


def check_rows(rows: pd.DataFrame, name: str, fitted: pd.DataFrame) -> None:
    """Refuse rows on which a fit says nothing: in another unit, or unlike all fitted rows."""
    check_units(rows, name, fitted)
    check_like_fitted(rows, name, fitted)


def check_like_fitted(rows: pd.DataFrame, name: str, fitted: pd.DataFrame) -> None:
    """Refuse rows of a domain, a role or a kind that the fit does not know.

    Annealed rows do not say what others lose.
    Without the column, rows that state what its absence stands for pass, see `ABSENT`.
    """
    rows = rows if "tokens" in rows else rows.assign(tokens=np.finfo(float).max)
    for column in rows.columns.intersection(list(UNLEARNED)):
        fitted_values = distinct(fitted, column)
        if len(fitted_values) > 1 or (column == "unique_tokens" and column in fitted):
            continue
        one = rows.assign(
            **{column: fitted_values[0] if len(fitted_values) else ABSENT[column]}
        )
        other = rows.loc[~agree(rows, one, column), column]
        if len(other):
            to = (
                f"{column} {float(fitted_values[0]):g} alone"
                if len(fitted_values)
                else f"rows without {column}"
            )
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
            drop = f", or drop the column {column!r} to take them for such" * (
                column in rows
            )
            raise TableError(
                f"{name}: rows of {column} {', '.join(sorted(others))}, but the law was fitted to "
                f"{', '.join(sorted(known))}; choose rows of that {column}{drop}."
            )


def require_one_domain(frame: pd.DataFrame, name: str) -> None:
    """Refuse losses of several domains, of which a law is fitted to one."""
    domains = distinct(frame, "domain")
    if len(domains) > 1:
        raise TableError(
            f"{name}: several domains ({', '.join(map(str, domains))}); fit one, such as "
            f"{argument('where', f'domain == {domains[0]!r}')}."
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
    losses = frame[[*BASE_LOSSES]].apply(pd.to_numeric, errors="coerce").dropna()
    one = np.isclose(
        losses["start_loss"], losses["base_loss"], rtol=SAME_VALUE, atol=0
    ).all()
    return ("source" if one else "target") if len(losses) else ""


def check_role_by_losses(
    frame: pd.DataFrame, name: str, roles: Collection[str] = ("target", "source")
) -> None:
    """Refuse a column `role` that says one of some `roles`, if the losses of bases say the other.

    Equal losses are of one domain. Other ones of a source may be of two harnesses, so only who read
    both from tables asks for that role too.
    """
    if "role" not in frame:
        return
    for stated, rows in frame[frame["role"].isin(roles)].groupby("role"):
        by_losses = role_by_losses(rows)
        if by_losses and by_losses != stated:
            losses = "equal losses" if by_losses == "source" else "other losses"
            raise TableError(
                f"{name}: the column 'role' says {stated}, but the bases have {losses} on the two "
                f"domains ('start_loss' and 'base_loss'), so it is a {by_losses}; mend the column, "
                "or drop it."
            )


def same_rows(
    asked: pd.DataFrame,
    measured: pd.DataFrame,
    columns: Iterable[str],
    tolerance: float = SAME_VALUE,
    *,
    mutual: bool = False,
) -> Iterator[Bools]:
    """Which rows are the same: those that `agree` in all columns; if `mutual`, in both directions.

    Blocks of the matrix of shape (asked, measured), one after the other: it may be too large.
    """
    values = [_values(asked, measured, c, tolerance) for c in dict.fromkeys(columns)]
    compared = [of_column for of_column in values if of_column is not None]
    size = max(1, PAIRS_AT_ONCE // max(1, len(measured)))
    for start in range(0, len(asked), size):
        rows = slice(start, start + size)
        same = np.ones((len(asked.iloc[rows]), len(measured)), bool)
        for a, b, most, open_to in compared:
            same &= _equal(a[rows, None], b, most, open_to)
            if mutual:
                same &= _equal(b, a[rows, None], most, open_to)
        yield same


def is_among(
    asked: pd.DataFrame, measured: pd.DataFrame, columns: Iterable[str]
) -> Bools:
    """Whether each asked row is the same as a measured one, shape (asked,)."""
    blocks = [same.any(axis=1) for same in same_rows(asked, measured, columns)]
    return np.concatenate([np.zeros(0, bool), *blocks])


def fitted_rows(rows: pd.DataFrame, fitted: pd.DataFrame) -> Bools:
    """Which rows were fitted: those equal to a fitted row in every column, the loss among them.

    Equal losses alone do not show it: of two seeds, those rounded to two digits are the ones that
    agree best. A row whose loss is missing was not.
    """
    return is_among(rows, fitted, map(str, rows)) & rows["loss"].notna().to_numpy()


def fitted_words(fitted: Bools) -> str:
    """What is said of rows to score some of which were fitted; empty if none was."""
    count = int(np.count_nonzero(fitted))
    rows = len(fitted)
    if count == 0:
        return ""
    if count < rows:
        return f"{count} of these {rows} rows were fitted: not scored."
    if rows == 1:
        return "This row was fitted: its score says nothing about forecasts."
    return f"All {rows} rows were fitted: their scores say nothing about forecasts."


def agree(asked: pd.DataFrame, measured: pd.DataFrame, column: str) -> Bools:
    """Whether each row agrees with the measured one in its place in a column, shape (rows,).

    What an asked row leaves open, and a column that a table lacks, agree with anything, unless
    absence has a value: no tokens repeat, and rows are annealed. Nor does the loss of a base
    differ from one that is not measured. Labels are compared as text, numbers up to a relative
    tolerance.
    """
    values = _values(asked, measured, column, SAME_VALUE)
    return np.ones(len(asked), bool) if values is None else _equal(*values)


def _values(
    asked: pd.DataFrame, measured: pd.DataFrame, column: str, tolerance: float
) -> tuple[Floats, Floats, float, bool] | None:
    """What `_equal` compares of a column; None if anything agrees."""
    one, two = (_compared(frame, column) for frame in (asked, measured))
    if one is None or two is None:
        return None
    open_to_missing = column in BASE_LOSSES
    if one.dtype == two.dtype == float:
        return one.to_numpy(), two.to_numpy(), tolerance, open_to_missing
    codes = pd.factorize(pd.concat([label_texts(one), label_texts(two)]))[0].astype(
        float
    )
    a, b = np.split(np.where(codes < 0, np.nan, codes), [len(one)])
    return a, b, 0.0, open_to_missing


def _equal(
    asked: Floats, measured: Floats, tolerance: float, open_to_missing: bool
) -> Bools:
    same = np.abs(asked - measured) <= tolerance * np.maximum(
        np.abs(asked), np.abs(measured)
    )
    same |= np.isnan(asked)
    if open_to_missing:
        same |= np.isnan(measured)
    return np.asarray(same)


def _compared(frame: pd.DataFrame, column: str) -> pd.Series | None:
    """Values of a column as floats or labels, also if absence has a value; None without any."""
    if column == "role" and column not in frame:
        role = role_by_losses(frame)
        return pd.Series(role, frame.index, dtype=object) if role else None
    if column == "unique_tokens" and "tokens" in frame:
        # Beyond the new tokens of a row its distinct ones make no difference.
        new = frame["tokens"] * (1 - frame["replay"] if "replay" in frame else 1.0)
        return (
            new if column not in frame else frame[column].astype(float).clip(upper=new)
        )
    if column not in frame:
        return pd.Series(1.0, frame.index) if column == "annealed" else None
    if column in NUMBERS or (
        column not in LABEL_COLUMNS and is_numeric_dtype(frame[column])
    ):
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
        raise TableError(
            f"{names[0]} has {len(asked)} rows, {names[1]} has {len(measured)}."
        )
    for column in dict.fromkeys([*IDENTITY, *others]):
        differ = ~agree(asked, measured, column)
        if differ.any():
            i = int(differ.argmax())
            a, b = (
                f[column].iloc[i] if column in f else "absent"
                for f in (asked, measured)
            )
            raise TableError(
                f"row {i}: {column} is {a} in {names[0]} and {b} in {names[1]}; "
                "give the rows that were forecast, in that order."
            )


def runs_of(frame: pd.DataFrame) -> pd.Series:
    """Which run each row is of, as a number; a label of runs of several models is several runs."""
    if "run" not in frame:
        return pd.Series(np.arange(len(frame)), frame.index)
    labels = label_texts(frame["run"])
    # Each row without a label is a run of its own.
    unlabelled = np.where(labels.isna(), np.arange(len(frame)), -1)
    keys = [labels.fillna(""), pd.Series(unlabelled, frame.index)]
    for column in ("params", "ptpp", "replay", "unique_tokens", "base"):
        if column in frame:
            keys.append(frame[column])
    return frame.groupby(keys, dropna=False, sort=False).ngroup()


def completed(frames: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """The frames, each with all columns of `ABSENT` that any of them has."""
    used = {}
    for column, value in ABSENT.items():
        if any(column in frame for frame in frames):
            used[column] = value
    whole = []
    for frame in frames:
        absent = {column: v for column, v in used.items() if column not in frame}
        whole.append(frame.assign(**absent))
    return whole
