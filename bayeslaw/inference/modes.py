"""The mode of a posterior density: maximum a posteriori estimates."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import logit

from bayeslaw.common.arrays import Floats
from bayeslaw.common.defaults import DELTA
from bayeslaw.engine.machine import run, value_and_gradient
from bayeslaw.engine.program import assemble
from bayeslaw.engine.tape import FUNCTIONS as F
from bayeslaw.engine.tape import Tape, stack
from bayeslaw.huber.objective import AGREE, Objective
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.huber.starts import screened_starts
from bayeslaw.inference.points import fit_at
from bayeslaw.laws.priors import FLOOR, Prior
from bayeslaw.model.coordinates import FLAT, log_prior_of_floor, on_the_line
from bayeslaw.model.spec import Spec
from bayeslaw.model.training import Data, make_data
from bayeslaw.tables.table import LossTable

HESSIAN_STEP = 1e-6
"""Step of the central differences of the gradient that give second derivatives."""
SCREENED = 512
CLIMBED = 8
"""Starts that are screened, and of those, the best from which the density is climbed."""
GRADIENT = 1e-7
"""Largest gradient of the log density at a mode."""


def mode_of(
    spec: Spec, table: LossTable, *, delta: float = DELTA, seed: int = 0
) -> PointFit:
    """Mode of the posterior density over the law's parameters and the noise.

    The density is taken without the Jacobian of the sampler's transforms, so under flat priors and
    the ``huber`` likelihood the mode is the Huber minimiser within the bounds of the priors
    (``bounds="prior"`` of `fit_huber`). Starts are those of `fit_huber`, before any descent; each
    ascends on the exact gradient.
    """
    law = spec.law
    objective = Objective(spec.law, table, delta)
    priors = {}
    for name in (*law.coordinates, "sigma", *spec.likelihood.parameters):
        of_prior = spec.likelihood.parameters.get(name, name)
        priors[name] = spec.priors.get(of_prior, FLAT)
    density = _density(make_data(spec, table), priors)

    def down(point: Floats) -> tuple[float, Floats]:
        value, gradient = density(point)
        return -value, -gradient

    def hessian(point: Floats) -> Floats:
        differences = []
        for step in HESSIAN_STEP * np.eye(len(point)):
            differences.append(down(point + step)[1] - down(point - step)[1])
        rows = np.array(differences)
        # Differences of a gradient are symmetric only up to rounding.
        return np.asarray((rows + rows.T) / (4 * HESSIAN_STEP))

    def start(row: Floats) -> Floats:
        """A start of the Huber fit on the real line, off the bounds of the priors."""
        row = np.clip(row, objective.low, objective.high)
        # A start may have a coefficient of zero, which has no place on the real line.
        row[: objective.linear] = np.maximum(row[: objective.linear], 1e-2)
        paper = law.rescale(objective.amounts(row), objective.at)
        q = law.to_reference(paper, objective.at)
        # Nor has the scatter of a start that fits exactly.
        q["sigma"] = max(float(np.std(objective.residuals(row[None]))), 1e-6)
        values = []
        for name, prior in priors.items():
            # A parameter of the likelihood is of order one.
            of_order_one = 4.0 if prior.support == (0, np.inf) else 0.0
            values.append(_unconstrained(q.get(name, of_order_one), prior.support))
        return np.array(values)

    ends: list[Any] = []
    for row in screened_starts(objective, SCREENED, seed)[:CLIMBED]:
        end = minimize(
            down,
            start(row),
            jac=True,
            hess=hessian,
            method="trust-exact",
            options={"gtol": GRADIENT},
        )
        ends.append(end)
    ends.sort(key=lambda end: end.fun)
    height = np.array([end.fun for end in ends])
    agree = height - height[0] <= AGREE * max(1, abs(height[0]))
    same = []
    for end in ends[: agree.sum()]:
        q = {}
        for (name, prior), value in zip(priors.items(), end.x, strict=True):
            q[name] = on_the_line(prior.support, value)[0]
        same.append(objective.point(law.amounts(q, objective.at)))
    says = "the mode runs to a bound ({}); it is not interior"
    return fit_at(objective, np.array(same), SCREENED, agree, says, rtol=1e-4)


def _density(
    data: Data, priors: Mapping[str, Prior]
) -> Callable[[Floats], tuple[float, Floats]]:
    """Log density of parameters with some priors, and its gradient, on the real line."""
    spec = data.spec
    law = data.law
    at = data.at
    tape = Tape()
    point = tape.input("point", len(priors))
    x = data.x
    z = [point.view(k, (1, 1)) for k in range(len(priors))]
    q = {}
    for (name, prior), node in zip(priors.items(), z, strict=True):
        q[name] = on_the_line(prior.support, node)[0]
    amounts = law.amounts(q, at, F)
    loss = law.evaluate(amounts, {name: tape.constant(x[name]) for name in x}, at, F)
    residuals = tape.constant(data.observed) - F.log(loss)
    total = F.sum(spec.likelihood.log_density(residuals, q["sigma"], q, F))
    total = total + log_prior_of_floor(spec.priors, amounts["E"], q["L_ref"])
    for name, prior in priors.items():
        total = total + prior.log_density(q[name], F)
    # The floor follows from the others, so nothing else keeps it within the support of its prior.
    relative = FLOOR in spec.priors
    floor = amounts["E"] / q["L_ref"] if relative else amounts["E"]
    low, high = spec.priors[FLOOR if relative else "E"].support
    total = total + F.log((floor > low) * 1.0) + F.log((floor < high) * 1.0)
    program = assemble(tape, [total, stack(tape.gradient(total, z), 1)])
    (value, _), (gradient, _) = program.outputs
    run(program.once, program.index, program.memory)
    own = program.code, program.index, program.memory
    return lambda point: value_and_gradient(*own, point, value, gradient)


def _unconstrained(value: float, support: tuple[float, float]) -> float:
    """A value of some support as one of the real line, moved into the support if outside."""
    low, high = support
    if not low < value < high:
        width = min(high - low, 1.0)
        value = float(np.clip(value, low + 0.1 * width, high - 0.1 * width))
    if np.isinf(low):
        return value
    if np.isinf(high):
        return float(np.log(value))
    return float(logit((value - low) / (high - low)))
