"""Loss tables from files and data frames, and files written from data frames."""

import warnings
from pathlib import Path

import pandas as pd

from bayeslaw.common.errors import TableError, TableWarning
from bayeslaw.common.files import whole
from bayeslaw.tables.table import LossTable
from bayeslaw.tables.validation import _positive, _rows, canonical


def read_table(path: str | Path, *, where: str | None = None) -> LossTable:
    """Read a loss table from CSV or Parquet.

    Parameters
    ----------
    path : str or Path
        ``*.parquet`` is read as Parquet, anything else as CSV in UTF-8.
    where : str, optional
        Pandas query applied first, such as ``"domain == 'french'"``.

    Returns
    -------
    LossTable

    Raises
    ------
    TableError
        If the file cannot be read or a column fails validation; the message names the column,
        the rows and the mend.
    """
    return from_frame(read_frame(path), name=str(path)).query(where)


def read_frame(path: str | Path) -> pd.DataFrame:
    """Data frame of a CSV (UTF-8) or ``*.parquet`` file, not validated.

    Raises
    ------
    TableError
        If the file is missing or cannot be read.
    """
    path = Path(path)
    if not path.is_file():
        what = "a folder, not a table" if path.is_dir() else "no such file"
        raise TableError(f"{path}: {what}.")
    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        return pd.read_csv(path, encoding="utf-8", keep_default_na=False, na_values=[""])
    except (ValueError, OSError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        first = str(error).strip().splitlines()[0]
        raise TableError(f"{path}: not a readable table: {first}") from error


def write_frame(frame: pd.DataFrame, path: str | Path) -> None:
    """Write a frame as Parquet or CSV by the path's ending.

    Raises
    ------
    TableError
        If the file cannot be written; an earlier one is left as it was.
    """
    with whole(path, TableError) as beside:
        if Path(path).suffix == ".parquet":
            frame.to_parquet(beside, index=False)
        else:
            frame.to_csv(beside, index=False)


def is_synthetic(table: "LossTable | pd.DataFrame | None") -> bool:
    """Whether rows hold simulated losses: a column `synthetic` that is True somewhere."""
    frame = table.frame if isinstance(table, LossTable) else table
    return frame is not None and "synthetic" in frame and bool(frame["synthetic"].eq(True).any())


def example_table() -> LossTable:
    """Continual pre-training on math, 45 losses (Delphi, Marin project, Apache-2.0).

    It comes with the package: fit ``scale <= 3e20``, forecast ``scale >= 1e21``.
    """
    here = Path(__file__).parent.parent
    inside = here / "data"
    return read_table((inside if inside.is_dir() else here.parent / "data") / "delphi/isotoken.csv")


def from_frame(frame: pd.DataFrame, name: str = "table") -> LossTable:
    """Validate a data frame of measured losses; see `read_table`."""
    frame = canonical(frame, name, ("params", "tokens", "loss"))
    _positive(frame, "loss", name, "losses are nats per token; drop failed runs")
    if (duplicated := frame.duplicated(keep=False)).any():
        raise TableError(
            f"{name}: {_rows(duplicated)} are exact duplicates; drop them, "
            "or add a `run` column if they are repeated runs."
        )
    baseline = frame["tokens"] == 0
    if baseline.all():
        raise TableError(f"{name}: every row has tokens = 0; nothing to fit.")
    if frame["params"].max() < 1e4:
        warnings.warn(
            f"{name}: the largest model has {frame['params'].max():g} parameters; "
            "counts are expected, not millions.",
            TableWarning,
            stacklevel=3,
        )
    measured, bases = frame[~baseline], frame[baseline]
    return LossTable(measured.reset_index(drop=True), bases.reset_index(drop=True), name)
