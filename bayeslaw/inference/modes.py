"""The mode of a posterior density: maximum a posteriori estimates."""

import warnings

import numpy as np

from bayeslaw.common.arrays import Floats
from bayeslaw.common.defaults import DELTA
from bayeslaw.common.errors import FitWarning
from bayeslaw.huber.multistart import AGREE
from bayeslaw.huber.newton import descend
from bayeslaw.huber.objective import Objective
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.huber.starts import screened_starts
from bayeslaw.laws.priors import Prior
from bayeslaw.model.building import build, constrain, data, unconstrain
from bayeslaw.model.spec import Spec
from bayeslaw.tables.table import LossTable


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
    problem = Objective(law, table, delta)
    model = build(spec, data(spec, table))
    names = [rv.name for rv in model.free_RVs]
    free = [model.rvs_to_values[rv] for rv in model.free_RVs]
    density = model.logp(jacobian=False)
    evaluate = pm.compile(free, [density, *pt.grad(density, free)])

    def down(vector: Floats) -> tuple[float, Floats]:
        value, *gradient = evaluate(*vector)
        return (-float(value), -np.array(gradient)) if np.isfinite(value) else (np.inf, 0 * vector)

    modes = [descend(down, start) for start in _starts(problem, names, spec, seed, polish)]
    modes.sort(key=lambda mode: mode[0])
    height = np.array([fun for fun, _ in modes])
    agree = height - height[0] <= AGREE * max(1, abs(height[0]))

    def sizes(mode: Floats) -> dict[str, Floats]:
        q = {n: constrain(spec, n, value) for n, value in zip(names, mode, strict=True)}
        return law.sizes(q, problem.at)

    same = [sizes(mode) for (_, mode), near in zip(modes, agree, strict=True) if near]
    solutions = [{n: float(v) for n, v in law.rescale(p, problem.at).items()} for p in same]
    vector = problem.point(same[0])
    bounds = problem.on_bound(vector, rtol=1e-4)
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
        at=problem.at,
        objective=float(problem.objective(problem.residuals(vector[None]))[0]) / len(table),
        delta=delta,
        starts=512,
        polished=len(modes),
        agreeing=float(agree.mean()),
        at_bounds=bounds,
        table=table,
        bounds="prior",
        solutions=solutions,
    )


def _starts(problem: Objective, names: list[str], spec: Spec, seed: int, keep: int) -> list[Floats]:
    """Screened starts of the Huber fit as points of the sampler's space, off the bounds."""
    law, starts = spec.law, []
    for row in screened_starts(problem, 512, seed)[:keep]:
        row = np.clip(row, problem.low, problem.high)
        row[: problem.linear] = np.maximum(row[: problem.linear], 1e-2)
        p = problem.sizes(row)
        q = law.to_reference(law.rescale(p, problem.at), problem.at)
        q["sigma"] = max(float(np.std(problem.residuals(row[None]))), 1e-6)
        q |= {n: _start_of(spec.priors[prior]) for n, prior in spec.likelihood.parameters.items()}
        starts.append(np.array([_unconstrained(spec, name, q[name]) for name in names], float))
    return starts


def _unconstrained(spec: Spec, name: str, value: float) -> float:
    """Unconstrained value of a start, moved into the support of its prior if it lies outside."""
    prior = spec.priors.get(name)
    low, high = prior.support if prior else (-np.inf, np.inf)
    if not low < value < high:
        width = min(high - low, 1.0)
        value = float(np.clip(value, low + 0.1 * width, high - 0.1 * width))
    return unconstrain(spec, name, value)


def _start_of(prior: Prior) -> float:
    """Start of a parameter of the likelihood: inside its support, of order one."""
    low, high = prior.support
    return 4.0 if high == np.inf and low == 0 else 0.0 if low == -np.inf else 0.5 * (low + high)
