"""A posterior as ArviZ expects it: groups, dims, units, and ArviZ's own functions on it."""

from dataclasses import replace

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pytest

import bayeslaw as bl
from bayeslaw.inference.datatree import prior_draws
from bayeslaw.laws.priors import NOISE, override
from tests.support import object_mode

GROUPS = {
    "posterior", "posterior_predictive", "prior", "prior_predictive", "log_likelihood",
    "sample_stats", "observed_data", "constant_data",
}  # fmt: skip


@pytest.fixture(scope="module")
def grouped():
    """Posterior of rows in runs and bases, with curvature."""
    return bl.load("tests/golden/tinycpt_form1.nc")


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

    from bayeslaw.model.building import build
    from bayeslaw.model.spec import make_data

    fit = bl.load("tests/golden/delphi_chinchilla.nc")
    own = fit.to_datatree(prior=2000)["prior_predictive"]["log_loss"].values[0]
    model = build(fit.spec, make_data(fit.spec, fit.table).arrays)
    tree = pm.sample_prior_predictive(2000, model=model, random_seed=1)
    pymc = tree["prior_predictive"]["log_loss"].values[0]
    quantiles = (0.1, 0.5, 0.9)
    np.testing.assert_allclose(
        np.quantile(own, quantiles, axis=0), np.quantile(pymc, quantiles, axis=0), atol=0.08
    )
