"""Verification of registered forecasts: matching of rows, scores, and what is appended."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayeslaw.common.errors import BayeslawError, FileError, TableError
from bayeslaw.evaluate.registration import read, register
from bayeslaw.evaluate.scores import score
from bayeslaw.evaluate.verification import _places, verify
from bayeslaw.tables.reading import from_frame
from bayeslaw.tables.table import grid

PLANNED = grid(params=[5e9, 1e10], tokens=[1e11, 1e12, 1e13])


@pytest.fixture(scope="module")
def predicted(posterior):
    return posterior.forecast(PLANNED, seed=1)


@pytest.fixture
def path(predicted, tmp_path):
    register(predicted, tmp_path / "planned.json", draws=10**6)
    return tmp_path / "planned.json"


@pytest.fixture(scope="module")
def losses(predicted):
    """Measured losses: in the 50 % band, in the 80 %, in the 90 %, below, above, at the median."""
    at = predicted.quantile([0.3, 0.85, 0.93, 0.01, 0.99, 0.5])
    return from_frame(PLANNED.assign(loss=[at[i, i] for i in range(6)]), "measured")


def test_scores_are_those_of_the_forecast(predicted, path, losses):
    found = verify(path, losses)
    wanted = score(predicted, losses)
    assert list(found.scores.index) == list(wanted.index)
    # Quantiles of the log and logs of quantiles differ by the interpolation between two draws.
    np.testing.assert_allclose(found.scores, wanted, rtol=1e-4)
    assert found.scores["crps"] == pytest.approx(wanted["crps"], rel=1e-12)


def test_scores_by_hand(path, losses):
    found = verify(path, losses)
    assert found.frame["inside_50"].tolist() == [True, False, False, False, False, True]
    assert found.frame["inside_80"].tolist() == [True, True, False, False, False, True]
    assert found.frame["inside_90"].tolist() == [True, True, True, False, False, True]
    got = found.scores
    assert got["coverage_50"] == pytest.approx(2 / 6)
    assert got["coverage_80"] == pytest.approx(3 / 6)
    assert got["coverage_90"] == pytest.approx(4 / 6)
    lower, upper = np.log(found.frame["lower_90"]), np.log(found.frame["upper_90"])
    y = np.log(losses.loss)
    penalty = 20 * ((lower[3] - y[3]) + (y[4] - upper[4]))
    assert got["winkler_90"] == pytest.approx(((upper - lower).sum() + penalty) / 6, rel=1e-12)
    assert got["mae_rel"] == pytest.approx(found.frame["error"].abs().mean(), rel=1e-12)


def test_without_draws_there_is_no_crps(predicted, losses, tmp_path):
    register(predicted, tmp_path / "x.json")
    found = verify(tmp_path / "x.json", losses)
    assert found.scores.isna().tolist() == [name == "crps" for name in found.scores.index]
    assert read(tmp_path / "x.json")["results"][0]["scores"]["crps"] is None


def test_results_are_appended_and_the_forecast_stays(path, losses):
    before = path.read_text()
    first = verify(path, losses.frame[4:5])
    assert (first.missing, first.extra) == ((0, 1, 2, 3, 5), ())
    assert first.frame["loss"].notna().tolist() == [i == 4 for i in range(6)]
    assert first.frame["inside_90"].isna().sum() == 5
    assert np.isnan(first.scores["slope"])  # one point has no slope
    second = verify(path, losses)
    assert (second.missing, len(second.results)) == ((), 2)
    after = path.read_text()
    kept = before[: before.index(' "results"')]
    assert after.startswith(kept)
    results = json.loads(after)["results"]
    assert results == list(second.results)
    assert [each["scored"] for each in results] == [1, 6]
    assert results[0]["missing"] == [0, 1, 2, 3, 5]
    assert results[1]["measured"] == {"name": "measured", "rows": 6, "sha256": losses.sha256}
    assert results[1]["scores"] == pytest.approx(second.scores.to_dict())
    assert [row["loss"] for row in results[1]["losses"]] == losses.loss.tolist()


def test_extra_rows_are_named_and_not_scored(path, losses, small):
    frame = pd.concat([small.frame[:3], losses.frame[::-1]], ignore_index=True)
    found = verify(path, from_frame(frame))
    assert found.extra == (0, 1, 2)
    np.testing.assert_allclose(found.scores, verify(path, losses).scores, rtol=1e-12)


@settings(max_examples=50, deadline=None)
@given(st.permutations(range(6)), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_rows_are_found_in_any_order_within_the_tolerance(order, count, seed):
    registered = {"match": ["params", "tokens"], "rows": PLANNED.to_dict("records")}
    some = PLANNED.iloc[list(order)[:count]].reset_index(drop=True)
    off = 1 + np.random.default_rng(seed).uniform(-9e-4, 9e-4, (count, 2))
    table = from_frame((some * off).assign(loss=2.0))
    assert _places(registered, table, 1e-3).tolist() == list(order)[:count]


def test_tolerance_is_relative_and_stated(path, losses):
    moved = losses.frame.assign(tokens=losses.frame["tokens"] * 1.01)
    with pytest.raises(TableError, match=r"none of its 6 rows was forecast; .*relative 0\.001"):
        verify(path, moved)
    assert verify(path, moved, tolerance=0.011).results[-1]["tolerance"] == 0.011
    with pytest.raises(TableError, match=r"lie within 0\.95 of several rows"):
        verify(path, losses, tolerance=0.95)
    with pytest.raises(BayeslawError, match=r"tolerance=1: give a relative difference"):
        verify(path, losses, tolerance=1)
    assert len(read(path)["results"]) == 1


def test_no_replay_is_matched(posterior, tmp_path):
    planned = grid(params=5e9, tokens=1e12, replay=[0.0, 0.1])
    register(posterior.forecast(planned), tmp_path / "x.json")
    found = verify(tmp_path / "x.json", planned.assign(loss=2.0)[:1])
    assert found.missing == (1,)


def test_two_measurements_of_one_row_are_refused(path, losses):
    frame = pd.concat([losses.frame, losses.frame[2:3] * 1.0001], ignore_index=True)
    with pytest.raises(TableError, match=r"rows 2, 6 are all measurements of row 2"):
        verify(path, frame)
    assert read(path)["results"] == []


def test_labels_match_whatever_type_a_file_gave_them(posterior, tmp_path):
    planned = pd.concat([PLANNED[:1]] * 3, ignore_index=True)
    register(posterior.forecast(planned.assign(run=[7, 8, 9])), tmp_path / "x.json")
    measured = pd.concat([planned, PLANNED[1:2]], ignore_index=True).assign(loss=[2, 2.1, 2.2, 3])
    for runs in (["9", "7", "10", "8"], [9.0, 7.0, np.nan, 8.0]):
        found = verify(tmp_path / "x.json", measured.assign(run=runs))
        assert (found.missing, found.extra) == ((1,), (2, 3))
        assert found.frame["loss"].tolist()[::2] == [2.1, 2.0]
    with pytest.raises(TableError, match=r"no column 'run', by which measured rows are matched"):
        verify(tmp_path / "x.json", measured)


def test_a_planned_row_without_a_label_takes_any(posterior, tmp_path):
    planned = PLANNED[:2].assign(run=["a", None])
    register(posterior.forecast(planned), tmp_path / "x.json")
    found = verify(tmp_path / "x.json", PLANNED[:2].assign(run=["b", "b"], loss=2.0))
    assert (found.missing, found.extra) == ((0,), (0,))


def test_the_published_hash_is_compared(path, losses):
    sha256 = read(path)["sha256"]
    assert verify(path, losses, sha256=sha256.upper()).sha256 == sha256
    with pytest.raises(FileError, match="not 0000"):
        verify(path, losses, sha256="0000")


def test_without_losses_nothing_is_written(path):
    before = path.read_bytes()
    found = verify(path)
    assert found.scores.isna().all()
    assert found.missing == tuple(range(6))
    assert path.read_bytes() == before


def test_an_edited_forecast_is_not_scored(path, losses):
    content = path.read_text().replace('"losses_known": 0', '"losses_known": 6')
    path.write_text(content)
    with pytest.raises(FileError, match="edited after it was registered: losses_known"):
        verify(path, losses)
    assert path.read_text() == content
