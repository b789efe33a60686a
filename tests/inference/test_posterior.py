import warnings

import arviz_stats as azs
import numpy as np
import pytest

from bayeslaw.common.errors import LawError, NotConverged, TableError
from bayeslaw.evaluate.scores import score
from bayeslaw.huber.point_fit import fit_huber
from bayeslaw.inference import sampling
from bayeslaw.inference.convergence import Convergence, diagnose
from bayeslaw.inference.fitting import fit
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.simulation.worlds import simulate
from bayeslaw.tables.reading import from_frame
from tests.support import DESIGN, truth_of

GOOD = {"rhat": 1.01, "ess_bulk": 400, "ess_tail": 400, "divergences": 0, "bfmi": 0.3}


@pytest.mark.parametrize(
    ("spoilt", "says"),
    [
        ({"rhat": 1.011}, "R-hat 1.011 > 1.01"),
        ({"rhat": np.nan}, "R-hat nan > 1.01"),
        ({"ess_bulk": 399}, "bulk ESS 399 < 400"),
        ({"ess_tail": np.nan}, "tail ESS nan < 400"),
        ({"divergences": 1}, "1 divergences"),
        ({"bfmi": 0.29}, "E-BFMI 0.29 < 0.3"),
    ],
)
def test_each_part_of_the_gate(spoilt, says):
    assert Convergence(**GOOD).ok
    assert Convergence(**GOOD | spoilt).failures == (says,)


def test_a_good_posterior_passes(posterior, small):
    assert posterior.convergence.ok
    assert posterior.settings["seed"] == 0
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


def test_a_good_posterior_is_not_marked(posterior, small):
    assert "unconverged" not in posterior.forecast(small).to_frame()


def test_a_failed_gate_is_retried_once(unconverged):
    assert unconverged.settings["draws"] == 40
    assert unconverged.settings["tune"] == 10
    assert unconverged.settings["target_accept"] == 0.99


def test_diagnostics_are_those_of_arviz(posterior):
    draws, got = posterior.draws, posterior.convergence
    rhat = azs.rhat(draws)
    ess = azs.summary(draws, kind="diagnostics", round_to="none")
    assert got.rhat == pytest.approx(max(float(v) for v in rhat.data_vars.values()))
    assert got.ess_bulk == pytest.approx(ess["ess_bulk"].min())
    assert got.ess_tail == pytest.approx(ess["ess_tail"].min())
    assert got.divergences == int(posterior.stats["diverging"].sum())
    bfmi = azs.bfmi(posterior.stats)
    values = bfmi["energy"].values if hasattr(bfmi, "data_vars") else np.asarray(bfmi)
    assert got.bfmi == pytest.approx(values.min(), rel=0.01)
    summary = posterior.summary()
    assert {"E", "A", "alpha", "B", "beta", "L_ref", "sigma"} <= set(summary.index)
    assert summary.loc["L_ref", "mean"] == pytest.approx(float(draws["L_ref"].mean()))


def test_stuck_chains_fail(posterior):
    draws = posterior.draws.copy(deep=True)
    draws["alpha"][:] = draws["alpha"].values[:, :1]
    assert not diagnose(draws, posterior.stats).rhat <= 1.01
    draws["alpha"][:] = 0.5
    assert not diagnose(draws, posterior.stats).ok
    assert not diagnose(posterior.draws.isel(chain=[0]), posterior.stats.isel(chain=[0])).ok


def test_constant_draws_fail_without_a_warning(posterior):
    draws = posterior.draws.copy(deep=True)
    draws["alpha"][:] = 0.3
    assert not diagnose(draws, posterior.stats).ok


def test_same_seed_same_draws_whatever_was_fitted_before(posterior, small):
    other = from_frame(small.frame.iloc[:12].assign(loss=small.loss[:12] * 1.1))
    settings = {"discrepancy": "none", "draws": 500, "tune": 500}
    before = len(sampling._compiled)
    elsewhere = fit("chinchilla", other, seed=0, **settings)
    again = fit("chinchilla", small, seed=0, **settings)
    assert len(sampling._compiled) == before  # new data, not a new model
    for name in posterior.draws.data_vars:
        np.testing.assert_array_equal(again.draws[name], posterior.draws[name])
    assert not np.array_equal(elsewhere.draws["alpha"], posterior.draws["alpha"])
    different = fit("chinchilla", small, seed=1, **settings)
    assert not np.array_equal(different.draws["alpha"], posterior.draws["alpha"])
    np.testing.assert_allclose(different.predict(small), posterior.predict(small), rtol=1e-3)
    losses = elsewhere.predict(other, allow_unconverged=True)
    np.testing.assert_allclose(losses, other.loss, rtol=0.02)


def test_paper_draws_are_the_same_law(posterior, small):
    paper = {str(n): v.values.reshape(-1, 1) for n, v in posterior.paper.data_vars.items()}
    loss = posterior.law.loss(paper, posterior.law.covariates(small.frame))
    np.testing.assert_allclose(loss, posterior.latent(small), rtol=1e-10)
    assert (paper["E"] > 0).all()


def test_several_domains_are_refused(olmo):
    mixed = from_frame(olmo.frame.assign(domain=["a", "b"] * (len(olmo) // 2)))
    with pytest.raises(TableError, match=r"several domains .a, b.; fit one.*domain == 'a'"):
        fit("chinchilla", mixed)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"method": "nutz"}, "unknown method 'nutz'; did you mean 'nuts'.*map"),
        ({"sampler": "nutpy"}, "unknown sampler 'nutpy'; did you mean 'nutpie'.*pymc"),
        ({"likelihood": "huberr"}, "unknown likelihood 'huberr'; did you mean 'huber'"),
        ({"priors": {"alhpa": "Flat()"}}, "unknown prior 'alhpa'; did you mean 'alpha'"),
    ],
)
def test_misspelt_settings(small, settings, says):
    with pytest.raises(LawError, match=says):
        fit("chinchilla", small, **settings)


def test_priors_matter_where_they_are_tight(small, posterior):
    tight = fit(
        "chinchilla", small, priors={"alpha": "LogNormal(median=0.6, sigma=0.01)"},
        seed=0, discrepancy="none", draws=300, tune=500,
    )  # fmt: skip
    assert np.median(tight.draws["alpha"]) == pytest.approx(0.6, rel=0.05)
    assert np.median(posterior.draws["alpha"]) < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", ["normal", "huber"])
def test_other_likelihoods_agree_on_clean_noise(likelihood, small, posterior):
    other = fit("chinchilla", small, likelihood=likelihood, discrepancy="none", seed=0)
    assert other.convergence.ok
    assert ("dof" in other.draws) is False
    np.testing.assert_allclose(other.predict(small), posterior.predict(small), rtol=2e-3)


@pytest.mark.slow
def test_pymc_and_nutpie_agree(small):
    one = fit("chinchilla", small, discrepancy="none", seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # forked workers, on some platforms
        two = fit("chinchilla", small, seed=0, discrepancy="none", sampler="pymc", cores=1)
    assert one.convergence.ok
    assert two.convergence.ok
    for name in one.spec.law.coordinates:
        a, b = (f.draws[name].values for f in (one, two))
        error = np.hypot(*(float(azs.mcse(f.draws[name])) for f in (one, two)))
        assert abs(a.mean() - b.mean()) < 5 * error, name
        assert a.std() == pytest.approx(b.std(), rel=0.15), name


@pytest.mark.slow
def test_refits_need_no_new_model():
    law = load_law("dcpt")
    rows = DESIGN[DESIGN["ptpp"] == 279]
    tables = [
        simulate(
            law,
            truth_of(law.parameters),
            rows.sample(60 - 12 * i, random_state=i),
            sigma=0.003,
            seed=i,
        )
        for i in range(3)
    ]
    sizes = []
    for table in tables:
        fitted = fit(law, table, discrepancy="none", draws=100, tune=200)
        assert np.isfinite(fitted.latent(table)).all()
        sizes.append(len(sampling._compiled))
    assert len(set(sizes)) == 1
