"""Pages of HTML that need no network: how figures, formulas and templates become one file."""

import base64
import io
import re
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from bayeslaw.common.files import atomic_write
from bayeslaw.plots.style import style

MAX_SVG = 600_000  # bytes; a larger picture becomes a PNG


class Picture(NamedTuple):
    """A figure as data URI, and what it shows in words."""

    source: str
    alt: str
    caption: str
    width: int

    @property
    def min_width(self) -> int:
        """Smallest width in CSS pixels; on a narrower screen the picture scrolls."""
        return min(560, round(0.6 * self.width))


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


def picture(figure: Figure, alt: str, caption: str = "") -> Picture:
    """Embed a figure as SVG, or as PNG if the SVG would be larger than `MAX_SVG`."""
    with style():
        kind, drawn = "svg+xml", _drawn(figure, "svg")
        if len(drawn) > MAX_SVG:
            kind, drawn = "png", _drawn(figure, "png", dpi=180)
    return Picture(_source(drawn, kind), alt, caption, round(96 * figure.get_figwidth()))


def formula(latex: str) -> Picture:
    """Draw a formula, with its LaTeX as alternative text."""
    with style():
        figure = Figure(figsize=(0.1, 0.1))
        figure.text(0, 0, f"${latex}$", fontsize=13)
        drawn = _drawn(figure, "svg", bbox_inches="tight")
    points = re.search(rb'width="([\d.]+)pt"', drawn)
    width = round(96 / 72 * float(points[1])) if points else 400
    return Picture(_source(drawn, "svg+xml"), latex, "", width)


def _drawn(figure: Figure, kind: str, **how: Any) -> bytes:
    # Without the date, so that the same fit gives the same bytes.
    file, metadata = io.BytesIO(), {"Date": None} if kind == "svg" else None
    figure.savefig(file, format=kind, metadata=metadata, **how)
    return file.getvalue()


def _source(drawn: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(drawn).decode()}"


def unbroken(text: str) -> str:
    """Prevent line breaks within a number, and between a number and its per cent sign."""
    text = re.sub(r"(?<=\de)-(?=\d)", "\u2011", text)
    return text.replace(" %", "\u00a0%").replace("6 N D", "6\u00a0N\u00a0D")


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
    return environment.get_template(template).render(**values)
