"""A page on which limits can be moved: P(both) over budget and replay, computed in the browser."""

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import BayeslawError
from bayeslaw.common.files import installing
from bayeslaw.common.formatting import jsonable
from bayeslaw.planning.problem import Limit
from bayeslaw.planning.result import Plan, replay_ratios
from bayeslaw.reporting.pages import Page, rendered

DRAWS, BUDGETS, RATIOS = 256, 33, 25  # of a page, which takes 2 MB
WIDER = 16.0  # budgets reach this factor below and above the plan's


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

        data = json.dumps(self.plans, allow_nan=False).replace("</", "<\\/")
        return rendered("explore.html", data=data, plotly=get_plotlyjs())


def check_plotly() -> None:
    """Raise `BayeslawError` if Plotly, which pages to explore contain, is not installed."""
    if find_spec("plotly") is None:
        raise BayeslawError(f"a page to explore needs Plotly: {installing('explore')}.")


def explore(
    plans: Plan | Mapping[str, Plan],
    *,
    draws: int = DRAWS,
    atpp: Floats | None = None,
    replay: Floats | None = None,
) -> Explorer:
    """Make a page on which the limits and the confidence of a plan can be moved.

    The page holds the losses of some draws on a grid of budgets and replay ratios, with the noise
    that the plan's limits apply to. It counts in the browser the draws that meet the limits, so
    P(both) at a point of the grid is that of `Plan.at` for these draws; between budgets log losses
    are interpolated in log ATPP. The page needs no network.

    Parameters
    ----------
    plans : Plan, or mapping of str to Plan
        Several plans, such as of other sizes or bases, are chosen by name on the page. Each has one
        target.
    draws : int
        Most draws, evenly spread over those of the plan.
    atpp : array, optional
        Budgets in ascending order; by default 33 from a sixteenth to 16 times the plan's.
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
    for what, count in (("target", len(problem.targets)), ("source", len(problem.sources))):
        if count != 1:
            raise BayeslawError(f"{name}: a page has one {what}, and this plan has several.")
    if atpp is None:
        if middle is None or not 0 < middle.atpp < math.inf:
            raise BayeslawError(f"{name}: no draw meets the limits; relax one.")
        atpp = np.geomspace(middle.atpp / WIDER, middle.atpp * WIDER, BUDGETS)
    if replay is None:
        grid = plan.replay_grid
        replay = grid if len(grid) <= RATIOS else np.linspace(grid[0], grid[-1], RATIOS)
    axes = [np.asarray(axis, float) for axis in (atpp, replay)]
    if any(axis.ndim != 1 or not len(axis) or not (np.diff(axis) > 0).all() for axis in axes):
        raise BayeslawError("atpp and replay: give numbers in ascending order.")
    replay_ratios(axes[1])
    few = problem.take(np.linspace(0, problem.draws - 1, min(draws, problem.draws)).astype(int))
    budgets, ratios = axes

    def packed(limit: Limit) -> str:
        """Values of shape (budgets, ratios, draws) as base64, little-endian single precision."""
        values = limit.value(np.log(budgets), ratios)
        return base64.b64encode(np.ascontiguousarray(values, "<f4").tobytes()).decode("ascii")

    return {
        "params": problem.params,
        "limits": jsonable(plan.limits),
        "warnings": [
            *(f"Outside the data: {text}." for text in plan.outside),
            *(f"Not converged: {text}." for text in plan.unconverged),
        ],
        "relative": problem.source.relative,
        "noise": plan.noise,
        "confidence": problem.confidence,
        "max_loss": problem.targets[0].most,
        "max_forgetting": problem.source.most,
        "atpp": budgets.tolist(),
        "replay": ratios.tolist(),
        "draws": few.draws,
        "loss": packed(few.targets[0]),
        "rise": packed(few.source),
    }
