"""Pages of HTML that need no network, and the one to explore a plan."""

import base64
import io
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import BayeslawError
from bayeslaw.common.files import atomic_write
from bayeslaw.common.formatting import jsonable
from bayeslaw.common.shown import Note, Shown, Table, rendered
from bayeslaw.planning.result import Plan
from bayeslaw.plots.plans import reach
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
        """Write the page; an earlier file is not changed if that cannot be done."""
        atomic_write(path, self.html)


def picture(figure: Figure, alt: str, caption: str = "") -> Picture:
    """Embed a figure as SVG, or as PNG if the SVG would be larger than `MAX_SVG`."""
    with style():
        kind = "svg+xml"
        drawn = _drawn(figure, "svg")
        if len(drawn) > MAX_SVG:
            kind = "png"
            drawn = _drawn(figure, "png", dpi=180)
    width = round(96 * figure.get_figwidth())
    return Picture(_source(drawn, kind), alt, caption, width)


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
    file = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else None
    figure.savefig(file, format=kind, metadata=metadata, **how)
    return file.getvalue()


def _source(drawn: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(drawn).decode()}"


# -- the page to explore a plan --------------------------------------------------------------------

CONFIDENCES = (*(percent / 100 for percent in range(50, 99, 2)), 0.99)
BUDGETS = 61
RATIOS = 41
"""Numbers of budgets and of replay ratios on the page."""


@dataclass(frozen=True)
class Explorer(Page):
    """One self-contained HTML page of one or several plans."""

    # By name: what the plan shows, P(both) over budgets and replay ratios, and the smallest budget
    # of each confidence.
    plans: Mapping[str, Mapping[str, Any]] = field(repr=False)

    @property
    def html(self) -> str:
        check_plotly()
        from plotly.offline import get_plotlyjs

        data = json.dumps(self.plans, allow_nan=False).replace("<", "\\u003c")
        return rendered("explore.html", data=data, plotly=get_plotlyjs())


def check_plotly() -> None:
    """Raise `BayeslawError` if Plotly, which pages to explore contain, is not installed."""
    if find_spec("plotly") is None:
        raise BayeslawError('a page to explore needs Plotly: pip install "plotly>=6".')


def explore(
    plans: Plan | Mapping[str, Plan],
    *,
    atpp: Floats | None = None,
    replay: Floats | None = None,
) -> Explorer:
    """Make a page on which the confidence of a plan can be moved, and P(both) read off a map.

    The page holds `Plan.surface` over budgets and replay ratios, and `Plan.frontier`. It computes
    nothing, and needs no network.

    Parameters
    ----------
    plans : Plan, or mapping of str to Plan
        Several plans, such as of other limits, sizes or bases, are chosen by name on the page.
    atpp, replay : array, optional
        Budgets and replay ratios of the map, in ascending order; by default around the plan.

    Examples
    --------
    >>> bl.explore({"1.6 nats": plan, "1.7 nats": other}).write("plan.html")  # doctest: +SKIP
    """
    named = {"plan": plans} if isinstance(plans, Plan) else dict(plans)
    if not named:
        raise BayeslawError("give a plan, or several by name.")
    pages = {}
    for name, plan in named.items():
        pages[name] = _page(name, plan, atpp, replay)
    return Explorer(pages)


def _page(
    name: str, plan: Plan, atpp: Floats | None, replay: Floats | None
) -> dict[str, Any]:
    """What the page has of a plan: see `Explorer.plans`."""
    if not plan.chosen.atpp < math.inf:
        raise BayeslawError(f"{name}: no draw meets the limits; relax one.")
    if atpp is None:
        atpp = np.geomspace(*reach(plan), BUDGETS)
    if replay is None:
        replay = np.linspace(0.005, 0.995, RATIOS)
    budgets = np.asarray(atpp, float)
    ratios = np.asarray(replay, float)
    for axis in (budgets, ratios):
        if axis.ndim != 1 or not len(axis) or not (np.diff(axis) > 0).all():
            raise BayeslawError("atpp and replay: give numbers in ascending order.")
    chance = plan.surface(budgets, ratios).to_numpy()
    frontier = plan.frontier(sorted({*CONFIDENCES, plan.confidence}))
    columns = ["confidence", "atpp", "replay", "tokens", "flops"]
    columns += ["p_target", "p_forgetting", "p_both"]
    shown = plan.shown()
    document: dict[str, Any] = jsonable(
        {
            "title": shown.title,
            "texts": _texts(shown),
            "confidence": plan.confidence,
            "losses": plan.losses,
            "params": plan.limits["params"],
            "atpp": budgets.tolist(),
            "replay": ratios.tolist(),
            "chance": chance.tolist(),
            "frontier": frontier[columns].to_dict("records"),
            "fitted": {axis: plan.data.get(axis) for axis in ("atpp", "replay")},
        }
    )
    return document


def _texts(shown: Shown) -> list[dict[str, str]]:
    """The sentences above the first table, those with a level beside it."""
    texts = []
    for block in shown.blocks:
        if isinstance(block, Table):
            break
        if isinstance(block, Note):
            texts.append({"text": block.text, "level": block.level})
        elif isinstance(block, str) and block:
            texts.append({"text": block})
    return texts
