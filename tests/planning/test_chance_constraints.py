"""Ranks, limits and chunks of the probability that both limits are met."""

from dataclasses import replace

import numpy as np
import pytest

from bayeslaw import plan
from bayeslaw.planning import chance_constraints
from bayeslaw.simulation.worlds import true_fits
from tests.planning.posteriors import (
    BASE,
    LIMITS,
    WORLD,
)


@pytest.mark.parametrize(
    ("confidence", "draws", "rank"),
    [(0.9, 10, 9), (0.9, 4000, 3600), (0.95, 20, 19), (0.91, 10, 10), (0.5, 3, 2), (0.01, 10, 1)],
)
def test_rank(confidence, draws, rank):
    problem = plan(target=true_fits(WORLD)[0], source=true_fits(WORLD)[1], **LIMITS, baseline=BASE)
    problem = replace(problem.problem, confidence=confidence).take(np.zeros(draws, int))
    assert problem.rank == rank


def test_plan_does_not_depend_on_chunk_size(fits, monkeypatch):
    one = plan(**fits, **LIMITS, baseline=BASE)
    monkeypatch.setattr(chance_constraints, "CHUNK", 3000)
    assert plan(**fits, **LIMITS, baseline=BASE).to_dict() == one.to_dict()
