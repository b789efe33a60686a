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

SECONDS = 30.0
"""Least time between lines that say how much of a step is done."""
OFTEN = 0.2
"""Least time between two states of a bar in a notebook."""


@dataclass
class _Step:
    words: str
    total: int | None
    done: int = 0


class _Silent:
    """The steps that run, the outermost first; subclasses show them."""

    def __init__(self) -> None:
        self.steps: list[_Step] = []

    def turns(self, steps: Sequence[_Step]) -> str:
        """Which turns of loops it is that some steps are in."""
        return "".join(f"{step.done + 1} of {step.total}: " for step in steps if step.total)

    @property
    def text(self) -> str:
        """The words of the innermost step, after the turns of those around it."""
        return self.turns(self.steps[:-1]) + self.steps[-1].words

    @property
    def share(self) -> str:
        """How much of the innermost step is done; empty if that is not known."""
        last = self.steps[-1]
        return f"{100 * last.done / last.total:.0f} %" if last.total else ""

    def begin(self) -> None:
        """A step was added."""

    def move(self) -> None:
        """More of a step is done, or it has ended."""

    def say(self, words: str) -> None:
        """Words that stay."""

    def close(self) -> None:
        """The end."""


class _Lines(_Silent):
    at = 0.0

    def begin(self) -> None:
        # Rounds of draws and loops: a mistake that is found later is still one line. A loop has a
        # line now and then, not one each turn.
        if self.steps[-1].total and not self.turns(self.steps[:-1]):
            self.say(self.text)
            self.at = time.monotonic()

    def move(self) -> None:
        if self.steps and self.share and time.monotonic() > self.at + SECONDS:
            self.say(f"{self.text}: {self.share}")
            self.at = time.monotonic()

    def say(self, words: str) -> None:
        print(words, file=sys.stderr, flush=True)


class _Terminal(_Silent):
    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.table import Column

        super().__init__()
        words = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True))
        share = TextColumn("{task.fields[share]}")
        columns = words, BarColumn(20), share, TimeElapsedColumn()
        # A line of a warning appears above the bar; what goes to stdout is left alone.
        self.bar = Progress(
            *columns, console=Console(stderr=True), transient=True, redirect_stdout=False
        )
        self.bar.add_task("", total=None, share="")

    def begin(self) -> None:
        self.move()
        self.bar.start()

    def move(self) -> None:
        (task,) = self.bar.tasks
        if self.steps:
            last = self.steps[-1]
            task.description, task.total, task.completed = self.text, last.total, last.done
            task.fields["share"] = self.share

    def say(self, words: str) -> None:
        self.bar.console.print(words, markup=False, highlight=False)

    def close(self) -> None:
        self.bar.stop()


class _Notebook(_Silent):
    def __init__(self) -> None:
        super().__init__()
        self.handle: Any = None
        self.said: list[str] = []
        self.at = 0.0

    def begin(self) -> None:
        self.show(self.text)

    def move(self) -> None:
        if self.steps and time.monotonic() > self.at + OFTEN:
            self.show(f"{self.text} {self.share}")

    def say(self, words: str) -> None:
        self.said.append(words)
        self.show()

    def close(self) -> None:
        if self.handle is not None:
            self.show()

    def show(self, *text: str) -> None:
        from IPython.display import display

        shown: Any = display
        self.at = time.monotonic()
        data = {"text/plain": "\n".join([*self.said, *text])}
        if self.handle is None:
            self.handle = shown(data, raw=True, display_id=True)
        else:
            self.handle.update(data, raw=True)


_DISPLAY: ContextVar[_Silent | None] = ContextVar("display", default=None)


@contextmanager
def showing(progress: bool | None = None) -> Iterator[_Silent]:
    """Show the steps inside on one bar, from the first of them to the end.

    None is as around it: at the outermost on a terminal or in a notebook, and else not. True shows
    lines where there is neither.
    """
    around = _DISPLAY.get()
    if around is not None and progress is not False:
        yield around
        return
    display = _Silent()
    if progress is not False:
        shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
        if hasattr(shell, "kernel"):
            display = _Notebook()
        elif sys.stderr is not None and sys.stderr.isatty():
            display = _Terminal()
        elif progress:
            display = _Lines()
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
            display.move()

        display.steps.append(begun)
        display.begin()
        try:
            yield move
        finally:
            display.steps.remove(begun)
            display.move()


def each[T](items: Sequence[T], words: str, progress: bool | None = None) -> Iterator[T]:
    """The items of a loop, whose turns are counted by a step."""
    with showing(progress), step(words, len(items)) as move:
        for done, item in enumerate(items):
            move(done)
            yield item


def say(words: str) -> None:
    """Say what happened, in words that stay."""
    with showing() as display:
        display.say(display.turns(display.steps) + words)
