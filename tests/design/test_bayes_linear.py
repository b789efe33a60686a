"""Updates of the joint covariance against Gaussian conditioning."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.design.problems import prefix, problem


def conditional(joint, draws, run, base, effect, have):
    """Target variances after measuring rows `have`, from the whole covariance matrix."""
    rows = len(run)
    full = np.cov(draws, rowvar=False)
    noise = np.diag(joint.noise) + effect * (run[:, None] == run)
    if joint.errors:
        apart = np.abs(joint.errors[1][:, None] - joint.errors[1])
        noise = np.exp(-apart / joint.errors[2]) * np.sqrt(joint.noise[:, None] * joint.noise)
        noise = (noise + effect) * (run[:, None] == run)
    noise += 0.2 * (base[:, None] == base)
    full[:rows, :rows] += noise
    have = list(have)
    gain = full[rows:, have] @ np.linalg.inv(full[np.ix_(have, have)])
    return np.diag(full[rows:, rows:] - gain @ full[have, rows:]) if have else np.diag(full)[rows:]


@given(st.integers(0, 10_000), st.sets(st.integers(0, 8), max_size=4), st.booleans())
@settings(deadline=None, max_examples=60)
def test_update_is_gaussian_conditioning(seed, options, correlated):
    joint, *rest = problem(seed)
    run = rest[1]
    if correlated:
        joint = replace(joint, errors=(run, np.arange(9) * 0.7, 1.5))
    update = joint.update(sorted(options))
    have = prefix(run, options)
    np.testing.assert_allclose(update.variance, conditional(joint, *rest, have), rtol=1e-7)
    reduction = update.reductions()
    weights = np.array([0.5, 0.2, 0.3])
    np.testing.assert_allclose(update.weighted_reduction(weights), reduction @ weights, atol=1e-10)
    for option in range(9):
        after = conditional(joint, *rest, prefix(run, [*options, option]))
        np.testing.assert_allclose(update.variance - reduction[option], after, rtol=1e-6, atol=1e-9)


def test_information_is_the_ratio_of_determinants():
    joint, draws, run, base, effect = problem(3)
    alone = np.diag(joint.noise) + effect * (run[:, None] == run) + 0.2 * (base[:, None] == base)
    total = alone + np.cov(draws[:, :9], rowvar=False)
    for options in ([8], [0, 8], [2, 5, 8]):
        have = np.ix_(*[prefix(run, options)] * 2)
        ratio = np.linalg.slogdet(total[have])[1] - np.linalg.slogdet(alone[have])[1]
        assert joint.update(options).information == pytest.approx(ratio / 2)
        further = [joint.update([*options, option]).information - ratio / 2 for option in range(9)]
        np.testing.assert_allclose(joint.update(options).further_information, further, atol=1e-10)
