"""Coefficients written to a file and read back: numbers, forecasts, and what cannot travel."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bayeslaw import (
    BayeslawError,
    FileError,
    FitError,
    NotConverged,
    fit,
    grid,
    load,
    read_coefficients,
    register,
    write_coefficients,
)
from bayeslaw.evaluate.coefficients import SCHEMA
from tests.support import with_effects

GOLDEN = Path(__file__).parents[1] / "golden"
ROWS = grid(params=[2e8, 5e9], tokens=[1e9, 1e12], replay=[0.1, 0.4], ptpp=[20, 279])


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


def test_all_draws_give_the_forecasts_of_the_fit(case, tmp_path):
    back = travelled(case, tmp_path)
    own = case.table.frame
    beyond = own.assign(tokens=own["tokens"] * 1.5)
    for rows in (ROWS, own, beyond, own.drop(columns=["run", "base"], errors="ignore")):
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
    stored = json.loads((tmp_path / "c.json").read_text())["parameters"]
    p = {name: each["point"] for name, each in stored.items()}
    N, D = small.frame["params"], small.frame["tokens"]
    by_hand = p["E"] + p["A"] / N ** p["alpha"] + p["B"] / D ** p["beta"]
    np.testing.assert_allclose(back.predict(small), by_hand, rtol=1e-10)
    np.testing.assert_allclose(back.predict(small), posterior.predict(small), rtol=1e-3)


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


def test_without_draws_there_are_no_bands(posterior, tmp_path):
    back = travelled(posterior, tmp_path, draws=0)
    assert back.draws == 0
    for ask in (back.forecast, back.latent):
        with pytest.raises(BayeslawError, match="no draws, so no bands"):
            ask(ROWS)


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
    assert frame["unit"].to_dict() == {
        "E": "nats per token",
        "A": "nats per token, at covariates of 1",
        "alpha": "dimensionless",
        "B": "nats per token, at covariates of 1",
        "beta": "dimensionless",
    }
    document = back.document
    assert document["training"]["sha256"] == posterior.table.sha256
    assert document["training"]["synthetic"] is True
    assert document["settings"] == dict(posterior.settings)
    assert document["reference_point"] == pytest.approx(
        {"params": 9e34 ** (1 / 4), "tokens": 9e49 ** (1 / 5)}
    )
    assert set(document["reference"]) >= {"L_ref", "slope_N", "slope_D", "sigma"}
    assert document["rebuild"]["identity"] == posterior.spec.identity
    assert back.convergence == posterior.convergence
    assert back.law.without_discrepancy == posterior.law.without_discrepancy


def test_the_file_is_strict_json_without_the_losses(case, tmp_path):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    travelled(case, tmp_path, draws=2)
    text = (tmp_path / "c.json").read_text()
    json.loads(text, parse_constant=refuse)
    assert not {float(number) for number in re.findall(r"\d+\.\d+", text)} & {*case.table.loss}


def test_a_forecast_from_coefficients_is_not_registered(posterior, tmp_path):
    predicted = travelled(posterior, tmp_path).forecast(ROWS)
    with pytest.raises(BayeslawError, match="does not know its fit"):
        register(predicted, tmp_path / "x.json")


def test_what_cannot_be_exported(posterior, unconverged, tmp_path):
    path = tmp_path / "c.json"
    with pytest.raises(NotConverged):
        write_coefficients(unconverged, path)
    with pytest.raises(BayeslawError, match="draws=-1"):
        write_coefficients(posterior, path, draws=-1)
    with pytest.raises(FileError, match="cannot write"):
        write_coefficients(posterior, tmp_path / "absent" / "c.json")
    assert not list(tmp_path.iterdir())


def test_coefficients_of_a_failed_fit_say_so(unconverged, tmp_path):
    back = travelled(unconverged, tmp_path)
    assert back.convergence.failures
    for ask in (back.predict, back.forecast):
        with pytest.raises(NotConverged):
            ask(ROWS)
    assert back.forecast(ROWS, allow_unconverged=True).convergence.failures


def test_files_that_cannot_be_read(posterior, tmp_path):
    path = tmp_path / "c.json"
    travelled(posterior, tmp_path, draws=3)
    whole = json.loads(path.read_text())
    rebuild = whole["rebuild"]
    law = rebuild["specification"]["law"]
    terms = [law["terms"][0] | {"kind": "cubic"}, *law["terms"][1:]]
    medians = rebuild["medians"]
    fewer = {n: v for n, v in medians["data_vars"].items() if n != "L_ref"}
    moved = rebuild["specification"] | {"errors": "run"}
    grouped = rebuild["specification"] | {"noise": "size"}  # as earlier versions wrote
    unknown = rebuild["specification"] | {"law": law | {"terms": terms}}

    def with_(**parts):
        return whole | {"rebuild": rebuild | parts}

    for content, says in (
        (whole | {"format": "other"}, "not coefficients of bayeslaw"),
        (whole | {"schema": SCHEMA + 1}, "upgrade bayeslaw"),
        (with_(specification=moved), "not those that were exported"),
        (with_(specification=grouped), "fitted with noise='size', which was removed"),
        (with_(specification=unknown), "unknown term kind 'cubic'"),
        (with_(medians=medians | {"data_vars": fewer}), "it lacks L_ref"),
        ({n: v for n, v in whole.items() if n != "training"}, "damaged"),
        ([], "damaged"),
    ):
        path.write_text(json.dumps(content))
        with pytest.raises(FileError, match=says) as error:
            read_coefficients(path)
        assert "\n" not in str(error.value)
    path.write_text(json.dumps(whole)[:5000])
    with pytest.raises(FileError, match="damaged"):
        read_coefficients(path)
    with pytest.raises(FileError, match="no such file"):
        read_coefficients(tmp_path / "absent.json")


def test_a_file_without_the_last_residuals_of_runs_is_refused(correlated, tmp_path):
    """As earlier versions wrote it."""
    travelled(correlated, tmp_path, draws=2)
    path = tmp_path / "c.json"
    whole = json.loads(path.read_text())
    del whole["rebuild"]["draws"]["data_vars"]["last_error"]
    path.write_text(json.dumps(whole))
    with pytest.raises(FileError, match="lacks the last residuals of runs; export again"):
        read_coefficients(path)


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
