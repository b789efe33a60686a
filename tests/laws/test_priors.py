import numpy as np
import pymc as pm
import pytest
from scipy import stats

from bayeslaw.common.errors import FitError, LawError
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.laws.priors import Prior, override
from bayeslaw.model.building import build, data
from bayeslaw.model.likelihoods import LIKELIHOODS
from bayeslaw.model.spec import make_spec
from tests.support import LAWS, object_mode, slow


def defaults():
    law = load_law("form3")
    return law.priors, law.prior_bounds


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("LogNormal(median=0.28, sigma=0.45)", stats.lognorm(0.45, scale=0.28)),
        ("LogNormal(mu=-1, sigma=0.45)", stats.lognorm(0.45, scale=np.exp(-1))),
        ("HalfNormal(sigma=2)", stats.halfnorm(scale=2)),
        ("Gamma(alpha=2, beta=0.1)", stats.gamma(2, scale=10)),
        ("Beta(alpha=1.5, beta=3)", stats.beta(1.5, 3)),
        ("StudentT(nu=4, mu=-1, sigma=2)", stats.t(4, -1, 2)),
        ("Uniform(lower=-1, upper=3)", stats.uniform(-1, 4)),
        ("Exponential(lam=4)", stats.expon(scale=0.25)),
    ],
)
def test_priors_are_the_distributions_they_name(text, same):
    prior = Prior.parse(text)
    x = same.ppf([0.01, 0.3, 0.9])
    np.testing.assert_allclose(pm.logp(prior.dist(), x).eval(), same.logpdf(x), rtol=1e-6)
    assert Prior.parse(str(prior)) == prior
    assert prior.support == pytest.approx(same.support())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("LogNrmal(sigma=1)", "unknown distribution 'LogNrmal'; did you mean 'LogNormal'.*Gamma"),
        ("Normal(mean=1)", "unknown Normal argument 'mean'.*Valid: mu, sigma"),
        ("Normal(0, 1)", "cannot read the prior"),
        ("Normal(mu=__import__('os').getpid())", "cannot read the prior"),
        ("Normal(mu='a')", "cannot read the prior"),
        ("Normal(mu=0, sigma=-1)", "sigma must be finite, and a scale positive"),
        ("LogNormal(median=-1, sigma=1)", "median must be finite"),
        ("LogNormal(median=1e999, sigma=1)", "median must be finite"),
        ("Gamma(alpha=1)", "Gamma needs alpha and beta or mu and sigma"),
        ("Uniform(lower=3, upper=1)", "lower must be below upper"),
        ("", "cannot read the prior"),
        ("Normal(", "cannot read the prior"),
        (3, "cannot read the prior 3"),
    ],
)
def test_bad_priors(text, says):
    with pytest.raises(LawError, match=says):
        Prior.parse(text)


def test_the_text_of_a_prior_tells_close_ones_apart():
    near = [Prior("Uniform", (("lower", 0.0), ("upper", upper))) for upper in (1e6 + 1, 1e6 + 2)]
    assert str(near[0]) != str(near[1])
    assert Prior.parse(str(near[0])) == near[0]


def test_override_by_mapping_string_file_and_flat(tmp_path):
    priors, bounds = defaults()
    assert override(priors, "default", bounds) == dict(priors)
    given = {"eta": "LogNormal(median=0.5, sigma=0.1)", "zeta": Prior.parse("Normal(sigma=2)")}
    merged = override(priors, given, bounds)
    assert str(merged["eta"]) == given["eta"]
    assert merged["zeta"] is given["zeta"]
    assert {n for n in priors if merged[n] != priors[n]} == {"eta", "zeta"}
    for text in ("eta = 'HalfNormal(sigma=1)'", "[priors]\neta = 'HalfNormal(sigma=1)'"):
        path = tmp_path / "prïors.toml"
        path.write_text(text, encoding="utf-8")
        for given in (path, str(path)):
            assert override(priors, given, bounds)["eta"] == Prior.parse("HalfNormal(sigma=1)")
    flat = override(priors, "flat", bounds)
    assert flat["zeta"].name == "Flat"
    assert flat["eta"].name == flat["E"].name == "HalfFlat"
    assert str(flat["lambda_"]) == "Uniform(lower=0, upper=1)"
    assert flat["sigma"] == priors["sigma"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"etta": "HalfNormal(sigma=1)"}, "unknown prior 'etta'; did you mean 'eta'.*slope_N"),
        ({"eta": "Normal(sigma=1)"}, r"prior of 'eta'.*reaches outside \[0, inf\]"),
        ({"lambda_": "HalfNormal(sigma=1)"}, r"reaches outside \[0, 1\]"),
        ("falt", "not 'default', 'flat', nor an existing TOML file"),
    ],
)
def test_bad_overrides(given, says):
    with pytest.raises(LawError, match=says):
        make_spec("form3", priors=given)


def test_bad_specs():
    with pytest.raises(LawError, match=r"unknown likelihood 'student'; did you mean 'studentt'"):
        make_spec("form3", likelihood="student")
    for delta in (0, -1, np.nan):
        with pytest.raises(FitError, match="delta must be positive"):
            make_spec("form3", likelihood="huber", delta=delta)


@pytest.mark.parametrize(
    "name", ["form3", "chinchilla", *(slow(n) for n in LAWS[:2]), slow("dcpt")]
)
def test_prior_predictive_sees_every_prior(name, paper_rows):
    spec = make_spec(name)
    model = build(spec, data(spec, paper_rows))
    quick = {"mode": "FAST_COMPILE"}
    tree = pm.sample_prior_predictive(4000, model=model, random_seed=1, compile_kwargs=quick)
    draws = tree["prior"].dataset
    flat = {n: v.values.ravel() for n, v in draws.data_vars.items() if v.ndim == 2}
    names = {"E", *spec.sampled} - {"L_ref", "dof"}
    sampled = {"dof": flat["dof"] - 2} | {n: flat[n] for n in sorted(names)}
    for n, values in sampled.items():
        same = pm.draw(spec.priors[n].dist(), 20_000, random_seed=2, mode="FAST_COMPILE")
        assert stats.ks_2samp(values, same).pvalue > 1e-4, n
    q = np.quantile(flat["E"], [0.1, 0.5, 0.9])
    np.testing.assert_allclose(q, stats.lognorm(0.6, scale=1.2).ppf([0.1, 0.5, 0.9]), rtol=0.04)
    # E is what is left of the reference loss, draw by draw.
    at = spec.law.reference_point(paper_rows.frame)
    p = spec.law.sizes({n: flat[n] for n in spec.law.coordinates}, at)
    np.testing.assert_allclose(p["E"], flat["E"], rtol=1e-9)
    sizes = sum(p[c] for c in spec.law.coefficients)
    np.testing.assert_allclose(flat["L_ref"] - sizes, flat["E"], rtol=1e-9)


@object_mode
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_log_likelihood_is_there_row_by_row(likelihood, small):
    spec = make_spec("chinchilla", likelihood=likelihood)
    model = build(spec, data(spec, small))
    prior = pm.sample_prior_predictive(20, model=model, random_seed=1)
    assert prior["prior_predictive"]["log_loss"].shape == (1, 20, len(small))
    prior["posterior"] = prior["prior"]
    tree = pm.compute_log_likelihood(prior, model=model, progressbar=False)
    got = tree["log_likelihood"]["log_loss"].values[0]
    draws = {str(n): v.values[0] for n, v in prior["prior"].data_vars.items()}
    at = spec.law.reference_point(small.frame)
    q = {n: draws[n][:, None] for n in spec.law.coordinates}
    mu = np.log(spec.law.loss(spec.law.sizes(q, at), spec.law.covariates(small.frame), at))
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
