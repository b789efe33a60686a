"""Laws and priors from TOML files and texts, and the errors for invalid ones."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pymc as pm
import pytest
from matplotlib.mathtext import MathTextParser
from scipy import stats

import bayeslaw as bl
from bayeslaw import FileError, LawError, Prior, fit_huber, load_law, read_table
from bayeslaw.common.files import models_dir
from bayeslaw.design.described import point
from bayeslaw.design.design import Design
from bayeslaw.laws.forms import identity
from bayeslaw.laws.lawfiles import parse_law, restored_law, stored_law
from bayeslaw.laws.parameters import prior_bounds
from bayeslaw.laws.priors import override, read_priors
from bayeslaw.laws.terms import Term
from bayeslaw.model.spec import make_spec
from tests.support import DATA, DESIGN, EXPERTS, EXPERTS_TRUTH, refused, routed

CHINCHILLA = (models_dir() / "chinchilla.toml").read_text()
SKALING = (models_dir() / "skaling.toml").read_text()
MINE = CHINCHILLA.replace("-alpha*log(N)", "-alpha*log(N) - mu*log(P)") + (
    'mu = "HalfNormal(sigma=0.2)"'
)


def test_a_users_law_by_path(tmp_path):
    path = tmp_path / "modèle.toml"
    path.write_text(
        MINE.replace("token_unit = 1.0", "token_unit = 1e9"), encoding="utf-8"
    )
    law = load_law(path)
    assert (law.name, law.token_unit) == ("modèle", 1e9)
    assert law.parameters == ("E", "A", "alpha", "mu", "B", "beta")
    assert law.columns == ("params", "tokens", "ptpp")
    p = {"E": 1.0, "A": 20.0, "alpha": 0.2, "mu": 0.1, "B": 0.4, "beta": 0.3}
    N, D, P = (DESIGN[c].to_numpy() for c in ("params", "tokens", "ptpp"))
    by_hand = 1 + 20 / (N**0.2 * P**0.1) + 0.4 / (D / 1e9) ** 0.3
    np.testing.assert_allclose(law.loss(p, Design(law, DESIGN).x), by_hand, rtol=1e-12)
    MathTextParser("agg").parse(f"${law.latex()}$")
    assert load_law(str(path)) == law
    assert load_law(law) is law


@pytest.mark.parametrize(
    "path", sorted(models_dir().glob("*.toml")), ids=lambda path: path.stem
)
def test_a_stored_law_comes_back(path):
    law = load_law(path)
    assert restored_law(stored_law(law)) == law == load_law(path.stem)
    assert law.name == path.stem


def test_the_law_of_routed_models_fits_their_table():
    """Total over active parameters explains what active parameters alone leave."""
    folder = DATA / "routing_moe"
    where = "router in ['Dense', 'S-Base'] and k == 1 and routing_frequency == .5"
    ratio = {"ratio": "params_total / params"}
    table = read_table(
        folder / "final.csv", columns=ratio, where=f"{where} and step == 249000"
    )
    for law, least, most in (
        ("chinchilla", 0.05, 0.2),
        (folder / "routed.toml", 0, 0.01),
    ):
        fitted = fit_huber(law, table, starts=200, polish=8).forecast(table)[
            "prediction"
        ]
        assert least < np.sqrt(np.mean(np.log(fitted / table.loss) ** 2)) < most


def test_a_law_declares_covariates():
    """By its file alone: its formula, a point fit, distances and messages have them."""
    law = parse_law(EXPERTS, "experts")
    assert law.columns == ("params", "tokens", "dropout", "experts")
    assert restored_law(stored_law(law)) == law
    assert (law.about["experts"].label, law.about["dropout"].logged) == (
        "experts per layer",
        False,
    )
    frame, truth = routed().frame, EXPERTS_TRUTH
    N, D, z, X = (frame[c].to_numpy() for c in law.columns)
    by_hand = 1.8 + 400 / N**0.34 + 900 * np.exp(z) / D**0.36 + 0.3 / X**0.4
    np.testing.assert_allclose(
        law.loss(truth, Design(law, frame).x), by_hand, rtol=1e-12
    )
    MathTextParser("agg").parse(f"${law.latex()}$")
    assert r"\mathrm{experts}^{\xi}" in law.latex()
    fitted = fit_huber(law, routed(), starts=200, polish=8)
    assert all(
        np.isclose(fitted.parameters[n], truth[n], rtol=0.2)
        for n in ("beta", "rise", "xi")
    )
    assert point(fitted.law, fitted.at)["dropout"] == pytest.approx(0.2)
    ahead = bl.grid(params=1e9, tokens=1e10, experts=[1, 640], dropout=[0.4, 0.6])
    located = bl.locate(routed(), ahead, law.about)
    assert located["beyond_experts"].round(6).tolist() == [0, 0, 1, 1]
    assert located["beyond_dropout"].round(6).tolist() == [
        0,
        0.5,
        0,
        0.5,
    ]  # of its range
    verdict = bl.tables.verdict.judge(routed(), ahead, law.about)
    assert verdict.level == "no evidence"
    assert "1 decades of experts (bands were never tested)" in verdict.words
    assert "0.5 ranges of dropout (bands were never tested)" in verdict.words


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"experts": 0},
            r"column 'experts' is not positive; experts has a logarithm; write log",
        ),
        ({"experts": "many"}, "column 'experts' is not a number"),
        ({"dropout": np.nan}, "column 'dropout' is missing"),
        ({"dropout": np.inf}, "column 'dropout' is infinite"),
    ],
)
def test_columns_of_declared_covariates_are_checked(change, says):
    law, frame = parse_law(EXPERTS, "experts"), routed().frame
    for use in (lambda rows: fit_huber(law, bl.from_frame(rows)), partial(Design, law)):
        refused(bl.TableError, says, use, frame.assign(**change))
    with pytest.raises(
        bl.TableError, match=r"column 'dropout' \(for B of experts\) is missing"
    ):
        fit_huber(law, bl.from_frame(frame.drop(columns="dropout")))


def test_bounds_as_published():
    """They are those of the Huber fit, and do not change the model."""
    law = load_law("form3")
    published = {
        name: row.published for name, row in law.by_symbol.items() if row.published
    }
    assert (law.by_symbol["lambda_"].bounds, published) == (
        (0, 1),
        {"lambda_": (0, np.inf)},
    )
    other = replace(law.by_symbol["lambda_"], published=None)
    changed = replace(law, by_symbol=law.by_symbol | {"lambda_": other})
    assert identity(changed) == identity(law)


@pytest.mark.parametrize(
    ("law", "error", "says"),
    [
        (
            "from3",
            LawError,
            "unknown law 'from3'; did you mean 'form3'.*dcpt, forgetting, form1",
        ),
        (".", LawError, "unknown law .*path of a TOML file"),
        (
            "kaplan",
            LawError,
            r"^unknown law 'kaplan': .* not shipped; .* is 'chinchilla'\. Or give",
        ),
        (
            "Hoffmann2022",
            LawError,
            r"'Hoffmann2022': the law of .*, is 'chinchilla'\. Or give",
        ),
        *(
            (n, FileError, r"absent(.toml)?: no such file")
            for n in ("absent.toml", Path("absent"))
        ),
        ("models/absent", FileError, "absent: no such file"),
    ],
)
def test_unknown_laws(law, error, says):
    for read in (load_law, read_priors)[: 1 + (error is FileError)]:
        refused(error, says, read, law)


N_PRIOR = "LogNormal(median=0.28, sigma=0.45)"
NOT_FINITE = ("/0", "*1e400", "**9**9**9", "+log(0-1)")
ALWAYS_ZERO = ("/(log(D)-log(D))", "*log(log(N)-log(N))")
BAD = [
    (
        "token_unit",
        "token_unt",
        "unknown key 'token_unt'; did you mean 'token_unit'.*Valid",
    ),
    ('coefficient = "A"', 'coeficient = "A"', "did you mean 'coefficient'"),
    (
        'slope = "slope_D"\n',
        "",
        'term 2: key "slope" is missing; keys: coefficient, slope, log',
    ),
    (
        "alpha*log(N)",
        "alpha*lg(N)",
        "term 1: .*function 'lg'; did you mean 'log'.*exp,",
    ),
    ("alpha*log(N)", "alpha*log(N, D)", "term 1: .*: log takes 1 argument, not 2"),
    ("alpha*log(N)", "alpha*log(N", "cannot read log = '-alpha.log.N'"),
    ("alpha*log(N)", "alpha*log(N)[0]", "cannot read 'log.N..0.'; a formula has"),
    ("alpha*log(N)", "alpha", "has no covariate .N, D, P, r or s.; a term has one"),
    ("alpha*log(N)", "2*log(N)", "has no parameter; a term has one"),
    ('alpha*log(N)"', 'alpha*log(N)"\nalong = "D"', "unknown covariate 'D'.* Valid: N"),
    ('alpha*log(N)"', 'alpha*log(N)"\nexponent = "alhpa"', "did you mean 'alpha'"),
    (
        'alpha*log(N)"',
        'alpha*log(N)"\ngate = "depth rate"',
        r"is not alpha\*\(1 - depth\*sigm",
    ),
    (
        "alpha*log(N)",
        "alpha*log(N) + mu*log(D)",
        "no prior for 'mu'; .*P, r, s are .*.covariates.mu.",
    ),
    (
        'alpha*log(N)"',
        'alpha*log(N) + beta"\nexponent = "beta"',
        "slope along N does not",
    ),
    *(("log(N)", f"log(N){bad}", "a number in it is not finite") for bad in NOT_FINITE),
    *(
        ("log(N)", f"log(N){bad}", "finite for no N, D, r, P and param")
        for bad in ALWAYS_ZERO
    ),
    ("log(N)", "log(N)" + "+0*N" * 30_000, "too many operations; write fewer"),
    ('"-alpha*log(N)"', "3", "log = 3 is not text"),
    (
        "[priors]",
        "[typical]\nalpha = 'x'\n[priors]",
        "typical.: alpha = 'x' is not a number",
    ),
    ("[priors]", "[typical]\nalhpa = 3\n[priors]", "unknown parameter 'alhpa'"),
    (
        'alpha = "Log',
        'alhpa = "Log',
        "unknown prior 'alhpa'; did you mean 'alpha'.*slope_D",
    ),
    (f'alpha = "{N_PRIOR}"', "", "no prior for 'alpha'"),
    (
        "LogNormal(median=0.28",
        "LogNrmal(median=0.28",
        "did you mean 'LogNormal'.*HalfNormal",
    ),
    (f'"{N_PRIOR}"', "3", "alpha: cannot read the prior 3"),
    (
        N_PRIOR,
        "Normal(mu=0, sigma=1)",
        r"reaches outside \[0, inf\]; give one .* alpha = \[-inf, inf\] below \[bounds\]",
    ),
    ("token_unit = 1.0", "token_unit = 0", "token_unit must be positive"),
    ("token_unit", "coupled = 'A'\ntoken_unit", "coupled = 'A' is not a list of names"),
    ("token_unit", "coupled = ['A', 'C']\ntoken_unit", "unknown coefficient 'C'.*A, B"),
    ("token_unit", "coupled = ['A']\ntoken_unit", "two coefficients or more"),
    ("token_unit", "departure = 3\ntoken_unit", "departure.: 3 is not a table of keys"),
    ("token_unit", "= 3", "not valid TOML"),
    *(
        ("[priors]", f"[{key}]\n{line}\n[priors]", says)
        for key in ("bounds", "paper_bounds")
        for line, says in (
            ("zta = [0, 1]", "unknown parameter 'zta'.*alpha"),
            ("alpha = [1, 0]", "not .lower, upper."),
            ("alpha = 3", "not .lower, upper.: 3"),
        )
    ),
    *(
        ("[priors]", f"{lines}\n[priors]", says)
        for lines, says in (
            ("[covariates.experts]", "covariates.experts.: no term has 'experts'"),
            ("[covariates.loss]", "'loss' has a meaning already"),
            ("[covariates.x]\nunits = 'm'", "unknown key 'units'; did you mean 'unit'"),
            ("[covariates.x]\nlog = 1", "log = 1 is not true or false"),
            ("[covariates.'a b']", "write the name of a column as one word of letters"),
        )
    ),
    # A symbol has one meaning.
    ('slope = "slope_D"', 'slope = "slope_N"', "'slope_N' has two meanings"),
    ('coefficient = "B"', 'coefficient = "A"', "'A' has two meanings"),
    *(
        ("-beta*log", f"-{n}*log", f"'{n}' has two meanings")
        for n in ("E", "sigma", "A")
    ),
]


@pytest.mark.parametrize(("old", "new", "says"), BAD, ids=range(len(BAD)))
def test_bad_law_files(tmp_path, old, new, says):
    assert old in CHINCHILLA
    path = tmp_path / "mine.toml"
    path.write_text(CHINCHILLA.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(LawError, match=says) as error:
        load_law(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


ROOT = CHINCHILLA.replace("-alpha*log(N)", "-sqrt(alpha)*log(N)")
SHARED = CHINCHILLA.replace("\nalpha = ", "\nalpha_ref = ").replace(
    "-beta*log(D)", "-beta*log(D) - alpha*log(N)"
)
EPSILONS = MINE.replace("log(P)", "log(r + 1e-5)").replace("log(D)", "log(r + 1e-3)")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"title = 'x'", r"has no \[\[term\]\]"),
        (b"title = 'fran\xe7ais'", "not valid TOML"),
        (CHINCHILLA.split("\n", 1)[1].encode(), "has no 'title'"),
        (
            ROOT.replace("\nalpha = ", "\nalpha_ref = ").encode(),
            "term 1: the local exponent is not linear in alpha",
        ),
        (
            SHARED.encode(),
            "alpha stands in several terms and does not lead all of them",
        ),
        (EPSILONS.encode(), "several numbers; a law has one"),
        (
            SKALING.replace("-beta*log", "-kappa*log").encode(),
            "'kappa' has two meanings",
        ),
    ],
)
def test_files_that_are_no_laws(tmp_path, content, says):
    (tmp_path / "x.toml").write_bytes(content)
    refused(LawError, says, load_law, tmp_path / "x.toml")


LATEX = {
    "-alpha*log(N)": r"\frac{A}{N^{\alpha}}",
    "nu*log(r) - beta*log(D)": r"\frac{A r^{\nu}}{D^{\beta}}",
    "-mu*r": r"A e^{-\mu r}",
    "-gamma*log(r + 1e-3)": r"\frac{A}{(r+\varepsilon)^{\gamma}}",
    "-(a - b*log(N*P))*log(D)": r"\frac{A}{D^{a - b \log (N P)}}",
    "-beta*log(N*P + rho*D)": r"\frac{A}{\left(N P + \rho D\right)^{\beta}}",
    "-beta*log(D)/2": r"A e^{-\beta \log D/2}",
}


@pytest.mark.parametrize("log", LATEX)
def test_latex_of_formulas(log):
    assert Term("A", "slope_A", log, "D" if "N*P" in log else "").latex() == LATEX[log]


# -- priors ----------------------------------------------------------------------------------------


NAMED = {
    "LogNormal(median=0.28, sigma=0.45)": stats.lognorm(0.45, scale=0.28),
    "LogNormal(mu=-1, sigma=0.45)": stats.lognorm(0.45, scale=np.exp(-1)),
    "HalfNormal(sigma=2)": stats.halfnorm(scale=2),
    "Gamma(alpha=2, beta=0.1)": stats.gamma(2, scale=10),
    "Beta(alpha=1.5, beta=3)": stats.beta(1.5, 3),
    "StudentT(nu=4, mu=-1, sigma=2)": stats.t(4, -1, 2),
    "Uniform(lower=-1, upper=3)": stats.uniform(-1, 4),
    "Exponential(lam=4)": stats.expon(scale=0.25),
}


def test_priors_are_the_distributions_they_name():
    priors = [Prior.parse(text) for text in NAMED]
    points = [same.ppf([0.01, 0.3, 0.9]) for same in NAMED.values()]
    logp = [pm.logp(prior.dist(), x) for prior, x in zip(priors, points, strict=True)]
    found = pm.draw(logp, mode="FAST_COMPILE")
    for prior, own, x, same in zip(priors, found, points, NAMED.values(), strict=True):
        np.testing.assert_allclose(own, same.logpdf(x), rtol=1e-6)
        assert Prior.parse(str(prior)) == prior
        assert prior.support == pytest.approx(same.support())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "LogNrmal(sigma=1)",
            "unknown distribution 'LogNrmal'; did you mean 'LogNormal'.*Gamma",
        ),
        ("Normal(mean=1)", "unknown Normal argument 'mean'.*Valid: mu, sigma"),
        *(
            (t, "cannot read the prior")
            for t in ("Normal(0, 1)", "Normal(mu='a')", "", "Normal(")
        ),
        ("Normal(mu=__import__('os').getpid())", "cannot read the prior"),
        (3, "cannot read the prior 3"),
        ("Normal(mu=0, sigma=-1)", "sigma must be finite, and a scale positive"),
        ("LogNormal(median=-1, sigma=1)", "median must be finite"),
        ("LogNormal(median=1e999, sigma=1)", "median must be finite"),
        (
            "Beta(mu=0.5, sigma=0.6)",
            r"mu must lie below 1, and sigma\^2 below mu \(1 - mu\)",
        ),
        ("Beta(mu=1.5, sigma=0.1)", "mu must lie below 1"),
        ("Gamma(alpha=1)", "Gamma needs alpha and beta or mu and sigma"),
        ("Uniform(lower=3, upper=1)", "lower must be below upper"),
        (
            "LogNormal(mu=-1, median=0.4, sigma=1)",
            "sigma=1.: give mu or median, not both",
        ),
        ("Gamma(alpha=2, beta=1, mu=3)", "give alpha and beta or mu, not both"),
        ("Exponential(lam=4, scale=4)", "give lam or scale, not both"),
        (
            "Normal(mu=0, mu=1, sigma=1)",
            r"Normal\(mu=0, mu=1, sigma=1\): mu is there twice",
        ),
    ],
)
def test_bad_priors(text, says):
    refused(LawError, says, Prior.parse, text)


def test_a_prior_is_that_of_its_text_or_keywords():
    prior = Prior("LogNormal", median=0.33, sigma=0.2)
    assert (
        prior == Prior.parse("LogNormal(median=0.33, sigma=0.2)") == eval(repr(prior))
    )
    assert hash(prior) == hash(Prior.parse(str(prior)))
    with pytest.raises(
        LawError, match="unknown LogNormal argument 'sgima'; did you mean 'sigma'"
    ):
        Prior("LogNormal", median=0.33, sgima=0.2)
    near = [Prior("Uniform", lower=0.0, upper=upper) for upper in (1e6 + 1, 1e6 + 2)]
    assert str(near[0]) != str(near[1])
    assert Prior.parse(str(near[0])) == near[0]
    preliz = pytest.importorskip("preliz")
    spec = make_spec("chinchilla", priors={"alpha": preliz.LogNormal(-1.1, 0.2)})
    assert spec.priors["alpha"] == Prior("LogNormal", mu=-1.1, sigma=0.2)
    with pytest.raises(LawError, match="unknown distribution 'VonMises'"):
        make_spec("chinchilla", priors={"alpha": preliz.VonMises(0, 1)})


def test_priors_by_mapping_text_file_and_flat(tmp_path):
    spec = make_spec("form3")
    priors, bounds = spec.priors, prior_bounds(spec.law.by_symbol)
    assert override(priors, "default", bounds) == dict(priors)
    given = {
        "eta": "LogNormal(median=0.5, sigma=0.1)",
        "zeta": Prior.parse("Normal(sigma=2)"),
    }
    merged = override(priors, given, bounds)
    assert (str(merged["eta"]), merged["zeta"]) == (given["eta"], given["zeta"])
    assert {n for n in priors if merged[n] != priors[n]} == {"eta", "zeta"}
    path = tmp_path / "prïors.toml"
    for text in (
        "eta = 'HalfNormal(sigma=1)'",
        "[priors]\neta = 'HalfNormal(sigma=1)'",
    ):
        path.write_text(text, encoding="utf-8")
        for file in (path, str(path)):
            assert override(priors, file, bounds)["eta"] == Prior.parse(
                "HalfNormal(sigma=1)"
            )
    flat = override(priors, "flat", bounds)
    assert [flat[n].name for n in ("zeta", "eta", "E")] == [
        "Flat",
        "HalfFlat",
        "HalfFlat",
    ]
    assert str(flat["lambda_"]) == "Uniform(lower=0, upper=1)"
    assert flat["sigma"] == priors["sigma"]


E_PRIOR = "LogNormal(median=1.2, sigma=0.6)"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"etta": "HalfNormal(sigma=1)"},
            "unknown prior 'etta'; did you mean 'eta'.*slope_N",
        ),
        ({"eta": "Normal(sigma=1)"}, r"prior of 'eta'.*reaches outside \[0, inf\]"),
        ({"lambda_": "HalfNormal(sigma=1)"}, r"reaches outside \[0, 1\]"),
        ("falt", "unknown priors 'falt'; did you mean 'flat'"),
        ({"E": E_PRIOR, "floor": "Beta(alpha=2, beta=2)"}, "keep one"),
        ({"floor": "LogNormal(median=0.5, sigma=0.6)"}, "outside"),
    ],
)
def test_bad_priors_of_a_law(given, says):
    refused(LawError, says, make_spec, "form3", priors=given)


def test_a_law_states_one_prior_of_the_floor():
    for law, given, stated in (
        ("chinchilla", "default", "floor"),
        ("chinchilla", {"E": E_PRIOR}, "E"),
        ("chinchilla", "flat", "E"),
        ("transfer", "default", "E"),
        ("transfer", {"floor": "Beta(alpha=1, beta=3)"}, "floor"),
    ):
        priors = make_spec(law, priors=given).priors
        assert {"E", "floor"} & {*priors} == {stated}
        if isinstance(given, dict):
            assert str(priors[stated]) == given[stated]
    both = CHINCHILLA.replace("[priors]", f'[priors]\nE = "{E_PRIOR}"')
    neither = re.sub(r"^floor = .*$", "", CHINCHILLA, flags=re.M)
    for text, says in ((both, "keep one"), (neither, "no prior for 'E'")):
        refused(LawError, says, parse_law, text, "own")
