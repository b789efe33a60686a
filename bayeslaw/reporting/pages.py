"""A page of sections, tables and pictures, and its one HTML file without a link to anywhere."""

import base64
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bayeslaw.common.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEAVY = 600_000
"""Bytes of SVG from which a picture is kept as PNG instead."""
DPI = 180


@dataclass(frozen=True)
class Picture:
    """A figure as data URI.

    Parameters
    ----------
    source : str
        ``data:image/...;base64,...``.
    alt : str
        What is seen, with numbers, for who cannot see it.
    caption : str
    width : int
        Natural width in CSS pixels.
    """

    source: str
    alt: str
    caption: str = ""
    width: int = 640

    @property
    def least(self) -> int:
        """Width in CSS pixels under which it scrolls instead of shrinking further."""
        return min(560, round(0.6 * self.width))


@dataclass(frozen=True)
class Sheet:
    """A table of text: the first cell of a row names it.

    Parameters
    ----------
    caption : str
    head : sequence of str
    rows : sequence of sequences of str
    words : bool
        Whether the cells are text rather than numbers.
    tall : bool
        Whether it scrolls in itself on a screen; in print all rows are shown.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: bool = False
    tall: bool = False


@dataclass(frozen=True)
class Section:
    """A titled part of a page; a part of `parts` that is text is a paragraph."""

    name: str
    title: str
    parts: Sequence[str | Picture | Sheet | list[str]]


@dataclass(frozen=True)
class Report:
    """A report of a fit, self-contained.

    Parameters
    ----------
    title : str
    lead : str
        The question.
    warnings : sequence of str
        What must be known before anything else, such as a posterior that has not converged.
    sections : sequence of Section
    """

    title: str
    lead: str
    warnings: Sequence[str]
    sections: Sequence[Section] = field(repr=False)

    @property
    def html(self) -> str:
        """The page as one HTML document."""
        from jinja2 import Environment, PackageLoader, StrictUndefined

        environment = Environment(
            loader=PackageLoader("bayeslaw"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters["tied"] = tied
        environment.tests |= {
            "picture": lambda part: isinstance(part, Picture),
            "sheet": lambda part: isinstance(part, Sheet),
        }
        return environment.get_template("report.html").render(page=self)

    def write(self, path: str | Path) -> None:
        """Write the page to `path`.

        Raises
        ------
        FileError
            If the file cannot be written; an earlier one is left as it was.
        """
        with atomic_write(path) as beside:
            beside.write_text(self.html, encoding="utf-8")


def picture(figure: "Figure", alt: str, caption: str = "") -> Picture:
    """A figure as SVG in a data URI, or as PNG where the SVG would be heavy."""
    from bayeslaw.plots.style import style

    with style():
        drawn, kind = _bytes(figure, format="svg", metadata={"Date": None}), "svg+xml"
        if len(drawn) > HEAVY:
            drawn, kind = _bytes(figure, format="png", dpi=DPI), "png"
    source = f"data:image/{kind};base64,{base64.b64encode(drawn).decode()}"
    return Picture(source, alt, caption, round(96 * figure.get_figwidth()))


def formula(latex: str) -> Picture:
    """A formula as picture, with its LaTeX as alternative text."""
    from matplotlib.figure import Figure

    from bayeslaw.plots.style import style

    with style():
        figure = Figure(figsize=(0.1, 0.1))
        figure.text(0, 0, f"${latex}$", fontsize=13)
        drawn = _bytes(figure, format="svg", metadata={"Date": None}, bbox_inches="tight")
    points = re.search(rb'width="([\d.]+)pt"', drawn)
    source = f"data:image/svg+xml;base64,{base64.b64encode(drawn).decode()}"
    return Picture(source, latex, width=round(96 / 72 * float(points[1])) if points else 400)


def tied(text: str) -> str:
    """Text in which no line breaks within a number, nor before its per cent sign."""
    text = re.sub(r"(?<=\de)-(?=\d)", "\u2011", text)
    return text.replace(" %", "\u00a0%").replace("6 N D", "6\u00a0N\u00a0D")


def _bytes(figure: "Figure", **how: object) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, **how)  # type: ignore[arg-type]
    return file.getvalue()
