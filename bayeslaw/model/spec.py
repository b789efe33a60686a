"""What is fitted: law, priors, noise, discrepancy, random effects, and the arrays of the data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bayeslaw.common.arrays import Strings
from bayeslaw.common.defaults import DELTA
from bayeslaw.common.files import digest
from bayeslaw.common.kinds import made, stated
from bayeslaw.laws.law import Law
from bayeslaw.laws.lawfiles import load_law, restored_law, stored_law
from bayeslaw.laws.priors import NOISE, Prior, PriorLike, override, parse_priors
from bayeslaw.model.discrepancy import DISCREPANCIES, Discrepancy, make_discrepancy
from bayeslaw.model.effects import labels, level
from bayeslaw.model.noise import (
    LENGTH,
    LENGTH_PRIOR,
    LIKELIHOODS,
    Huber,
    Likelihood,
    make_likelihood,
    order,
)
from bayeslaw.tables.table import LossTable

type Arrays = Mapping[str, npt.NDArray[Any]]
"""Arrays that a model is given, by name."""


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
    def arguments(self) -> dict[str, Any]:
        """What was asked for, as plain data of which `spec_of` makes an equal spec.

        Raises
        ------
        LawError
            If a file cannot name the class of the likelihood or the discrepancy, or hold a field.
        """
        return {
            "law": stored_law(self.law),
            "priors": {name: str(prior) for name, prior in sorted(self.priors.items())},
            "likelihood": stated(Likelihood, LIKELIHOODS, self.likelihood),
            "discrepancy": stated(Discrepancy, DISCREPANCIES, self.discrepancy),
            "effects": list(self.effects),
            "new_sizes": self.new_sizes,
            "errors": self.errors,
        }

    @cached_property
    def identity(self) -> str:
        """Hash of everything that the model depends on, the same in every process."""
        return digest(self.arguments | {"law": self.law.identity})

    @cached_property
    def sampled(self) -> tuple[str, ...]:
        """Names of the parameters that have priors: coordinates, noise, standard deviations."""
        noise = ["sigma", *self.likelihood.parameters.values(), *[LENGTH] * (self.errors == "run")]
        return (*self.law.coordinates, *noise, *(f"tau_{name}" for name in self.effects))

    @property
    def delta(self) -> float:
        """Threshold of the Huber loss, in log loss: of a Huber likelihood, or the paper's."""
        return self.likelihood.delta if isinstance(self.likelihood, Huber) else DELTA

    @property
    def domains(self) -> Mapping[str, "Spec"]:
        """Specs by the prefix of their variables' names: this spec alone, without a prefix."""
        return {"": self}


@dataclass(frozen=True)
class JointSpec:
    """Specs of several domains whose random effects are correlated.

    Parameters
    ----------
    domains : mapping of str to Spec
        By the prefix of a domain's variables, ``"<domain>::"``; all of the same levels of effects.
    """

    domains: Mapping[str, Spec]

    @property
    def effects(self) -> tuple[str, ...]:
        """Levels that have effects."""
        return next(iter(self.domains.values())).effects


def spec_of(arguments: Mapping[str, Any]) -> Spec:
    """The spec with these `Spec.arguments`.

    Raises
    ------
    LawError
        If a class cannot be imported, or the law or a prior is not valid.
    """
    discrepancy = made(Discrepancy, DISCREPANCIES, arguments["discrepancy"])
    return Spec(
        law=discrepancy.apply(restored_law(arguments["law"])),
        priors=parse_priors(arguments["priors"]),
        likelihood=made(Likelihood, LIKELIHOODS, arguments["likelihood"]),
        discrepancy=discrepancy,
        effects=tuple(arguments["effects"]),
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
    added = dict(density.priors) | {f"tau_{name}": level(name).prior for name in effects}
    added |= deviation.effect_priors
    added |= {LENGTH: LENGTH_PRIOR} if errors == "run" else {}
    defaults = NOISE | dict(law.priors) | {n: p for n, p in added.items() if n not in law.priors}
    bounds = {name: prior.support for name, prior in added.items()} | law.prior_bounds
    chosen = override(defaults, priors, bounds, proper={*NOISE, *added})
    return Spec(law, chosen, density, deviation, tuple(effects), new_sizes, errors)


@dataclass(frozen=True)
class Data:
    """A table as a model's data.

    Parameters
    ----------
    arrays : mapping of str to array
        ``x`` has shape (covariates, rows) and ``at`` (covariates,), in the order of
        `Law.covariate_names`. ``observed`` are log losses. The rest are groups of rows, the row
        before each row in its run, and the knots of random walks.
    at : mapping of str to float
        Logarithms of the covariates at the reference point.
    groups : mapping of str to array
        Sorted labels of the groups of each level that has effects.
    """

    arrays: Arrays
    at: Mapping[str, float]
    groups: Mapping[str, Strings]


def make_data(
    spec: Spec,
    table: LossTable,
    *,
    groups: Mapping[str, Strings] | None = None,
    at: Mapping[str, float] | None = None,
) -> Data:
    """The data of a table.

    Parameters
    ----------
    spec : Spec
    table : LossTable
    groups : mapping of level to array, optional
        Sorted groups of each level, if several tables have groups in common.
    at : mapping of str to float, optional
        Reference point, if not that of the table.

    Raises
    ------
    TableError
        If the table lacks a column the law needs, holds several domains, or does not vary.
    """
    law, known = spec.law, dict(groups or {})
    law.check_fits(table, table.name)
    x = law.covariates(table, table.name)
    at = at or law.reference_point(table)
    arrays: dict[str, npt.NDArray[Any]] = {
        "x": np.stack([x[name] for name in law.covariate_names]),
        "at": np.stack([at[name] for name in law.covariate_names]),
        "observed": np.log(table.loss),
    }
    for name in spec.effects:
        of_rows = labels(table.frame, name)
        known.setdefault(name, np.unique(of_rows))
        arrays[f"{name}_index"] = np.searchsorted(known[name], of_rows)
        arrays[f"{name}_groups"] = np.arange(len(known[name]))
    if spec.errors == "run":
        arrays["before"], arrays["gap"] = order(table.frame)
    for walk in law.over(x, at).walks:
        assert walk.knots
        arrays[f"{walk.steps}_knots"] = walk.knots.positions
    return Data(arrays, at, known)


def joint_arrays(data: Mapping[str, Data]) -> Arrays:
    """Arrays of several domains, by the domain and their name; see `JointSpec`."""
    return {
        f"{domain}::{name}": array
        for domain, each in data.items()
        for name, array in each.arrays.items()
    }
