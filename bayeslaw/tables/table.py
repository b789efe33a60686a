"""Loss tables: queries and splits of measured losses.

One row is one measured loss in nats per token. Model sizes and amounts of data are counts of
parameters and tokens, not millions.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product

import pandas as pd
from pandas.api.types import is_bool_dtype

from bayeslaw.common.arrays import Bools, Floats
from bayeslaw.common.errors import TableError, argument, unknown
from bayeslaw.tables.validation import ALIASES, label_texts, row_numbers


@dataclass(frozen=True)
class LossTable:
    """Measured losses, validated.

    Parameters
    ----------
    frame : DataFrame
        Rows with ``tokens > 0``: `params`, `tokens`, `loss`, and where the experiment has them
        `replay`, `ptpp`, `run`, `base`, `domain`, `unique_tokens`, `annealed`; other
        columns are preserved.
    baselines : DataFrame
        Rows with ``tokens == 0``: losses of the pre-trained models before adaptation. The planner
        uses them. They are not fitted, since the laws have no value at D = 0.
    name : str
        Name of the table in messages and titles, such as the path of its file.
    selection : str
        Queries that selected the rows, such as ``"ptpp <= 31"``; empty for all rows of the file.
    """

    frame: pd.DataFrame
    baselines: pd.DataFrame = field(repr=False)
    name: str = "table"
    selection: str = ""

    def __str__(self) -> str:
        """Number of rows, name, and the queries that selected the rows."""
        rows = f"{len(self)} row" + "s" * (len(self) != 1)
        return f"{rows} of {self.name}" + (f" ({self.selection})" if self.selection else "")

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def loss(self) -> Floats:
        """Losses in nats per token, shape (rows,)."""
        return self.frame["loss"].to_numpy(float)

    @property
    def sha256(self) -> str:
        """SHA-256 of the rows with ``tokens > 0``, which identifies the data in a report."""
        csv = self.frame.to_csv(index=False, lineterminator="\n")
        return hashlib.sha256(csv.encode()).hexdigest()

    def query(self, query: str | None) -> "LossTable":
        """Select rows by a pandas query.

        Parameters
        ----------
        query : str or None
            Such as ``"ptpp <= 31"``; the aliases N, D, r and PTPP can be used. ``None`` selects
            all rows. The baseline of a selected row's `base` on its domain is kept, too.

        Returns
        -------
        LossTable

        Raises
        ------
        TableError
            If the query cannot be evaluated or selects no row with ``tokens > 0``.
        """
        if query is None:
            return self
        selected = _query(self.frame, query, self.name)
        if selected.empty:
            raise TableError(f"{self.name}: no row satisfies {query!r} ({len(self)} rows).")
        kept = self.baselines.index.isin(_query(self.baselines, query, self.name).index)
        if "base" in self.baselines:
            chosen = label_texts(selected["base"]).dropna()
            kept |= label_texts(self.baselines["base"]).isin(chosen).to_numpy()
        bases = of_domains(self.baselines[kept], selected)
        return LossTable(
            selected.reset_index(drop=True),
            bases.reset_index(drop=True),
            self.name,
            _both(self.selection, query),
        )

    def training(self, query: str | None) -> "LossTable":
        """Rows to fit that satisfy a pandas query, with all baselines on the domains of these rows.

        The losses of a base are known before it is adapted, so forecasts may use them.

        Parameters
        ----------
        query : str, optional
            As for `query`.

        Returns
        -------
        LossTable

        Raises
        ------
        TableError
            If the query cannot be evaluated or selects no row with ``tokens > 0``.
        """
        selected = self.query(query)
        return replace(selected, baselines=of_domains(self.baselines, selected.frame))

    def split(
        self, train: str | None = None, test: str | None = None, anchors: str | None = None
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
        queries = {"train": train, "test": test, "anchors": anchors}
        inside = pd.Series(data=False, index=self.frame.index)
        chosen = {}
        for part, query in queries.items():
            chosen[part] = inside.copy()
            if query is not None:
                chosen[part].loc[_query(self.frame, query, self.name).index] = True
        training = chosen["train"] if train is not None else ~chosen["test"]
        testing = chosen["test"] if test is not None else ~chosen["train"]
        if (both := training & testing).any():
            raise TableError(
                f"{self.name}: {row_numbers(both)} satisfy both {argument('train', train)} and "
                f"{argument('test', test)}."
            )
        training, testing = training | chosen["anchors"], testing & ~chosen["anchors"]
        given = ", ".join(argument(n, query) for n, query in queries.items() if query is not None)
        chosen_by = {"train": train or f"not ({test})", "test": test or f"not ({train})"}
        if anchors is not None:
            chosen_by["train"] = _both(chosen_by["train"], f"and anchors {anchors}")
        parts = []
        for label, rows in (("train", training), ("test", testing)):
            if not rows.any():
                raise TableError(f"{self.name}: the {label} set is empty ({given}).")
            selection = _both(self.selection, chosen_by[label])
            parts.append(replace(subset(self, rows.to_numpy()), selection=selection))
        return parts[0], parts[1]


def frame_of(table: LossTable | pd.DataFrame) -> pd.DataFrame:
    """Rows of a table or grid."""
    return table.frame if isinstance(table, LossTable) else table


def subset(table: LossTable, rows: Bools) -> LossTable:
    """The rows of a table where `rows` is true, with all baselines on the domains of these rows."""
    frame = table.frame[rows].reset_index(drop=True)
    return replace(table, frame=frame, baselines=of_domains(table.baselines, frame))


def of_domains(baselines: pd.DataFrame, frame: pd.DataFrame) -> pd.DataFrame:
    """The baselines on a domain of some rows, or on no named one."""
    if "domain" not in baselines or "domain" not in frame:
        return baselines
    domain = label_texts(baselines["domain"])
    others = domain.notna() & ~domain.isin(label_texts(frame["domain"]).dropna())
    return baselines[~others].reset_index(drop=True) if others.any() else baselines


def _both(first: str, second: str) -> str:
    """Two queries, one after the other, in words."""
    return "; ".join(query for query in (first, second) if query)


def grid(**covariates: float | Iterable[float]) -> pd.DataFrame:
    """Every combination of the given covariate values.

    Parameters
    ----------
    **covariates : float or iterable of float
        Values of each column, such as `params`, `tokens`, `replay` and `ptpp`.

    Returns
    -------
    DataFrame
        One row per combination; the last column varies fastest.

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
        # Empty scopes, so that `@name` in a query cannot reach this module's imports.
        chosen = frame.eval(query, resolvers=[symbols], local_dict={}, global_dict={})
    except Exception as error:  # pandas raises many types, of its parser and of the operations
        absent = re.fullmatch("name '(.*)' is not defined", str(error))
        if absent:
            reason = unknown("column", absent[1], [*map(str, frame.columns), *symbols])
        elif isinstance(error, TypeError):
            reason = f"{str(error).splitlines()[0]}."
        else:  # what pandas says of its parser is of no use
            reason = "write comparisons, such as ptpp <= 31 and domain == 'french'."
        raise TableError(f"{name}: cannot evaluate the query {query!r}: {reason}") from error
    if not isinstance(chosen, pd.Series) or not is_bool_dtype(chosen):
        raise TableError(
            f"{name}: the query {query!r} does not choose rows: write comparisons, such as "
            "ptpp <= 31 and domain == 'french'."
        )
    return frame[chosen]
