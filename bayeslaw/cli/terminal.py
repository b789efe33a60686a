"""Output: a result as text and tables that fit the terminal, or as one JSON document; notes.

Results go to stdout, everything else to stderr. Nothing heavy is imported before there is output.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import typer

from bayeslaw import __version__
from bayeslaw.common.formatting import jsonable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

type Document = dict[str, object]
"""A JSON document; NumPy scalars and numbers that are not finite are converted when written."""
type Block = RenderableType | list[Table]
"""A part of the text: a Rich renderable, or alternative tables, widest first."""
SYNTHETIC = "[bold magenta]Synthetic data[/]: losses simulated from a stated law, not measured."


@dataclass(frozen=True)
class Rendered:
    """The result of a command in both forms.

    Parameters
    ----------
    document : dict
        For ``--json``.
    blocks : sequence of Block
        For a terminal, in order.
    notes : sequence of str
        Lines on stderr after the text; none with ``--json``.
    code : int
        Exit code.
    """

    document: Document
    blocks: Sequence[Block]
    notes: Sequence[str] = ()
    code: int = 0

    def adding(self, **fields: object) -> "Rendered":
        """Add fields to the document."""
        return replace(self, document=self.document | fields)


def labelled(document: Document, blocks: Sequence[Block]) -> Rendered:
    """Return both forms, with a label before the text if the data are synthetic."""
    return Rendered(document, [*[SYNTHETIC] * bool(document["synthetic"]), *blocks])


def tables(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *narrower: Sequence[str],
    left: Sequence[str] | None = None,
) -> "list[Table]":
    """Return a table with a rule under its header, and narrower ones of the same rows.

    Parameters
    ----------
    heads : sequence of str
    rows : iterable of sequence of str
        Cells; those that a row lacks at its end stay empty. An empty row starts a section.
    *narrower : sequence of str
        For each further table, the heads of the columns that it leaves out.
    left : sequence of str, optional
        Heads of the columns that are aligned on the left; by default the first column alone.
    """
    from rich import box
    from rich.table import Table

    found, lines = [], list(rows)
    for left_out in ((), *narrower):
        kept = [i for i, head in enumerate(heads) if head not in left_out]
        table = Table(
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
            show_edge=False,
            header_style="bold",
        )
        for i in kept:
            is_left = i == 0 if left is None else heads[i] in left
            table.add_column(heads[i], justify="left" if is_left else "right", no_wrap=True)
        for line in lines:
            if line:
                table.add_row(*(line[i] for i in kept if i < len(line)))
            else:
                table.add_section()
        found.append(table)
    return found


def show(command: str, rendered: Rendered, as_json: bool) -> None:
    """Print the result of a command; of alternative tables, the first that fits the terminal."""
    from rich.console import Console
    from rich.measure import Measurement

    if as_json:
        typer.echo(dumps({"command": command, "version": __version__} | rendered.document))
        return
    console = Console(highlight=False)
    for block in rendered.blocks:
        if isinstance(block, list):
            unbounded = console.options.update(width=10_000)
            widths = [Measurement.get(console, unbounded, table).maximum for table in block]
            fits = next((i for i, w in enumerate(widths) if w <= console.width), len(block) - 1)
            # A table that is too wide for the terminal is printed whole, not cut.
            Console(highlight=False, width=max(console.width, widths[fits])).print(block[fits])
        else:
            console.print(block)
    out = rendered.document.get("out")
    for text in (*([f"wrote {out}"] if out else []), *rendered.notes):
        note(text)


def dumps(document: Mapping[str, object]) -> str:
    """Write JSON; numbers that are not finite become null."""
    return json.dumps(jsonable(document), allow_nan=False)


def note(text: str, label: str = "", color: str | None = None) -> None:
    """Print one line on stderr."""
    label = typer.style(f"{label}:", fg=color, bold=True) + " " if label else ""
    typer.echo(label + " ".join(text.split()), err=True)


def progress() -> bool:
    """Whether stderr is a terminal: then a fit shows its progress."""
    return sys.stderr.isatty()
