"""Every law as it was recorded: losses, gradients, both coordinate systems, and LaTeX."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import bayeslaw as bl
from bayeslaw import LawError, load_law
from tests.inside import ORIGIN, Term, parse_law

CASES = json.loads((Path(__file__).parents[1] / "golden/laws.json").read_text())


def spaceless(text):
    return re.sub(r"\s", "", text)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_laws_are_as_recorded(case):
    """By hand-written classes of terms, before terms were formulas."""
    law = load_law(case["law"])
    law = law.repeating().annealing() if case["columns"] else law
    x, at = {name: np.array(values) for name, values in case["x"].items()}, case["at"]
    weights = np.cos(np.arange(1, 7))
    for point in case["points"]:
        p = point["p"]
        assert list(law.parameters) == list(p)
        assert list(law.coordinates) == list(point["q"])
        q = law.to_reference(p, at)
        for name, value in point["q"].items():
            assert q[name] == pytest.approx(value, rel=1e-12, abs=1e-14)
        for name, value in law.to_paper(q, at).items():
            assert value == pytest.approx(p[name], rel=1e-11, abs=1e-11)
        np.testing.assert_allclose(law.loss(p, x), point["loss"], rtol=1e-12)
        np.testing.assert_allclose(law.loss(law.amounts(q, at), x, at), point["loss_at"], 1e-12)
        for name, slope in law.gradient(p, x).items():
            mixed, scale = slope * weights, np.abs(slope * weights).sum()
            assert mixed.sum() == pytest.approx(point["gradient"][name], abs=1e-12 * scale)
    if case["law"] not in ("forgetting", "transfer"):  # the same powers in another order
        assert spaceless(law.latex()) == spaceless(case["latex"])


MINE = """
title = "Tokens seen, weighted, with a floor that size raises"
reference = "tests"
[[term]]
coefficient = "A"
slope = "slope_N"
log = "-alpha*log(N)"
[[term]]
coefficient = "B"
slope = "slope_D"
log = "-max(beta*tanh(1 + mu*log(P)/10), 1e-6)*log(D + 3*N) + nu*r"
along = "D"
[priors]
E = "LogNormal(median=1.3, sigma=0.4)"
slope_N = "LogNormal(median=0.11, sigma=0.4)"
alpha = "LogNormal(median=0.28, sigma=0.45)"
slope_D = "LogNormal(median=0.1, sigma=0.5)"
beta_ref = "LogNormal(median=0.3, sigma=0.5)"
mu = "LogNormal(median=0.5, sigma=0.7)"
nu = "Normal(mu=0, sigma=0.5)"
[bounds]
nu = [-inf, inf]
"""


def test_a_new_formula_is_fitted_saved_loaded_and_forecasts(tmp_path):
    (tmp_path / "mine.toml").write_text(MINE)
    law = load_law(tmp_path / "mine.toml")
    truth = {"E": 1.5, "A": 50.0, "alpha": 0.25, "B": 60.0, "beta": 0.3, "mu": 0.4, "nu": -0.2}
    design = bl.grid(
        params=[1e8, 4e8, 1.6e9], ptpp=[15, 31, 279], replay=[0, 0.5], tokens=[1e9, 1e10, 1e11]
    )
    N, D, P, r = (design[c].to_numpy() for c in ("params", "tokens", "ptpp", "replay"))
    by_hand = 1.5 + 50 / N**0.25
    by_hand += 60 * np.exp(-0.2 * r) / (D + 3 * N) ** (0.3 * np.tanh(1 + 0.04 * np.log(P)))
    np.testing.assert_allclose(law.loss(truth, law.covariates(design)), by_hand, rtol=1e-9)
    at = law.reference_point(design)
    low, high = (
        np.log(
            60 * np.exp(law.terms[1].log_ratio(truth, {**at, "tokens": at["tokens"] + h}, at, np))
        )
        for h in (-1e-5, 1e-5)
    )
    q = law.to_reference(truth, at)
    share = np.exp(at["tokens"]) / (np.exp(at["tokens"]) + 3 * np.exp(at["params"]))
    assert (low - high) / 2e-5 == pytest.approx(q["beta_ref"], rel=1e-6)
    assert q["beta_ref"] == pytest.approx(0.3 * np.tanh(1 + 0.04 * at["ptpp"]) * share)
    table = bl.simulate(law, truth, design, sigma=0.002, seed=1)
    point = bl.fit_huber(law, table)
    assert np.abs(np.log(point.predict(design) / by_hand)).max() < 0.005
    fit = bl.fit(law, table, discrepancy="none", chains=2, draws=200, tune=300, effects="none")
    fit.save(tmp_path / "fit.nc")
    ahead = design.assign(params=5e9)
    median = fit.latent(ahead)
    np.testing.assert_array_equal(bl.load(tmp_path / "fit.nc").latent(ahead), median)
    truly = law.loss(truth, law.covariates(ahead))
    assert np.abs(np.log(np.median(median, 0) / truly)).max() < 0.02


@pytest.mark.parametrize(
    ("log", "shown"),
    [
        ("-alpha*log(N)", r"\frac{A}{N^{\alpha}}"),
        ("nu*log(r) - beta*log(D)", r"\frac{A r^{\nu}}{D^{\beta}}"),
        ("-mu*r", r"A e^{-\mu r}"),
        ("-gamma*log(r + 1e-3)", r"\frac{A}{(r+\varepsilon)^{\gamma}}"),
        ("-(a - b*log(N*P))*log(D)", r"\frac{A}{D^{a - b \log (N P)}}"),
        ("-beta*log(N*P + rho*D)", r"\frac{A}{\left(N P + \rho D\right)^{\beta}}"),
        ("-beta*log(D)/2", r"A e^{-\beta \log D/2}"),
    ],
)
def test_latex_of_formulas(log, shown):
    along = "D" if "N*P" in log else ""
    assert Term("A", "slope_A", log, along).latex() == shown


@pytest.mark.parametrize(
    "extra", ["min(1, D)", "sqrt(D)", "D**2/N", "exp(-D)", "log1p(D)", "2 - D"]
)
def test_formulas_are_what_python_computes(extra):
    log = f"-beta*log(N) + mu*({extra})*(1 - exp(-N)) + (-r)*D/(N*P)"
    values = {"N": 1.3, "D": 0.7, "P": 2.0, "r": 0.4, "beta": 0.3, "mu": -0.8}
    names = {"params": "N", "tokens": "D", "ptpp": "P", "replay": "r"}
    x = {covariate: np.log(values[letter]) for covariate, letter in names.items()}
    functions = {n: getattr(np, n) for n in ("log", "sqrt", "exp", "log1p", "tanh")}
    expected = eval(log, {**functions, "min": np.minimum, "max": np.maximum, **values})
    term = Term("A", "slope_A", log)
    p = {"beta": 0.3, "mu": -0.8}
    assert term.log_ratio(p, x, ORIGIN, np) == pytest.approx(expected, rel=1e-14)
    for name, slope in term.slopes(p, x, ORIGIN).items():
        stepped = term.log_ratio({**p, name: p[name] + 1e-30j}, x, ORIGIN, np)
        assert slope == pytest.approx(stepped.imag / 1e-30, rel=1e-13)
    up, down = (
        term.log_ratio(p, {**x, "params": x["params"] + h}, ORIGIN, np) for h in (1e-6, -1e-6)
    )
    assert term.local_exponent(p, x, np) == pytest.approx((down - up) / 2e-6, rel=1e-6)


def test_one_law_has_one_epsilon():
    text = MINE.replace("-alpha*log(N)", "-alpha*log(r + 1e-5)").replace("nu*r", "nu*log(r + 1e-3)")
    with pytest.raises(LawError, match="several numbers; a law has one"):
        parse_law(text, "mine")
