"""Loss tables from files and data frames, and data frames written to files."""

import warnings
from pathlib import Path

import pandas as pd

from bayeslaw.common.errors import TableError, TableWarning
from bayeslaw.common.files import atomic_write
from bayeslaw.tables.table import LossTable
from bayeslaw.tables.validation import BASE_LOSSES, canonical, check_positive, row_numbers


def read_table(
    path: str | Path, *, where: str | None = None, source: str | Path | None = None
) -> LossTable:
    """Read a loss table from CSV or Parquet.

    Parameters
    ----------
    path : str or Path
        ``*.parquet`` is read as Parquet, anything else as CSV in UTF-8.
    where : str, optional
        Pandas query that selects the rows to keep, such as ``"domain == 'french'"``.
    source : str or Path, optional
        Table of the domain that the bases were pre-trained on. Its rows with tokens = 0, and those
        of the table itself, give each row `base_loss` and `start_loss`, the losses of its `base` on
        the two domains. Laws that start from the base need them; see `bayeslaw.fit`.

    Returns
    -------
    LossTable
        Losses in nats per token; `params` and `tokens` are counts, not millions.

    Raises
    ------
    TableError
        If the file cannot be read or a column fails validation; the message names the column,
        the rows and the correction.

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
    table = from_frame(read_frame(path), name=str(path))
    if source is not None:
        table = starting(table, from_frame(read_frame(source), name=str(source)))
    return table.query(where)


def starting(table: LossTable, source: LossTable) -> LossTable:
    """The table with the losses of each row's base as `start_loss` and `base_loss`.

    Parameters
    ----------
    table : LossTable
        With a column `base`, and rows of tokens = 0: the bases' own losses on its domain.
    source : LossTable
        The same on the domain that the bases were pre-trained on.

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
        losses = part.baselines.groupby(part.baselines["base"].astype(str))["loss"]
        if (counts := losses.nunique()).max() > 1:
            raise TableError(
                f"{part.name}: base {counts.idxmax()!r} has several losses at tokens = 0; keep one."
            )
        own = losses.first()
        frames = {
            name: frame.assign(**{column: frame["base"].astype(str).map(own)})
            for name, frame in frames.items()
        }
        without = frames["frame"][column].isna()
        if without.any():
            names = ", ".join(map(str, frames["frame"].loc[without, "base"].unique()[:5]))
            raise TableError(
                f"{part.name}: no row with tokens = 0 for the base {names}; add its loss before "
                "adaptation."
            )
    return LossTable(frames["frame"], frames["baselines"], table.name)


def read_frame(path: str | Path) -> pd.DataFrame:
    """Read a CSV (UTF-8) or ``*.parquet`` file without validation.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    DataFrame

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


def is_synthetic(table: "LossTable | pd.DataFrame | None") -> bool:
    """Whether a table holds simulated losses, that is, a column `synthetic` with a True value."""
    frame = table.frame if isinstance(table, LossTable) else table
    return frame is not None and "synthetic" in frame and bool(frame["synthetic"].eq(True).any())


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
    here = Path(__file__).parent.parent
    inside = here / "data"
    return read_table((inside if inside.is_dir() else here.parent / "data") / "delphi/isotoken.csv")


def from_frame(frame: pd.DataFrame, name: str = "table") -> LossTable:
    """Loss table from a data frame.

    Parameters
    ----------
    frame : DataFrame
        Columns `params`, `tokens` and `loss`, optionally `replay`, `ptpp`, `run`, `base`,
        `domain`; `N`, `D`, `r` and `PTPP` are accepted as aliases. Other columns are preserved.
    name : str
        Name of the table in messages and titles.

    Returns
    -------
    LossTable

    Raises
    ------
    TableError
        If a column fails validation; the message names the column, the rows and the correction.

    Examples
    --------
    >>> import pandas as pd
    >>> table = from_frame(pd.DataFrame({"N": [1e8, 1e9], "D": [1e9, 1e9], "loss": [3.4, 3.0]}))
    >>> table.frame["params"].tolist()
    [100000000.0, 1000000000.0]
    """
    frame = canonical(frame, name, ("params", "tokens", "loss"))
    check_positive(frame, "loss", name, "losses are nats per token; drop failed runs")
    if (duplicated := frame.duplicated(keep=False)).any():
        raise TableError(
            f"{name}: {row_numbers(duplicated)} are exact duplicates; drop them, "
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
