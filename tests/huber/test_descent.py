"""Descents: Newton steps within bounds."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bayeslaw.huber.descent import bounded_steps


@given(seed=st.integers(0, 10_000), near=st.floats(0.01, 1.0))
def test_bounded_steps_are_newton_steps_where_no_bound_is_active(seed, near):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(5, 4, 6))
    matrix, gradient = root @ root.swapaxes(-1, -2), rng.normal(size=(5, 4))
    newton = -np.linalg.solve(matrix, gradient[..., None])[..., 0]
    wide = 2 * np.abs(newton)
    np.testing.assert_allclose(bounded_steps(matrix, gradient, -wide, wide), newton, rtol=1e-8)
    tight = near * np.abs(newton)
    tight[:, 0] = 0
    step = bounded_steps(matrix, gradient, -tight, tight)
    assert np.all(np.abs(step) <= tight)
    # Coordinates off their bounds minimise the quadratic function given the others.
    slope = gradient + (matrix @ step[..., None])[..., 0]
    done = np.sum(np.abs(step) == tight, axis=1) < 4
    off = (np.abs(step) < tight) & done[:, None]
    np.testing.assert_allclose(slope[off], 0, atol=1e-7 * np.abs(gradient).max())


def test_a_coordinate_without_effect_stays():
    matrix, gradient = np.diag([2.0, 0.0])[None], np.array([[-1.0, 0.0]])
    step = bounded_steps(matrix, gradient, np.full((1, 2), -9.0), np.full((1, 2), 9.0))
    np.testing.assert_allclose(step, [[0.5, 0.0]])
