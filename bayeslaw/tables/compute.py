"""Training compute of rows: 6 N D, or the column `flops` of a ladder that has neither N nor D."""

from collections.abc import Collection

import pandas as pd

from bayeslaw.common.errors import TableError
from bayeslaw.tables.covariates import FLOPS

AMOUNTS = ("params", "tokens")
"""Columns that say how much a run was trained."""


def amounts_in(names: Collection[str]) -> tuple[str, ...]:
    """Columns that a table needs to say how much its runs were trained, of those that it has."""
    if FLOPS in names and not {*AMOUNTS} <= {*names}:
        return (FLOPS,)
    return AMOUNTS


def are_bases(frame: pd.DataFrame) -> pd.Series:
    """Which rows are of models before adaptation, with tokens = 0: none of a ladder in FLOPs."""
    if "tokens" not in frame:
        return pd.Series(False, frame.index)
    return pd.to_numeric(frame["tokens"], errors="coerce") == 0


def flops_of(frame: pd.DataFrame) -> pd.Series:
    """Training compute of each row in FLOPs."""
    if {*AMOUNTS} <= {*frame}:
        flops: pd.Series = 6 * frame["params"] * frame["tokens"]
        return flops
    if FLOPS in frame:
        return frame[FLOPS].astype(float)
    raise TableError("compute needs columns 'params' and 'tokens', or 'flops'.")
