import re

import numpy as np
import pymc as pm
import pytest
from scipy import stats

from bayeslaw import LawError, Prior, load_law
from bayeslaw.laws.lawfiles import models_dir
from bayeslaw.laws.priors import override
from bayeslaw.model.spec import make_spec


def defaults():
    spec = make_spec("form3")
    return spec.priors, spec.law.prior_bounds


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
        ("LogNormal(mu=-1, median=0.4, sigma=1)", "sigma=1.: give mu or median, not both"),
        ("Gamma(alpha=2, beta=1, mu=3)", "give alpha and beta or mu, not both"),
        ("Exponential(lam=4, scale=4)", "give lam or scale, not both"),
        ("Normal(mu=0, mu=1, sigma=1)", r"Normal\(mu=0, mu=1, sigma=1\): mu is there twice"),
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
        ("falt", "unknown priors 'falt'; did you mean 'flat'"),
    ],
)
def test_bad_overrides(given, says):
    with pytest.raises(LawError, match=says):
        make_spec("form3", priors=given)


def test_a_prior_by_keywords_is_that_of_its_text():
    prior = Prior("LogNormal", median=0.33, sigma=0.2)
    assert prior == Prior.parse("LogNormal(median=0.33, sigma=0.2)")
    assert hash(prior) == hash(Prior.parse(str(prior)))
    assert eval(repr(prior)) == prior
    with pytest.raises(LawError, match="mu is there twice"):
        Prior("Normal", (("mu", 0),), mu=1)
    with pytest.raises(LawError, match="unknown LogNormal argument 'sgima'; did you mean 'sigma'"):
        Prior("LogNormal", median=0.33, sgima=0.2)


def test_a_preliz_distribution_is_a_prior():
    preliz = pytest.importorskip("preliz")
    spec = make_spec("chinchilla", priors={"alpha": preliz.LogNormal(-1.1, 0.2)})
    assert spec.priors["alpha"] == Prior("LogNormal", mu=-1.1, sigma=0.2)
    with pytest.raises(LawError, match="unknown distribution 'VonMises'"):
        make_spec("chinchilla", priors={"alpha": preliz.VonMises(0, 1)})


E_PRIOR = "LogNormal(median=1.2, sigma=0.6)"


@pytest.mark.parametrize(
    ("law", "given", "stated"),
    [
        ("chinchilla", "default", "floor"),
        ("chinchilla", {"E": E_PRIOR}, "E"),
        ("chinchilla", "flat", "E"),
        ("transfer", "default", "E"),
        ("transfer", {"floor": "Beta(alpha=1, beta=3)"}, "floor"),
    ],
)
def test_a_law_states_one_prior_of_the_floor(law, given, stated):
    priors = make_spec(law, priors=given).priors
    assert {"E", "floor"} & {*priors} == {stated}
    if isinstance(given, dict):
        assert str(priors[stated]) == given[stated]


def test_two_priors_of_the_floor_or_none_are_errors(tmp_path):
    with pytest.raises(LawError, match="keep one"):
        make_spec("chinchilla", priors={"E": E_PRIOR, "floor": "Beta(alpha=2, beta=2)"})
    with pytest.raises(LawError, match="outside"):
        make_spec("chinchilla", priors={"floor": "LogNormal(median=0.5, sigma=0.6)"})
    path, text = tmp_path / "own.toml", (models_dir() / "chinchilla.toml").read_text()
    path.write_text(re.sub(r"^floor = .*$", "", text, flags=re.M))
    with pytest.raises(LawError, match="no prior for 'E'"):
        load_law(path)
    path.write_text(text.replace("[priors]", f'[priors]\nE = "{E_PRIOR}"'))
    with pytest.raises(LawError, match="keep one"):
        load_law(path)
