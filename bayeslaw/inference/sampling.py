"""Sample a posterior by NUTS, in coordinates scaled by the curvature at its mode.

The convergence check decides after a fixed number of draws how many are needed, and retries are
limited by the gradients that they need: draws do not depend on the speed of the machine, nor on
what else it does. The clock is read for messages alone.

nutpie imports ArviZ with Matplotlib, and the density Numba: both are imported where they are used,
so that a saved fit is loaded without them.
"""

import math
import os
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from scipy.optimize import OptimizeResult, minimize
from threadpoolctl import threadpool_limits

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import FitError, FitWarning, argument
from bayeslaw.common.formatting import duration
from bayeslaw.common.progress import say, showing, step
from bayeslaw.inference.convergence import (
    MAX_RHAT,
    MAX_SCALE_ERROR,
    MIN_ESS,
    Convergence,
    diagnose,
    failing,
    scale_errors,
)
from bayeslaw.inference.settings import FitSettings
from bayeslaw.model.training import Data

if TYPE_CHECKING:
    from bayeslaw.model.density import Density

FIRST = 600
LAST = 8000
TRIES = 5
"""Draws per chain at first and at most, and most runs, of which the later follow the check.

With 600, README's first fit passes at once with seeds 10 to 19 (`python -m benchmarks seeds`).
"""
RETRY_WORK = 1e11
"""Numbers that gradients may compute in all retries of a fit, unless more is asked for.

A gradient computes each number in the memory of its density once, in about 3 nanoseconds, so this
is about five minutes of one idle core, for tables of any size.
"""
SMALLER_STEPS = 0.97, 0.99
"""Target acceptance after too many divergent transitions, first and then; then in a last run."""
MODE_STARTS = 6
MODE_STEPS = 1000
LARGE = 1e10
"""Ascents to the mode, most steps of one, and minus the log density where it is not finite."""
CURVATURE_STEP = 1e-4
"""Step of the differences of the gradient that give second derivatives."""
PARALLEL_WORK = 20_000
"""Rows times weights up to which chains run one after another."""
CHECKED_ROWS = 40
"""Fitted rows at which the convergence of log losses is checked."""
WIDEST = 2.0
"""Largest standard deviation by the curvature: priors are not wider on the real line."""
REPORT_MILLISECONDS = 200
"""Milliseconds between two reports of how many draws there are, and two looks at their work."""

PACKAGES = ("bayeslaw", "pymc", "pytensor", "nutpie", "numpy", "xarray")
"""Packages whose versions a posterior records."""


@dataclass(frozen=True)
class Sampled:
    draws: xr.Dataset
    stats: xr.Dataset
    convergence: Convergence
    # Those that a posterior records, as they were at last, and versions.
    settings: Mapping[str, Any]


def sample(data: Data, settings: FitSettings) -> Sampled:
    """Draws of the reference coordinates.

    On one machine the same seed gives the same draws, whatever was fitted before, however busy the
    machine is, and however many threads linear algebra may use. So does whether a retry is made.
    """
    from bayeslaw.model.density import make_density

    # Several threads sum in another order: the metric would differ in its last bits.
    law = data.spec.law.name
    smaller = settings.retry is not False
    again = ""
    too_long = ""
    with showing(settings.progress), threadpool_limits(1, user_api="blas"):
        with step(f"{law}: finding the mode"):
            density, mode = to_mode(make_density(data), settings.seed)
            size = len(density.names)
            factor = _factor(density, mode)
        left_for_retries = math.inf  # the first run is as long as it is
        draws = settings.draws or FIRST
        accept = settings.target_accept
        # A stated number of draws is kept: the retry has smaller steps alone.
        for left in reversed(range(1 + smaller if settings.draws else TRIES)):
            words = f"{law}: {draws:,} draws"
            total = settings.chains * (settings.tune + draws)
            began = time.monotonic()
            with step(f"{words} of each of {settings.chains} chains", total) as move:
                run = _run(
                    density,
                    mode[:size],
                    factor,
                    settings,
                    draws,
                    accept,
                    move,
                    left_for_retries,
                )
            seconds = time.monotonic() - began
            if run is None:
                too_long = f"was stopped, after {duration(seconds)} here"
                break
            points, stats, gradients = run
            draws_of = draws
            accept_of = accept
            left_for_retries -= gradients
            values = density.variables(points)
            losses, scales, parameters = _checked(density, values)
            convergence = diagnose(losses, stats, parameters, scales)
            # Nothing is left to try after the most draws with the smallest steps.
            most = not settings.draws and draws >= LAST and accept >= SMALLER_STEPS[-1]
            if convergence.enough or not left or most:
                break
            draws, accept = _next_run(
                convergence, draws, accept, settings, last=left == 1
            )
            slow = ", ".join([*failing(losses), *_coarse(scales)])
            why = "; ".join(convergence.missed) + (f" ({slow})" if slow else "")
            # As long for each draw as before: smaller steps take longer, better scales less.
            times = (settings.tune + draws) / (settings.tune + draws_of)
            ahead = duration(times * seconds)
            again = f"{draws:,} draws, target acceptance {accept:g}"
            if settings.retry is None:
                if math.isinf(left_for_retries):
                    left_for_retries = RETRY_WORK / density.memory.size
                if times * gradients > left_for_retries:
                    too_long = (
                        f"would take long, about {ahead} here, so it was not made"
                    )
                    break
            say(f"{words}: {why}; again with {again}, about {ahead}")
            # The draws know the scales better than the curvature at one point.
            flat = points[..., :size].reshape(-1, size)
            if len(flat) > size:
                mode = np.concatenate([flat.mean(0), mode[size:]])
                factor = np.linalg.cholesky(np.cov(flat.T) + 1e-8 * np.eye(size))
    if too_long:
        words = f"{law}: {why}; a retry with {again} {too_long}"
        warnings.warn(
            f"{words}; ask for it by {argument('retry', True)}.",
            FitWarning,
            stacklevel=2,
        )
    dims = {
        name: ("chain", "draw", *(f"{name}_{i}" for i in range(value.ndim - 2)))
        for name, value in values.items()
    }
    chains = {"chain": np.arange(points.shape[0]), "draw": np.arange(points.shape[1])}
    sampled = xr.Dataset(
        {name: (dims[name], value) for name, value in values.items()}, chains
    )
    ran = settings.recorded() | {"draws": draws_of, "target_accept": accept_of}
    ran["versions"] = {name: version(name) for name in PACKAGES}
    return Sampled(sampled, stats, convergence, ran)


def _next_run(
    convergence: Convergence,
    draws: int,
    accept: float,
    settings: FitSettings,
    *,
    last: bool,
) -> tuple[int, float]:
    """Draws per chain and target acceptance of the next run."""
    if settings.retry is not False:
        # With the same steps, more draws would only have more divergences.
        if last or draws >= LAST:
            accept = max(accept, SMALLER_STEPS[-1])
        elif convergence.diverging:
            accept = next((a for a in SMALLER_STEPS if a > accept), accept)
    return draws if settings.draws else needed_draws(convergence, draws), accept


def needed_draws(convergence: Convergence, draws: int) -> int:
    """Draws per chain that should pass the check, as a run of `draws` mixed."""
    least = min(convergence.ess_bulk, convergence.ess_tail)
    # The error of a mean falls with the root of the draws.
    by_scales = (convergence.scale_error / MAX_SCALE_ERROR) ** 2
    if least >= MIN_ESS and convergence.rhat <= MAX_RHAT and by_scales <= 1:
        return draws
    # With the metric from draws, a draw is worth up to twice as much.
    longer = max(2.0, 0.7 * MIN_ESS / max(least, 1.0), 0.7 * by_scales)
    return min(LAST, FIRST * math.ceil(longer * draws / FIRST))


def _coarse(scales: xr.Dataset) -> list[str]:
    """Scales that are not known well enough."""
    if scales.sizes["chain"] < 2 or scales.sizes["draw"] < 4:
        return []
    return [
        name
        for name, error in scale_errors(scales).items()
        if not error <= MAX_SCALE_ERROR
    ]


def _checked(
    density: "Density", values: Mapping[str, Floats]
) -> tuple[xr.Dataset, xr.Dataset, xr.Dataset]:
    """Log losses at some fitted rows, scales, and the law's parameters in paper coordinates.

    Forecasts use the losses, and the scales of noise, effects and deviations.
    """
    data = density.data
    law = data.spec.law
    at = data.at
    shape = values["sigma"].shape
    by_draw = ("chain", "draw")
    q: dict[str, Floats] = {n: values[n].reshape(-1, 1) for n in law.coordinates}
    for deviation in law.scaled:
        steps = values[deviation.steps]
        q[deviation.steps] = steps.reshape(-1, 1, steps.shape[-1])
    rows = np.unique(np.linspace(0, len(data) - 1, CHECKED_ROWS).astype(int))
    amounts = law.amounts(q, at)
    loss = data.law.loss(amounts, {name: v[rows] for name, v in data.x.items()}, at)
    losses = xr.Dataset(
        {"log_loss": ((*by_draw, "row"), np.log(loss).reshape(*shape, -1))}
    )
    names = {"sigma", *(f"tau_{level}" for level in data.groups)}
    names |= {deviation.scale for deviation in law.scaled}
    scales = xr.Dataset({name: (by_draw, values[name]) for name in sorted(names)})
    paper = law.rescale(amounts, at)
    parameters = {
        name: (by_draw, np.reshape(paper[name], shape))
        for name in law.without_discrepancy.parameters
    }
    return losses, scales, xr.Dataset(parameters)


def to_mode(density: "Density", seed: int) -> tuple["Density", Floats]:
    """The density whitened at its mode, and the mode over parameters and effects."""
    size = len(density.names)
    weights = len(density.weights)
    rng = np.random.default_rng(seed)

    def climb(density: "Density", start: Floats) -> OptimizeResult:
        def down(point: Floats) -> tuple[float, Floats]:
            # Whitened weights are zero at their mode given the parameters.
            whole = np.concatenate([point[:size], np.zeros(weights), point[size:]])
            value, gradient = density(whole)
            kept = np.delete(gradient, np.s_[size : size + weights])
            # A finite value, from which a line search comes back.
            return (-value, -kept) if np.isfinite(value) else (LARGE, 0 * point)

        steps = {"maxiter": MODE_STEPS, "maxfun": 2 * MODE_STEPS}
        end: OptimizeResult = minimize(  # type: ignore[call-overload]
            down, start, jac=True, method="L-BFGS-B", options=steps
        )
        return end

    first = np.concatenate([density.start, np.zeros(len(density.effects))])
    jitter = np.zeros((MODE_STARTS, len(first)))
    jitter[1:, :size] = rng.uniform(-1, 1, (MODE_STARTS - 1, size))
    # The data determine the losses at the reference points.
    jitter[:, density.names.index("L_ref")] = 0.0
    best = min(
        (climb(density, first + offset) for offset in jitter), key=lambda end: end.fun
    )
    if best.fun >= LARGE:
        raise FitError(
            f"{density.data.spec.law.name}: the density is finite for no parameters that were "
            "tried; check that the law has a value in every row and falls along each leading "
            "covariate, and that no loss is far from the others."
        )
    # The mode moves a little with the matrix that whitens.
    for _ in range(2):
        density = density.whitened_at(best.x[:size])
        best = climb(density, best.x)
    return density, np.asarray(best.x, float)


def _factor(density: "Density", mode: Floats) -> Floats:
    """Factor of the covariance of the parameters by the curvature at the mode."""
    size = len(density.names)
    weights = len(density.weights)

    def gradient(parameters: Floats) -> Floats:
        point = np.concatenate([parameters, np.zeros(weights), mode[size:]])
        return density(point)[1][:size]

    steps = CURVATURE_STEP * np.eye(size)
    rows = [
        (gradient(mode[:size] - h) - gradient(mode[:size] + h)) / 2 / CURVATURE_STEP
        for h in steps
    ]
    hessian = np.nan_to_num(np.array(rows))
    eigenvalues, vectors = np.linalg.eigh(0.5 * (hessian + hessian.T))
    # A negative eigenvalue, off the mode, has a scale too; a flat direction is as wide as priors.
    scale = 1 / np.sqrt(np.maximum(np.abs(eigenvalues), 1 / WIDEST**2))
    return np.asarray(vectors * scale @ vectors.T)


def _run(
    density: "Density",
    mode: Floats,
    factor: Floats,
    settings: FitSettings,
    draws: int,
    accept: float,
    move: Callable[[int], None],
    most: float,
) -> tuple[Floats, xr.Dataset, int] | None:
    """Points of `Density.expand`, shape (chains, draws, coordinates), statistics, and gradients.

    `move` is told how many points there are so far. None if a chain needs more than its share of
    `most` gradients.
    """
    import nutpie
    from nutpie.compiled_pyfunc import from_pyfunc

    scaled = density.scaled(mode, factor)
    counted: list[_Counted] = []

    # Chains may run in threads, and a density computes in its own memory: each chain has a copy.
    def log_density() -> Callable[[Floats], tuple[float, Floats]]:
        counted.append(_Counted(scaled.copy()))
        return counted[-1]

    def too_long() -> bool:
        return any(each.count > most / settings.chains for each in counted)

    def expand(*_: object) -> Callable[[Floats], dict[str, Floats]]:
        own = scaled.copy()
        return lambda point: {"point": own.expand(point)}

    def start(seed: int) -> Floats:
        point = np.random.default_rng(seed).normal(size=density.size)
        point[: len(mode)] *= 0.5
        return point

    names = ["point"]
    shapes = [(density.size,)]
    types = [np.dtype("float64")]
    model = from_pyfunc(
        density.size,
        log_density,
        expand,
        types,
        shapes,
        names,
        make_initial_point_fn=start,
    )
    # Threads would wait for each other where a gradient is short.
    work = len(density.data) * len(density.weights)
    cores = (os.process_cpu_count() or 1) if work > PARALLEL_WORK else 1
    sampler = nutpie.sample(
        model,
        draws=draws,
        tune=settings.tune,
        chains=settings.chains,
        cores=min(settings.cores or cores, settings.chains),
        seed=settings.seed,
        target_accept=accept,
        save_warmup=False,
        progress_bar=False,
        progress_callback=lambda chains: move(
            sum(chain.finished_draws for chain in chains)
        ),
        progress_rate=REPORT_MILLISECONDS,
        blocking=False,
    )
    tree = None
    try:
        while tree is None and not too_long():
            with suppress(TimeoutError):
                tree = sampler.wait(timeout=REPORT_MILLISECONDS / 1000)
    except BaseException:  # by itself nutpie returns what it has when it is interrupted
        sampler.cancel()
        raise
    # A run that ended before it was found too long is left out too: the clock does not decide.
    if tree is None or too_long():
        sampler.cancel()
        return None
    gradients = sum(each.count for each in counted)
    return tree["posterior"]["point"].values, tree["sample_stats"].dataset, gradients


class _Counted:
    """A log density that counts how often it is evaluated."""

    def __init__(self, density: "Density") -> None:
        self.density = density
        self.count = 0

    def __call__(self, point: Floats) -> tuple[float, Floats]:
        self.count += 1
        return self.density(point)
