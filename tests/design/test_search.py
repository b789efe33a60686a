"""Sets of runs: updates against Gaussian conditioning, searches against brute force, costs."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayeslaw import BayeslawError, LossTable
from tests.inside import JointGaussian, Search, centred, costs

GAINS = ["variance", "entropy", "doptimal"]


def problem(seed, runs=4, rows=9, targets=3, correlated=False):
    """Candidates of several runs from two bases, and their covariance with the targets."""
    rng = np.random.default_rng(seed)
    draws = rng.standard_normal((200, 5)) @ rng.standard_normal((5, rows + targets))
    run = np.sort(rng.integers(runs, size=rows))
    run = np.unique(run, return_inverse=True)[1]
    noise = np.diag(rng.uniform(0.05, 0.5, rows))
    if correlated:
        sd = np.sqrt(np.diag(noise))
        apart = np.abs(np.subtract.outer(np.arange(rows), np.arange(rows))) * 0.7
        noise = sd[:, None] * sd * np.exp(-apart / 1.5) * (run[:, None] == run)
    noise += 0.3 * (run[:, None] == run) + 0.2 * (run[:, None] % 2 == run % 2)
    z = centred(draws)
    every = np.arange(rows)
    return JointGaussian(z[:, :rows], z[:, rows:], noise, run, every, every.astype(float)), z


def prefix(run, options):
    return [i for i in range(len(run)) if any(run[i] == run[o] and i <= o for o in options)]


def conditional(joint, z, have):
    """Target variances after measuring rows `have`, from the whole covariance matrix."""
    rows, full = len(joint.run), z.T @ z
    full[:rows, :rows] += joint.noise
    gain = full[rows:, have] @ np.linalg.inv(full[np.ix_(have, have)])
    return np.diag(full[rows:, rows:] - gain @ full[have, rows:])


@given(st.integers(0, 10_000), st.sets(st.integers(0, 8), max_size=4), st.booleans())
@settings(deadline=None, max_examples=60)
def test_an_update_is_gaussian_conditioning(seed, options, correlated):
    joint, z = problem(seed, correlated=correlated)
    now, then = joint.variances(sorted(options))
    np.testing.assert_allclose(now, conditional(joint, z, prefix(joint.run, options)), rtol=1e-7)
    for option in range(9):
        after = conditional(joint, z, prefix(joint.run, [*options, option]))
        np.testing.assert_allclose(then[option], after, rtol=1e-6, atol=1e-9)


def test_information_is_the_ratio_of_determinants():
    joint, z = problem(3)
    total = joint.noise + z[:, :9].T @ z[:, :9]
    for options in ([], [8], [0, 8], [2, 5, 8]):
        have = np.ix_(*[prefix(joint.run, options)] * 2)
        ratio = np.linalg.slogdet(total[have])[1] - np.linalg.slogdet(joint.noise[have])[1]
        now, then = joint.information(options)
        assert now == pytest.approx(ratio / 2)
        further = [joint.information([*options, option])[0] for option in range(9)]
        np.testing.assert_allclose(then, further, atol=1e-10)


def search(seed=0, k=2, budget=np.inf, gain="variance", power=0.0, second_size=False, **sizes):
    joint, _ = problem(seed, **sizes)
    rng, run = np.random.default_rng(seed), joint.run
    own = np.empty(len(run))
    for each in np.unique(run):
        own[run == each] = np.cumsum(rng.uniform(1, 5, (run == each).sum()))
    frame = pd.DataFrame({"cost": own, "params": 1.0 + run % 3, "tokens": 1.0, "run": run})
    price = costs(frame, ("params", "tokens"), cost="cost")
    weights = np.full(3, 1 / 3)
    return Search(joint, price, run % 3, gain, weights, k, budget, power, second_size)


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("gain", GAINS)
@pytest.mark.parametrize("budget", [np.inf, 9.0])
def test_small_problems_get_nearly_the_best_set_of_all(gain, budget, k):
    ratios = []
    for seed in range(8):
        found = search(seed, k, budget, gain)
        sets = [s for i in range(1, k + 1) for s in combinations(range(9), i)]
        values = [found.worths(s)[0] for s in sets if found.costs.total(s) <= budget]
        nothing = found.worths([])[0]
        ratios.append((found.worths(found.best())[0] - nothing) / (max(values) - nothing))
    assert np.median(ratios) == pytest.approx(1)
    assert min(ratios) > 0.9


class Rounded:
    """A joint distribution in which every further row seems to lower the variances a little."""

    def __init__(self, joint):
        self.joint = joint

    def variances(self, options):
        now, then = self.joint.variances(options)
        return now, then * (1 - 1e-14)


def test_rows_that_are_measured_already_are_not_bought_again():
    found = search(3, 3, 9.0)
    found = replace(found, joint=Rounded(found.joint))
    picks = found.greedy([], 1.0)
    assert len({*picks}) == len(picks)
    assert found.costs.total(picks) <= 9.0 * (1 + 1e-9)


@pytest.mark.parametrize("second_size", [True, False])
@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_without_a_budget_k_runs_are_bought_at_a_good_rate(power, second_size):
    ratios = []
    for seed in range(4):
        for k in (2, 3, 4):
            found = search(seed, k, np.inf, power=power, second_size=second_size)
            picks, run, size = found.best(), found.costs.run, found.size
            assert len({*run[picks]}) == len(picks) == min(k, run.max() + 1)
            sets = map(list, combinations(range(9), len(picks)))
            sets = [s for s in sets if len({*run[s]}) == len(s)]
            some = [s for s in sets if len({*size[s]}) > 1] if second_size else sets
            nothing = found.worths([])[0]
            rates = [
                (found.worths(s)[0] - nothing) / found.costs.total(s) ** power
                for s in [picks, *(some or sets)]
            ]
            ratios.append(rates[0] / max(rates[1:]))
    assert np.median(ratios) == pytest.approx(1)
    assert 0.9 < min(ratios) <= max(ratios) <= 1 + 1e-9


@given(st.integers(0, 10_000), st.sampled_from(GAINS))
@settings(deadline=None, max_examples=20)
def test_a_search_stays_within_budget_and_improves_on_greedy(seed, gain):
    found = search(seed, 6, 25.0, gain, power=1.0, rows=14, runs=7)
    picks = found.best()
    assert found.costs.total(picks) <= 25 * (1 + 1e-9)
    assert len({*found.costs.run[picks]}) == len(picks)
    start = found.greedy([], 1.0)
    assert found.worths(picks)[0] >= found.worths(start)[0] - 1e-12


def test_a_second_size_is_bought_while_it_can_be_paid():
    for seed in range(12):
        for budget in (6.0, 9.0, 14.0, np.inf):
            for k in (2, 5):
                found = search(seed, k, budget, power=1.0, second_size=True, rows=14, runs=7)
                possible = any(
                    found.size[a] != found.size[b] and found.costs.total([a, b]) <= budget
                    for a, b in combinations(range(14), 2)
                )
                assert (len({*found.size[found.best()]}) > 1) == possible


def test_a_run_costs_its_longest_row_and_a_base_its_stage_once():
    columns = ("params", "tokens", "ptpp")
    frame = pd.DataFrame(
        {"params": [1e8, 1e8, 1e8, 2e8], "tokens": [1e9, 4e9, 1e9, 1e9], "ptpp": [20, 20, 20, 20.0]}
    )
    frame["run"] = ["a", "a", "b", "c"]
    price = costs(frame, columns)
    stage, more = 6 * 1e8 * 1e8 * 20, 6 * 2e8 * 2e8 * 20
    assert price.further([])[1] == stage + 6e8 * 4e9
    assert price.total([0, 1]) == price.total([1]) == stage + 6e8 * 4e9
    assert price.further([0])[1] == pytest.approx(6e8 * 3e9)
    assert price.further([1])[0] == 0
    assert price.measured([1, 3]) == [0, 1, 3]
    assert price.longest([0, 1, 2]) == [1, 2]
    assert price.total([1, 2]) == stage + 6e8 * 5e9
    assert price.total([0, 1, 2, 3]) == pytest.approx(stage + more + 6e8 * 5e9 + 12e8 * 1e9)
    there = costs(frame, columns, fitted=LossTable(frame.iloc[:1], frame.iloc[:0], "rows"))
    assert there.total([0]) == 6e8 * 1e9
    assert there.total([3]) == more + 12e8 * 1e9
    evaluated = LossTable(frame.iloc[3:], frame.iloc[:1].assign(tokens=0.0), "rows")
    assert costs(frame, columns, fitted=evaluated).total([0, 3]) == 6e8 * 1e9 + 12e8 * 1e9
    assert costs(frame, columns, cost="adaptation").total([3]) == 12e8 * 1e9
    assert costs(frame, columns[:2]).total([0]) == 6e8 * 1e9
    with pytest.raises(BayeslawError, match="unknown cost 'hours'"):
        costs(frame, columns, cost="hours")
    with pytest.raises(BayeslawError, match="not a positive number"):
        costs(frame.assign(hours=[1, 2, 0, 4]), columns, cost="hours")
