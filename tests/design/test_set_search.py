"""Search for the best set against brute force."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayeslaw import BayeslawError, LossTable, load_law
from bayeslaw.design.set_search import GAINS, Search, costs
from tests.design.problems import LAW, problem


def search(seed=0, k=2, budget=np.inf, gain="variance", power=0.0, second_size=False, **sizes):
    joint, _, run, _, _ = problem(seed, **sizes)
    rng = np.random.default_rng(seed)
    own = np.empty(len(run))
    for each in np.unique(run):
        own[run == each] = np.cumsum(rng.uniform(1, 5, (run == each).sum()))
    frame = pd.DataFrame({"cost": own, "params": 1.0 + run % 3, "tokens": 1.0})
    size = (run % 3).astype(int)
    price = costs(frame.assign(run=run), LAW.columns, cost="cost")
    weights = np.full(3, 1 / 3)
    return Search(joint, price, size, GAINS[gain], weights, k, budget, power, second_size)


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("gain", ["variance", "entropy", "doptimal"])
@pytest.mark.parametrize("budget", [np.inf, 9.0])
def test_small_problems_get_the_best_set_of_all(gain, budget, k):
    for seed in range(4):
        found = search(seed, k, budget, gain)
        picks, how = found.best()
        assert how == "every set tried"
        sets = [s for i in range(1, k + 1) for s in combinations(range(9), i)]
        paid = [s for s in sets if found.costs.total(s) <= budget]
        best = max(found.value(s) for s in paid)
        assert found.value(picks) == pytest.approx(best)


@pytest.mark.parametrize("second_size", [True, False])
@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_without_a_budget_k_runs_are_bought_at_the_best_rate(power, second_size):
    for seed in range(4):
        for k in (2, 3, 4):
            found = search(seed, k, np.inf, power=power, second_size=second_size)
            picks, how = found.best()
            run, size = found.costs.run, found.size
            assert len({*run[picks]}) == len(picks) == min(k, run.max() + 1)
            sets = map(list, combinations(range(9), len(picks)))
            sets = [s for s in sets if len({*run[s]}) == len(s)]
            some = [s for s in sets if len({*size[s]}) > 1] if second_size else sets
            rates = [
                (found.value(s) - found.value([])) / found.costs.total(s) ** power
                for s in [picks, *(some or sets)]
            ]
            assert rates[0] <= max(rates[1:]) * (1 + 1e-9)
            if how == "every set tried":
                assert rates[0] == pytest.approx(max(rates))


@given(st.integers(0, 10_000), st.sampled_from(["variance", "entropy", "doptimal"]))
@settings(deadline=None, max_examples=20)
def test_search_stays_within_budget_and_improves_on_greedy(seed, gain):
    found = search(seed, 6, 25.0, gain, power=1.0, rows=14, runs=7)
    picks, how = found.best()
    assert how == "greedy, then exchanges"
    assert found.costs.total(picks) <= 25 * (1 + 1e-9)
    assert len({*found.costs.run[picks]}) == len(picks)
    start = found._greedy([], 1.0)
    value = [found.value(p) for p in (picks, start)]
    assert value[0] >= value[1] - 1e-12


def test_a_second_size_is_bought_while_it_can_be_paid():
    for seed in range(12):
        for budget in (6.0, 9.0, 14.0, np.inf):
            for k in (2, 5):
                found = search(seed, k, budget, power=1.0, second_size=True, rows=14, runs=7)
                picks, _ = found.best()
                pairs = combinations(range(14), 2)
                possible = any(
                    found.size[a] != found.size[b] and found.costs.total([a, b]) <= budget
                    for a, b in pairs
                )
                assert (len({*found.size[picks]}) > 1) == possible


def test_a_run_costs_its_longest_row_and_a_base_its_stage_once():
    frame = pd.DataFrame(
        {"params": [1e8, 1e8, 1e8, 2e8], "tokens": [1e9, 4e9, 1e9, 1e9], "ptpp": [20, 20, 20, 20.0]}
    )
    frame["run"], law = ["a", "a", "b", "c"], load_law("form1")
    price = costs(frame, law.columns)
    stage, more = 6 * 1e8 * 1e8 * 20, 6 * 2e8 * 2e8 * 20
    assert price.further([])[1] == stage + 6e8 * 4e9
    assert price.total([0, 1]) == price.total([1]) == stage + 6e8 * 4e9
    assert price.further([0])[1] == pytest.approx(6e8 * 3e9)
    assert price.further([1])[0] == 0
    assert price.total([1, 2]) == stage + 6e8 * 5e9
    assert price.total([0, 1, 2, 3]) == pytest.approx(stage + more + 6e8 * 5e9 + 12e8 * 1e9)
    there = costs(frame, law.columns, fitted=LossTable(frame.iloc[:1], frame.iloc[:0], "rows"))
    assert there.total([0]) == 6e8 * 1e9
    assert there.total([3]) == more + 12e8 * 1e9
    evaluated = LossTable(frame.iloc[3:], frame.iloc[:1].assign(tokens=0.0), "rows")
    assert costs(frame, law.columns, fitted=evaluated).total([0, 3]) == 6e8 * 1e9 + 12e8 * 1e9
    assert costs(frame, law.columns, cost="adaptation").total([3]) == 12e8 * 1e9
    assert costs(frame, LAW.columns).total([0]) == 6e8 * 1e9
    with pytest.raises(BayeslawError, match="unknown cost 'hours'"):
        costs(frame, law.columns, cost="hours")
    with pytest.raises(BayeslawError, match="not a positive number"):
        costs(frame.assign(hours=[1, 2, 0, 4]), law.columns, cost="hours")
