"""The discrepancy of walking exponents: random walks along N and D, and coupled terms."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from bayeslaw.common.errors import LawError, argument
from bayeslaw.laws.deviations import Deviation, Polynomial, Walk
from bayeslaw.laws.law import Law
from bayeslaw.laws.parts import KAPPA
from bayeslaw.laws.powers import Power
from bayeslaw.laws.priors import Prior
from bayeslaw.laws.terms import SYMBOLS
from bayeslaw.model.discrepancies import DISCREPANCIES, Discrepancy

CURVATURE = Prior("Normal", mu=0, sigma=0.1)
"""Prior of the cross curvature, per squared e-fold."""
WALK_SCALE = Prior("LogNormal", median=0.7, sigma=0.8)
"""Prior of the scale that all walks of a law have in common."""
COUPLING_PRIOR = Prior("LogNormal", median=1, sigma=0.5)
"""Prior of kappa."""


@DISCREPANCIES.register
@dataclass(frozen=True)
class WalkingExponents(Discrepancy):
    """Exponents that follow random walks along N and D, and coupled terms; for laws in N and D.

    Each exponent changes with log N and log D by integrated random walks. At the reference point it
    has the law's value. The walks continue beyond the rows, so bands widen there. The scale of the
    walks is a parameter. The terms enter as ``(A-term^(1/kappa) + B-term^(1/kappa))^kappa``.

    Parameters
    ----------
    spread, crossed : float
        Standard deviation of an exponent's change over an e-fold at scale 1: along the term's own
        covariate, and along the other.
    spacing : float
        Least distance of the knots, in e-folds. It is larger where a walk would otherwise have more
        knots than a quarter of the rows.
    """

    spread: float = 0.1
    crossed: float = 0.05
    spacing: float = 0.7
    kind: ClassVar[str] = "walk"
    words: ClassVar[str] = "walking exponents"

    def apply(self, law: Law) -> Law:
        """The law with walks, a cross curvature and a coupling.

        Raises
        ------
        LawError
            If the law depends on more than N and D, or a term is not a power of one of them.
        """
        leads = {term.coefficient: term.covariates for term in law.terms}
        if not self.suits(law):
            raise LawError(
                f"law {law.name}: walking exponents are for a power of N and one of D; use "
                f"{argument('discrepancy', 'curvature')}."
            )
        deviations: list[Deviation] = []
        for name, (lead,) in leads.items():
            other = "tokens" if lead == "params" else "params"
            walks = (("", lead, self.spread), (lead, other, self.crossed))
            for times, along, sd in walks:
                steps = f"walk_{name}{SYMBOLS[along]}"
                walk = Walk(name, steps, "walk_scale", along, times, sd, self.spacing)
                deviations.append(walk)
            if lead == "tokens":
                deviations.append(Polynomial(name, {f"cross_{name}N": ("params", "tokens")}))
        crosses = {n: CURVATURE for d in deviations for n in d.parameters if n != "walk_scale"}
        coupling = {} if law.coupled else {KAPPA: COUPLING_PRIOR}
        return replace(
            law,
            deviations=tuple(deviations),
            priors={**law.priors, "walk_scale": WALK_SCALE, **crosses, **coupling},
            bounds={
                **law.bounds,
                **dict.fromkeys(crosses, (-math.inf, math.inf)),
                **dict.fromkeys(["walk_scale", *coupling], (0.0, math.inf)),
            },
            coupled=law.coupled or tuple(leads),
            coupling_added=not law.coupled,
        )

    def suits(self, law: Law) -> bool:
        """Whether the law is a power of N and one of D."""
        along = sorted(term.covariates for term in law.terms)
        return along == [("params",), ("tokens",)] and all(type(t) is Power for t in law.terms)
