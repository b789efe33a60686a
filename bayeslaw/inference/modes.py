"""The mode of a posterior density: maximum a posteriori estimates."""

import warnings
from collections.abc import Callable

import numpy as np
from scipy.special import expit, logit

from bayeslaw.common.arrays import Floats
from bayeslaw.common.defaults import DELTA
from bayeslaw.common.errors import FitWarning
from bayeslaw.huber.descent import AGREE, Objective, screened_starts
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.laws.priors import Prior
from bayeslaw.model.building import build
from bayeslaw.model.spec import Spec, make_data
from bayeslaw.tables.table import LossTable

DIFFERENCE = 1e-6
"""Step of the central differences of the gradient that give second derivatives."""

type Function = Callable[[Floats], tuple[float, Floats]]
"""Value and gradient at a point; an infinite value outside the domain."""


def fit_map(
    spec: Spec, table: LossTable, *, delta: float = DELTA, seed: int = 0, polish: int = 8
) -> PointFit:
    """Mode of the posterior density over the law's parameters and the noise.

    The density is taken without the Jacobian of the sampler's transforms, so under flat priors and
    the ``huber`` likelihood the mode is the Huber minimiser within the bounds of the priors
    (``bounds="prior"`` of `fit_huber`). Starts are those of `fit_huber`, before any descent; each
    ascends on PyMC's own gradient.

    Parameters
    ----------
    spec : Spec
    table : LossTable
    delta : float
        Threshold of the Huber loss that screens the starts, in log loss.
    seed : int
        Of the starts.
    polish : int
        Number of starts to ascend from.
    """
    import pymc as pm
    import pytensor.tensor as pt

    law = spec.law
    objective = Objective(law, table, delta)
    model = build(spec, make_data(spec, table).arrays)
    names = [rv.name for rv in model.free_RVs]
    free = [model.rvs_to_values[rv] for rv in model.free_RVs]
    density = model.logp(jacobian=False)
    evaluate = pm.compile(free, [density, *pt.grad(density, free)])

    def down(vector: Floats) -> tuple[float, Floats]:
        value, *gradient = evaluate(*vector)
        return (-float(value), -np.array(gradient)) if np.isfinite(value) else (np.inf, 0 * vector)

    modes = [descend(down, start) for start in _starts(objective, names, spec, seed, polish)]
    modes.sort(key=lambda mode: mode[0])
    height = np.array([fun for fun, _ in modes])
    agree = height - height[0] <= AGREE * max(1, abs(height[0]))

    def sizes(mode: Floats) -> dict[str, Floats]:
        q = {n: constrain(spec, n, value) for n, value in zip(names, mode, strict=True)}
        return law.amounts(q, objective.at)

    same = [sizes(mode) for (_, mode), near in zip(modes, agree, strict=True) if near]
    solutions = [{n: float(v) for n, v in law.rescale(p, objective.at).items()} for p in same]
    vector = objective.point(same[0])
    bounds = objective.on_bound(vector, rtol=1e-4)
    if bounds:
        hit = ", ".join(f"{name} = {value:g}" for name, value in bounds.items())
        warnings.warn(
            f"{law.name} on {table.name}: the mode runs to a bound ({hit}); it is not interior.",
            FitWarning,
            stacklevel=3,
        )
    return PointFit(
        law=law,
        parameters=solutions[0],
        at=objective.at,
        objective=float(objective.value(objective.residuals(vector[None]))[0]) / len(table),
        delta=delta,
        starts=512,
        polished=len(modes),
        agreeing=float(agree.mean()),
        at_bounds=bounds,
        table=table,
        bounds="prior",
        solutions=solutions,
    )


def _starts(
    objective: Objective, names: list[str], spec: Spec, seed: int, keep: int
) -> list[Floats]:
    """Screened starts of the Huber fit as points of the sampler's space, off the bounds."""
    law, starts = spec.law, []
    for row in screened_starts(objective, 512, seed)[:keep]:
        row = np.clip(row, objective.low, objective.high)
        row[: objective.linear] = np.maximum(row[: objective.linear], 1e-2)
        p = objective.amounts(row)
        q = law.to_reference(law.rescale(p, objective.at), objective.at)
        q["sigma"] = max(float(np.std(objective.residuals(row[None]))), 1e-6)
        q |= {n: _start_of(spec.priors[prior]) for n, prior in spec.likelihood.parameters.items()}
        starts.append(np.array([_unconstrained(spec, name, q[name]) for name in names], float))
    return starts


def _unconstrained(spec: Spec, name: str, value: float) -> float:
    """Unconstrained value of a start, moved into the support of its prior if it lies outside."""
    low, high = _support(spec, name)
    if not low < value < high:
        width = min(high - low, 1.0)
        value = float(np.clip(value, low + 0.1 * width, high - 0.1 * width))
    return unconstrain(spec, name, value)


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


def _start_of(prior: Prior) -> float:
    """Start of a parameter of the likelihood: inside its support, of order one."""
    low, high = prior.support
    return 4.0 if high == np.inf and low == 0 else 0.0 if low == -np.inf else 0.5 * (low + high)


def descend(
    function: Function, point: Floats, *, steps: int = 300, tol: float = 1e-13
) -> tuple[float, Floats]:
    """Descend by damped Newton steps until five in a row gain less than `tol`, relatively.

    For functions of a dozen or so dimensions. Eigenvalues of the Hessian, from differences of the
    gradient, are taken by their absolute value, so that every step descends.

    Returns
    -------
    value : float
    point : array, shape (dims,)

    Examples
    --------
    >>> import numpy as np
    >>> def function(x):
    ...     return float(np.cosh(x - 1).sum()), np.sinh(x - 1)
    >>> value, point = descend(function, np.array([3.0, -2.0]))
    >>> round(value, 9), point.round(6)
    (2.0, array([1., 1.]))
    """
    value, gradient = function(point)
    damping, idle = 1.0, 0
    for _ in range(steps):
        ends = DIFFERENCE * np.eye(len(point))
        rows = np.array([function(point + h)[1] - function(point - h)[1] for h in ends])
        hessian = rows / (2 * DIFFERENCE)
        eigenvalues, vectors = np.linalg.eigh(0.5 * (hessian + hessian.T))
        while damping < 1e12:
            trial = point - vectors @ ((vectors.T @ gradient) / (np.abs(eigenvalues) + damping))
            reached, slope = function(trial)
            if reached < value:
                break
            damping *= 8
        else:
            break
        idle = 0 if value - reached > tol * max(1.0, abs(value)) else idle + 1
        point, value, gradient, damping = trial, reached, slope, max(damping / 16, 1e-9)
        if idle == 5:
            break
    return value, point
