"""Curvature, and the coordinates in which the sampler sees a gate."""

import math

import numpy as np
import pytensor.tensor as pt
import pytest

from bayeslaw.inference.fitting import fit
from bayeslaw.inference.storage import load
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.model.coordinates import modifier_coordinates
from bayeslaw.model.curvature import Curvature
from bayeslaw.model.transforms import CHANGE_SIZE, NET_SLOPE
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
        with_curvature.loss(with_curvature.sizes(straight, at), x, at), plain.loss(p, x), rtol=1e-12
    )


def test_curvature_by_hand():
    law = Curvature().apply(load_law("chinchilla"))
    p = {"E": 1.7, "A": 0.4, "alpha": 0.3, "B": 0.5, "beta": 0.2}  # sizes at the reference
    c = {"curve_A": 0.1, "curve_B": -0.2, "cross_BN": 0.05}
    at = {"params": math.log(1e9), "tokens": math.log(1e10)}
    n, d = math.log(8.0), math.log(0.25)
    x = {"params": at["params"] + n, "tokens": at["tokens"] + d}
    size = 0.4 * math.exp(-0.3 * n + 0.05 * n * n)
    tokens = 0.5 * math.exp(-0.2 * d - 0.1 * d * d + 0.05 * n * d)
    assert law.loss(p | c, x, at) == pytest.approx(1.7 + size + tokens, rel=1e-14)


def test_tilts_by_hand():
    law = Curvature().apply(load_law("form1"))
    x, at = law.covariates(DESIGN), law.reference_point(DESIGN)
    p = law.sizes(law.to_reference(curved(law, 0.0), at), at)
    tilted = law.sensitivities(p | {"tilt_Br": 0.4, "tilt_Cr": -0.3}, x, at)
    plain, r = law.sensitivities(p, x, at), DESIGN["replay"] - DESIGN["replay"].mean()
    np.testing.assert_allclose(tilted["B"], plain["B"] * np.exp(0.4 * r))
    np.testing.assert_allclose(tilted["C"], plain["C"] * np.exp(-0.3 * r))
    np.testing.assert_array_equal(tilted["A"], plain["A"])
    every = [each for term in law.terms for each in modifier_coordinates(term.modifier, term)]
    changes = [each.name for each in every if each.through in (NET_SLOPE, CHANGE_SIZE)]
    assert changes == ["tilt_Br", "tilt_Cr"]
    assert "curve_C" not in law.discrepancy_parameters  # log r is far away where there is no replay


def test_drift_by_hand():
    law = Curvature().apply(load_law("form1"))
    x, at = law.covariates(DESIGN), law.reference_point(DESIGN)
    straight = law.to_reference(curved(law, 0.0), at)
    drift = {"drift_PP": 0.02, "drift_NP": -0.01, "drift_NN": 0.03, "drift_NPP": 0.004}
    n, p = x["params"] - at["params"], x["ptpp"] - at["ptpp"]
    factor = np.exp(0.01 * p**2 - 0.01 * n * p + 0.015 * n**2 + 0.002 * n * p**2)
    found = law.loss(law.sizes(straight | drift, at), x, at)
    np.testing.assert_allclose(found, factor * law.loss(law.sizes(straight, at), x, at))
    assert list(law.modifier.parameters)[:3] == ["drift_NN", "drift_NP", "drift_PP"]
    assert law.plain.parameters == load_law("form1").parameters
    assert (
        Curvature().apply(load_law("chinchilla")).modifier is None
    )  # nor has a law without stages


def test_a_drifting_law_has_the_derivatives_of_its_loss():
    law = Curvature().apply(load_law("form3"))
    x, at = law.covariates(DESIGN), law.reference_point(DESIGN)
    p = law.sizes(law.to_reference(curved(law, 0.03), at), at)
    step = 1e-6
    for name, exact in law.gradient(p, x, at).items():
        up, down = (law.loss(p | {name: p[name] + h}, x, at) for h in (step, -step))
        np.testing.assert_allclose(exact, (up - down) / (2 * step), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("name", ["form1", "form3"])
def test_curved_laws_are_the_same_in_pytensor(name):
    law = Curvature().apply(load_law(name))
    x, at = law.covariates(DESIGN), law.reference_point(DESIGN)
    q = law.to_reference(curved(law, 0.07), at)
    symbolic = law.loss(law.sizes(q, at, pt), x, at, pt).eval()
    np.testing.assert_allclose(symbolic, law.loss(law.sizes(q, at), x, at), rtol=1e-12)


def test_curved_posteriors_load_as_they_were_saved(small, tmp_path):
    posterior = fit("chinchilla", small, discrepancy="curvature", draws=300, chains=2)
    assert {"curve_A", "curve_B", "cross_BN"} <= set(posterior.draws.data_vars)
    posterior.save(tmp_path / "curved.nc")
    again = load(tmp_path / "curved.nc")
    assert again.spec.discrepancy == Curvature()
    np.testing.assert_array_equal(again.latent(small), posterior.latent(small))
