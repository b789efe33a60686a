"""Discrepancies: how the true loss may deviate from a law.

Real losses are power laws only locally. A discrepancy adds deviations of the log loss, by a term or
as a whole (`bayeslaw.laws.deviations`).
"""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement
from typing import ClassVar

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats
from bayeslaw.common.defaults import AUTO
from bayeslaw.common.errors import LawError, argument
from bayeslaw.common.formatting import kind_of
from bayeslaw.laws.departure import Departure
from bayeslaw.laws.deviations import CORE, START, WHOLE, Deviation, Polynomial, Walk
from bayeslaw.laws.forms import with_knots
from bayeslaw.laws.law import Law
from bayeslaw.laws.priors import Prior
from bayeslaw.laws.steps import KAPPA, Coupling
from bayeslaw.laws.symbols import SYMBOLS, Values, column_of, symbol_of
from bayeslaw.tables.covariates import FLOPS


@dataclass(frozen=True)
class Discrepancy(ABC):
    """A deviation of the true loss from a law; subclasses are frozen dataclasses.

    Parameters
    ----------
    exact : float
        Probability that the law is exact after all, from 0 to less than 1. The rows do not change
        it: such a share of the draws are of a fit of the law alone, with its random effects.
    """

    exact: float = field(default=0.0, kw_only=True)

    kind: ClassVar[str] = ""  #: Its name.
    words: ClassVar[str] = ""  #: What it is, for reports.
    #: Whether ``effects="auto"`` adds those of model size.
    size_effects: ClassVar[bool] = True
    #: Priors of the standard deviations of random effects beside it, where the law states none.
    effect_priors: ClassVar[Mapping[str, Prior]] = {}

    def __post_init__(self) -> None:
        if not 0 <= self.exact < 1:
            given = f"discrepancy {self.kind}: exact={self.exact:g}"
            raise LawError(f"{given} is not in [0, 1).")

    @abstractmethod
    def apply(self, law: Law) -> Law:
        """The law with the discrepancy's parameters, their priors and bounds."""

    def marks(self, frame: pd.DataFrame) -> dict[str, Floats]:
        """Covariates of training rows beside those of the law, each of shape (rows,)."""
        return {}

    def extend(
        self, law: Law, q: Mapping[str, Floats], at: Values, x: Values, seed: int
    ) -> tuple[Law, dict[str, Floats]]:
        """The law and its draws, with parameters that only rows beyond the training rows need.

        By default these are steps of random walks: the law gets knots as far as the rows reach,
        with steps from their prior. A knot has the same steps for all rows to which it matters. A
        discrepancy with other such parameters draws them here, in the same way for the same `seed`.
        Draws `q` have shape (draws, 1), steps (draws, 1, knots); `at` is the reference point, `x`
        are the covariates of the rows.
        """
        drawn = dict(q)
        longer = with_knots(law, x, at)
        for walk, reaching in zip(law.walks, longer.walks, strict=True):
            assert reaching.knots
            fitted = walk.knots or reaching.knots
            steps = q[walk.steps]
            sides = {
                "above": (steps[..., : fitted.above], reaching.knots.above),
                "below": (steps[..., fitted.above :], reaching.knots.below),
            }
            extended = [
                _longer(of_side, count, f"{walk.steps} {side}", seed)
                for side, (of_side, count) in sides.items()
            ]
            drawn[walk.steps] = np.concatenate(extended, axis=-1)
        return longer, drawn


def _longer(steps: Floats, count: int, name: str, seed: int) -> Floats:
    """The steps extended to `count` knots by draws from the prior.

    Each knot has a generator of its own, so its step is the same however far the rows reach.
    """
    places = [zlib.crc32(f"{name} {j}".encode()) for j in range(steps.shape[-1], count)]
    size = len(steps), 1, 1
    new = [
        np.random.default_rng([place, seed]).standard_normal(size) for place in places
    ]
    return np.concatenate([steps, *new], axis=-1)


@dataclass(frozen=True)
class NoDiscrepancy(Discrepancy):
    """No deviation: the law is taken as exact."""

    kind: ClassVar[str] = "none"
    words: ClassVar[str] = "no discrepancy"
    size_effects: ClassVar[bool] = False

    def apply(self, law: Law) -> Law:
        return law


def _drifts(law: Law) -> dict[str, tuple[str, ...]]:
    """Covariates of each coefficient of the whole loss's polynomial."""
    beside = [c for c in ("ptpp", *_own(law)) if c in law.columns]
    if not beside or "params" not in law.columns:
        return {}
    return {
        f"drift_{''.join(map(symbol_of, along))}": along
        for order in (2, 3)
        for along in combinations_with_replacement(("params", *beside), order)
    }


def _own(law: Law) -> list[str]:
    """Covariates that the law declares, as far as they have a logarithm."""
    return [
        name for name, row in law.declared.items() if row.logged and name in law.columns
    ]


CROSSED = {"tokens": ("params", "ptpp"), "ptpp": ("params",)}
"""Covariates that may change a term's local exponent, by the term's leading covariate."""


@dataclass(frozen=True)
class Curvature(Discrepancy):
    """Uncertain curvature in the log of every power, along and across its covariates.

    Every coefficient has a Normal prior with mean 0. With the default scales, over a factor of ten
    in a covariate a local exponent of .3 may change by most of itself. A law with a pre-training
    budget also has a polynomial of degree 3 in log N and log P added to the log of the whole loss
    (so does one with a logged covariate of its own, in its log),
    because no curvature of ``F / P^eta`` lets losses rise, level off faster than F allows, or do so
    differently for each N.

    Powers of r and of r + epsilon have a tilt instead, a factor ``exp(c r)``. The paper's first
    such power can only fall towards r = 0 and its second only rise, and neither falls like
    ``1 - r``, the fraction of target text.
    """

    # Standard deviations: of a curvature along the covariate of a term's leading exponent, and of
    # the change of that exponent along another covariate, per squared e-fold; of the change of the
    # log of a term from r = 0 to r = 1; of each coefficient of the whole loss's polynomial.
    own: float = 0.1
    crossed: float = 0.1
    tilt: float = 0.5
    drift: float = 0.01
    kind: ClassVar[str] = "curvature"
    words: ClassVar[str] = "curvature"

    def apply(self, law: Law) -> Law:
        deviations: list[Deviation] = []
        scales: dict[str, float] = {}
        for term in law.terms:
            lead = term.covariates[0]
            name = term.coefficient
            # Few replay ratios distinguish the curvature of an exponential in r from its rate.
            if lead == "replay" and not term.power_of(lead):
                continue
            along: dict[str, tuple[str, ...]] = {}
            # A square of log (r + epsilon) would be huge where there is no replay.
            if lead != "barrier":
                along[f"curve_{name}"] = (lead, lead)
                scales[f"curve_{name}"] = self.own
            for other in (
                *CROSSED.get(lead, ()),
                *(_own(law) if lead == "tokens" else ()),
            ):
                if other in law.columns:
                    cross = f"cross_{name}{symbol_of(other)}"
                    along[cross] = (other, lead)
                    scales[cross] = self.crossed
            if lead == "barrier" or term.power_along("replay")[1] > 0:
                along[f"tilt_{name}r"] = ("share",)
                scales[f"tilt_{name}r"] = self.tilt
            deviations.append(Polynomial(name, along))
        if drifts := _drifts(law):
            deviations.append(Polynomial(WHOLE, drifts))
            scales |= dict.fromkeys(drifts, self.drift)
        priors = {name: Prior("Normal", mu=0, sigma=sd) for name, sd in scales.items()}
        return law.deviating(deviations, priors)


CURVATURE = Prior("Normal", mu=0, sigma=0.1)
"""Prior of the cross curvature of walking exponents, per squared e-fold."""
# A median of .3: .79 times the CRPS on Delphi, 1.01 on five others (docs/development-notes.md).
WALK_SCALE = Prior("LogNormal", median=0.7, sigma=0.8)
"""Prior of the scale that all walks of a law with walking exponents have in common."""
# A sigma of 1 had .82 times the CRPS on Delphi, but 1.24 on Gadre and 1.33 on OLMo.
COUPLING_PRIOR = Prior("LogNormal", median=1, sigma=0.5)
"""Prior of kappa."""
# Along a ladder C grows as N^2: an exponent of C is half that of N, an e-fold of C half one of N.
COMPUTE = 0.5**1.5
"""Standard deviation of a change of an exponent over an e-fold of compute, over that along N."""


@dataclass(frozen=True)
class WalkingExponents(Discrepancy):
    """Exponents that follow random walks along N and D, and coupled terms; for laws in N and D.

    Each exponent changes with log N and log D by integrated random walks. At the reference point it
    has the law's value. The walks continue beyond the rows, so bands widen there. The scale of the
    walks is a parameter. The terms enter as ``(A-term^(1/kappa) + B-term^(1/kappa))^kappa``.
    """

    # Standard deviation of an exponent's change over an e-fold at scale 1, along the term's own
    # covariate and the other; least distance of the knots, in e-folds.
    spread: float = 0.1
    crossed: float = 0.05
    spacing: float = 0.7
    kind: ClassVar[str] = "walk"
    words: ClassVar[str] = "walking exponents"

    def apply(self, law: Law) -> Law:
        if not self.suits(law):
            raise LawError(
                f"law {law.name}: walking exponents are for a power of N and one of D; use "
                f"{argument('discrepancy', 'curvature')}."
            )
        deviations: list[Deviation] = []
        priors = {"walk_scale": WALK_SCALE}
        leads = {term.coefficient: term.covariates[0] for term in law.terms}
        for name, lead in leads.items():
            if lead == FLOPS:
                sd = COMPUTE * self.spread
                far = 2 * self.spacing
                walk = Walk(name, f"walk_{name}", "walk_scale", lead, "", sd, far)
                deviations.append(walk)
                continue
            other = "tokens" if lead == "params" else "params"
            deviations += [
                Walk(
                    name,
                    f"walk_{name}{SYMBOLS[c]}",
                    "walk_scale",
                    c,
                    times,
                    sd,
                    self.spacing,
                )
                for c, times, sd in (
                    (lead, "", self.spread),
                    (other, lead, self.crossed),
                )
                if sd
            ]
            if lead == "tokens":
                deviations.append(
                    Polynomial(name, {f"cross_{name}N": ("params", "tokens")})
                )
                priors[f"cross_{name}N"] = CURVATURE
        if law.step(Coupling) is None and len(leads) > 1:
            covariates = {term.coefficient: term.covariates for term in law.terms}
            law = law.with_steps(Coupling(covariates, added=True))
            priors[KAPPA] = COUPLING_PRIOR
        return law.deviating(deviations, priors)

    def suits(self, law: Law) -> bool:
        """Whether the law is a power of N and one of D, one where the other is held, or of C."""
        along = sorted(term.covariates for term in law.terms)
        varying = [(c,) for c in ("params", "tokens") if c not in law.held]
        return along in (varying, [(FLOPS,)]) and all(
            term.power_of(*term.covariates) for term in law.terms
        )


POLYNOMIAL_COVARIATES = ("params", "ptpp", "tokens", "mixed")
"""Covariates of the polynomial of adaptation."""
ADAPTATION_WALK = Prior("LogNormal", median=1, sigma=0.3)
"""Prior of the scale that the walks of adaptation have in common."""


@dataclass(frozen=True)
class Adaptation(Discrepancy):
    """A polynomial and walks along both shares of the log of the whole loss; a walk along D/N.

    The polynomial is of degree 2 in log N, log P, log D, log(s + .01) and the logs of covariates
    that the law declares, without the square of log D, where s is the share of the domain's own
    text, or r in a law that does not read s. The
    slopes of the log loss along log(s + .01) and log(1 - s + .01) change by random walks, so that
    bands widen on both sides of the fitted ratios, and a minimum between them is possible.

    The exponent of D changes along log(D/N) by a random walk in the terms led by D, because
    adaptation goes through phases at the same tokens per parameter for all sizes. In a law that
    starts from the base's loss, this walk is in the share of the way still to go.
    """

    # Standard deviations: of the coefficient of a product x y, of x^2 / 2, and of the square of the
    # log of the share, per squared e-fold; of the change of the exponent of D over an e-fold of
    # D / N; of the change of the slope over an e-fold of the domain's own share, and of the rest.
    # Chosen on one table and scored on another (docs/results.md).
    scale: float = 0.02
    square: float = 0.02
    share: float = 0.04
    walk: float = 0.1
    bend: float = 0.015
    rest: float = 0.005
    spacing: float = 0.7  # least distance of the knots, in e-folds
    kind: ClassVar[str] = "adaptation"
    words: ClassVar[str] = "polynomial, walks along D/N and replay"
    products: ClassVar[str] = (
        WHOLE  # what deviates by products of log N, log P and log D
    )
    effect_priors: ClassVar[Mapping[str, Prior]] = {
        "tau_size": Prior("LogNormal", median=0.006, sigma=0.3),
        "tau_base": Prior("LogNormal", median=0.005, sigma=0.6),
        "tau_run": Prior("LogNormal", median=0.004, sigma=0.6),
    }

    def apply(self, law: Law) -> Law:
        logs = [c for c in POLYNOMIAL_COVARIATES if column_of(c) in law.columns] + _own(
            law
        )
        # The square of log D is left to the walk along D/N.
        pairs = [
            p
            for p in combinations_with_replacement(logs, 2)
            if p != ("tokens", "tokens")
        ]
        along = {f"poly_{''.join(map(symbol_of, pair))}": pair for pair in pairs}
        scales = {
            pair: self.square if len({*pair}) == 1 else self.scale for pair in pairs
        }
        scales |= {("mixed", "mixed"): self.share}
        priors = {
            n: Prior("Normal", mu=0, sigma=scales[pair]) for n, pair in along.items()
        }
        over = "params" if "params" in law.columns else ""
        walking = [*_led_by_tokens(law), *([START] if law.step(Departure) else [])]
        walks = [
            Walk(
                of,
                f"walk_{of}",
                "walk_scale",
                "tokens",
                "",
                self.walk,
                self.spacing,
                over=over,
            )
            for of in walking
        ]
        if "replay" in law.columns:
            walks += [
                # Of the same scale as the walks along D/N: with one of their own, one chain in four
                # got stuck on tinycode.
                Walk(WHOLE, f"walk_{along}", "walk_scale", along, "", sd, self.spacing)
                for along, sd in (("mixed", self.bend), ("rest", self.rest))
            ]
        priors |= {"walk_scale": ADAPTATION_WALK} if walks else {}
        in_share = {name: pair for name, pair in along.items() if "mixed" in pair}
        apart = {name: pair for name, pair in along.items() if "mixed" not in pair}
        polynomials = [Polynomial(self.products, apart), Polynomial(WHOLE, in_share)]
        return law.deviating([*polynomials, *walks], priors)

    def suits(self, law: Law) -> bool:
        """Whether a term of the law is led by D, or the loss departs from a base's."""
        return law.step(Departure) is not None or bool(_led_by_tokens(law))


@dataclass(frozen=True)
class FromBase(Adaptation):
    """`Adaptation` of a law that starts from the base's loss; default of such laws.

    Products of log N, log P and log D act on the core alone, because at D = 0 the loss is the
    base's own for every N and P. Those with the share act on the whole loss, which moves at once
    with it. As the law knows that step, they are half as large, and the walk along D/N is twice.
    """

    # Least CRPS on any three of tinycpt's and tinycode's four tables: docs/adaptation.md.
    share: float = 0.02
    walk: float = 0.2
    bend: float = 0.0075
    rest: float = 0.0025
    # What fits the rows a little better than the law often extrapolates worse: of 1/3, 2/5, 1/2
    # and 3/5, it has the least CRPS on any two of three sweeps (docs/adaptation.md).
    exact: float = field(default=1 / 3, kw_only=True)
    kind: ClassVar[str] = "from_base"
    words: ClassVar[str] = "polynomial of the core, walks along D/N and replay"
    products: ClassVar[str] = CORE

    def apply(self, law: Law) -> Law:
        if not self.suits(law):
            raise LawError(
                f"law {law.name}: {self.kind} is for a law that starts from the losses of bases, "
                f"such as transfer; use {argument('discrepancy', 'adaptation')}."
            )
        return super().apply(law)

    def suits(self, law: Law) -> bool:
        """Whether the loss departs from a base's."""
        return law.step(Departure) is not None


def _led_by_tokens(law: Law) -> list[str]:
    return [t.coefficient for t in law.terms if t.covariates[0] == "tokens"]


DISCREPANCIES: dict[str, type[Discrepancy]] = {
    kind.kind: kind
    for kind in (
        NoDiscrepancy,
        WalkingExponents,
        Adaptation,
        FromBase,
        Curvature,
    )
}


def make_discrepancy(
    discrepancy: str | Discrepancy, law: Law, *, repeated: bool = False
) -> Discrepancy:
    """A discrepancy by its kind, or the one given.

    ``"auto"`` is walking exponents for laws in N and D alone, a polynomial and walks for those that
    start from the base's loss and for others with a power led by D, and curvature for the rest.
    Where fitted data are much `repeated`, exponents walk along their own covariate alone.
    """
    if not isinstance(discrepancy, str):
        return discrepancy
    if discrepancy == AUTO:
        kinds = (WalkingExponents(), FromBase(), Adaptation())
        chosen: Discrepancy = next(
            (kind for kind in kinds if kind.suits(law)), Curvature()
        )
    else:
        chosen = kind_of(Discrepancy, DISCREPANCIES, discrepancy)()
    if repeated and isinstance(chosen, WalkingExponents):
        # What repeats are worth falls with N; an exponent of D that walks along N would take its
        # place. On data/datablations CRPS is .39 to .99 times that with crossed walks, but up to
        # 1.7 times where no data repeat more than `MANY_EPOCHS` times (docs/results.md).
        return replace(chosen, crossed=0.0)
    return chosen
