"""Every law as it was recorded: losses, gradients, both coordinate systems, and LaTeX."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from matplotlib.mathtext import MathTextParser

import bayeslaw as bl
from bayeslaw import LawError, TableError, fit_huber, from_frame, grid, load_law, simulate
from tests.inside import CLIP, ORIGIN, Curvature, Term, models_dir, parse_law
from tests.support import DESIGN, GOOD, LAWS, TRUTH, truth_of

CASES = json.loads((Path(__file__).parents[1] / "data/laws.json").read_text())


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


FORM3 = (models_dir() / "form3.toml").read_text()


def by_hand(law, p, params, tokens, replay, ptpp):
    """The paper's equations, one number at a time."""
    N, D, r, P = params, tokens, min(max(replay, 1e-9), 1 - 1e-9), ptpp
    size = p["A"] / N ** p["alpha"]
    if law == "chinchilla":
        return p["E"] + size + p["B"] / D ** p["beta"]
    if law == "skaling":
        k = p["kappa"]
        return p["E"] + (size ** (1 / k) + (p["B"] / D ** p["beta"]) ** (1 / k)) ** k
    beta = p["beta"]
    if law in ("form2", "form3"):
        # P^zeta / (1 + P^zeta), or its limit where P^zeta is beyond a double
        power = p["zeta"] * math.log(P)
        gate = P ** p["zeta"] / (1 + P ** p["zeta"]) if power < 700 else 1.0
        beta = max(beta * (1 - p["lambda_"] * gate), 1e-6)
    loss = p["E"] + size + p["B"] * r ** p["nu"] / D**beta + p["C"] / (r + 1e-5) ** p["gamma"]
    by_size = N ** p["phi"] if law == "form1n" else 1
    return loss + p["F"] / (P ** p["eta"] * by_size) if law.startswith(("form1", "form3")) else loss


positive = st.floats(1e-3, 10)

exponent = st.floats(0.01, 1.5)

parameters = st.fixed_dictionaries(
    dict.fromkeys(("E", "A", "B", "C", "F"), positive)
    | dict.fromkeys(("alpha", "beta", "nu", "gamma", "eta"), exponent)
    | {"lambda_": st.floats(0, 1), "zeta": st.floats(-3, 3)}
    | {"phi": st.floats(-0.3, 0.6), "kappa": st.floats(0.3, 3)}
)

covariates = st.fixed_dictionaries(
    {
        "params": st.floats(1e6, 1e12),
        "tokens": st.floats(1e6, 1e13),
        "replay": st.sampled_from([0.0, 1.0]) | st.floats(0, 1),
        "ptpp": st.floats(0.1, 1e4),
    }
)


@pytest.mark.parametrize("name", LAWS)
@settings(max_examples=100, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(p=parameters, x=covariates)
def test_the_papers_equations(name, p, x):
    law = load_law(name)
    loss = law.loss(p, law.covariates(grid(**x)))[0]
    assert loss == pytest.approx(by_hand(name, p, **x), rel=1e-12)


def test_replay_is_clipped_as_in_the_paper():
    law = load_law("dcpt")
    loss = law.loss(TRUTH, law.covariates(grid(params=1e9, tokens=1e9, replay=[0, 1e-9, 1e-12])))
    assert loss[0] == loss[1] == loss[2]
    p = {**TRUTH, "C": 0.0, "A": 0.0, "E": 0.0}
    loss = law.loss(p, law.covariates(grid(params=1e9, tokens=1e9, replay=[0, 1])))
    assert loss[0] / loss[1] == pytest.approx((1e-9 / (1 - 1e-9)) ** TRUTH["nu"], rel=1e-12)
    assert CLIP == 1e-9


@pytest.mark.parametrize("name", LAWS)
@settings(max_examples=100, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(p=parameters, x=covariates)
def test_coordinates_round_trip(name, p, x):
    law = load_law(name)
    p = {n: p[n] for n in law.parameters} | ({"lambda_": 0.9 * p["lambda_"]})
    at = law.reference_point(grid(**x))
    q = law.to_reference(p, at)
    assert tuple(q) == law.coordinates
    back = law.to_paper(q, at)
    assert tuple(back) == law.parameters
    for n in law.parameters:  # E is a difference of losses at the reference point
        assert back[n] == pytest.approx(p[n], rel=1e-9, abs=1e-9 * q["L_ref"] if n == "E" else 0)
    assert q["L_ref"] == pytest.approx(law.loss(p, at), rel=1e-12)


@pytest.mark.parametrize("name", LAWS)
def test_numpy_and_pytensor_agree(name):
    law = load_law(name)
    x, at = law.covariates(DESIGN), law.reference_point(DESIGN)
    p = truth_of(law.parameters)
    q = law.to_reference(p, at)
    free = {n: pt.dscalar(n) for n in law.coordinates}
    loss = law.loss(law.amounts(free, at, pt), x, at, pt)
    paper = law.to_paper(free, at, pt)
    both = pytensor.function(list(free.values()), [loss, *paper.values()], mode="FAST_COMPILE")
    got, *back = both(*(q[n] for n in law.coordinates))
    np.testing.assert_allclose(got, law.loss(p, x), rtol=1e-12)
    np.testing.assert_allclose(got, law.loss(law.amounts(q, at), x, at), rtol=1e-12)
    np.testing.assert_allclose(back, [law.to_paper(q, at)[n] for n in paper], rtol=1e-12)


def test_draws_broadcast_along_the_leading_axis():
    law = load_law("form3")
    x, p = law.covariates(DESIGN), truth_of(law.parameters)
    draws = {n: np.array([[v], [1.1 * v]]) for n, v in p.items()}
    loss = law.loss(draws, x)
    assert loss.shape == (2, len(DESIGN))
    np.testing.assert_allclose(loss[0], law.loss(p, x), rtol=1e-15)


@pytest.mark.filterwarnings("ignore::bayeslaw.common.errors.FitWarning")
@pytest.mark.parametrize("name", ["form2", "form3"])
def test_the_token_unit_is_part_of_a_gated_law(name):
    law = load_law(name)
    table = simulate(law, truth_of(law.parameters), DESIGN)
    errors = {}
    for unit in (1.0, 1e9):
        fit = fit_huber(replace(law, token_unit=unit), table)
        errors[unit] = np.sqrt(np.mean(np.log(fit.predict(table) / table.loss) ** 2))
    assert errors[1.0] < 1e-6
    assert errors[1e9] > 1e-4


@pytest.mark.parametrize("name", ["form1", "dcpt", "chinchilla"])
def test_the_token_unit_only_rescales_an_ungated_law(name):
    law = load_law(name)
    p, billions = truth_of(law.parameters), replace(law, token_unit=1e9)
    scaled = {**p, "B": p["B"] / 1e9 ** p["beta"]}
    np.testing.assert_allclose(
        billions.loss(scaled, billions.covariates(DESIGN)), law.loss(p, law.covariates(DESIGN))
    )


def test_ratio_own_is_the_other_share():
    law, own = load_law("dcpt"), parse_law(FORM3.replace('"replay"', '"own"', 1), "own")
    assert own.ratio == "own"
    other = DESIGN.assign(replay=1 - DESIGN["replay"])
    x, y = own.covariates(DESIGN), load_law("form3").covariates(other)
    for name in x:
        np.testing.assert_allclose(x[name], y[name], rtol=1e-12)
    assert own.reference_point(DESIGN)["replay"] == pytest.approx(
        np.log(1 - DESIGN["replay"].mean())
    )
    assert law.reference_point(DESIGN)["replay"] == pytest.approx(np.log(DESIGN["replay"].mean()))


@pytest.mark.parametrize("name", LAWS)
def test_latex_parses_and_names_every_parameter(name):
    law = load_law(name)
    text = law.latex()
    MathTextParser("agg").parse(f"${text}$")
    for parameter in law.parameters:
        assert parameter.removesuffix("_") in text
    assert re.sub(r"\s", "", load_law("chinchilla").latex()) == (
        r"\hatL=E+\frac{A}{N^{\alpha}}+\frac{B}{D^{\beta}}"
    )


def test_single_row_reads_but_cannot_be_fitted():
    table = from_frame(GOOD.iloc[:1])
    assert len(table) == 1
    with pytest.raises(TableError, match=r"the 1 rows are the same in params, tokens, replay"):
        fit_huber("form3", table)


def test_a_law_names_the_column_it_lacks():
    with pytest.raises(TableError, match=r"'ptpp' .or PTPP; for F of form1. is missing"):
        load_law("form1").covariates(GOOD.drop(columns="ptpp"))


@pytest.mark.parametrize("name", LAWS)
def test_pytensors_gradient_is_the_laws(name):
    law = Curvature().apply(load_law(name))
    x, at = law.covariates(DESIGN), law.reference_point(DESIGN)
    p = truth_of(load_law(name).parameters) | dict.fromkeys(law.discrepancy_parameters, 0.02)
    free = {n: pt.dscalar(n) for n in p}
    slopes = pytensor.grad(pt.log(law.loss(free, x, at, pt)).sum(), list(free.values()))
    found = pytensor.function([*free.values()], slopes, mode="FAST_COMPILE")(*p.values())
    by, loss = law.gradient(p, x, at), law.loss(p, x, at)
    for n, slope in zip(p, found, strict=True):
        assert slope == pytest.approx((by[n] / loss).sum(), rel=1e-10, abs=1e-10)


def test_the_effective_exponent_has_a_floor():
    law = load_law("form2")
    p = {**truth_of(law.parameters), "lambda_": 1.0, "zeta": 1e3, "A": 0.0, "C": 0.0, "nu": 0.0}
    loss = law.loss(p, law.covariates(grid(params=1e9, tokens=[1e3, 1e12], replay=0.5, ptpp=31)))
    np.testing.assert_allclose(loss - p["E"], p["B"] * np.array([1e3, 1e12]) ** -1e-6, rtol=1e-12)


@pytest.mark.parametrize("name", [law for law in LAWS if law != "skaling"])
def test_slopes_are_local_derivatives(name):
    law = load_law(name)
    at, p = law.reference_point(DESIGN), truth_of(law.parameters)
    q, step = law.to_reference(p, at), 1e-5
    for term in law.terms:
        lead = term.covariates[0]
        low, high = ({**at, lead: at[lead] + h} for h in (-step, step))
        one = {**p, "E": 0.0} | {c: 0.0 for c in law.coefficients if c != term.coefficient}
        slope = (law.loss(one, low) - law.loss(one, high)) / (2 * step)
        assert q[term.slope] == pytest.approx(slope, rel=1e-7)


KATO = {"E": 1.6, "A": 60.0, "alpha1": 0.02, "alpha2": 0.42, "alpha3": 0.011}

GRID = grid(params=[1e8, 4e8, 1.6e9], ptpp=[10, 40, 160], tokens=np.geomspace(1e8, 3e10, 6))


def test_huber_and_posterior_recover_it():
    exact = bl.fit_huber("liew_kato", simulate("liew_kato", KATO, GRID))
    for name, value in KATO.items():
        assert exact.parameters[name] == pytest.approx(value, rel=2e-3)
    fit = bl.fit(
        "liew_kato",
        simulate("liew_kato", KATO, GRID, sigma=0.003, seed=1),
        discrepancy="none",
        chains=2,
    )
    for name, value in KATO.items():
        low, high = fit.paper[name].quantile([0.01, 0.99])
        assert low < value < high
    assert fit.convergence.ok


# -- formulas of one's own --------------------------------------------------------------------

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
