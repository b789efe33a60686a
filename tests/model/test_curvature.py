"""Curvature: what it adds to the log loss, by hand and in PyTensor."""

import math

import numpy as np
import pytensor.tensor as pt
import pytest

from bayeslaw import fit, load, load_law
from bayeslaw.model.discrepancy import Curvature
from tests.support import DESIGN, LAWS, truth_of


def curved(law, value):
    """True parameters of the plain law, with every curvature at `value`."""
    return truth_of(load_law(law.name).parameters) | dict.fromkeys(
        law.discrepancy_parameters, value
    )


@pytest.mark.parametrize("name", LAWS)
def test_without_curvature_the_law_is_the_law(name):
    plain, with_curvature = load_law(name), Curvature().apply(load_law(name))
    x, at = plain.covariates(DESIGN), plain.reference_point(DESIGN)
    p = truth_of(plain.parameters)
    q = plain.to_reference(p, at)
    straight = with_curvature.to_reference(curved(with_curvature, 0.0), at)
    assert straight.items() >= q.items()
    np.testing.assert_allclose(
        with_curvature.loss(with_curvature.amounts(straight, at), x, at),
        plain.loss(p, x),
        rtol=1e-12,
    )


def test_curvature_by_hand():
    law = Curvature().apply(load_law("chinchilla"))
    p = {"E": 1.7, "A": 0.4, "alpha": 0.3, "B": 0.5, "beta": 0.2}  # sizes at the reference
    c = {"curve_A": 0.1, "curve_B": -0.2, "cross_BN": 0.05}
    at = {"params": math.log(1e9), "tokens": math.log(1e10)}
    n, d = math.log(8.0), math.log(0.25)
    x = {"params": at["params"] + n, "tokens": at["tokens"] + d}
    size, tokens = 0.4 * math.exp(-0.3 * n), 0.5 * math.exp(-0.2 * d)
    loss = 1.7 + size + tokens
    bent = size / loss * 0.05 * n * n + tokens / loss * (-0.1 * d * d + 0.05 * n * d)
    assert law.loss(p | c, x, at) == pytest.approx(loss * math.exp(bent), rel=1e-14)


def test_tilts_by_hand():
    law = Curvature().apply(load_law("form1"))
    x, at = law.covariates(DESIGN), law.reference_point(DESIGN)
    p = law.amounts(law.to_reference(curved(law, 0.0), at), at)
    tilts = {"tilt_Br": 0.4, "tilt_Cr": -0.3}
    loss, r = law.loss(p, x, at), DESIGN["replay"] - DESIGN["replay"].mean()
    amount = {n: p[n] * by for n, by in law.without_discrepancy.gradient(p, x, at).items()}
    expected = loss * np.exp((0.4 * amount["B"] - 0.3 * amount["C"]) / loss * r)
    np.testing.assert_allclose(law.loss(p | tilts, x, at), expected)
    assert [n for n in law.discrepancy_parameters if n.startswith("tilt")] == list(tilts)
    assert "curve_C" not in law.discrepancy_parameters  # log r is far away where there is no replay


def test_drift_by_hand():
    law = Curvature().apply(load_law("form1"))
    x, at = law.covariates(DESIGN), law.reference_point(DESIGN)
    straight = law.to_reference(curved(law, 0.0), at)
    drift = {"drift_PP": 0.02, "drift_NP": -0.01, "drift_NN": 0.03, "drift_NPP": 0.004}
    n, p = x["params"] - at["params"], x["ptpp"] - at["ptpp"]
    factor = np.exp(0.01 * p**2 - 0.01 * n * p + 0.015 * n**2 + 0.002 * n * p**2)
    found = law.loss(law.amounts(straight | drift, at), x, at)
    np.testing.assert_allclose(found, factor * law.loss(law.amounts(straight, at), x, at))
    assert law.without_discrepancy.parameters == load_law("form1").parameters
    without_stages = Curvature().apply(load_law("chinchilla"))
    assert not any(n.startswith("drift") for n in without_stages.parameters)


def test_a_drifting_law_has_the_derivatives_of_its_loss():
    law = Curvature().apply(load_law("form3"))
    x, at = law.covariates(DESIGN), law.reference_point(DESIGN)
    p = law.amounts(law.to_reference(curved(law, 0.03), at), at)
    step = 1e-6
    for name, exact in law.gradient(p, x, at).items():
        up, down = (law.loss(p | {name: p[name] + h}, x, at) for h in (step, -step))
        np.testing.assert_allclose(exact, (up - down) / (2 * step), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("name", ["form1", "form3"])
def test_curved_laws_are_the_same_in_pytensor(name):
    law = Curvature().apply(load_law(name))
    x, at = law.covariates(DESIGN), law.reference_point(DESIGN)
    q = law.to_reference(curved(law, 0.07), at)
    symbolic = law.loss(law.amounts(q, at, pt), x, at, pt).eval()
    np.testing.assert_allclose(symbolic, law.loss(law.amounts(q, at), x, at), rtol=1e-12)


def test_curved_posteriors_load_as_they_were_saved(small, tmp_path):
    posterior = fit("chinchilla", small, discrepancy="curvature", draws=300, chains=2)
    assert {"curve_A", "curve_B", "cross_BN"} <= set(posterior.draws.data_vars)
    posterior.save(tmp_path / "curved.nc")
    again = load(tmp_path / "curved.nc")
    assert again.spec.discrepancy == Curvature()
    np.testing.assert_array_equal(again.latent(small), posterior.latent(small))
