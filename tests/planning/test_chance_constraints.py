"""Ranks, limits and chunks of the probability that both limits are met."""

from dataclasses import replace

import numpy as np
import pytest

from bayeslaw.planning import chance_constraints
from bayeslaw.planning.chance_constraints import Problem
from bayeslaw.planning.intervals import intersection
from bayeslaw.planning.limits import ForgettingLimit, no_noise
from bayeslaw.planning.loss_curves import NODES
from bayeslaw.planning.planner import plan, true_fits
from tests.planning.posteriors import (
    BASE,
    LIMITS,
    WORLD,
)
from tests.planning.random_curves import every_law, random_curve


@every_law
@pytest.mark.parametrize("baseline", [None, "asymptote", "matched"])
def test_cvar_limit_against_brute_force(law, baseline):
    """Single ratios: the budget found meets both conditions, and no node before it does."""
    rng, bound = np.random.default_rng(9), 0
    for _ in range(24):
        curve, replay = random_curve(rng, law, 40), rng.random(1)
        middle = float(np.median(curve.loss(replay, rng.uniform(-2, 4))))
        most, relative = rng.uniform(0, 0.3), bool(rng.integers(2))
        limit = ForgettingLimit(
            curve, most, no_noise(40), baseline=baseline or middle, relative=relative
        )
        problem = Problem((limit,), confidence=rng.choice([0.5, 0.8, 0.9]))
        joint = intersection(problem.feasible_sets(replay))
        start = joint.smallest(problem.rank)[0]
        budget = (start if abs(start) < 15 else 0.0) + rng.uniform(-1, 3)
        problem = replace(problem, max_cvar=float(problem.tail.value(replay, budget)[0]))
        if problem.max_cvar > 1e6:  # near an overflow, rounding hides the crossing
            continue

        def good(u, problem=problem, joint=joint, replay=replay):
            excess = np.sort(problem.source.value(replay, u)[0] - problem.source.most)
            held = np.count_nonzero(joint.contains(u)) >= problem.rank
            return held and excess[problem.rank :].mean() <= problem.max_cvar + 1e-12

        found = problem.smallest_budgets(joint, replay)[0]
        assert not any(good(u) for u in NODES if u < found)
        if np.isfinite(found):
            assert good(found)
            if found > joint.smallest(problem.rank)[0]:
                bound += 1
                assert not good(found - 1e-6)
    assert bound or baseline == "matched"


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
