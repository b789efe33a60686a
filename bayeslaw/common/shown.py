"""What a result shows: said once, for the terminal, the notebook, the report and ``--json``."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING, Any, Literal

from bayeslaw.common.formatting import digits

if TYPE_CHECKING:
    import pandas as pd

type Severity = Literal["ok", "caution", "no evidence", "refuse", "synthetic", "title", "quiet"]
type Format = str | Callable[[Any], str]
"""A format specification such as ".3f", or a function of the value."""
type Block = "str | Note | list[str] | Table | Detail"
"""A sentence, one with a level, a list of sentences, or a table; "" separates paragraphs."""

ANSI = {"ok": "32", "caution": "33", "no evidence": "31", "refuse": "1;31", "synthetic": "1;35"}
ANSI |= {"title": "1", "quiet": "2"}
COLORS = {"ok": "#1a8a3a", "caution": "#b07d00", "no evidence": "#c8322b", "refuse": "#c8322b"}
COLORS |= {"synthetic": "#a03bb5", "title": "inherit"}
# Borders and quiet text take the page's own color, so that dark themes are legible.
STYLE = """<style>
.bayeslaw table {border-collapse: collapse; margin: .3em 0 .8em; font-size: .95em}
.bayeslaw td, .bayeslaw th {text-align: right; padding: .15em .6em; white-space: nowrap;
  border: 0; background: none; font-variant-numeric: tabular-nums}
.bayeslaw thead th {border-bottom: 1px solid currentColor; vertical-align: bottom}
.bayeslaw tbody th, .bayeslaw .left {text-align: left; font-weight: normal}
.bayeslaw tbody th.section {font-weight: bold; padding-top: .5em}
.bayeslaw p {margin: .3em 0; max-width: 50em}
.bayeslaw .quiet {opacity: .65; font-size: .9em}
</style>"""
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
    formats: Mapping[str, Format] = field(default_factory=dict)  # others have four digits
    optional: Sequence[str] = ()  # columns left out, in this order, where a terminal is too narrow
    left: Sequence[str] = ()  # columns aligned on the left, as the index is

    def cells(
        self, without: Sequence[str] = (), most: int | None = MAX_ROWS
    ) -> tuple[list[str], list[list[str]], str]:
        """Heads, rows of text, and how many rows there are beyond `most`, in words.

        A row of one cell is a heading within the table.
        """
        shown = self.frame.drop(columns=list(without))
        index, numbered = shown.index, shown.index.name is None and shown.index.dtype.kind == "i"
        heads = [] if numbered else [str(index.names[-1] or "")]
        rows: list[list[str]] = []
        above, texts = None, []
        for name, column in shown.items():
            form = self.formats.get(str(name))
            texts.append([_written(value, form) for value in column[:most]])
        for i, label in enumerate(index[:most]):
            if isinstance(label, tuple):
                if label[0] != above:
                    rows.append([str(above := label[0])])
                label = f"  {label[-1]}"
            rows.append([*([] if numbered else [str(label)]), *(column[i] for column in texts)])
        more = f"... and {len(index) - most} more rows" if most and len(index) > most else ""
        return [*heads, *map(str, shown.columns)], rows, more


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

    block: "str | Note | list[str] | Table"


@dataclass(frozen=True)
class Shown:
    """What a result shows."""

    title: str = ""
    blocks: "Sequence[Block]" = ()
    document: Mapping[str, object] = field(default_factory=dict)  # for JSON
    figures: Sequence[str] = ()  # functions of `bayeslaw.plots` that draw the result
    short: str = ""  # in place of the title, in text that is not verbose

    def __add__(self, other: "Shown") -> "Shown":
        """Both, one below the other; the document has the fields of both."""
        above: list[Block] = [*self.blocks, ""] if self.blocks else []
        title = [Note(other.title)] if other.title and self.title else []
        return Shown(
            self.title or other.title,
            [*above, *title, *other.blocks],
            {**self.document, **other.document},
            (*self.figures, *other.figures),
            self.short if self.title else other.short,
        )

    def adding(self, **fields: object) -> "Shown":
        return replace(self, document={**self.document, **fields})

    def text(self, width: int = 80, color: bool = False, verbose: bool = False) -> str:
        """The text, with lines of at most `width` characters where tables allow it."""
        title = self.title if verbose else self.short or self.title
        blocks = [each for each in self.blocks if verbose or not isinstance(each, Detail)]
        lines: list[str] = []

        def paragraph(text: str, level: Severity | None, indent: str = "") -> None:
            head, _, _ = text.partition(":")
            wrapped = textwrap.fill(
                text,
                width,
                initial_indent=indent,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
            if color and level == "quiet":
                wrapped = f"\033[2m{wrapped}\033[0m"
            elif color and level is not None:
                end = len(wrapped) - len(wrapped.lstrip()) + len(head)
                wrapped = f"\033[{ANSI[level]}m{wrapped[:end]}\033[0m{wrapped[end:]}"
            lines.extend(wrapped.splitlines() or [""])

        if title:
            paragraph(title, "title")
        for each in blocks:
            block = each.block if isinstance(each, Detail) else each
            if isinstance(block, str):
                paragraph(block, None)
            elif isinstance(block, Note):
                paragraph(block.text, block.level)
            elif isinstance(block, list):
                for item in block:
                    paragraph(item, None, "  ")
            else:
                lines.append("")
                if block.title:
                    paragraph(block.title, "title")
                lines += [*_lines(block, width, color), ""]
        kept = [line for i, line in enumerate(lines) if line or (i and lines[i - 1])]
        return "\n".join(kept).strip("\n")

    def html(self) -> str:
        """The same as HTML, without a page around it."""
        parts = [f"<p><b>{escape(self.title)}</b></p>"] if self.title else []
        for each in self.blocks:
            block = each.block if isinstance(each, Detail) else each
            if isinstance(block, str):
                parts += [f"<p>{escape(block)}</p>"] if block else []
            elif isinstance(block, Note):
                parts.append(_paragraph(block))
            elif isinstance(block, list):
                items = "".join(f"<li>{escape(item)}</li>" for item in block)
                parts.append(f"<ul>{items}</ul>")
            else:
                parts.append(_table_html(block))
        if self.figures:
            names = ", ".join(f"<code>bl.plots.{name}</code>" for name in self.figures)
            parts.append(f'<p class="quiet">Figures: {names}</p>')
        whole = "\n".join(parts)
        return f'{STYLE}<div class="bayeslaw">\n{whole}\n</div>'


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


def _lines(table: Table, width: int, color: bool) -> list[str]:
    """The lines of a table; a table that is too wide without its optional columns is not cut."""
    for count in range(len(table.optional) + 1):
        heads, rows, more = table.cells([c for c in table.optional[:count] if c in table.frame])
        head = [name.split("\n") for name in heads]
        whole = [row for row in rows if len(row) > 1]
        widths = [
            max([*map(len, names), *(len(row[i]) for row in whole)]) for i, names in enumerate(head)
        ]
        gap = "  "
        if sum(widths) + 2 * len(widths) - 2 <= width:
            break
        gap = " "  # the last resort of a narrow terminal
    left = [
        name in table.left or (i == 0 and len(heads) > len(table.frame.columns) - count)
        for i, name in enumerate(heads)
    ]

    def line(row: Sequence[str]) -> str:
        cells = zip(row, widths, left, strict=True)
        padded = [cell.ljust(n) if is_left else cell.rjust(n) for cell, n, is_left in cells]
        return gap.join(padded).rstrip()

    depth = max(map(len, head))
    names = [[""] * (depth - len(name)) + name for name in head]
    lines = [line([name[i] for name in names]) for i in range(depth)]
    if color:
        lines = [f"\033[1m{text}\033[0m" for text in lines]
    lines.append("─" * (sum(widths) + len(gap) * (len(widths) - 1)))
    for row in rows:
        text = line(row) if len(row) > 1 or len(heads) == 1 else row[0]
        if color:
            # The only words that a table stresses: a measured loss outside of its band.
            text = text.replace(" out", " \033[31mout\033[0m")
        lines.append(text)
    return [*lines, more] if more else lines


def _paragraph(note: Note) -> str:
    if note.level == "quiet":
        return f'<p class="quiet">{escape(note.text)}</p>'
    head, colon, rest = note.text.partition(":")
    color = COLORS[note.level]
    return f'<p><b style="color: {color}">{escape(head)}</b>{colon}{escape(rest)}</p>'


def _table_html(table: Table) -> str:
    heads, rows, more = table.cells()
    labels = len(heads) > len(table.frame.columns)
    names = "".join(
        f"<th{' class=left' * (head in table.left or (i == 0 and labels))}>{escape(head)}</th>"
        for i, head in enumerate(heads)
    ).replace("\n", "<br>")
    lines = []
    for row in rows:
        if len(row) == 1 < len(heads):
            lines.append(f'<th class="section" colspan="{len(heads)}">{escape(row[0])}</th>')
            continue
        cells = [
            f"<th>{escape(cell)}</th>"
            if i == 0 and labels
            else f"<td{' class=left' * (heads[i] in table.left)}>{escape(cell)}</td>"
            for i, cell in enumerate(row)
        ]
        lines.append("".join(cells))
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    more = f"<p>{more}</p>" if more else ""
    title = _paragraph(Note(table.title)) if table.title else ""
    return f"{title}<table><thead><tr>{names}</tr></thead><tbody>\n{body}\n</tbody></table>{more}"
