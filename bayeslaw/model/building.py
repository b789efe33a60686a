"""The PyMC model of a specification."""

import numpy as np

from bayeslaw.common.arrays import Model, Untyped
from bayeslaw.laws.priors import FLOOR
from bayeslaw.model.noise import LENGTH, innovations
from bayeslaw.model.training import Data


def build(data: Data) -> Model:
    """The ``pm.Model`` of a specification and its data.

    Free variables are the reference coordinates, steps of random walks and standardised random
    effects; the paper's parameters are deterministics. Dimensions are the rows, the labels of each
    level of random effects, and the knots of each walk, in log units from the reference point.
    `bayeslaw.model.density` is the same density in the sampler's coordinates.
    """
    import pymc as pm
    import pytensor.tensor as pt

    spec = data.spec
    law = data.law
    priors = data.spec.priors
    at = data.at

    def loss(terms: Untyped, size: Untyped) -> Untyped:
        """The loss at the reference point by the prior of the floor, given the terms' sum."""
        if FLOOR in priors:
            return terms / (1.0 - priors[FLOOR].dist())
        return terms + priors["E"].dist()

    # PyMC can derive the density of `loss`, but not for every law: it first simplifies the loss and
    # the terms as one expression, and a share that this puts into several terms has no density.
    def log_density(value: Untyped, terms: Untyped) -> Untyped:
        """Log density of the loss at the reference point, given the terms' sum."""
        if FLOOR in priors:
            of_share = pm.logp(priors[FLOOR].dist(), 1.0 - terms / value)
            return of_share + pt.log(terms) - 2.0 * pt.log(value)
        return pm.logp(priors["E"].dist(), value - terms)

    with pm.Model(coords={"row": np.arange(len(data))}) as model:
        q = {name: priors[name].rv(name) for name in law.coordinates if name != "L_ref"}
        # With L_ref at zero, E is minus the sum of the terms.
        terms = law.amounts({**q, "L_ref": 0.0}, at, pt)
        # L_ref has no prior of its own: it follows from that of the floor and from the terms.
        q["L_ref"] = pm.CustomDist("L_ref", -terms["E"], dist=loss, logp=log_density)
        for walk in law.walks:
            assert walk.knots
            knots = f"{walk.steps}_knot"
            model.add_coord(knots, walk.knots.positions)
            q[walk.steps] = pm.Normal(walk.steps, dims=knots)
        amounts = law.amounts(q, at, pt)
        for symbol, value in law.rescale(amounts, at, pt).items():
            if symbol not in q:
                pm.Deterministic(symbol, value)
        sigma = priors["sigma"].rv("sigma")
        x = {
            name: pm.Data(f"x_{name}", values, dims="row")
            for name, values in data.x.items()
        }
        mu = pt.log(law.evaluate(amounts, x, at, pt))
        for level, labels in data.groups.items():
            tau = priors[f"tau_{level}"].rv(f"tau_{level}")
            model.add_coord(level, labels)
            mu = mu + (tau * pm.Normal(f"{level}_z", dims=level))[data.index[level]]
        of_likelihood = {
            n: priors[prior].rv(n) for n, prior in spec.likelihood.parameters.items()
        }
        observed = pm.Data("observed", data.observed, dims="row")
        if data.order:
            # The density is that of each row given the row before it, so a draw of the rows is no
            # draw of the prior predictive distribution: that is made from the location.
            pm.Deterministic("location", mu, dims="row")
            ell = priors[LENGTH].rv(LENGTH)
            innovation, sigma = innovations(observed - mu, sigma, ell, data.order, pt)
            mu = observed - innovation
        spec.likelihood.observe(mu, sigma, of_likelihood, observed, "row")
    return model
