"""A term, a likelihood and a discrepancy, as a package outside bayeslaw would define them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from scipy import stats

from bayeslaw.laws.modifiers import ModifiedTerm, Modifier
from bayeslaw.laws.priors import Prior
from bayeslaw.laws.terms import Term, tex
from bayeslaw.model.discrepancies import Discrepancy
from bayeslaw.model.likelihoods import OBSERVED, Likelihood


@dataclass(frozen=True)
class Exponential(Term):
    """``S exp(-rate r)``: a term that decays exponentially with the replay ratio."""

    coefficient: str
    slope: str
    rate: str

    @property
    def covariates(self):
        return ("share",)

    @property
    def exponents(self):
        return (self.rate,)

    def shape(self, p, x, at, xp):
        return -p[self.rate] * (x["share"] - at["share"])

    def latex(self):
        return rf"{tex(self.coefficient)} e^{{-{tex(self.rate)} r}}"


@dataclass(frozen=True)
class SkewNormal(Likelihood):
    """Skew-normal noise with an estimated shape parameter."""

    kind: ClassVar[str] = "skewnormal"
    words: ClassVar[str] = "skew normal"
    parameters: ClassVar[Mapping[str, str]] = {"skew": "skew"}
    priors: ClassVar[Mapping[str, Prior]] = {"skew": Prior("Normal", mu=0, sigma=1)}

    def observe(self, mu, sigma, q, observed):
        import pymc as pm

        pm.SkewNormal(OBSERVED, mu=mu, sigma=sigma, alpha=q["skew"], observed=observed)

    def log_density(self, residual, sigma, q):
        return stats.skewnorm.logpdf(residual, q["skew"], scale=sigma)

    def sample(self, rng, shape, sigma, q):
        skew = np.broadcast_to(q["skew"], shape)
        return sigma * stats.skewnorm.rvs(skew, size=shape, random_state=rng)


@dataclass(frozen=True)
class Hinges(Modifier):
    """``sum_k step_k max(u - knot_k, 0)``, u the log of a covariate over its reference value."""

    name: str
    covariate: str
    knots: tuple[float, ...]

    @property
    def parameters(self):
        return tuple(f"{self.name}_{k}" for k in range(len(self.knots)))

    @property
    def covariates_of(self):
        return dict.fromkeys(self.parameters, (self.covariate,))

    def shape(self, p, x, at, xp):
        steps = zip(self.parameters, self.knots, strict=True)
        u = x[self.covariate] - at[self.covariate]
        return sum(p[name] * xp.maximum(u - knot, 0.0) for name, knot in steps)


@dataclass(frozen=True)
class DataWalk(Discrepancy):
    """Random walk of the data exponent along log D, with a step at each e-fold.

    Steps beyond the rows seen have no likelihood and are drawn from their prior in a forecast.
    """

    sd: float = 0.02
    kind: ClassVar[str] = "data walk"
    words: ClassVar[str] = "walking data exponent"

    def apply(self, law):
        return self._with_knots(law, (0.0, 1.0))

    def extend(self, law, q, at, frame, seed):
        reach = float(np.log(frame["tokens"].max() / law.token_unit) - at["tokens"])
        knots = tuple(map(float, range(max(2, int(np.ceil(reach))))))
        longer = self._with_knots(law.plain, knots)
        draws = len(next(iter(q.values())))
        rng = np.random.default_rng(seed)
        missing = [n for n in longer.discrepancy_parameters if n not in q]
        return longer, {**q, **{n: self.sd * rng.standard_normal((draws, 1)) for n in missing}}

    def _with_knots(self, law, knots):
        walk = Hinges("step", "tokens", knots)
        terms = tuple(
            ModifiedTerm(t.plain, walk) if t.covariates[0] == "tokens" else t for t in law.terms
        )
        priors = dict.fromkeys(walk.parameters, Prior("Normal", mu=0, sigma=self.sd))
        free = dict.fromkeys(walk.parameters, (-np.inf, np.inf))
        return replace(
            law, terms=terms, priors={**law.priors, **priors}, bounds={**law.bounds, **free}
        )
