"""Loss tables from files and data frames, and data frames written to files."""

import csv
import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw.common.errors import TableError, TableWarning, argument, unknown
from bayeslaw.common.files import atomic_write, is_hdf5
from bayeslaw.tables.table import LossTable, frame_of
from bayeslaw.tables.validation import (
    ALIASES,
    BASE_LOSSES,
    LINE,
    check_positive,
    check_units,
    label_texts,
    row_numbers,
    validated,
)

LEAST_LOSS = 0.02
"""Median loss of a table, nats per token, that is not doubted."""
MOST_LOSS = 12.5
"""No loss in nats per token is higher: a uniform guess of one of 262,144 tokens costs 12.48."""
LOSS_UNITS = ("nats", "bits", "perplexity", "bits-per-byte")
UNIT_WORDS = {
    "bpb": "bits-per-byte",
    "byte": "bits-per-byte",
    "bits": "bits",
    "ppl": "perplexity",
    "perplexity": "perplexity",
}
"""Words in the name of a column, and the unit of its losses; the first that is there counts."""


def read_table(
    path: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    where: str | None = None,
    source: str | Path | None = None,
    loss_unit: str | None = None,
    bytes_per_token: float | None = None,
) -> LossTable:
    """Read a loss table from CSV or Parquet.

    Parameters
    ----------
    path : str or Path
        ``*.parquet`` is read as Parquet, anything else as CSV in UTF-8.
    columns : mapping of str to str, optional
        For a file with other names: for each column here, the file's column, or an expression of
        its columns as `pandas.DataFrame.eval` takes it, such as ``{"params": "size", "tokens":
        "billions * 1e9", "loss": "`eval/loss`"}``.
    where : str, optional
        Pandas query that selects the rows to keep, such as ``"domain == 'french'"``.
    source : str or Path, optional
        Table of the domain that the bases were pre-trained on. Its rows with tokens = 0, and those
        of the table itself, give each row `base_loss` and `start_loss`, the losses of its `base` on
        the two domains. Laws that start from the base need them; see `bayeslaw.fit`.
    loss_unit, bytes_per_token
        As for `from_frame`, also for the table `source`.

    Returns
    -------
    LossTable
        Losses in nats per token; `params` and `tokens` are counts, not millions.

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
    35
    """
    named = (columns or {}).get("loss", "")

    def read(file: str | Path) -> LossTable:
        frame = read_frame(file)
        if loss_unit is None and named in frame:
            _check_unit_of_name(named, str(file))
        frame = renamed(frame, columns or {}, str(file))
        return from_frame(
            frame, name=str(file), loss_unit=loss_unit, bytes_per_token=bytes_per_token
        )

    table = read(path) if source is None else starting(read(path), read(source))
    return table.query(where)


def _check_unit_of_name(column: str, name: str) -> None:
    """Raise `TableError` if the name of a column of losses has a unit other than nats."""
    words = re.split("[^a-z]+", column.lower())
    for word, unit in UNIT_WORDS.items():
        if word in words:
            raise TableError(
                f"{name}: the column {column!r} is of {word} by its name; give "
                f"{argument('loss_unit', unit)}, or {argument('loss_unit', 'nats')} if it is not."
            )


def renamed(frame: pd.DataFrame, columns: Mapping[str, str], name: str = "table") -> pd.DataFrame:
    """The frame with columns under the names used here, each renamed or computed.

    `columns` are those of `read_table`, and `name` is that of the table in messages.

    Raises
    ------
    TableError
        If a value is neither a column nor an expression of columns.

    Examples
    --------
    >>> frame = pd.DataFrame({"size": [0.1], "train tokens": [2e9]})
    >>> renamed(frame, {"params": "size * 1e9", "tokens": "train tokens"}).iloc[0].to_dict()
    {'size': 0.1, 'params': 100000000.0, 'tokens': 2000000000.0}
    """
    made: dict[str, Any] = {}
    here = {ALIASES[c]: frame[c] for c in frame if c in ALIASES and ALIASES[c] not in frame}
    for column, given in columns.items():
        try:
            made[column] = frame[given] if given in frame else frame.eval(given, resolvers=[here])
        except Exception as error:  # pandas raises many types, of its parser and of operations
            raise TableError(
                f"{name}: columns: {column!r} is neither a column nor an expression of columns: "
                f"{given!r}; found: {', '.join(map(str, frame.columns))}. Write a name that is no "
                "word in backticks."
            ) from error
    used = [c for c in frame if c in columns.values() or ALIASES.get(str(c)) in made]
    return frame.drop(columns=used).assign(**made)


def starting(table: LossTable, source: LossTable) -> LossTable:
    """The table with the losses of each row's base as `start_loss` and `base_loss`.

    The table has a column `base`, and rows of tokens = 0: the bases' own losses on its domain.
    `source` is the same on the domain that the bases were pre-trained on.

    Raises
    ------
    TableError
        If a table has no column `base`, or the losses of a base are missing or differ.
    """
    frames = {"frame": table.frame, "baselines": table.baselines}
    for part, column in zip((source, table), reversed(BASE_LOSSES), strict=True):
        if "base" not in table.frame or "base" not in part.baselines:
            raise TableError(
                f"{part.name}: give its rows a column 'base', and add rows with tokens = 0: the "
                "losses of the bases before adaptation."
            )
        losses = part.baselines["loss"].groupby(label_texts(part.baselines["base"]))
        if (counts := losses.nunique()).max() > 1:
            raise TableError(
                f"{part.name}: base {counts.idxmax()!r} has several losses at tokens = 0; keep one."
            )
        own = losses.first()
        frames = {
            name: frame.assign(**{column: label_texts(frame["base"]).map(own)})
            for name, frame in frames.items()
        }
        without = frames["frame"][column].isna()
        if without.any():
            names = ", ".join(map(str, label_texts(frames["frame"]["base"])[without].unique()[:5]))
            raise TableError(
                f"{part.name}: no row with tokens = 0 for the base {names}; add its loss before "
                "adaptation."
            )
    return replace(table, frame=frames["frame"], baselines=frames["baselines"])


def read_frame(path: str | Path) -> pd.DataFrame:
    """Read a CSV (UTF-8) or ``*.parquet`` file without validation.

    The index of a frame from CSV has the lines of the file.

    Raises
    ------
    TableError
        If the file is missing or cannot be read.
    """
    path = Path(path)
    if not path.is_file():
        what = "a folder, not a table" if path.is_dir() else "no such file"
        raise TableError(f"{path}: {what}.")
    if is_hdf5(path):
        raise TableError(f"{path}: a saved posterior, not a table of losses.")
    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        frame = pd.read_csv(path, encoding="utf-8", keep_default_na=False, na_values=[""])
        lines = _lines(path)
        return frame.set_axis(lines, axis=0) if len(lines) == len(frame) else frame
    except (ValueError, OSError, csv.Error) as error:  # those of pandas' parser are ValueErrors
        first = str(error).strip().splitlines()[0]
        raise TableError(f"{path}: not a readable table: {first}") from error


def _lines(path: Path) -> "pd.Index[int]":
    """First line of each record of a CSV file after the header; blank lines are no records."""
    firsts, line = [], 1
    with path.open(encoding="utf-8", newline="") as file:
        records = csv.reader(file)
        for record in records:
            firsts += [line] if record else []
            line = records.line_num + 1
    return pd.Index(firsts[1:], name=LINE, dtype=int)


def write_frame(frame: pd.DataFrame, path: str | Path) -> None:
    """Write a frame as Parquet if the path ends in ``.parquet``, otherwise as CSV.

    Raises
    ------
    TableError
        If the file cannot be written. An existing file is left unchanged.
    """
    with atomic_write(path, TableError) as temporary:
        if Path(path).suffix == ".parquet":
            frame.to_parquet(temporary, index=False)
        else:
            frame.to_csv(temporary, index=False)


def is_synthetic(table: LossTable | pd.DataFrame | None) -> bool:
    """Whether a table holds simulated losses, that is, a column `synthetic` with a True value."""
    if table is None:
        return False
    frame = frame_of(table)
    return "synthetic" in frame and bool(frame["synthetic"].eq(True).any())


def example_table() -> LossTable:
    """Table of 45 measured losses that comes with the package.

    Continual pre-training on math, from the Delphi models of the Marin project (Apache-2.0). A
    typical use is to fit the rows with ``scale <= 3e20`` and to forecast those with
    ``scale >= 1e21``.

    Returns
    -------
    LossTable

    Examples
    --------
    >>> table = example_table()
    >>> train, test = table.split("scale <= 3e20", "scale >= 1e21")
    >>> len(table), len(train), len(test)
    (45, 35, 10)
    """
    return read_table(example_file())


def example_file() -> Path:
    """File of `example_table`: inside an installed wheel, or beside the package in a clone."""
    here = Path(__file__).parent.parent
    inside = here / "data"
    return (inside if inside.is_dir() else here.parent / "data") / "delphi/isotoken.csv"


def from_frame(
    frame: pd.DataFrame,
    name: str = "table",
    *,
    loss_unit: str | None = None,
    bytes_per_token: float | None = None,
) -> LossTable:
    """Loss table from a data frame.

    Parameters
    ----------
    frame : DataFrame
        Columns `params`, `tokens` and `loss`, optionally `replay`, `ptpp`, `run`, `base`,
        `domain`; `unique_tokens`, the distinct tokens of the new data; and `annealed`, 0
        or 1. `N`, `D`, `r` and `PTPP` are accepted as aliases. Other columns are preserved.
    name : str
        Name of the table in messages and titles.
    loss_unit : {"nats", "bits", "perplexity", "bits-per-byte"}, optional
        Unit of the losses, which become nats per token: bits are per token, and perplexity is the
        exponential of the loss in nats. `start_loss` and `base_loss` are converted, too. Without
        it, losses are taken for nats, and those above 12.5 are refused.
    bytes_per_token : float, optional
        Mean number of bytes of a token of the validation set, which losses in bits per byte need.

    Returns
    -------
    LossTable

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
    frame = validated(frame, name, ("params", "tokens", "loss"))
    frame = in_nats(frame, name, loss_unit, bytes_per_token)
    check_positive(frame, "loss", name, "losses are nats per token; drop failed runs")
    if (copies := frame.duplicated()).any():
        raise TableError(
            f"{name}: {row_numbers(copies)} {'is a copy' if copies.sum() == 1 else 'are copies'} "
            "of earlier rows in every column; drop copies, or add a `run` column if they are "
            "repeated runs."
        )
    baseline = frame["tokens"] == 0
    if baseline.all():
        raise TableError(f"{name}: every row has tokens = 0; nothing to fit.")
    check_units(frame, name)
    measured, bases = frame[~baseline], frame[baseline]
    if (middle := float(measured["loss"].median())) <= LEAST_LOSS:
        warnings.warn(
            f"{name}: the median loss is {middle:.3g} nats per token; the default priors expect "
            f"larger ones; give priors of your own, {argument('priors', 'FILE.toml')}.",
            TableWarning,
            stacklevel=3,
        )
    if loss_unit is None and (above := measured["loss"] > MOST_LOSS).any():
        units = [argument("loss_unit", unit) for unit in ("perplexity", "nats")]
        raise TableError(
            f"{name}: losses are above {MOST_LOSS} nats per token, more than a uniform guess costs "
            f"({row_numbers(above)}: {measured['loss'].max():.3g}); drop failed runs, or state the "
            f"unit: {units[0]}, or {units[1]} if it is right."
        )
    return LossTable(measured.reset_index(drop=True), bases.reset_index(drop=True), name)


def in_nats(
    frame: pd.DataFrame, name: str, unit: str | None, bytes_per_token: float | None
) -> pd.DataFrame:
    """The frame with its losses, those of bases included, in nats per token."""
    if unit not in (None, *LOSS_UNITS):
        raise TableError(f"{name}: {unknown('loss unit', unit, LOSS_UNITS)}")
    if (unit == "bits-per-byte") != (bytes_per_token is not None):
        raise TableError(
            f"{name}: {argument('loss_unit', 'bits-per-byte')} and "
            f"{argument('bytes_per_token', 4.5)}, the mean bytes of a token of the validation set, "
            "go together."
        )
    if bytes_per_token is not None and not 0 < bytes_per_token < math.inf:
        raise TableError(f"{name}: bytes_per_token={bytes_per_token:g}: give a positive number.")
    if unit in (None, "nats"):
        return frame
    columns = [c for c in ("loss", *BASE_LOSSES) if c in frame]
    losses = frame[columns].astype(float)
    if unit == "perplexity":
        for column in columns:
            check_positive(losses, column, name, "perplexities are at least 1; drop failed runs")
        return frame.assign(**losses.apply(np.log))
    return frame.assign(**losses * (math.log(2) * (bytes_per_token or 1)))
