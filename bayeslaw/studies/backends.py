"""Where calls run: on this machine's cores or on a Dask cluster, by joblib."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bayeslaw.common.errors import BayeslawError

BACKENDS = ("loky", "dask", "threading", "sequential")

type Call = tuple[Callable[..., Any], tuple[Any, ...]]
type Runner = Callable[[Mapping[Path, Call]], Iterator[tuple[Path, Any]]]


@contextmanager
def runner(backend: str, jobs: int, scheduler: str | None) -> Iterator[Runner]:
    """Run calls by joblib and give each result as it comes."""
    from joblib import Parallel, delayed, parallel_config

    def run(calls: Mapping[Path, Call]) -> Iterator[tuple[Path, Any]]:
        tasks = (delayed(_named)(path, *call) for path, call in calls.items())
        yield from Parallel(return_as="generator_unordered")(tasks)

    with ExitStack() as stack:
        if backend == "dask":
            stack.enter_context(_cluster(jobs, scheduler))
            stack.enter_context(parallel_config("dask"))
        else:
            orphan = {"initializer": _end_with, "initargs": (os.getpid(),)}
            more = orphan if backend == "loky" else {}
            stack.enter_context(parallel_config(backend, n_jobs=jobs, **more))
        yield run


def _named(path: Path, function: Callable[..., Any], given: tuple[Any, ...]) -> tuple[Path, Any]:
    return path, function(*given)


def _end_with(parent: int) -> None:
    """End this worker when its parent is gone: loky's would wait for ever if it was killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _cluster(jobs: int, scheduler: str | None) -> Iterator[None]:
    """Connect to a Dask scheduler, or to one of this machine's own processes."""
    try:
        import dask.distributed as distributed
    except ImportError:
        raise BayeslawError("backend 'dask' needs: pip install 'bayeslaw[dask]'.") from None
    dask: Any = distributed  # untyped
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
