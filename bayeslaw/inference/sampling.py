"""Sample a posterior: compile once per spec, then put new data in without recompiling."""

import dataclasses
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy as np
import xarray as xr

from bayeslaw.common.arrays import Floats, Model
from bayeslaw.common.defaults import CHAINS, DRAWS, TARGET_ACCEPT, TUNE
from bayeslaw.common.errors import LawError, unknown
from bayeslaw.model.building import Data, build
from bayeslaw.model.joint_spec import JointSpec, build_joint
from bayeslaw.model.spec import Spec

type AnySpec = Spec | JointSpec
"""What can be sampled: the model of one table, or of several."""

SAMPLERS = ("nutpie", "pymc")
type Compiled = Any
"""A model compiled by nutpie."""
_compiled: dict[tuple[object, ...], tuple[Compiled, dict[str, int]]] = {}


def sample(
    spec: AnySpec,
    values: Data,
    *,
    seed: int,
    chains: int = CHAINS,
    draws: int = DRAWS,
    tune: int = TUNE,
    target_accept: float = TARGET_ACCEPT,
    sampler: str = "nutpie",
    cores: int | None = None,
    progress: bool = True,
) -> tuple[xr.Dataset, xr.Dataset]:
    """Draws of the reference coordinates and the sampler's statistics, dims (chain, draw).

    Parameters
    ----------
    spec : Spec or JointSpec
    values : mapping
        Data from `bayeslaw.model.building.data`.
    seed : int
        Same seed, same draws, whatever was fitted before.
    sampler : {"nutpie", "pymc"}

    Raises
    ------
    LawError
        If the sampler is unknown.
    """
    if sampler not in SAMPLERS:
        raise LawError(unknown("sampler", sampler, SAMPLERS))
    cores = min(cores or os.process_cpu_count() or 1, chains)
    settings = {"chains": chains, "draws": draws, "tune": tune, "cores": cores}
    if sampler == "pymc":
        return _pymc(spec, values, settings, seed, target_accept, progress)
    import nutpie

    compiled = with_data(spec, values)
    with _bar(chains, progress) as callback:
        tree = nutpie.sample(
            compiled,
            **settings,
            seed=seed,
            target_accept=target_accept,
            progress_bar=False,
            progress_callback=callback,
            save_warmup=False,
        )
    return tree["posterior"].dataset, tree["sample_stats"].dataset


def with_data(spec: AnySpec, values: Data) -> Compiled:
    """The spec's compiled nutpie model holding these data; compiles on first use."""
    compiled, index = compile_spec(spec, values)
    shared = {variable.name for variable in compiled.shared_var_keys}
    compiled = compiled.with_data(**{k: v for k, v in values.items() if k in shared})
    start = _start(compiled.initial_point_func, index, spec, values)
    return dataclasses.replace(compiled, initial_point_func=start)


def compile_spec(spec: AnySpec, values: Data) -> tuple[Compiled, dict[str, int]]:
    """Compile a spec once, and where each variable starts in the sampler's vector.

    The compiled model does not depend on `values` but for their kinds and the number of groups.
    """
    import nutpie

    sizes = tuple(len(v) for name, v in values.items() if name.endswith("_groups"))
    key = (spec.key, tuple(values), sizes)
    if key not in _compiled:
        # Placeholder data, so that starting points depend on the seed and nothing fitted before.
        blank = {name: np.zeros_like(value) for name, value in values.items()}
        model = build_model(spec, blank, for_sampling=True)
        free = [variable.name for variable in model.free_RVs]
        with exact():
            compiled = nutpie.compile_pymc_model(model, var_names=free)
        lengths = [np.size(value) for value in model.initial_point().values()]
        _compiled[key] = compiled, dict(zip(free, np.cumsum([0, *lengths]), strict=False))
    return _compiled[key]


def build_model(spec: AnySpec, values: Data, *, for_sampling: bool) -> Model:
    """The ``pm.Model`` of one table's specification, or of several domains'."""
    if isinstance(spec, JointSpec):
        return build_joint(spec, values, for_sampling=for_sampling)
    return build(spec, values, for_sampling=for_sampling)


def _start(
    default: Callable[[int], Floats],
    index: Mapping[str, int],
    spec: AnySpec,
    values: Data,
) -> Callable[[int], Floats]:
    """Starting points: jittered, with the loss at the reference point from the data."""
    parts = []
    for prefix, part in spec.parts.items():
        loss = float(np.exp(np.mean(values[f"{prefix}observed"].astype(float))))
        cautious = part.discrepancy.cautious(part.law)
        parts.append((loss, index[f"{prefix}L_ref"], [index[prefix + name] for name in cautious]))

    def start(seed: int) -> Floats:
        point = default(seed)
        for loss, place, cautious in parts:
            point[place] = loss
            # Large initial curvature sends the first leapfrog steps far from the data.
            point[cautious] *= 0.1
        return point

    return start


def _pymc(
    spec: AnySpec,
    values: Data,
    settings: Mapping[str, int],
    seed: int,
    target_accept: float,
    progress: bool,
) -> tuple[xr.Dataset, xr.Dataset]:
    import pymc as pm

    logging.getLogger("pymc").setLevel(logging.ERROR)  # the gate reports convergence
    model = build_model(spec, values, for_sampling=True)
    with exact():
        tree = pm.sample(
            **settings,
            model=model,
            random_seed=seed,
            nuts_sampler="pymc",
            nuts={"target_accept": target_accept},
            progressbar=progress,
            compute_convergence_checks=False,
        )
    draws = tree["posterior"].dataset[[variable.name for variable in model.free_RVs]]
    return draws, tree["sample_stats"].dataset


def exact() -> AbstractContextManager[object]:
    """Compile without fast maths, so that one seed gives one chain.

    With it sampling is a fifth faster, but code from PyTensor's cache on disk rounds differently
    from the same code just compiled.
    """
    import pytensor

    flags: AbstractContextManager[object] = pytensor.config.change_flags(numba__fastmath=False)
    return flags


class ChainProgress(Protocol):
    """Progress of one chain, as nutpie reports it."""

    finished_draws: int
    total_draws: int
    divergences: int
    step_size: float


@contextmanager
def _bar(chains: int, show: bool) -> Iterator[Callable[[Sequence[ChainProgress]], None] | None]:
    """Progress on stderr: draws, divergences and step of each chain."""
    if not show:
        yield None
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
