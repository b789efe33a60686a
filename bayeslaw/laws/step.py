"""What a step of a law is: it acts on the loss beside floor and terms."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import ClassVar, Self

from bayeslaw.common.arrays import Array, Floats, Namespace
from bayeslaw.laws.priors import Prior
from bayeslaw.laws.symbols import Named, Values

type Columns = Mapping[str, Floats]
"""Columns of some rows by name, each of shape (rows,)."""

type Loss = tuple[Values, Values]
"""Summands of the loss, and its derivatives by the log of some of its parts."""


class Step(ABC):
    """What acts on the loss beside floor and terms. Subclasses are frozen dataclasses.

    A new step is a class and its row in `STEPS`. A law's file states it, or it is called for by a
    column of a table that has so many `distinct` values.
    """

    called_by: ClassVar[str] = ""
    distinct: ClassVar[int] = 2
    name: ClassVar[str] = ""  # in saved laws, if a column calls for it
    words: ClassVar[str] = ""  # in reports, which leave it out if empty
    of_covariates: ClassVar[bool] = False  # whether its parameters change covariates
    # In reference coordinates; others are the law's.
    priors: ClassVar[Mapping[str, Prior]] = {}
    # Sizes of parameters for which 1 is far from it.
    typical: ClassVar[Mapping[str, float]] = {}
    leading: str = (
        ""  # the parameter that has another value in reference coordinates, if one has
    )
    added: bool = False  # whether a discrepancy added it to the law

    @classmethod
    def of_columns(cls, columns: Collection[str]) -> Self:
        """The step of a law that depends on these columns of a table."""
        return cls()

    @property
    @abstractmethod
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        """Covariates that each parameter acts along, by its symbol in paper coordinates."""

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(self.covariates_of)

    @property
    def local(self) -> tuple[str, ...]:
        """Names of its parameters in reference coordinates."""
        return tuple(
            f"{name}_ref" if name == self.leading else name for name in self.parameters
        )

    def varying(
        self, same: Collection[str], coefficients: Collection[str]
    ) -> Self | None:
        """The step for rows in which the columns `same` are constant; None if nothing is left.

        `coefficients` are those of the terms that the law has for such rows.
        """
        return self

    def of_role(self, role: str) -> Self:
        """The step of losses of the domain adapted to (`target`), or pre-trained on (`source`)."""
        return self

    def covariates(self, columns: Columns, token_unit: float) -> dict[str, Floats]:
        """Covariates beside those of the terms, each of shape (rows,)."""
        return {}

    def effective[A: Array](
        self, p: Values, x: Named[A], xp: Namespace, token_unit: float = 1.0
    ) -> Named[A]:
        """Covariates as floor and terms count them."""
        return x

    def act(self, loss: Loss, p: Values, x: Values, at: Values, xp: Namespace) -> Loss:
        """What becomes of floor ("E") and terms, or of what earlier steps made of them."""
        return loss

    def factor(self, p: Values, x: Values, at: Values, xp: Namespace) -> Array:
        """Factor of the floor."""
        return 1.0

    def shift(self, p: Values, at: Values) -> Array:
        """The leading parameter in reference coordinates less that of the paper."""
        return 0.0

    def amounts[A: Array](self, p: Named[A], at: Values) -> dict[str, A]:
        """What it changes of amounts at `at` that are still as in reference coordinates."""
        return {}

    def rescale[A: Array](self, p: Named[A], at: Values) -> dict[str, A]:
        """What it changes from amounts to paper coordinates."""
        return (
            {self.leading: p[self.leading] - self.shift(p, at)} if self.leading else {}
        )

    def to_reference[A: Array](self, p: Named[A], at: Values) -> dict[str, A]:
        """What it changes from paper to reference coordinates, with amounts of the terms."""
        return (
            {self.leading: p[self.leading] + self.shift(p, at)} if self.leading else {}
        )

    def latex(self, parts: dict[str, str]) -> dict[str, str]:
        """What becomes of floor and terms, as LaTeX."""
        return parts


def total(parts: Values) -> Array:
    """The loss of floor and terms, or of what steps made of them."""
    floor, *terms = parts.values()
    return floor + sum(terms) if terms else floor
