"""What a discrepancy adds to the log of a term, or to the log of the whole loss."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bayeslaw.common.arrays import Namespace
from bayeslaw.laws.terms import Array, Term, Values


class Modifier(ABC):
    """An addition to a log, zero at the reference point; subclasses are frozen dataclasses."""

    @property
    @abstractmethod
    def parameters(self) -> tuple[str, ...]:
        """Names of its parameters."""

    @property
    @abstractmethod
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        """Covariates that each parameter acts along."""

    @abstractmethod
    def value(self, p: Values, x: Values, at: Values, xp: Namespace) -> Array:
        """What is added at `x`; arguments as for `Term.shape`."""

    @abstractmethod
    def slopes(self, p: Values, x: Values, at: Values) -> dict[str, Array]:
        """Derivative of `value` by each parameter."""

    @property
    def covariates(self) -> tuple[str, ...]:
        """Covariates it depends on."""
        return tuple(dict.fromkeys(c for along in self.covariates_of.values() for c in along))


@dataclass(frozen=True)
class Polynomial(Modifier):
    """Taylor terms ``c x``, ``c x y``, ``c x^2 / 2``, ... of covariates from the reference point.

    Parameters
    ----------
    coefficients : mapping of parameter name to covariates
        ``{"curve_A": ("params", "params")}`` adds ``curve_A (log N - log N0)^2 / 2``.
    """

    coefficients: Mapping[str, tuple[str, ...]]

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the coefficients."""
        return tuple(self.coefficients)

    @property
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        """Covariates that each coefficient multiplies."""
        return {name: tuple(dict.fromkeys(along)) for name, along in self.coefficients.items()}

    def value(self, p: Values, x: Values, at: Values, xp: Namespace) -> Array:
        """Sum of the Taylor terms."""
        total: Array = 0.0
        for name, along in self.coefficients.items():
            value = p[name] / math.prod(math.factorial(along.count(c)) for c in set(along))
            for covariate in along:
                value = value * (x[covariate] - at[covariate])
            total = total + value
        return total

    def slopes(self, p: Values, x: Values, at: Values) -> dict[str, Array]:
        """Each Taylor term with its coefficient 1: the sum is linear in them."""
        return {
            name: Polynomial({name: along}).value({name: 1.0}, x, at, np)
            for name, along in self.coefficients.items()
        }


@dataclass(frozen=True)
class ModifiedTerm(Term):
    """A term whose log has an addition: ``shape + modifier``.

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
