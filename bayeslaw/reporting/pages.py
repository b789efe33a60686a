"""Pages of HTML that need no network, and the one on which a plan's limits can be moved.

The latter computes P(both) over budget and replay in the browser.
"""

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
from bayeslaw.planning.chance_constraint import lattice_of
from bayeslaw.planning.result import Plan, replay_ratios
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
        atomic_write(path, self.html)


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


# -- the page to explore a plan --------------------------------------------------------------------

MAX_DRAWS, PAGE_BUDGETS, MAX_RATIOS = 256, 33, 25  # of a page, which takes 2 MB
MARGIN = 4.0  # budgets reach this factor below and above the plan's, and half of it beyond the rows


@dataclass(frozen=True)
class Explorer(Page):
    """One self-contained HTML page of one or several plans.

    Parameters
    ----------
    plans : mapping of str to dict
        For each name: limits, grids of budgets and replay ratios, and the losses of each draw.
    """

    plans: Mapping[str, Mapping[str, Any]] = field(repr=False)

    @property
    def html(self) -> str:
        """The page as one HTML document, Plotly included."""
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
    draws: int = MAX_DRAWS,
    atpp: Floats | None = None,
    replay: Floats | None = None,
) -> Explorer:
    """Make a page on which the limits and the confidence of a plan can be moved.

    The page holds the losses of some draws on a grid of budgets and replay ratios, latent and, if
    the plan's limits are on them, measured. It counts in the browser the draws that meet the
    limits, so P(both) at a point of the grid is that of `Plan.at` for these draws; between budgets
    log losses are interpolated in log ATPP. The page needs no network.

    Parameters
    ----------
    plans : Plan, or mapping of str to Plan
        Several plans, such as of other sizes or bases, are chosen by name on the page. Each has one
        target.
    draws : int
        Most draws, evenly spread over those of the plan.
    atpp : array, optional
        Budgets in ascending order; by default 33 around the plan's and the fitted ones.
    replay : array, optional
        Replay ratios in ascending order; by default 25 between those that the plan searched.

    Returns
    -------
    Explorer
        ``explore(plan).write("plan.html")`` writes it.

    Raises
    ------
    BayeslawError
        If a plan has several targets, no draw that meets the limits, or a grid is not ascending.

    Examples
    --------
    >>> bl.explore(plan).write("plan.html")  # doctest: +SKIP
    """
    named = {"plan": plans} if isinstance(plans, Plan) else dict(plans)
    if not named:
        raise BayeslawError("give a plan, or several by name.")
    return Explorer({name: _page(name, each, draws, atpp, replay) for name, each in named.items()})


def _page(
    name: str, plan: Plan, draws: int, atpp: Floats | None, replay: Floats | None
) -> dict[str, Any]:
    problem, middle = plan.problem, plan.chosen
    if len(problem.targets) != 1:
        raise BayeslawError(f"{name}: a page has one target, and this plan has several.")
    if atpp is None:
        if not middle.atpp < math.inf:
            raise BayeslawError(f"{name}: no draw meets the limits; relax one.")
        low, high = plan.data.get("atpp", (middle.atpp, middle.atpp))
        ends = min(low * 2, middle.atpp), max(high / 2, middle.atpp)
        atpp = np.geomspace(ends[0] / MARGIN, ends[1] * MARGIN, PAGE_BUDGETS)
    if replay is None:
        grid = problem.lattice.ratios
        replay = grid if len(grid) <= MAX_RATIOS else np.linspace(grid[0], grid[-1], MAX_RATIOS)
    budgets, ratios = (np.asarray(axis, float) for axis in (atpp, replay))
    for axis in (budgets, ratios):
        if axis.ndim != 1 or not len(axis) or not (np.diff(axis) > 0).all():
            raise BayeslawError("atpp and replay: give numbers in ascending order.")
    replay_ratios(ratios)
    within = np.ones((len(budgets), len(ratios)), bool)
    if problem.far is not None:
        within = problem.far((np.log(budgets)[:, None], ratios)) <= 0
    kept = np.linspace(0, plan.draws - 1, min(plan.draws, draws)).round().astype(int)
    losses = lattice_of([limit.domain for limit in problem.limits], np.log(budgets), ratios).losses

    def of_kept(values: Floats | float) -> str:
        return _packed(np.broadcast_to(values, plan.draws)[kept])

    return {
        "params": problem.params,
        "limits": jsonable(plan.limits),
        "outside": [note.text for note in plan.reservations if note.level != "refuse"],
        "unconverged": [*plan.unconverged],
        "data": jsonable(plan.data),
        "relative": problem.sources[0].relative,
        "confidence": problem.confidence,
        "max_loss": problem.targets[0].most,
        "max_forgetting": [source.most for source in problem.sources],
        "atpp": budgets.tolist(),
        "replay": ratios.tolist(),
        "within": within.tolist(),
        "draws": len(kept),
        # Latent losses of each fit on the grid, (budgets, ratios, draws).
        "losses": [_packed(loss[..., kept]) for loss in losses],
        # For each kind of losses and each fit, what a draw's latent loss is multiplied by, and
        # for a source the baseline above which it has risen.
        "kinds": {
            kind: {
                "factor": [of_kept(np.exp(m * limit.domain.deviation)) for limit in problem.limits],
                "baseline": [of_kept(source.start(measured=m)) for source in problem.sources],
            }
            for kind, m in (("measured", True), ("latent", False))
        },
    }


def _packed(values: Floats) -> str:
    """Base64 of an array in little-endian single precision."""
    return base64.b64encode(np.ascontiguousarray(values, "<f4").tobytes()).decode("ascii")
