"""Positions of rows with respect to training rows, and distances from their convex hull."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayeslaw import TableError, grid, locate, read_table
from tests.inside import displacement, in_words
from tests.support import DATA

GRID = {"params": [1e8, 1e9], "tokens": [1e9, 1e11]}


@settings(deadline=None, max_examples=200)
@given(
    st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 30), st.booleans(), st.booleans()
)
def test_nearest_points_are_those_of_the_projection(seed, dims, count, rounded, collinear):
    """A point y of a convex set is nearest to x if and only if (x - y)(p - y) <= 0 for all p."""
    rng = np.random.default_rng(seed)
    points = rng.normal(0, 3, (count, dims))
    points = np.round(points) if rounded else points
    if collinear:
        points = points[:, :1] * np.ones(dims) + np.arange(dims)
    rows = rng.normal(0, 8, (6, dims))
    away = displacement(points, rows)
    for x, gap in zip(rows, away, strict=True):
        assert ((points - (x - gap)) @ gap).max() <= 1e-9 * (1 + gap @ gap)
    weights = rng.dirichlet(np.ones(count), 5)
    assert np.abs(displacement(points, weights @ points)).max() < 1e-7


def test_the_distance_between_two_rows_is_no_larger_than_at_them():
    """Along one covariate; many training rows lie in one plane."""
    train = read_table(DATA / "tinycpt" / "french.csv", where="annealed and 0 < tokens")
    tokens = np.geomspace(10752, 432640, 25)
    rows = grid(params=21624, tokens=tokens, replay=0.1, ptpp=279)
    far = locate(train.query("ptpp <= 124 and replay < 1"), rows)["decades"]
    assert far.to_numpy() == pytest.approx(np.log10(279 / 124), abs=1e-6)


def test_positions_and_distances():
    rows = pd.DataFrame({"params": [1e8, 3e8, 1e10, 1e7], "tokens": [1e9, 1e10, 1e11, 1e10]})
    found = locate(grid(**GRID), rows)
    assert found["position"].tolist() == ["interpolation"] * 2 + ["extrapolation"] * 2
    assert found["decades"].tolist() == pytest.approx([0, 0, 1, 1])
    assert found["beyond_params"].tolist() == pytest.approx([0, 0, 1, 1])
    assert (found["beyond_tokens"] == 0).all()


def test_an_empty_corner_is_outside_though_each_range_contains_it():
    rows = pd.DataFrame({"params": [1e9], "tokens": [1e11]})
    found = locate(grid(**GRID).iloc[:3], rows).iloc[0]
    # The line through (1e8, 1e11) and (1e9, 1e9) in logs: 2 log10 N + log10 D = 27.
    assert found["position"] == "extrapolation"
    assert found["decades"] == pytest.approx(2 / np.sqrt(5))
    assert found["beyond_params"] == found["beyond_tokens"] == 0


def test_compute_optimal_rows_are_a_line():
    """N and D collinear: the row on the line is inside, the row beside it is not."""
    sizes = np.geomspace(1e8, 1e10, 5)
    train = pd.DataFrame({"params": sizes, "tokens": 20 * sizes})
    rows = pd.DataFrame({"params": [2e8, 1e9], "tokens": [4e9, 20e9 * np.e**2]})
    found = locate(train, rows)
    assert found["position"].tolist() == ["interpolation", "extrapolation"]
    assert found["decades"].tolist() == pytest.approx([0, np.sqrt(2) / np.log(10)])


def test_a_covariate_that_was_never_varied_makes_a_projection():
    train = grid(**GRID, ptpp=31, replay=0.2)
    rows = grid(params=1e9, tokens=1e10, ptpp=[31, 279], replay=[0.2, 0.5])
    found = locate(train, rows, ["params", "tokens"])
    assert found["position"].tolist() == ["interpolation", *["projection"] * 3]
    assert found["unvaried"].tolist() == ["", "replay", "ptpp", "replay, ptpp"]
    stage = np.log10(9)
    assert found["decades"].tolist() == pytest.approx([0, 0.3, stage, np.hypot(0.3, stage)])
    assert in_words(found) == (
        "1 interpolation; 3 projections (up to 1 decades: replay 0.3, ptpp 0.95; the training rows "
        "have one value of replay, ptpp)"
    )


def test_covariates_outside_the_hull_count_by_their_range():
    train = grid(**GRID, ptpp=[15, 31])
    rows = grid(params=[1e9, 1e10], tokens=1e10, ptpp=[20, 279])
    found = locate(train, rows, ["params", "tokens"])
    assert found["position"].tolist() == ["interpolation", *["extrapolation"] * 3]
    assert found["decades"].tolist() == pytest.approx([0, np.log10(9), 1, 1])


def test_batches_and_rounding_do_not_count():
    train = grid(**GRID, ptpp=[31, 31.00001])
    found = locate(train, grid(params=1.004e9, tokens=1e10, ptpp=[30.95, 40]))
    assert found["position"].tolist() == ["interpolation", "projection"]
    found = locate(grid(tokens=[1e9, 1e10]), grid(tokens=[1e9, 1e11]))  # without N
    assert found["decades"].tolist() == pytest.approx([0, 1])
    assert in_words(found) == "1 interpolation; 1 extrapolation (1 decades: tokens 1)"


def test_tables_and_indices(olmo):
    train, test = olmo.split("ptpp < 50", "ptpp > 90")
    found = locate(train, test, ("params", "tokens"))
    assert (found["position"] == "extrapolation").all()
    assert (locate(train, train)["position"] == "interpolation").all()


@pytest.mark.parametrize(
    ("rows", "columns", "says"),
    [
        (grid(params=1e9, tokens=1e9), ("params", "token"), "unknown covariate 'token'; did you"),
        (grid(params=1e9), ("params", "tokens"), "column 'tokens' is missing"),
        (grid(params=1e9, tokens=0), None, "tokens > 0"),
        (grid(params=-1, tokens=1e9), None, "'params' is not positive"),
        (grid(replay=0.5), None, "no covariate"),
    ],
)
def test_rows_that_cannot_be_located(rows, columns, says):
    with pytest.raises(TableError, match=says):
        locate(grid(**GRID), rows, columns)
