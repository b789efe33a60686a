"""Progress bars on stderr."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bar(show: bool, what: str, total: int, done: int = 0) -> Iterator[Callable[[], None]]:
    """Context manager for a progress bar.

    Parameters
    ----------
    show : bool
        Whether to draw the bar.
    what : str
        Description of the tasks.
    total : int
        Number of tasks.
    done : int
        Number of tasks that are done at the start.

    Yields
    ------
    callable
        To be called after each task.
    """
    if not show:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as shown:
        task = shown.add_task(what, total=total, completed=done)
        yield lambda: shown.advance(task)
