"""Knots of a random walk along a covariate."""

import math
from dataclasses import dataclass

import numpy as np

from bayeslaw.common.arrays import Floats, Namespace
from bayeslaw.laws.terms import Array


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
    def _lines(self) -> Floats:
        """Slope and offset of each of `hinges` before it is cut at zero, shape (2, knots)."""
        knots, size = self.positions, math.sqrt(self.spacing)
        return np.stack([np.copysign(size, knots), size * abs(knots)])

    def hinges(self, u: Array, xp: Namespace) -> Array:
        """Hinge functions ``sqrt(spacing) max(±(u - u_j), 0)``, shape (knots, ...)."""
        slope, offset = (line.reshape(-1, *[1] * u.ndim) for line in self._lines)
        return xp.maximum(slope * u - offset, 0.0)
