"""Modifiers: what a discrepancy, or a column, adds to the log of a term or of the whole loss."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from bayeslaw.common.arrays import Floats, Namespace
from bayeslaw.common.registry import storable
from bayeslaw.laws.knots import Knots
from bayeslaw.laws.terms import Array, Summand, Term, Values


class Modifier(Summand):
    """A function added to the log of a term or of the loss; it is zero at the reference point.

    A subclass gives `parameters`, `covariates_of` and `shape`.
    """

    @property
    @abstractmethod
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        """Covariates that each parameter acts along."""

    @property
    def covariates(self) -> tuple[str, ...]:
        """Covariates it depends on."""
        return tuple(dict.fromkeys(c for along in self.covariates_of.values() for c in along))

    @property
    def walks(self) -> "tuple[Walk, ...]":
        """Random walks that the modifier contains."""
        return tuple(part for part in self.summands if isinstance(part, Walk))

    def with_knots(self, knots: Mapping[str, Knots]) -> "Modifier":
        """The modifier with knots of its random walks, by the names of their steps."""
        return self


@storable
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

    def shape(self, p: Values, x: Values, at: Values, xp: Namespace) -> Array:
        """Sum of the Taylor terms."""
        total: Array = 0.0
        for name, along in self.coefficients.items():
            value = p[name] / math.prod(math.factorial(along.count(c)) for c in set(along))
            for covariate in along:
                value = value * (x[covariate] - at[covariate])
            total = total + value
        return total


@dataclass(frozen=True)
class Walk(Modifier):
    """Change of an exponent along a covariate: an integrated random walk.

    The exponent's slope in log x changes at knots u_j, by steps that are standard normal times a
    scale. With h_j(u) = max(u - u_j, 0) for u_j >= 0, max(u_j - u, 0) for u_j <= 0, u from the
    reference point, and knots at distance H, it adds ``scale sd sqrt(H) sum_j steps_j h_j(u) v`` to
    the log of a term, where v is 1, or another covariate from its reference point. Beyond the last
    knot the exponent is constant.

    Parameters
    ----------
    steps : str
        Name of the vector of standardised steps; draws of it have the knots as a further axis.
    scale : str
        Name of the scale that several walks have in common.
    along : str
        Covariate u of the knots.
    times : str
        Covariate v, or "".
    sd : float
        Standard deviation of the change over an e-fold at scale 1.
    spacing : float
        Least distance of the knots, in e-folds.
    knots : Knots, optional
        By default they are chosen from the rows; see `reach`.
    over : str
        Covariate by which that of the knots is divided, as in D / N, or "".
    """

    steps: str
    scale: str
    along: str
    times: str
    sd: float
    spacing: float
    knots: Knots | None = None
    over: str = ""

    @property
    def parameters(self) -> tuple[str, ...]:
        """Name of the scale."""
        return (self.scale,)

    @property
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        """Covariates of the walk."""
        return {self.scale: tuple(c for c in (self.along, self.over, self.times) if c)}

    def shape(self, p: Values, x: Values, at: Values, xp: Namespace) -> Array:
        """Value at `x`; zero if `p` does not contain the steps."""
        if self.steps not in p:
            return 0.0
        steps, columns = p[self.steps], self._columns(x, at, xp)
        if columns.ndim == 2 and steps.ndim != 2:  # rows; draws of the steps have an axis for them
            total = steps @ columns
            total = total[..., 0, :] if steps.ndim > 1 else total
        else:
            total = sum(steps[..., j] * column for j, column in enumerate(columns))
        return p[self.scale] * self.sd * total

    def slopes(self, p: Values, x: Values, at: Values) -> dict[str, Array]:
        """Derivative by the scale."""
        return {self.scale: self.shape({**p, self.scale: 1.0}, x, at, np)}

    @property
    def linear(self) -> bool:
        """False if a subclass overrides `shape`; `columns` would not match."""
        return type(self).shape is Walk.shape

    def columns(self, x: Values, at: Values) -> Floats:
        """Design matrix ``sqrt(spacing) h_j(u) v``, shape (knots, rows)."""
        return np.asarray(self._columns(x, at, np))

    def weights(self, p: Values, given: Values, at: Values, xp: Namespace) -> list[Array]:
        """The steps times the scale and `sd`."""
        return [p[self.scale] * self.sd * p[self.steps]]

    def with_knots(self, knots: Mapping[str, Knots]) -> "Walk":
        """The walk with the knots given for its steps, if there are any."""
        return replace(self, knots=knots.get(self.steps, self.knots))

    def reach(self, x: Values, at: Values) -> Knots:
        """Knots that cover the rows: those of the walk, and further ones of the same spacing.

        A walk without knots gets them at its least distance, or at a larger one if there would
        otherwise be more knots than a quarter of the rows.
        """
        u = self._position(x, at)
        low, high = float(np.min(u)), float(np.max(u))
        spacing = max(self.spacing, 4 * (high - low) / np.size(u))
        return (self.knots or Knots(spacing)).reaching(low, high)

    def _position(self, x: Values, at: Values) -> Array:
        """u: the log of the covariate of the knots, from the reference point."""
        u = x[self.along] - at[self.along]
        return u - (x[self.over] - at[self.over]) if self.over else u

    def _columns(self, x: Values, at: Values, xp: Namespace) -> Array:
        u, v = self._position(x, at), 1.0
        if self.times:
            v = x[self.times] - at[self.times]
            u = u + 0 * v  # both of one shape
        knots = self.knots or self.reach(x, at)
        return knots.hinges(u, xp) * v


@dataclass(frozen=True)
class Sum(Modifier):
    """A sum of modifiers.

    Parameters
    ----------
    modifiers : tuple of Modifier
    """

    modifiers: tuple[Modifier, ...]

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters of all modifiers."""
        return tuple(dict.fromkeys(name for each in self.modifiers for name in each.parameters))

    @property
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        """Covariates that each parameter acts along in any of them."""
        found: dict[str, tuple[str, ...]] = {}
        for each in self.modifiers:
            for name, along in each.covariates_of.items():
                found[name] = tuple(dict.fromkeys([*found.get(name, ()), *along]))
        return found

    @property
    def summands(self) -> tuple[Summand, ...]:
        """Those of all modifiers."""
        return tuple(part for each in self.modifiers for part in each.summands)

    @property
    def linear(self) -> bool:
        """Whether all modifiers are linear."""
        return all(each.linear for each in self.modifiers)

    def shape(self, p: Values, x: Values, at: Values, xp: Namespace) -> Array:
        """Sum of the modifiers."""
        return sum(each.shape(p, x, at, xp) for each in self.modifiers)

    def slopes(self, p: Values, x: Values, at: Values) -> dict[str, Array]:
        """Sum of the derivatives by each parameter."""
        found: dict[str, Array] = {}
        for each in self.modifiers:
            for name, slope in each.slopes(p, x, at).items():
                found[name] = found.get(name, 0.0) + slope
        return found

    def with_knots(self, knots: Mapping[str, Knots]) -> "Sum":
        """The sum with knots of its random walks."""
        return Sum(tuple(each.with_knots(knots) for each in self.modifiers))


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
        return self.term.shape(p, x, at, xp) + self.modifier.shape(p, x, at, xp)

    def slopes(self, p: Values, x: Values, at: Values) -> dict[str, Array]:
        """Derivative of `shape` by each parameter."""
        return self.term.slopes(p, x, at) | self.modifier.slopes(p, x, at)

    @property
    def summands(self) -> tuple[Summand, ...]:
        """The term, then the parts of the modifier."""
        return (self.term, *self.modifier.summands)

    @property
    def linear(self) -> bool:
        """Whether both the term and the modifier are linear."""
        return self.term.linear and self.modifier.linear

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
