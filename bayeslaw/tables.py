"""Loss tables: read, validate, split.

One row is one measured loss. Counts are parameters and tokens, never millions; losses are
nats per token.
"""

import hashlib
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from bayeslaw.errors import TableError, TableWarning
from bayeslaw.files import whole

COVARIATES = ("params", "tokens", "replay", "ptpp")
COLUMNS = (*COVARIATES, "loss")
ALIASES = {"N": "params", "D": "tokens", "r": "replay", "PTPP": "ptpp"}


@dataclass(frozen=True)
class LossTable:
    """Measured losses, validated.

    Parameters
    ----------
    frame : DataFrame
        Rows with ``tokens > 0``: `params`, `tokens`, `loss`, and where the experiment has them
        `replay`, `ptpp`, `run`, `base`, `domain`; other columns are kept.
    baselines : DataFrame
        Rows with ``tokens == 0``: losses of the pre-trained models before adaptation. They are
        offered to the planner and never fitted, since the laws have no value at D = 0.
    name : str
        Where the table came from; used in messages and titles.
    """

    frame: pd.DataFrame
    baselines: pd.DataFrame = field(repr=False)
    name: str = "table"

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def loss(self) -> npt.NDArray[np.float64]:
        """Losses in nats per token, shape (rows,)."""
        return self.frame["loss"].to_numpy(float)

    @property
    def sha256(self) -> str:
        """Hash of the fitted rows, to name the data in a report."""
        csv = self.frame.to_csv(index=False, lineterminator="\n")
        return hashlib.sha256(csv.encode()).hexdigest()

    def query(self, query: str | None) -> "LossTable":
        """Rows that satisfy a pandas query; ``None`` keeps all.

        Raises
        ------
        TableError
            If the query cannot be evaluated or keeps no measured row.
        """
        if query is None:
            return self
        kept = _query(self.frame, query, self.name)
        if kept.empty:
            raise TableError(f"{self.name}: no row satisfies {query!r} ({len(self)} rows).")
        bases = _query(self.baselines, query, self.name)
        return LossTable(kept.reset_index(drop=True), bases.reset_index(drop=True), self.name)

    def split(
        self, train: str | None = None, test: str | None = None, anchors: str | None = None
    ) -> tuple["LossTable", "LossTable"]:
        """Split into training and test rows by pandas queries.

        Parameters
        ----------
        train, test : str, optional
            Queries such as ``"ptpp <= 31"``. Without `test`, all rows not in training are test
            rows; without `train`, the converse.
        anchors : str, optional
            Query for further rows to add to the training set and take from the test set.

        Returns
        -------
        train, test : LossTable

        Raises
        ------
        TableError
            If both queries are missing, a part is empty, or a row falls in both parts.
        """
        if train is None and test is None:
            raise TableError("split needs a train or a test query, such as train='ptpp <= 31'.")
        inside = pd.Series(data=False, index=self.frame.index)
        chosen = {}
        for part, query in {"train": train, "test": test, "anchors": anchors}.items():
            chosen[part] = inside.copy()
            if query is not None:
                chosen[part].loc[_query(self.frame, query, self.name).index] = True
        fit = chosen["train"] if train is not None else ~chosen["test"]
        held = chosen["test"] if test is not None else ~chosen["train"]
        if (both := fit & held).any():
            raise TableError(
                f"{self.name}: {_rows(both)} satisfy both train={train!r} and test={test!r}."
            )
        fit, held = fit | chosen["anchors"], held & ~chosen["anchors"]
        parts = []
        for label, rows in (("train", fit), ("test", held)):
            if not rows.any():
                raise TableError(
                    f"{self.name}: the {label} set is empty "
                    f"(train={train!r}, test={test!r}, anchors={anchors!r})."
                )
            frame = self.frame[rows].reset_index(drop=True)
            parts.append(LossTable(frame, self.baselines, self.name))
        return parts[0], parts[1]


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
    here = Path(__file__).parent
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


def canonical(frame: pd.DataFrame, name: str, required: Iterable[str]) -> pd.DataFrame:
    """Copy of `frame` with canonical column names and valid covariates.

    Raises
    ------
    TableError
        If a required column is missing or a covariate is not a finite number in its range.
    """
    frame = frame.rename(columns=lambda column: ALIASES.get(str(column), str(column)))
    if repeated := sorted(set(frame.columns[frame.columns.duplicated()])):
        raise TableError(f"{name}: column {repeated[0]!r} is there twice; keep one.")
    if frame.empty:
        raise TableError(f"{name}: no rows.")
    for column in required:
        if column not in frame:
            alias = next((f" (or {a})" for a, c in ALIASES.items() if c == column), "")
            raise TableError(
                f"{name}: column {column!r}{alias} is missing; found: "
                f"{', '.join(map(str, frame.columns))}."
            )
    frame = frame.reset_index(drop=True)
    for column in frame.columns.intersection(list(COLUMNS)):
        frame[column] = _numeric(frame[column], name)
    if "params" in frame:
        _positive(frame, "params", name, "give the number of parameters")
    if "ptpp" in frame:
        _positive(frame, "ptpp", name, "give pre-training tokens per parameter")
    if "tokens" in frame:
        _refuse(frame["tokens"] < 0, "tokens", name, "is negative; give D in tokens, 0 = baseline")
    if "replay" in frame:
        outside = ~frame["replay"].between(0, 1)
        _refuse(outside, "replay", name, "lies outside [0, 1]; give a fraction, not a percentage")
    return frame


def grid(**covariates: float | Iterable[float]) -> pd.DataFrame:
    """Every combination of the given covariate values, one row each.

    Examples
    --------
    >>> len(grid(params=[241e6, 8.1e9], tokens=[1e9, 1e10], replay=[0.1, 0.5], ptpp=279))
    8
    """
    values = {
        name: list(value) if isinstance(value, Iterable) else [value]
        for name, value in covariates.items()
    }
    return pd.DataFrame(product(*values.values()), columns=pd.Index(values)).astype(float)


def _query(frame: pd.DataFrame, query: str, name: str) -> pd.DataFrame:
    symbols: Mapping[str, pd.Series] = {
        alias: frame[column]
        for alias, column in ALIASES.items()
        if column in frame and alias not in frame
    }
    try:
        # Empty scopes: `@name` must not reach this module's imports.
        kept = frame.query(query, resolvers=[symbols], local_dict={}, global_dict={})
    except Exception as error:  # pandas raises whatever its parser and the names make of it
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TableError(
            f"{name}: cannot evaluate the query {query!r}: {reason}. "
            f"Columns: {', '.join(map(str, frame.columns))}."
        ) from error
    if not isinstance(kept, pd.DataFrame):
        raise TableError(f"{name}: the query {query!r} does not choose rows.")
    return kept


def _numeric(column: pd.Series, name: str) -> pd.Series:
    values = pd.to_numeric(column, errors="coerce").astype(float)
    missing = values.isna() & column.isna()
    _refuse(missing, str(column.name), name, "is missing (NaN); fill it or drop the row")
    _refuse(values.isna(), str(column.name), name, "is not a number")
    _refuse(values.abs() == np.inf, str(column.name), name, "is infinite")
    return values


def _positive(frame: pd.DataFrame, column: str, name: str, mend: str) -> None:
    _refuse(frame[column] <= 0, column, name, f"is not positive; {mend}")


def _refuse(bad: pd.Series, column: str, name: str, what: str) -> None:
    if bad.any():
        raise TableError(f"{name}: column {column!r} {what} ({_rows(bad)}).")


def _rows(mask: pd.Series) -> str:
    """The chosen rows in words, counted from 0 after the header."""
    rows = [str(row) for row in np.flatnonzero(mask)[:5]]
    more = int(mask.sum()) - len(rows)
    label = "row" if mask.sum() == 1 else "rows"
    return f"{label} {', '.join(rows)}" + (f" and {more} more" if more else "")
