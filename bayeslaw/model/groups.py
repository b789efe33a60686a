"""Groups of rows fitted together: the law's coefficients of each around common ones.

A group is a way of training, such as an optimizer or a mixture of data. `Grouped` is the
discrepancy of the fit of all groups at once; `OfGroup` is what one group's posterior has of it.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats
from bayeslaw.common.formatting import made, stated
from bayeslaw.laws.deviations import (
    WHOLE,
    Deviation,
    Knots,
    Polynomial,
    Spread,
    Walk,
    mark,
)
from bayeslaw.laws.law import Law
from bayeslaw.laws.priors import Prior
from bayeslaw.laws.symbols import Values, column_of, symbol_of
from bayeslaw.model.discrepancy import DISCREPANCIES, Discrepancy, NoDiscrepancy
from bayeslaw.tables.validation import label_texts

GROUPS_SCALE = Prior("HalfNormal", sigma=1.0)
"""Prior of each scale of the groups' coefficients, over `LEVEL`, `COEFFICIENT` or `EXPONENT`."""
LEVEL = 0.1
COEFFICIENT = 0.2
EXPONENT = 0.04
"""Standard deviations over groups at scale 1: of the log loss; of the log of a term; of the change
of a term's exponent, which is per e-fold."""
OWN_WALK = 0.3
OWN_SPACING = 0.25
"""Standard deviation of the steps of a group's own walks over that of the common ones, and the
distance of their knots. They start where the rows end, so the gap is less certain the farther it
is extrapolated, and no bend within the rows is continued. See docs/howto/recipes.md."""
OWN = "group_"
"""Beginning of the names of a group's coefficients."""
BEND = 0.3
"""Size of the groups' curvatures and products of log N and log D, beside that of their exponents.

Without them (0) a gap that bends is continued as a straight line. See docs/howto/recipes.md.
"""


class Part(NamedTuple):
    """Coefficients that the groups have with one scale."""

    name: str  # of the scale, after ``groups_``
    sd: float  # at scale 1
    polynomial: Polynomial
    sizes: tuple[float, ...]  # of the coefficients, beside each other


def parts(law: Law) -> Iterator[Part]:
    """What of a law each group has of its own."""
    yield Part("L", LEVEL, Polynomial(WHOLE, {f"{OWN}L": ()}), (1.0,))
    logs = [c for c in ("params", "tokens") if c in law.columns]
    for term in law.terms:
        name = term.coefficient
        yield Part(name, COEFFICIENT, Polynomial(name, {f"{OWN}{name}": ()}), (1.0,))
        along: dict[str, tuple[str, ...]] = {}
        sizes = []
        for covariate in term.covariates:
            if not _has_logarithm(law, covariate):
                continue
            along[f"{OWN}{name}{symbol_of(covariate)}"] = (covariate,)
            sizes.append(1.0)
        lead = term.covariates[0]
        if (lead,) in along.values():
            symbol = symbol_of(lead)
            along[f"{OWN}{name}{symbol}{symbol}"] = (lead, lead)
            sizes.append(BEND)
        if len(logs) > 1:
            along[f"{OWN}{name}ND"] = (logs[0], logs[1])
            sizes.append(BEND)
        if along:
            of_term = Polynomial(name, along)
            yield Part(f"{name}_slope", EXPONENT, of_term, tuple(sizes))


def own_walks(law: Law, place: int) -> list[Walk]:
    """Walks of exponents along their own covariate that a group has beyond the rows.

    Steps beyond the rows are drawn by the names of the walks, which tell the `place` of the group.
    """
    walks = []
    for walk in law.walks:
        if not walk.times:
            steps = f"{OWN}{walk.steps}_{place}"
            sd = OWN_WALK * walk.sd
            walks.append(replace(walk, steps=steps, sd=sd, spacing=OWN_SPACING))
    return walks


def _has_logarithm(law: Law, covariate: str) -> bool:
    """Whether an exponent of a covariate is a slope in its logarithm, on a table of these rows."""
    if column_of(covariate) == "replay":
        return False
    declared = law.declared.get(covariate)
    return declared is None or declared.logged


@dataclass(frozen=True)
class _AroundCommon(Discrepancy):
    """What random effects beside it are, the common discrepancy says."""

    @property
    @abstractmethod
    def shared(self) -> Discrepancy:
        """The discrepancy that all groups have in common."""

    @property
    def size_effects(self) -> bool:  # type: ignore[override]
        return self.shared.size_effects

    @property
    def effect_priors(self) -> Mapping[str, Prior]:  # type: ignore[override]
        return self.shared.effect_priors


@dataclass(frozen=True)
class Grouped(_AroundCommon):
    """A discrepancy that all groups have in common, and coefficients of each group of its own.

    Parameters
    ----------
    common : Discrepancy
        That of the law.
    by : str
        Column of the groups' names.
    groups : tuple of str
    """

    common: Discrepancy = field(default_factory=NoDiscrepancy)
    by: str = ""
    groups: tuple[str, ...] = ()
    kind: ClassVar[str] = "grouped"

    @property
    def shared(self) -> Discrepancy:
        return self.common

    def apply(self, law: Law) -> Law:
        law = self.common.apply(law)
        deviations: list[Deviation] = [*law.deviations]
        priors = {}
        for part in parts(law):
            scale = f"groups_{part.name}"
            priors[scale] = GROUPS_SCALE
            spread = Spread(
                part.polynomial,
                part.sizes,
                self.groups,
                f"{scale}_steps",
                scale,
                part.sd,
            )
            deviations.append(spread)
        return law.deviating(deviations, priors)

    def marks(self, frame: pd.DataFrame) -> dict[str, Floats]:
        names = label_texts(frame[self.by]).to_numpy(str)
        return {mark(group): (names == group) * 1.0 for group in self.groups}

    def coefficients(
        self, law: Law, group: str, draws: Mapping[str, Floats]
    ) -> dict[str, Floats]:
        """A group's coefficients by name, from draws of scales and steps of the joint fit.

        Scales have shape (chains, draws), steps (chains, draws, columns).
        """
        place = self.groups.index(group)
        own = {}
        for spread in law.deviations:
            if not isinstance(spread, Spread):
                continue
            names = spread.polynomial.parameters
            first = place * len(names)
            for k, name in enumerate(names):
                steps = draws[spread.steps][..., first + k]
                size = spread.sd * spread.sizes[k]
                own[name] = size * draws[spread.scale] * steps
        return own


@dataclass(frozen=True)
class OfGroup(_AroundCommon):
    """What the posterior of one group has of a fit of several: the common part, and its own.

    Parameters
    ----------
    group : str
    place : int
        Among all groups.
    common : mapping
        The common discrepancy, as `bayeslaw.common.formatting.stated` gives it.
    knots : mapping of str to tuple
        Spacing, and number of knots above and below, of each walk of the joint fit.
    """

    group: str = ""
    place: int = 0
    common: Mapping[str, Any] = field(default_factory=dict)
    knots: Mapping[str, tuple[float, int, int]] = field(default_factory=dict)
    kind: ClassVar[str] = "of_group"
    words: ClassVar[str] = "common and own"

    @property
    def shared(self) -> Discrepancy:
        return made(Discrepancy, DISCREPANCIES, self.common)

    @classmethod
    def of(cls, grouped: Grouped, group: str, law: Law, x: Values, at: Values) -> Self:
        """That of a group; `law` is that of the joint fit, `x` are the covariates of all rows."""
        place = grouped.groups.index(group)
        knots = {}
        for walk in law.walks:
            assert walk.knots
            knots[walk.steps] = walk.knots
        for walk in own_walks(law, place):
            u = np.asarray(x[walk.along] - at[walk.along])
            if walk.over:
                u = u - np.asarray(x[walk.over] - at[walk.over])
            reaching = Knots(walk.spacing).reaching(float(u.min()), float(u.max()))
            knots[walk.steps] = reaching
        stored = {steps: (k.spacing, k.above, k.below) for steps, k in knots.items()}
        common = stated(Discrepancy, DISCREPANCIES, grouped.common)
        return cls(group, place, common, stored)

    def apply(self, law: Law) -> Law:
        law = self.shared.apply(law)
        deviations: list[Deviation] = []
        for deviation in [*law.deviations, *own_walks(law, self.place)]:
            if isinstance(deviation, Walk) and deviation.steps in self.knots:
                knots = Knots(*self.knots[deviation.steps])
                deviation = replace(deviation, knots=knots)
            deviations.append(deviation)
        priors = {}
        for part in parts(law):
            deviations.append(part.polynomial)
            for name, size in zip(part.polynomial.parameters, part.sizes, strict=True):
                priors[name] = Prior("Normal", mu=0, sigma=part.sd * size)
        return law.deviating(deviations, priors)
