"""Choices at given budgets, their Monte Carlo error and what binds."""

import json
from dataclasses import replace

import numpy as np
import pytest

from bayeslaw import grid, plan
from bayeslaw.planning.choices import (
    INFEASIBLE,
    bootstrap,
    choice_at,
    near_optimal,
    split_half_probability,
)
from bayeslaw.planning.intervals import intersection
from bayeslaw.planning.replay_search import most_probable
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
    """An infeasible plan reports the largest fraction of draws that meets both limits."""
    tight = LIMITS | {"max_loss": 1.7}
    found = plan(**fits, **tight, baseline=BASE)
    assert found.status == "infeasible"
    rows = grid(params=8.1e9, ptpp=279, replay=np.linspace(0.005, 0.995, 199), tokens=1e290)
    target, source = (fits[n].latent(rows) for n in ("target", "source"))
    meets = (target <= 1.7) & (np.roll(source, len(source) // 2, 0) <= 1.02 * BASE)
    assert 0.05 < meets.mean(0).max() < 0.9
    assert found.best.p_both >= meets.mean(0).max()
    assert found.best.p_both == pytest.approx(meets.mean(0).max(), abs=0.02)


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
    assert np.mean([p.held_out for p in plans]) == pytest.approx(0.9, abs=0.03)


def test_replicates_search_the_ratios_that_are_optimal_for_resampled_draws():
    """The best ratio of resampled draws, by a search of the whole grid, lies among those kept."""
    fits = {d: posterior(n, 100) for d, n in zip(("target", "source"), WORLD.laws, strict=True)}
    found = plan(**fits, **LIMITS, baseline=BASE)
    problem, ratios = found.problem, found.replay_grid
    feasible = intersection(problem.feasible_sets(ratios))
    per_ratio = feasible.smallest(problem.rank)
    near, sets = near_optimal(problem, ratios, per_ratio, found.replay, 1)
    rng, best = np.random.default_rng(0), []
    for _ in range(400):
        index = rng.integers(problem.draws, size=problem.draws)
        best.append(ratios[feasible.take(index).smallest(problem.rank).argmin()])
    assert np.mean((near.min() <= best) & (best <= near.max())) >= 0.99
    error = bootstrap(problem, near, sets, np.random.default_rng(1), 1)
    assert error["replay"] == pytest.approx(np.std(best), rel=0.2)


def test_of_equally_probable_choices_the_smallest_budget_is_taken(fits):
    loose = LIMITS | {"max_loss": 2.2, "max_forgetting": 0.3}
    problem, ratios = plan(**fits, **loose, baseline=BASE).problem, np.linspace(0.2, 0.8, 13)
    counts, budgets = intersection(problem.feasible_sets(ratios)).most_common()
    assert np.sum(counts == problem.draws) > 3
    count, budget, _ = most_probable(problem, np.inf, ratios)
    assert count == problem.draws
    assert budget <= budgets[counts == problem.draws].min()


@pytest.mark.parametrize(("ess", "block"), [(400, 1), (60, 7), (50, 8)])
def test_a_block_is_the_draws_per_effective_draw_rounded_up(fits, ess, block):
    slow = replace(GOOD, ess_bulk=ess)
    fits = fits | {"source": replace(fits["source"], convergence=slow)}
    assert plan(**fits, **LIMITS, baseline=BASE, allow_unconverged=True).error["block"] == block


def test_blocks_matter_for_dependent_draws_and_not_for_independent_ones():
    """Each draw eight times in a row carries as much information as the draw once."""
    fits = {d: posterior(n, 100) for d, n in zip(("target", "source"), WORLD.laws, strict=True)}
    problem, ratio = plan(**fits, **LIMITS, baseline=BASE).problem, np.array([0.4])

    def error(problem, block):
        seeds, sets = range(5), intersection(problem.feasible_sets(ratio))
        found = [bootstrap(problem, ratio, sets, np.random.default_rng(s), block) for s in seeds]
        return np.mean([each["atpp"] for each in found])

    once, slow = error(problem, 1), problem.take(np.repeat(np.arange(100), 8))
    assert error(problem, 8) == pytest.approx(once, rel=0.3)
    assert error(slow, 8) == pytest.approx(once, rel=0.3)
    assert error(slow, 1) < 0.6 * once


def test_quantiles_of_the_monte_carlo_error_at_a_fixed_ratio():
    """There a plan of resampled draws is an order statistic of the budgets that they need."""
    fits = {d: posterior(n, 100) for d, n in zip(("target", "source"), WORLD.laws, strict=True)}
    problem, ratio = plan(**fits, **LIMITS, baseline=BASE).problem, np.array([0.4])
    sets = intersection(problem.feasible_sets(ratio))
    needed = np.exp(sets.lower[0, 0])
    index = np.random.default_rng(0).integers(100, size=(20_000, 100))
    low, high = np.quantile(np.sort(needed[index])[:, 89], (0.05, 0.95))
    rngs = map(np.random.default_rng, range(40))
    found = [bootstrap(problem, ratio, sets, rng, 1)["atpp_90"] for rng in rngs]
    assert np.mean(found, axis=0) == pytest.approx([low, high], rel=0.01)


def test_the_probability_on_held_out_draws():
    """At a fixed ratio the plan of one half is an order statistic of its draws' budgets."""
    fits = {d: posterior(n, 100) for d, n in zip(("target", "source"), WORLD.laws, strict=True)}
    problem, ratio = plan(**fits, **LIMITS, baseline=BASE).problem, np.array([0.4])
    sets = intersection(problem.feasible_sets(ratio))
    needed = sets.lower[0, 0]
    halves = needed[:50], needed[50:]
    planned = [np.sort(half)[44] for half in halves]  # 45 of 50 draws
    wanted = [np.mean(halves[1] <= planned[0]), np.mean(halves[0] <= planned[1])]
    assert wanted != [0.9, 0.9]
    assert split_half_probability(problem, sets) == pytest.approx(np.mean(wanted), abs=1e-12)
