"""The discrepancy of laws of adaptation: curvature along N, P and r, and walks along D."""

from dataclasses import dataclass, replace
from typing import ClassVar

from bayeslaw.laws.law import Law
from bayeslaw.laws.modifiers import Walk
from bayeslaw.laws.priors import Prior
from bayeslaw.laws.terms import SYMBOLS, Term
from bayeslaw.model.curvature import Curvature, depends_on_replay
from bayeslaw.model.discrepancies import DISCREPANCIES

SIZES = Prior("LogNormal", median=0.006, sigma=0.5)
"""Prior of the standard deviation of the random effects of size."""


@DISCREPANCIES.register
@dataclass(frozen=True)
class Adaptation(Curvature):
    """Curvature with wider priors, and random walks along D; for laws with a power of D.

    Tables of adaptation have a few values of N, P and r, which do not identify the scale of the
    misfit along these covariates, so priors fix it. They have many values of D, so the exponents of
    N and D follow random walks along D whose scale is a parameter. The term in P may also depend on
    N, and tilts on N, P and D.

    Parameters
    ----------
    phi : float
        Standard deviation of the exponent of N in the term in P.
    replay : float
        Standard deviation of the change of a tilt per e-fold of N or P, or of D in a term in D.
    walk, walk_crossed : float
        Standard deviation of the change, over an e-fold of D at scale 1, of the exponent of D and
        of that of N; 0 leaves a walk out.
    spacing : float
        Least distance of the knots, in e-folds.
    """

    crossed: float = 0.2
    phi: float = 0.1
    replay: float = 0.15
    walk: float = 0.1
    walk_crossed: float = 0.1
    spacing: float = 0.7
    kind: ClassVar[str] = "adaptation"
    words: ClassVar[str] = "curvature and walks along D"

    def apply(self, law: Law) -> Law:
        """The law with curvatures, walks, and a wider prior for random effects of size."""
        return super().apply(replace(law, priors={**law.priors, "tau_size": SIZES}))

    def suits(self, law: Law) -> bool:
        """Whether a term of the law is led by D."""
        return any(term.plain.covariates[0] == "tokens" for term in law.terms)

    def coefficients(self, law: Law, term: Term) -> dict[str, tuple[tuple[str, ...], float]]:
        """Coefficients of `Curvature`, and those with which N, P and D change other terms."""
        found, name = super().coefficients(law, term), term.coefficient
        if self.walks(law, term) and term.covariates[0] == "tokens":
            del found[f"curve_{name}"]  # the walk along D takes its place
        if term.covariates[0] == "ptpp" and "params" in set(law.columns) - {*term.covariates}:
            found[f"phi_{name}"] = ("params",), self.phi
        if depends_on_replay(term):
            for other in ("params", "ptpp", "tokens"):
                if other in law.columns and (other != "tokens" or "tokens" in term.covariates):
                    found[f"tilt_{name}r{SYMBOLS[other]}"] = ("share", other), self.replay
        return found

    def walks(self, law: Law, term: Term) -> list[Walk]:
        """Walks of the exponents of D and of N along D."""
        along = {"tokens": ("", self.walk), "params": ("params", self.walk_crossed)}
        lead = term.covariates[0]
        times, sd = along.get(lead, ("", 0.0))
        if not sd or "tokens" not in law.columns:
            return []
        steps = f"walk_{term.coefficient}D"
        return [Walk(steps, "walk_scale", "tokens", times, sd, self.spacing)]
