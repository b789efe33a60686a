"""The specification of a fit: law, priors, likelihood, discrepancy and random effects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from bayeslaw.common.defaults import DELTA
from bayeslaw.common.errors import FitError, LawError, unknown
from bayeslaw.laws.law import Law
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.laws.priors import Prior, override
from bayeslaw.model.discrepancies import with_discrepancy
from bayeslaw.model.likelihoods import check_likelihood

NOISES = ("constant", "loglinear")


@dataclass(frozen=True)
class Spec:
    """What is fitted, apart from the data: equal specs share one compiled model.

    Parameters
    ----------
    law : Law
        With its discrepancy, if any.
    priors : mapping of str to Prior
        For ``E``, the slopes and exponents in reference coordinates, and the noise.
    likelihood : {"studentt", "normal", "huber"}
    delta : float
        Threshold of the ``huber`` likelihood, in log loss.
    discrepancy : {"none", "curvature"}
    noise : {"constant", "loglinear"}
        Scale of the noise on log loss: the same for every row, or a power of N.
    effects : tuple of {"size", "base", "run"}
        Groups of rows that share an effect on log loss.
    """

    law: Law
    priors: Mapping[str, Prior] = field(hash=False)
    likelihood: str = "studentt"
    delta: float = DELTA
    discrepancy: str = "none"
    noise: str = "constant"
    effects: tuple[str, ...] = ()

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """Hashable identity."""
        priors = tuple(sorted((name, str(prior)) for name, prior in self.priors.items()))
        model = self.discrepancy, self.likelihood, self.delta, self.noise, self.effects
        return self.law.text, *model, priors

    @cached_property
    def sampled(self) -> tuple[str, ...]:
        """Names of the coordinates the sampler works in."""
        noise = ["sigma", *["dof"] * (self.likelihood == "studentt")]
        noise += ["noise_slope"] * (self.noise == "loglinear")
        return (*self.law.coordinates, *noise, *(f"tau_{level}" for level in self.effects))

    @property
    def parts(self) -> Mapping[str, "Spec"]:
        """Specs of the model by the prefix of their names: this one alone."""
        return {"": self}


def make_spec(
    law: str | Law,
    *,
    priors: str | Path | Mapping[str, str | Prior] = "default",
    likelihood: str = "studentt",
    delta: float = DELTA,
    discrepancy: str = "none",
    noise: str = "constant",
    effects: Sequence[str] = (),
) -> Spec:
    """Specification of a fit; see `bayeslaw.fit` for the arguments.

    Raises
    ------
    LawError
        If the law, a prior or the likelihood is unknown.
    """
    law = with_discrepancy(load_law(law), discrepancy)
    if not delta > 0:
        raise FitError(f"delta must be positive, not {delta!r}.")
    chosen = override(law.priors, priors, law.prior_bounds)
    if noise not in NOISES:
        raise LawError(unknown("noise", noise, NOISES))
    if noise == "loglinear" and "params" not in law.columns:
        raise LawError(f"law {law.name}: noise='loglinear' varies with params, which it lacks.")
    likelihood = check_likelihood(likelihood)
    return Spec(law, chosen, likelihood, delta, discrepancy, noise, tuple(effects))
