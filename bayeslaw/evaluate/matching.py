"""Which row of a registered forecast each measured row belongs to."""

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Ints
from bayeslaw.common.errors import TableError
from bayeslaw.evaluate.registered_file import RegisteredForecast
from bayeslaw.inference.forecast import Forecast
from bayeslaw.laws.departure import Departure
from bayeslaw.laws.steps import ANNEALED, UNIQUE
from bayeslaw.tables.comparison import same_rows
from bayeslaw.tables.table import LossTable
from bayeslaw.tables.validation import BASE_LOSSES, COVARIATES, OF_DOMAIN, row_numbers

OPTIONAL = (UNIQUE, ANNEALED, *OF_DOMAIN)
"""Columns by which rows are matched, though tables may lack them."""


def matched_columns(forecast: Forecast) -> list[str]:
    """Columns of a forecast by which its rows are found among measured ones."""
    names = [*COVARIATES, *forecast.columns, UNIQUE, ANNEALED]
    departures = [fit.law.step(Departure) for fit in forecast.fits.values()]
    if any(departures):
        names += BASE_LOSSES
    names += forecast.labels
    return [name for name in dict.fromkeys(names) if name in forecast.stated]


def rows_of_measured(
    registered: RegisteredForecast, table: LossTable, tolerance: float
) -> Ints:
    """Row of the forecast that each measured row belongs to, -1 for none; shape (measured,)."""
    planned = pd.DataFrame(registered["rows"])
    columns = registered["match"]
    for column in columns:
        if column not in (*table.frame, *OPTIONAL, *BASE_LOSSES):
            raise TableError(
                f"{table.name}: no column {column!r}, by which measured rows are matched to the "
                f"forecast's ({', '.join(columns)}); add it."
            )
    optional = [name for name in OPTIONAL if name in table.frame or name in planned]
    match = list(dict.fromkeys([*columns, *optional]))
    row_of = np.full(len(table), -1)
    matches = np.zeros(len(table), int)
    # The first row of the forecast that has several measurements, and which rows they are.
    repeated = None
    measurements = np.zeros(len(table), bool)
    row = 0
    for block in same_rows(planned, table.frame, match, tolerance):
        matches += block.sum(axis=0)
        for of_row in block:
            row_of[of_row] = row
            if of_row.sum() > 1 and repeated is None:
                repeated = row
                measurements = of_row
            row += 1
    ambiguous = pd.Series(matches > 1)
    if ambiguous.any():
        raise TableError(
            f"{table.name}: {row_numbers(ambiguous)} lie within {tolerance:g} of several rows of "
            "the forecast; give a smaller tolerance."
        )
    if repeated is not None:
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
