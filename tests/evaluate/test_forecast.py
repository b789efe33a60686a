from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from bayeslaw import LawError, TableError, from_frame, grid

ROWS = grid(params=[2e9, 1e10], tokens=[2e11, 1e12])
PLACE = ("position", "decades")


def test_dims_coordinates_and_units(posterior):
    draws = posterior.forecast(ROWS).draws
    assert draws.dims == ("chain", "draw", "row")
    assert draws.shape == (4, posterior.settings["draws"], 4)
    np.testing.assert_array_equal(draws["params"], ROWS["params"])
    np.testing.assert_array_equal(draws["tokens"], ROWS["tokens"])
    assert draws["params"].dims == ("row",)
    assert draws.attrs["units"] == "nats per token"
    assert draws.name == "loss"


def test_latent_is_the_law_and_predictive_adds_its_noise(posterior, small):
    latent, noisy = (posterior.forecast(small, kind=kind) for kind in ("latent", "predictive"))
    np.testing.assert_array_equal(latent.samples, posterior.latent(small))
    noise = np.log(noisy.samples / latent.samples)
    q = posterior.values()
    scaled = noise / q["sigma"]
    assert abs(np.median(scaled)) < 0.01
    # Half of a Student-t lies within its .75 quantile.
    inside = np.abs(scaled) < stats.t(2 + q["dof_above_floor"]).ppf(0.75)
    assert inside.mean() == pytest.approx(0.5, abs=0.01)
    assert (noisy.samples.std(0) > latent.samples.std(0)).all()
    np.testing.assert_allclose(noisy.median, latent.median, rtol=1e-3)


def test_noise_is_independent_from_row_to_row(posterior):
    twice = pd.concat([ROWS.iloc[:1], ROWS.iloc[:1]])
    latent, noisy = (posterior.forecast(twice, kind=kind) for kind in ("latent", "predictive"))
    np.testing.assert_array_equal(latent.samples[:, 0], latent.samples[:, 1])
    noise = np.log(noisy.samples / latent.samples)
    rank = np.argsort(np.argsort(noise, axis=0), axis=0)
    assert abs(np.corrcoef(rank.T)[0, 1]) < 0.08


def test_seeds(posterior):
    one, again, other = (posterior.forecast(ROWS, seed=seed).samples for seed in (3, 3, 4))
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)


def test_bands_are_nested_and_tidy(posterior):
    forecast = posterior.forecast(ROWS)
    levels = (0.1, 0.5, 0.8, 0.9, 0.99)
    bands = forecast.bands(levels)
    assert list(bands.columns) == [
        *("row", "params", "tokens", "level", "median", "lower", "upper"), *PLACE
    ]  # fmt: skip
    assert len(bands) == len(levels) * len(ROWS)
    assert (bands["lower"] < bands["median"]).all()
    assert (bands["median"] < bands["upper"]).all()
    for _, row in bands.groupby("row"):
        assert row["lower"].is_monotonic_decreasing
        assert row["upper"].is_monotonic_increasing
    inside = (forecast.samples >= bands["lower"].to_numpy()[-4:]) & (
        forecast.samples <= bands["upper"].to_numpy()[-4:]
    )
    np.testing.assert_allclose(inside.mean(0), 0.99, atol=0.002)


@pytest.mark.parametrize("level", [0, 1, -0.1, 90, np.nan])
def test_levels_are_checked(posterior, level):
    forecast = posterior.forecast(ROWS)
    for method in (forecast.bands, forecast.to_frame):
        with pytest.raises(TableError, match=r"not between 0 and 1; 0.9 is a 90 % band"):
            method((0.5, level))


def test_quantiles(posterior):
    forecast = posterior.forecast(ROWS, kind="latent")
    np.testing.assert_array_equal(
        forecast.quantile([0.1, 0.9]), np.quantile(posterior.latent(ROWS), [0.1, 0.9], axis=0)
    )
    assert forecast.quantile(0.5).shape == (1, 4)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_export(posterior, tmp_path, ending):
    forecast = posterior.forecast(ROWS)
    path = tmp_path / f"prévision.{ending}"
    forecast.write(path, levels=(0.5, 0.9))
    back = pd.read_parquet(path) if ending == "parquet" else pd.read_csv(path)
    assert list(back.columns) == [
        *("params", "tokens", "median", "lower_50", "upper_50", "lower_90", "upper_90"), *PLACE
    ]  # fmt: skip
    pd.testing.assert_frame_equal(back, forecast.to_frame((0.5, 0.9)), check_exact=True)
    assert list(tmp_path.iterdir()) == [path]


def test_export_to_nowhere(posterior, tmp_path):
    with pytest.raises(TableError, match=r"cannot write: .*directory"):
        posterior.forecast(ROWS).write(tmp_path / "absent" / "x.csv")
    assert not list(tmp_path.iterdir())


def test_aliases_tables_and_other_columns(posterior, small):
    short = ROWS.rename(columns={"params": "N", "tokens": "D"}).assign(note="é")
    np.testing.assert_array_equal(
        posterior.forecast(short).samples, posterior.forecast(ROWS).samples
    )
    assert (posterior.forecast(short).to_frame()["note"] == "é").all()
    assert len(posterior.forecast(small).to_frame()) == len(small)
    assert "loss" in posterior.forecast(small).to_frame()


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (ROWS.drop(columns="tokens"), "'tokens' .or D; for B of chinchilla. is missing"),
        (ROWS.assign(tokens=0.0), "no value at tokens = 0"),
        (ROWS.assign(params=np.nan), "'params' is missing .NaN."),
        (ROWS.assign(params=-1.0), "'params' is not positive"),
        (ROWS.iloc[:0], "no rows"),
    ],
)
def test_bad_rows(posterior, rows, says):
    with pytest.raises(TableError, match=says):
        posterior.forecast(rows)


def test_unknown_kind(posterior):
    with pytest.raises(LawError, match="unknown kind of forecast 'latnt'; did you mean 'latent'"):
        posterior.forecast(ROWS, kind="latnt")


def test_far_extrapolation_stays_finite(posterior):
    loss = posterior.latent(grid(params=[1e4, 1e15], tokens=[1e3, 1e20]))
    assert np.isfinite(loss).all()
    assert (loss > 0).all()


def test_a_single_row(posterior):
    assert posterior.forecast(ROWS.iloc[[2]]).to_frame().shape[0] == 1
    table = from_frame(ROWS.iloc[[0]].assign(loss=2.0))
    assert posterior.predict(table).shape == (1,)


def test_every_row_has_a_position(posterior, small):
    """The training rows have N up to 3e9 and D up to 1e11, at every combination."""
    inside, outside = (posterior.forecast(rows).to_frame() for rows in (small, ROWS))
    assert (inside["position"] == "interpolation").all()
    assert (inside["decades"] == 0).all()
    assert (outside["position"] == "extrapolation").all()
    beyond = np.log10(ROWS / [3e9, 1e11]).clip(lower=0)
    np.testing.assert_allclose(outside["decades"], np.hypot(beyond["params"], beyond["tokens"]))
    bands = posterior.forecast(ROWS).bands((0.5, 0.9))
    assert bands["decades"].tolist() == outside["decades"].tolist() * 2


def test_a_stage_that_was_never_varied_is_a_projection(posterior):
    staged = from_frame(posterior.table.frame.assign(ptpp=31.0))
    predicted = replace(posterior, table=staged).forecast(
        grid(params=1e9, tokens=1e10, ptpp=[31, 279])
    )
    assert predicted.positions["unvaried"].tolist() == ["", "ptpp"]
    assert predicted.to_frame()["position"].tolist() == ["interpolation", "projection"]
    assert predicted.to_frame()["decades"].tolist() == pytest.approx([0, np.log10(9)])


def test_without_training_rows_there_is_no_position(posterior):
    predicted = replace(posterior.forecast(ROWS), fits={})
    assert not set(PLACE) & {*predicted.to_frame(), *predicted.bands()}
