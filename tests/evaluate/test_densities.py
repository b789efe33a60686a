"""Log likelihood, log prior and densities of runs, against PyMC and closed forms."""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from bayeslaw.evaluate.crossval import new_likelihood
from bayeslaw.evaluate.densities import (
    covariance,
    log_likelihood,
    log_prior,
    prior_draws,
    run_likelihood,
)
from bayeslaw.evaluate.new_sizes import residual_draws
from bayeslaw.inference.fitting import fit, with_effects
from bayeslaw.inference.posterior import Posterior
from bayeslaw.model.building import build, data
from bayeslaw.tables.reading import from_frame
from bayeslaw.tables.table import LossTable
from tests.support import object_mode, slow

SHORT = {"discrepancy": "none", "draws": 100, "tune": 300, "chains": 2, "retry": False}


@pytest.fixture(scope="module")
def runs(small) -> LossTable:
    """Five runs, each the rows of one D, with effects of sd .02."""
    rng = np.random.default_rng(3)
    names, index = np.unique(small.frame["tokens"], return_inverse=True)
    effect = 0.02 * rng.standard_normal(len(names))
    frame = small.frame.assign(run=[f"run {i}" for i in index])
    return from_frame(frame.assign(loss=frame["loss"] * np.exp(effect[index])))


def grouped(table, **settings) -> Posterior:
    return fit("chinchilla", table, seed=0, effects=["run"], **(SHORT | settings))


def raw(fitted: Posterior) -> xr.Dataset:
    """Draws as the sampler returns them, with arbitrary random effects."""
    draws, rng = fitted.draws.drop_dims("run"), np.random.default_rng(0)
    shape = draws.sizes["chain"], draws.sizes["draw"], fitted.draws.sizes["run"]
    return draws.assign(run_z=(("chain", "draw", "run_z_dim"), 0.02 * rng.standard_normal(shape)))


def in_pymc(fitted: Posterior, draws: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Log likelihood (draws, rows) and log prior (draws,) by the PyMC model itself."""
    from pymc.stats import compute_log_likelihood, compute_log_prior

    model = build(fitted.spec, data(fitted.spec, fitted.table))
    tree = xr.DataTree.from_dict({"posterior": draws})
    quiet = {"model": model, "progressbar": False, "extend_inferencedata": False}
    rows = compute_log_likelihood(tree, **quiet)["log_loss"].values
    names = [rv.name for rv in model.free_RVs if not rv.name.endswith("_z")]
    prior = compute_log_prior(tree, var_names=names, **quiet)
    total = sum(values for values in prior.data_vars.values())
    return rows.reshape(-1, len(fitted.table)), total.values.reshape(-1)


@pytest.mark.parametrize(
    "settings",
    [
        {"likelihood": "studentt"},
        slow({"likelihood": "normal", "noise": "loglinear"}),
        pytest.param({"likelihood": "huber"}, marks=[object_mode, pytest.mark.slow]),
    ],
    ids=str,
)
def test_likelihood_and_prior_are_the_models(runs, settings):
    fitted = grouped(runs, **settings)
    draws = raw(fitted)
    fitted = replace(fitted, draws=with_effects(fitted.spec, runs, draws))
    rows, prior = in_pymc(fitted, draws)
    np.testing.assert_allclose(log_likelihood(fitted), rows, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(log_prior(fitted).values.reshape(-1), prior, rtol=1e-8)


def test_run_density_of_normal_noise_is_closed_form(runs):
    fitted = grouped(runs, likelihood="normal")
    found, names = run_likelihood(fitted)
    q = fitted.values()
    residual = np.log(runs.loss) - np.log(fitted.latent(runs))
    assert names.tolist() == [f"run {i}" for i in range(5)]
    for draw in (0, 50, 150):
        for i, name in enumerate(names):
            rows = (runs.frame["run"] == name).to_numpy()
            sigma, tau = q["sigma"][draw, 0], q["tau_run"][draw, 0]
            square = sigma**2 * np.eye(rows.sum()) + tau**2
            want = stats.multivariate_normal.logpdf(residual[draw, rows], cov=square)
            assert found[draw, i] == pytest.approx(want, abs=1e-3)


def test_without_a_run_effect_the_rows_add_up(runs):
    fitted = fit("chinchilla", runs, seed=0, effects="none", **SHORT)
    found, names = run_likelihood(fitted)
    rows = log_likelihood(fitted)
    for i, name in enumerate(names):
        inside = (runs.frame["run"] == name).to_numpy()
        np.testing.assert_allclose(found[:, i], rows[:, inside].sum(1))


def test_new_runs_are_more_uncertain_than_training_runs(runs):
    fitted = grouped(runs)
    rng = np.random.default_rng(0)
    again = new_likelihood(fitted, runs, rng)
    np.testing.assert_allclose(again, log_likelihood(fitted))  # all are training runs
    new = from_frame(runs.frame.assign(run="new " + runs.frame["run"]))
    assert new_likelihood(fitted, new, rng).mean() < again.mean() - 1


def test_covariance_includes_noise_and_runs(runs):
    fitted = grouped(runs)
    square = covariance(fitted)
    tau, sigma = (float(fitted.draws[n].median()) for n in ("tau_run", "sigma"))
    same = runs.frame["run"].to_numpy()[:, None] == runs.frame["run"].to_numpy()
    np.testing.assert_allclose(square, sigma**2 * np.eye(len(runs)) + tau**2 * same)


def test_scale_is_that_of_the_drawn_noise(small):
    fitted = fit("chinchilla", small, seed=0, likelihood="normal", noise="loglinear", **SHORT)
    rng = np.random.default_rng(0)
    drawn = np.stack([residual_draws(fitted, small, rng) for _ in range(200)])
    np.testing.assert_allclose(drawn.std(0).mean(0), fitted.scale(small.frame).mean(0), rtol=0.02)


def test_prior_draws_are_the_models(posterior):
    import pymc as pm

    model = build(posterior.spec, data(posterior.spec, posterior.table))
    names = [rv.name for rv in model.free_RVs]
    want = dict(zip(names, pm.draw(model.free_RVs, draws=2000, random_seed=1), strict=True))
    got = prior_draws(posterior, 4000, seed=2)
    assert set(got) == {*names, "E"}
    for name in names:
        assert stats.ks_2samp(got[name][:, 0], want[name]).pvalue > 1e-3
    assert isinstance(log_prior(posterior), xr.DataArray)
