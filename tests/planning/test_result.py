"""A plan: its frontier, surface, sensitivity, and the deterministic plan beside it."""

import json

import numpy as np
import pytest

from bayeslaw import BayeslawError, Pool, TableError, grid, locate, plan
from bayeslaw.simulation.worlds import true_fits
from tests.inside import evidence
from tests.planning.posteriors import (
    BASE,
    LIMITS,
    WORLD,
    losses,
    posterior,
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


BEYOND = "feasible, beyond the evidence"
VERDICTS = {
    "inside": ({}, "feasible", ""),
    "ratios beyond": ({"replay_grid": [0.7]}, BEYOND, "0.2 of replay (bands were tested to 0.15)"),
    "asked for": ({"replay_grid": [0.9], "beyond_evidence": True}, BEYOND, "0.4 of replay (bands"),
    "cheaper beyond": ({"max_loss": 3.0, "max_forgetting": 0.9}, "feasible", "decades of tokens"),
}
REFUSED = {
    "ratios": ({"replay_grid": [0.9]}, r"no plan within the evidence.* 0\.4 of replay .*: ask for"),
    "stage": ({"ptpp": 279e2}, r"plan: No evidence: rows lie up to 2 decades of PTPP .*: ask for"),
}


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize(("asked", "status", "words"), VERDICTS.values(), ids=VERDICTS)
def test_a_plan_has_the_verdict_of_the_check_there(fits, asked, status, words, pooled):
    """A plan within the evidence comes first, and a cheaper one beyond stands beside it."""
    target = Pool({"one": fits["target"], "other": posterior("french", seed=1)})
    both = fits | ({"target": target} if pooled else {})
    found = plan(**both, **LIMITS | {"baseline": BASE} | asked)
    assert found.status == status
    assert str(found).startswith(f"Plan: {status}: {found.atpp:.3g} ATPP at ")
    assert words in found.evidence
    assert bool(found.evidence) == bool(words)
    row = grid(params=8.1e9, ptpp=279, replay=found.replay, tokens=found.tokens)
    located = locate(fits["target"].table, row, fits["target"].columns)
    assert (evidence(located, fits["target"].columns)[0] == "ok") == (status == "feasible")
    if cheaper := found.cheaper:
        assert cheaper.atpp < found.atpp
        assert cheaper.p_both >= 0.9
        assert "beyond the evidence" in str(found)
    assert (found.cheaper is None) == ("max_loss" not in asked)
    assert str(found).count("No evidence") == bool(words)


@pytest.mark.parametrize(("asked", "says"), REFUSED.values(), ids=REFUSED)
def test_a_plan_twice_as_far_as_bands_were_measured_is_refused(fits, asked, says):
    with pytest.raises(TableError, match=says):
        plan(**fits, **LIMITS | {"baseline": BASE} | asked)


def test_hardly_any_tokens_lie_beyond_the_evidence(fits):
    found = plan(**fits, **LIMITS | {"max_loss": 100, "max_forgetting": 1}, baseline=BASE)
    assert found.status == "feasible"
    assert found.cheaper.atpp < 1e-3 < found.atpp


def test_frontier_increases_and_surface_agrees(fits):
    found = plan(**fits, **LIMITS, baseline=BASE)
    frontier = found.frontier()
    assert (np.diff(frontier["atpp"]) > 0).all()
    assert (frontier["p_both"] >= frontier["confidence"]).all()
    assert frontier.query("confidence == 0.9")["atpp"].item() == found.atpp
    surface = found.surface([0.0, found.atpp], [0.1, found.replay])
    assert surface.loc[found.atpp, found.replay] == found.p_both
    assert surface.loc[0.0, 0.1] == 0


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


def test_how_far_a_choice_can_be_moved(fits):
    found = plan(**fits, **LIMITS, baseline=BASE, confidence=0.8)
    near = found.around(atpp=1.5 * found.atpp, replay=found.replay)
    low, high = near["atpp"]
    least, most = near["replay"]
    # The least budget at the plan's own ratio is the plan.
    assert low == pytest.approx(found.atpp, rel=1e-4)
    at = found.at
    assert at(atpp=low * 0.999, replay=found.replay).p_both < 0.8
    assert at(atpp=high, replay=found.replay).p_both >= 0.8
    assert least < found.replay < most
    for ratio, step in ((least, -1), (most, 1)):
        assert at(atpp=1.5 * found.atpp, replay=ratio).p_both >= 0.8
        if 0.005 < ratio < 0.649:  # beyond .65 bands were never measured
            assert at(atpp=1.5 * found.atpp, replay=ratio + step * 1e-4).p_both < 0.8
    assert np.isnan(found.around(atpp=1e-3, replay=0.9)["replay"]).all()


def test_where_to_stop(fits):
    found = plan(**fits, **LIMITS, baseline=BASE, confidence=0.8)
    enough = found.stop(0.002, 1e9)
    assert enough.replay == found.replay

    def loss(tokens):
        return found.at(atpp=tokens / LIMITS["params"], replay=found.replay).losses[0]

    assert loss(enough.tokens) - loss(enough.tokens + 1e9) == pytest.approx(0.002, rel=1e-3)
    assert loss(2 * enough.tokens) - loss(2 * enough.tokens + 1e9) < 0.002
    assert found.stop(0.001).atpp > enough.atpp
    assert found.stop(1e-9, 1e18).atpp == np.inf
    assert found.stop(10.0).atpp == pytest.approx(1e-3, rel=1e-3)
    with pytest.raises(BayeslawError, match="positive nats and tokens"):
        found.stop(0)
