"""Ends of runs: which rows were measured where the learning rate had fallen."""

from dataclasses import dataclass

import pandas as pd

from bayeslaw.common.errors import TableError, argument
from bayeslaw.tables.comparison import runs_of
from bayeslaw.tables.table import is_synthetic
from bayeslaw.tables.validation import typed

FINISHED = ("finished",)
GOING_ON = ("running", "pending")
FAILED = ("crashed", "failed", "killed", "preempted", "preempting")
"""States of runs, as Weights & Biases names them: ended, going on, and broken off."""
NEAR_END = 0.98
"""Part of a run's tokens from which its last loss is one of its end."""


def finished_runs(frame: pd.DataFrame, name: str, said: list[str]) -> pd.Series:
    """Whether the run of each row has finished, without the rows of runs that were broken off.

    A column `state` says it, in any case. Without one, all runs have finished. How many rows are
    left out is `said`.
    """
    states = None
    for column in frame:
        if str(column).strip().lower() == "state":
            states = frame[column].astype("string").str.strip().str.lower()
    if states is None:
        return pd.Series(True, frame.index)
    unknown = states[~states.isin([*FINISHED, *GOING_ON, *FAILED]).fillna(False)]
    if len(unknown):
        said.append(
            f"The column of states is not read: {unknown.iloc[0]} is none of "
            f"{', '.join([*FINISHED, *GOING_ON, *FAILED])}."
        )
        return pd.Series(True, frame.index)
    failed = states.isin(FAILED)
    if failed.all():
        raise TableError(
            f"{name}: all runs were broken off, by the column of their states; drop it to read "
            "them."
        )
    if failed.any():
        counts = states[failed].value_counts()
        kinds = ", ".join(f"{count} {state}" for state, count in counts.items())
        said.append(f"Rows of runs that were broken off are left out ({kinds}).")
    return states[~failed].isin(FINISHED)


@dataclass(frozen=True)
class Ends:
    """Rows with a column `annealed`, and what was guessed of it."""

    frame: pd.DataFrame
    words: str = ""


def ends_of_runs(frame: pd.DataFrame, measured: pd.Series, finished: pd.Series) -> Ends:
    """Mark the last `measured` row of each `finished` run as annealed, and no other.

    Rows with the column or without tokens, simulated rows, and runs of one row each stay as they
    are: these are taken for ends.
    """
    if "annealed" in frame or "tokens" not in frame or is_synthetic(frame):
        return Ends(frame)
    rows = frame.reset_index(drop=True)
    rows["tokens"] = typed(rows["tokens"])
    if "params" in rows:
        rows["params"] = typed(rows["params"])
    measured = measured.reset_index(drop=True)
    finished = finished.reset_index(drop=True)
    runs = runs_of(rows)
    if "domain" in rows:
        runs = rows.groupby([runs, "domain"], dropna=False).ngroup()
    trained = rows["tokens"] > 0
    counted = rows["tokens"].where(trained & measured)
    several = counted.groupby(runs).transform("nunique") > 1
    if not several.any() and finished.all():
        return Ends(frame)
    last = counted.groupby(runs).transform("max")
    whole = rows["tokens"].groupby(runs).transform("max")
    at_end = (counted == last) & (last >= NEAR_END * whole) & finished
    annealed = at_end.astype(float).where(trained)
    of_rows = annealed[trained & measured]
    override = argument("columns", {"annealed": "1"})
    words = (
        f"The last row of each finished run is annealed ({int((of_rows == 1).sum())} rows), "
        f"earlier ones are not ({int((of_rows == 0).sum())}); if all are, give {override}."
    )
    return Ends(frame.assign(annealed=annealed.to_numpy()), words)
