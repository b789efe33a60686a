"""What fits have in common, whether of one law by draws or a point, or of several laws."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.design.design import valid_rows
from bayeslaw.laws.law import Law
from bayeslaw.tables.comparison import check_like_fitted
from bayeslaw.tables.covariates import Covariate
from bayeslaw.tables.table import LossTable, Rows, rows_of


@dataclass(frozen=True, kw_only=True)
class BaseFit(ABC):
    """Draws of the loss of any rows, with what is accepted of them; a saved fit is loaded without.

    A point fit has one draw.
    """

    accepts_unconverged: bool = field(default=False, repr=False)
    accepts_beyond: bool = field(default=False, repr=False)

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
            If a covariate is missing or invalid, or rows are of a domain, a role or a kind
            that the fit does not know.
        """
        for law in self.laws:
            rows = valid_rows(law, rows, name)
        checked = rows_of(rows)
        if self.table is not None:
            check_like_fitted(checked.frame, checked.name, self.table.frame)
        return checked

    def latent(self, table: Rows | pd.DataFrame) -> Floats:
        """`losses` of a table or a grid, which are checked as by `rows`.

        Unlike `forecast`, this works for a posterior that has not converged.
        """
        return self.losses(self.rows(table))

    def predict(self, table: Rows | pd.DataFrame) -> Floats:
        """Central loss per row, nats per token: the median of `latent` over the draws."""
        self.require_converged()
        return np.asarray(np.median(self.latent(table), axis=0))

    def accepted(
        self, *, unconverged: bool = False, beyond_evidence: bool = False
    ) -> Self:
        """The same fit, to be used in spite of what is accepted.

        Parameters
        ----------
        unconverged : bool
            Accept that the fit failed its convergence check. Otherwise whatever is made of it
            raises `NotConverged`; what is made of it once this is accepted still says so.
        beyond_evidence : bool
            Accept rows twice as far from the training rows as bands were ever compared with
            losses: forecasts and derived numbers do not warn of them, and `bayeslaw.check` and
            `bayeslaw.plan` do not refuse them.

        Returns
        -------
        Posterior, Pool or PointFit
            What was accepted before stays accepted.
        """
        return replace(
            self,
            accepts_unconverged=unconverged or self.accepts_unconverged,
            accepts_beyond=beyond_evidence or self.accepts_beyond,
        )
