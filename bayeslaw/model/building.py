"""The PyMC model of a specification, and the data it is given."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logit

from bayeslaw.common.arrays import Floats, Ints, Model, Strings, Tensor
from bayeslaw.laws.law import Law
from bayeslaw.laws.priors import Prior
from bayeslaw.laws.terms import Values
from bayeslaw.model import random_effects
from bayeslaw.model.columns import columns_of, log_loss
from bayeslaw.model.errors import LENGTH, Order, innovations, order
from bayeslaw.model.noise import STANDARD, make_noise
from bayeslaw.model.spec import Spec
from bayeslaw.tables.table import LossTable

HALF = 0.5
"""Power of `CENTRING` for steps of a random walk.

Halfway between non-centred (0) and centred (1), because the number of rows per knot varies.
"""

type Data = dict[str, npt.NDArray[np.generic]]
"""Arrays that a model is given, by name."""


def data(spec: Spec, table: LossTable, labels: Mapping[str, Strings] | None = None) -> Data:
    """The model's data: covariates, their reference point, log losses, and groups of rows.

    ``x`` has shape (covariates, rows) and ``at`` (covariates,), in the order of
    `Law.covariate_names`; as two arrays they compile faster than one by one. `labels` holds the
    sorted groups of each level if several tables have groups in common.

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
    of_noise = make_noise(spec.noise).labels(table.frame)
    if of_noise is not None:
        names, index = np.unique(of_noise, return_inverse=True)
        values |= {"noise_index": index, "noise_groups": centring(np.bincount(index))}
    groups, first = [], 0
    for level in spec.effects:
        mine = random_effects.labels(table.frame, level)
        names = np.unique(mine) if labels is None else labels[level]
        index = np.searchsorted(names, mine)
        affected = random_effects.level(level).affected(names)
        rows = np.bincount(index, minlength=len(names)) * affected
        values |= {f"{level}_index": index, f"{level}_groups": centring(rows)}
        if not affected.all():
            values[f"{level}_affected"] = affected
        groups.append(index + first)
        first += len(names)
    values["groups"] = np.array(groups, np.int64).reshape(len(groups), len(table))
    if spec.errors == "run":
        rows_before = order(table.frame)
        values |= {"before": rows_before.before, "gap": rows_before.gap}
    return values | columns_of(law, x, at)


def centring(rows: Ints | Floats) -> Floats:
    """Power of `CENTRING` by rows per group: 0 up to 8, 1 from 128, linear in the log between.

    Many rows determine the effect itself, so its standardised form depends strongly on the standard
    deviation. Few rows leave the standardised form close to its prior, which does not depend on it.
    """
    return np.clip(np.log2(np.maximum(rows, 1) / 8) / 4, 0, 1)


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
        Standardised random effects, if a larger model defines them.
    """
    import pymc as pm
    import pytensor.tensor as pt

    from bayeslaw.model.coordinates import coordinates
    from bayeslaw.model.elementary import FUNCTIONS
    from bayeslaw.model.transforms import standardised_effects

    functions = FUNCTIONS if for_sampling else pt

    law, priors = spec.law, spec.priors
    if not for_sampling:
        law = _at_rows(law, values)
    with pm.Model(name=name) as model:
        given = {n: pm.Data(n, value) for n, value in values.items()}
        x = {name: given["x"][i] for i, name in enumerate(law.covariate_names)}
        at = {name: given["at"][i] for i, name in enumerate(law.covariate_names)}
        q = (
            coordinates(law, priors, at, spec.discrepancy)
            if for_sampling
            else _forward(law, priors, at)
        )
        for walk in law.walks:
            knots = given[f"{walk.steps}_knots"]
            if for_sampling:
                scale, power = q[walk.scale] * walk.sd, pt.full_like(knots, HALF)
                q[walk.steps] = standardised_effects(walk.steps, scale, power)
            else:
                q[walk.steps] = pm.Normal(walk.steps, shape=knots.shape)
        sizes = law.sizes(q, at, pt)
        if not for_sampling:
            for symbol, value in law.rescale(sizes, at, pt).items():
                if symbol not in q:
                    pm.Deterministic(symbol, value)
        noise = make_noise(spec.noise)
        own_noise = {n: priors[n].rv(n) for n in ("sigma", *noise.parameters)}
        standard, size = pt.zeros(()), x["params"] - at["params"] if "params" in x else None
        if "noise_groups" in given:
            tau, power = own_noise["tau_noise"], given["noise_groups"]
            z = (
                standardised_effects(STANDARD, tau, power)
                if for_sampling
                else pm.Normal(STANDARD, shape=power.shape)
            )
            standard = z[given["noise_index"]]
        sigma = noise.scale(own_noise, size, standard, functions)
        effects = []
        for level in spec.effects:
            tau = priors[f"tau_{level}"].rv(f"tau_{level}")
            # Runs of 6 to 9 rows mix worse in the centred form; see `centring`.
            power = given[f"{level}_groups"]
            if standardised:
                own = standardised[level]
            elif for_sampling:
                own = standardised_effects(f"{level}_z", tau, power)
            else:
                own = pm.Normal(f"{level}_z", shape=power.shape)
            effect = random_effects.level(level).effect(tau, own, functions)
            effects.append(effect * given.get(f"{level}_affected", 1.0))
        others = spec.likelihood.variables(priors)
        observed = given["observed"]
        if for_sampling:
            every = pt.concatenate(effects) if effects else pt.zeros(0)
            mu = log_loss(law, sizes, x, at, given, every)
            observe = spec.likelihood.observe_sum
        else:
            mu = pt.log(law.loss(sizes, x, at, pt))
            for level, effect in zip(spec.effects, effects, strict=True):
                mu = mu + effect[given[f"{level}_index"]]
            observe = spec.likelihood.observe
        if spec.errors == "run":
            # The density is that of each row given the row before it, so a draw of the rows is no
            # draw of the prior predictive distribution: that is made from the location.
            if not for_sampling:
                pm.Deterministic("location", mu)
            ell, before = priors[LENGTH].rv(LENGTH), Order(given["before"], given["gap"])
            own, sigma = innovations(observed - mu, sigma, ell, before, functions)
            mu = observed - own
        observe(mu, sigma, others, observed)
    return model


def _at_rows(law: Law, values: Mapping[str, npt.NDArray[np.generic]]) -> Law:
    """The law with knots for the rows in `values`."""
    x = dict(zip(law.covariate_names, np.asarray(values["x"], float), strict=True))
    return law.over(x, dict(zip(law.covariate_names, np.asarray(values["at"], float), strict=True)))


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
