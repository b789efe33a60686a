"""The plan of the paper, from the true laws of its synthetic world."""

from dataclasses import replace

import pytest

from bayeslaw.planning.paper_case import true_fits
from bayeslaw.planning.planner import plan
from tests.planning.posteriors import (
    BASE,
    LIMITS,
    WORLD,
)


def test_papers_plan_from_the_true_laws():
    target, source = true_fits(WORLD)
    found = plan(target=target, source=source, **LIMITS, baseline=BASE)
    assert found.atpp == pytest.approx(8.9, abs=0.01)
    assert found.replay == pytest.approx(0.34, abs=0.001)
    assert found.p_both == 1
    assert found.deterministic.atpp == found.atpp
    assert found.draws == 1
    assert found.error == {}


@pytest.mark.parametrize("unit", [1e6, 1e9])
def test_token_unit_of_the_law_is_used(unit):
    """With a gated exponent the unit of D is part of the law; a plan uses the law's own unit."""
    law = replace(WORLD.laws["french"], token_unit=unit)
    truth = dict(WORLD.truth["french"])
    gate = 1 - truth["lambda_"] / (1 + 279 ** -truth["zeta"])
    truth["B"] /= unit ** (truth["beta"] * gate)  # same loss at PTPP 279
    fits = list(true_fits(WORLD))
    fits[0] = replace(fits[0], law=law, parameters=truth)
    found = plan(target=fits[0], source=fits[1], **LIMITS, baseline=BASE)
    assert found.atpp == pytest.approx(8.9, abs=0.01)
