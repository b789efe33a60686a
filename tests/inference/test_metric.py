"""The metric: coordinates in which a known posterior is standard normal."""

import numpy as np
import pytest
from scipy.stats import ortho_group

from bayeslaw.inference.metric import LARGE, MANY, inward, learn

SIZE = 8


class Normal:
    """A normal target of known covariance, in place of a compiled density."""

    def __init__(self, covariance):
        self.size, self.precision = len(covariance), np.linalg.inv(covariance)

    def gradient(self, point):
        return -0.5 * point @ self.precision @ point, -self.precision @ point


@pytest.fixture
def covariance():
    """Standard deviations from .01 to 10, in directions that are not those of the coordinates."""
    turn = ortho_group.rvs(SIZE, random_state=0)
    return turn * np.geomspace(1e-2, 10, SIZE) ** 2 @ turn.T


def drawn(covariance, count=400):
    return np.random.default_rng(0).multivariate_normal(np.ones(SIZE), covariance, count)


def test_a_normal_posterior_becomes_standard_normal(covariance):
    points = drawn(covariance)
    shift, factor = learn(Normal(covariance), points)
    np.testing.assert_array_equal(factor, np.tril(factor))
    np.testing.assert_allclose(shift, points.mean(0))
    inverse = np.linalg.inv(factor)
    np.testing.assert_allclose(inverse @ covariance @ inverse.T, np.eye(SIZE), atol=1e-3)
    moved = inward(factor, points - shift)
    np.testing.assert_allclose(moved @ factor.T, points - shift, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("count", "power"), [(MANY - 1, 0.5), (40_000, 1.0)])
def test_a_direction_much_wider_than_its_curvature_says(covariance, count, power):
    """Of few draws the factor's square is the geometric mean, of many the draws' covariance."""
    values, vectors = np.linalg.eigh(covariance)
    wide = vectors[:, 3:4]
    ratio = 10 * LARGE
    seen = covariance + (ratio - 1) * values[3] * wide @ wide.T
    _, factor = learn(Normal(covariance), drawn(seen, count))
    found = factor @ factor.T
    assert (wide.T @ found @ wide).item() / values[3] == pytest.approx(ratio**power, rel=0.15)
    rest = np.delete(vectors, 3, axis=1)
    np.testing.assert_allclose(np.diag(rest.T @ found @ rest), np.delete(values, 3), rtol=0.15)
