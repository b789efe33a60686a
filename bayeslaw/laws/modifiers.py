"""What a discrepancy adds to the log of a term, or to the log of the whole loss."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from bayeslaw.common.arrays import Floats, Namespace
from bayeslaw.laws.terms import Array, Values


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
    def linear(self) -> bool:
        """Whether the value is a sum of `columns` times `weights`."""
        return False

    def columns(self, x: Values, at: Values) -> Floats:
        """Columns of which `value` is a weighted sum, shape (columns, rows)."""
        raise NotImplementedError

    def weights(self, p: Values, xp: Namespace) -> list[Array]:
        """Weight of each of the `columns`: numbers, or arrays of shape (weights,)."""
        return [p[name] for name in self.parameters]

    @property
    def walks(self) -> "tuple[Walk, ...]":
        """The random walks in it."""
        return ()

    def with_knots(self, knots: Mapping[str, "Knots"]) -> "Modifier":
        """The modifier with knots of its random walks, by the names of their steps."""
        return self

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

    @property
    def linear(self) -> bool:
        """Whether the value is this class's, and not that of a subclass."""
        return type(self).value is Polynomial.value

    def columns(self, x: Values, at: Values) -> Floats:
        """The Taylor terms."""
        return np.stack(list(self.slopes({}, x, at).values()))


@dataclass(frozen=True)
class Knots:
    """Positions on both sides of zero, at equal distances; zero has one for either side.

    Parameters
    ----------
    spacing : float
        Distance, in e-folds.
    above, below : int
        Number of knots at 0, spacing, 2 spacing, ... and at 0, -spacing, -2 spacing, ...
    """

    spacing: float
    above: int = 1
    below: int = 1

    @property
    def positions(self) -> Floats:
        """Those above, then those below, shape (knots,); zero is there as 0.0 and as -0.0."""
        return self.spacing * np.concatenate([np.arange(self.above), -1.0 * np.arange(self.below)])

    def reaching(self, low: float, high: float) -> "Knots":
        """As many of the same spacing as there are between two positions, and no fewer."""
        above, below = (max(1, math.ceil(far / self.spacing)) for far in (high, -low))
        return Knots(self.spacing, max(above, self.above), max(below, self.below))

    def hinges(self, u: Array, xp: Namespace) -> Array:
        """How far u lies beyond each knot, seen from zero, shape (knots, ...); or zero."""
        knots = self.positions.reshape(-1, *[1] * u.ndim)
        return xp.maximum(np.copysign(1.0, knots) * u - abs(knots), 0.0)


@dataclass(frozen=True)
class Walk(Modifier):
    """Change of an exponent along a covariate: a random walk, integrated.

    The exponent's slope in log x changes at knots u_j, by steps that are standard normal times a
    scale. With h_j(u) = max(u - u_j, 0) for u_j >= 0, max(u_j - u, 0) for u_j <= 0, u from the
    reference point, and knots at distance H, it adds ``scale sd sqrt(H) sum_j steps_j h_j(u) v`` to
    the log of a term, where v is 1, or another covariate from its reference point. Beyond the last
    knot the exponent stays.

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
        Chosen for the rows where there are none.
    """

    steps: str
    scale: str
    along: str
    times: str
    sd: float
    spacing: float
    knots: Knots | None = None

    @property
    def parameters(self) -> tuple[str, ...]:
        """Name of the scale."""
        return (self.scale,)

    @property
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        """Covariates of the walk."""
        return {self.scale: (self.along, self.times) if self.times else (self.along,)}

    def value(self, p: Values, x: Values, at: Values, xp: Namespace) -> Array:
        """What the steps add; nothing without steps."""
        if self.steps not in p:
            return 0.0
        steps, columns = p[self.steps], self._columns(x, at, xp)
        if columns.ndim == 2:
            total = steps @ columns
            total = total[..., 0, :] if steps.ndim > 1 else total
        else:
            total = sum(steps[..., j] * column for j, column in enumerate(columns))
        return p[self.scale] * self.sd * total

    def slopes(self, p: Values, x: Values, at: Values) -> dict[str, Array]:
        """Derivative by the scale."""
        return {self.scale: self.value({**p, self.scale: 1.0}, x, at, np)}

    @property
    def linear(self) -> bool:
        """Whether the value is this class's, and not that of a subclass."""
        return type(self).value is Walk.value

    def columns(self, x: Values, at: Values) -> Floats:
        """What a step at each knot adds, over the scale and `sd`."""
        return np.asarray(self._columns(x, at, np))

    def weights(self, p: Values, xp: Namespace) -> list[Array]:
        """The steps, times the scale and `sd`."""
        return [p[self.scale] * self.sd * p[self.steps]]

    @property
    def walks(self) -> "tuple[Walk, ...]":
        """Itself."""
        return (self,)

    def with_knots(self, knots: Mapping[str, Knots]) -> "Walk":
        """The walk with other knots, if there are some for it."""
        return replace(self, knots=knots.get(self.steps, self.knots))

    def reach(self, x: Values, at: Values) -> Knots:
        """Its knots and further ones, as far as the rows reach.

        A walk that has none gets knots at its least distance, or as many as a quarter of the rows.
        """
        u = x[self.along] - at[self.along]
        low, high = float(np.min(u)), float(np.max(u))
        spacing = max(self.spacing, 4 * (high - low) / np.size(u))
        return (self.knots or Knots(spacing)).reaching(low, high)

    def _columns(self, x: Values, at: Values, xp: Namespace) -> Array:
        u = x[self.along] - at[self.along]
        v = x[self.times] - at[self.times] if self.times else 1.0
        knots = self.knots or self.reach(x, at)
        return math.sqrt(knots.spacing) * knots.hinges(u, xp) * v


@dataclass(frozen=True)
class Sum(Modifier):
    """Several modifiers added up.

    Parameters
    ----------
    modifiers : tuple of Modifier
    """

    modifiers: tuple[Modifier, ...]

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters of all."""
        return tuple(dict.fromkeys(name for each in self.modifiers for name in each.parameters))

    @property
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        """Covariates that each parameter acts along in any of them."""
        found: dict[str, tuple[str, ...]] = {}
        for each in self.modifiers:
            for name, along in each.covariates_of.items():
                found[name] = tuple(dict.fromkeys([*found.get(name, ()), *along]))
        return found

    def value(self, p: Values, x: Values, at: Values, xp: Namespace) -> Array:
        """Sum of the values."""
        return sum(each.value(p, x, at, xp) for each in self.modifiers)

    def slopes(self, p: Values, x: Values, at: Values) -> dict[str, Array]:
        """Sum of the derivatives by each parameter."""
        found: dict[str, Array] = {}
        for each in self.modifiers:
            for name, slope in each.slopes(p, x, at).items():
                found[name] = found.get(name, 0.0) + slope
        return found

    @property
    def linear(self) -> bool:
        """Whether all are."""
        return all(each.linear for each in self.modifiers)

    def columns(self, x: Values, at: Values) -> Floats:
        """Those of all."""
        return np.vstack([each.columns(x, at) for each in self.modifiers])

    def weights(self, p: Values, xp: Namespace) -> list[Array]:
        """Those of all."""
        return [weight for each in self.modifiers for weight in each.weights(p, xp)]

    @property
    def walks(self) -> tuple[Walk, ...]:
        """The random walks of all."""
        return tuple(walk for each in self.modifiers for walk in each.walks)

    def with_knots(self, knots: Mapping[str, Knots]) -> "Sum":
        """The sum with knots of its random walks."""
        return Sum(tuple(each.with_knots(knots) for each in self.modifiers))
