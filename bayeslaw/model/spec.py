"""The specification of a fit: law, priors, likelihood, discrepancy and random effects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

from bayeslaw.common.defaults import AUTO, DELTA
from bayeslaw.common.errors import FitError
from bayeslaw.common.registry import identity
from bayeslaw.laws.law import Law
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.laws.priors import NOISE, Prior, PriorLike, override
from bayeslaw.model import errors as run_errors
from bayeslaw.model import random_effects
from bayeslaw.model.adaptation import Adaptation
from bayeslaw.model.curvature import Curvature
from bayeslaw.model.discrepancies import DISCREPANCIES, Discrepancy
from bayeslaw.model.likelihoods import LIKELIHOODS, Huber, Likelihood
from bayeslaw.model.walking_exponents import WalkingExponents

SUITED: tuple[WalkingExponents | Adaptation, ...] = (WalkingExponents(), Adaptation())
"""Discrepancies that ``"auto"`` chooses where they suit the law; otherwise it is curvature."""


@dataclass(frozen=True)
class Spec:
    """What is fitted, apart from the data.

    Parameters
    ----------
    law : Law
        With its discrepancy, if any.
    priors : mapping of str to Prior
        For ``E``, the slopes and exponents in reference coordinates, and the noise.
    likelihood : Likelihood
    discrepancy : Discrepancy
        The one that `law` has.
    effects : tuple of str
        Levels of grouping that have a random effect on log loss.
    new_sizes : bool
        Whether a size without training rows has a random effect from its prior in forecasts, where
        the table has too few sizes to fit such effects; needs a discrepancy.
    errors : {"independent", "run"}
        Whether errors of rows are independent, or correlated within a run.
    """

    law: Law
    priors: Mapping[str, Prior]
    likelihood: Likelihood
    discrepancy: Discrepancy
    effects: tuple[str, ...] = ()
    new_sizes: bool = True
    errors: str = "independent"

    @cached_property
    def identity(self) -> str:
        """Hash of everything that the model depends on, the same in every process."""
        parts = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "law"}
        priors = dict(sorted(self.priors.items()))
        levels = [random_effects.level(name) for name in self.effects]
        return identity({**parts, "law": self.law.identity, "priors": priors, "levels": levels})

    @cached_property
    def sampled(self) -> tuple[str, ...]:
        """Names of the parameters that have priors: coordinates, noise, standard deviations."""
        noise = ["sigma", *self.likelihood.parameters.values()]
        noise += [run_errors.LENGTH] * (self.errors == "run")
        return (*self.law.coordinates, *noise, *(f"tau_{level}" for level in self.effects))

    @property
    def delta(self) -> float:
        """Threshold of the Huber loss, in log loss: of a Huber likelihood, or the paper's."""
        return self.likelihood.delta if isinstance(self.likelihood, Huber) else DELTA

    @property
    def parts(self) -> Mapping[str, "Spec"]:
        """Specs by the prefix of their variables' names: this spec alone, without a prefix."""
        return {"": self}


@dataclass(frozen=True)
class JointSpec:
    """Specs of several domains whose random effects are correlated.

    Those of undertuned rows are not: no two domains have one in common.

    Parameters
    ----------
    domains : mapping of domain to Spec
        Of the same levels of effects.
    """

    domains: Mapping[str, Spec]

    @property
    def parts(self) -> Mapping[str, Spec]:
        """Specs by the prefix of their variables' names."""
        return {f"{name}::": spec for name, spec in self.domains.items()}

    @property
    def effects(self) -> tuple[str, ...]:
        """Levels that have effects."""
        return next(iter(self.domains.values())).effects

    @property
    def correlated(self) -> tuple[str, ...]:
        """Levels whose effects are correlated."""
        return tuple(name for name in self.effects if random_effects.level(name).plain)


def make_spec(
    law: str | Path | Law,
    *,
    priors: str | Path | Mapping[str, PriorLike] = "default",
    likelihood: str | Likelihood = "studentt",
    delta: float = DELTA,
    discrepancy: str | Discrepancy = "none",
    effects: Sequence[str] = (),
    new_sizes: bool = True,
    errors: str = "independent",
) -> Spec:
    """Specification of a fit; see `bayeslaw.fit` and `Spec` for the arguments.

    Raises
    ------
    LawError
        If the law, a prior, the likelihood or the discrepancy is unknown.
    FitError
        If `delta` is not positive.
    """
    plain = load_law(law).without_discrepancy
    deviation = make_discrepancy(discrepancy, plain)
    law = deviation.apply(plain)
    density = make_likelihood(likelihood, delta)
    levels = [random_effects.level(name) for name in effects]
    added = dict(density.priors) | {f"tau_{level.name}": level.prior for level in levels}
    added |= deviation.effect_priors
    added |= {run_errors.LENGTH: run_errors.PRIOR} if errors == "run" else {}
    defaults = NOISE | dict(law.priors) | {n: p for n, p in added.items() if n not in law.priors}
    bounds = {name: prior.support for name, prior in added.items()} | law.prior_bounds
    chosen = override(defaults, priors, bounds, proper={*NOISE, *added})
    return Spec(law, chosen, density, deviation, tuple(effects), new_sizes, errors)


def make_discrepancy(discrepancy: str | Discrepancy, law: Law) -> Discrepancy:
    """A discrepancy by its kind, or the one given.

    ``"auto"`` is walking exponents for laws in N and D alone, a polynomial and a walk for others
    with a power led by D, and curvature for the rest.

    Raises
    ------
    LawError
        If there is none of that name.
    """
    if discrepancy == AUTO:
        return next((each for each in SUITED if each.suits(law)), Curvature())
    return DISCREPANCIES[discrepancy]() if isinstance(discrepancy, str) else discrepancy


def make_likelihood(likelihood: str | Likelihood, delta: float = DELTA) -> Likelihood:
    """A likelihood by its kind, or the one given; `delta` is the threshold of ``huber``.

    Raises
    ------
    LawError
        If there is none of that name.
    FitError
        If `delta` is not positive.
    """
    if not delta > 0:
        raise FitError(f"delta must be positive, not {delta!r}.")
    if likelihood == Huber.kind:
        return Huber(delta)
    return LIKELIHOODS[likelihood]() if isinstance(likelihood, str) else likelihood
