"""The PyMC model of a specification, and the data it is given."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logit

from bayeslaw.common.arrays import Model, Strings, Tensor
from bayeslaw.laws.law import Law
from bayeslaw.laws.priors import Prior
from bayeslaw.laws.terms import Values
from bayeslaw.model import random_effects
from bayeslaw.model.likelihoods import noise_scale
from bayeslaw.model.spec import Spec
from bayeslaw.tables.table import LossTable

type Data = dict[str, npt.NDArray[np.generic]]
"""Arrays that a model is given, by name."""


def data(spec: Spec, table: LossTable, labels: Mapping[str, Strings] | None = None) -> Data:
    """The model's data: covariates, their reference point, log losses, and groups of rows.

    ``x`` has shape (covariates, rows) and ``at`` (covariates,), in the order of
    `Law.covariate_names`; as two arrays they compile faster than one by one. `labels` holds all
    groups of a level, in order, where several tables have groups in common.

    Raises
    ------
    TableError
        If the table lacks a column the law needs, holds several domains, or does not vary.
    """
    law = spec.law
    law.check_fits(table, table.name)
    x = law.covariates(table, table.name)
    at = law.reference_point(table)
    values: Data = {
        "x": np.stack([x[name] for name in law.covariate_names]),
        "at": np.stack([at[name] for name in law.covariate_names]),
        "observed": np.log(table.loss),
    }
    for level in spec.effects:
        mine = random_effects.labels(table.frame, level)
        names = np.unique(mine) if labels is None else labels[level]
        index = np.searchsorted(names, mine)
        values |= {f"{level}_index": index, f"{level}_groups": np.zeros(len(names))}
    return values


def build(
    spec: Spec,
    values: Mapping[str, npt.NDArray[np.generic]],
    *,
    for_sampling: bool = False,
    name: str = "",
    standardised: Mapping[str, Tensor] | None = None,
) -> Model:
    """The ``pm.Model`` of a spec on the values of `data`.

    Free variables are the reference coordinates; the paper's parameters are deterministics. The
    prior of the floor is stated on E: ``L_ref`` is E plus the term sizes, a shift, so the prior
    predictive and SBC see exactly the prior that is fitted.

    Parameters
    ----------
    spec : Spec
    values : mapping
        From `data`.
    for_sampling : bool
        Write the same density in the coordinates of `bayeslaw.model.coordinates`.
    name : str
        Prefix of all names, as a part of a larger model.
    standardised : mapping of level to PyTensor variable, optional
        Random effects over their standard deviation, where a larger model has them.
    """
    import pymc as pm
    import pytensor.tensor as pt

    from bayeslaw.model import rewrites
    from bayeslaw.model.coordinates import coordinates

    law, priors = spec.law, spec.priors
    with pm.Model(name=name) as model:
        given = {n: pm.Data(n, value) for n, value in values.items()}
        x = {name: given["x"][i] for i, name in enumerate(law.covariate_names)}
        at = {name: given["at"][i] for i, name in enumerate(law.covariate_names)}
        q = (
            coordinates(law, priors, at, spec.discrepancy)
            if for_sampling
            else _forward(law, priors, at)
        )
        for symbol, value in law.to_paper(q, at, pt).items():
            if symbol not in q:
                pm.Deterministic(symbol, value)
        sizes = {n: rewrites.opaque(value) for n, value in law.sizes(q, at, pt).items()}
        mu = rewrites.log(law.loss(sizes, x, at, rewrites))
        noise = {"sigma": priors["sigma"].rv("sigma")}
        if spec.noise == "loglinear":
            noise["noise_slope"] = priors["noise_slope"].rv("noise_slope")
        sigma = noise_scale(spec.noise, noise, x.get("params"), at.get("params"), pt)
        for level in spec.effects:
            tau = priors[f"tau_{level}"].rv(f"tau_{level}")
            # Non-centred: with 6 to 9 rows a run the centred form mixes worse.
            count = len(values[f"{level}_groups"])
            own = standardised[level] if standardised else pm.Normal(f"{level}_z", shape=count)
            mu = mu + (tau * own)[given[f"{level}_index"]]
        others = spec.likelihood.variables(priors)
        spec.likelihood.observe(rewrites.opaque(mu), sigma, others, given["observed"])
    return model


def _forward(law: Law, priors: Mapping[str, Prior], at: Values) -> dict[str, Tensor]:
    """Reference coordinates as random variables of their priors, in the PyMC model in context."""
    import pymc as pm
    import pytensor.tensor as pt

    def floor(shift: Tensor, size: Tensor) -> Tensor:
        return shift + priors["E"].dist()

    q = {name: priors[name].rv(name) for name in law.coordinates if name != "L_ref"}
    terms = law.sizes({**q, "L_ref": 0.0}, at, pt)
    return q | {"L_ref": pm.CustomDist("L_ref", -terms["E"], dist=floor)}


def constrain(spec: Spec, name: str, value: float) -> float:
    """A variable's value from its coordinate on the real line, as PyMC transforms it."""
    low, high = _support(spec, name)
    if np.isinf(low):
        return value
    if np.isinf(high):
        return float(np.exp(value))
    return float(low + (high - low) * expit(value))


def unconstrain(spec: Spec, name: str, value: float) -> float:
    """Inverse of `constrain`."""
    low, high = _support(spec, name)
    if np.isinf(low):
        return value
    return float(np.log(value) if np.isinf(high) else logit((value - low) / (high - low)))


def _support(spec: Spec, name: str) -> tuple[float, float]:
    prior = spec.priors.get(spec.likelihood.parameters.get(name, name))
    return prior.support if prior else (-np.inf, np.inf)
