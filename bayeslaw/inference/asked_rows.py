"""Rows to forecast, checked before the fit that will forecast them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from bayeslaw.common.errors import TableError
from bayeslaw.design.design import Design, with_held
from bayeslaw.inference.pools import member_laws
from bayeslaw.laws.law import Law
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.model.training import for_table
from bayeslaw.tables.comparison import check_rows
from bayeslaw.tables.table import LossTable
from bayeslaw.tables.verdict import judge

type Need = Literal["any", "near", "measured"]
"""What rows must be: not too far from the fitted ones, or measured."""


def checked(
    rows: LossTable, laws: Sequence[Law], fitted: LossTable, need: Need
) -> LossTable:
    """The rows, with what the laws hold; `TableError` if they cannot forecast or score them."""
    for law in laws:
        _ = Design(law, rows).x  # raises for rows with tokens = 0
        check_rows(rows.frame, rows.name, fitted.frame)
        if need == "measured" and "loss" not in rows.frame:
            raise TableError(
                f"{rows.name}: no column 'loss'; scores need measured losses."
            )
    if need == "near":
        # In the covariates of all laws of a pool, as its forecast and `check` judge them.
        columns = {name: row for law in laws for name, row in law.about.items()}
        judge(fitted, rows, columns).require(rows.name)
    for law in laws:
        rows = replace(rows, frame=with_held(law, rows.frame, rows.name))
    return rows


def laws_of(
    law: str | Path | Law | Sequence[str | Path | Law], table: LossTable
) -> list[Law]:
    """The law as it is fitted to a table, or all laws of a pool."""
    members = member_laws(law)
    if members is None:
        assert isinstance(law, str | Path | Law)
        members = [law]
    return [for_table(load_law(member), table) for member in members]
