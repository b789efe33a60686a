"""Files of registered forecasts and of coefficients: contents, edits, matching, and forecasts."""

import copy
import hashlib
import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayeslaw import (
    BayeslawError,
    FileError,
    FitError,
    NotConverged,
    TableError,
    fit,
    from_frame,
    grid,
    load,
    read_coefficients,
    register,
    score,
    verify,
    write_coefficients,
)
from tests.inside import digest
from tests.support import with_effects

GOLDEN = Path(__file__).parents[1] / "data"
PLANNED = grid(params=[5e9, 1e10], tokens=[1e11, 1e12])
WIDER = grid(params=[5e9, 1e10], tokens=[1e11, 1e12, 1e13])
REPEATED = ((2e9, 1), (1e13, 1), (1e13, 0))
"""Distinct tokens and whether annealed, of three forecasts of one model."""
ROWS = grid(params=[2e8, 5e9], tokens=[1e9, 1e12], replay=[0.1, 0.4], ptpp=[20, 279])


def content(path, name="forecast"):
    return json.loads(Path(path).read_text())[name]


@pytest.fixture
def predicted(posterior):
    return posterior.forecast(PLANNED.assign(run=["a", "b", "c", None]), seed=4)


@pytest.fixture
def path(predicted, tmp_path):
    register(predicted, tmp_path / "planned.json", draws=100)
    return tmp_path / "planned.json"


@pytest.fixture(scope="module")
def wider(posterior):
    return posterior.forecast(WIDER, seed=1, beyond_evidence=True)


@pytest.fixture
def file(wider, tmp_path):
    register(wider, tmp_path / "wider.json", draws=10**6)
    return tmp_path / "wider.json"


@pytest.fixture(scope="module")
def losses(wider):
    """Measured losses: in the 50 % band, in the 80 %, in the 90 %, below, above, at the median."""
    at = wider.quantile([0.3, 0.85, 0.93, 0.01, 0.99, 0.5])
    return from_frame(WIDER.assign(loss=[at[i, i] for i in range(6)]), "measured")


def test_the_file_says_what_was_forecast_from_what(predicted, posterior, path):
    forecast = content(path)
    fitted = forecast["fits"]["chinchilla"]
    assert fitted["training"] == {
        "name": posterior.table.name,
        "rows": len(posterior.table),
        "sha256": posterior.table.sha256,
    }
    assert fitted["specification"] == posterior.spec.identity
    assert fitted["settings"] == dict(posterior.settings)
    assert fitted["settings"]["versions"]["pymc"]
    assert (forecast["seed"], fitted["settings"]["seed"]) == (4, 0)
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
    spaced = np.linspace(0, len(predicted.samples) - 1, 100).astype(int)
    np.testing.assert_array_equal(drawn, predicted.samples[spaced].T)  # row by row, in order


def test_the_hash_is_of_the_content_as_sorted_json_and_one_row_is_one_line(path):
    document = json.loads(path.read_text(), parse_int=float)
    text = json.dumps(document["forecast"], sort_keys=True, ensure_ascii=False)
    assert document["sha256"] == hashlib.sha256(text.encode()).hexdigest()
    lines = [line for line in path.read_text().splitlines() if '"lower_50"' in line]
    assert [json.loads(line.strip().rstrip(","))["row"] for line in lines] == [0, 1, 2, 3]


def test_known_losses_mixtures_and_failures_are_registered(
    predicted, posterior, unconverged, small, tmp_path
):
    register(posterior.forecast(small), tmp_path / "x.json")
    assert content(tmp_path / "x.json")["losses_known"] == len(small)
    assert "draws" not in content(tmp_path / "x.json")
    mixed = replace(predicted, fits={"one": posterior, "two": posterior})
    register(mixed, tmp_path / "y.json")
    assert set(content(tmp_path / "y.json")["fits"]) == {"one", "two"}
    failed = unconverged.forecast(PLANNED, allow_unconverged=True)
    register(failed, tmp_path / "z.json")
    assert content(tmp_path / "z.json")["failures"] == list(failed.convergence.failures) != []


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
    """The error of verifying an edited document; the file is as it was edited afterwards."""
    path.write_text(json.dumps(document))
    with pytest.raises(FileError, match="was edited after it was registered") as error:
        verify(path)
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
    assert verify(path).sha256 == whole["sha256"]
    assert '"params": 5000000000,' in path.read_text()
    assert digest(2**53) != digest(2**53 + 1)  # that no float holds


def test_foreign_damaged_and_newer_files(path, tmp_path):
    whole = path.read_text()
    bad = tmp_path / "x.json"
    for text, says in (
        ("", "damaged"),
        ("[]", "damaged"),
        ("{}", "damaged"),
        ('{"format": "other"}', "not a registered forecast"),
        ('{"format": "bayeslaw registered forecast", "schema": 1}', "damaged"),
        (whole[: len(whole) // 2], "damaged"),
        (whole.replace('"schema": 1', '"schema": 2'), "upgrade bayeslaw"),
    ):
        bad.write_text(text)
        with pytest.raises(FileError, match=says) as error:
            verify(bad)
        assert "\n" not in str(error.value)
    with pytest.raises(FileError, match="no such file"):
        verify(tmp_path / "absent.json")


def test_what_cannot_be_registered(predicted, posterior, path, tmp_path):
    before = path.read_bytes()
    with pytest.raises(FileError, match="never replaced"):
        register(predicted, path)
    assert path.read_bytes() == before
    new = tmp_path / "x.json"
    for bad, says in (
        (posterior.forecast(PLANNED, kind="latent"), "latent forecast has no noise"),
        (replace(predicted, fits={}), "does not know its fit"),
        (replace(predicted, draws=predicted.draws * np.inf), "not finite"),
    ):
        with pytest.raises(BayeslawError, match=says):
            register(bad, new)
    for draws in (-1, 99):
        with pytest.raises(BayeslawError, match=f"draws={draws}: store none, or at least 100"):
            register(predicted, new, draws=draws)
    twice = pd.concat([PLANNED, PLANNED[:1]], ignore_index=True)
    with pytest.raises(TableError, match=r"rows 0, 4 of the forecast have the same params, tokens"):
        register(posterior.forecast(twice), new)
    with pytest.raises(FileError, match="cannot write"):
        register(predicted, tmp_path / "absent" / "x.json")
    assert list(tmp_path.iterdir()) == [path]


def test_scores_are_those_of_the_forecast(wider, file, losses):
    found = verify(file, losses)
    wanted = score(wider, losses)
    assert list(found.scores.index) == list(wanted.index)
    # Quantiles of the log and logs of quantiles differ by the interpolation between two draws.
    np.testing.assert_allclose(found.scores, wanted, rtol=1e-4)
    assert found.scores["crps"] == pytest.approx(wanted["crps"], rel=1e-12)
    assert found.frame["inside_50"].tolist() == [True, False, False, False, False, True]
    assert found.frame["inside_80"].tolist() == [True, True, False, False, False, True]
    assert found.frame["inside_90"].tolist() == [True, True, True, False, False, True]
    coverage = found.scores[["coverage_50", "coverage_80", "coverage_90"]]
    np.testing.assert_allclose(coverage, [2 / 6, 3 / 6, 4 / 6])
    lower, upper = np.log(found.frame["lower_90"]), np.log(found.frame["upper_90"])
    y = np.log(losses.loss)
    penalty = 20 * ((lower[3] - y[3]) + (y[4] - upper[4]))
    by_hand = ((upper - lower).sum() + penalty) / 6
    assert found.scores["winkler_90"] == pytest.approx(by_hand, rel=1e-12)
    assert found.scores["mae_rel"] == pytest.approx(found.frame["error"].abs().mean(), rel=1e-12)
    register(wider, bare := file.with_name("bare.json"))  # without draws there is no CRPS
    scores = verify(bare, losses).scores
    assert scores.isna().tolist() == [name == "crps" for name in scores.index]
    assert content(bare, "results")[0]["scores"]["crps"] is None


def test_verifications_at_one_time_all_leave_a_result(file, losses):
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: verify(file, losses), range(12)))
    assert len(content(file, "results")) == 12


def test_results_are_appended_and_the_forecast_stays(file, losses, small):
    before = file.read_bytes()
    assert verify(file).scores.isna().all()  # without losses nothing is written
    assert file.read_bytes() == before
    first = verify(file, losses.frame[4:5])
    assert (first.missing, first.extra) == ((0, 1, 2, 3, 5), ())
    assert first.frame["loss"].notna().tolist() == [i == 4 for i in range(6)]
    assert first.frame["inside_90"].isna().sum() == 5
    assert np.isnan(first.scores["slope"])  # one point has no slope
    second = verify(file, losses)
    assert (second.missing, len(second.results)) == ((), 2)
    after = file.read_text()
    kept = before.decode()
    assert after.startswith(kept[: kept.index(' "results"')])
    results = json.loads(after)["results"]
    assert results == list(second.results)
    assert [each["scored"] for each in results] == [1, 6]
    assert results[0]["missing"] == [0, 1, 2, 3, 5]
    assert results[1]["measured"] == {"name": "measured", "rows": 6, "sha256": losses.sha256}
    assert results[1]["scores"] == pytest.approx(second.scores.to_dict())
    assert [row["loss"] for row in results[1]["losses"]] == losses.loss.tolist()
    frame = pd.concat([small.frame[:3], losses.frame[::-1]], ignore_index=True)
    found = verify(file, from_frame(frame))  # rows that were not forecast are not scored
    assert found.extra == (0, 1, 2)
    np.testing.assert_allclose(found.scores, second.scores, rtol=1e-12)


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(6)), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_rows_are_found_in_any_order_within_the_tolerance(wider, tmp_path_factory, order, n, seed):
    path = tmp_path_factory.mktemp("rows") / "x.json"
    register(wider, path)
    some = WIDER.iloc[list(order)[:n]].reset_index(drop=True)
    off = 1 + np.random.default_rng(seed).uniform(-9e-4, 9e-4, (n, 2))
    measured = 2.0 + np.arange(n)
    found = verify(path, from_frame((some * off).assign(loss=measured)))
    assert found.frame["loss"].iloc[list(order)[:n]].tolist() == measured.tolist()
    assert len(found.missing) == 6 - n


def test_what_verify_refuses(file, losses):
    moved = losses.frame.assign(tokens=losses.frame["tokens"] * 1.01)
    with pytest.raises(TableError, match=r"none of its 6 rows was forecast; .*relative 0\.001"):
        verify(file, moved)
    assert verify(file, moved, tolerance=0.011).results[-1]["tolerance"] == 0.011
    with pytest.raises(TableError, match=r"lie within 0\.95 of several rows"):
        verify(file, losses, tolerance=0.95)
    with pytest.raises(BayeslawError, match=r"tolerance=1: give a relative difference"):
        verify(file, losses, tolerance=1)
    assert len(content(file, "results")) == 1
    frame = pd.concat([losses.frame, losses.frame[2:3] * 1.0001], ignore_index=True)
    with pytest.raises(TableError, match=r"rows 2, 6 are all measurements of row 2"):
        verify(file, frame)
    sha256 = verify(file).sha256
    assert verify(file, losses, sha256=sha256.upper()).sha256 == sha256
    with pytest.raises(FileError, match="not 0000"):
        verify(file, losses, sha256="0000")


def test_repeated_tokens_and_annealing_are_matched(posterior, tmp_path):
    """Where the forecast depends on them; tables may lack the columns."""
    law = posterior.law.repeating().annealing()
    frame = posterior.table.frame.assign(unique_tokens=1e11, annealed=np.arange(20) % 2)
    one, more = 1 + 0 * posterior.draws["L_ref"], set(law.coordinates) - set(posterior.draws)
    fitted = replace(
        posterior,
        spec=replace(posterior.spec, law=law),
        table=replace(posterior.table, frame=frame),
        draws=posterior.draws.assign(dict.fromkeys(more, 0.01 * one)),
        at={**posterior.at, "unannealed": 0.0},
    )
    rows = WIDER[:1]
    planned = pd.concat([rows.assign(unique_tokens=u, annealed=a) for u, a in REPEATED])
    register(fitted.forecast(planned.reset_index(drop=True)), path := tmp_path / "x.json")
    measured = rows.assign(loss=2.0)
    assert verify(path, measured).missing == (0, 2)  # no repeated tokens, annealed
    assert verify(path, measured.assign(unique_tokens=2e9)).missing == (1, 2)
    assert verify(path, measured.assign(annealed=False)).missing == (0, 1)
    with pytest.raises(TableError, match="matched by params, tokens, unique_tokens, annealed"):
        verify(path, measured.assign(unique_tokens=3e9))
    register(fitted.forecast(rows), other := tmp_path / "y.json")
    assert verify(other, measured.assign(unique_tokens=1e13, annealed=1)).missing == ()
    with pytest.raises(TableError, match="none of its 1 rows was forecast"):
        verify(other, measured.assign(unique_tokens=2e9))


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
    unlabelled = WIDER[:2].assign(run=["a", None])  # a planned row without a label takes any
    register(posterior.forecast(unlabelled), tmp_path / "y.json")
    found = verify(tmp_path / "y.json", WIDER[:2].assign(run=["b", "b"], loss=2.0))
    assert (found.missing, found.extra) == ((0,), (0,))
    no_replay = grid(params=5e9, tokens=1e12, replay=[0.0, 0.1])
    register(posterior.forecast(no_replay), tmp_path / "z.json")
    assert verify(tmp_path / "z.json", no_replay.assign(loss=2.0)[:1]).missing == (1,)


@pytest.fixture(scope="module")
def walked(small):
    """A short fit with walking exponents and random effects of size."""
    return fit("chinchilla", small, discrepancy="walk", seed=0, chains=2, draws=50, retry=False)


@pytest.fixture(scope="module")
def correlated(posterior):
    """A fit whose errors are correlated within runs, which are the rows of one size."""
    runs = np.where(np.arange(20) % 5 == 4, None, posterior.table.frame["params"].astype(str))
    fitted = with_effects(posterior, "run", runs, 0.01, errors="run")
    return replace(fitted, draws=fitted.draws.assign(ell=0 * fitted.draws["sigma"] + 1.0))


# The recorded fit of tinycpt has three sizes: its draws alone do not give its forecasts.
FILES = sorted({path.name for path in GOLDEN.glob("*.nc")} - {"tinycpt_form1.nc"})


@pytest.fixture(params=["plain", "walk", "correlated", *FILES])
def case(request, posterior, walked, correlated):
    known = {"plain": posterior, "walk": walked, "correlated": correlated}
    return known.get(request.param) or load(GOLDEN / request.param)


def travelled(case, path, draws=10**6):
    write_coefficients(case, path / "c.json", draws=draws, allow_unconverged=True)
    return read_coefficients(path / "c.json")


@pytest.mark.filterwarnings("ignore::bayeslaw.common.errors.TableWarning")  # rows far out
def test_all_draws_give_the_forecasts_of_the_fit(case, tmp_path):
    back = travelled(case, tmp_path)
    train = case.table.frame
    beyond = train.assign(tokens=train["tokens"] * 1.5)
    for rows in (ROWS, train, beyond, train.drop(columns=["run", "base"], errors="ignore")):
        np.testing.assert_array_equal(back.latent(rows), case.latent(rows))
        kept, wanted = (
            source.forecast(rows, seed=3, allow_unconverged=True).samples for source in (back, case)
        )
        np.testing.assert_array_equal(kept, wanted)
        predicted = back.predict(rows, allow_unconverged=True)
        np.testing.assert_array_equal(predicted, np.median(case.latent(rows), axis=0))


def test_fewer_draws_agree_within_their_error(posterior, tmp_path):
    back = travelled(posterior, tmp_path, draws=400)
    assert (back.draws, back.latent(ROWS).shape) == (400, (400, len(ROWS)))
    few, all_ = back.latent(ROWS), posterior.latent(ROWS)
    error = all_.std(0) / np.sqrt(100)  # as of a quarter as many independent draws
    assert (np.abs(few.mean(0) - all_.mean(0)) < 4 * error).all()
    ratio = few.std(0) / all_.std(0)
    assert ((ratio > 0.8) & (ratio < 1.25)).all()


def test_the_point_is_the_formula_at_the_numbers_in_the_file(posterior, small, tmp_path):
    back = travelled(posterior, tmp_path, draws=0)
    stored = content(tmp_path / "c.json", "coefficients")["parameters"]
    p = {name: each["point"] for name, each in stored.items()}
    N, D = small.frame["params"], small.frame["tokens"]
    by_hand = p["E"] + p["A"] / N ** p["alpha"] + p["B"] / D ** p["beta"]
    np.testing.assert_allclose(back.predict(small), by_hand, rtol=1e-10)
    np.testing.assert_allclose(back.predict(small), posterior.predict(small), rtol=1e-3)
    assert back.draws == 0
    for ask in (back.forecast, back.latent):
        with pytest.raises(BayeslawError, match="no draws, so no bands"):
            ask(ROWS)


def test_a_point_forecast_of_every_kind_of_fit_is_near_the_median(case, tmp_path):
    check_point(case, tmp_path)


def check_point(case, folder):
    back = travelled(case, folder, draws=0)
    latent = np.log(case.latent(case.table))
    miss = np.log(back.predict(case.table, allow_unconverged=True)) - np.median(latent, axis=0)
    assert (np.abs(miss) < 3 * latent.std(0) + 1e-3).all()
    for rows in (case.table, ROWS):
        assert np.isfinite(back.predict(rows, allow_unconverged=True)).all()


def test_with_three_sizes_and_a_discrepancy_only_the_point_travels(tmp_path):
    case = load(GOLDEN / "tinycpt_form1.nc")
    with pytest.raises(BayeslawError, match=r"so few model sizes.*training losses") as error:
        travelled(case, tmp_path)
    assert "\n" not in str(error.value)
    check_point(case, tmp_path)


def test_the_file_states_the_parameters_and_where_they_come_from(posterior, tmp_path):
    back = travelled(posterior, tmp_path, draws=0)
    frame, summary = back.parameters, posterior.summary()
    assert list(frame.index) == ["E", "A", "alpha", "B", "beta"]
    for column in ("q05", "q95"):
        np.testing.assert_allclose(frame[column], summary.loc[frame.index, column], rtol=1e-12)
    E = posterior.paper["E"].values
    np.testing.assert_allclose(
        frame.loc["E", ["q25", "median", "q75"]].astype(float), np.quantile(E, [0.25, 0.5, 0.75])
    )
    coefficient = "nats per token, at covariates of 1"
    assert frame["unit"].tolist() == [
        *("nats per token", coefficient, "dimensionless", coefficient, "dimensionless")
    ]
    document = back.document
    assert document["training"]["sha256"] == posterior.table.sha256
    assert document["training"]["synthetic"] is True
    assert document["settings"] == dict(posterior.settings)
    assert document["reference_point"] == pytest.approx(
        {"params": 9e34 ** (1 / 4), "tokens": 9e49 ** (1 / 5)}
    )
    assert set(document["reference"]) >= {"L_ref", "slope_N", "slope_D", "sigma"}
    assert back.convergence == posterior.convergence
    assert back.law.without_discrepancy == posterior.law.without_discrepancy


def test_the_file_is_strict_json_without_the_losses(case, tmp_path):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    travelled(case, tmp_path, draws=2)
    text = (tmp_path / "c.json").read_text()
    json.loads(text, parse_constant=refuse)
    assert not {float(number) for number in re.findall(r"\d+\.\d+", text)} & {*case.table.loss}


def test_what_cannot_be_exported(posterior, unconverged, tmp_path):
    path = tmp_path / "c.json"
    with pytest.raises(NotConverged):
        write_coefficients(unconverged, path)
    with pytest.raises(BayeslawError, match="draws=-1"):
        write_coefficients(posterior, path, draws=-1)
    with pytest.raises(FileError, match="cannot write"):
        write_coefficients(posterior, tmp_path / "absent" / "c.json")
    assert not list(tmp_path.iterdir())
    predicted = travelled(posterior, tmp_path).forecast(ROWS)
    with pytest.raises(BayeslawError, match="does not know its fit"):
        register(predicted, tmp_path / "x.json")


def test_coefficients_of_a_failed_fit_say_so(unconverged, tmp_path):
    back = travelled(unconverged, tmp_path)
    assert back.convergence.failures
    for ask in (back.predict, back.forecast):
        with pytest.raises(NotConverged):
            ask(ROWS)
    assert back.forecast(ROWS, allow_unconverged=True).convergence.failures


def test_coefficients_that_cannot_be_read(posterior, tmp_path):
    path = tmp_path / "c.json"
    travelled(posterior, tmp_path, draws=3)
    whole = json.loads(path.read_text())
    parameters = whole["coefficients"]["parameters"]
    moved = parameters | {"E": parameters["E"] | {"point": parameters["E"]["point"] + 1e-15}}
    for changed, says in (
        (whole | {"format": "other"}, "not coefficients of bayeslaw"),
        (whole | {"schema": 3}, "upgrade bayeslaw"),
        (whole | {"schema": 1}, r"schema 1 is older than this version reads \(2\); export"),
        (whole | {"coefficients": whole["coefficients"] | {"parameters": moved}}, "parameters"),
        ({n: v for n, v in whole.items() if n != "coefficients"}, "damaged"),
        ([], "damaged"),
    ):
        path.write_text(json.dumps(changed))
        with pytest.raises(FileError, match=says) as error:
            read_coefficients(path)
        assert "\n" not in str(error.value)
    path.write_text(json.dumps(whole)[:5000])
    with pytest.raises(FileError, match="damaged"):
        read_coefficients(path)
    with pytest.raises(FileError, match="no such file"):
        read_coefficients(tmp_path / "absent.json")


def test_a_fit_of_one_chain_has_no_r_hat(small, tmp_path):
    numbers = {"chains": np.int64(1), "draws": np.int32(50), "tune": np.uint8(50)}
    one = fit("chinchilla", small, discrepancy="none", retry=False, seed=np.int64(0), **numbers)
    assert np.isnan(one.convergence.rhat)
    one.save(tmp_path / "one.nc")  # numbers of NumPy go into every file
    register(one.forecast(ROWS, seed=np.int64(3), allow_unconverged=True), tmp_path / "one.json")
    back = travelled(one, tmp_path)
    assert back.convergence.failures == one.convergence.failures
    with pytest.raises(FitError, match=r"draws=2\.5: give a whole number"):
        fit("chinchilla", small, draws=2.5)
