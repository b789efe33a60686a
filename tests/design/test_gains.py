"""Updates of the joint covariance against Gaussian conditioning."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.design.problems import prefix, problem


def conditional(beliefs, draws, run, base, effect, have):
    """Target variances after measuring rows `have`, from the whole covariance matrix."""
    rows = len(run)
    full = np.cov(draws, rowvar=False)
    noise = np.diag(beliefs.noise) + effect * (run[:, None] == run)
    noise += 0.2 * (base[:, None] == base)
    full[:rows, :rows] += noise
    have = list(have)
    gain = full[rows:, have] @ np.linalg.inv(full[np.ix_(have, have)])
    return np.diag(full[rows:, rows:] - gain @ full[have, rows:]) if have else np.diag(full)[rows:]


@given(st.integers(0, 10_000), st.sets(st.integers(0, 8), max_size=4))
@settings(deadline=None, max_examples=60)
def test_update_is_gaussian_conditioning(seed, options):
    beliefs, *rest = problem(seed)
    run = rest[1]
    learnt = beliefs.given(sorted(options))
    have = prefix(run, options)
    np.testing.assert_allclose(learnt.variance, conditional(beliefs, *rest, have), rtol=1e-7)
    drop = learnt.drop()
    weights = np.array([0.5, 0.2, 0.3])
    np.testing.assert_allclose(learnt.mean_drop(weights), drop @ weights, atol=1e-10)
    for option in range(9):
        after = conditional(beliefs, *rest, prefix(run, [*options, option]))
        np.testing.assert_allclose(learnt.variance - drop[option], after, rtol=1e-6, atol=1e-9)


def test_information_is_the_ratio_of_determinants():
    beliefs, draws, run, base, effect = problem(3)
    alone = np.diag(beliefs.noise) + effect * (run[:, None] == run) + 0.2 * (base[:, None] == base)
    total = alone + np.cov(draws[:, :9], rowvar=False)
    for options in ([8], [0, 8], [2, 5, 8]):
        have = np.ix_(*[prefix(run, options)] * 2)
        ratio = np.linalg.slogdet(total[have])[1] - np.linalg.slogdet(alone[have])[1]
        assert beliefs.given(options).known == pytest.approx(ratio / 2)
        further = [beliefs.given([*options, option]).known - ratio / 2 for option in range(9)]
        np.testing.assert_allclose(beliefs.given(options).information, further, atol=1e-10)
