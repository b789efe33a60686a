"""Choices at given budgets, their Monte Carlo error and what binds."""

import json
from dataclasses import replace

import numpy as np
import pytest

from bayeslaw import grid, plan
from bayeslaw.planning.problem import likeliest, monte_carlo
from bayeslaw.planning.result import INFEASIBLE, choice_at
from tests.planning.posteriors import (
    BASE,
    GOOD,
    LIMITS,
    WORLD,
    posterior,
)


def test_an_infinite_budget_is_infeasible(fits):
    problem = plan(**fits, **LIMITS, baseline=BASE).problem
    assert choice_at(problem, np.inf, 0.5) is INFEASIBLE
    assert choice_at(problem, 1e4, 0.5) is INFEASIBLE
    assert choice_at(problem, 599.0, 0.5).p_both > 0


def test_infeasible_plans_say_what_binds(fits):
    found = plan(**fits, **LIMITS | {"max_loss": 1.45}, baseline=BASE)
    assert found.status == "infeasible"
    assert found.atpp == np.inf
    assert np.isnan(found.p_both)
    assert found.binds.startswith("target;")
    assert found.best.p_both < 0.9
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["atpp"] is None
    found = plan(**fits, **LIMITS | {"max_forgetting": -0.3}, baseline=BASE)
    assert found.binds.startswith("forgetting;")
    assert found.best.p_both == 0
    both = LIMITS | {"max_loss": 1.6, "max_forgetting": -0.1}
    assert plan(**fits, **both, baseline=BASE).binds.startswith(("target and", "target;"))


def test_best_attainable_probability(fits):
    """The largest fraction of draws that meets both limits, within the evidence or anywhere."""
    tight = LIMITS | {"max_loss": 1.7}
    found = plan(**fits, **tight, baseline=BASE)
    assert found.status == "infeasible"
    rows = grid(params=8.1e9, ptpp=279, replay=np.linspace(0.005, 0.995, 199), tokens=1e290)
    target, source = (fits[n].latent(rows) for n in ("target", "source"))
    meets = (target <= 1.7) & (np.roll(source, len(source) // 2, 0) <= 1.02 * BASE)
    assert 0.05 < meets.mean(0).max() < 0.9
    best = likeliest(replace(found.problem, beyond=None), found.replay_grid)[0] / 400
    assert best >= meets.mean(0).max()
    assert best == pytest.approx(meets.mean(0).max(), abs=0.02)
    assert found.best.p_both < best
    assert "% within the evidence" in found.verdict


def test_monte_carlo_error_covers_fresh_draws():
    """Plans from other draws of the same posterior vary as much as the bootstrap predicts."""
    plans = [
        plan(
            target=posterior("french", seed=seed),
            source=posterior("english_arabic", seed=seed),
            **LIMITS,
            baseline=BASE,
        )
        for seed in range(12)
    ]
    scatter = np.std([p.atpp for p in plans])
    assert 0.5 < np.mean([p.error["atpp"] for p in plans]) / scatter < 2
    # Each plan on the draws of the next: P(both) that no choice was made on.
    others = zip(plans, plans[1:] + plans[:1], strict=True)
    fresh = [other.at(atpp=one.atpp, replay=one.replay).p_both for one, other in others]
    assert np.mean([p.held_out for p in plans]) == pytest.approx(np.mean(fresh), abs=0.015)


def test_replicates_search_the_ratios_that_are_optimal_for_resampled_draws():
    """Against plans of resampled draws by a fine grid of all ratios."""
    fits = {d: posterior(n, 100) for d, n in zip(("target", "source"), WORLD.laws, strict=True)}
    found = plan(**fits, **LIMITS, baseline=BASE)
    problem, ratios = found.problem, found.replay_grid
    needed = np.array([problem.needed(ratio, 1e-3) for ratio in ratios])
    rng, best, budgets = np.random.default_rng(0), [], []
    for _ in range(400):
        index = rng.integers(problem.draws, size=problem.draws)
        per_ratio = np.sort(needed[:, index])[:, problem.rank - 1]
        best.append(ratios[per_ratio.argmin()])
        budgets.append(per_ratio.min())
    assert found.error["replay"] == pytest.approx(np.std(best), rel=0.3)
    assert found.error["atpp"] == pytest.approx(np.std(np.exp(budgets)), rel=0.3)


def test_of_equally_probable_choices_the_smallest_budget_is_taken(fits):
    loose = LIMITS | {"max_loss": 2.2, "max_forgetting": 0.3}
    problem, ratios = plan(**fits, **loose, baseline=BASE).problem, np.linspace(0.2, 0.8, 13)
    needed = np.array([problem.needed(ratio).max() for ratio in ratios])
    assert np.sum(needed < np.inf) > 3
    count, budget, _ = likeliest(problem, ratios)
    assert count == problem.draws
    assert budget <= needed.min() + 1e-6


@pytest.mark.parametrize(("ess", "block"), [(400, 1), (60, 7), (50, 8)])
def test_a_block_is_the_draws_per_effective_draw_rounded_up(fits, ess, block):
    slow = replace(GOOD, ess_bulk=ess)
    fits = fits | {"source": replace(fits["source"], convergence=slow)}
    assert plan(**fits, **LIMITS, baseline=BASE, allow_unconverged=True).error["block"] == block


def at_a_ratio():
    """A problem of 100 draws, and its plan at one replay ratio."""
    fits = {d: posterior(n, 100) for d, n in zip(("target", "source"), WORLD.laws, strict=True)}
    found = plan(**fits, **LIMITS, baseline=BASE, replay_grid=[0.4])
    return found.problem, found


def test_blocks_matter_for_dependent_draws_and_not_for_independent_ones():
    """Each draw eight times in a row carries as much information as the draw once."""
    problem, found = at_a_ratio()

    def error(problem, block):
        rngs = map(np.random.default_rng, range(5))
        errors = [
            monte_carlo(problem, np.array([0.4]), (found.budget, 0.4), block, rng)[0]
            for rng in rngs
        ]
        return np.mean([each["atpp"] for each in errors])

    once, slow = error(problem, 1), problem.take(np.repeat(np.arange(100), 8))
    assert error(problem, 8) == pytest.approx(once, rel=0.3)
    assert error(slow, 8) == pytest.approx(once, rel=0.3)
    assert error(slow, 1) < 0.6 * once


def test_quantiles_of_the_monte_carlo_error_at_a_fixed_ratio():
    """There a plan of resampled draws is an order statistic of the budgets that they need."""
    problem, found = at_a_ratio()
    needed = np.exp(problem.needed(0.4))
    index = np.random.default_rng(0).integers(100, size=(20_000, 100))
    low, high = np.quantile(np.sort(needed[index])[:, 89], (0.05, 0.95))
    rngs = map(np.random.default_rng, range(40))
    at = np.array([0.4]), (found.budget, 0.4)
    errors = [monte_carlo(problem, *at, 1, rng)[0]["atpp_90"] for rng in rngs]
    assert np.mean(errors, axis=0) == pytest.approx([low, high], rel=0.01)


def test_the_probability_on_held_out_draws():
    """At a fixed ratio the plan of one half is an order statistic of its draws' budgets."""
    problem, found = at_a_ratio()
    needed = problem.needed(0.4, 1e-12)
    halves = needed[:50], needed[50:]
    planned = [np.sort(half)[44] for half in halves]  # 45 of 50 draws
    wanted = [np.mean(halves[1] <= planned[0]), np.mean(halves[0] <= planned[1])]
    assert wanted != [0.9, 0.9]
    assert found.held_out == pytest.approx(np.mean(wanted), abs=1e-12)


@pytest.mark.parametrize(
    ("confidence", "draws", "rank"),
    [(0.9, 10, 9), (0.9, 4000, 3600), (0.95, 20, 19), (0.91, 10, 10), (0.5, 3, 2), (0.01, 10, 1)],
)
def test_rank(fits, confidence, draws, rank):
    problem = plan(**fits, **LIMITS, baseline=BASE, replay_grid=[0.4]).problem
    problem = replace(problem, confidence=confidence).take(np.zeros(draws, int))
    assert problem.rank == rank


def test_plan_does_not_depend_on_the_size_of_blocks(fits, monkeypatch):
    one = plan(**fits, **LIMITS, baseline=BASE)
    monkeypatch.setattr("bayeslaw.planning.problem.BLOCK", 3000)
    assert plan(**fits, **LIMITS, baseline=BASE).to_dict() == one.to_dict()
