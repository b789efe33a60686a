"""Registered forecasts: what the file says, and that every edit of the forecast is found."""

import copy
import hashlib
import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from bayeslaw.common.errors import BayeslawError, FileError, TableError
from bayeslaw.evaluate.registration import SCHEMA, digest, read, register
from bayeslaw.inference.posterior import Posterior
from bayeslaw.tables.table import grid

PLANNED = grid(params=[5e9, 1e10], tokens=[1e11, 1e12])


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
        (lambda f: f["fits"]["chinchilla"].pop("noise"), "noise of chinchilla (removed)"),
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
