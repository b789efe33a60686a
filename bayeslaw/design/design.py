"""Designs: a law with rows, of which it knows the covariates and a reference point.

Everything that evaluates a law on rows of a table does so through a `Design`: laws themselves take
arrays and know no table.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import TableError
from bayeslaw.design.bases import of_bases
from bayeslaw.laws import forms
from bayeslaw.laws.departure import Departure
from bayeslaw.laws.law import Law, shares
from bayeslaw.laws.symbols import column_of
from bayeslaw.tables.comparison import require_one_domain
from bayeslaw.tables.compute import are_bases
from bayeslaw.tables.table import Rows, rows_of
from bayeslaw.tables.validation import NUMBERS


class Design:
    """A law with rows: the rows checked once, and the arrays that the law makes of them.

    Parameters
    ----------
    law : Law
    rows : Rows or DataFrame
        Rows with the columns that the law reads; a loss is not needed.
    name : str
        Name of a frame in messages.
    at : mapping of str to float, optional
        Reference point, logarithms of the covariates; by default that of the rows.

    Raises
    ------
    TableError
        If a column is missing or invalid, or another value of a column that the law holds.

    Examples
    --------
    >>> import bayeslaw as bl
    >>> from bayeslaw.design.design import Design
    >>> design = Design(bl.load_law("chinchilla"), bl.grid(params=1e9, tokens=[1e9, 1e11]))
    >>> np.exp(design.x["tokens"])
    array([1.e+09, 1.e+11])
    >>> round(np.exp(design.at["tokens"]))
    10000000000
    """

    def __init__(
        self,
        law: Law,
        rows: Rows | pd.DataFrame,
        *,
        name: str = "rows",
        at: Mapping[str, float] | None = None,
    ) -> None:
        self.law = law
        self.rows = valid_rows(law, rows, name)
        self._at = at

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def frame(self) -> pd.DataFrame:
        """The rows, with the columns that the law holds."""
        return self.rows.frame

    @property
    def name(self) -> str:
        """Name of the rows in messages."""
        return self.rows.name

    @cached_property
    def columns(self) -> dict[str, Floats]:
        """Columns that the law reads, each of shape (rows,), with the known losses of bases."""
        columns = numbers(self.law, self.frame)
        departure = self.law.step(Departure)
        if departure is not None and departure.bases is not None:
            columns |= of_bases(departure.bases, self.frame)
        return columns

    @cached_property
    def x(self) -> dict[str, Floats]:
        """Covariates of the law, most as logarithms, each of shape (rows,).

        Raises
        ------
        TableError
            If rows have D = 0, where the law has no value.
        """
        if are_bases(self.frame).any():
            raise TableError(
                f"{self.name}: the law {self.law.name} has no value at tokens = 0."
            )
        return self.law.covariates(self.columns)

    @cached_property
    def at(self) -> Mapping[str, float]:
        """Reference point: logarithms of the covariates.

        Geometric means of the rows, except of r and what else is not logged: arithmetic ones. No
        data repeat there.
        """
        if self._at is not None:
            return self._at
        x = self.law.of_deviations(self.x)
        at = {name: float(values.mean()) for name, values in x.items()}
        if "replay" in self.law.columns:
            mean = np.array([self.frame["replay"].mean()])
            of_replay = shares(self.law, mean)
            at |= {name: float(values[0]) for name, values in of_replay.items()}
        return at

    @cached_property
    def law_with_knots(self) -> Law:
        """The law with knots of its random walks that cover the rows."""
        return forms.with_knots(self.law, self.x, self.at)

    def require_variation(self) -> None:
        """Raise `TableError` unless the rows are one domain in which every covariate varies."""
        frame = self.frame
        name = self.name
        require_one_domain(frame, name)
        for column in self.law.columns:
            values = frame[column].to_numpy()
            if (values == values[0]).all():
                raise TableError(
                    f"{name}: column {column!r} is {values[0]:g} in all {len(values)} rows, "
                    f"but the law {self.law.name} has a term in it; "
                    "choose a law without it or rows where it varies."
                )


def valid_rows(law: Law, rows: Rows | pd.DataFrame, name: str = "rows") -> Rows:
    """Rows with all columns that the law reads, also those that it holds.

    Raises
    ------
    TableError
        If a column is missing or invalid, or another value of a column that the law holds.
    """
    rows = rows_of(rows, name, needs(law), law.declared)
    if not law.held:
        return rows
    return replace(rows, frame=with_held(law, rows.frame, rows.name))


def with_held(law: Law, frame: pd.DataFrame, name: str = "rows") -> pd.DataFrame:
    """The rows, with the columns that the law holds where they lack them.

    Raises
    ------
    TableError
        If rows have another value of such a column.
    """
    lacking = {}
    for column, value in law.held.items():
        if column not in frame:
            lacking[column] = value
            continue
        values = frame[column]
        other = values[~np.isclose(values, value, rtol=1e-6, atol=0)]
        if len(other):
            raise TableError(
                f"{name}: {column} {other.iloc[0]:g}, but {law.name} was fitted to rows of "
                f"{column} {value:g} alone; choose such rows, or fit a table with several."
            )
    return frame.assign(**lacking)


def law_for(law: Law, frame: pd.DataFrame, name: str = "table") -> Law:
    """The law without what rows that agree in a column do not determine.

    See `bayeslaw.laws.forms.for_rows`.
    """
    return forms.for_rows(law, numbers(law, frame), name)


def numbers(law: Law, frame: pd.DataFrame) -> dict[str, Floats]:
    """Columns of a table that a law may read, each of shape (rows,)."""
    columns = {}
    for name in (*NUMBERS, *law.declared):
        if name != "loss" and name in frame:
            columns[name] = frame[name].to_numpy(float)
    return columns


def needs(law: Law) -> dict[str, str]:
    """What needs each of the law's columns, for messages."""
    reasons = {}
    for column in law.columns:
        terms = []
        for term in law.terms:
            if column in map(column_of, term.covariates):
                terms.append(term.coefficient)
        of_terms = f"{', '.join(terms)} of " if terms else ""
        reasons[column] = f"for {of_terms}{law.name}"
    return reasons
