"""Parallel calls by joblib, on this machine or on a Dask cluster, and their progress bar."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from types import ModuleType

from bayeslaw.common.errors import BayeslawError
from bayeslaw.common.files import installing

BACKENDS = ("loky", "dask", "threading", "sequential")

type Call[T] = tuple[Callable[..., T], tuple[object, ...]]
"""A function and its arguments."""


@contextmanager
def bar(show: bool, what: str, total: int, done: int = 0) -> Iterator[Callable[[], None]]:
    """Context manager for a progress bar on stderr; it yields what to call after each task.

    `what` describes the tasks; `done` of the `total` are done at the start.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = "{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), disable=not show) as shown:
        task = shown.add_task(what, total=total, completed=done)
        yield lambda: shown.advance(task)


def results[T](calls: Sequence[Call[T]], jobs: int, what: str, show: bool) -> list[T]:
    """Results of calls in their order, from `jobs` processes, with a progress bar if `show`."""
    from joblib import Parallel, delayed

    found = []
    with bar(show, what, len(calls)) as tick:
        tasks = (delayed(function)(*arguments) for function, arguments in calls)
        for each in Parallel(n_jobs=jobs, return_as="generator")(tasks):
            found.append(each)
            tick()
    return found


def finished[K, T](calls: Mapping[K, Call[T]]) -> Iterator[tuple[K, T]]:
    """The key and result of each call as it finishes, in any order, on the `backend` in use."""
    from joblib import Parallel, delayed

    tasks = (delayed(_named)(key, *call) for key, call in calls.items())
    yield from Parallel(return_as="generator_unordered")(tasks)


def _named[K, T](key: K, function: Callable[..., T], arguments: tuple[object, ...]) -> tuple[K, T]:
    return key, function(*arguments)


@contextmanager
def backend(name: str, jobs: int, scheduler: str | None) -> Iterator[None]:
    """Context manager in which `finished` runs its calls on one of `BACKENDS`.

    `jobs` is the number of processes or threads on this machine, and `scheduler` the address of a
    Dask scheduler; without it `jobs` processes on this machine form a cluster.

    Raises
    ------
    BayeslawError
        If Dask is not installed or the scheduler cannot be reached.
    """
    from joblib import parallel_config

    with ExitStack() as stack:
        if name == "dask":
            stack.enter_context(_cluster(jobs, scheduler))
            stack.enter_context(parallel_config("dask"))
        else:
            watch = {"initializer": _end_with, "initargs": (os.getpid(),)}
            more = watch if name == "loky" else {}
            stack.enter_context(parallel_config(name, n_jobs=jobs, **more))
        yield


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
        raise BayeslawError(f"backend 'dask' needs Dask: {installing('dask')}.") from None
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
