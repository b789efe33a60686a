"""A likelihood and a discrepancy, as a package outside bayeslaw would define them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import expit

from bayeslaw import Prior
from bayeslaw.laws.deviations import Linear
from bayeslaw.laws.tape import FUNCTIONS
from bayeslaw.model.discrepancy import Discrepancy
from bayeslaw.model.noise import Likelihood


@dataclass(frozen=True)
class SkewNormal(Likelihood):
    """Skew noise: ``2 phi(u) expit(skew u) / sigma`` of the residual u over sigma."""

    kind: ClassVar[str] = "skewnormal"
    words: ClassVar[str] = "skew normal"
    parameters: ClassVar[Mapping[str, str]] = {"skew": "skew"}
    priors: ClassVar[Mapping[str, Prior]] = {"skew": Prior("Normal", mu=0, sigma=1)}

    def log_density(self, residual, sigma, q, xp=FUNCTIONS):
        u = residual / sigma
        normal = -0.5 * u * u - xp.log(sigma) + 0.5 * np.log(2 / np.pi)
        return normal - xp.softplus(-q["skew"] * u)

    def sample(self, rng, shape, sigma, q):
        u = rng.standard_normal(shape)
        return sigma * np.where(rng.random(shape) < expit(q["skew"] * u), u, -u)

    def information_variance(self, sigma, q):
        square = q["skew"] * q["skew"]
        return sigma * sigma / (1 + 0.25 * square / (1 + 0.5 * square) ** 0.5)


@dataclass(frozen=True)
class Hinges(Linear):
    """``sum_k step_k max(u - knot_k, 0)``, u the log of a covariate over its reference value."""

    of: str
    name: str
    covariate: str
    knots: tuple[float, ...]

    @property
    def parameters(self):
        return tuple(f"{self.name}_{k}" for k in range(len(self.knots)))

    @property
    def covariates_of(self):
        return dict.fromkeys(self.parameters, (self.covariate,))

    def column(self, name, x, at, xp=np):
        knot = self.knots[self.parameters.index(name)]
        return xp.maximum(x[self.covariate] - at[self.covariate] - knot, 0.0)


@dataclass(frozen=True)
class DataWalk(Discrepancy):
    """Random walk of the data exponent along log D, with a step at each e-fold.

    Steps beyond the rows seen have no likelihood and are drawn from their prior in a forecast.
    """

    sd: float = 0.03
    kind: ClassVar[str] = "data walk"
    words: ClassVar[str] = "walking data exponent"

    def apply(self, law):
        return self._with_knots(law, (0.0, 1.0))

    def extend(self, law, q, at, x, seed):
        reach = float(x["tokens"].max() - at["tokens"])
        knots = tuple(map(float, range(max(2, int(np.ceil(reach))))))
        longer = self._with_knots(law.without_discrepancy, knots)
        draws = len(next(iter(q.values())))
        rng = np.random.default_rng(seed)
        missing = [n for n in longer.discrepancy_parameters if n not in q]
        return longer, {
            **q,
            **{n: self.sd * rng.standard_normal((draws, 1)) for n in missing},
        }

    def _with_knots(self, law, knots):
        (of,) = (
            term.coefficient for term in law.terms if term.covariates[0] == "tokens"
        )
        walk = Hinges(of, "step", "tokens", knots)
        priors = dict.fromkeys(walk.parameters, Prior("Normal", mu=0, sigma=self.sd))
        return law.deviating((walk,), priors)
