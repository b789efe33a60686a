"""The PyMC model of a specification."""

from collections.abc import Mapping, Sequence

import numpy as np

from bayeslaw.common.arrays import Floats, Model, Namespace, Tensor
from bayeslaw.laws.law import Law
from bayeslaw.laws.priors import FLOOR, Prior
from bayeslaw.laws.terms import Array, Values
from bayeslaw.model.noise import LENGTH, Order, innovations
from bayeslaw.model.spec import Arrays, JointSpec, Spec

AGREE = 2.0
"""LKJ concentration of the correlation between domains: 1 is flat, above 1 favours none."""


def build(spec: Spec | JointSpec, arrays: Arrays) -> Model:
    """The ``pm.Model`` of a specification on the arrays of a `Data`, or on `joint_arrays`.

    Free variables are the reference coordinates, steps of random walks and standardised random
    effects; the paper's parameters are deterministics. The variables of a domain have its name as a
    prefix. `bayeslaw.model.density` is the same density in the sampler's coordinates.

    Parameters
    ----------
    spec : Spec or JointSpec
    arrays : mapping of str to array
    """
    import pymc as pm

    with pm.Model() as model:
        if isinstance(spec, Spec):
            _add(spec, arrays)
            return model
        shared = {}
        for level in spec.effects:
            size = next(len(v) for n, v in arrays.items() if n.endswith(f"::{level}_groups"))
            shared[level] = correlated_effects(level, size, len(spec.domains))
        for k, (prefix, part) in enumerate(spec.domains.items()):
            own = {n.removeprefix(prefix): v for n, v in arrays.items() if n.startswith(prefix)}
            effects = {level: effect[k] for level, effect in shared.items()}
            with pm.Model(name=prefix.removesuffix("::")):
                _add(part, own, effects)
    return model


def _add(spec: Spec, arrays: Arrays, shared: Mapping[str, Tensor] | None = None) -> None:
    """Add the variables of a spec to the PyMC model in context.

    `shared` are standardised random effects by level, if they are correlated between domains.
    """
    import pymc as pm
    import pytensor.tensor as pt

    law, priors = _at_rows(spec.law, arrays), spec.priors
    data = {n: pm.Data(n, value) for n, value in arrays.items()}
    x = {name: data["x"][i] for i, name in enumerate(law.covariate_names)}
    at = {name: data["at"][i] for i, name in enumerate(law.covariate_names)}
    q = _forward(law, priors, at)
    for walk in law.walks:
        q[walk.steps] = pm.Normal(walk.steps, shape=data[f"{walk.steps}_knots"].shape)
    sizes = law.amounts(q, at, pt)
    for symbol, value in law.rescale(sizes, at, pt).items():
        if symbol not in q:
            pm.Deterministic(symbol, value)
    sigma = priors["sigma"].rv("sigma")
    mu = pt.log(law.loss(sizes, x, at, pt))
    for level in spec.effects:
        tau = priors[f"tau_{level}"].rv(f"tau_{level}")
        z = (shared or {}).get(level)
        z = pm.Normal(f"{level}_z", shape=data[f"{level}_groups"].shape) if z is None else z
        mu = mu + (tau * z)[data[f"{level}_index"]]
    of_likelihood = {n: priors[prior].rv(n) for n, prior in spec.likelihood.parameters.items()}
    observed = data["observed"]
    if spec.errors == "run":
        # The density is that of each row given the row before it, so a draw of the rows is no
        # draw of the prior predictive distribution: that is made from the location.
        pm.Deterministic("location", mu)
        ell, before = priors[LENGTH].rv(LENGTH), Order(data["before"], data["gap"])
        innovation, sigma = innovations(observed - mu, sigma, ell, before, pt)
        mu = observed - innovation
    spec.likelihood.observe(mu, sigma, of_likelihood, observed)


def _at_rows(law: Law, arrays: Arrays) -> Law:
    """The law with knots for the rows in `arrays`."""
    x, at = (np.asarray(arrays[name], float) for name in ("x", "at"))
    names = law.covariate_names
    return law.over(dict(zip(names, x, strict=True)), dict(zip(names, at, strict=True)))


def _forward(law: Law, priors: Mapping[str, Prior], at: Values) -> dict[str, Tensor]:
    """Reference coordinates as random variables of their priors, in the PyMC model in context."""
    import pymc as pm
    import pytensor.tensor as pt

    def from_floor(sizes: Tensor, size: Tensor) -> Tensor:
        return sizes + priors["E"].dist()

    def from_share(sizes: Tensor, size: Tensor) -> Tensor:
        return sizes / (1.0 - priors[FLOOR].dist())

    q = {name: priors[name].rv(name) for name in law.coordinates if name != "L_ref"}
    terms = law.amounts({**q, "L_ref": 0.0}, at, pt)
    stated = from_share if FLOOR in priors else from_floor
    return q | {"L_ref": pm.CustomDist("L_ref", -terms["E"], dist=stated)}


def correlated_effects(level: str, size: int, count: int) -> list[Tensor]:
    """Standardised random effects of `size` groups in each of `count` domains.

    The correlation between the domains is LKJ(`AGREE`).
    """
    import pymc as pm
    import pytensor.tensor as pt

    z = pm.Normal(f"{level}_z", shape=(size, count))
    b = partial_exponents(count)
    partial = 2 * pm.Beta(f"{level}_partial", b, b, shape=len(b)) - 1
    rows = cholesky_rows([partial[k] for k in range(len(b))], count, pt)
    return [sum(z[:, j] * v for j, v in enumerate(row)) for row in rows]


def partial_exponents(count: int) -> Floats:
    """Parameters b of the Beta(b, b) priors of the partial correlations between domains."""
    return AGREE + np.array([(count - 2 - j) / 2 for _, j in _below(count)])


def _below(count: int) -> list[tuple[int, int]]:
    """Row and column of each element below the diagonal."""
    return [(i, j) for i in range(count) for j in range(i)]


def cholesky_rows(partial: Sequence[Array], count: int, xp: Namespace) -> list[list[Array]]:
    """Cholesky factor of a correlation matrix, by rows, from its partial correlations.

    With ``(partial + 1) / 2`` of column j, of K, Beta(b, b), b = eta + (K - 2 - j) / 2, the matrix
    is LKJ(eta): Lewandowski, Kurowicka and Joe (2009). It is written over an array
    namespace because the sampler's density has the same factor.
    """
    rows: list[list[Array]] = []
    left = iter(partial)
    for i in range(count):
        row: list[Array] = []
        rest: Array = 1.0
        for _ in range(i):
            z = next(left)
            row.append(z * xp.sqrt(rest))
            rest = rest * (1 - z**2)
        rows.append([*row, xp.sqrt(rest)])
    return rows
