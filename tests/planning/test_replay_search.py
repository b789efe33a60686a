"""Budgets found cell by cell against those of all sets, and against brute force."""

import numpy as np
import pytest

from bayeslaw.planning.chance_constraints import Problem
from bayeslaw.planning.intervals import intersection
from bayeslaw.planning.limits import ForgettingLimit, LossLimit, Noise
from bayeslaw.planning.replay_search import (
    budgets_between,
    most_probable,
    smallest_budget,
    smallest_budgets,
)
from tests.planning.random_curves import RISING, TWICE, every_law, random_curve, with_terms

RATIOS = np.linspace(0.05, 0.95, 7)


def problems(law, baseline, count, draws=60):
    rng = np.random.default_rng(8)
    for _ in range(count):
        target, source = (random_curve(rng, law, draws) for _ in range(2))
        at = rng.uniform(-2, 4)
        losses = [float(np.median(curve.loss([0.3], at))) for curve in (target, source)]
        max_loss, rise = losses[0] * rng.uniform(1.0, 1.3), rng.uniform(0, 0.3)
        relative, confidence = bool(rng.integers(2)), rng.choice([0.1, 0.3, 0.6])
        totals, bases = rng.normal(0, 0.01, (2, 2, draws))
        noise = [Noise(total, base) for total, base in zip(totals, bases, strict=True)]
        start = baseline or losses[1]
        limits = (
            LossLimit(target, max_loss, noise[0]),
            ForgettingLimit(source, rise, noise[1], baseline=start, relative=relative),
        )
        yield Problem(limits, confidence)


@every_law
@pytest.mark.parametrize("baseline", [None, "asymptote"])
def test_they_agree_with_all_sets(law, baseline):
    """Of laws with a closed form too."""
    finite = 0
    for problem in problems(law, baseline, 8 if law.deviations else 20):
        found = smallest_budgets(problem, RATIOS)
        wanted = intersection(problem.feasible_sets(RATIOS)).smallest(problem.rank)
        if not np.isfinite(wanted.min()) or abs(wanted.min()) > 15:
            continue  # beyond the nodes
        finite += 1
        near = np.isfinite(found)
        np.testing.assert_allclose(found[near], wanted[near], rtol=1e-9, atol=1e-9)
        assert found.min() == pytest.approx(wanted.min(), rel=1e-9, abs=1e-9)
        assert (wanted[~near] > wanted.min()).all()
    assert finite >= 3 or baseline


@pytest.mark.parametrize("terms", [TWICE, RISING])
def test_plans_are_the_smallest_of_brute_force(terms):
    """On a fine grid of budgets no smaller one has as many draws, at any ratio."""
    finite = 0
    for problem in problems(with_terms(*terms), None, 16):
        budget, ratio, _ = smallest_budget(problem, RATIOS)
        if not np.isfinite(budget) or abs(budget) > 14:
            continue
        finite += 1
        assert problem.meets([ratio], budget + 1e-9).all(0).sum() >= problem.rank
        for u in np.arange(-14, budget - 1e-6, 0.05):
            assert (problem.meets(RATIOS, u).all(0).sum(-1) < problem.rank).all()
    assert finite >= 3


@pytest.mark.parametrize("cap", [0.0, np.inf])
def test_the_most_probable_choice_under_a_cap(cap):
    """No ratio and budget of a fine grid has more draws, but for one or two between nodes."""
    for problem in problems(with_terms(*TWICE), None, 8):
        count, budget, _ = most_probable(problem, cap, RATIOS)
        assert budget <= cap
        high = min(cap, 15)
        grid = np.arange(-14, high + 1e-9, 0.25)
        most = max(problem.meets(RATIOS, u).all(0).sum(-1).max() for u in grid)
        assert count >= most - 2


def test_budgets_below_the_window_are_found():
    for problem in problems(with_terms(*TWICE), None, 6):
        budget, ratio, _ = smallest_budget(problem, RATIOS)
        if np.isfinite(budget) and abs(budget) < 10:
            found = budgets_between(problem, np.array([ratio]), budget + 3, budget + 3.2)
            assert found[0] == pytest.approx(budget, abs=1e-9)
            higher = budgets_between(problem, np.array([ratio]), budget - 3, budget - 2)
            assert higher[0] == np.inf
