"""Terms: the gate of the exponent, slopes, gradients."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from bayeslaw import grid, load_law
from tests.support import DESIGN, LAWS, truth_of


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
