"""Laws and priors from TOML files and texts, and the errors for invalid ones."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pymc as pm
import pytest
from matplotlib.mathtext import MathTextParser
from scipy import stats

from bayeslaw import FileError, LawError, Prior, fit_huber, load_law, simulate
from tests.inside import (
    make_spec,
    models_dir,
    override,
    parse_law,
    read_priors,
    restored_law,
    stored_law,
)
from tests.support import DESIGN

CHINCHILLA = (models_dir() / "chinchilla.toml").read_text()

MINE = """
title = "Mine: a stage-dependent size term"
reference = "nowhere"
token_unit = 1e9
[[term]]
coefficient = "G"
slope = "slope_G"
log = "-phi*log(N) - kappa*log(P)"
[[term]]
coefficient = "B"
slope = "slope_D"
log = "-beta*log(D)"
[priors]
E = "LogNormal(median=1.3, sigma=0.4)"
slope_G = "HalfNormal(sigma=0.2)"
phi = "LogNormal(median=0.28, sigma=0.45)"
kappa = "HalfNormal(sigma=0.2)"
slope_D = "LogNormal(median=0.06, sigma=0.9)"
beta = "LogNormal(median=0.3, sigma=0.5)"
"""


def test_a_users_law_by_path(tmp_path):
    path = tmp_path / "modèle.toml"
    path.write_text(MINE, encoding="utf-8")
    law = load_law(path)
    assert (law.name, law.token_unit) == ("modèle", 1e9)
    assert law.parameters == ("E", "G", "phi", "kappa", "B", "beta")
    assert law.columns == ("params", "tokens", "ptpp")
    p = {"E": 1.0, "G": 20.0, "phi": 0.2, "kappa": 0.1, "B": 0.4, "beta": 0.3}
    loss = law.loss(p, law.covariates(DESIGN))
    N, D, P = (DESIGN[c].to_numpy() for c in ("params", "tokens", "ptpp"))
    np.testing.assert_allclose(
        loss, 1 + 20 / (N**0.2 * P**0.1) + 0.4 / (D / 1e9) ** 0.3, rtol=1e-12
    )
    MathTextParser("agg").parse(f"${law.latex()}$")
    fit = fit_huber(law, simulate(law, p, DESIGN))
    np.testing.assert_allclose(fit.predict(DESIGN), loss, rtol=1e-6)
    assert load_law(str(path)) == parse_law(MINE, path.stem)
    assert load_law(law) is law


def test_bounds_as_published():
    """They replace those of the priors in `published`, and do not change the model."""
    law = load_law("form3")
    assert (law.bounds["lambda_"], law.paper_bounds) == ((0, 1), {"lambda_": (0, np.inf)})
    assert law.published.bounds == {**law.bounds, "lambda_": (0, np.inf)}
    assert law.published.prior_bounds["zeta"] == law.prior_bounds["zeta"]
    assert replace(law, paper_bounds={}).identity == law.identity
    assert restored_law(stored_law(law)).paper_bounds == law.paper_bounds


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("from3", "unknown law 'from3'; did you mean 'form3'.*dcpt, forgetting, form1"),
        (".", "unknown law .*path of a TOML file"),
    ],
)
def test_unknown_laws(name, says):
    with pytest.raises(LawError, match=says):
        load_law(name)


@pytest.mark.parametrize("name", ["absent.toml", "models/absent", Path("absent")])
def test_a_file_that_does_not_exist(name):
    for read in (load_law, read_priors):
        with pytest.raises(FileError, match=r"absent(.toml)?: no such file"):
            read(name)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("token_unit", "token_unt", "unknown key 'token_unt'; did you mean 'token_unit'.*Valid"),
        ('coefficient = "A"', 'coeficient = "A"', "did you mean 'coefficient'"),
        (
            'slope = "slope_D"\n',
            "",
            'term 2: key "slope" is missing; keys: coefficient, slope, log, along, exponent.',
        ),
        ('coefficient = "A"', "coefficient = 3", "coefficient = 3 is not text"),
        ('coefficient = "A"', 'kind = "power"\ncoefficient = "A"', "term 1: unknown key 'kind'"),
        (
            "alpha*log(N)",
            "alpha*lg(N)",
            "term 1: .*function 'lg'; did you mean 'log'.*exp,",
        ),
        ("alpha*log(N)", "alpha*log(N, D)", "term 1: .*: log takes 1 argument, not 2"),
        ("alpha*log(N)", "alpha*log(N", "cannot read log = '-alpha.log.N'"),
        (
            "alpha*log(N)",
            "alpha*log(N)[0]",
            "cannot read 'log.N..0.'; a formula has",
        ),
        ("alpha*log(N)", "alpha", "has no covariate .N, D, P or r.; a term has one"),
        ("alpha*log(N)", "2*log(N)", "has no parameter; a term has one"),
        (
            'alpha*log(N)"',
            'alpha*log(N)"\nalong = "D"',
            "unknown covariate 'D'.* Valid: N",
        ),
        ('alpha*log(N)"', 'alpha*log(N)"\nexponent = "alhpa"', "did you mean 'alpha'"),
        ("alpha*log(N)", "alpha*log(N) + mu*log(D)", "no prior for 'mu'"),
        ("alpha*log(N)", "mu*log(D) - alpha*log(N)", "no prior for 'mu'"),
        ('alpha*log(N)"', 'alpha*log(N) + beta"\nexponent = "beta"', "slope along N does not"),
        *(
            ("log(N)", f"log(N){bad}", "a number in it is not finite")
            for bad in ("/0", "+1/0", "*1e400", "*10**400", "**9**9**9", "+log(0-1)", "+exp(1000)")
        ),
        ("log(N)", "log(N)" + "+0*N" * 30_000, "too many operations; write fewer"),
        ('coefficient = "B"', 'coefficient = "A"', "'A' has two meanings"),
        ('"-alpha*log(N)"', "3", "log = 3 is not text"),
        ("[priors]", "[typical]\nalpha = 'x'\n[priors]", "typical.: alpha = 'x' is not a number"),
        ("[priors]", "[typical]\nalhpa = 3\n[priors]", "unknown parameter 'alhpa'"),
        ('alpha = "Log', 'alhpa = "Log', "unknown prior 'alhpa'; did you mean 'alpha'.*slope_D"),
        ('alpha = "LogNormal(median=0.28, sigma=0.45)"', "", "no prior for 'alpha'"),
        ("LogNormal(median=0.28", "LogNrmal(median=0.28", "did you mean 'LogNormal'.*HalfNormal"),
        ('"LogNormal(median=0.28, sigma=0.45)"', "3", "alpha: cannot read the prior 3"),
        (
            "LogNormal(median=0.28, sigma=0.45)",
            "Normal(mu=0, sigma=1)",
            r"reaches outside \[0, inf\]; give one .* alpha = \[-inf, inf\] below \[bounds\]",
        ),
        ("token_unit = 1.0", "token_unit = 0", "token_unit must be positive"),
        ("token_unit = 1.0", "token_unit = 'x'", "token_unit = 'x' is not a number"),
        ("token_unit", "coupled = 'A'\ntoken_unit", "coupled = 'A' is not a list of names"),
        ("token_unit", "departure = 3\ntoken_unit", "departure.: 3 is not a table of keys"),
        ("[priors]", "[departure]\nfoo = 3\n[priors]", "unknown key 'foo'. Valid: along, base"),
        ("token_unit", "ratio = 'mine'\ntoken_unit", "ratio is 'replay' or 'own', not 'mine'"),
        ("token_unit", "priors = 'x'\ntoken_unit", "not valid TOML"),
        ("token_unit", "= 3", "not valid TOML"),
        ("[priors]", "[bounds]\nzta = [0, 1]\n[priors]", "unknown parameter 'zta'.*alpha"),
        ("[priors]", "[bounds]\nalpha = [1, 0]\n[priors]", "not .lower, upper."),
        ("[priors]", "[paper_bounds]\nzta = [0, 1]\n[priors]", "unknown parameter 'zta'.*alpha"),
        ("[priors]", "[paper_bounds]\nalpha = [1, 0]\n[priors]", "not .lower, upper."),
        ("[priors]", "[bounds]\nalpha = 3\n[priors]", "not .lower, upper.: 3"),
    ],
)
def test_bad_law_files(tmp_path, old, new, says):
    assert old in CHINCHILLA
    path = tmp_path / "mine.toml"
    path.write_text(CHINCHILLA.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(LawError, match=says) as error:
        load_law(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_a_prior_of_a_local_exponent_that_is_not_linear(tmp_path):
    path = tmp_path / "root.toml"
    text = CHINCHILLA.replace("-alpha*log(N)", "-sqrt(alpha)*log(N)")
    path.write_text(text.replace("\nalpha = ", "\nalpha_ref = "), encoding="utf-8")
    with pytest.raises(LawError, match="term 1: the local exponent is not linear in alpha"):
        load_law(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"title = 'x'", r"has no \[\[term\]\]"),
        (b"title = 'fran\xe7ais'", "not valid TOML"),
        (CHINCHILLA.split("\n", 1)[1].encode(), "has no 'title'"),
        (b"", r"has no \[\[term\]\]"),
    ],
)
def test_files_that_are_no_laws(tmp_path, content, says):
    (tmp_path / "x.toml").write_bytes(content)
    with pytest.raises(LawError, match=says):
        load_law(tmp_path / "x.toml")


@pytest.mark.parametrize("path", sorted(models_dir().glob("*.toml")), ids=lambda path: path.stem)
def test_a_stored_law_comes_back(path):
    law = load_law(path)
    assert restored_law(stored_law(law)) == law


@pytest.mark.parametrize(
    ("coupled", "says"),
    [('["A", "C"]', "unknown coefficient 'C'.*A, B"), ('["A"]', "two coefficients or more")],
)
def test_coupled_terms_are_checked(coupled, says):
    text = (models_dir() / "skaling.toml").read_text().replace('["A", "B"]', coupled)
    with pytest.raises(LawError, match=says):
        parse_law(text, "mine")


@pytest.mark.parametrize(
    ("old", "new", "symbol"),
    [
        ('slope = "slope_D"', 'slope = "slope_N"', "slope_N"),
        ('coefficient = "B"', 'coefficient = "A"', "A"),
        ("-beta*", "-E*", "E"),
        ("-beta*log", "-sigma*log", "sigma"),
        ("-beta*log", "-A*log", "A"),
    ],
)
def test_a_symbol_with_two_meanings(old, new, symbol):
    text = (models_dir() / "chinchilla.toml").read_text()
    assert old in text
    with pytest.raises(LawError, match=f"'{symbol}' has two meanings"):
        parse_law(text.replace(old, new), "mine")


def test_an_exponent_of_a_coupled_law_is_not_kappa():
    text = (models_dir() / "skaling.toml").read_text().replace("-beta*log", "-kappa*log")
    with pytest.raises(LawError, match="'kappa' has two meanings"):
        parse_law(text, "mine")


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
        ("Beta(mu=0.5, sigma=0.6)", r"mu must lie below 1, and sigma\^2 below mu \(1 - mu\)"),
        ("Beta(mu=1.5, sigma=0.1)", "mu must lie below 1"),
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


@pytest.mark.parametrize("path", sorted(models_dir().glob("*.toml")), ids=lambda path: path.stem)
def test_a_law_is_named_as_its_file(path):
    assert load_law(path.stem).name == path.stem
