"""Progress bars on stderr."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bar(show: bool, what: str, total: int, done: int = 0) -> Iterator[Callable[[], None]]:
    """Progress of `total` things on stderr; call what it gives when one more is done."""
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
