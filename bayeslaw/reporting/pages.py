"""A page of sections, tables and pictures, rendered as one HTML file without external resources."""

import base64
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayeslaw.common.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_SVG = 600_000
"""Largest size of an SVG in bytes; a larger picture becomes a PNG."""
DPI = 180


@dataclass(frozen=True)
class Picture:
    """A figure as data URI.

    Parameters
    ----------
    source : str
        ``data:image/...;base64,...``.
    alt : str
        Alternative text: what the picture shows, with numbers.
    caption : str
    width : int
        Natural width in CSS pixels.
    """

    source: str
    alt: str
    caption: str = ""
    width: int = 640

    @property
    def min_width(self) -> int:
        """Smallest width in CSS pixels; on a narrower screen the picture scrolls."""
        return min(560, round(0.6 * self.width))


@dataclass(frozen=True)
class Table:
    """A table of text; the first cell of a row is its header.

    Parameters
    ----------
    caption : str
    head : sequence of str
    rows : sequence of sequences of str
    words : bool
        Whether the cells are text rather than numbers.
    tall : bool
        Whether it scrolls on a screen; in print all rows are shown.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: bool = False
    tall: bool = False


type Part = str | Picture | Table | list[str]
"""A paragraph, a picture, a table, or a list of items."""


@dataclass(frozen=True)
class Section:
    """A section of a page; `name` is its anchor in the HTML."""

    name: str
    title: str
    parts: Sequence[Part]


class Page:
    """A page of HTML that needs no network."""

    @property
    def html(self) -> str:
        """The page as one HTML document."""
        raise NotImplementedError

    def write(self, path: str | Path) -> None:
        """Write the page to `path`.

        Raises
        ------
        FileError
            If the file cannot be written; an earlier file is not changed.
        """
        text = self.html
        with atomic_write(path) as beside:
            beside.write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class Report(Page):
    """A report of a fit, as a self-contained page.

    Parameters
    ----------
    title : str
    lead : str
        The question that the report answers.
    warnings : sequence of str
        Shown at the top, such as that a posterior has not converged.
    sections : sequence of Section
    """

    title: str
    lead: str
    warnings: Sequence[str]
    sections: Sequence[Section] = field(repr=False)

    @property
    def html(self) -> str:
        """The page as one HTML document."""
        return rendered("report.html", page=self)


def picture(figure: "Figure", alt: str, caption: str = "") -> Picture:
    """Embed a figure as SVG in a data URI, or as PNG if the SVG would be larger than `MAX_SVG`."""
    from bayeslaw.plots.style import style

    with style():
        drawn = _drawn(figure, "svg")
        if large := len(drawn) > MAX_SVG:
            drawn = _drawn(figure, "png", dpi=DPI)
    source = _source(drawn, "png" if large else "svg+xml")
    return Picture(source, alt, caption, round(96 * figure.get_figwidth()))


def formula(latex: str) -> Picture:
    """Draw a formula, with its LaTeX as alternative text."""
    from matplotlib.figure import Figure

    from bayeslaw.plots.style import style

    with style():
        figure = Figure(figsize=(0.1, 0.1))
        figure.text(0, 0, f"${latex}$", fontsize=13)
        drawn = _drawn(figure, "svg", bbox_inches="tight")
    points = re.search(rb'width="([\d.]+)pt"', drawn)
    width = round(96 / 72 * float(points[1])) if points else 400
    return Picture(_source(drawn, "svg+xml"), latex, width=width)


def unbroken(text: str) -> str:
    """Prevent line breaks within a number, and between a number and its per cent sign."""
    text = re.sub(r"(?<=\de)-(?=\d)", "\u2011", text)
    return text.replace(" %", "\u00a0%").replace("6 N D", "6\u00a0N\u00a0D")


def _drawn(figure: "Figure", kind: str, **how: Any) -> bytes:
    file, metadata = io.BytesIO(), {"Date": None} if kind == "svg" else None
    figure.savefig(file, format=kind, metadata=metadata, **how)
    return file.getvalue()


def _source(drawn: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(drawn).decode()}"


def rendered(template: str, **values: object) -> str:
    """A template of the package, filled in."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("bayeslaw"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["unbroken"] = unbroken
    environment.tests |= {
        "picture": lambda part: isinstance(part, Picture),
        "table": lambda part: isinstance(part, Table),
    }
    return environment.get_template(template).render(**values)
