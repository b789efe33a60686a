"""What a long call is doing: one bar on a terminal or in a notebook, and lines in a log.

Any layer says what begins: ``with step("words"):``, or ``@step("words")`` above a function.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

BETWEEN_LINES = 30.0
"""Least time in seconds between lines that say how much of a step is done."""
BETWEEN_OUTPUTS = 0.2
"""Least time in seconds between two states in a notebook."""


@dataclass
class _Step:
    words: str
    total: int | None
    done: int = 0


class _Lines:
    """The steps that run, the outermost first: lines of a log, or nothing if `silent`."""

    def __init__(self, *, silent: bool = False) -> None:
        self.silent = silent
        self.steps: list[_Step] = []
        self.shown_at = 0.0

    def text(self, words: str = "") -> str:
        """The innermost step, or other words in it, after the turns of the loops around them."""
        around = self.steps if words else self.steps[:-1]
        text = ""
        for step in around:
            if step.total:
                text += f"{step.done + 1} of {step.total}: "
        return text + (words or self.steps[-1].words)

    @property
    def share(self) -> str:
        """How much of the innermost step is done; empty if that is not known."""
        last = self.steps[-1]
        if not last.total:
            return ""
        return f"{100 * last.done / last.total:.0f} %"

    def due(self, seconds: float) -> bool:
        return time.monotonic() > self.shown_at + seconds

    def update(self, *, begun: bool = False) -> None:
        """A step has begun, or more of one is done, or one has ended and others have not."""
        # Only rounds of draws and loops have a line, so that a mistake that is found later is
        # still one line; and a loop has a line now and then, not one each turn.
        outermost = not any(step.total for step in self.steps[:-1])
        if self.share and begun and outermost:
            self.say(self.text())
        elif self.share and not begun and self.due(BETWEEN_LINES):
            self.say(f"{self.text()}: {self.share}")

    def say(self, words: str) -> None:
        if not self.silent:
            print(words, file=sys.stderr, flush=True)
        self.shown_at = time.monotonic()

    def close(self) -> None:
        """The end."""


class _Terminal(_Lines):
    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.table import Column

        super().__init__()
        words = TextColumn(
            "{task.description}", markup=False, table_column=Column(no_wrap=True)
        )
        columns = (
            words,
            BarColumn(20),
            TextColumn("{task.fields[share]}"),
            TimeElapsedColumn(),
        )
        # A line of a warning appears above the bar; what goes to stdout is left alone.
        console = Console(stderr=True)
        self.bar = Progress(
            *columns, console=console, transient=True, redirect_stdout=False
        )
        self.bar.add_task("", total=None, share="")

    def update(self, *, begun: bool = False) -> None:
        (task,) = self.bar.tasks
        last = self.steps[-1]
        task.description = self.text()
        task.total = last.total
        task.completed = last.done
        task.fields["share"] = self.share
        self.bar.start()

    def say(self, words: str) -> None:
        self.bar.console.print(words, markup=False, highlight=False)

    def close(self) -> None:
        self.bar.stop()


class _Notebook(_Lines):
    def __init__(self) -> None:
        super().__init__()
        self.id = uuid4().hex
        self.said = list[str]()

    def update(self, *, begun: bool = False) -> None:
        if begun or self.due(BETWEEN_OUTPUTS):
            self.show(f"{self.text()} {self.share}".strip())

    def say(self, words: str) -> None:
        self.said.append(words)
        self.show()

    def close(self) -> None:
        if self.shown_at:
            self.show()

    def show(self, *text: str) -> None:
        import IPython.display

        show: Any = IPython.display.display
        data = {"text/plain": "\n".join([*self.said, *text])}
        again = self.shown_at > 0
        show(data, raw=True, display_id=self.id, update=again)
        self.shown_at = time.monotonic()


_DISPLAY: ContextVar[_Lines | None] = ContextVar("display", default=None)


def _display(progress: bool | None) -> _Lines:
    """What shows the steps: a notebook, a terminal, or lines, which are silent unless asked for."""
    if progress is not False:
        if _in_notebook():
            return _Notebook()
        if sys.stderr is not None and sys.stderr.isatty():
            return _Terminal()
    return _Lines(silent=not progress)


def _in_notebook() -> bool:
    if "IPython" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return hasattr(shell, "kernel")


@contextmanager
def showing(progress: bool | None = None) -> Iterator[_Lines]:
    """Show the steps inside on one bar, from the first of them to the end.

    None is as around it: at the outermost on a terminal or in a notebook, and else not. True shows
    lines where there is neither.
    """
    around = _DISPLAY.get()
    if around is not None and progress is not False:
        yield around
        return
    display = _display(progress)
    token = _DISPLAY.set(display)
    try:
        yield display
    finally:
        _DISPLAY.reset(token)
        display.close()


@contextmanager
def step(words: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Say what begins; the function that it gives says how much of `total` is done."""
    with showing() as display:
        begun = _Step(words, total)

        def move(done: int) -> None:
            begun.done = done
            # A sampler's thread may report once more after the step has ended.
            if display.steps:
                display.update()

        display.steps.append(begun)
        display.update(begun=True)
        try:
            yield move
        finally:
            display.steps.remove(begun)
            if display.steps:
                display.update()


def each[T](
    items: Sequence[T], words: str, progress: bool | None = None
) -> Iterator[T]:
    """The items of a loop, whose turns are counted by a step."""
    with showing(progress), step(words, len(items)) as move:
        for done, item in enumerate(items):
            move(done)
            yield item


def say(words: str) -> None:
    """Say what happened, in words that stay."""
    with showing() as display:
        display.say(display.text(words))
