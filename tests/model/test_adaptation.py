"""The discrepancy of adaptation: curvature along N, P and r, walks along D."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bayeslaw as bl
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.model.adaptation import Adaptation
from bayeslaw.model.spec import make_spec
from bayeslaw.planning.fits import curve_of
from tests.support import DESIGN, truth_of

LAW = Adaptation().apply(load_law("form1"))


@pytest.fixture(scope="module")
def fitted():
    law = load_law("form1")
    table = bl.simulate(law, truth_of(law.parameters), DESIGN[::3], sigma=0.003, seed=1)
    return bl.fit(
        "form1", table, seed=0, draws=100, tune=200, chains=2, retry=False, discrepancy="adaptation"
    )


@settings(deadline=None)
@given(seed=st.integers(0, 10**6))
def test_loss_is_the_formula_by_hand(seed):
    rng = np.random.default_rng(seed)
    rows = DESIGN.sample(10, random_state=seed)
    x, at = LAW.covariates(rows), LAW.reference_point(DESIGN)
    law = LAW.over(x, at)
    v = {name: rng.uniform(0.05, 0.3) for name in law.coordinates} | {"L_ref": 9.0}
    steps = {w.steps: rng.standard_normal(len(w.knots.positions)) for w in law.walks}
    n, d, p = (x[name] - at[name] for name in ("params", "tokens", "ptpp"))
    r, log_r = x["share"] - at["share"], x["replay"] - at["replay"]
    barrier = x["barrier"] - at["barrier"]

    def walked(name):
        (walk,) = (w for w in law.walks if w.steps == name)
        knots = walk.knots.positions
        beyond = np.copysign(1.0, knots)[:, None] * d - abs(knots)[:, None]
        scale = 0.1 * v["walk_scale"] * np.sqrt(walk.knots.spacing)
        return scale * steps[name] @ np.maximum(beyond, 0)

    tilts = {
        c: v[f"tilt_{c}r"] * r
        + r * (v[f"tilt_{c}rN"] * n + v[f"tilt_{c}rP"] * p + (v["tilt_BrD"] * d if c == "B" else 0))
        for c in "BC"
    }
    logs = {
        "A": -v["alpha"] * n + v["curve_A"] * n**2 / 2 + n * walked("walk_AD"),
        "B": -v["beta"] * d + v["nu"] * log_r
        + d * (v["cross_BN"] * n + v["cross_BP"] * p) + walked("walk_BD") + tilts["B"],
        "C": -v["gamma"] * barrier + tilts["C"],
        "F": -v["eta"] * p + v["curve_F"] * p**2 / 2 + v["cross_FN"] * n * p + v["phi_F"] * n,
    }  # fmt: skip
    sizes = {
        "A": v["slope_N"] / v["alpha"], "B": v["slope_D"] / v["beta"],
        "C": v["slope_C"] / v["gamma"], "F": v["slope_F"] / v["eta"],
    }  # fmt: skip
    loss = v["L_ref"] + sum(sizes[c] * np.expm1(logs[c]) for c in sizes)
    drift = (
        (v["drift_NN"] * n**2 + v["drift_PP"] * p**2) / 2 + v["drift_NP"] * n * p
        + (v["drift_NNN"] * n**3 + v["drift_PPP"] * p**3) / 6
        + (v["drift_NNP"] * n**2 * p + v["drift_NPP"] * n * p**2) / 2
    )  # fmt: skip
    found = law.loss(law.sizes(v | steps, at), x, at)
    np.testing.assert_allclose(found, loss * np.exp(drift), rtol=1e-12)


def test_terms_that_lack_a_covariate_are_not_changed_along_it():
    dcpt = Adaptation().apply(load_law("dcpt")).discrepancy_parameters
    assert not [name for name in dcpt if "P" in name or name.startswith(("drift", "phi"))]
    form1n = Adaptation().apply(load_law("form1n")).discrepancy_parameters
    assert "phi_F" in LAW.discrepancy_parameters  # the law's own phi is enough
    assert "phi_F" not in form1n


def test_its_scales_are_those_of_its_fields():
    wide = make_spec("form1", discrepancy=Adaptation(crossed=0.7, phi=0.3)).priors
    assert wide["cross_BN"] == bl.Prior("Normal", mu=0, sigma=0.7)
    assert wide["phi_F"] == bl.Prior("Normal", mu=0, sigma=0.3)


def test_effects_of_size_have_its_prior():
    spec = make_spec("form1", discrepancy="adaptation", effects=["size"])
    assert spec.priors["tau_size"] == bl.Prior("LogNormal", median=0.006, sigma=0.5)
    plain = make_spec("form1", discrepancy="none", effects=["size"])
    assert plain.priors["tau_size"] != spec.priors["tau_size"]


def test_a_loss_curve_is_the_forecast(fitted):
    assert fitted.spec.discrepancy == Adaptation()
    rows = bl.grid(params=1.4e9, tokens=[1e9, 2e10, 1e12], replay=0.25, ptpp=80)
    curve = curve_of(fitted, 1.4e9, 80.0)
    for j, tokens in enumerate(rows["tokens"]):
        loss = curve.loss([0.25], np.log(tokens / 1.4e9))[0]
        np.testing.assert_allclose(loss, fitted.latent(rows)[:, j], rtol=1e-10)


def test_a_saved_fit_forecasts_the_same(fitted, tmp_path):
    fitted.save(tmp_path / "fit.nc")
    ahead = bl.grid(params=2e10, tokens=1e12, replay=0.1, ptpp=500)
    again = bl.load(tmp_path / "fit.nc").forecast(ahead, allow_unconverged=True)
    np.testing.assert_array_equal(again.draws, fitted.forecast(ahead, allow_unconverged=True).draws)


def test_without_walks_the_terms_have_curvature_along_tokens():
    still = Adaptation(walk=0.0, walk_crossed=0.0).apply(load_law("form1"))
    assert not still.walks
    assert "curve_B" in still.discrepancy_parameters
    assert "curve_B" not in LAW.discrepancy_parameters
