"""Registered forecasts: the file, edits that are found, matching of rows, and scores."""

import copy
import hashlib
import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayeslaw import (
    BayeslawError,
    FileError,
    Posterior,
    TableError,
    from_frame,
    grid,
    register,
    score,
    verify,
)
from bayeslaw.evaluate.registration import SCHEMA, _places, digest, read
from bayeslaw.laws.adjustments import annealing, repeating

PLANNED = grid(params=[5e9, 1e10], tokens=[1e11, 1e12])
REPEATED = ((2e9, 1), (1e13, 1), (1e13, 0))
"""Distinct tokens and whether annealed, of three forecasts of one model."""


@pytest.fixture
def predicted(posterior: Posterior):
    return posterior.forecast(PLANNED.assign(run=["a", "b", "c", None]), seed=4)


@pytest.fixture
def path(predicted, tmp_path):
    register(predicted, tmp_path / "planned.json", draws=100)
    return tmp_path / "planned.json"


def test_the_file_says_what_was_forecast_from_what(predicted, posterior, path):
    document = json.loads(path.read_text())
    forecast = document["forecast"]
    fit = forecast["fits"]["chinchilla"]
    assert fit["training"] == {
        "name": posterior.table.name,
        "rows": len(posterior.table),
        "sha256": posterior.table.sha256,
    }
    assert fit["specification"] == posterior.spec.identity
    assert fit["settings"] == dict(posterior.settings)
    assert fit["settings"]["versions"]["pymc"]
    assert (forecast["seed"], fit["settings"]["seed"]) == (4, 0)
    assert (forecast["synthetic"], forecast["losses_known"]) == (True, 0)
    assert pd.Timestamp(forecast["date"]).tz is not None
    assert forecast["match"] == ["params", "tokens", "run"]
    rows = pd.DataFrame(forecast["rows"])
    assert [row["run"] for row in forecast["rows"]] == ["a", "b", "c", None]
    wanted = predicted.to_frame((0.5, 0.8, 0.9))
    numbers = [c for c in rows if c not in ("row", "run")]
    assert {"median", "lower_90", "position"} <= set(numbers)
    pd.testing.assert_frame_equal(rows[numbers], wanted[numbers], check_exact=True)
    drawn = np.array(forecast["draws"])
    assert drawn.shape == (4, 100)
    spaced = np.linspace(0, len(predicted.samples) - 1, 100).astype(int)
    np.testing.assert_array_equal(drawn, predicted.samples[spaced].T)  # row by row, in order


def test_the_hash_is_of_the_forecast_as_sorted_json(path):
    document = json.loads(path.read_text(), parse_int=float)
    text = json.dumps(document["forecast"], sort_keys=True, ensure_ascii=False)
    assert document["sha256"] == hashlib.sha256(text.encode()).hexdigest()


def test_one_row_is_one_line(path):
    lines = [line for line in path.read_text().splitlines() if '"lower_50"' in line]
    assert [json.loads(line.strip().rstrip(","))["row"] for line in lines] == [0, 1, 2, 3]


def test_losses_that_are_known_are_counted(posterior, small, tmp_path):
    register(posterior.forecast(small), tmp_path / "x.json")
    assert read(tmp_path / "x.json")["forecast"]["losses_known"] == len(small)
    assert "draws" not in read(tmp_path / "x.json")["forecast"]


def test_a_mixture_names_all_its_fits(predicted, posterior, tmp_path):
    register(replace(predicted, fits={"one": posterior, "two": posterior}), tmp_path / "x.json")
    assert set(read(tmp_path / "x.json")["forecast"]["fits"]) == {"one", "two"}


def test_a_failed_gate_is_registered_with_the_forecast(unconverged, tmp_path):
    fc = unconverged.forecast(PLANNED, allow_unconverged=True)
    register(fc, tmp_path / "x.json")
    assert read(tmp_path / "x.json")["forecast"]["failures"] == list(fc.convergence.failures) != []


def leaves(value, path=()):
    """Paths of all numbers, texts and empty lists in plain data."""
    if isinstance(value, dict) and value:
        return [leaf for key in value for leaf in leaves(value[key], (*path, key))]
    if isinstance(value, list) and value:
        return [leaf for i, each in enumerate(value) for leaf in leaves(each, (*path, i))]
    return [path]


def part_of(path) -> str:
    """Name of the part that a leaf belongs to, as an error message calls it."""
    match path:
        case ("fits", label, name, *_):
            return f"{name} of {label}"
        case ("rows", i, *_):
            return f"row {i}"
        case ("draws", i, *_):
            return f"draws of row {i}"
    return path[0]


def other(value):
    match value:
        case bool():
            return not value
        case int() | float():
            return value * (1 + 1e-15) if value else 1e-300
        case str():
            return value + " "
    return "edited"


def edited(path, document) -> str:
    """The error of reading an edited document; the file is as it was edited afterwards."""
    path.write_text(json.dumps(document))
    with pytest.raises(FileError, match="was edited after it was registered") as error:
        read(path)
    assert path.read_text() == json.dumps(document)
    return str(error.value)


def test_an_edit_of_any_number_or_text_is_found_and_named(path):
    whole = json.loads(path.read_text())
    places = leaves(whole["forecast"])
    assert len(places) > 400
    for place in [p for p in places if p[0] != "draws" or p[2] % 25 == 0]:
        document = copy.deepcopy(whole)
        inside = document["forecast"]
        for key in place[:-1]:
            inside = inside[key]
        inside[place[-1]] = other(inside[place[-1]])
        says = edited(path, document)
        assert place[2:] == ("row",) or f"registered: {part_of(place)}. Its" in says, place


def test_removed_added_and_moved_parts_are_found(path):
    whole = json.loads(path.read_text())
    for change, says in (
        (lambda f: f["rows"].pop(2), "row 2 (removed)"),
        (lambda f: f["rows"].append(f["rows"][0] | {"row": 9}), "row 9 (added)"),
        (lambda f: f["rows"].reverse(), "the order of the rows"),
        (lambda f: f.pop("seed"), "seed (removed)"),
        (lambda f: f.update(note="better"), "note (added)"),
        (lambda f: f["fits"]["chinchilla"].pop("errors"), "errors of chinchilla (removed)"),
        (lambda f: f.pop("draws"), "draws of row 0 (removed)"),
    ):
        document = copy.deepcopy(whole)
        change(document["forecast"])
        assert says in edited(path, document)
    assert "the hash itself" in edited(path, whole | {"sha256": "0" * 64})


def test_another_layout_of_the_same_content_is_no_edit(path):
    whole = json.loads(path.read_text())
    path.write_text(re.sub(r": (\d+)\.0,", r": \1,", json.dumps(whole, indent=4, sort_keys=True)))
    assert digest(read(path)["forecast"]) == whole["sha256"]
    assert '"params": 5000000000,' in path.read_text()


def test_numbers_that_no_float_holds_are_told_apart():
    assert digest(2**53) != digest(2**53 + 1)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "damaged"),
        ("[]", "damaged"),
        ("{}", "damaged"),
        ('{"format": "other"}', "not a registered forecast"),
        ('{"format": "bayeslaw registered forecast", "schema": 1}', "damaged"),
    ],
)
def test_foreign_and_damaged_files(tmp_path, content, says):
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(FileError, match=says) as error:
        read(path)
    assert "\n" not in str(error.value)


def test_missing_cut_and_newer_files(path, tmp_path):
    with pytest.raises(FileError, match="no such file"):
        read(tmp_path / "absent.json")
    whole = path.read_text()
    newer = whole.replace(f'"schema": {SCHEMA}', f'"schema": {SCHEMA + 1}')
    for content, says in ((whole[: len(whole) // 2], "damaged"), (newer, "upgrade bayeslaw")):
        path.write_text(content)
        with pytest.raises(FileError, match=says):
            read(path)


def test_a_registered_forecast_is_not_replaced(predicted, path):
    before = path.read_bytes()
    with pytest.raises(FileError, match="never replaced"):
        register(predicted, path)
    assert path.read_bytes() == before


def test_what_cannot_be_registered(predicted, posterior, tmp_path):
    path = tmp_path / "x.json"
    for bad, says in (
        (posterior.forecast(PLANNED, kind="latent"), "latent forecast has no noise"),
        (replace(predicted, fits={}), "does not know its fit"),
        (replace(predicted, draws=predicted.draws * np.inf), "not finite"),
    ):
        with pytest.raises(BayeslawError, match=says):
            register(bad, path)
    for draws in (-1, 99):
        with pytest.raises(BayeslawError, match=f"draws={draws}: store none, or at least 100"):
            register(predicted, path, draws=draws)
    twice = pd.concat([PLANNED, PLANNED[:1]], ignore_index=True)
    with pytest.raises(TableError, match=r"rows 0, 4 of the forecast have the same params, tokens"):
        register(posterior.forecast(twice), path)
    with pytest.raises(FileError, match="cannot write"):
        register(predicted, tmp_path / "absent" / "x.json")
    assert not list(tmp_path.iterdir())


WIDER = grid(params=[5e9, 1e10], tokens=[1e11, 1e12, 1e13])


@pytest.fixture(scope="module")
def wider(posterior):
    return posterior.forecast(WIDER, seed=1)


@pytest.fixture
def file(wider, tmp_path):
    register(wider, tmp_path / "planned.json", draws=10**6)
    return tmp_path / "planned.json"


@pytest.fixture(scope="module")
def losses(wider):
    """Measured losses: in the 50 % band, in the 80 %, in the 90 %, below, above, at the median."""
    at = wider.quantile([0.3, 0.85, 0.93, 0.01, 0.99, 0.5])
    return from_frame(WIDER.assign(loss=[at[i, i] for i in range(6)]), "measured")


def test_scores_are_those_of_the_forecast(wider, file, losses):
    found = verify(file, losses)
    wanted = score(wider, losses)
    assert list(found.scores.index) == list(wanted.index)
    # Quantiles of the log and logs of quantiles differ by the interpolation between two draws.
    np.testing.assert_allclose(found.scores, wanted, rtol=1e-4)
    assert found.scores["crps"] == pytest.approx(wanted["crps"], rel=1e-12)


def test_scores_by_hand(file, losses):
    found = verify(file, losses)
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


def test_without_draws_there_is_no_crps(wider, losses, tmp_path):
    register(wider, tmp_path / "x.json")
    found = verify(tmp_path / "x.json", losses)
    assert found.scores.isna().tolist() == [name == "crps" for name in found.scores.index]
    assert read(tmp_path / "x.json")["results"][0]["scores"]["crps"] is None


def test_results_are_appended_and_the_forecast_stays(file, losses):
    before = file.read_text()
    first = verify(file, losses.frame[4:5])
    assert (first.missing, first.extra) == ((0, 1, 2, 3, 5), ())
    assert first.frame["loss"].notna().tolist() == [i == 4 for i in range(6)]
    assert first.frame["inside_90"].isna().sum() == 5
    assert np.isnan(first.scores["slope"])  # one point has no slope
    second = verify(file, losses)
    assert (second.missing, len(second.results)) == ((), 2)
    after = file.read_text()
    kept = before[: before.index(' "results"')]
    assert after.startswith(kept)
    results = json.loads(after)["results"]
    assert results == list(second.results)
    assert [each["scored"] for each in results] == [1, 6]
    assert results[0]["missing"] == [0, 1, 2, 3, 5]
    assert results[1]["measured"] == {"name": "measured", "rows": 6, "sha256": losses.sha256}
    assert results[1]["scores"] == pytest.approx(second.scores.to_dict())
    assert [row["loss"] for row in results[1]["losses"]] == losses.loss.tolist()


def test_extra_rows_are_named_and_not_scored(file, losses, small):
    frame = pd.concat([small.frame[:3], losses.frame[::-1]], ignore_index=True)
    found = verify(file, from_frame(frame))
    assert found.extra == (0, 1, 2)
    np.testing.assert_allclose(found.scores, verify(file, losses).scores, rtol=1e-12)


@settings(max_examples=50, deadline=None)
@given(st.permutations(range(6)), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_rows_are_found_in_any_order_within_the_tolerance(order, count, seed):
    registered = {"match": ["params", "tokens"], "rows": WIDER.to_dict("records")}
    some = WIDER.iloc[list(order)[:count]].reset_index(drop=True)
    off = 1 + np.random.default_rng(seed).uniform(-9e-4, 9e-4, (count, 2))
    table = from_frame((some * off).assign(loss=2.0))
    assert _places(registered, table, 1e-3).tolist() == list(order)[:count]


def test_tolerance_is_relative_and_stated(file, losses):
    moved = losses.frame.assign(tokens=losses.frame["tokens"] * 1.01)
    with pytest.raises(TableError, match=r"none of its 6 rows was forecast; .*relative 0\.001"):
        verify(file, moved)
    assert verify(file, moved, tolerance=0.011).results[-1]["tolerance"] == 0.011
    with pytest.raises(TableError, match=r"lie within 0\.95 of several rows"):
        verify(file, losses, tolerance=0.95)
    with pytest.raises(BayeslawError, match=r"tolerance=1: give a relative difference"):
        verify(file, losses, tolerance=1)
    assert len(read(file)["results"]) == 1


def test_no_replay_is_matched(posterior, tmp_path):
    planned = grid(params=5e9, tokens=1e12, replay=[0.0, 0.1])
    register(posterior.forecast(planned), tmp_path / "x.json")
    found = verify(tmp_path / "x.json", planned.assign(loss=2.0)[:1])
    assert found.missing == (1,)


def test_repeated_tokens_and_annealing_are_matched(posterior, tmp_path):
    """Where the forecast depends on them; tables may lack the columns."""
    law = annealing(repeating(posterior.law))
    one, more = 1 + 0 * posterior.draws["L_ref"], set(law.coordinates) - set(posterior.draws)
    fit = replace(
        posterior,
        spec=replace(posterior.spec, law=law),
        draws=posterior.draws.assign(dict.fromkeys(more, 0.01 * one)),
        at={**posterior.at, "unannealed": 0.0},
    )
    rows = WIDER[:1]
    planned = pd.concat([rows.assign(unique_tokens=u, annealed=a) for u, a in REPEATED])
    register(fit.forecast(planned.reset_index(drop=True)), path := tmp_path / "x.json")
    measured = rows.assign(loss=2.0)
    assert verify(path, measured).missing == (0, 2)  # no repeated tokens, annealed
    assert verify(path, measured.assign(unique_tokens=2e9)).missing == (1, 2)
    assert verify(path, measured.assign(annealed=False)).missing == (0, 1)
    with pytest.raises(TableError, match="matched by params, tokens, unique_tokens, annealed"):
        verify(path, measured.assign(unique_tokens=3e9))
    register(fit.forecast(rows), other := tmp_path / "y.json")
    assert verify(other, measured.assign(unique_tokens=1e13, annealed=1)).missing == ()
    with pytest.raises(TableError, match="none of its 1 rows was forecast"):
        verify(other, measured.assign(unique_tokens=2e9))


def test_two_measurements_of_one_row_are_refused(file, losses):
    frame = pd.concat([losses.frame, losses.frame[2:3] * 1.0001], ignore_index=True)
    with pytest.raises(TableError, match=r"rows 2, 6 are all measurements of row 2"):
        verify(file, frame)
    assert read(file)["results"] == []


def test_labels_match_whatever_type_a_file_gave_them(posterior, tmp_path):
    planned = pd.concat([WIDER[:1]] * 3, ignore_index=True)
    register(posterior.forecast(planned.assign(run=[7, 8, 9])), tmp_path / "x.json")
    measured = pd.concat([planned, WIDER[1:2]], ignore_index=True).assign(loss=[2, 2.1, 2.2, 3])
    for runs in (["9", "7", "10", "8"], [9.0, 7.0, np.nan, 8.0]):
        found = verify(tmp_path / "x.json", measured.assign(run=runs))
        assert (found.missing, found.extra) == ((1,), (2, 3))
        assert found.frame["loss"].tolist()[::2] == [2.1, 2.0]
    with pytest.raises(TableError, match=r"no column 'run', by which measured rows are matched"):
        verify(tmp_path / "x.json", measured)


def test_a_planned_row_without_a_label_takes_any(posterior, tmp_path):
    planned = WIDER[:2].assign(run=["a", None])
    register(posterior.forecast(planned), tmp_path / "x.json")
    found = verify(tmp_path / "x.json", WIDER[:2].assign(run=["b", "b"], loss=2.0))
    assert (found.missing, found.extra) == ((0,), (0,))


def test_the_published_hash_is_compared(file, losses):
    sha256 = read(file)["sha256"]
    assert verify(file, losses, sha256=sha256.upper()).sha256 == sha256
    with pytest.raises(FileError, match="not 0000"):
        verify(file, losses, sha256="0000")


def test_without_losses_nothing_is_written(file):
    before = file.read_bytes()
    found = verify(file)
    assert found.scores.isna().all()
    assert found.missing == tuple(range(6))
    assert file.read_bytes() == before


def test_an_edited_forecast_is_not_scored(file, losses):
    content = file.read_text().replace('"losses_known": 0', '"losses_known": 6')
    file.write_text(content)
    with pytest.raises(FileError, match="edited after it was registered: losses_known"):
        verify(file, losses)
    assert file.read_text() == content
