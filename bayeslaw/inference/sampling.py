"""Sample a posterior: a short run for the metric, then draws until the convergence check passes.

The check is made after fixed numbers of draws, so the result does not depend on the speed of
the machine.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import nutpie
import xarray as xr
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from bayeslaw.common.arrays import Floats
from bayeslaw.inference import metric
from bayeslaw.inference.convergence import Convergence, diagnose, worst
from bayeslaw.inference.programs import Density, program
from bayeslaw.inference.settings import Settings
from bayeslaw.model.data import Arrays
from bayeslaw.model.spec import JointSpec, Spec

PILOT_TUNE, PILOT_DRAWS, PILOT_ACCEPT = 250, 50, 0.8
"""The short run: tuning steps, draws, and target acceptance."""
BLOCKS = (250, 500, 1000, 2000, 4000, 8000)
"""Numbers of draws per chain after which convergence is checked."""
TRIAL, POOR = 250, 1.03
"""Draws per chain after which chains with a larger R-hat start again, with a metric from them."""
ASCENT, LARGE = 500, 1e10
"""Most steps of an ascent to a start, and minus the log density where it is not finite."""
SOME = metric.MANY
"""Number of points that are kept, as starts of another run and for its metric."""


@dataclass(frozen=True)
class Sampled:
    """Result of a run of the sampler.

    Parameters
    ----------
    draws, stats : Dataset
        Reference coordinates, and the sampler's statistics, dims (chain, draw).
    convergence : Convergence
    points : array, shape (points, coordinates)
        Some draws on the real line, from which another run may start.
    settings : mapping
        Seed and settings of the run.
    """

    draws: xr.Dataset
    stats: xr.Dataset
    convergence: Convergence
    points: Floats
    settings: Mapping[str, Any] = field(default_factory=dict)


def sample(
    spec: Spec | JointSpec, arrays: Arrays, settings: Settings, points: Floats | None = None
) -> Sampled:
    """Draws of the reference coordinates.

    The same seed gives the same draws, whatever was fitted before, however fast the machine is, and
    however many threads linear algebra may use.

    Parameters
    ----------
    spec : Spec or JointSpec
    arrays : mapping of str to array
        Of `bayeslaw.model.data.Data`, or `joint_arrays`.
    settings : Settings
        Without a number of draws, as many of `BLOCKS` as the convergence check needs. If it
        fails, `retry` samples once more from these draws, with smaller steps.
    points : array, shape (points, coordinates), optional
        Points of an earlier run, on the real line, in place of the short run.
    """
    chains, draws = settings.chains, settings.draws
    cores = min(settings.cores or os.process_cpu_count() or 1, chains)
    density = Density(program(spec, arrays), arrays)
    # Several threads sum in another order: the metric would differ in its last bits.
    with threadpool_limits(1, user_api="blas"), _bar(chains, settings.progress) as report:
        run = _Run(density, chains, cores, report)
        if points is None:
            points = run.pilot(_start(density, spec, arrays), settings.seed)
        blocks = (draws,) if draws else BLOCKS
        poor = POOR if chains > 1 and not draws else None
        sampled = run.until_gate(points, settings, blocks, poor=poor)
        if poor and not sampled.convergence.rhat <= poor:
            sampled = run.until_gate(sampled.points, settings, blocks)
    if settings.retry and not sampled.convergence.ok:
        again = replace(
            settings,
            draws=draws and 2 * draws,
            tune=2 * settings.tune,
            target_accept=max(settings.target_accept, 0.99),
            retry=False,
        )
        return sample(spec, arrays, again, sampled.points)
    ran = settings.recorded | {"draws": sampled.draws.sizes["draw"]}
    return replace(sampled, settings=ran)


class _Run:
    """Runs of nutpie on one density."""

    def __init__(self, density: Density, chains: int, cores: int, report: "Report") -> None:
        self.density, self.report = density, report
        self.options = {
            "chains": chains,
            "cores": cores,
            "progress_bar": False,
            "save_warmup": False,
            "blocking": False,
            "progress_rate": 20,
        }

    def pilot(self, start: Callable[[int], Floats], seed: int) -> Floats:
        """Points of a short run from scratch, shape (points, coordinates)."""
        size = self.density.size
        model = self.density.mapped(np.zeros(size), np.ones((size, 1)), start)
        running = nutpie.sample(
            model,
            tune=PILOT_TUNE,
            draws=PILOT_DRAWS,
            target_accept=PILOT_ACCEPT,
            seed=seed,
            **self.options,
        )
        chains: list[Floats] = list(running.wait()["posterior"]["sampled"].values)
        return np.concatenate(chains)

    def until_gate(
        self, points: Floats, settings: Settings, blocks: Sequence[int], poor: float | None = None
    ) -> Sampled:
        """Draws in mapped coordinates, stopped after the first block that passes the check.

        They also stop after `TRIAL` draws unless R-hat is at most `poor`, if that is given; a chain
        that does not move has no R-hat.
        """
        shift, factor = metric.learn(self.density, points)
        inside = metric.inward(factor, points - shift)

        def start(seed: int) -> Floats:
            return np.array(inside[seed % len(inside)])

        counted = _Counter(self.report)
        running = nutpie.sample(
            self.density.mapped(shift, factor, start),
            tune=settings.tune,
            draws=blocks[-1],
            target_accept=settings.target_accept,
            seed=settings.seed,
            progress_callback=counted,
            **self.options,
        )
        try:
            slow: list[str] = []
            for block in blocks:
                if block < blocks[-1]:
                    counted.wait(settings.tune + block, running)
                    tree = running.inspect()
                else:
                    tree = running.wait()
                every, draws, stats = self._block(tree, block, shift, factor)
                # Diagnosing all variables takes as long as hundreds of draws, so the variables that
                # mixed worst are diagnosed first.
                ends = bool(stats["diverging"].any()) or block == blocks[-1]
                if slow and not ends and block != TRIAL and not diagnose(draws[slow], stats).ok:
                    continue
                convergence = diagnose(draws, stats)
                if convergence.ok or convergence.divergences:
                    break
                if poor and block == TRIAL and not convergence.rhat <= poor:
                    break
                slow = worst(draws)
        finally:
            running.cancel()
        flat = every.reshape(-1, self.density.size)
        some = np.linspace(0, len(flat) - 1, SOME).astype(int)
        return Sampled(draws, stats, convergence, flat[some])

    def _block(
        self, tree: xr.DataTree, block: int, shift: Floats, factor: Floats
    ) -> tuple[Floats, xr.Dataset, xr.Dataset]:
        """Points on the real line, draws and statistics, of the first `block` draws."""
        kept = {"draw": slice(block)}
        inner = tree["posterior"].dataset["sampled"].isel(kept).values
        every = shift + (inner * factor[:, 0] if factor.shape[1] == 1 else inner @ factor.T)
        draws = xr.Dataset(
            {
                name: (("chain", "draw", *(f"{name}_dim_{i}" for i in range(v.ndim - 2))), v)
                for name, v in self.density.variables(every).items()
            },
            {"chain": np.arange(every.shape[0]), "draw": np.arange(every.shape[1])},
        )
        return every, draws, tree["sample_stats"].dataset.isel(kept)


def _start(density: Density, spec: Spec | JointSpec, arrays: Arrays) -> Callable[[int], Floats]:
    """Starting points: jittered, with the loss at the reference point from the data."""
    places, first, jitter = density.places, density.start.copy(), np.ones(density.size)
    for variable in density.program.variables:
        jitter[places[variable.name]] = variable.jitter
    for prefix in spec.parts:
        loss = places[f"{prefix}L_ref"]
        first[loss] = float(np.exp(np.mean(arrays[f"{prefix}observed"].astype(float))))
        jitter[loss] = 0.0
    ascents = max(part.discrepancy.ascents for part in spec.parts.values())

    def start(seed: int) -> Floats:
        rng = np.random.default_rng(seed)
        points = first + jitter * rng.uniform(-1, 1, (max(ascents, 1), len(first)))
        return _ascended(density, points) if ascents else points[0]

    return start


def _ascended(density: Density, points: Floats) -> Floats:
    """The point of highest density that ascents from some points reach."""

    def down(point: Floats) -> tuple[float, Floats]:
        value, gradient = density.gradient(point)
        return (-value, -gradient) if np.isfinite(value) else (LARGE, 0 * point)

    steps = {"maxiter": ASCENT, "maxfun": 2 * ASCENT}
    ends: list[Any] = [
        minimize(down, p, jac=True, method="L-BFGS-B", options=steps)  # type: ignore[call-overload]
        for p in points
    ]
    return np.asarray(min(ends, key=lambda each: each.fun).x, float)


class _Counter:
    """Waits for the slowest chain; nutpie calls it with the state of every chain."""

    def __init__(self, report: "Report") -> None:
        self.report, self.slowest, self.changed = report, 0, threading.Condition()

    def __call__(self, states: "Sequence[ChainProgress]") -> None:
        self.report(states)
        with self.changed:
            self.slowest = min(state.finished_draws for state in states)
            self.changed.notify_all()

    def wait(self, count: int, running: Any) -> None:
        """Return when every chain has as many steps, or the run has ended."""
        with self.changed:
            while self.slowest < count and not _finished(running):
                self.changed.wait(0.05)


def _finished(running: Any) -> bool:
    try:
        return bool(running.is_finished)
    except TimeoutError:  # nutpie raises it where the answer is no
        return False


class ChainProgress(Protocol):
    """Progress of one chain, as nutpie reports it."""

    finished_draws: int
    total_draws: int
    divergences: int
    step_size: float


type Report = Callable[[Sequence[ChainProgress]], None]


@contextmanager
def _bar(chains: int, show: bool) -> Iterator[Report]:
    """Progress on stderr: draws, divergences and step of each chain."""
    if not show:
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
        tasks = [
            bar.add_task("", total=None, chain=c, divergences=0, step=0.0) for c in range(chains)
        ]

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
