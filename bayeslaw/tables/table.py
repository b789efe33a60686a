"""Loss tables: read, validate, split.

One row is one measured loss. Counts are parameters and tokens, never millions; losses are
nats per token.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product

import numpy as np
import numpy.typing as npt
import pandas as pd

from bayeslaw.common.errors import TableError
from bayeslaw.tables.validation import ALIASES, _rows


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
