"""The discrepancy of laws of adaptation: a polynomial of the whole loss, and a walk in log(D/N)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import ClassVar

from bayeslaw.laws.deviations import START, WHOLE, Deviation, Polynomial, Walk
from bayeslaw.laws.law import Law
from bayeslaw.laws.priors import Prior
from bayeslaw.model.discrepancies import DISCREPANCIES, Discrepancy

ALONG = {"params": "N", "ptpp": "P", "tokens": "D", "mixed": "r"}
"""Covariates of the polynomial and their symbols in the names of its coefficients."""
WALK_SCALE = Prior("LogNormal", median=1, sigma=0.3)
"""Prior of the scale of the walk."""


@DISCREPANCIES.register
@dataclass(frozen=True)
class Adaptation(Discrepancy):
    """A polynomial added to the log of the whole loss, and a walk in the terms led by D.

    In a law that starts from the base's loss, the walk is in the share of the way still to go.

    The polynomial is of degree 2 in log N, log P, log D and log(r + .01), without the square of
    log D. The exponent of D changes along log(D/N) by a random walk, because adaptation goes
    through phases at the same tokens per parameter for all sizes.

    Parameters
    ----------
    scale : float
        Standard deviation of the coefficient of a product x y, per squared e-fold.
    square, replay : float
        The same of x^2 / 2, and of the square of the log of replay.
    walk : float
        Standard deviation of the change of the exponent of D over an e-fold of D / N.
    spacing : float
        Least distance of the knots, in e-folds.
    """

    scale: float = 0.02
    square: float = 0.02
    replay: float = 0.04
    walk: float = 0.1
    spacing: float = 0.7
    kind: ClassVar[str] = "adaptation"
    words: ClassVar[str] = "polynomial and walk along D/N"
    effect_priors: ClassVar[Mapping[str, Prior]] = {
        "tau_size": Prior("LogNormal", median=0.006, sigma=0.3),
        "tau_base": Prior("LogNormal", median=0.005, sigma=0.6),
        "tau_run": Prior("LogNormal", median=0.004, sigma=0.6),
    }

    def apply(self, law: Law) -> Law:
        """The law with the polynomial and the walk."""
        known = [c for c in ALONG if {"mixed": "replay"}.get(c, c) in law.columns]
        pairs = [p for p in combinations_with_replacement(known, 2) if p != ("tokens", "tokens")]
        polynomial = Polynomial(WHOLE, {f"poly_{''.join(ALONG[c] for c in p)}": p for p in pairs})
        squares = {"mixed": self.replay, "params": self.square, "ptpp": self.square}
        priors = {
            name: Prior("Normal", mu=0, sigma=squares[one] if one == other else self.scale)
            for name, (one, other) in polynomial.coefficients.items()
        }
        over, departure = "params" * ("params" in law.columns), law.departure

        def walk(of: str) -> Walk:
            steps, along = f"walk_{of}", "tokens"
            return Walk(of, steps, "walk_scale", along, "", self.walk, self.spacing, over=over)

        led = [t.coefficient for t in law.terms if t.curvable and t.covariates[0] == "tokens"]
        walking = [walk(of) for of in (*led, *([START] if departure else []))]
        deviations: tuple[Deviation, ...] = (polynomial, *walking)
        walks = {"walk_scale": WALK_SCALE} if self.suits(law) else {}
        return replace(
            law,
            deviations=deviations,
            priors={**law.priors, **priors, **walks},
            bounds={
                **law.bounds,
                **dict.fromkeys(priors, (-math.inf, math.inf)),
                **dict.fromkeys(walks, (0.0, math.inf)),
            },
        )

    def suits(self, law: Law) -> bool:
        """Whether a term of the law is led by D, or the loss departs from a base's."""
        led = (t.curvable and t.covariates[0] == "tokens" for t in law.terms)
        return law.departure is not None or any(led)
