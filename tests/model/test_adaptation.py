"""The discrepancy of adaptation: a polynomial of the whole loss, a walk along D / N."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bayeslaw as bl
from bayeslaw import load_law
from bayeslaw.common.files import models_dir
from bayeslaw.laws.priors import NOISE
from bayeslaw.model.discrepancy import Adaptation
from bayeslaw.model.spec import make_spec
from bayeslaw.planning.deviations import PlannedRun
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
    (walk,) = law.walks
    steps = rng.standard_normal(len(walk.knots.positions))
    middle = {name: np.exp(np.log(DESIGN[name]).mean()) for name in ("params", "tokens", "ptpp")}
    n, d, p = (np.log(rows[name].to_numpy() / middle[name]) for name in middle)
    r = np.log((rows["replay"] + 0.01) / (DESIGN["replay"].mean() + 0.01)).to_numpy()
    log_r = np.log(rows["replay"] / DESIGN["replay"].mean()).to_numpy()
    barrier = np.log((rows["replay"] + 1e-5) / (DESIGN["replay"].mean() + 1e-5)).to_numpy()
    walked = 0.0
    for knot, step in zip(walk.knots.positions, steps, strict=True):
        up = np.copysign(1.0, knot) > 0
        hinge = np.maximum(d - n - knot, 0) if up else np.maximum(knot - (d - n), 0)
        walked = walked + 0.1 * v["walk_scale"] * np.sqrt(walk.knots.spacing) * step * hinge
    logs = {
        "A": -v["alpha"] * n,
        "B": -v["beta"] * d + v["nu"] * log_r,
        "C": -v["gamma"] * barrier,
        "F": -v["eta"] * p,
    }
    sizes = {
        "A": v["slope_N"] / v["alpha"],
        "B": v["slope_D"] / v["beta"],
        "C": v["slope_C"] / v["gamma"],
        "F": v["slope_F"] / v["eta"],
    }
    loss = v["L_ref"] + sum(sizes[c] * np.expm1(logs[c]) for c in sizes)
    walked = walked * sizes["B"] * np.exp(logs["B"]) / loss
    polynomial = (v["poly_NN"] * n**2 + v["poly_PP"] * p**2 + v["poly_rr"] * r**2) / 2
    polynomial += v["poly_NP"] * n * p + v["poly_ND"] * n * d + v["poly_PD"] * p * d
    polynomial += r * (v["poly_Nr"] * n + v["poly_Pr"] * p + v["poly_Dr"] * d)
    found = law.loss(law.amounts(v | {walk.steps: steps}, at), x, at)
    np.testing.assert_allclose(found, loss * np.exp(polynomial + walked), rtol=1e-12)


def test_laws_that_lack_a_covariate_have_no_coefficient_of_it():
    names = set(Adaptation().apply(load_law("dcpt")).discrepancy_parameters)
    assert names == {"poly_NN", "poly_ND", "poly_Nr", "poly_Dr", "poly_rr", "walk_scale"}


def test_its_scales_are_those_of_its_fields():
    own = Adaptation(scale=0.05, square=0.06, replay=0.07)
    priors = make_spec("form1", discrepancy=own).priors
    wanted = {"poly_NP": 0.05, "poly_NN": 0.06, "poly_PP": 0.06, "poly_rr": 0.07, "poly_Nr": 0.05}
    for name, sd in wanted.items():
        assert priors[name] == bl.Prior("Normal", mu=0, sigma=sd)


def test_a_prior_that_a_law_file_states_holds_beside_every_discrepancy(tmp_path):
    text = (models_dir() / "form1.toml").read_text()
    stated = {"tau_run": "LogNormal(median=0.05, sigma=0.2)", "tau_base": "HalfNormal(sigma=0.01)"}
    stated |= {"tau_size": str(NOISE["tau_size"]), "sigma": "HalfNormal(sigma=0.1)"}
    lines = (f'{name} = "{prior}"\n' for name, prior in stated.items())
    (tmp_path / "own.toml").write_text(text + "".join(lines))
    for discrepancy in ("adaptation", "curvature", "none"):
        priors = make_spec(tmp_path / "own.toml", discrepancy=discrepancy).priors
        assert {name: priors[name] for name in stated} == {
            name: bl.Prior.parse(prior) for name, prior in stated.items()
        }


def test_a_fitted_law_without_its_discrepancy_is_the_law(fitted):
    one, two = (
        make_spec(law, discrepancy="none", effects=["run"]) for law in (fitted.law, "form1")
    )
    assert one.identity == two.identity


def test_random_effects_have_its_priors():
    spec = make_spec("form1", discrepancy="adaptation", effects=["size", "base", "run"])
    assert spec.priors["tau_size"] == bl.Prior("LogNormal", median=0.006, sigma=0.3)
    assert spec.priors["tau_base"] == bl.Prior("LogNormal", median=0.005, sigma=0.6)
    assert spec.priors["tau_run"] == bl.Prior("LogNormal", median=0.004, sigma=0.6)
    plain = make_spec("form1", discrepancy="none", effects=["run"])
    assert plain.priors["tau_run"] != spec.priors["tau_run"]


def test_a_loss_curve_is_the_forecast(fitted):
    assert fitted.spec.discrepancy == Adaptation()
    rows = bl.grid(params=1.4e9, tokens=[1e9, 2e10, 1e12], replay=0.25, ptpp=80)
    curve = curve_of(fitted, PlannedRun(1.4e9, 80.0))
    for j, tokens in enumerate(rows["tokens"]):
        loss = curve.loss([0.25], np.log(tokens / 1.4e9))[0]
        np.testing.assert_allclose(loss, fitted.latent(rows)[:, j], rtol=1e-10)


def test_a_saved_fit_forecasts_the_same(fitted, tmp_path):
    fitted.save(tmp_path / "fit.nc")
    ahead = bl.grid(params=2e10, tokens=1e12, replay=0.1, ptpp=500)
    again = bl.load(tmp_path / "fit.nc").forecast(ahead, allow_unconverged=True)
    np.testing.assert_array_equal(again.draws, fitted.forecast(ahead, allow_unconverged=True).draws)


def test_without_replay_the_loss_stays_bounded():
    """The log of r + .01 is finite at r = 0, so the polynomial cannot change a loss manyfold."""
    rows = pd.DataFrame({"params": 1e9, "tokens": 1e10, "ptpp": 60, "replay": [0.0, 0.25]})
    x, at = LAW.covariates(rows), LAW.reference_point(DESIGN)
    assert (np.abs(x["mixed"] - at["mixed"]) < 3.5).all()
