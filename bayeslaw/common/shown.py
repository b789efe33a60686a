"""What a result shows: said once, for the terminal, the notebook, the report and ``--json``."""

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from bayeslaw.common.formatting import digits

if TYPE_CHECKING:
    import pandas as pd

type Severity = Literal[
    "ok", "caution", "no evidence", "refuse", "synthetic", "title", "quiet"
]
type Format = str | Callable[[Any], str]
"""A format specification such as ".3f", or a function of the value."""
type Block = "str | Note | list[str] | Table | Detail"
"""A sentence, one with a level, a list of sentences, or a table; "" separates paragraphs."""

ANSI = {
    "ok": "32",
    "caution": "33",
    "no evidence": "31",
    "refuse": "1;31",
    "synthetic": "1;35",
}
ANSI |= {"title": "1", "quiet": "2"}
SYNTHETIC = "Synthetic data: losses simulated from a stated law, not measured."
MAX_ROWS = 60
"""Rows of a table that are shown."""


@dataclass(frozen=True)
class Note:
    """A sentence; its words before the first colon, or all of it, are coloured by its level."""

    text: str
    level: Severity = "title"


@dataclass(frozen=True)
class Table:
    """A table with a title.

    The index of the frame is the first column, unless it only counts rows; of an index of two
    levels, the first gives headings within the table.
    """

    frame: "pd.DataFrame"
    title: str = ""  # words before the first colon are bold
    # Others have four digits.
    formats: Mapping[str, Format] = field(default_factory=dict)
    # Columns left out, in this order, where a terminal is too narrow.
    optional: Sequence[str] = ()
    left: Sequence[str] = ()  # columns aligned on the left, as the index is

    def cells(
        self, without: Sequence[str] = (), most: int | None = MAX_ROWS
    ) -> tuple[list[str], list[list[str]], str]:
        """Heads, rows of text, and how many rows there are beyond `most`, in words.

        A row of one cell is a heading within the table.
        """
        shown = self.frame.drop(columns=list(without))
        index = shown.index
        heads = [str(name) for name in shown.columns]
        columns = []
        for name, column in shown.items():
            form = self.formats.get(str(name))
            columns.append([_written(value, form) for value in column[:most]])
        numbered = index.name is None and index.dtype.kind == "i"
        if not numbered:
            heads.insert(0, str(index.names[-1] or ""))
        rows: list[list[str]] = []
        heading = None
        for i, label in enumerate(index[:most]):
            if isinstance(label, tuple):
                if label[0] != heading:
                    heading = label[0]
                    rows.append([str(heading)])
                label = f"  {label[-1]}"
            row = [column[i] for column in columns]
            if not numbered:
                row.insert(0, str(label))
            rows.append(row)
        more = ""
        if most and len(index) > most:
            more = f"... and {len(index) - most} more rows"
        return heads, rows, more


def _written(value: Any, form: Format | None) -> str:
    if value is None or value != value:
        return ""
    if callable(form):
        return form(value)
    if form is not None:
        return f"{value:{form}}"
    if isinstance(value, float):  # NumPy's floats, too
        return digits(value, 4)
    return str(value)


@dataclass(frozen=True)
class Detail:
    """A block that text has only if it is to be verbose."""

    block: "Block"


@dataclass(frozen=True)
class Shown:
    """What a result shows."""

    title: str = ""
    blocks: "Sequence[Block]" = ()
    document: Mapping[str, object] = field(default_factory=dict)  # for JSON
    figures: Sequence[str] = ()  # functions of `bayeslaw.plots` that draw the result

    def __add__(self, other: "Shown") -> "Shown":
        """Both, one below the other; the document has the fields of both."""
        blocks = [*self.blocks]
        if blocks:
            blocks.append("")
        if other.title and self.title:
            blocks.append(Note(other.title))
        blocks += other.blocks
        return Shown(
            self.title or other.title,
            blocks,
            {**self.document, **other.document},
            (*self.figures, *other.figures),
        )

    def adding(self, **fields: object) -> "Shown":
        """The same with further fields of the document."""
        return replace(self, document={**self.document, **fields})

    def text(self, width: int = 80, color: bool = False, verbose: bool = False) -> str:
        """The text, with lines of at most `width` characters where tables allow it."""
        lines: list[str] = []
        if self.title:
            lines += _lines(Note(self.title), width, color)
        for block in self.blocks:
            if verbose or not isinstance(block, Detail):
                lines += _lines(block, width, color)
        text = ""
        above = ""
        for line in lines:
            # Of several empty lines one is left.
            if line or above:
                text += f"{line}\n"
            above = line
        return text.strip("\n")

    def html(self) -> str:
        """The same as HTML, without a page around it."""
        return rendered("shown.html", shown=self)


class Showing:
    """A result that shows itself, with ``print``, in a notebook and on the command line."""

    def shown(self) -> Shown:
        """What the result shows: title, sentences, tables and the document of ``--json``."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.shown().text()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.shown().title!r}>"

    def __init_subclass__(cls) -> None:
        # In each class, as IPython takes the first of a class: that of a dataclass is pages long.
        setattr(cls, "_repr_pretty_", lambda self, printer, _: printer.text(str(self)))  # noqa: B010

    def _repr_html_(self) -> str:
        return self.shown().html()


def _lines(block: Block, width: int, color: bool) -> list[str]:
    if isinstance(block, Detail):
        return _lines(block.block, width, color)
    if isinstance(block, str):
        return _paragraph(block, width)
    if isinstance(block, list):
        return [line for item in block for line in _paragraph(item, width, "  ")]
    if isinstance(block, Table):
        title = _lines(Note(block.title), width, color) if block.title else []
        return ["", *title, *_table_lines(block, width, color), ""]
    text = "\n".join(_paragraph(block.text, width))
    if color:
        coloured, _, _ = block.text.partition(":")
        end = len(text) if block.level == "quiet" else len(coloured)
        text = f"\033[{ANSI[block.level]}m{text[:end]}\033[0m{text[end:]}"
    return text.splitlines()


def _paragraph(text: str, width: int, indent: str = "") -> list[str]:
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [""]


def _table_lines(table: Table, width: int, color: bool) -> list[str]:
    """The lines of a table; one that is too wide without its optional columns is not cut."""
    for count in range(len(table.optional) + 1):
        without = [name for name in table.optional[:count] if name in table.frame]
        heads, rows, more = table.cells(without)
        widths = _widths(heads, rows)
        gap = "  "
        if sum(widths) + len(gap) * (len(widths) - 1) <= width:
            break
        gap = " "  # the last resort of a narrow terminal
    has_index = len(heads) > len(table.frame.columns) - count
    on_the_left = [name in table.left for name in heads]
    on_the_left[0] = on_the_left[0] or has_index

    def line(row: Sequence[str]) -> str:
        padded = []
        for cell, size, left in zip(row, widths, on_the_left, strict=True):
            padded.append(cell.ljust(size) if left else cell.rjust(size))
        return gap.join(padded).rstrip()

    lines = [line(row) for row in _head_rows(heads)]
    if color:
        lines = [f"\033[1m{text}\033[0m" for text in lines]
    lines.append("─" * (sum(widths) + len(gap) * (len(widths) - 1)))
    for row in rows:
        is_heading = len(row) == 1 and len(heads) > 1
        text = row[0] if is_heading else line(row)
        if color:
            # The only words that a table stresses: a measured loss outside of its band.
            text = text.replace(" out", " \033[31mout\033[0m")
        lines.append(text)
    if more:
        lines.append(more)
    return lines


def _widths(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """Characters of each column, which holds its head, maybe of several lines, and its cells."""
    widths = []
    for i, head in enumerate(heads):
        texts = head.split("\n")
        # A row of one cell is a heading.
        texts += [row[i] for row in rows if len(row) > 1]
        widths.append(max(map(len, texts)))
    return widths


def _head_rows(heads: Sequence[str]) -> list[list[str]]:
    """The lines of the heads as rows of cells, aligned at the bottom."""
    lines_of_heads = [head.split("\n") for head in heads]
    depth = max(map(len, lines_of_heads))
    rows = []
    for i in range(depth):
        row = []
        for lines in lines_of_heads:
            missing = depth - len(lines)
            row.append(lines[i - missing] if i >= missing else "")
        rows.append(row)
    return rows


# -- HTML -----------------------------------------------------------------------------------------


def rendered(template: str, **values: object) -> str:
    """A template of the package, with the blocks that several have in common."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("bayeslaw"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["unbroken"] = unbroken
    return environment.get_template(template).render(**values)


def unbroken(text: str) -> str:
    """Prevent line breaks within a number, and between a number and its per cent sign."""
    text = re.sub(r"(?<=\de)-(?=\d)", "\u2011", text)
    return text.replace(" %", "\u00a0%").replace("6 N D", "6\u00a0N\u00a0D")
