"""What is fitted: law, priors, noise, discrepancy, random effects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from bayeslaw.common.defaults import DELTA
from bayeslaw.common.errors import LawError
from bayeslaw.common.files import Document, digest
from bayeslaw.common.formatting import made, stated
from bayeslaw.laws.forms import identity
from bayeslaw.laws.law import Law
from bayeslaw.laws.lawfiles import load_law, restored_law, stored_law
from bayeslaw.laws.parameters import prior_bounds
from bayeslaw.laws.priors import NOISE, Prior, PriorLike, override, parse_priors
from bayeslaw.model.discrepancy import (
    DISCREPANCIES,
    Discrepancy,
    NoDiscrepancy,
    make_discrepancy,
)
from bayeslaw.model.effects import DIMENSIONS, level
from bayeslaw.model.groups import OfGroup
from bayeslaw.model.noise import (
    LENGTH,
    LENGTH_PRIOR,
    LIKELIHOODS,
    Likelihood,
    make_likelihood,
)

STORED = DISCREPANCIES | {OfGroup.kind: OfGroup}
"""Discrepancies that files name by their kind."""


@dataclass(frozen=True)
class Spec:
    """What is fitted, apart from the data."""

    law: Law  # with its discrepancy
    # For ``E``, slopes and exponents in reference coordinates, noise.
    priors: Mapping[str, Prior]
    likelihood: Likelihood
    discrepancy: Discrepancy
    # Levels of grouping that have a random effect on log loss.
    effects: tuple[str, ...] = ()
    # Those of them whose groups coincide with covariates of the law: they are not fitted, and new
    # groups draw their effects from the prior.
    drawn: tuple[str, ...] = ()
    # Whether sizes without training rows have an effect from its prior in forecasts, where the
    # table has too few sizes to fit such effects; needs a discrepancy.
    new_sizes: bool = True
    errors: str = "independent"  # or "run": correlated within a run

    @property
    def fitted_effects(self) -> tuple[str, ...]:
        """Levels whose random effects are fitted."""
        return tuple(name for name in self.effects if name not in self.drawn)

    @property
    def exact(self) -> "Spec":
        """The same without the discrepancy: random effects and errors stay."""
        gone = {*self.law.discrepancy_parameters}
        kept = {name: prior for name, prior in self.priors.items() if name not in gone}
        law = self.law.without_discrepancy
        return replace(self, law=law, priors=kept, discrepancy=NoDiscrepancy())

    @cached_property
    def default_priors(self) -> Mapping[str, Prior]:
        """Priors where none are asked for."""
        return make_spec(
            self.law,
            likelihood=self.likelihood,
            discrepancy=self.discrepancy,
            effects=self.effects,
            drawn=self.drawn,
            errors=self.errors,
        ).priors

    @cached_property
    def arguments(self) -> Document:
        """What was asked for, as plain data of which `spec_of` makes an equal spec."""
        return {
            "law": stored_law(self.law),
            "priors": {name: str(prior) for name, prior in sorted(self.priors.items())},
            "likelihood": stated(Likelihood, LIKELIHOODS, self.likelihood),
            "discrepancy": stated(Discrepancy, STORED, self.discrepancy),
            "effects": list(self.effects),
            "drawn": list(self.drawn),
            "new_sizes": self.new_sizes,
            "errors": self.errors,
        }

    @cached_property
    def identity(self) -> str:
        """Hash of everything that the model depends on, the same in every process."""
        return digest(self.arguments | {"law": identity(self.law)})


def spec_of(arguments: Document) -> Spec:
    """The spec with these `Spec.arguments`."""
    discrepancy = made(Discrepancy, STORED, arguments["discrepancy"])
    return Spec(
        law=discrepancy.apply(restored_law(arguments["law"])),
        priors=parse_priors(arguments["priors"]),
        likelihood=made(Likelihood, LIKELIHOODS, arguments["likelihood"]),
        discrepancy=discrepancy,
        effects=tuple(arguments["effects"]),
        drawn=tuple(arguments.get("drawn", ())),  # files of earlier versions have none
        new_sizes=arguments["new_sizes"],
        errors=arguments["errors"],
    )


def make_spec(
    law: str | Path | Law,
    *,
    priors: str | Path | Mapping[str, PriorLike] = "default",
    likelihood: str | Likelihood = "studentt",
    delta: float = DELTA,
    discrepancy: str | Discrepancy = "none",
    effects: Sequence[str] = (),
    drawn: Sequence[str] = (),
    new_sizes: bool = True,
    errors: str = "independent",
) -> Spec:
    """Specification of a fit; see `bayeslaw.fit` and `Spec` for the arguments."""
    # A fitted law that is given again has a discrepancy already.
    plain = load_law(law).without_discrepancy
    deviation = make_discrepancy(discrepancy, plain)
    law = deviation.apply(plain)
    density = make_likelihood(likelihood, delta)
    added = dict(density.priors) | {
        f"tau_{name}": level(name).prior for name in effects
    }
    added |= deviation.effect_priors
    added |= {LENGTH: LENGTH_PRIOR} if errors == "run" else {}
    defaults = (
        NOISE
        | dict(law.priors)
        | {n: p for n, p in added.items() if n not in law.priors}
    )
    bounds = {name: prior.support for name, prior in added.items()} | prior_bounds(
        law.by_symbol
    )
    steps = [name for walk in law.walks for name in (walk.steps, f"{walk.steps}_knot")]
    taken = {
        *DIMENSIONS,
        *law.parameters,
        *law.coordinates,
        *defaults,
        *density.parameters,
        *steps,
    }
    if other := taken.union(f"{name}_effect" for name in effects).intersection(effects):
        raise LawError(
            f"a column {min(other)!r} cannot be an effect: draws of {law.name} have something else "
            "of that name; rename the column."
        )
    slopes = {term.coefficient: term.slope for term in law.terms}
    chosen = override(defaults, priors, bounds, proper={*NOISE, *added}, slopes=slopes)
    return Spec(
        law, chosen, density, deviation, tuple(effects), tuple(drawn), new_sizes, errors
    )
