"""Sample a posterior by NUTS, in coordinates scaled by the curvature at its mode.

The convergence check decides after a fixed number of draws how many are needed, so the result does
not depend on the speed of the machine.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import nutpie
import xarray as xr
from nutpie.compiled_pyfunc import from_pyfunc
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from bayeslaw.common.arrays import Floats
from bayeslaw.inference.convergence import MAX_RHAT, MIN_ESS, Convergence, diagnose
from bayeslaw.inference.settings import Settings
from bayeslaw.model.density import Density, make_density
from bayeslaw.model.spec import Arrays, JointSpec, Spec

FIRST, LAST, TRIES = 500, 8000, 4
"""Draws per chain at first and at most, and most runs, of which the later follow the check."""
SMALL_STEPS = 0.99
"""Target acceptance after divergent transitions."""
STARTS, STEPS, LARGE = 6, 1000, 1e10
"""Ascents to the mode, most steps of one, and minus the log density where it is not finite."""
DIFFERENCE = 1e-4
"""Step of the differences of the gradient that give second derivatives."""
SHORT = 20_000
"""Rows times weights up to which chains run one after another."""
ROWS = 40
"""Fitted rows at which the convergence of log losses is checked."""
WIDEST = 2.0
"""Largest standard deviation by the curvature: priors are not wider on the real line."""


@dataclass(frozen=True)
class Sampled:
    """Result of a run of the sampler.

    Parameters
    ----------
    draws, stats : Dataset
        Reference coordinates, and the sampler's statistics, dims (chain, draw).
    convergence : Convergence
    settings : mapping
        Seed and settings of the run.
    """

    draws: xr.Dataset
    stats: xr.Dataset
    convergence: Convergence
    settings: Mapping[str, Any] = field(default_factory=dict)


def sample(spec: Spec | JointSpec, arrays: Arrays, settings: Settings) -> Sampled:
    """Draws of the reference coordinates.

    The same seed gives the same draws, whatever was fitted before, however fast the machine is, and
    however many threads linear algebra may use.

    Parameters
    ----------
    spec : Spec or JointSpec
    arrays : mapping of str to array
        Of `bayeslaw.model.spec.Data`, or `joint_arrays`.
    settings : Settings
        Without a number of draws, a run of `FIRST` says how many the check needs. With `retry`,
        runs after divergent transitions have smaller steps.
    """
    # Several threads sum in another order: the metric would differ in its last bits.
    with threadpool_limits(1, user_api="blas"), _bar(settings) as report:
        density, mode = to_mode(make_density(spec, arrays), settings.seed)
        factor = _factor(density, mode)
        draws, accept = settings.draws or FIRST, settings.target_accept
        for left in reversed(range(1 + settings.retry if settings.draws else TRIES)):
            points, stats = _run(density, mode, factor, settings, draws, accept, report)
            values = density.variables(points)
            sampled = xr.Dataset(
                {
                    name: (("chain", "draw", *(f"{name}_{i}" for i in range(v.ndim - 2))), v)
                    for name, v in values.items()
                },
                {"chain": np.arange(points.shape[0]), "draw": np.arange(points.shape[1])},
            )
            used = _used(density, arrays, sampled)
            convergence = diagnose(used, stats, _parameters(density, sampled))
            if convergence.ok or not left:
                break
            # With the same steps, more draws would only have more divergences.
            if settings.retry and (convergence.divergences or left == 1):
                accept = max(accept, SMALL_STEPS)
            if not settings.draws:
                draws = _needed(convergence, draws)
            # The draws know the scales better than the curvature at one point.
            size = len(density.names)
            flat = points[..., :size].reshape(-1, size)
            mode = np.concatenate([flat.mean(0), mode[size:]])
            factor = np.linalg.cholesky(np.cov(flat.T) + 1e-8 * np.eye(size))
    ran = settings.recorded | {"draws": draws, "target_accept": accept}
    return Sampled(sampled, stats, convergence, ran)


def _needed(convergence: Convergence, draws: int) -> int:
    """Draws per chain that should pass the check, as a run of `draws` mixed."""
    least = min(convergence.ess_bulk, convergence.ess_tail)
    if least >= MIN_ESS and convergence.rhat <= MAX_RHAT:
        return draws
    # With the metric from draws, a draw is worth up to twice as much.
    longer = max(2.0, 0.7 * MIN_ESS / max(least, 1.0))
    return min(LAST, FIRST * math.ceil(longer * draws / FIRST))


def _used(density: Density, arrays: Arrays, draws: xr.Dataset) -> xr.Dataset:
    """What forecasts use: log losses at some fitted rows, scales of noise and deviations."""
    found: dict[str, Any] = {}
    for prefix, (spec, at) in density.domains.items():
        own = {n.removeprefix(prefix): v for n, v in arrays.items() if n.startswith(prefix)}
        rows = np.unique(np.linspace(0, len(own["observed"]) - 1, ROWS).astype(int))
        names = spec.law.covariate_names
        x = dict(zip(names, own["x"].astype(float), strict=True))
        law = spec.law.over(x, at)
        q = {n: draws[f"{prefix}{n}"].values[..., None] for n in law.coordinates}
        q |= {w.steps: draws[f"{prefix}{w.steps}"].values[..., None, :] for w in law.walks}
        flat = {n: v.reshape(-1, *v.shape[2:]) for n, v in q.items()}
        loss = law.loss(law.amounts(flat, at), {name: v[rows] for name, v in x.items()}, at)
        log_loss = np.log(loss).reshape(draws.sizes["chain"], draws.sizes["draw"], len(rows))
        found[f"{prefix}log_loss"] = ("chain", "draw", f"{prefix}row"), log_loss
        scales = {"sigma", *(f"tau_{level}" for level in spec.effects)}
        for name in sorted({*scales, *(walk.scale for walk in law.walks)}):
            found[f"{prefix}{name}"] = ("chain", "draw"), draws[f"{prefix}{name}"].values
    return xr.Dataset(found)


def _parameters(density: Density, draws: xr.Dataset) -> xr.Dataset:
    """Draws of the laws' parameters, in paper coordinates."""
    found: dict[str, Any] = {}
    for prefix, (spec, at) in density.domains.items():
        law = spec.law
        q = {name: draws[f"{prefix}{name}"].values for name in law.coordinates}
        paper = law.to_paper(q, at)
        plain = [name for name in law.without_discrepancy.parameters if name in paper]
        found |= {f"{prefix}{name}": (("chain", "draw"), paper[name]) for name in plain}
    return xr.Dataset(found)


def to_mode(density: Density, seed: int) -> tuple[Density, Floats]:
    """The density whitened at its mode, and the mode over parameters and effects."""
    size, weights = len(density.names), len(density.weights)
    rng = np.random.default_rng(seed)

    def climb(density: Density, start: Floats) -> Any:
        def down(point: Floats) -> tuple[float, Floats]:
            whole = np.concatenate([point[:size], np.zeros(weights), point[size:]])
            value, gradient = density(whole)
            kept = np.delete(gradient, np.s_[size : size + weights])
            return (-value, -kept) if np.isfinite(value) else (LARGE, 0 * point)

        steps = {"maxiter": STEPS, "maxfun": 2 * STEPS}
        return minimize(down, start, jac=True, method="L-BFGS-B", options=steps)  # type: ignore[call-overload]

    first = np.concatenate([density.start, np.zeros(len(density.effects))])
    jitter = np.zeros((STARTS, len(first)))
    jitter[1:, :size] = rng.uniform(-1, 1, (STARTS - 1, size))
    jitter[:, density.levels_of_loss] = 0.0
    ends = [climb(density, first + each) for each in jitter]
    best = min(ends, key=lambda end: end.fun)
    for _ in range(2):
        density = density.whitened_at(best.x[:size])
        best = climb(density, best.x)
    return density, np.asarray(best.x, float)


def _factor(density: Density, mode: Floats) -> Floats:
    """Factor of the covariance of the parameters by the curvature at the mode."""
    size, weights = len(density.names), len(density.weights)

    def gradient(parameters: Floats) -> Floats:
        point = np.concatenate([parameters, np.zeros(weights), mode[size:]])
        return density(point)[1][:size]

    steps = DIFFERENCE * np.eye(size)
    rows = [(gradient(mode[:size] - h) - gradient(mode[:size] + h)) / 2 / DIFFERENCE for h in steps]
    hessian = np.nan_to_num(np.array(rows))
    eigenvalues, vectors = np.linalg.eigh(0.5 * (hessian + hessian.T))
    scale = 1 / np.sqrt(np.maximum(np.abs(eigenvalues), 1 / WIDEST**2))
    return np.asarray(vectors * scale @ vectors.T)


def _run(
    density: Density,
    mode: Floats,
    factor: Floats,
    settings: Settings,
    draws: int,
    accept: float,
    report: "Report",
) -> tuple[Floats, xr.Dataset]:
    """Points of `Density.unwhitened`, shape (chains, draws, coordinates), and statistics."""
    size = len(density.names)
    centre, factor = mode[:size].copy(), np.ascontiguousarray(factor)

    def log_density() -> Callable[[Floats], tuple[float, Floats]]:
        return lambda point: density.scaled(point, centre, factor)[:2]

    def expand(*_: Any) -> Callable[[Floats], dict[str, Floats]]:
        return lambda point: {"point": density.scaled(point, centre, factor)[2]}

    def start(seed: int) -> Floats:
        found = np.random.default_rng(seed).normal(size=density.size)
        found[:size] *= 0.5
        return found

    names, shapes, types = ["point"], [(density.size,)], [np.dtype("float64")]
    model = from_pyfunc(
        density.size, log_density, expand, types, shapes, names, make_initial_point_fn=start
    )
    tree = nutpie.sample(
        model,
        draws=draws,
        tune=settings.tune,
        chains=settings.chains,
        cores=min(settings.cores or _cores(density), settings.chains),
        seed=settings.seed,
        target_accept=accept,
        save_warmup=False,
        progress_bar=False,
        progress_callback=report,
        progress_rate=100,
    )
    return tree["posterior"]["point"].values, tree["sample_stats"].dataset


def _cores(density: Density) -> int:
    """All cores, but one where a gradient is so short that threads wait for each other."""
    work = len(density.arguments[0]) * len(density.weights)
    return (os.process_cpu_count() or 1) if work > SHORT else 1


class ChainProgress(Protocol):
    """Progress of one chain, as nutpie reports it."""

    finished_draws: int
    total_draws: int
    divergences: int
    step_size: float


type Report = Callable[[Sequence[ChainProgress]], None]


@contextmanager
def _bar(settings: Settings) -> Iterator[Report]:
    """Progress on stderr: draws, divergences and step of each chain."""
    if not settings.progress:
        yield lambda states: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("chain {task.fields[chain]}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} draws"),
        TextColumn("{task.fields[divergences]} divergences, step {task.fields[step]:.3f}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        chains = range(settings.chains)
        tasks = [bar.add_task("", total=None, chain=c, divergences=0, step=0.0) for c in chains]

        def update(states: Sequence[ChainProgress]) -> None:
            for task, state in zip(tasks, states, strict=True):
                bar.update(
                    task,
                    completed=state.finished_draws,
                    total=state.total_draws,
                    divergences=state.divergences,
                    step=state.step_size,
                )

        yield update
