"""Parallel calls by joblib, on the cores of this machine or on a Dask cluster."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Protocol

from bayeslaw.common.errors import BayeslawError

BACKENDS = ("loky", "dask", "threading", "sequential")

type Call[T] = tuple[Callable[..., T], tuple[object, ...]]
"""A function and its arguments."""


class Runner(Protocol):
    """Function that runs calls."""

    def __call__[T](self, calls: Mapping[Path, Call[T]]) -> Iterator[tuple[Path, T]]:
        """Yield the key and result of each call as it finishes, in any order."""


@contextmanager
def runner(backend: str, jobs: int, scheduler: str | None) -> Iterator[Runner]:
    """Context manager for a function that runs calls in parallel.

    Parameters
    ----------
    backend : {"loky", "dask", "threading", "sequential"}
    jobs : int
        Number of processes or threads on this machine.
    scheduler : str, optional
        Address of a Dask scheduler; without it `jobs` processes on this machine form a cluster.

    Yields
    ------
    Runner

    Raises
    ------
    BayeslawError
        If Dask is not installed or the scheduler cannot be reached.
    """
    from joblib import Parallel, delayed, parallel_config

    def run[T](calls: Mapping[Path, Call[T]]) -> Iterator[tuple[Path, T]]:
        tasks = (delayed(_named)(path, *call) for path, call in calls.items())
        yield from Parallel(return_as="generator_unordered")(tasks)

    with ExitStack() as stack:
        if backend == "dask":
            stack.enter_context(_cluster(jobs, scheduler))
            stack.enter_context(parallel_config("dask"))
        else:
            watch = {"initializer": _end_with, "initargs": (os.getpid(),)}
            more = watch if backend == "loky" else {}
            stack.enter_context(parallel_config(backend, n_jobs=jobs, **more))
        yield run


def _named[T](
    path: Path, function: Callable[..., T], arguments: tuple[object, ...]
) -> tuple[Path, T]:
    return path, function(*arguments)


def _end_with(parent: int) -> None:
    """End this worker process when its parent ends; loky's workers outlive a killed parent."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _cluster(jobs: int, scheduler: str | None) -> Iterator[None]:
    """Connect to a Dask scheduler, or to a new cluster of processes on this machine."""
    try:
        dask: ModuleType = import_module("dask.distributed")
    except ImportError:
        raise BayeslawError("backend 'dask' needs: pip install 'bayeslaw[dask]'.") from None
    with ExitStack() as stack:
        if scheduler is None:
            cluster = dask.LocalCluster(
                n_workers=jobs, threads_per_worker=1, dashboard_address=None
            )
            stack.enter_context(cluster)
        try:
            stack.enter_context(dask.Client(scheduler or cluster, timeout=10))
        except OSError as error:
            raise BayeslawError(f"no Dask scheduler at {scheduler}: {error}.") from error
        yield
