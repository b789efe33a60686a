"""Draws from the prior of a specification: parameters, steps, effects, and the losses they make."""

import numpy as np

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import FitError
from bayeslaw.laws.priors import FLOOR
from bayeslaw.laws.symbols import Values
from bayeslaw.model import noise
from bayeslaw.model.spec import Spec
from bayeslaw.model.training import Data


def draw_parameters(
    spec: Spec, at: Values, count: int, rng: np.random.Generator
) -> dict[str, Floats]:
    """Draws of every parameter with a prior, of ``L_ref`` and ``E``, each of shape (count, 1)."""
    if improper := [name for name, prior in spec.priors.items() if not prior.proper]:
        raise FitError(
            f"{spec.law.name}: the priors of {', '.join(improper)} are flat and improper, so "
            "nothing can be drawn from them; fit with proper priors."
        )
    variables = {
        prior: variable for variable, prior in spec.likelihood.parameters.items()
    }
    # In an order that is that of a loaded fit, too.
    q = {
        variables.get(name, name): prior.sample(rng, (count, 1))
        for name, prior in sorted(spec.priors.items())
    }
    # With L_ref at zero, E is minus the sum of the terms.
    terms = -spec.law.amounts({**q, "L_ref": np.zeros((1, 1))}, at)["E"]
    q["L_ref"] = terms / (1 - q.pop(FLOOR)) if FLOOR in q else q["E"] + terms
    return q | {"E": q["L_ref"] - terms}


def draw(
    data: Data, count: int, rng: np.random.Generator
) -> tuple[dict[str, Floats], Floats]:
    """Draws of all variables, and of the log losses of the rows, shape (count, rows).

    Steps of random walks have shape (count, 1, knots), random effects (count, groups).
    """
    spec = data.spec
    law = data.law
    q = draw_parameters(spec, data.at, count, rng)
    for walk in law.walks:
        assert walk.knots
        q[walk.steps] = rng.standard_normal((count, 1, len(walk.knots.positions)))
    if spec.discrepancy.exact > 0:
        exact = rng.random((count, 1)) < spec.discrepancy.exact
        for name in law.discrepancy_parameters:  # among them the scales of the walks
            q[name] = np.where(exact, 0.0, q[name])
    log_loss = np.log(law.loss(law.amounts(q, data.at), data.x, data.at))
    for level, labels in data.groups.items():
        effect = q[f"{level}_effect"] = q[f"tau_{level}"] * rng.standard_normal(
            (count, len(labels))
        )
        log_loss = log_loss + effect[:, data.index[level]]
    sigma = np.broadcast_to(q["sigma"], log_loss.shape)
    if data.order:
        error = noise.draw_paths(spec.likelihood, rng, sigma, q, data.order)
    else:
        error = spec.likelihood.sample(rng, log_loss.shape, sigma, q)
    return q, np.asarray(log_loss + error)
