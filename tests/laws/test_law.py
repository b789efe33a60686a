import math
import re
from dataclasses import replace

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from matplotlib.mathtext import MathTextParser
from pytensor.graph import FunctionGraph, rewrite_graph
from pytensor.scalar import true_div

from bayeslaw.common.errors import LawError
from bayeslaw.huber.point_fit import fit_huber
from bayeslaw.laws.law import CLIP
from bayeslaw.laws.lawfiles import load_law, models_dir, parse_law
from bayeslaw.model import rewrites as held
from bayeslaw.model.discrepancies import curved
from bayeslaw.simulation.worlds import simulate
from bayeslaw.tables.table import grid
from tests.support import DESIGN, LAWS, TRUTH, truth_of

CHINCHILLA = (models_dir() / "chinchilla.toml").read_text()
FORM3 = (models_dir() / "form3.toml").read_text()
MINE = """
title = "Mine: a stage-dependent size term"
reference = "nowhere"
token_unit = 1e9
[[term]]
coefficient = "G"
slope = "slope_G"
down = { params = "phi", ptpp = "kappa" }
[[term]]
coefficient = "B"
slope = "slope_D"
down = { tokens = "beta" }
[priors]
E = "LogNormal(median=1.3, sigma=0.4)"
slope_G = "HalfNormal(sigma=0.2)"
phi = "LogNormal(median=0.28, sigma=0.45)"
kappa = "HalfNormal(sigma=0.2)"
slope_D = "LogNormal(median=0.06, sigma=0.9)"
beta = "LogNormal(median=0.3, sigma=0.5)"
"""


def by_hand(law, p, params, tokens, replay, ptpp):
    """The paper's equations, one number at a time."""
    N, D, r, P = params, tokens, min(max(replay, 1e-9), 1 - 1e-9), ptpp
    size = p["A"] / N ** p["alpha"]
    if law == "chinchilla":
        return p["E"] + size + p["B"] / D ** p["beta"]
    beta = p["beta"]
    if law in ("form2", "form3"):
        # P^zeta / (1 + P^zeta), or its limit where P^zeta is beyond a double
        power = p["zeta"] * math.log(P)
        gate = P ** p["zeta"] / (1 + P ** p["zeta"]) if power < 700 else 1.0
        beta = max(beta * (1 - p["lambda_"] * gate), 1e-6)
    loss = p["E"] + size + p["B"] * r ** p["nu"] / D**beta + p["C"] / (r + 1e-5) ** p["gamma"]
    return loss + p["F"] / P ** p["eta"] if law in ("form1", "form3") else loss


positive = st.floats(1e-3, 10)
exponent = st.floats(0.01, 1.5)
parameters = st.fixed_dictionaries(
    dict.fromkeys(("E", "A", "B", "C", "F"), positive)
    | dict.fromkeys(("alpha", "beta", "nu", "gamma", "eta"), exponent)
    | {"lambda_": st.floats(0, 1), "zeta": st.floats(-3, 3)}
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


def test_golden_number():
    """Form 3 at one point, worked out on paper."""
    p = {**TRUTH, "zeta": 0.0}  # gate = lambda / 2, so beta_eff = .25 * .85
    x = grid(params=1e9, tokens=1e10, replay=0.25, ptpp=100)
    want = 1.5 + 170 / 1e9**0.3 + 53 * 0.5**0.8 / 10**2.125 + 0.05 / 0.25001**0.3 + 0.16 / 10**0.66
    assert load_law("form3").loss(p, load_law("form3").covariates(x))[0] == pytest.approx(
        want, rel=1e-12
    )


def test_replay_is_clipped_as_in_the_paper():
    law = load_law("dcpt")
    loss = law.loss(TRUTH, law.covariates(grid(params=1e9, tokens=1e9, replay=[0, 1e-9, 1e-12])))
    assert loss[0] == loss[1] == loss[2]
    p = {**TRUTH, "C": 0.0, "A": 0.0, "E": 0.0}
    loss = law.loss(p, law.covariates(grid(params=1e9, tokens=1e9, replay=[0, 1])))
    assert loss[0] / loss[1] == pytest.approx((1e-9 / (1 - 1e-9)) ** TRUTH["nu"], rel=1e-12)
    assert CLIP == 1e-9


@pytest.mark.parametrize("zeta", [1e6, -1e6, 1e300, 300.0, -300.0])
def test_the_gate_cannot_overflow(zeta):
    law = load_law("form2")
    p = {**truth_of(law.parameters), "zeta": zeta}
    x = law.covariates(DESIGN)
    shut = {**p, "zeta": 0.0, "lambda_": 0.0, "beta": p["beta"] * (1 - p["lambda_"] * (zeta > 0))}
    np.testing.assert_allclose(law.loss(p, x), law.loss(shut, x), rtol=1e-12)
    assert all(np.isfinite(column).all() for column in law.gradient(p, x).values())


def test_the_effective_exponent_has_a_floor():
    law = load_law("form2")
    p = {**truth_of(law.parameters), "lambda_": 1.0, "zeta": 1e3, "A": 0.0, "C": 0.0, "nu": 0.0}
    loss = law.loss(p, law.covariates(grid(params=1e9, tokens=[1e3, 1e12], replay=0.5, ptpp=31)))
    np.testing.assert_allclose(loss - p["E"], p["B"] * np.array([1e3, 1e12]) ** -1e-6, rtol=1e-12)


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
def test_slopes_are_local_derivatives(name):
    law = load_law(name)
    at, p = law.reference_point(DESIGN), truth_of(law.parameters)
    q, step = law.to_reference(p, at), 1e-5
    for term in law.terms:
        lead = next(iter(term.down))
        low, high = ({**at, lead: at[lead] + h} for h in (-step, step))
        one = {**p, "E": 0.0} | {c: 0.0 for c in law.coefficients if c != term.coefficient}
        slope = (law.loss(one, low) - law.loss(one, high)) / (2 * step)
        assert q[term.slope] == pytest.approx(slope, rel=1e-7)


@pytest.mark.parametrize("name", LAWS)
def test_numpy_and_pytensor_agree(name):
    law = load_law(name)
    x, at = law.covariates(DESIGN), law.reference_point(DESIGN)
    p = truth_of(law.parameters)
    q = law.to_reference(p, at)
    free = {n: pt.dscalar(n) for n in law.coordinates}
    loss = law.loss(law.sizes(free, at, pt), x, at, pt)
    paper = law.to_paper(free, at, pt)
    both = pytensor.function(list(free.values()), [loss, *paper.values()], mode="FAST_COMPILE")
    got, *back = both(*(q[n] for n in law.coordinates))
    np.testing.assert_allclose(got, law.loss(p, x), rtol=1e-12)
    np.testing.assert_allclose(got, law.loss(law.sizes(q, at), x, at), rtol=1e-12)
    np.testing.assert_allclose(back, [law.to_paper(q, at)[n] for n in paper], rtol=1e-12)


@pytest.mark.parametrize("name", LAWS)
def test_gradients_agree_with_pytensor_and_differences(name):
    law = load_law(name)
    x, p = law.covariates(DESIGN), truth_of(law.parameters)
    free = {n: pt.dscalar(n) for n in law.parameters}
    loss = law.loss(free, x, xp=pt)
    jacobian = pytensor.gradient.jacobian(loss, list(free.values()), vectorize=True)
    graph = pytensor.function(list(free.values()), jacobian, mode="FAST_COMPILE")(*p.values())
    own = law.gradient(p, x)
    for n, column in zip(law.parameters, graph, strict=True):
        np.testing.assert_allclose(own[n] * np.ones(len(DESIGN)), column, rtol=1e-12)
        h = 1e-5 * max(abs(p[n]), 1e-2)
        low, high = (law.loss({**p, n: p[n] + s}, x) for s in (-h, h))
        np.testing.assert_allclose(own[n], (high - low) / (2 * h), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("name", LAWS)
def test_holding_changes_neither_losses_nor_gradients(name):
    law = curved(load_law(name))
    x, at = law.covariates(DESIGN), law.reference_point(DESIGN)
    p = truth_of(load_law(name).parameters) | dict.fromkeys(law.curvatures, 0.02)
    free = {n: pt.dscalar(n) for n in p}

    def found(xp):
        log_loss = xp.log(law.loss(free, x, at, xp))
        slopes = pytensor.grad(log_loss.sum(), list(free.values()))
        return pytensor.function([*free.values()], [log_loss, *slopes], mode="FAST_COMPILE")

    one, two = (found(xp)(*p.values()) for xp in (held, pt))
    for got, want in zip(one, two, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
    gradient = law.gradient(p, x, at)
    for n, slope in zip(p, one[1:], strict=True):
        assert slope == pytest.approx(
            (gradient[n] / law.loss(p, x, at)).sum(), rel=1e-10, abs=1e-10
        )


def test_rewrites_do_not_see_through_what_is_held():
    law = curved(load_law("form1"))
    x = {name: pt.vector(name) for name in law.covariates(DESIGN)}
    free, at = {n: pt.dscalar(n) for n in law.parameters}, law.reference_point(DESIGN)

    def divisions(xp):
        slopes = pytensor.grad(xp.log(law.loss(free, x, at, xp)).sum(), list(free.values()))
        graph = FunctionGraph(outputs=[rewrite_graph(pt.stack(slopes))], clone=False)
        rows = [node for node in graph.toposort() if node.outputs[0].ndim == 1]
        return sum(getattr(node.op, "scalar_op", None) == true_div for node in rows)

    assert divisions(held) <= 2 < len(free) / 2 < divisions(pt)


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
    assert load_law(str(path)).text == MINE
    assert load_law(law) is law


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("from3", "unknown law 'from3'; did you mean 'form3'.*dcpt, forgetting, form1"),
        ("absent.toml", "unknown law 'absent.toml'.*path of a TOML file"),
        (".", "unknown law"),
    ],
)
def test_unknown_laws(name, says):
    with pytest.raises(LawError, match=says):
        load_law(name)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("token_unit", "token_unt", "unknown key 'token_unt'; did you mean 'token_unit'.*Valid"),
        ('coefficient = "A"', 'coeficient = "A"', "'coeficient'"),
        ('coefficient = "A"', 'kind = "powr"\ncoefficient = "A"', "did you mean 'power'.*gated"),
        ('coefficient = "A"', 'kind = ["power"]\ncoefficient = "A"', "malformed"),
        ('coefficient = "B"', 'coefficient = "A"', "two terms share a coefficient"),
        ("{ params", "{ parms", "unknown covariate 'parms'; did you mean 'params'"),
        ('{ params = "alpha" }', "{}", "unknown prior 'alpha'"),
        ('{ params = "alpha" }', "{ params = 3 }", "malformed"),
        ('alpha = "Log', 'alhpa = "Log', "unknown prior 'alhpa'; did you mean 'alpha'.*slope_D"),
        ('alpha = "LogNormal(median=0.28, sigma=0.45)"', "", "no prior for 'alpha'"),
        ("LogNormal(median=0.28", "LogNrmal(median=0.28", "did you mean 'LogNormal'.*HalfNormal"),
        ('"LogNormal(median=0.28, sigma=0.45)"', "3", "cannot read the prior 3"),
        ("LogNormal(median=0.28, sigma=0.45)", "Normal(mu=0, sigma=1)", "reaches outside"),
        ("token_unit = 1.0", "token_unit = 0", "token_unit must be positive"),
        ("token_unit = 1.0", "token_unit = 'x'", "malformed"),
        ("token_unit", "ratio = 'mine'\ntoken_unit", "ratio is 'replay' or 'own', not 'mine'"),
        ("token_unit", "priors = 'x'\ntoken_unit", "not valid TOML"),
        ("token_unit", "= 3", "not valid TOML"),
        ("[priors]", "[bounds]\nzta = [0, 1]\n[priors]", "unknown parameter 'zta'.*alpha"),
        ("[priors]", "[bounds]\nalpha = [1, 0]\n[priors]", "not .lower, upper."),
        ("[priors]", "[bounds]\nalpha = 3\n[priors]", "malformed"),
    ],
)
def test_bad_law_files(tmp_path, old, new, says):
    assert old in CHINCHILLA
    path = tmp_path / "mine.toml"
    path.write_text(CHINCHILLA.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(LawError, match=says) as error:
        load_law(path)
    assert "\n" not in str(error.value)


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
