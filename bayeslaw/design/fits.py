"""What fits have in common, whether of one law by draws or a point, or of several laws."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.common.errors import Acceptance, acceptances
from bayeslaw.design.design import valid_rows
from bayeslaw.laws.law import Law
from bayeslaw.tables.comparison import check_like_fitted
from bayeslaw.tables.covariates import Covariate
from bayeslaw.tables.table import LossTable, Rows, rows_of
from bayeslaw.tables.verdict import Verdict, judge


@dataclass(frozen=True, kw_only=True)
class BaseFit(ABC):
    """Draws of the loss of any rows, with what is accepted of them; a saved fit is loaded without.

    A point fit has one draw.
    """

    accepts: frozenset[Acceptance] = field(default=frozenset(), repr=False)

    if (
        TYPE_CHECKING
    ):  # at runtime a dataclass would take it for the default of its field

        @property
        def table(self) -> LossTable | None:
            """The training table."""

    @property
    @abstractmethod
    def laws(self) -> tuple[Law, ...]:
        """The laws that were fitted."""

    @property
    @abstractmethod
    def count(self) -> int:
        """Number of draws."""

    @abstractmethod
    def losses(self, rows: Rows | pd.DataFrame, draws: Ints | None = None) -> Floats:
        """Noise-free loss per draw and row, nats per token, shape (draws, rows).

        With `draws` only these are evaluated, in their order. A frame is checked as by `rows`.
        """

    def _valid(self, rows: Rows | pd.DataFrame) -> Rows:
        """Rows that were checked as they are, so that none is checked twice; a frame, checked."""
        return rows if isinstance(rows, Rows) else self.rows(rows)

    @abstractmethod
    def require_converged(self) -> tuple[str, ...]:
        """Failures of the convergence check, in words; `NotConverged` unless they are accepted."""

    @property
    def name(self) -> str:
        """What the fit is called in messages."""
        return " + ".join(law.name for law in self.laws)

    @property
    def columns(self) -> tuple[str, ...]:
        """Covariates of the laws, as columns of a table."""
        return tuple(self.about)

    @property
    def about(self) -> dict[str, Covariate]:
        """What is known of each of the `columns`; see `bayeslaw.Law.about`."""
        return {c: row for law in self.laws for c, row in law.about.items()}

    def rows(self, rows: Rows | pd.DataFrame, name: str = "rows") -> Rows:
        """Rows that the fit knows the losses of, with all that its laws read.

        Parameters
        ----------
        rows : Rows or DataFrame
            Such as a `bayeslaw.LossTable` or a grid; a loss is not needed.
        name : str
            Of a frame in messages.

        Raises
        ------
        TableError
            If a covariate is missing or invalid, or rows are of a domain, a role, a rate or a kind
            that the fit does not know.
        """
        for law in self.laws:
            rows = valid_rows(law, rows, name)
        checked = rows_of(rows)
        if self.table is not None:
            check_like_fitted(checked.frame, checked.name, self.table.frame)
        return checked

    def verdict(self, rows: Rows | pd.DataFrame) -> Verdict:
        """Where rows lie beside the fitted rows, and whether bands were tested so far out.

        Parameters
        ----------
        rows : LossTable or DataFrame
            Rows with the covariates of the laws.

        Returns
        -------
        Verdict
            Its `positions` are those of `bayeslaw.locate`, its `level` is "ok", "no evidence" or
            "refuse", and its `words` say why. What is accepted of the fit does not change it. Of a
            fit without a table, the rows themselves stand for the fitted ones.

        Raises
        ------
        TableError
            If a covariate is missing or invalid, or D = 0.

        Examples
        --------
        >>> fit.verdict(bl.grid(params=1e12, tokens=1e13)).level  # doctest: +SKIP
        """
        fitted = rows if self.table is None else self.table
        return judge(fitted, rows, self.about)

    def _warn_beyond(self, rows: pd.DataFrame, name: str) -> None:
        """Warn of rows that the command line refuses to forecast, unless they are accepted."""
        if "beyond-evidence" in self.accepts:
            return
        # A base without further tokens lies nowhere on a logarithmic axis.
        if "tokens" in rows:
            rows = rows[rows["tokens"] > 0]
        self.verdict(Rows(rows)).warn(name, stacklevel=3)

    def latent(self, table: Rows | pd.DataFrame) -> Floats:
        """`losses` of a table or a grid, which are checked as by `rows`.

        Unlike `forecast`, this works for a posterior that has not converged.
        """
        return self.losses(self.rows(table))

    def predict(self, table: Rows | pd.DataFrame) -> Floats:
        """Central loss per row, nats per token: the median of `latent` over the draws."""
        self.require_converged()
        return np.asarray(np.median(self.latent(table), axis=0))

    def accepted(self, accepts: Acceptance | Collection[Acceptance]) -> Self:
        """The same fit, to be used in spite of what is accepted.

        Parameters
        ----------
        accepts : {"unconverged", "beyond-evidence"} or a set of them
            - ``"unconverged"``: the fit failed its convergence check. Otherwise whatever is made
              of it raises `NotConverged`; what is made of it once this is accepted still says so.
            - ``"beyond-evidence"``: rows lie twice as far from the training rows as bands were ever
              compared with losses. Forecasts and derived numbers do not warn of them, and
              `bayeslaw.check` and `bayeslaw.plan` do not refuse them.

        Returns
        -------
        Posterior, Pool or PointFit
            What was accepted before stays accepted.

        Raises
        ------
        BayeslawError
            If a name is not one of these.
        """
        return replace(self, accepts=self.accepts | acceptances(accepts))
