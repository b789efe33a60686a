"""Figures of a plan: its landscape and its frontier."""

from dataclasses import replace

import numpy as np
import pytest

from bayeslaw import plan
from bayeslaw.plots.plans import plan_frontier, plan_landscape
from tests.planning.posteriors import BASE, LIMITS, both


@pytest.fixture(scope="module")
def found():
    return plan(**both(), **LIMITS, baseline=BASE)


def test_pictures_show_the_plan(found):
    figure = plan_landscape(found, points=15)
    titles = [ax.get_title() for ax in figure.axes if ax.get_title()]
    assert titles == ["forgetting of the source (%)", "target loss (nats per token)"]
    stars = [line for line in figure.axes[0].lines if line.get_marker() == "*"]
    assert stars[0].get_xydata()[0] == pytest.approx([100 * found.replay, found.atpp])
    curve = plan_frontier(found, points=5).axes[0].lines[0]
    assert np.all(np.diff(curve.get_ydata()) > 0)


def test_pictures_of_what_is_infeasible(found):
    never = found.problem.scaled(max_loss=1.4 / found.problem.targets[0].most)
    nothing = replace(found, problem=never, status="infeasible", best=None)
    assert "infeasible at 90 %" in plan_landscape(nothing, points=11).get_suptitle()
    assert plan_frontier(nothing, points=4).axes[0].texts[-1].get_text() == "infeasible"
