"""The discrepancy of a law: how far its terms, and its whole loss, may bend."""

import math
from dataclasses import replace
from itertools import combinations_with_replacement

from bayeslaw.common.errors import LawError, unknown
from bayeslaw.laws.law import Law
from bayeslaw.laws.priors import Prior
from bayeslaw.laws.terms import SYMBOLS, Curved, Term

DISCREPANCIES = ("none", "curvature")
CURVATURE = Prior.parse("Normal(mu=0, sigma=0.1)")
"""Prior of a discrepancy's curvature, per squared e-fold."""
TILT = Prior.parse("Normal(mu=0, sigma=0.5)")
"""Prior of a tilt: how much the log of a term changes over all replay ratios, beside its power."""
DRIFT = Prior.parse("Normal(mu=0, sigma=0.01)")
"""Prior of the curvature of the whole loss, from model to model and stage to stage."""
DRIFTS = {
    f"drift_{''.join(SYMBOLS[c] for c in along)}": along
    for order in (2, 3)
    for along in combinations_with_replacement(("params", "ptpp"), order)
}
"""Covariates along which the whole loss of a law with a pre-training budget may bend."""
CROSSED = {"tokens": ("params", "ptpp"), "ptpp": ("params",)}
"""Covariates that may change a term's local exponent, by the term's leading covariate."""


def with_discrepancy(law: Law, discrepancy: str) -> Law:
    """The law with its discrepancy; raise `LawError` if there is none of that name."""
    if discrepancy not in DISCREPANCIES:
        raise LawError(unknown("discrepancy", discrepancy, DISCREPANCIES))
    return curved(law) if discrepancy == "curvature" else law


def curved(law: Law) -> Law:
    """The law with uncertain curvature in every power, along and across its covariates.

    Each curvature has a Normal(0, .1) prior: over a factor of ten in a covariate a local
    exponent of .3 may drift by most of itself. No bend of ``F / P^eta`` lets losses level off
    faster than F allows, nor rise, nor in its own way for each N; so the log of the whole loss
    of a law with a pre-training budget may bend by a polynomial of degree 3 in log N and log P,
    each coefficient Normal(0, .01).

    Powers of r and of r + epsilon are tilted instead, by ``exp(c r)`` with c Normal(0, .5): the
    paper's first can only fall towards r = 0 and its second only rise, and neither in the way
    of ``1 - r``, the share that the target keeps.
    """
    terms: list[Term] = []
    curves: dict[str, Prior] = {}
    for term in law.terms:
        if term.plain.stiff:
            terms.append(term)
            continue
        lead = term.covariates[0]
        bends: dict[str, tuple[str, ...]] = {}
        if lead != "barrier":
            bends[f"curve_{term.coefficient}"] = lead, lead
        for other in CROSSED.get(lead, ()):
            if other in law.columns:
                bends[f"cross_{term.coefficient}{SYMBOLS[other]}"] = other, lead
        curves |= dict.fromkeys(bends, CURVATURE)
        if lead == "barrier" or "replay" in term.plain.up:
            tilt = f"tilt_{term.coefficient}r"
            bends[tilt], curves[tilt] = ("share",), TILT
        terms.append(Curved(term.plain, bends))
    drift = DRIFTS if set(law.columns) >= {"params", "ptpp"} else {}
    curves |= dict.fromkeys(drift, DRIFT)
    free = dict.fromkeys(curves, (-math.inf, math.inf))
    priors, bounds = {**law.priors, **curves}, {**law.bounds, **free}
    return replace(law, terms=tuple(terms), priors=priors, bounds=bounds, drift=drift)
