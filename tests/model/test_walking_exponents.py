"""Walking exponents: random walks along N and D, and coupled terms."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bayeslaw as bl
from bayeslaw import LawError, load_law
from bayeslaw.laws.law import couple
from bayeslaw.laws.terms import ORIGIN
from bayeslaw.model.discrepancy import WalkingExponents
from bayeslaw.model.spec import make_spec
from bayeslaw.planning.deviations import PlannedRun
from bayeslaw.planning.fits import curve_of
from tests.support import CHINCHILLA, LAWS

ROWS = bl.grid(params=[1e8, 3e8, 1e9, 3e9], tokens=[1e9, 3e9, 1e10, 3e10])
LAW = WalkingExponents().apply(load_law("chinchilla"))
AT = LAW.reference_point(ROWS)


@pytest.fixture(scope="module")
def fitted():
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
def test_loss_is_the_formula_by_hand(seed):
    x = LAW.covariates(ROWS)
    law = LAW.over(x, AT)
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


@settings(deadline=None)
@given(seed=st.integers(0, 10**6))
def test_coordinates_convert_both_ways(seed):
    rng = np.random.default_rng(seed)
    q = {name: rng.uniform(0.2, 0.6) for name in LAW.coordinates} | {"L_ref": 6.0}
    again = LAW.to_reference(LAW.to_paper(q, AT), AT)
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
        p = LAW.amounts(q | {"kappa": kappa, "walk_scale": 0.7, "cross_BN": 0.0}, AT)
        losses = [LAW.loss(p, {**AT, "params": AT["params"] + s}, AT) for s in (-step, step)]
        assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(0.12, rel=1e-6)


def test_shares_of_coupled_terms_are_derivatives_by_their_logs():
    x, q = LAW.covariates(ROWS), dict.fromkeys(LAW.coordinates, 0.4) | {"L_ref": 6.0}
    p = LAW.amounts(q, AT)
    _, shares = LAW.log(p, x, AT, np)
    by = LAW.without_discrepancy.gradient(p, x, AT)
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
    assert LAW.without_discrepancy.identity == load_law("chinchilla").identity


def test_bands_widen_beyond_the_rows(fitted):
    ahead = bl.grid(params=3e9, tokens=[1e10, 1e11, 1e12])
    bands = fitted.forecast(ahead, allow_unconverged=True).bands((0.9,))
    width = np.log(bands["upper"] / bands["lower"]).to_numpy()
    assert width[0] < width[1] < width[2]


def test_steps_beyond_the_rows_are_the_same_for_all_rows(fitted):
    far = bl.grid(params=3e9, tokens=[1e11, 1e13])
    alone = bl.grid(params=3e9, tokens=[1e11])
    together = fitted.latent(far)[:, 0]
    np.testing.assert_allclose(fitted.latent(alone)[:, 0], together, rtol=1e-14)
    # Their standard deviation is that of the prior: nothing was learned about them.
    law, q = fitted.extended(far)
    walk = next(walk for walk in law.walks if walk.steps == "walk_BD")
    new = [j for j, knot in enumerate(walk.knots.positions) if knot > 5]
    assert new
    assert q["walk_BD"][:, 0, new].std() == pytest.approx(1, abs=0.05)


def test_a_loss_curve_is_the_forecast(fitted):
    rows = bl.grid(params=1e9, tokens=[1e9, 2e10, 1e12])
    curve = curve_of(fitted, PlannedRun(1e9, 20.0))
    losses = [curve.loss([0.5], np.log(d / 1e9))[0] for d in rows["tokens"]]
    np.testing.assert_allclose(np.transpose(losses), fitted.latent(rows), rtol=1e-10)
    some = curve.take(np.array([3, 5])).loss([0.5], 1.0)
    np.testing.assert_array_equal(some, curve.loss([0.5], 1.0)[:, [3, 5]])


def test_prior_predictive_has_the_walks(fitted):
    losses = fitted.to_datatree(prior=400)["prior_predictive"]["log_loss"]
    assert np.isfinite(losses).all()
    # Without walks the loss falls with D at N fixed in every draw.
    first = losses.isel(row=slice(0, 4)).values
    assert (np.diff(first, axis=-1) > 0).any()


def test_it_is_saved_with_its_knots(fitted, tmp_path):
    fitted.save(tmp_path / "fit.nc")
    again = bl.load(tmp_path / "fit.nc")
    ahead = bl.grid(params=[1e9, 3e10], tokens=[1e11, 1e12])
    one, two = (f.forecast(ahead, allow_unconverged=True).draws for f in (fitted, again))
    assert one.equals(two)
    assert again.spec.discrepancy == WalkingExponents()
