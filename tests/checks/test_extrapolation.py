"""Distance from the fitted rows, and bounds on the loss at a later stage."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayeslaw import check, fit, from_frame, grid, locate, read_table
from bayeslaw.checks.extrapolation import MEASURED, evidence, reach, stage_bounds, stage_shape
from tests.checks.conftest import SHORT

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LOW_REPLAY = ("replay > 0.1", "replay <= 0.1")


def curve(eta, stage):
    """Loss of a law at a stage, apart from the package's formulas."""
    return 1.5 + 0.16 * stage**-eta


def test_reach_of_the_papers_stages():
    """Stage 279 is 4.03 steps of log PTPP from 15, in units of the step from 15 to 31."""
    assert reach(15, 31, 279) == pytest.approx(4.03, abs=5e-3)


@settings(deadline=None)
@given(
    st.floats(1e-3, 3),
    st.floats(1e-3, 3),
    st.floats(0, 1),
    st.lists(st.floats(1.01, 30), min_size=3, max_size=3),
)
def test_bounds_hold_for_sums_of_powers(eta, other, share, steps):
    p1, p2, p3 = np.cumprod(steps) * 5
    l1, l2, l3 = (share * curve(eta, p) + (1 - share) * curve(other, p) for p in (p1, p2, p3))
    lower = l2 - (reach(p1, p2, p3) - 1) * (l1 - l2)
    assert lower - 1e-9 <= l3 <= l2 + 1e-12


def test_stage_bounds_are_those_of_the_formula(two_stages, world):
    seen = two_stages.table.frame
    one, two = (seen.query(f"ptpp == {p}")["loss"].mean() for p in (15, 31))
    frame = stage_bounds(two_stages, world.query("ptpp >= 31").frame)
    assert list(frame.index) == [279]  # 31 is seen
    row = frame.loc[279]
    assert row["lower"] == pytest.approx(
        two - (np.log(279 / 15) / np.log(31 / 15) - 1) * (one - two)
    )
    assert row["upper"] == pytest.approx(two)
    assert 0 < row["upper_sd"] < row["lower_sd"] < 0.01
    sigma = float(two_stages.draws["sigma"].median())
    early, late = (np.linalg.norm(seen.query(f"ptpp == {p}")["loss"]) / 84 for p in (15, 31))
    step = np.log(279 / 15) / np.log(31 / 15)
    assert row["upper_sd"] == pytest.approx(sigma * late)
    assert row["lower_sd"] == pytest.approx(sigma * np.hypot((step - 1) * early, step * late))
    assert len(row["rows"]) == 84


def test_rows_without_a_measured_cell_have_no_bounds(two_stages):
    assert stage_bounds(two_stages, grid(params=2e9, tokens=1e9, replay=0.3, ptpp=279)).empty


def test_stages_that_violate_the_bounds(anchored):
    assert stage_shape(anchored)[["z_below", "z_above"]].max(axis=None) < 2.3
    frame = anchored.table.frame.copy()
    frame.loc[frame["ptpp"] == 279, "loss"] *= 0.9
    wrong = fit("form1", from_frame(frame), seed=0, **SHORT)
    assert stage_shape(wrong)["z_below"].max() > 2.3
    part = check(wrong)["bounds"]
    assert part.level == "caution"
    assert "no term F/P^eta can produce this" in part.words[-1]


def test_distance_is_refused_from_twice_what_was_measured(posterior):
    """The training rows have N up to 3e9 and D up to 1e11."""
    far = {
        3e9 * 10**0.9: "ok",
        3e9 * 10**1.1: "no evidence",
        3e9 * 10**1.8: "no evidence",
        3e9 * 10**2.0: "refuse",
    }
    for size, level in far.items():
        rows = grid(params=size, tokens=1e10)
        found = locate(posterior.table, rows, posterior.columns)
        assert evidence(found, posterior.columns)[0] == level
    found = check(posterior, rows)
    assert found.level == "refuse"
    assert "No evidence: rows lie up to 2 decades of params (bands were tested to 0.96)" in str(
        found
    )
    allowed = check(posterior, rows, beyond_evidence=True)
    assert allowed.level == "no evidence"
    assert allowed.verdict.startswith("NO EVIDENCE")


def test_measured_distances_are_those_of_the_benchmarks():
    rows = pd.read_csv(BENCHMARKS / "distance.csv")
    for name in ("params", "tokens", "decades"):
        column = name if name == "decades" else f"beyond_{name}"
        assert MEASURED[name] == pytest.approx(rows[column].max(), abs=0.001)
    french = read_table(
        BENCHMARKS.parent / "data/tinycpt/french.csv", where="annealed and replay < 1"
    )
    for column, split in (("ptpp", ("ptpp <= 31", "ptpp == 279")), ("replay", LOW_REPLAY)):
        found = locate(*french.split(*split), ("params", "tokens", "replay", "ptpp"))
        assert MEASURED[column] == pytest.approx(found[f"beyond_{column}"].max(), abs=0.001)
