"""A plan: its frontier, surface, sensitivity, and the deterministic plan beside it."""

import json

import numpy as np
import pytest

from bayeslaw.common.errors import BayeslawError
from bayeslaw.planning.paper_case import true_fits
from bayeslaw.planning.planner import plan
from tests.planning.posteriors import (
    BASE,
    LIMITS,
    WORLD,
    losses,
)


def test_deterministic_plan_has_its_failure_probability(fits):
    found = plan(**fits, **LIMITS, baseline=BASE, point=true_fits(WORLD))
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert document["deterministic"]["atpp"] == pytest.approx(8.9, abs=0.1)
    assert document["deterministic"]["replay"] == pytest.approx(0.34, abs=0.01)
    target, source = losses(fits, found.deterministic)
    risk = 1 - np.mean((target <= 1.8) & (source <= 1.02 * BASE))
    assert document["deterministic"]["p_failure"] == pytest.approx(risk)
    assert risk > 0.5  # both limits bind at the optimum, so half of the draws or more violate one
    assert document["atpp"] > document["deterministic"]["atpp"]
    assert found.point == "point fits as given"
    medians = plan(**fits, **LIMITS, baseline=BASE)
    assert medians.deterministic.atpp == pytest.approx(8.9, rel=0.2)
    assert medians.point == "posterior medians of the reference coordinates"


def test_frontier_increases_and_surface_agrees(fits):
    found = plan(**fits, **LIMITS, baseline=BASE)
    frontier = found.frontier()
    assert (np.diff(frontier["atpp"]) > 0).all()
    assert (frontier["p_both"] >= frontier["confidence"]).all()
    assert frontier.query("confidence == 0.9")["atpp"].item() == found.atpp
    surface = found.surface([0.0, found.atpp], [0.1, found.replay])
    assert surface.loc[found.atpp, found.replay] == found.p_both
    assert surface.loc[0.0, 0.1] == 0
    for limit in ("target", "forgetting"):
        one = found.surface([found.atpp], [found.replay], limit).iloc[0, 0]
        assert one == getattr(found, f"p_{limit}")
    with pytest.raises(BayeslawError, match="unknown limit"):
        found.surface([1], [0.1], "loss")


def test_sensitivity_has_the_right_sign(fits):
    found = plan(**fits, **LIMITS, baseline=BASE)
    moved = found.sensitivity().set_index("quantity")
    for name in ("max_loss", "max_forgetting", "baseline"):
        down, up = moved.loc[name, "atpp"]
        assert down > found.atpp > up
        assert moved.loc[name, "held"].iloc[0] < found.p_both < moved.loc[name, "held"].iloc[1]


def test_a_choice_of_ones_own(fits):
    found = plan(**fits, **LIMITS, baseline=BASE)
    own = found.at(atpp=found.atpp, replay=found.replay)
    assert own.tokens == pytest.approx(found.tokens, rel=1e-9)
    assert own.p_both == found.p_both
    assert found.at(atpp=found.atpp / 2, replay=0.3).p_both < found.p_both
    for wrong in ({"atpp": 0, "replay": 0.3}, {"atpp": 5, "replay": 1.3}):
        with pytest.raises(BayeslawError):
            found.at(**wrong)
