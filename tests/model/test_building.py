"""The PyMC model: its prior predictive and its log likelihood."""

import numpy as np
import pymc as pm
import pytest
from scipy import stats

from bayeslaw.model.building import build
from bayeslaw.model.spec import make_data, make_spec
from tests.support import LAWS, object_mode, slow


@pytest.mark.parametrize(
    "name", ["form3", "chinchilla", *(slow(n) for n in LAWS[:2]), slow("dcpt")]
)
def test_prior_predictive_sees_every_prior(name, paper_rows):
    spec = make_spec(name)
    model = build({"": make_data(spec, paper_rows)})
    quick = {"mode": "FAST_COMPILE"}
    tree = pm.sample_prior_predictive(4000, model=model, random_seed=1, compile_kwargs=quick)
    draws = tree["prior"].dataset
    flat = {n: v.values.ravel() for n, v in draws.data_vars.items() if v.ndim == 2}
    sampled = {n: flat[n] for n in sorted({*spec.sampled} - {"L_ref", "dof"})}
    sampled |= {"dof": flat["dof"] - 2, "floor": flat["E"] / flat["L_ref"]}
    for n, values in sampled.items():
        same = pm.draw(spec.priors[n].dist(), 20_000, random_seed=2, mode="FAST_COMPILE")
        assert stats.ks_2samp(values, same).pvalue > 1e-4, n
    # E is what is left of the reference loss, draw by draw.
    at = spec.law.reference_point(paper_rows.frame)
    p = spec.law.amounts({n: flat[n] for n in spec.law.coordinates}, at)
    np.testing.assert_allclose(p["E"], flat["E"], rtol=1e-9)
    sizes = sum(p[c] for c in spec.law.coefficients)
    np.testing.assert_allclose(flat["L_ref"] - sizes, flat["E"], rtol=1e-9)


@object_mode
@pytest.mark.parametrize("likelihood", ["studentt", "normal", "huber"])
def test_log_likelihood_is_there_row_by_row(likelihood, small):
    spec = make_spec("chinchilla", likelihood=likelihood)
    model = build({"": make_data(spec, small)})
    prior = pm.sample_prior_predictive(20, model=model, random_seed=1)
    assert prior["prior_predictive"]["log_loss"].shape == (1, 20, len(small))
    prior["posterior"] = prior["prior"]
    tree = pm.compute_log_likelihood(prior, model=model, progressbar=False)
    got = tree["log_likelihood"]["log_loss"].values[0]
    draws = {str(n): v.values[0] for n, v in prior["prior"].data_vars.items()}
    at = spec.law.reference_point(small.frame)
    q = {n: draws[n][:, None] for n in spec.law.coordinates}
    mu = np.log(spec.law.loss(spec.law.amounts(q, at), spec.law.covariates(small.frame), at))
    r, s = np.log(small.loss) - mu, draws["sigma"][:, None]
    if likelihood == "studentt":
        want = stats.t(draws["dof"][:, None]).logpdf(r / s) - np.log(s)
    elif likelihood == "normal":
        want = stats.norm(0, s).logpdf(r)
    else:
        k, a = 0.02 / s, np.abs(r)
        z = np.sqrt(2 * np.pi) * (2 * stats.norm.cdf(k) - 1) + 2 / k * np.exp(-(k**2) / 2)
        loss = np.where(a <= 0.02, a**2 / 2, 0.02 * (a - 0.01))
        want = -loss / s**2 - np.log(s * z)
    np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-8)
