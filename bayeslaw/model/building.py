"""The PyMC model of a specification, and the data it is given."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import expit, logit

from bayeslaw.laws.law import Law
from bayeslaw.laws.priors import Prior
from bayeslaw.model import random_effects as groups
from bayeslaw.model.likelihoods import DOF_FLOOR, observe
from bayeslaw.model.spec import Spec
from bayeslaw.tables.table import LossTable


def data(spec: Spec, table: LossTable, labels: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The model's data: covariates, their reference point, log losses, and groups of rows.

    ``x`` has shape (covariates, rows) and ``at`` (covariates,), by `Law.covariate_names`: as two
    arrays they compile in two thirds of the time that they take one by one. `labels` holds all
    groups of a level, in order, where several tables share them.

    Raises
    ------
    TableError
        If the table lacks a column the law needs, holds several domains, or does not vary.
    """
    law = spec.law
    law.check_fits(table, table.name)
    x = law.covariates(table, table.name)
    at = law.reference_point(table)
    values = {
        "x": np.stack([x[name] for name in law.covariate_names]),
        "at": np.stack([at[name] for name in law.covariate_names]),
        "observed": np.log(table.loss),
    }
    for level in spec.effects:
        mine = groups.labels(table.frame, level)
        names = np.unique(mine) if labels is None else labels[level]
        index = np.searchsorted(names, mine)
        values |= {f"{level}_index": index, f"{level}_groups": np.zeros(len(names))}
    return values


def build(
    spec: Spec,
    values: Mapping[str, Any],
    *,
    for_sampling: bool = False,
    name: str = "",
    shared: Mapping[str, Any] | None = None,
) -> Any:
    """The ``pm.Model`` of a spec on the values of `data`.

    Free variables are the reference coordinates; the paper's parameters are deterministics. The
    prior of the floor is stated on E: ``L_ref`` is E plus the terms' sizes, a shift, so the prior
    predictive and SBC see exactly the prior that is fitted. With `for_sampling` the same density is
    written in `bayeslaw.model.coordinates`' coordinates. As a part of a larger model it has a `name`, and
    `shared` holds the standardised effects of its groups.
    """
    import pymc as pm
    import pytensor.tensor as pt

    from bayeslaw.model import rewrites as held
    from bayeslaw.model.coordinates import coordinates

    law, priors = spec.law, spec.priors
    with pm.Model(name=name) as model:
        given = {n: pm.Data(n, value) for n, value in values.items()}
        x = {name: given["x"][i] for i, name in enumerate(law.covariate_names)}
        at = {name: given["at"][i] for i, name in enumerate(law.covariate_names)}
        q = (coordinates if for_sampling else _coordinates)(law, priors, at)
        for symbol, value in law.to_paper(q, at, pt).items():
            if symbol not in q:
                pm.Deterministic(symbol, value)
        sizes = {n: held.hold(value) for n, value in law.sizes(q, at, pt).items()}
        mu = held.log(law.loss(sizes, x, at, held))
        sigma = priors["sigma"].rv("sigma")
        if spec.noise == "loglinear":
            slope = priors["noise_slope"].rv("noise_slope")
            sigma = sigma * pt.exp(slope * (x["params"] - at["params"]))
        for level in spec.effects:
            tau = priors[f"tau_{level}"].rv(f"tau_{level}")
            # Apart from their scale: centred they mix worse, with 6 to 9 rows a run on tinycpt.
            count = len(values[f"{level}_groups"])
            z = pm.Normal(f"{level}_z", shape=count) if shared is None else shared[level]
            mu = mu + (tau * z)[given[f"{level}_index"]]
        dof = None
        if spec.likelihood == "studentt":
            above = priors["dof"].rv("dof_above_floor")
            dof = pm.Deterministic("dof", DOF_FLOOR + above)
        observe(spec.likelihood, held.hold(mu), sigma, dof, spec.delta, given["observed"])
    return model


def _coordinates(law: Law, priors: Mapping[str, Prior], at: Mapping[str, Any]) -> dict[str, Any]:
    """Reference coordinates as random variables of their priors, in the PyMC model in context."""
    import pymc as pm
    import pytensor.tensor as pt

    def floor(shift: Any, size: Any) -> Any:
        return shift + priors["E"].dist()

    q = {name: priors[name].rv(name) for name in law.coordinates if name != "L_ref"}
    terms = law.sizes({**q, "L_ref": 0.0}, at, pt)
    return q | {"L_ref": pm.CustomDist("L_ref", -terms["E"], dist=floor)}


def constrain(spec: Spec, name: str, value: Any) -> Any:
    """A variable's value from its coordinate on the real line, as PyMC transforms it."""
    low, high = _support(spec, name)
    if np.isinf(low):
        return value
    if np.isinf(high):
        return np.exp(value)
    return low + (high - low) * expit(value)


def unconstrain(spec: Spec, name: str, value: Any) -> Any:
    """Inverse of `constrain`."""
    low, high = _support(spec, name)
    if np.isinf(low):
        return value
    return np.log(value) if np.isinf(high) else logit((value - low) / (high - low))


def _support(spec: Spec, name: str) -> tuple[float, float]:
    prior = spec.priors.get("dof" if name == "dof_above_floor" else name)
    return prior.support if prior else (-np.inf, np.inf)
