"""Discrepancies: how the true loss may deviate from a law.

Real losses are power laws only locally. A discrepancy adds deviations of the log loss, by a term or
as a whole (`bayeslaw.laws.deviations`).
"""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats
from bayeslaw.common.registry import Registry
from bayeslaw.laws.law import Law
from bayeslaw.laws.priors import Prior
from bayeslaw.laws.terms import Values


class Discrepancy(ABC):
    """A deviation of the true loss from a law; subclasses are frozen dataclasses."""

    kind: ClassVar[str] = ""
    """Its name."""
    words: ClassVar[str] = ""
    """What it is, for reports."""
    size_effects: ClassVar[bool] = True
    """Whether ``effects="auto"`` adds random effects of model size."""
    effect_priors: ClassVar[Mapping[str, Prior]] = {}
    """Priors of the standard deviations of random effects beside it, where the law states none."""

    @abstractmethod
    def apply(self, law: Law) -> Law:
        """The law with the discrepancy's parameters, their priors and bounds."""

    def extend(
        self, law: Law, q: Mapping[str, Floats], at: Values, frame: pd.DataFrame, seed: int
    ) -> tuple[Law, dict[str, Floats]]:
        """The law and its draws, with parameters that only rows beyond the training rows need.

        By default these are steps of random walks: the law gets knots as far as the rows reach,
        with steps from their prior. A knot has the same steps for all rows to which it matters. A
        discrepancy with other such parameters draws them here, in the same way for the same `seed`.

        Parameters
        ----------
        law : Law
            From `apply`.
        q : mapping of str to array, shape (draws, 1)
            Draws of the reference coordinates; steps have shape (draws, 1, knots).
        at : mapping
            The reference point.
        frame : DataFrame
            Rows to be forecast.
        seed : int
        """
        drawn, knots = dict(q), law.knots(law.covariates(frame), at)
        for walk in law.walks:
            further = knots[walk.steps]
            had, steps = walk.knots or further, q[walk.steps]
            sides = {
                "above": (steps[..., : had.above], further.above),
                "below": (steps[..., had.above :], further.below),
            }
            longer = [
                _longer(own, count, f"{walk.steps} {side}", seed)
                for side, (own, count) in sides.items()
            ]
            drawn[walk.steps] = np.concatenate(longer, axis=-1)
        return law.with_knots(knots), drawn


def _longer(steps: Floats, count: int, name: str, seed: int) -> Floats:
    """The steps extended to `count` knots by draws from the prior; each knot has its own seed."""
    places = [zlib.crc32(f"{name} {j}".encode()) for j in range(steps.shape[-1], count)]
    size = len(steps), 1, 1
    new = [np.random.default_rng([place, seed]).standard_normal(size) for place in places]
    return np.concatenate([steps, *new], axis=-1)


DISCREPANCIES: Registry[Discrepancy] = Registry("discrepancy", Discrepancy)


@DISCREPANCIES.register
@dataclass(frozen=True)
class NoDiscrepancy(Discrepancy):
    """No deviation: the law is taken as exact."""

    kind: ClassVar[str] = "none"
    words: ClassVar[str] = "no discrepancy"
    size_effects: ClassVar[bool] = False

    def apply(self, law: Law) -> Law:
        """The law itself."""
        return law
