"""The curvature discrepancy: quadratics in the logs of a law's powers."""

import math
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import ClassVar

from bayeslaw.laws.deviations import WHOLE, Deviation, Polynomial
from bayeslaw.laws.law import Law
from bayeslaw.laws.powers import Power
from bayeslaw.laws.priors import Prior
from bayeslaw.laws.terms import SYMBOLS, Term
from bayeslaw.model.discrepancies import DISCREPANCIES, Discrepancy

DRIFTS = {
    f"drift_{''.join(SYMBOLS[c] for c in along)}": along
    for order in (2, 3)
    for along in combinations_with_replacement(("params", "ptpp"), order)
}
"""Covariates of each coefficient of the whole loss's polynomial."""
CROSSED = {"tokens": ("params", "ptpp"), "ptpp": ("params",)}
"""Covariates that may change a term's local exponent, by the term's leading covariate."""


@DISCREPANCIES.register
@dataclass(frozen=True)
class Curvature(Discrepancy):
    """Uncertain curvature in the log of every power, along and across its covariates.

    Every coefficient has a Normal prior with mean 0. With the default scales, over a factor of ten
    in a covariate a local exponent of .3 may change by most of itself. A law with a pre-training
    budget also has a polynomial of degree 3 in log N and log P added to the log of the whole loss,
    because no curvature of ``F / P^eta`` lets losses rise, level off faster than F allows, or do so
    differently for each N.

    Powers of r and of r + epsilon have a tilt instead, a factor ``exp(c r)``. The paper's first
    such power can only fall towards r = 0 and its second only rise, and neither falls like
    ``1 - r``, the fraction of target text.

    Parameters
    ----------
    own, crossed : float
        Standard deviation of a curvature along the covariate of a term's leading exponent, and of
        the change of that exponent along another covariate, per squared e-fold.
    tilt : float
        Standard deviation of the change of the log of a term from r = 0 to r = 1.
    drift : float
        Standard deviation of each coefficient of the whole loss's polynomial.
    """

    own: float = 0.1
    crossed: float = 0.1
    tilt: float = 0.5
    drift: float = 0.01
    kind: ClassVar[str] = "curvature"
    words: ClassVar[str] = "curvature"

    def apply(self, law: Law) -> Law:
        """The law with curvatures, tilts and the polynomial of the whole loss."""
        deviations: list[Deviation] = []
        added: dict[str, float] = {}
        for term in law.terms:
            if not term.curvable:
                continue
            along = self.coefficients(law, term)
            added |= {name: sd for name, (_, sd) in along.items()}
            columns = {name: covariates for name, (covariates, _) in along.items()}
            deviations.append(Polynomial(term.coefficient, columns))
        if set(law.columns) >= {"params", "ptpp"}:
            deviations.append(Polynomial(WHOLE, DRIFTS))
            added |= dict.fromkeys(DRIFTS, self.drift)
        priors = {name: Prior("Normal", mu=0, sigma=sd) for name, sd in added.items()}
        return replace(
            law,
            deviations=tuple(deviations),
            priors={**law.priors, **priors},
            bounds={**law.bounds, **dict.fromkeys(priors, (-math.inf, math.inf))},
        )

    def coefficients(self, law: Law, term: Term) -> dict[str, tuple[tuple[str, ...], float]]:
        """Covariates and scale of each coefficient in the log of a term, by name."""
        lead, name = term.covariates[0], term.coefficient
        found: dict[str, tuple[tuple[str, ...], float]] = {}
        if lead != "barrier":
            found[f"curve_{name}"] = (lead, lead), self.own
        for other in CROSSED.get(lead, ()):
            if other in law.columns:
                found[f"cross_{name}{SYMBOLS[other]}"] = (other, lead), self.crossed
        if lead == "barrier" or rise_in_replay(term):
            found[f"tilt_{name}r"] = ("share",), self.tilt
        return found


def rise_in_replay(term: Term) -> str:
    """Exponent of r in a term that rises with it, or ''."""
    return term.up.get("replay", "") if isinstance(term, Power) else ""
