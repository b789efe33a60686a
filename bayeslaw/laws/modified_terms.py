"""A term of a law with a modifier that a discrepancy adds to its log."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from bayeslaw.common.arrays import Floats, Namespace
from bayeslaw.laws.modifiers import Knots, Modifier
from bayeslaw.laws.terms import Array, Term, Values


@dataclass(frozen=True)
class ModifiedTerm(Term):
    """A term with a modifier added to its log: ``shape + modifier``.

    Parameters
    ----------
    term : Term
        The term without discrepancy.
    modifier : Modifier
    """

    term: Term
    modifier: Modifier

    @property
    def plain(self) -> Term:
        """The term without discrepancy."""
        return self.term

    @property
    def coefficient(self) -> str:  # type: ignore[override]  # read from the plain term
        """The paper's symbol of the coefficient."""
        return self.term.coefficient

    @property
    def slope(self) -> str:  # type: ignore[override]
        """Name of the local slope."""
        return self.term.slope

    @property
    def covariates(self) -> tuple[str, ...]:
        """Covariates the term depends on, the leading one first."""
        return tuple(dict.fromkeys([*self.term.covariates, *self.modifier.covariates]))

    @property
    def exponents(self) -> tuple[str, ...]:
        """Symbols of every parameter but the coefficient."""
        return (*self.term.exponents, *self.modifier.parameters)

    @property
    def leading(self) -> str:
        """The paper's symbol of the leading exponent."""
        return self.term.leading

    @property
    def local(self) -> str:
        """Name of the leading exponent in reference coordinates."""
        return self.term.local

    @property
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        """Covariates that each parameter acts along."""
        return self.term.covariates_of | self.modifier.covariates_of

    def shape(self, p: Values, x: Values, at: Values, xp: Namespace) -> Array:
        """Log of the term at `x` over its value at `at`."""
        return self.term.shape(p, x, at, xp) + self.modifier.value(p, x, at, xp)

    def slopes(self, p: Values, x: Values, at: Values) -> dict[str, Array]:
        """Derivative of `shape` by each parameter."""
        return self.term.slopes(p, x, at) | self.modifier.slopes(p, x, at)

    @property
    def linear(self) -> bool:
        """Whether both the term and the modifier are linear."""
        return self.term.linear and self.modifier.linear

    def columns(self, x: Values, at: Values) -> Floats:
        """Columns of the term, then of the modifier, shape (columns, rows)."""
        return np.vstack([self.term.columns(x, at), self.modifier.columns(x, at)])

    def weights(self, p: Values, given: Values, at: Values, xp: Namespace) -> list[Array]:
        """Weights of the term, then of the modifier."""
        return [*self.term.weights(p, given, at, xp), *self.modifier.weights(p, xp)]

    def given(self, x: Values) -> dict[str, Floats]:
        """Values computed from the rows that the term's weights depend on."""
        return self.term.given(x)

    def with_knots(self, knots: Mapping[str, Knots]) -> "ModifiedTerm":
        """The term with knots of the modifier's random walks."""
        return replace(self, modifier=self.modifier.with_knots(knots))

    def exponent(self, p: Values, at: Values, xp: Namespace) -> Array:
        """Local exponent along the leading covariate at the reference point."""
        return self.term.exponent(p, at, xp)

    def to_local(self, p: Values, at: Values, xp: Namespace) -> dict[str, Array]:
        """Exponents in reference coordinates, and the modifier's parameters."""
        return self.term.to_local(p, at, xp) | {name: p[name] for name in self.modifier.parameters}

    def from_local(self, q: Values, at: Values, xp: Namespace) -> dict[str, Array]:
        """The paper's exponents, and the modifier's parameters."""
        own = {name: q[name] for name in self.modifier.parameters}
        return self.term.from_local(q, at, xp) | own

    def latex(self) -> str:
        """The plain term as LaTeX."""
        return self.term.latex()
