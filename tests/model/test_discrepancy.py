"""Discrepancies: curvature, walking exponents, and the polynomial and walk of adaptation."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bayeslaw as bl
from bayeslaw import LawError, load_law
from tests.inside import (
    NOISE,
    ORIGIN,
    Adaptation,
    Curvature,
    PlannedRun,
    Trend,
    WalkingExponents,
    couple,
    curve_of,
    make_spec,
    models_dir,
)
from tests.support import CHINCHILLA, DESIGN, LAWS, truth_of


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


ADAPTED = Adaptation().apply(load_law("form1"))


@pytest.fixture(scope="module")
def adapted():
    law = load_law("form1")
    table = bl.simulate(law, truth_of(law.parameters), DESIGN[::3], sigma=0.003, seed=1)
    return bl.fit(
        "form1", table, seed=0, draws=100, tune=200, chains=2, retry=False, discrepancy="adaptation"
    )


@settings(deadline=None)
@given(seed=st.integers(0, 10**6))
def test_adaptation_by_hand(seed):
    rng = np.random.default_rng(seed)
    rows = DESIGN.sample(10, random_state=seed)
    x, at = ADAPTED.covariates(rows), ADAPTED.reference_point(DESIGN)
    law = ADAPTED.over(x, at)
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


def test_a_fitted_law_without_its_discrepancy_is_the_law(adapted):
    one, two = (
        make_spec(law, discrepancy="none", effects=["run"]) for law in (adapted.law, "form1")
    )
    assert one.identity == two.identity


def test_random_effects_have_its_priors():
    spec = make_spec("form1", discrepancy="adaptation", effects=["size", "base", "run"])
    assert spec.priors["tau_size"] == bl.Prior("LogNormal", median=0.006, sigma=0.3)
    assert spec.priors["tau_base"] == bl.Prior("LogNormal", median=0.005, sigma=0.6)
    assert spec.priors["tau_run"] == bl.Prior("LogNormal", median=0.004, sigma=0.6)
    plain = make_spec("form1", discrepancy="none", effects=["run"])
    assert plain.priors["tau_run"] != spec.priors["tau_run"]


def test_without_replay_the_loss_stays_bounded():
    """The log of r + .01 is finite at r = 0, so the polynomial cannot change a loss manyfold."""
    rows = pd.DataFrame({"params": 1e9, "tokens": 1e10, "ptpp": 60, "replay": [0.0, 0.25]})
    x, at = ADAPTED.covariates(rows), ADAPTED.reference_point(DESIGN)
    assert (np.abs(x["mixed"] - at["mixed"]) < 3.5).all()


ROWS = bl.grid(params=[1e8, 3e8, 1e9, 3e9], tokens=[1e9, 3e9, 1e10, 3e10])
WALKING = WalkingExponents().apply(load_law("chinchilla"))
AT = WALKING.reference_point(ROWS)


@pytest.fixture(scope="module")
def walked():
    table = bl.simulate("chinchilla", CHINCHILLA, ROWS, sigma=0.003, seed=1)
    return bl.fit("chinchilla", table, discrepancy="walk", seed=0, draws=300, retry=False)


def drawn(law, seed, count=3):
    """Random reference coordinates and steps, as a posterior holds them."""
    rng = np.random.default_rng(seed)
    q = {name: rng.uniform(0.2, 0.6, (count, 1)) for name in law.coordinates}
    steps = {w.steps: rng.standard_normal((count, 1, len(w.knots.positions))) for w in law.walks}
    return q | {"L_ref": np.full((count, 1), 6.0)} | steps


@settings(deadline=None)
@given(seed=st.integers(0, 10**6))
def test_walks_by_hand(seed):
    x = WALKING.covariates(ROWS)
    law = WALKING.over(x, AT)
    q = drawn(law, seed, 1)
    v = {name: value.ravel() for name, value in q.items()}
    n, d = x["params"] - AT["params"], x["tokens"] - AT["tokens"]
    knots = {walk.steps: walk.knots.positions for walk in law.walks}
    roots = {walk.steps: np.sqrt(walk.knots.spacing) for walk in law.walks}

    def hinges(name, u):
        side = np.copysign(1.0, knots[name])
        return roots[name] * v[name] @ np.maximum(side[:, None] * u - abs(knots[name])[:, None], 0)

    sd = v["walk_scale"] * 0.1
    walk_a = sd * (hinges("walk_AN", n) + hinges("walk_AD", d) * n / 2)
    walk_b = sd * (hinges("walk_BD", d) + hinges("walk_BN", n) * d / 2) + v["cross_BN"] * n * d
    size_a, size_b = v["slope_N"] / v["alpha"], v["slope_D"] / v["beta"]
    total, kappa = size_a + size_b, v["kappa"]
    of_a = size_a / total * np.exp(-v["alpha"] * n / kappa)
    of_b = size_b / total * np.exp(-v["beta"] * d / kappa)
    ratio = of_a + of_b
    loss = v["L_ref"] - total + total * ratio**kappa
    share = total * ratio**kappa / loss
    loss *= np.exp(share * (of_a * walk_a + of_b * walk_b) / ratio)
    np.testing.assert_allclose(law.loss(law.amounts(q, AT), x, AT)[0], loss, rtol=1e-12)


@pytest.mark.parametrize("correlation", [0.5, 2.0])
def test_steps_of_a_trend_are_an_autoregression(correlation):
    """On each side of the reference point, with the losses of a walk with such steps."""
    x = WALKING.covariates(ROWS)
    law = Trend(correlation=correlation).apply(load_law("chinchilla")).over(x, AT)
    q = drawn(law, 0)
    recursive = dict(q)
    for walk in law.walks:
        rho = np.exp(-walk.knots.spacing / correlation)
        steps = q[walk.steps].copy()
        for first, count in ((0, walk.knots.above), (walk.knots.above, walk.knots.below)):
            for j in range(first + 1, first + count):
                steps[..., j] = rho * steps[..., j - 1] + np.sqrt(1 - rho**2) * steps[..., j]
        recursive[walk.steps] = steps
    plain = WALKING.over(x, AT)
    np.testing.assert_allclose(
        law.loss(law.amounts(q, AT), x, AT), plain.loss(plain.amounts(recursive, AT), x, AT),
        rtol=1e-12,
    )  # fmt: skip


@settings(deadline=None)
@given(seed=st.integers(0, 10**6))
def test_coordinates_convert_both_ways(seed):
    rng = np.random.default_rng(seed)
    q = {name: rng.uniform(0.2, 0.6) for name in WALKING.coordinates} | {"L_ref": 6.0}
    again = WALKING.to_reference(WALKING.to_paper(q, AT), AT)
    assert {n: float(v) for n, v in again.items()} == pytest.approx(q, rel=1e-9)


@settings(deadline=None)
@given(seed=st.integers(0, 10**6))
def test_the_loss_of_a_coupled_law_is_the_same_in_papers_coordinates(seed):
    law = replace(load_law("chinchilla"), coupled=("A", "B"))
    rng, x = np.random.default_rng(seed), law.covariates(ROWS)
    q = {name: rng.uniform(0.2, 0.6) for name in law.coordinates} | {"L_ref": 6.0}
    there, here = law.loss(law.amounts(q, AT), x, AT), law.loss(law.to_paper(q, AT), x, ORIGIN)
    np.testing.assert_allclose(there, here, rtol=1e-10)


def test_kappa_of_one_is_a_sum():
    assert couple({"A": np.array(2.0), "B": np.array(3.0)}, 1.0, np)[0] == pytest.approx(5.0)
    assert couple({"A": np.array(2.0), "B": np.array(3.0)}, 0.5, np)[0] == pytest.approx(
        np.sqrt(13)
    )


def test_local_slopes_do_not_depend_on_kappa():
    step = 1e-6
    for kappa in (0.5, 1.0, 2.0):
        q = {"L_ref": 3.0, "slope_N": 0.12, "alpha": 0.3, "slope_D": 0.1, "beta": 0.25}
        p = WALKING.amounts(q | {"kappa": kappa, "walk_scale": 0.7, "cross_BN": 0.0}, AT)
        losses = [WALKING.loss(p, {**AT, "params": AT["params"] + s}, AT) for s in (-step, step)]
        assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(0.12, rel=1e-6)


def test_shares_of_coupled_terms_are_derivatives_by_their_logs():
    x, q = WALKING.covariates(ROWS), dict.fromkeys(WALKING.coordinates, 0.4) | {"L_ref": 6.0}
    p = WALKING.amounts(q, AT)
    _, shares = WALKING.log(p, x, AT, np)
    by = replace(WALKING, deviations=()).gradient(p, x, AT)
    base = p["E"] + sum(p[name] * by[name] for name in ("A", "B"))
    for name in ("A", "B"):
        np.testing.assert_allclose(shares[name], p[name] * by[name] / base, rtol=1e-12)


def test_the_default_is_by_the_kind_of_law():
    assert isinstance(make_spec("chinchilla", discrepancy="auto").discrepancy, WalkingExponents)
    kinds = {law: make_spec(law, discrepancy="auto").discrepancy.kind for law in LAWS}
    assert kinds == dict.fromkeys(LAWS, "adaptation") | {"chinchilla": "walk", "skaling": "walk"}
    assert make_spec("forgetting", discrepancy="auto").discrepancy.kind == "curvature"
    with pytest.raises(LawError, match="walking exponents are for a power of N and one of D"):
        make_spec("form1", discrepancy="walk")


def test_the_law_without_it_is_the_law():
    assert WALKING.without_discrepancy.identity == load_law("chinchilla").identity


def test_bands_widen_beyond_the_rows(walked):
    ahead = bl.grid(params=3e9, tokens=[1e10, 1e11, 1e12])
    bands = walked.forecast(ahead, allow_unconverged=True).bands((0.9,))
    width = np.log(bands["upper"] / bands["lower"]).to_numpy()
    assert width[0] < width[1] < width[2]


def test_steps_beyond_the_rows_are_the_same_for_all_rows(walked):
    far = bl.grid(params=3e9, tokens=[1e11, 1e13])
    alone = bl.grid(params=3e9, tokens=[1e11])
    together = walked.latent(far)[:, 0]
    np.testing.assert_allclose(walked.latent(alone)[:, 0], together, rtol=1e-14)
    # Their standard deviation is that of the prior: nothing was learned about them.
    law, q = walked.extended(far)
    walk = next(walk for walk in law.walks if walk.steps == "walk_BD")
    new = [j for j, knot in enumerate(walk.knots.positions) if knot > 5]
    assert new
    assert q["walk_BD"][:, 0, new].std() == pytest.approx(1, abs=0.05)


def test_prior_predictive_has_the_walks(walked):
    losses = walked.to_datatree(prior=400)["prior_predictive"]["log_loss"]
    assert np.isfinite(losses).all()
    # Without walks the loss falls with D at N fixed in every draw.
    first = losses.isel(row=slice(0, 4)).values
    assert (np.diff(first, axis=-1) > 0).any()


@pytest.mark.parametrize("which", ["adapted", "walked"])
def test_a_loss_curve_is_the_forecast(which, request):
    fit = request.getfixturevalue(which)
    rows = bl.grid(params=1.4e9, tokens=[1e9, 2e10, 1e12], replay=0.25, ptpp=80)
    curve = curve_of(fit, PlannedRun(1.4e9, 80.0))
    losses = [curve.loss([np.log(d / 1.4e9)], [0.25])[0, 0] for d in rows["tokens"]]
    np.testing.assert_allclose(np.transpose(losses), fit.latent(rows), rtol=1e-10)
    some = curve.take(np.array([3, 5])).loss([1.0], [0.25])[0]
    np.testing.assert_array_equal(some, curve.loss([1.0], [0.25])[0][:, [3, 5]])


@pytest.mark.parametrize("which", ["adapted", "walked"])
def test_a_saved_fit_forecasts_the_same(which, request, tmp_path):
    fit = request.getfixturevalue(which)
    fit.save(tmp_path / "fit.nc")
    again = bl.load(tmp_path / "fit.nc")
    ahead = bl.grid(params=[1e9, 3e10], tokens=[1e11, 1e12], replay=0.1, ptpp=500)
    one, two = (f.forecast(ahead, allow_unconverged=True).draws for f in (fit, again))
    assert one.equals(two)
    assert again.spec.discrepancy == {"adapted": Adaptation(), "walked": WalkingExponents()}[which]
