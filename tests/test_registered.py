"""Registered forecasts: contents, edits, and matching with measured losses."""

import hashlib
import json
import re
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import bayeslaw as bl
from bayeslaw.common.files import digest
from bayeslaw.evaluate import registered, verification
from tests.support import refused, saved, small

PLANNED = bl.grid(params=[5e9, 1e10], tokens=[1e11, 1e12]).assign(
    run=["a", "b", "c", None]
)
WIDER = bl.grid(params=[5e9, 1e10], tokens=[1e11, 1e12, 1e13])


def content(path, name="forecast"):
    return json.loads(Path(path).read_text())[name]


@pytest.fixture(scope="module")
def predicted():
    return saved("plain").forecast(PLANNED, seed=4)


@pytest.fixture
def path(predicted, tmp_path):
    bl.register(predicted, tmp_path / "planned.json", draws=100)
    return tmp_path / "planned.json"


@pytest.fixture(scope="module")
def wider():
    return saved("plain").accepted("beyond-evidence").forecast(WIDER, seed=1)


@pytest.fixture
def file(wider, tmp_path):
    bl.register(wider, tmp_path / "wider.json", draws=10**6)
    return tmp_path / "wider.json"


@pytest.fixture(scope="module")
def losses(wider):
    """Measured losses: in the 50 % band, in the 80 %, in the 90 %, below, above, at the median."""
    at = wider.quantile([0.3, 0.85, 0.93, 0.01, 0.99, 0.5])
    return bl.from_frame(WIDER.assign(loss=[at[i, i] for i in range(6)]), "measured")


def test_the_file_says_what_was_forecast_from_what(predicted, path, tmp_path):
    forecast, plain = content(path), saved("plain")
    fitted, spaced = (
        forecast["fits"]["chinchilla"],
        np.linspace(0, 1999, 100).astype(int),
    )
    about = {"name": plain.table.name, "rows": 20, "sha256": plain.table.sha256}
    assert fitted["training"] == about
    assert fitted["specification"] == plain.spec.identity
    assert fitted["settings"] == dict(plain.settings)
    assert fitted["settings"]["versions"]["pymc"]
    assert (forecast["seed"], forecast["synthetic"], forecast["losses_known"]) == (
        4,
        True,
        0,
    )
    assert pd.Timestamp(forecast["date"]).tz is not None
    assert forecast["match"] == ["params", "tokens", "run"]
    assert [row["run"] for row in forecast["rows"]] == ["a", "b", "c", None]
    numbers = pd.DataFrame(forecast["rows"]).drop(columns=["row", "run"])
    assert {"median", "lower_90", "position"} <= set(numbers)
    wanted = predicted.to_frame((0.5, 0.8, 0.9))[[*numbers]]
    pd.testing.assert_frame_equal(numbers, wanted, check_exact=True)
    np.testing.assert_array_equal(forecast["draws"], predicted.samples[spaced].T)
    # Its hash is of the content as sorted JSON, and one row is one line.
    document = json.loads(path.read_text(), parse_int=float)
    text = json.dumps(document["forecast"], sort_keys=True, ensure_ascii=False)
    assert document["sha256"] == hashlib.sha256(text.encode()).hexdigest()
    lines = [line for line in path.read_text().splitlines() if '"lower_50"' in line]
    assert [json.loads(line.strip().rstrip(","))["row"] for line in lines] == [
        0,
        1,
        2,
        3,
    ]
    # Known losses, mixtures and failures.
    bl.register(plain.forecast(small()), known := tmp_path / "x.json")
    assert content(known)["losses_known"] == 20
    failed = saved("unconverged").accepted("unconverged").forecast(PLANNED)
    bl.register(
        replace(failed, fits={"a": plain, "b": plain}), mixed := tmp_path / "y.json"
    )
    assert set(content(mixed)["fits"]) == {"a", "b"}
    assert content(mixed)["failures"] == list(failed.convergence.failures) != []


def test_an_edit_is_found_and_named_and_another_layout_is_none(path):
    whole = path.read_text()
    for change, says in (
        (
            lambda f: f["rows"][1].update(median=f["rows"][1]["median"] * (1 + 1e-15)),
            "row 1. Its",
        ),
        (lambda f: f["rows"][2].update(run="c "), "row 2. Its"),
        (lambda f: f["draws"][3].append(2.0), "draws of row 3. Its"),
        (
            lambda f: f["fits"]["chinchilla"]["training"].update(rows=21),
            "training of chinchilla.",
        ),
        (lambda f: f.update(synthetic=False), "synthetic. Its"),
        (lambda f: f["rows"].pop(2), "row 2 (removed)"),
        (lambda f: f["rows"].append(f["rows"][0] | {"row": 9}), "row 9 (added)"),
        (lambda f: f["rows"].reverse(), "the order of the rows"),
        (
            lambda f: f["fits"]["chinchilla"].pop("errors"),
            "errors of chinchilla (removed)",
        ),
        (None, "the hash itself"),
    ):
        document = json.loads(whole)
        if change:
            change(document["forecast"])
        else:
            document["sha256"] = "0" * 64
        path.write_text(json.dumps(document))
        with pytest.raises(
            bl.FileError, match="was edited after it was registered"
        ) as error:
            bl.verify(path)
        assert says in str(error.value)
        assert path.read_text() == json.dumps(document)
    document = json.loads(whole)
    layout = json.dumps(document, indent=4, sort_keys=True)
    path.write_text(re.sub(r": (\d+)\.0,", r": \1,", layout))
    assert '"params": 5000000000,' in path.read_text()
    assert bl.verify(path).sha256 == document["sha256"]
    assert digest(2**53) != digest(2**53 + 1)  # that no float holds


def test_foreign_damaged_and_newer_files(path, tmp_path):
    whole, bad = path.read_text(), tmp_path / "x.json"
    for text, says in (
        ("", "damaged"),
        ("[]", "damaged"),
        ('{"format": "other"}', "not a registered forecast"),
        ('{"format": "bayeslaw registered forecast", "schema": 1}', "damaged"),
        (whole[: len(whole) // 2], "damaged"),
        (whole.replace('"schema": 2', '"schema": 3'), "upgrade bayeslaw"),
        (
            whole.replace('"median"', '"median": 0.5, "median"', 1),
            "'median' is there twice",
        ),
        ("[" * 10**5, "damaged"),
    ):
        bad.write_text(text)
        refused(bl.FileError, says, bl.verify, bad)
    refused(bl.FileError, "no such file", bl.verify, tmp_path / "absent.json")


def test_files_with_their_hash_that_register_does_not_write(path):
    """Made by another program: one line each, and no traceback."""
    whole = path.read_text()
    for change, says in (
        (lambda f: f["rows"][1].pop("median"), "no 'median'"),
        (lambda f: f["rows"][1].update(median="1"), "'median' of row 1 is no loss"),
        (
            lambda f: f["rows"][1].update(lower_90=-1.0),
            "'lower_90' of row 1 is no loss",
        ),
        (lambda f: f["rows"][1].update(median=10**400), "damaged"),
        (lambda f: f["rows"][1].update(tokens="many"), "'tokens' of row 1 is no value"),
        (lambda f: f["rows"][1].update(run=["a"]), "'run' of row 1 is no value"),
        (lambda f: f["rows"].reverse(), "row 0 has another number"),
        (lambda f: f.update(rows="none"), "it has no rows"),
        (lambda f: f.update(rows=[1, 2]), "damaged"),
        (lambda f: f.update(match=3), "'match' is no list of texts"),
        (lambda f: f.update(match=["weather"]), "no 'weather'"),
        (lambda f: f.update(law=None), "its law is no text"),
        (lambda f: f.update(synthetic="yes"), "'synthetic' is neither true nor false"),
        (lambda f: f.update(losses_known=[]), "'losses_known' is no number"),
        (lambda f: f.update(failures={}), "'failures' is no list"),
        (lambda f: f.update(fits=[]), "its fits are no object"),
        (lambda f: f["fits"]["chinchilla"].pop("training"), "no 'training'"),
        (
            lambda f: f["fits"]["chinchilla"].update(covariates="params"),
            "covariates of chinchilla",
        ),
        (
            lambda f: f["fits"]["chinchilla"]["training"].update(rows=None),
            "training table of",
        ),
        (lambda f: f["draws"].pop(), "draws of other rows"),
        (lambda f: f["draws"][2].pop(), "row 2 has another number of draws"),
        (lambda f: f["draws"][2].__setitem__(0, "x"), "a draw of row 2 is no loss"),
    ):
        document = json.loads(whole)
        change(document["forecast"])
        document["sha256"] = digest(document["forecast"])
        path.write_text(json.dumps(document))
        refused(bl.FileError, says, bl.verify, path)


def test_an_edit_of_a_result_is_found(file, losses):
    bl.verify(file, losses.frame[:2])
    bl.verify(file, losses.frame[2:])
    whole = json.loads(file.read_text())
    for change in (
        lambda results: results[0]["scores"].update(coverage_90=0.5),
        lambda results: results[0].update(scored=6),
        lambda results: results.pop(0),
        lambda results: results.pop(),
        lambda results: results.reverse(),
    ):
        document = json.loads(json.dumps(whole))
        change(document["results"])
        file.write_text(json.dumps(document))
        refused(
            bl.FileError, "results of its verifications were edited", bl.verify, file
        )
        refused(
            bl.FileError,
            "results of its verifications were edited",
            bl.verify,
            file,
            losses,
        )
    file.write_text(json.dumps({**whole, "results": [3]}))
    refused(bl.FileError, "results are not a list of objects", bl.verify, file)
    # A file of the first schema has no hash of its results; from the next one on it has.
    old = {name: part for name, part in whole.items() if name != "results_sha256"}
    file.write_text(json.dumps(old | {"schema": 1}))
    assert len(bl.verify(file, losses).results) == 3
    document = json.loads(file.read_text())
    assert document["schema"] == 2
    assert document["results_sha256"] == digest(document["results"])


def test_two_registrations_and_verifications_at_one_time(predicted, path, monkeypatch):
    """The first forecast stays, and the other is told; no result is lost."""
    write, place = registered.write_json, path.with_name("y.json")
    hashes = []

    def second_first(*given, **named):
        monkeypatch.setattr(registered, "write_json", write)
        hashes.append(bl.register(replace(predicted, seed=9), place))
        write(*given, **named)

    monkeypatch.setattr(registered, "write_json", second_first)
    refused(bl.FileError, "y.json: exists; a registered", bl.register, predicted, place)
    assert bl.verify(place).sha256 == hashes[0]
    assert {*path.parent.iterdir()} == {path, place}

    def slow(*given, **named):
        time.sleep(0.05)
        write(*given, **named)

    monkeypatch.setattr(verification, "write_json", slow)
    measured = PLANNED.assign(loss=2.0)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: bl.verify(path, measured[i : i + 1]), range(4)))
    assert sorted(result["missing"][-1] for result in bl.verify(path).results) == [
        2,
        3,
        3,
        3,
    ]
    assert {*path.parent.iterdir()} == {path, place}


def test_the_training_table_is_named_without_its_folder(tmp_path, predicted):
    (fit,) = predicted.fits.values()
    fit = replace(fit, table=replace(fit.table, name="/home/me/secret/losses.csv"))
    bl.register(
        replace(predicted, fits={"chinchilla": fit}), path := tmp_path / "x.json"
    )
    assert content(path)["fits"]["chinchilla"]["training"]["name"] == "losses.csv"
    assert "secret" not in path.read_text()


def test_what_cannot_be_registered(predicted, path, tmp_path):
    before, new, plain = path.read_bytes(), tmp_path / "x.json", saved("plain")
    twice = plain.accepted("beyond-evidence").forecast(pd.concat([WIDER, WIDER[:1]]))
    for bad, where, draws, says in (
        (predicted, path, 0, "never replaced"),
        (
            plain.forecast(PLANNED, kind="latent"),
            new,
            0,
            "latent forecast has no noise",
        ),
        (
            bl.fit_huber("chinchilla", small()).forecast(PLANNED),
            new,
            0,
            "a point fit has no bands",
        ),
        (replace(predicted, fits={}), new, 0, "does not know its fit"),
        (replace(predicted, draws=predicted.draws * np.inf), new, 0, "not finite"),
        (predicted, new, -1, "draws=-1: store none, or at least 100"),
        (predicted, new, 99, "draws=99: store none, or at least 100"),
        (twice, new, 0, "rows 0, 6 of the forecast have the same params, tokens"),
        (predicted, tmp_path / "absent" / "x.json", 0, "cannot write"),
    ):
        refused(bl.BayeslawError, says, bl.register, bad, where, draws=draws)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_scores_are_those_of_the_forecast(wider, file, losses):
    found, wanted = bl.verify(file, losses), bl.score(wider, losses)
    assert list(found.scores.index) == list(wanted.index)
    # Quantiles of the log and logs of quantiles differ by the interpolation between two draws.
    np.testing.assert_allclose(found.scores, wanted, rtol=2e-4)
    assert found.scores["crps"] == pytest.approx(wanted["crps"], rel=1e-12)
    for level, inside in ((50, [0, 5]), (80, [0, 1, 5]), (90, [0, 1, 2, 5])):
        assert np.flatnonzero(found.frame[f"inside_{level}"]).tolist() == inside
        assert found.scores[f"coverage_{level}"] == pytest.approx(len(inside) / 6)
    # Without draws there is no CRPS.
    bl.register(wider, bare := file.with_name("bare.json"))
    scores = bl.verify(bare, losses).scores
    assert scores.isna().tolist() == [name == "crps" for name in scores.index]
    assert content(bare, "results")[0]["scores"]["crps"] is None


def test_results_are_appended_and_the_forecast_stays(file, losses):
    before = file.read_bytes()
    assert bl.verify(file).scores.isna().all()  # without losses nothing is written
    assert file.read_bytes() == before
    first = bl.verify(file, losses.frame[4:5])
    assert (first.missing, first.extra) == ((0, 1, 2, 3, 5), ())
    assert first.frame["loss"].notna().tolist() == [i == 4 for i in range(6)]
    assert first.frame["inside_90"].isna().sum() == 5
    frame = pd.concat([small().frame[:3], losses.frame[::-1]], ignore_index=True)
    # Rows that were not forecast are not scored.
    second = bl.verify(file, bl.from_frame(frame))
    assert (second.missing, second.extra, len(second.results)) == ((), (0, 1, 2), 2)
    np.testing.assert_allclose(
        second.scores, bl.verify(file, losses).scores, rtol=1e-12
    )
    kept, results = before.decode(), content(file, "results")
    assert file.read_text().startswith(kept[: kept.index(' "results"')])
    assert results[:2] == list(second.results)
    assert [result["scored"] for result in results] == [1, 6, 6]
    assert results[0]["missing"] == [0, 1, 2, 3, 5]
    assert results[2]["measured"] == {
        "name": "measured",
        "rows": 6,
        "sha256": losses.sha256,
    }
    assert results[2]["scores"] == pytest.approx(second.scores.to_dict())
    assert [row["loss"] for row in results[2]["losses"]] == losses.loss.tolist()


def test_losses_in_bits_are_doubted(wider, file):
    """Not where a loss lies in its band, and not by another factor."""
    median = wider.median
    for factor, says in (
        (
            1 / np.log(2),
            "The losses are all 1.44 times the forecast, as bits .* loss_unit='bits'",
        ),
        (
            np.log(2),
            "all 0.69 times the forecast, as nats .* if the losses that were fitted are",
        ),
        (1.2, None),
        (1.0, None),
    ):
        noise = np.exp(0.02 * np.arange(-2.5, 3))
        found = bl.verify(file, WIDER.assign(loss=median * factor * noise))
        text = " ".join(found.shown().text().split())
        assert re.search(says or "^((?!times the forecast).)*$", text)
    one = bl.verify(file, WIDER[:1].assign(loss=median[0] / np.log(2)))
    assert "are each 1.44 times" in " ".join(str(one).split())


def test_what_verify_refuses(file, losses):
    moved = losses.frame.assign(tokens=losses.frame["tokens"] * 1.01)
    twice = pd.concat([losses.frame, losses.frame[2:3] * 1.0001], ignore_index=True)
    for measured, how, says in (
        (moved, {}, r"none of its 6 rows was forecast; .*relative 0\.001"),
        (losses, {"tolerance": 0.95}, r"lie within 0\.95 of several rows"),
        (losses, {"tolerance": 1}, r"tolerance=1: give a relative difference"),
        (twice, {}, r"rows 2, 6 are all measurements of row 2"),
        (losses, {"sha256": "0000"}, "not 0000"),
    ):
        refused(bl.BayeslawError, says, bl.verify, file, measured, **how)
    assert content(file, "results") == []
    assert bl.verify(file, moved, tolerance=0.011).results[-1]["tolerance"] == 0.011
    sha256 = bl.verify(file).sha256
    assert bl.verify(file, losses, sha256=sha256.upper()).sha256 == sha256


def test_memory_does_not_grow_with_the_square_of_the_rows(tmp_path):
    fit = saved("plain").accepted("beyond-evidence")
    rows = bl.grid(
        params=np.geomspace(1e8, 3e9, 50), tokens=np.geomspace(1e9, 1e11, 80)
    )
    few = fit.forecast(rows)
    few = replace(few, draws=few.draws.isel(draw=slice(5)))
    measured = bl.from_frame(rows.assign(loss=few.median)[::-1])
    tracemalloc.start()
    bl.register(few, tmp_path / "x.json")
    found = bl.verify(tmp_path / "x.json", measured)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Of all pairs, one truth value each would be 16 MB, and one float 128 MB.
    assert peak < 100e6
    assert (found.missing, found.extra) == ((), ())
    assert found.frame["error"].abs().max() < 1e-12


def test_losses_of_bases_are_matched_where_a_law_starts_from_them(tmp_path):
    fit = saved("transfer").accepted({"unconverged", "beyond-evidence"})
    rows = fit.table.frame[:2].drop(columns="loss")
    bl.register(fit.forecast(rows), path := tmp_path / "x.json")
    measured = rows.assign(loss=2.0, start_loss=rows["start_loss"] + [0, 0.1])
    assert bl.verify(path, measured).missing == (1,)


def test_labels_match_whatever_type_a_file_gave_them(tmp_path):
    def registered(name, rows):
        fit = saved("plain").accepted("beyond-evidence")
        bl.register(fit.forecast(rows), tmp_path / name)
        return tmp_path / name

    planned = pd.concat([WIDER[:1]] * 3, ignore_index=True)
    path = registered("x.json", planned.assign(run=[7, 8, 9]))
    measured = pd.concat([planned, WIDER[1:2]], ignore_index=True).assign(
        loss=[2, 2.1, 2.2, 3]
    )
    for runs in (["9", "7", "10", "8"], [9.0, 7.0, np.nan, 8.0]):
        found = bl.verify(path, measured.assign(run=runs))
        assert (found.missing, found.extra) == ((1,), (2, 3))
        assert found.frame["loss"].tolist()[::2] == [2.1, 2.0]
    with pytest.raises(
        bl.TableError, match=r"no column 'run', by which measured rows are matched"
    ):
        bl.verify(path, measured)
    # Without a label it takes any.
    path = registered("y.json", WIDER[:2].assign(run=["a", None]))
    found = bl.verify(path, WIDER[:2].assign(run=["b", "b"], loss=2.0))
    assert (found.missing, found.extra) == ((0,), (0,))
    no_replay = bl.grid(params=5e9, tokens=1e12, replay=[0.0, 0.1])
    found = bl.verify(registered("z.json", no_replay), no_replay.assign(loss=2.0)[:1])
    assert found.missing == (1,)
