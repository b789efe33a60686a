"""Loss tables: measured losses, which are checked once, and selected by queries.

One row is one measured loss in nats per token. Model sizes and amounts of data are counts of
parameters and tokens, not millions.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Bools, Floats
from bayeslaw.common.errors import TableError, argument, unknown
from bayeslaw.tables.comparison import role_by_losses
from bayeslaw.tables.covariates import Covariate
from bayeslaw.tables.queries import chosen
from bayeslaw.tables.validation import (
    OF_DOMAIN,
    canonical,
    label_texts,
    missing_columns,
    numeric,
    row_numbers,
)

type Role = Literal["target", "source"]
"""Whether losses are of the domain adapted to, or of the one pre-trained on."""
ROLES: tuple[Role, ...] = ("target", "source")
"""Values of the column `role`."""


@dataclass(frozen=True)
class Rows:
    """Rows whose columns are valid; all that laws and fits take, so that none is checked twice.

    `rows_of` makes them of a user's frame, once, where it enters; the package itself, of frames
    that it builds from valid rows. A frame whose values are changed afterwards needs new rows.

    Parameters
    ----------
    frame : DataFrame
        Columns have the names of `bayeslaw.from_frame`, without aliases; counts are floats, labels
        text.
    name : str
        Name of the rows in messages and titles, such as the path of their file.
    """

    frame: pd.DataFrame
    name: str = "rows"

    def __len__(self) -> int:
        return len(self.frame)


@dataclass(frozen=True)
class LossTable(Rows):
    """Measured losses, validated.

    Parameters
    ----------
    frame : DataFrame
        Rows with ``tokens > 0``: `params`, `tokens`, `loss`, and where the experiment has them
        `replay`, `ptpp`, `run`, `base`, `domain`, `role`, `unique_tokens`, `annealed`;
        other columns are preserved.
    name : str
        Name of the table in messages and titles, such as the path of its file.
    baselines : DataFrame
        Rows with ``tokens == 0``: losses of the pre-trained models before adaptation. The planner
        uses them. They are not fitted, since the laws have no value at D = 0.
    selection : str
        Queries that selected the rows, such as ``"ptpp <= 31"``; empty for all rows of the file.
    """

    name: str = "table"
    baselines: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    selection: str = ""

    def __post_init__(self) -> None:
        if self.baselines.empty:  # queries name columns of both
            object.__setattr__(self, "baselines", self.frame.iloc[:0])

    def __str__(self) -> str:
        """Number of rows, name, and the queries that selected the rows."""
        rows = f"{len(self)} row" + "s" * (len(self) != 1)
        return f"{rows} of {self.name}" + (
            f" ({self.selection})" if self.selection else ""
        )

    @property
    def loss(self) -> Floats:
        """Losses in nats per token, shape (rows,)."""
        return self.measured["loss"].to_numpy(float)

    @property
    def measured(self) -> pd.DataFrame:
        """The rows, which must have losses: a fit may be saved without."""
        if "loss" not in self.frame:
            raise TableError(
                f"{self.name}: the fit was saved without its losses; this needs them."
            )
        return self.frame

    @property
    def role(self) -> Role:
        """Whether the losses are of the domain adapted to, or of the one pre-trained on.

        It says what the share of the domain's own text is: 1 - replay, or replay. The column `role`
        says it, or the losses of the bases, which are the same on both domains if these are one.

        Raises
        ------
        TableError
            If neither says it.
        """
        roles = self.frame["role"].unique().tolist() if "role" in self.frame else []
        if not roles and (by_losses := role_by_losses(self.frame)):
            roles = [by_losses]
        if len(roles) == 1 and roles[0] in ROLES:
            return roles[0]  # type: ignore[no-any-return]
        said = f" The column 'role' has {', '.join(map(repr, roles))}." if roles else ""
        raise TableError(
            f"{self.name}: are the losses of the domain adapted to, or of the one pre-trained on? "
            f"The law reads the share of their own text: give {argument('role', 'target')} or "
            f"{argument('role', 'source')}, or a column 'role' with one of them.{said}"
        )

    @property
    def sha256(self) -> str:
        """SHA-256 of the rows with ``tokens > 0``, which identifies the data in a report."""
        return hashlib.sha256(csv_text(self.frame).encode()).hexdigest()

    def query(self, query: str | None) -> "LossTable":
        """Select rows by a pandas query.

        Parameters
        ----------
        query : str or None
            Such as ``"ptpp <= 31"``: columns, numbers, text, comparisons, and, or, not, in, and
            arithmetic. The aliases N, D, r and PTPP can be used, and C = 6 N D, the FLOPs. ``None``
            selects all rows. The baseline of a selected row's `base` on its domain, and of its
            role, is kept, too.

        Raises
        ------
        TableError
            If the query cannot be evaluated or selects no row with ``tokens > 0``.
        """
        if query is None:
            return self
        selected = self.frame[chosen(self.frame, query, self.name)]
        if selected.empty:
            raise TableError(
                f"{self.name}: no row satisfies {query!r} ({len(self)} rows)."
            )
        # A query such as "tokens > 1e9" or "replay < 1" excludes the bases of the rows it selects.
        kept = chosen(self.baselines, query, self.name)
        if "base" in self.baselines:
            bases = label_texts(selected["base"]).dropna()
            kept = kept | label_texts(self.baselines["base"]).isin(bases).to_numpy()
        baselines = of_domains(self.baselines[kept], selected).reset_index(drop=True)
        frame = selected.reset_index(drop=True)
        return LossTable(frame, self.name, baselines, _both(self.selection, query))

    def training(self, query: str | None) -> "LossTable":
        """Rows to fit that satisfy a pandas query, with all baselines on the domains of these rows.

        The losses of a base are known before it is adapted, so forecasts may use them. Queries and
        errors are those of `query`.
        """
        selected = self.query(query)
        return replace(selected, baselines=of_domains(self.baselines, selected.frame))

    def split(
        self,
        train: str | None = None,
        test: str | None = None,
        anchors: str | None = None,
    ) -> tuple["LossTable", "LossTable"]:
        """Split into training and test rows by pandas queries.

        Parameters
        ----------
        train, test : str, optional
            Queries such as ``"ptpp <= 31"``. Without `test`, all rows outside the training set
            are test rows; without `train`, all rows outside the test set are training rows.
        anchors : str, optional
            Query for rows that are added to the training set and removed from the test set.

        Returns
        -------
        train, test : LossTable

        Raises
        ------
        TableError
            If both queries are missing, a part is empty, or a row is in both parts.
        """
        if train is None and test is None:
            example = argument("train", "ptpp <= 31")
            raise TableError(f"split needs a train or a test query, such as {example}.")
        by_part = {"train": train, "test": test, "anchors": anchors}
        queries = {part: query for part, query in by_part.items() if query is not None}
        rows = {
            part: chosen(self.frame, query, self.name)
            for part, query in queries.items()
        }
        training = rows["train"] if train is not None else ~rows["test"]
        testing = rows["test"] if test is not None else ~rows["train"]
        if (both := training & testing).any():
            raise TableError(
                f"{self.name}: {row_numbers(pd.Series(both))} satisfy both "
                f"{argument('train', train)} and {argument('test', test)}."
            )
        train_text = train or f"not ({test})"
        test_text = test or f"not ({train})"
        if anchors is not None:
            training = training | rows["anchors"]
            testing = testing & ~rows["anchors"]
            train_text = _both(train_text, f"and anchors {anchors}")
        for part, inside in (("train", training), ("test", testing)):
            if not inside.any():
                said = ", ".join(
                    argument(name, query) for name, query in queries.items()
                )
                raise TableError(f"{self.name}: the {part} set is empty ({said}).")
        return (
            replace(
                subset(self, training), selection=_both(self.selection, train_text)
            ),
            replace(subset(self, testing), selection=_both(self.selection, test_text)),
        )


def check_role(role: str) -> None:
    """Raise `TableError` unless this is a role that a table can have."""
    if role not in ROLES:
        raise TableError(unknown("role", role, ROLES))


def require_table(table: object) -> None:
    """Refuse what no fit takes, such as a data frame that nobody validated."""
    if not isinstance(table, LossTable):
        kind = type(table).__name__
        path = isinstance(table, str | Path)
        how = "bl.read_table(path)" if path else "bl.from_frame(frame)"
        raise TableError(
            f"the losses are a {kind}, not a LossTable; make one by {how}."
        )


def rows_of(
    rows: Rows | pd.DataFrame,
    name: str = "rows",
    columns: Iterable[str] | Mapping[str, str] = (),
    declared: Mapping[str, Covariate] | None = None,
) -> Rows:
    """Rows of a user's frame, validated; rows that are valid stay as they are.

    Parameters
    ----------
    rows : Rows or DataFrame
    name : str
        Of a frame in messages; other rows have a name.
    columns : iterable of str, or mapping of str to str
        Columns that must be there; the values of a mapping say in the error what needs each.
    declared : mapping of str to Covariate, optional
        Covariates that a law declares, whose ranges no table knows.

    Raises
    ------
    TableError
        If a column is missing or invalid.
    """
    if not isinstance(rows, Rows):
        rows = Rows(canonical(rows, name, columns), name)
    elif not {*columns} <= {*rows.frame}:
        raise TableError(
            f"{rows.name}: {missing_columns(rows.frame, columns, rows.name)}"
        )
    if declared:
        return replace(rows, frame=numeric(rows.frame, declared, rows.name))
    return rows


def subset(table: LossTable, rows: Bools) -> LossTable:
    """The rows of a table where `rows` is true, with all baselines on the domains of these rows."""
    frame = table.frame[rows].reset_index(drop=True)
    return replace(table, frame=frame, baselines=of_domains(table.baselines, frame))


def of_domains(baselines: pd.DataFrame, frame: pd.DataFrame) -> pd.DataFrame:
    """The baselines on a domain, and of a role, of some rows, or that name none."""
    for column in OF_DOMAIN:
        if column not in baselines or column not in frame:
            continue
        labels = label_texts(baselines[column])
        of_others = labels.notna() & ~labels.isin(label_texts(frame[column]).dropna())
        if of_others.any():
            baselines = baselines[~of_others].reset_index(drop=True)
    return baselines


def _both(first: str, second: str) -> str:
    return "; ".join(query for query in (first, second) if query)


def csv_text(frame: pd.DataFrame) -> str:
    """A frame as CSV: so a table and its own file have one hash on every system."""
    return frame.to_csv(index=False, lineterminator="\n")


def unannealed(frame: pd.DataFrame) -> Floats:
    """1 for rows that are not annealed and else 0; without the column all are annealed."""
    if "annealed" not in frame:
        return np.zeros(len(frame))
    return 1.0 - frame["annealed"].to_numpy(float)


def is_synthetic(table: Rows | pd.DataFrame | None) -> bool:
    """Whether a table holds simulated losses: a column `synthetic` with a True value."""
    frame = (
        table.frame
        if isinstance(table, Rows)
        else pd.DataFrame()
        if table is None
        else table
    )
    return "synthetic" in frame and bool(frame["synthetic"].eq(True).any())


def grid(**covariates: float | str | Iterable[float | str]) -> pd.DataFrame:
    """Every combination of the given covariate values.

    Parameters
    ----------
    **covariates : float or iterable of float, or text
        Values of each column, such as `params`, `tokens`, `replay` and `ptpp`; the last varies
        fastest. Labels, such as that of a `run`, are text.

    Examples
    --------
    >>> len(grid(params=[241e6, 8.1e9], tokens=[1e9, 1e10], replay=[0.1, 0.5], ptpp=279))
    8
    """
    values = {
        name: [value]
        if isinstance(value, str) or not isinstance(value, Iterable)
        else [*value]
        for name, value in covariates.items()
    }
    frame = pd.DataFrame(product(*values.values()), columns=pd.Index(values))
    return frame.astype(dict.fromkeys(frame.select_dtypes(["number", "bool"]), float))
