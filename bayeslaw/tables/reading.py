"""Loss tables from files and frames.

A file is read (`tables.files`), its columns get the names used here (`renamed`), rows that no query
asks for are left out (`asked`), and the rest is validated (`from_frame`).
"""

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw.common.errors import TableError, TableWarning, argument, unknown
from bayeslaw.common.files import shipped
from bayeslaw.tables.bases import starting
from bayeslaw.tables.column_names import STEPS, TRAINING, VALIDATION, quoted
from bayeslaw.tables.comparison import check_role_by_losses
from bayeslaw.tables.compute import amounts_in, are_bases
from bayeslaw.tables.files import read_frame
from bayeslaw.tables.queries import EXPRESSION_NAMES, evaluated, parsed
from bayeslaw.tables.table import ROLES, LossTable, Role, rows_of
from bayeslaw.tables.units import UNIT_WORDS, check_counts, check_losses, in_nats
from bayeslaw.tables.validation import (
    COLUMNS,
    canonical,
    check_positive,
    named,
    row_numbers,
    typed,
    without_number,
)

ROW = "row of the file"
"""Name of a column that no file has."""


def read_table(
    path: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    where: str | None = None,
    source: str | Path | None = None,
    role: Role | None = None,
    loss_unit: str | None = None,
    bytes_per_token: float | None = None,
) -> LossTable:
    """Read a loss table from CSV, Parquet, JSONL or Excel.

    Parameters
    ----------
    path : str or Path
        ``*.parquet`` is read as Parquet, ``*.jsonl`` as one JSON object a line, ``*.xlsx`` as the
        first sheet of a workbook (which needs openpyxl), anything else as CSV in UTF-8 or UTF-16,
        compressed by gzip or not; its separator is a comma, a semicolon or a tab.
    columns : mapping of str to str, optional
        For a file with other names: for each column here, the file's column, or an expression of
        its columns as `pandas.DataFrame.eval` takes it, such as ``{"params": "size", "tokens":
        "billions * 1e9", "loss": "`eval/loss`"}``.
    where : str, optional
        Pandas query that selects the rows to keep, such as ``"ptpp <= 31"``; the others need no
        valid numbers. A row without a loss satisfies no query about the loss: ``"loss > 0"`` keeps
        those with one.
    source : str or Path, optional
        Table of the domain that the bases were pre-trained on. Its rows with tokens = 0, and those
        of the table itself, give each row `base_loss` and `start_loss`, the losses of its `base` on
        the two domains. A base is one model: its label, `params` and `ptpp` agree. Laws that start
        from the base need these losses; see `bayeslaw.fit`. It may be the same file, if a column
        `role` says which rows are of the target and which of the source, and `where` chooses one.
    role : {"target", "source"}, optional
        As for `from_frame`; not of the table `source`.
    loss_unit, bytes_per_token
        As for `from_frame`, also for the table `source`.

    Raises
    ------
    TableError
        If the file cannot be read or a column fails validation; the message names the column,
        the lines of a CSV file (the header is line 1) or the rows of another, and the correction.
        If the name of the column of losses has another unit and `loss_unit` does not say which.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "losses.csv"
    ...     example_table().frame.to_csv(path, index=False)
    ...     len(read_table(path, where="scale <= 3e20"))
    28
    """
    columns = columns or {}
    tables: list[LossTable] = []
    for file in [path] if source is None else [path, source]:
        frame = read_frame(file)
        check_unit_of_name(frame, columns.get("loss", ""), str(file), loss_unit)
        for doubt in doubts_of_names(frame, columns):
            warnings.warn(f"{file}: {doubt}", TableWarning, stacklevel=2)
        read_by = expressions(frame, columns)
        frame = renamed(frame, columns, str(file))
        first = not tables
        if first:
            frame = asked(frame, where, loss_unit, bytes_per_token)
        tables.append(
            validated(
                frame,
                str(file),
                role=role if first else None,
                loss_unit=loss_unit,
                bytes_per_token=bytes_per_token,
                columns=read_by,
            )
        )
    return (tables[0] if source is None else starting(*tables)).query(where)


def check_unit_of_name(
    frame: pd.DataFrame, column: str, name: str, unit: str | None
) -> None:
    """Refuse a column of losses whose name has another unit than nats, unless one is stated."""
    if unit is not None or column not in frame:
        return
    in_name = re.split("[^a-z]+", column.lower())
    for word in [word for word in UNIT_WORDS if word in in_name]:
        raise TableError(
            f"{name}: the column {column!r} is of {word} by its name; give "
            f"{argument('loss_unit', UNIT_WORDS[word])}, or {argument('loss_unit', 'nats')} if "
            "it is not."
        )


def doubts_of_names(frame: pd.DataFrame, columns: Mapping[str, str]) -> list[str]:
    """Steps that are read as tokens, and training losses, by the names of columns, in words."""
    said = []
    tokens = columns.get("tokens", "").strip("`")
    loss = columns.get("loss", "").strip("`")
    if tokens in frame and STEPS.search(tokens) and "token" not in tokens.lower():
        per_step = argument("columns", {"tokens": f"{quoted(tokens)} * 524288"})
        said.append(
            f"tokens are read from {tokens!r}, which are steps by its name: multiply them by the "
            f"tokens of a step, such as {per_step}."
        )
    if loss in frame and TRAINING.search(loss) and not VALIDATION.search(loss):
        of_validation = [
            c for c in map(str, frame) if "loss" in c.lower() and VALIDATION.search(c)
        ]
        there = (
            f"{of_validation[0]!r} is there too"
            if of_validation
            else "fit those of a validation set"
        )
        said.append(f"the column {loss!r} has training losses by its name; {there}.")
    return said


def expressions(frame: pd.DataFrame, columns: Mapping[str, str]) -> dict[str, str]:
    """What columns are read by, as parts of a further expression of the file's columns."""
    read_by = {}
    for column, text in columns.items():
        one_column = text.isidentifier() or re.fullmatch("`[^`]*`", text)
        read_by[column] = text if one_column else f"({text})"
        if text in frame:
            read_by[column] = quoted(text)
    return read_by


def renamed(
    frame: pd.DataFrame, columns: Mapping[str, str], name: str = "table"
) -> pd.DataFrame:
    """The frame with columns under the names used here; `columns` are those of `read_table`."""
    made: dict[str, Any] = {}
    for column, text in columns.items():
        try:
            made[column] = frame[text] if text in frame else _computed(frame, text)
        except (
            Exception
        ) as error:  # pandas raises many types, of its parser and of operations
            raise TableError(
                f"{name}: columns: {column!r} is neither a column nor an expression of columns: "
                f"{text!r}; found: {', '.join(map(str, frame.columns))}. Write a name that is no "
                "word in backticks."
            ) from error
    used = [
        c
        for c, name in named(frame).items()
        if c in columns.values() or (name in made and c != name)
    ]
    return frame.drop(columns=used).assign(**made)


def _computed(frame: pd.DataFrame, text: str) -> Any:
    try:
        return evaluated(frame, text)
    except TypeError:  # of numbers with leading zeros, which are text
        digits = [
            c for c in frame if frame[c].astype("string").str.fullmatch(r"\d+").all()
        ]
        return evaluated(frame.astype(dict.fromkeys(digits, float)), text)


def asked(
    frame: pd.DataFrame,
    query: str | None,
    loss_unit: str | None,
    bytes_per_token: float | None = None,
) -> pd.DataFrame:
    """The rows of a frame that a query may select, with their bases; only these must be valid.

    A row stays if the query is about a number that it does not have, since it may be one of those
    asked for. Not if that number is the loss: such as at the steps between two evaluations.
    """
    if query is None:
        return frame
    rows = frame.rename(columns=named(frame)).reset_index(drop=True)
    if rows.columns.has_duplicates or "tokens" not in rows:
        return frame
    unmeasured = pd.Series(False, rows.index)
    if "loss" in rows:
        unmeasured = without_number(rows["loss"])
    try:
        for column in rows:
            rows[column] = typed(rows[column])
        base = rows["tokens"] == 0
        rows[ROW] = np.arange(len(rows))
        in_unit = in_nats(rows, "", loss_unit, bytes_per_token)
        selected = LossTable(in_unit[~base], baselines=in_unit[base]).query(query)
    except TableError:  # of the whole table, when it is validated
        return frame
    names = parsed(query)[1].values()
    about = {column for name in names for column in EXPRESSION_NAMES.get(name, (name,))}
    kept = rows[ROW].isin([*selected.frame[ROW], *selected.baselines[ROW]])
    for column in about.intersection(COLUMNS).intersection(rows):
        lacking = rows[column].isna()
        kept |= lacking & ~unmeasured if column == "loss" else lacking
    return frame[kept.to_numpy()]


def read_rows(
    path: str | Path,
    *,
    columns: Mapping[str, str],
    where: str | None,
    role: Role | None,
    loss_unit: str | None,
    bytes_per_token: float | None,
) -> LossTable:
    """Rows to forecast, read as by `read_table`, with losses or without.

    A column that the file has under its name here is not renamed: `columns` may be those of the
    table that is fitted.
    """
    name = str(path)
    frame = read_frame(path)
    here = {*named(frame).values()}
    here |= {"loss"} if columns.get("loss") not in frame else set()
    columns = {column: text for column, text in columns.items() if column not in here}
    read_by = expressions(frame, columns)
    frame = asked(renamed(frame, columns, name), where, loss_unit, bytes_per_token)
    if "loss" not in frame:
        frame = of_role(rows_of(frame, name).frame, name, role)
        return LossTable(in_nats(frame, name, loss_unit, bytes_per_token), name).query(
            where
        )
    rows = validated(
        frame,
        name,
        role=role,
        loss_unit=loss_unit,
        bytes_per_token=bytes_per_token,
        columns=read_by,
    )
    if bases := len(rows.baselines):
        text = f"{name}: {bases} rows with tokens = 0 are baselines, not forecast."
        warnings.warn(text, TableWarning, stacklevel=2)
    return rows.query(where)


def example_table() -> LossTable:
    """Table of 36 measured losses that comes with the package.

    Continual pre-training on math, from the Delphi models of the Marin project (Apache-2.0), on a
    decontaminated validation set. A typical use is to fit the rows with ``scale <= 3e20`` and to
    forecast those with ``scale >= 1e21``.

    Examples
    --------
    >>> table = example_table()
    >>> train, test = table.split("scale <= 3e20", "scale >= 1e21")
    >>> len(table), len(train), len(test)
    (36, 28, 8)
    """
    return read_table(shipped("data/delphi/example.csv"))


def from_frame(
    frame: pd.DataFrame,
    name: str = "table",
    *,
    role: Role | None = None,
    loss_unit: str | None = None,
    bytes_per_token: float | None = None,
) -> LossTable:
    """Loss table from a data frame.

    Parameters
    ----------
    frame : DataFrame
        Columns `params`, `tokens` and `loss`, optionally `replay`, `ptpp`, `run`, `base`,
        `domain`; `unique_tokens`, the distinct tokens of the new data; and `annealed`, 0 or
        1. `N`, `D`, `r` and `PTPP` are accepted as aliases. Other
        columns are preserved.
    name : str
        In messages and titles.
    role : {"target", "source"}, optional
        Whether the losses are of the domain adapted to, or of the one pre-trained on. It is the
        column `role` of all rows. Laws that read the share of the domain's own text, such as
        `mixture`, need it.
    loss_unit : {"nats", "bits", "perplexity", "bits-per-byte"}, optional
        Unit of the losses, which become nats per token. Bits are per token, and perplexity is the
        exponential of the loss in nats. `start_loss` and `base_loss` are converted, too. Without
        it, losses are taken for nats, and those above 12.5 are refused.
    bytes_per_token : float, optional
        Mean number of bytes of a token of the validation set, which losses in bits per byte need.

    Raises
    ------
    TableError
        If a column fails validation; the message names the column, the rows by their labels, and
        the correction. If the losses are above those that a model can have.

    Examples
    --------
    >>> import pandas as pd
    >>> table = from_frame(pd.DataFrame({"N": [1e8, 1e9], "D": [1e9, 1e9], "loss": [3.4, 3.0]}))
    >>> table.frame["params"].tolist()
    [100000000.0, 1000000000.0]
    """
    return validated(
        frame,
        name,
        role=role,
        loss_unit=loss_unit,
        bytes_per_token=bytes_per_token,
        columns={},
    )


def validated(
    frame: pd.DataFrame,
    name: str,
    *,
    role: Role | None,
    loss_unit: str | None,
    bytes_per_token: float | None,
    columns: Mapping[str, str],
) -> LossTable:
    """The table of `from_frame`; `columns` are the expressions that columns were read by."""
    here = named(frame).values() if isinstance(frame, pd.DataFrame) else ()
    frame = canonical(frame, name, (*amounts_in([*here]), "loss"), lines=True)
    if "unique_tokens" in frame and "tokens" not in frame:
        raise TableError(
            f"{name}: 'unique_tokens' needs a column 'tokens'; give it, or drop 'unique_tokens'."
        )
    frame = of_role(frame, name, role)
    frame = in_nats(frame, name, loss_unit, bytes_per_token)
    check_positive(frame, "loss", name, "losses are nats per token; drop failed runs")
    # Equal losses to every digit: a row written twice, which would count as two measurements.
    if (copies := frame.duplicated()).any():
        warnings.warn(
            f"{name}: {row_numbers(copies)} {'is a copy' if copies.sum() == 1 else 'are copies'} "
            "of earlier rows in every column, and left out; if they are repeated runs, add a "
            "column `run`.",
            TableWarning,
            stacklevel=3,
        )
        frame = frame[~copies]
    base = are_bases(frame)
    if base.all():
        raise TableError(f"{name}: every row has tokens = 0; nothing to fit.")
    check_counts(frame, name, columns)
    check_losses(frame[~base], name, loss_unit)
    return LossTable(
        frame[~base].reset_index(drop=True), name, frame[base].reset_index(drop=True)
    )


def of_role(frame: pd.DataFrame, name: str, role: Role | None) -> pd.DataFrame:
    """The frame with a column `role`, if one is given; the frame may have it already."""
    if role is None:
        check_role_by_losses(frame, name, ["target"])
        return frame
    if role not in ROLES:
        raise TableError(f"{name}: {unknown('role', role, ROLES)}")
    if (
        "role" in frame
        and (other := frame["role"].notna() & (frame["role"] != role)).any()
    ):
        raise TableError(
            f"{name}: {argument('role', role)}, but the column 'role' says "
            f"{frame.loc[other, 'role'].iloc[0]!r} ({row_numbers(other)}); give rows of one role."
        )
    frame = frame.assign(role=role)
    check_role_by_losses(frame, name, ["target"])
    return frame
