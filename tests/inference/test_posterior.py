"""What a posterior gives: forecasts with bands, summaries, and a tree that ArviZ reads."""

from dataclasses import replace

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from scipy import stats

import bayeslaw as bl
from bayeslaw import (
    LawError,
    NotConverged,
    TableError,
    TableWarning,
    fit_huber,
    from_frame,
    grid,
    load,
    score,
)
from tests.inside import NOISE, build, labels, make_data, override, prior_draws
from tests.support import object_mode

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
    np.testing.assert_array_equal(latent.quantile(0.1), [np.quantile(latent.samples, 0.1, axis=0)])
    noise = np.log(noisy.samples / latent.samples)
    q = posterior.values()
    scaled = noise / q["sigma"]
    assert abs(np.median(scaled)) < 0.01
    # Half of a Student-t lies within its .75 quantile.
    inside = np.abs(scaled) < stats.t(2 + q["dof_above_floor"]).ppf(0.75)
    assert inside.mean() == pytest.approx(0.5, abs=0.01)
    assert (noisy.samples.std(0) > latent.samples.std(0)).all()
    np.testing.assert_allclose(noisy.median, latent.median, rtol=1e-3)


def test_noise_is_independent_from_row_to_row_and_of_its_seed(posterior):
    twice = pd.concat([ROWS.iloc[:1], ROWS.iloc[:1]])
    latent, noisy = (posterior.forecast(twice, kind=kind) for kind in ("latent", "predictive"))
    np.testing.assert_array_equal(latent.samples[:, 0], latent.samples[:, 1])
    noise = np.log(noisy.samples / latent.samples)
    rank = np.argsort(np.argsort(noise, axis=0), axis=0)
    assert abs(np.corrcoef(rank.T)[0, 1]) < 0.08
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
    with pytest.raises(TableError, match=r"cannot write: .*directory"):
        forecast.write(tmp_path / "absent" / "x.csv")
    assert list(tmp_path.iterdir()) == [path]


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
    with pytest.raises(LawError, match="unknown kind of forecast 'latnt'; did you mean 'latent'"):
        posterior.forecast(ROWS, kind="latnt")


def test_far_extrapolation_stays_finite(posterior):
    loss = posterior.latent(grid(params=[1e4, 1e15], tokens=[1e3, 1e20]))
    assert np.isfinite(loss).all()
    assert (loss > 0).all()
    assert posterior.forecast(ROWS.iloc[[2]]).to_frame().shape[0] == 1


@pytest.mark.parametrize("pooled", [False, True])
def test_rows_that_the_command_refuses_are_warned_of(posterior, pooled):
    fit = bl.Pool({"one": posterior, "two": posterior}) if pooled else posterior
    far, near = grid(params=70e9, tokens=1.4e13), grid(params=1e10, tokens=1e11)
    says = (
        r"grid: No evidence: rows lie up to 1\.4 decades of params \(bands were tested to 0\.96\)"
    )
    with pytest.warns(TableWarning, match=says) as found:
        fc = fit.forecast(far)
    assert len(found) == 1
    assert "No evidence" in str(fc)
    assert "No evidence" not in str(fit.forecast(near))
    fit.forecast(far, beyond_evidence=True)


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
    unknown = replace(predicted, fits={})  # without training rows there is no position
    assert not set(PLACE) & {*unknown.to_frame(), *unknown.bands()}


def test_a_good_posterior_passes(posterior, small):
    assert posterior.convergence.ok
    assert posterior.settings["seed"] == 0
    assert "unconverged" not in posterior.forecast(small).to_frame()
    assert posterior.predict(small).shape == (len(small),)
    np.testing.assert_allclose(
        posterior.predict(small), fit_huber("chinchilla", small).predict(small), rtol=0.005
    )


def test_an_unconverged_posterior_is_refused(unconverged, small):
    assert not unconverged.convergence.ok
    failures = unconverged.convergence.failures
    for use in (unconverged.forecast, unconverged.predict, lambda rows: score(unconverged, rows)):
        with pytest.raises(NotConverged, match=r"bulk ESS .* < 400.*allow_unconverged=True"):
            use(small)
    with pytest.raises(NotConverged, match="ESS"):
        unconverged.forecast(small, kind="latent")
    marked = unconverged.forecast(small, allow_unconverged=True)
    assert marked.convergence.failures == failures
    for frame in (marked.bands(), marked.to_frame()):
        assert (frame["unconverged"] == "; ".join(failures)).all()
    assert np.isfinite(score(unconverged, small, allow_unconverged=True)).all()
    assert np.isfinite(unconverged.predict(small, allow_unconverged=True)).all()


def test_rows_may_have_aliases_for_columns():
    """Also where a random effect depends on N."""
    fit = load("tests/data/delphi_chinchilla.nc")
    base, size = (labels(fit.table.frame, level) for level in ("base", "size"))
    same = dict(zip(base, size, strict=True))  # the bases of this table are its sizes
    sized = fit.draws.rename(base="size", base_effect="size_effect", tau_base="tau_size")
    sized = sized.assign_coords(size=[same[name] for name in sized["size"].values])
    spec = replace(fit.spec, effects=("size",))
    fit, frame = replace(fit, draws=sized, spec=spec), fit.table.frame.head(5)
    aliased = frame.rename(columns={"params": "N", "tokens": "D"})
    for method in (fit.latent, fit.scale, lambda rows: fit.extended(rows)[1]["alpha"]):
        np.testing.assert_array_equal(method(aliased), method(frame))
    with pytest.raises(TableError, match="rows: column 'params' is not positive"):
        fit.latent(frame.assign(params=0.0))


def test_paper_draws_are_the_same_law(posterior, small):
    paper = {str(n): v.values.reshape(-1, 1) for n, v in posterior.paper.data_vars.items()}
    loss = posterior.law.loss(paper, posterior.law.covariates(small.frame))
    np.testing.assert_allclose(loss, posterior.latent(small), rtol=1e-10)
    assert (paper["E"] > 0).all()


GROUPS = {
    "posterior", "posterior_predictive", "prior", "prior_predictive", "log_likelihood",
    "sample_stats", "observed_data", "constant_data",
}  # fmt: skip


@pytest.fixture(scope="module")
def grouped():
    """Posterior of rows in runs and bases, with curvature."""
    return bl.load("tests/data/tinycpt_form1.nc")


@pytest.fixture(scope="module")
def tree(grouped):
    return grouped.to_datatree(seed=1, prior=300)


def test_groups_dims_and_units(grouped, tree):
    assert {*tree.children} == GROUPS
    rows, draws = len(grouped.table), grouped.draws.sizes["draw"]
    for group in ("log_likelihood", "posterior_predictive", "prior_predictive"):
        assert tree[group]["log_loss"].dims == ("chain", "draw", "row")
    assert tree["posterior_predictive"]["log_loss"].shape == (2, draws, rows)
    assert tree["prior_predictive"]["log_loss"].shape == (1, 300, rows)
    assert tree["posterior"]["run_effect"].dims == ("chain", "draw", "run")
    assert tree["posterior"]["E"].attrs["units"] == "nats per token"
    assert tree["posterior"]["alpha"].attrs["units"] == "dimensionless"
    assert tree["constant_data"]["tokens"].attrs["units"] == "tokens"
    assert {"params", "tokens", "replay", "ptpp", "run", "base"} <= {*tree["constant_data"]}
    np.testing.assert_array_equal(tree["observed_data"]["log_loss"], np.log(grouped.table.loss))


def test_predictions_are_those_of_the_posterior_and_the_prior(grouped, tree):
    inside = tree["posterior_predictive"]["log_loss"]
    low, high = inside.quantile([0.05, 0.95], ("chain", "draw"))
    observed = tree["observed_data"]["log_loss"]
    assert 0.8 < ((low < observed) & (observed < high)).mean() <= 1
    before = tree["prior"]["L_ref"].values
    loss = tree["prior_predictive"]["log_loss"].mean("row").values
    assert np.corrcoef(np.log(before).ravel(), loss.ravel())[0, 1] > 0.8
    assert tree["prior"]["L_ref"].std() > 3 * tree["posterior"]["L_ref"].std()


def test_a_prior_that_cannot_be_drawn_is_left_out(grouped):
    law = grouped.law
    noise = {name for name in grouped.spec.priors if name not in law.prior_bounds}
    flat = override(grouped.spec.priors, "flat", law.prior_bounds, proper={*NOISE, *noise})
    fit = replace(grouped, spec=replace(grouped.spec, priors=flat))
    tree = fit.to_datatree(seed=1, prior=300)
    assert {*tree.children} == GROUPS - {"prior", "prior_predictive"}
    assert tree.attrs["prior"].startswith("not drawn: improper for ")
    with pytest.raises(bl.FitError, match=r"priors of .*E.* are flat and improper"):
        prior_draws(fit)


def test_arviz_reads_it(grouped, tree):
    summary = az.summary(tree, var_names=["E", "alpha"], round_to="none")
    assert summary.loc["alpha", "mean"] == pytest.approx(float(grouped.draws["alpha"].mean()))
    with pytest.warns(UserWarning, match="Pareto"):
        elpd = az.loo(tree).elpd
    in_sample = tree["log_likelihood"]["log_loss"].mean(("chain", "draw")).sum()
    assert elpd < in_sample  # left out, rows are less likely than fitted
    for plot in (az.plot_trace_dist, az.plot_ppc_dist):
        kept = {"var_names": ["E", "alpha"]} if plot is az.plot_trace_dist else {}
        plot(tree, **kept)
        plt.close("all")


@object_mode
def test_prior_predictive_is_that_of_the_model():
    """Against PyMC's own draws of the same model."""
    import pymc as pm

    fit = bl.load("tests/data/delphi_chinchilla.nc")
    own = fit.to_datatree(prior=2000)["prior_predictive"]["log_loss"].values[0]
    model = build({"": make_data(fit.spec, fit.table)})
    tree = pm.sample_prior_predictive(2000, model=model, random_seed=1)
    pymc = tree["prior_predictive"]["log_loss"].values[0]
    quantiles = (0.1, 0.5, 0.9)
    np.testing.assert_allclose(
        np.quantile(own, quantiles, axis=0), np.quantile(pymc, quantiles, axis=0), atol=0.08
    )
