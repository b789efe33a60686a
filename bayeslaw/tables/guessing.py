"""Loss tables from exports as they are: columns, units, runs and annealing are guessed, and said.

A guess changes numbers, so each is a sentence of `Guessed.words`. What names alone do not tell,
such as the tokens of a step, is refused in one line that says what to write.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from bayeslaw.common.errors import TableError, TableWarning, argument
from bayeslaw.tables.annealing import ends_of_runs, finished_runs
from bayeslaw.tables.bases import starting
from bayeslaw.tables.column_names import (
    STEPS,
)
from bayeslaw.tables.compute import AMOUNTS
from bayeslaw.tables.domains import as_rows
from bayeslaw.tables.files import read_frame
from bayeslaw.tables.guessed_columns import Export, guess_columns, names_in
from bayeslaw.tables.reading import (
    asked,
    doubts_of_names,
    expressions,
    renamed,
    validated,
)
from bayeslaw.tables.table import LossTable, Role
from bayeslaw.tables.units import (
    doubtful_scale,
    level_of_losses,
    unit_of_name,
)
from bayeslaw.tables.validation import (
    KNOWN,
    LABEL_COLUMNS,
    named,
    without_number,
)

type Losses = LossTable | pd.DataFrame | str | Path
"""Measured losses, as a user has them: a table, a frame, or the path of a file."""
LIKE_BITS = (1.3, 1.6)
"""Ratio of losses to Chinchilla's law at which they may be bits per token, 1.44 times the nats."""


@dataclass(frozen=True)
class Guessed:
    """A loss table, and how it was read.

    Parameters
    ----------
    table : LossTable
    words : tuple of str
        What was guessed or left out, which changes numbers.
    assumed : tuple of str
        What is taken for granted of every table that does not say otherwise.
    unread : tuple of str
        Columns that vary, have no meaning here, and are part of no expression.
    """

    table: LossTable
    words: tuple[str, ...] = ()
    assumed: tuple[str, ...] = field(default=(), repr=False)
    unread: tuple[str, ...] = field(default=(), repr=False)

    def warn(self, *, stacklevel: int = 2) -> None:
        """Warn of what was guessed or left out, if anything was."""
        if self.words:
            text = f"{self.table.name}: {' '.join(self.words)}"
            warnings.warn(text, TableWarning, stacklevel=stacklevel + 1)


def table_of(losses: Losses) -> LossTable:
    """The table itself, or that of a frame or a file, with a warning of what was guessed."""
    guessed = guess_table(losses)
    guessed.warn(stacklevel=3)
    return guessed.table


def guess_table(
    losses: Losses,
    *,
    columns: Mapping[str, str] | None = None,
    where: str | None = None,
    source: str | Path | pd.DataFrame | None = None,
    role: Role | None = None,
    loss_unit: str | None = None,
    bytes_per_token: float | None = None,
    name: str = "table",
) -> Guessed:
    """Read a table of any names; what is given is not guessed.

    Arguments are those of `bayeslaw.read_table`, and the `name` of a frame in messages.
    """
    given = dict(columns or {})
    if isinstance(losses, LossTable):
        options = (given, source, role, loss_unit, bytes_per_token)
        if any(option not in ({}, None) for option in options):
            raise TableError(
                f"{losses.name} is a LossTable, which was read already; give its columns, role "
                "and units where it is read."
            )
        return Guessed(losses.query(where))
    how = _Given(given, loss_unit, bytes_per_token)
    first = _guess(_frame_of(losses, name), how, where=where, role=role)
    if source is not None:
        other = _guess(_frame_of(source, "source"), how)
        joined = starting(first.table, other.table)
        first = replace(first, table=joined, words=(*first.words, *other.words))
    return replace(first, table=first.table.query(where))


@dataclass(frozen=True)
class _Given:
    """What the user says of an export, which is not guessed."""

    columns: Mapping[str, str]
    unit: str | None
    bytes_per_token: float | None


def _frame_of(losses: object, name: str) -> Export:
    if isinstance(losses, str | Path):
        frame = read_frame(losses)
        name = str(losses)
    elif isinstance(losses, pd.DataFrame):
        # Histories that were concatenated have the labels of each.
        unique = losses.index.is_unique
        frame = losses if unique else losses.reset_index(drop=True)
        frame = frame.set_axis(frame.columns.astype(str), axis=1)
    else:
        kind = type(losses).__name__
        raise TableError(
            f"the losses are a {kind}: give a LossTable, a pandas data frame or a path."
        )
    _refuse_twice(frame, name)
    if frame.empty:
        raise TableError(f"{name}: no rows.")
    return Export(_with_numbers(frame), name)


def _refuse_twice(frame: pd.DataFrame, name: str) -> None:
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise TableError(f"{name}: column {twice[0]!r} is there twice; keep one.")


def _with_numbers(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with numbers where texts are numbers and words for none, such as NaN in CSV."""
    labels = [c for c, meaning in named(frame).items() if meaning in LABEL_COLUMNS]
    texts = frame.select_dtypes(["object", "string"])
    numbers = {}
    for column in texts.columns.drop(labels, errors="ignore"):
        values = frame[column]
        missing = without_number(values)
        if not (missing & values.notna()).any():
            continue
        read = pd.to_numeric(values.mask(missing), errors="coerce")
        if read.notna().equals(~missing) and not missing.all():
            numbers[str(column)] = read
    return frame.assign(**numbers)


def _guess(
    export: Export,
    given: _Given,
    *,
    where: str | None = None,
    role: Role | None = None,
) -> Guessed:
    name = export.name
    _refuse_logs(export)
    finished = finished_runs(export.frame, name, export.words)
    export.frame = export.frame.loc[finished.index]
    columns, domains = guess_columns(export, given.columns)
    unit = given.unit
    if unit is None:
        loss = columns.get("loss", "loss").strip("`")
        unit = unit_of_name([*domains.values()] or [loss], name)
        if unit is not None:
            said = f"Losses are read as {unit}, by the name of their column."
            export.words.append(said)
    for doubt in doubts_of_names(export.frame, columns):
        export.words.append(f"{doubt[0].upper()}{doubt[1:]}")
    read_by = expressions(export.frame, columns)
    frame = renamed(export.frame, columns, name)
    # Of aliases, such as N and D.
    frame = frame.rename(columns=named(frame))
    _refuse_twice(frame, name)
    if domains:
        frame = as_rows(frame, domains)
        finished = finished.loc[frame.index]
    frame = _with_losses_and_ends(export, frame, finished)
    frame = asked(frame, where, unit, given.bytes_per_token)
    table = validated(
        frame,
        name,
        role=role,
        loss_unit=unit,
        bytes_per_token=given.bytes_per_token,
        columns=read_by,
    )
    guessed = {column: columns[column] for column in columns.keys() - given.columns}
    _refuse_doubtful(export, table, columns, guessed)
    if unit is None:
        _assume_nats(export, table)
    unread = _unread(export.frame, columns, domains)
    return Guessed(table, tuple(export.words), tuple(export.assumed), unread)


def _unread(
    frame: pd.DataFrame, columns: Mapping[str, str], domains: Mapping[str, str]
) -> tuple[str, ...]:
    used = {*names_in(columns), *domains.values()}
    unread = []
    for column, meaning in named(frame).items():
        if meaning in KNOWN or column in used or "loss" in str(column).lower():
            continue
        # As text, since a tracker has lists, such as tags.
        if frame[column].astype(str).nunique() > 1:
            unread.append(str(column))
    return tuple(unread)


def _refuse_logs(export: Export) -> None:
    """Refuse logs that have no row of a loss with its size, for which there are readers."""
    columns = [str(column) for column in export.frame]
    if [column.lower() for column in columns] == ["wall time", "step", "value"]:
        raise TableError(
            f"{export.name}: scalars of TensorBoard; read them by bl.read_tensorboard."
        )
    if any(" - " in column for column in columns[1:]) and STEPS.search(columns[0]):
        raise TableError(
            f"{export.name}: a chart exported from W&B, which has no sizes; read it by "
            "bl.read_wandb(path, runs=...)."
        )


# -- rows -----------------------------------------------------------------------------------------


def _with_losses_and_ends(
    export: Export, frame: pd.DataFrame, finished: pd.Series
) -> pd.DataFrame:
    """The rows that have a loss, with a column `annealed` where it can be told."""
    losses = pd.to_numeric(frame["loss"], errors="coerce")
    # Text that is no number is a mistake, which the validation names.
    text = losses.isna() & ~without_number(frame["loss"])
    measured = text | pd.Series(np.isfinite(losses), losses.index)
    marked = ends_of_runs(frame, measured, finished)
    if not measured.any():
        raise TableError(f"{export.name}: no row has a loss.")
    unmeasured = int((~measured).sum())
    if unmeasured:
        s = "s" if unmeasured > 1 else ""
        export.words.append(
            f"{unmeasured} row{s} without a finite loss left out (NaN or infinite)."
        )
    if marked.words:
        export.words.append(marked.words)
    elif "annealed" not in frame:
        export.assumed.append(
            "All rows are taken for ends of runs (annealed), where the learning rate had fallen."
        )
    kept: pd.DataFrame = marked.frame[measured.to_numpy()]
    return kept


def _refuse_doubtful(
    export: Export,
    table: LossTable,
    columns: Mapping[str, str],
    guessed: Mapping[str, str],
) -> None:
    """Refuse guesses that the losses contradict; a fit warns of what a user states."""
    doubts = doubtful_scale(table.frame)
    if doubts and not {"params", "tokens"}.isdisjoint(guessed):
        guesses = ", ".join(f"{column} = {text}" for column, text in guessed.items())
        raise TableError(
            f"{export.name}: columns would be read as {guesses}, but {doubts[0]} Mend the columns, "
            f"or state them if they are right: {argument('columns', dict(columns))}."
        )


def _assume_nats(export: Export, table: LossTable) -> None:
    """Say which unit losses are taken to be in, and doubt it where they may be bits per token."""
    if not {*AMOUNTS} <= {*table.frame}:
        export.assumed.append("Losses are taken for nats per token.")
        return
    level = level_of_losses(table.frame)
    words = (
        f"Losses are taken for nats per token: they are {level:.2g} times those of Chinchilla's "
        "law for web text"
    )
    if LIKE_BITS[0] < level < LIKE_BITS[1]:
        bits = argument("loss_unit", "bits")
        words += (
            f", and bits per token would be 1.44 times; if they are bits, give {bits}"
        )
        export.words.append(f"{words}.")
    else:
        export.assumed.append(f"{words}.")
