"""Newton steps within bounds."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bayeslaw.huber.newton import step_within


@given(seed=st.integers(0, 10_000), near=st.floats(0.01, 1.0))
def test_steps_stay_within_bounds_and_are_newtons_where_none_binds(seed, near):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(5, 4, 6))
    matrix, gradient = root @ root.swapaxes(-1, -2), rng.normal(size=(5, 4))
    newton = -np.linalg.solve(matrix, gradient[..., None])[..., 0]
    wide = 2 * np.abs(newton)
    np.testing.assert_allclose(step_within(matrix, gradient, -wide, wide), newton, rtol=1e-8)
    tight = near * np.abs(newton)
    tight[:, 0] = 0
    step = step_within(matrix, gradient, -tight, tight)
    assert np.all(np.abs(step) <= tight)
    # What is off its bounds is where the quadratic is least, given the rest.
    slope = gradient + (matrix @ step[..., None])[..., 0]
    done = np.sum(np.abs(step) == tight, axis=1) < 4
    off = (np.abs(step) < tight) & done[:, None]
    np.testing.assert_allclose(slope[off], 0, atol=1e-7 * np.abs(gradient).max())
