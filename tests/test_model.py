"""The PyMC model of a fit, and draws from its prior: the same distributions in PyMC and NumPy."""

import numpy as np
import pymc as pm
import pytest
from scipy.stats import ks_2samp

import bayeslaw as bl
from bayeslaw.model import prior
from bayeslaw.model.training import make_data
from tests.support import saved, small

PRIORS = [
    "LogNormal(median=0.3, sigma=0.4)",
    "LogNormal(mu=-1, sigma=0.4)",
    "HalfNormal(sigma=2)",
    "HalfStudentT(nu=4, sigma=0.5)",
    "Gamma(alpha=2, beta=0.1)",
    "Gamma(mu=3, sigma=2)",
    "InverseGamma(alpha=3, beta=2)",
    "InverseGamma(mu=2, sigma=1.5)",
    "Exponential(lam=3)",
    "Exponential(scale=3)",
    "Beta(alpha=1.5, beta=3)",
    "Beta(mu=0.3, sigma=0.2)",
    "Normal(mu=1, sigma=2)",
    "StudentT(nu=4, mu=1, sigma=2)",
    "Uniform(lower=-1, upper=3)",
]


@pytest.mark.parametrize("text", PRIORS)
def test_a_prior_is_pymcs_distribution(text):
    own = bl.Prior.parse(text)
    dist = own.dist()
    draws = own.sample(np.random.default_rng(0), (4000,))
    theirs = pm.draw(dist, 4000, random_seed=1, mode="FAST_COMPILE")
    assert ks_2samp(draws, theirs).pvalue > 1e-3
    x = draws[:5]
    expected = pm.logp(dist, x).eval(mode="FAST_COMPILE")
    found = own.log_density(x) + np.zeros(5)
    np.testing.assert_allclose(
        found - found[0], expected - expected[0], rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize(
    "name", ["groups", "walk", "columns", "floor_in_nats", "skewed"]
)
def test_draws_of_the_prior_are_those_of_the_model(name):
    """Of parameters, effects and steps; of losses where a row does not depend on another."""
    fit = saved(name)
    model, count = fit.model, 400
    drawn, log_loss = prior.draw(
        make_data(fit.spec, fit.table, at=fit.at), count, np.random.default_rng(0)
    )
    quick = {"mode": "FAST_COMPILE"}
    tree = pm.sample_prior_predictive(
        count, model=model, random_seed=1, compile_kwargs=quick
    )
    for variable in model.free_RVs:
        if variable.name in drawn:
            theirs = tree["prior"][variable.name].values
            assert (
                ks_2samp(drawn[variable.name].ravel(), theirs.ravel()).pvalue > 1e-3
            ), variable
    for level in fit.spec.effects:  # of each draw its own scale
        taus, effects = drawn[f"tau_{level}"], drawn[f"{level}_effect"]
        np.testing.assert_allclose(np.std(effects / taus), 1, rtol=0.1)
        assert (
            np.corrcoef(np.log(np.abs(effects)).mean(1), np.log(taus[:, 0]))[0, 1] > 0.3
        )
    if fit.spec.errors == "independent":
        theirs = tree["prior_predictive"]["log_loss"].values[0]
        for row in (0, -1):
            assert ks_2samp(log_loss[:, row], theirs[:, row]).pvalue > 1e-3


def test_the_model_has_the_labels_of_its_table():
    model, table = saved("groups").model, saved("groups").table
    assert sorted(map(float, model.coords["size"])) == [1e8, 3e8, 1e9, 3e9]
    assert len(model.coords["row"]) == len(table)
    assert model.named_vars_to_dims["run_z"] == ("run",)
    assert model.named_vars_to_dims["log_loss"] == ("row",)
    alone = bl.pymc_model("chinchilla", small(), discrepancy="walk")
    assert {*alone.coords} == {*saved("walk").model.coords}


SHAPED = """
title = "A law whose size divides by two exponents"
reference = "none"
[[term]]
coefficient = "B"
slope = "slope_D"
log = "{log}"
[priors]
floor = "Beta(alpha=2, beta=3)"
slope_D = "LogNormal(median=0.1, sigma=0.5)"
beta = "LogNormal(median=0.3, sigma=0.4)"
rho = "LogNormal(median=1, sigma=0.5)"
"""


@pytest.mark.parametrize(
    "log", ["-beta*log(D)*rho", "beta*log(1/D + rho/N)", "log(1 / (1 + rho*D**beta))"]
)
def test_the_model_has_a_density_whatever_the_shape_of_a_formula(tmp_path, log):
    """Of the loss at the reference point: it was lost where PyMC rewrote the sizes of the terms."""
    path = tmp_path / "shaped.toml"
    path.write_text(SHAPED.format(log=log))
    model = bl.pymc_model(path, small(), discrepancy="none", effects="none")
    value, size = 3.0, 1.2  # nats; a floor of 0.6 of the loss
    loss = model["L_ref"]
    terms = loss.owner.inputs[1]
    found = pm.logp(loss, value).eval({terms: size}, mode="FAST_COMPILE")
    of_share = pm.logp(pm.Beta.dist(alpha=2, beta=3), 1 - size / value).eval()
    assert found == pytest.approx(of_share + np.log(size / value**2))
    assert np.isfinite(model.compile_logp(mode="FAST_COMPILE")(model.initial_point()))


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore"
)  # of PyMC, about divergences of its own coordinates
def test_stock_pymc_samples_the_same_bands():
    """In the coordinates of the model, which mix worse than those of the fit."""
    train, test = bl.example_table().split(train="scale <= 3e20", test="scale >= 1e21")
    fit = bl.fit("chinchilla", train, discrepancy="none", effects="none", seed=0)
    tree = pm.sample(
        500, model=fit.model, chains=4, cores=1, random_seed=1, progressbar=False
    )
    names = [v.name for v in fit.model.free_RVs]
    drawn = tree["posterior"].dataset[names]
    theirs = bl.Posterior(
        fit.spec, fit.table, fit.at, drawn, fit.stats, fit.convergence
    )
    bands = [
        np.quantile(each.latent(test), [0.05, 0.5, 0.95], axis=0)
        for each in (fit, theirs)
    ]
    width = bands[0][2] - bands[0][0]
    np.testing.assert_allclose(bands[1], bands[0], atol=0.15 * width.max())
