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

from bayeslaw import TableError, fit_huber, from_frame, grid, load_law, simulate
from bayeslaw.laws.law import CLIP
from bayeslaw.laws.lawfiles import models_dir, parse_law
from bayeslaw.model.discrepancy import Curvature
from tests.support import DESIGN, GOOD, LAWS, TRUTH, truth_of

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
    with pytest.raises(TableError, match=r"'params' is 1e[+]08 in all 1 rows"):
        fit_huber("form3", table)


@pytest.mark.parametrize("column", ["params", "tokens", "replay", "ptpp"])
def test_a_law_needs_its_covariates_to_vary(column):
    table = from_frame(GOOD.assign(**{column: GOOD[column].iloc[0]}))
    with pytest.raises(TableError, match=f"column '{column}' is .* in all 4 rows.*form3"):
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
