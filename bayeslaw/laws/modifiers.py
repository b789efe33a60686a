"""Modifiers: functions that a discrepancy adds to the log of a term, or of the whole loss."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from bayeslaw.common.arrays import Floats, Namespace
from bayeslaw.common.registry import storable
from bayeslaw.laws.terms import Array, Values


class Modifier(ABC):
    """A function added to the log of a term or of the loss; it is zero at the reference point.

    Subclasses are frozen dataclasses.
    """

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
        """Value at `x`; arguments as for `Term.shape`."""

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
        """Random walks that the modifier contains."""
        return ()

    def with_knots(self, knots: Mapping[str, "Knots"]) -> "Modifier":
        """The modifier with knots of its random walks, by the names of their steps."""
        return self

    @property
    def covariates(self) -> tuple[str, ...]:
        """Covariates it depends on."""
        return tuple(dict.fromkeys(c for along in self.covariates_of.values() for c in along))


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
        """Derivative of `value` by each coefficient: its Taylor term, since the value is linear."""
        return {
            name: Polynomial({name: along}).value({name: 1.0}, x, at, np)
            for name, along in self.coefficients.items()
        }

    @property
    def linear(self) -> bool:
        """False if a subclass overrides `value`; `columns` would not match."""
        return type(self).value is Polynomial.value

    def columns(self, x: Values, at: Values) -> Floats:
        """Taylor terms with coefficient 1, shape (columns, rows)."""
        return np.stack(list(self.slopes({}, x, at).values()))


@dataclass(frozen=True)
class Knots:
    """Equally spaced knots on both sides of the reference point, which has one for each side.

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
        """Positions of the knots above, then of those below, shape (knots,).

        The two at the reference point are 0.0 and -0.0, so that the sign tells the side.
        """
        return self.spacing * np.concatenate([np.arange(self.above), -1.0 * np.arange(self.below)])

    def reaching(self, low: float, high: float) -> "Knots":
        """Knots of the same spacing that cover `low` to `high` too; none is removed."""
        above, below = (max(1, math.ceil(far / self.spacing)) for far in (high, -low))
        return Knots(self.spacing, max(above, self.above), max(below, self.below))

    @property
    def lines(self) -> Floats:
        """Slope and offset of each of `hinges` before it is cut at zero, shape (2, knots)."""
        knots, size = self.positions, math.sqrt(self.spacing)
        return np.stack([np.copysign(size, knots), size * abs(knots)])

    def hinges(self, u: Array, xp: Namespace) -> Array:
        """Hinge functions ``sqrt(spacing) max(±(u - u_j), 0)``, shape (knots, ...)."""
        slope, offset = (line.reshape(-1, *[1] * u.ndim) for line in self.lines)
        return xp.maximum(slope * u - offset, 0.0)


@dataclass(frozen=True)
class GivenKnots(Knots):
    """Knots whose `lines` are data of a compiled model."""

    spacing: float = math.nan
    given: Array = None

    @property
    def lines(self) -> Array:
        """The data, shape (2, knots)."""
        return self.given

    def hinges(self, u: Array, xp: Namespace) -> Array:
        """Hinge functions of the rows, shape (knots, rows)."""
        return xp.maximum(self.given[0][:, None] * u - self.given[1][:, None], 0.0)


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

    def value(self, p: Values, x: Values, at: Values, xp: Namespace) -> Array:
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
        return {self.scale: self.value({**p, self.scale: 1.0}, x, at, np)}

    @property
    def linear(self) -> bool:
        """False if a subclass overrides `value`; `columns` would not match."""
        return type(self).value is Walk.value

    def columns(self, x: Values, at: Values) -> Floats:
        """Design matrix ``sqrt(spacing) h_j(u) v``, shape (knots, rows)."""
        return np.asarray(self._columns(x, at, np))

    def weights(self, p: Values, xp: Namespace) -> list[Array]:
        """The steps times the scale and `sd`."""
        return [p[self.scale] * self.sd * p[self.steps]]

    @property
    def walks(self) -> "tuple[Walk, ...]":
        """The walk itself."""
        return (self,)

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
        """Whether all modifiers are linear."""
        return all(each.linear for each in self.modifiers)

    def columns(self, x: Values, at: Values) -> Floats:
        """Columns of all modifiers, shape (columns, rows)."""
        return np.vstack([each.columns(x, at) for each in self.modifiers])

    def weights(self, p: Values, xp: Namespace) -> list[Array]:
        """Weights of all modifiers."""
        return [weight for each in self.modifiers for weight in each.weights(p, xp)]

    @property
    def walks(self) -> tuple[Walk, ...]:
        """Random walks of all modifiers."""
        return tuple(walk for each in self.modifiers for walk in each.walks)

    def with_knots(self, knots: Mapping[str, Knots]) -> "Sum":
        """The sum with knots of its random walks."""
        return Sum(tuple(each.with_knots(knots) for each in self.modifiers))
