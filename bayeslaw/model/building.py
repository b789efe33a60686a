"""The PyMC model of a specification."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bayeslaw.common.arrays import Floats, Model, Namespace, Tensor
from bayeslaw.laws.priors import FLOOR, Prior
from bayeslaw.laws.terms import Array
from bayeslaw.model.noise import LENGTH, innovations
from bayeslaw.model.spec import Data

AGREE = 2.0
"""LKJ concentration of the correlation between domains: 1 is flat, above 1 favours none."""


def build(domains: Mapping[str, Data]) -> Model:
    """The ``pm.Model`` of a specification and its data.

    Free variables are the reference coordinates, steps of random walks and standardised random
    effects; the paper's parameters are deterministics. Dimensions are the rows, the labels of each
    level of random effects, and the knots of each walk, in log units from the reference point.
    `bayeslaw.model.density` is the same density in the sampler's coordinates.
    """
    import pymc as pm

    with pm.Model() as model:
        first = next(iter(domains.values()))
        if len(domains) == 1:
            _add(first, {})
            return model
        shared = {
            level: correlated_effects(level, len(labels), len(domains))
            for level, labels in first.groups.items()
        }
        for k, (prefix, data) in enumerate(domains.items()):
            with pm.Model(name=prefix.removesuffix("::")):
                _add(data, {level: effects[k] for level, effects in shared.items()}, prefix)
    return model


def _add(data: Data, shared: Mapping[str, Tensor], prefix: str = "") -> None:
    """Add the variables of a spec to the PyMC model in context.

    `shared` are standardised random effects by level, if they are correlated between domains;
    `prefix` keeps the dimensions of the domains apart.
    """
    import pymc as pm
    import pytensor.tensor as pt

    spec, law, priors, at = data.spec, data.law, data.spec.priors, data.at
    model, rows = pm.modelcontext(None), f"{prefix}row"
    model.add_coord(rows, np.arange(len(data)))
    q = {name: priors[name].rv(name) for name in law.coordinates if name != "L_ref"}
    terms = law.amounts({**q, "L_ref": 0.0}, at, pt)
    q["L_ref"] = pm.CustomDist("L_ref", -terms["E"], dist=_loss_of(priors))
    for walk in law.walks:
        assert walk.knots
        knots = f"{prefix}{walk.steps}_knot"
        model.add_coord(knots, walk.knots.positions)
        q[walk.steps] = pm.Normal(walk.steps, dims=knots)
    amounts = law.amounts(q, at, pt)
    for symbol, value in law.rescale(amounts, at, pt).items():
        if symbol not in q:
            pm.Deterministic(symbol, value)
    sigma = priors["sigma"].rv("sigma")
    x = {name: pm.Data(f"x_{name}", values, dims=rows) for name, values in data.x.items()}
    mu = pt.log(law.loss(amounts, x, at, pt))
    for level, labels in data.groups.items():
        tau = priors[f"tau_{level}"].rv(f"tau_{level}")
        if not shared:
            model.add_coord(level, labels)
        z = shared[level] if shared else pm.Normal(f"{level}_z", dims=level)
        mu = mu + (tau * z)[data.index[level]]
    of_likelihood = {n: priors[prior].rv(n) for n, prior in spec.likelihood.parameters.items()}
    observed = pm.Data("observed", data.observed, dims=rows)
    if data.order:
        # The density is that of each row given the row before it, so a draw of the rows is no
        # draw of the prior predictive distribution: that is made from the location.
        pm.Deterministic("location", mu, dims=rows)
        ell = priors[LENGTH].rv(LENGTH)
        innovation, sigma = innovations(observed - mu, sigma, ell, data.order, pt)
        mu = observed - innovation
    spec.likelihood.observe(mu, sigma, of_likelihood, observed, rows)


def _loss_of(priors: Mapping[str, Prior]) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss at the reference point, given the sum of the terms, by the prior of the floor."""

    def loss(terms: Tensor, size: Tensor) -> Tensor:
        if FLOOR in priors:
            return terms / (1.0 - priors[FLOOR].dist())
        return terms + priors["E"].dist()

    return loss


def correlated_effects(level: str, size: int, count: int) -> list[Tensor]:
    """Standardised effects of `size` groups in each of `count` domains, LKJ(`AGREE`)."""
    import pymc as pm
    import pytensor.tensor as pt

    z = pm.Normal(f"{level}_z", shape=(size, count))
    b = partial_exponents(count)
    partial = 2 * pm.Beta(f"{level}_partial", b, b, shape=len(b)) - 1
    rows = cholesky_rows([partial[k] for k in range(len(b))], count, pt)
    return [sum(z[:, j] * v for j, v in enumerate(row)) for row in rows]


def partial_exponents(count: int) -> Floats:
    """Parameters b of the Beta(b, b) priors of the partial correlations between domains."""
    return AGREE + np.array([(count - 2 - j) / 2 for i in range(count) for j in range(i)])


def cholesky_rows(partial: Sequence[Array], count: int, xp: Namespace) -> list[list[Array]]:
    """Cholesky factor of a correlation matrix, by rows, from its partial correlations.

    With ``(partial + 1) / 2`` of column j, of K, Beta(b, b), b = eta + (K - 2 - j) / 2, the matrix
    is LKJ(eta): Lewandowski, Kurowicka and Joe (2009).
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
