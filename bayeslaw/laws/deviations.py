"""Deviations of the log loss from a law: known columns times weights.

A deviation belongs to a term of the law, and enters the log loss times the term's share of the
loss: to first order it is an addition to the log of that term. A deviation of the whole loss is
added as it is.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from bayeslaw.common.arrays import Array, Floats, Namespace, Untyped
from bayeslaw.laws.symbols import Values, column_of

WHOLE = ""
START = "start"
CORE = "core"
"""What deviates, if it is no term: the whole loss, the part of the start loss that is left, or the
part of the core that is reached."""


class Deviation(ABC):
    """Columns times weights; zero at the reference point. Subclasses are frozen dataclasses.

    `of` is the coefficient of the term that deviates, `WHOLE`, or `START`.
    """

    of: str

    @property
    @abstractmethod
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        """Covariates that each scalar parameter acts along."""

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(self.covariates_of)

    @abstractmethod
    def value(self, p: Values, x: Values, at: Values, xp: Namespace) -> Array:
        """Columns times weights; arguments are those of `Term.log_ratio`."""

    def without(self, held: Collection[str]) -> "Deviation | None":
        """The part of it along columns of a table that are not `held`."""
        return self


class Linear(Deviation):
    """Coefficients times known columns; a subclass gives `column`.

    Coefficients with normal priors are whitened by the sampler.
    """

    @abstractmethod
    def column(self, name: str, x: Values, at: Values, xp: Namespace = np) -> Array:
        """What a coefficient multiplies."""

    def value(self, p: Values, x: Values, at: Values, xp: Namespace) -> Array:
        columns = (p[name] * self.column(name, x, at, xp) for name in self.parameters)
        return sum(columns, 0.0)


@dataclass(frozen=True)
class Polynomial(Linear):
    """Taylor terms ``c x``, ``c x y``, ``c x^2 / 2``, ... of covariates from the reference point.

    ``{"curve_A": ("params", "params")}`` adds ``curve_A (log N - log N0)^2 / 2``.
    """

    of: str
    coefficients: Mapping[str, tuple[str, ...]]

    @property
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        return {
            name: tuple(dict.fromkeys(along))
            for name, along in self.coefficients.items()
        }

    def without(self, held: Collection[str]) -> "Polynomial | None":
        varying = {
            name: along
            for name, along in self.coefficients.items()
            if not {*map(column_of, along)} & {*held}
        }
        return replace(self, coefficients=varying) if varying else None

    def column(self, name: str, x: Values, at: Values, xp: Namespace = np) -> Array:
        along = self.coefficients[name]
        value: Array = 1.0 / math.prod(
            math.factorial(along.count(c)) for c in set(along)
        )
        for covariate in along:
            value = value * (x[covariate] - at[covariate])
        return value


@dataclass(frozen=True)
class Knots:
    """Equally spaced knots on both sides of the reference point, which has one for each side.

    `above` are the number of those at 0, spacing, 2 spacing, ..., `below` of those at 0, -spacing,
    ...; `spacing` is in e-folds.
    """

    spacing: float
    above: int = 1
    below: int = 1

    @property
    def positions(self) -> Floats:
        """Positions of the knots above, then of those below, shape (knots,).

        The two at the reference point are 0.0 and -0.0, so that the sign tells the side.
        """
        return self.spacing * np.concatenate(
            [np.arange(self.above), -1.0 * np.arange(self.below)]
        )

    def reaching(self, low: float, high: float) -> "Knots":
        """Knots of the same spacing that cover `low` to `high` too; none is removed."""
        above, below = (max(1, math.ceil(far / self.spacing)) for far in (high, -low))
        return Knots(self.spacing, max(above, self.above), max(below, self.below))

    def hinges(self, u: Untyped, xp: Namespace) -> Untyped:
        """Hinge functions ``sqrt(spacing) max(±(u - u_j), 0)``, shape (knots, ...)."""
        knots = self.positions
        size = math.sqrt(self.spacing)
        axes = (-1, *[1] * u.ndim)
        slope = np.copysign(size, knots).reshape(axes)
        offset = (size * abs(knots)).reshape(axes)
        return xp.maximum(slope * u - offset, 0.0)


class Scaled(Deviation):
    """Columns times standard normal steps, all times a scale that is a parameter.

    `steps` is the name of the vector of steps, `scale` that of the scale, and `sd` the standard
    deviation at scale 1. Draws of the steps have the columns as a further axis.
    """

    steps: str
    scale: str
    sd: float

    @abstractmethod
    def columns(self, x: Values, at: Values, xp: Namespace = np) -> Untyped:
        """Design matrix of the steps, shape (steps, rows)."""

    def value(self, p: Values, x: Values, at: Values, xp: Namespace) -> Untyped:
        if self.steps not in p:
            return 0.0
        steps: Untyped = p[self.steps]
        columns = self.columns(x, at, xp)
        if (
            columns.ndim == 2 and steps.ndim != 2
        ):  # rows; draws of the steps have an axis for them
            total = steps @ columns
            total = total[..., 0, :] if steps.ndim > 1 else total
        else:
            near = np.ones(len(columns), bool)
            if xp is np:  # on the other side of the reference point a knot adds nothing
                near = columns.reshape(len(columns), -1).any(1)
            total = sum(steps[..., j] * columns[j] for j in np.flatnonzero(near))
        return p[self.scale] * self.sd * total


@dataclass(frozen=True)
class Spread(Scaled):
    """A polynomial whose coefficients each group of rows has of its own, around zero.

    The coefficient of a group is ``scale sd size step``: the standard deviation of the groups'
    coefficients is learned, up to the `sizes` of the coefficients beside each other. Rows of a
    group are marked by the covariate `mark`, which is 1 for them and 0 for others.
    """

    polynomial: Polynomial
    sizes: tuple[float, ...]  # of the coefficients of the polynomial
    groups: tuple[str, ...]
    steps: str
    scale: str
    sd: float

    @property
    def of(self) -> str:  # type: ignore[override]
        return self.polynomial.of

    @property
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        along = sum(self.polynomial.coefficients.values(), ())
        return {self.scale: tuple(dict.fromkeys(along))}

    def without(self, held: Collection[str]) -> "Spread | None":
        polynomial = self.polynomial.without(held)
        if polynomial is None:
            return None
        named = zip(self.polynomial.coefficients, self.sizes, strict=True)
        sizes = tuple(size for name, size in named if name in polynomial.coefficients)
        return replace(self, polynomial=polynomial, sizes=sizes)

    def columns(self, x: Values, at: Values, xp: Namespace = np) -> Untyped:
        columns = []
        for group in self.groups:
            for name, size in zip(self.polynomial.parameters, self.sizes, strict=True):
                column = self.polynomial.column(name, x, at, xp)
                columns.append(size * column * x[mark(group)])
        return xp.stack(columns)


def mark(group: str) -> str:
    """Name of the covariate that is 1 for rows of a group, and 0 for others."""
    return f"is {group}"


@dataclass(frozen=True)
class Walk(Scaled):
    """Change of an exponent along a covariate: an integrated random walk.

    The exponent's slope in log x changes at knots u_j, by steps that are standard normal times a
    scale. With h_j(u) = max(u - u_j, 0) for u_j >= 0, max(u_j - u, 0) for u_j <= 0, u from the
    reference point, and knots at distance H, it adds ``scale sd sqrt(H) sum_j steps_j h_j(u) v``,
    where v is 1, or another covariate from its reference point. Beyond the last
    knot the exponent is constant.
    """

    of: str
    steps: (
        str  # name of the vector of steps; draws of it have the knots as a further axis
    )
    scale: str  # name of the scale that several walks have in common
    along: str  # covariate u of the knots
    times: str  # covariate v, or ""
    sd: float  # of the change over an e-fold at scale 1
    spacing: float  # least distance of the knots, in e-folds
    knots: Knots | None = None  # by default chosen from the rows; see `reach`
    over: str = ""  # covariate by which that of the knots is divided, as in D / N

    @property
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        return {self.scale: tuple(c for c in (self.along, self.over, self.times) if c)}

    def without(self, held: Collection[str]) -> "Walk | None":
        return (
            None if {column_of(self.along), column_of(self.times)} & {*held} else self
        )

    def reach(self, x: Values, at: Values) -> Knots:
        """Knots that cover the rows: those of the walk, and further ones of the same spacing.

        A walk without knots gets them at its least distance, or at a larger one if there would
        otherwise be more knots than a quarter of the rows.
        """
        u = self._position(x, at)
        low = float(np.min(u))
        high = float(np.max(u))
        spacing = max(self.spacing, 4 * (high - low) / np.size(u))
        return (self.knots or Knots(spacing)).reaching(low, high)

    def _position(self, x: Values, at: Values) -> Untyped:
        u = x[self.along] - at[self.along]
        return u - (x[self.over] - at[self.over]) if self.over else u

    def columns(self, x: Values, at: Values, xp: Namespace = np) -> Untyped:
        """Design matrix ``sqrt(spacing) h_j(u) v`` of independent steps, shape (knots, rows)."""
        u = self._position(x, at)
        v = x[self.times] - at[self.times] if self.times else 1.0
        u = u + 0 * v if self.times else u  # both of one shape
        knots = self.knots or self.reach(x, at)
        return knots.hinges(u, xp) * v
