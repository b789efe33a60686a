"""What fits of one law have in common; a pool has the same, and several members."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

import pandas as pd

from bayeslaw.laws.law import Law
from bayeslaw.tables.covariates import Covariate
from bayeslaw.tables.table import LossTable, Rows
from bayeslaw.tables.validation import check_like_fitted


@dataclass(frozen=True, kw_only=True)
class FitOfLaw:
    """A fit with what is accepted of it; a saved fit is loaded without."""

    accepts_unconverged: bool = field(default=False, repr=False)
    accepts_beyond: bool = field(default=False, repr=False)

    if TYPE_CHECKING:  # at runtime a dataclass would take it for the default of its field

        @property
        def law(self) -> Law:
            """The law that was fitted."""

        @property
        def table(self) -> LossTable | None:
            """The training table."""

    @property
    def first(self) -> Self:
        """The member with the largest weight, or a point fit itself."""
        return self

    @property
    def laws(self) -> tuple[Law, ...]:
        """The laws of all members, or of a point fit."""
        return (self.law,)

    @property
    def columns(self) -> tuple[str, ...]:
        """Covariates of the laws, as columns of a table."""
        return self.law.columns

    @property
    def about(self) -> dict[str, Covariate]:
        """What is known of each of the `columns`; see `bayeslaw.Law.about`."""
        return self.law.about

    @property
    def name(self) -> str:
        """What the fit is called in messages."""
        return self.law.name

    def rows(self, rows: Rows | pd.DataFrame, name: str = "rows") -> Rows:
        """Rows that the fit knows the losses of, with all that its law reads.

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
        known = self.law.rows(rows, name)
        if self.table is not None:
            check_like_fitted(known.frame, known.name, self.table.frame)
        return known

    def accepted(self, *, unconverged: bool = False, beyond_evidence: bool = False) -> Self:
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
