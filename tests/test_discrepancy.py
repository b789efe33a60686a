"""Discrepancies: curvature, walking exponents, and the polynomial of adaptation."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bayeslaw as bl
from bayeslaw import LawError, Prior, load_law
from bayeslaw.common.files import models_dir
from bayeslaw.design.design import Design
from bayeslaw.inference.convergence import Convergence
from bayeslaw.inference.settings import make_settings
from bayeslaw.inference.specification import specify
from bayeslaw.laws.forms import with_knots
from bayeslaw.laws.priors import NOISE
from bayeslaw.model import prior
from bayeslaw.model.discrepancy import Adaptation, Curvature, WalkingExponents
from bayeslaw.model.spec import make_spec
from bayeslaw.model.training import make_data
from tests.make_data import short
from tests.support import DESIGN, LAWS, saved, small, stages, truth_of


def curved(law, value):
    """True parameters of the plain law, with every curvature at `value`."""
    plain = truth_of(load_law(law.name).parameters)
    return plain | dict.fromkeys(law.discrepancy_parameters, value)


def test_curvature_by_hand():
    law = Curvature().apply(load_law("chinchilla"))
    p = {
        "E": 1.7,
        "A": 0.4,
        "alpha": 0.3,
        "B": 0.5,
        "beta": 0.2,
    }  # sizes at the reference
    c = {"curve_A": 0.1, "curve_B": -0.2, "cross_BN": 0.05}
    at = {"params": math.log(1e9), "tokens": math.log(1e10)}
    n, d = math.log(8.0), math.log(0.25)
    x = {"params": at["params"] + n, "tokens": at["tokens"] + d}
    size, tokens = 0.4 * math.exp(-0.3 * n), 0.5 * math.exp(-0.2 * d)
    loss = 1.7 + size + tokens
    bent = size / loss * 0.05 * n * n + tokens / loss * (-0.1 * d * d + 0.05 * n * d)
    assert law.loss(p | c, x, at) == pytest.approx(loss * math.exp(bent), rel=1e-14)


@pytest.mark.parametrize(("epochs", "crossed"), [(4.0, 2), (16.0, 0), ([1.0, 16.0], 0)])
def test_exponents_walk_along_the_other_covariate_unless_data_repeat_often(
    epochs, crossed
):
    frame = small().frame
    epochs = np.resize(epochs, len(frame))
    table = bl.from_frame(frame.assign(unique_tokens=frame["tokens"] / epochs))
    for discrepancy in ("auto", "walk"):
        spec = specify(
            "chinchilla", table, make_settings({"discrepancy": discrepancy}, 0)
        )
        assert sum(bool(walk.times) for walk in spec.law.walks) == crossed
    asked = make_settings({"discrepancy": WalkingExponents()}, 0)
    assert (
        sum(bool(walk.times) for walk in specify("chinchilla", table, asked).law.walks)
        == 2
    )


def test_tilts_and_drift_by_hand():
    law = Curvature().apply(load_law("form1"))
    x, at = Design(law, DESIGN).x, Design(law, DESIGN).at
    straight = law.to_reference(curved(law, 0.0), at)
    p = law.amounts(straight, at)
    plain = law.loss(p, x, at)
    tilts, r = (
        {"tilt_Br": 0.4, "tilt_Cr": -0.3},
        DESIGN["replay"] - DESIGN["replay"].mean(),
    )
    amount = {
        n: p[n] * by for n, by in law.without_discrepancy.gradient(p, x, at).items()
    }
    tilted = plain * np.exp((0.4 * amount["B"] - 0.3 * amount["C"]) / plain * r)
    np.testing.assert_allclose(law.loss(p | tilts, x, at), tilted)
    drift = {"drift_PP": 0.02, "drift_NP": -0.01, "drift_NN": 0.03, "drift_NPP": 0.004}
    n, P = x["params"] - at["params"], x["ptpp"] - at["ptpp"]
    factor = np.exp(0.01 * P**2 - 0.01 * n * P + 0.015 * n**2 + 0.002 * n * P**2)
    np.testing.assert_allclose(
        law.loss(law.amounts(straight | drift, at), x, at), factor * plain, rtol=1e-12
    )
    names = law.discrepancy_parameters
    assert [n for n in names if n.startswith("tilt")] == list(tilts)
    assert "curve_C" not in names  # log r is far away where there is no replay
    without_stages = Curvature().apply(load_law("chinchilla")).discrepancy_parameters
    assert not any(n.startswith("drift") for n in without_stages)


ADAPTED = Adaptation().apply(load_law("form1"))


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10**6))
def test_adaptation_by_hand(seed):
    rng, rows = np.random.default_rng(seed), DESIGN.sample(10, random_state=seed)
    x, at = Design(ADAPTED, rows).x, Design(ADAPTED, DESIGN).at
    law = with_knots(ADAPTED, x, at)
    v = {name: rng.uniform(0.05, 0.3) for name in law.coordinates} | {"L_ref": 9.0}
    steps = {w.steps: rng.standard_normal(len(w.knots.positions)) for w in law.walks}
    middle = {
        name: np.exp(np.log(DESIGN[name]).mean())
        for name in ("params", "tokens", "ptpp")
    }
    n, d, p = (np.log(rows[name].to_numpy() / middle[name]) for name in middle)
    replay, mean = rows["replay"].to_numpy(), DESIGN["replay"].mean()
    log_r, r, barrier = (
        np.log((replay + more) / (mean + more)) for more in (0, 0.01, 1e-5)
    )
    rest = np.log((1.01 - replay) / (1.01 - mean))
    walked = dict.fromkeys(steps, 0.0)
    for walk in law.walks:
        u = {"walk_B": d - n, "walk_mixed": r, "walk_rest": rest}[walk.steps]
        sd = {"walk_B": 0.1, "walk_mixed": 0.015, "walk_rest": 0.005}[walk.steps] * v[
            "walk_scale"
        ]
        for knot, step in zip(walk.knots.positions, steps[walk.steps], strict=True):
            side = np.copysign(1.0, knot)
            hinge = np.maximum(side * (u - knot), 0)
            walked[walk.steps] += sd * np.sqrt(walk.knots.spacing) * step * hinge
    logs = {"A": -v["alpha"] * n, "B": -v["beta"] * d + v["nu"] * log_r}
    logs |= {"C": -v["gamma"] * barrier, "F": -v["eta"] * p}
    sizes = {"A": v["slope_N"] / v["alpha"], "B": v["slope_D"] / v["beta"]}
    sizes |= {"C": v["slope_C"] / v["gamma"], "F": v["slope_F"] / v["eta"]}
    loss = v["L_ref"] + sum(sizes[c] * np.expm1(logs[c]) for c in sizes)
    walked["walk_B"] *= sizes["B"] * np.exp(logs["B"]) / loss
    polynomial = (v["poly_NN"] * n**2 + v["poly_PP"] * p**2 + v["poly_rr"] * r**2) / 2
    polynomial += v["poly_NP"] * n * p + v["poly_ND"] * n * d + v["poly_PD"] * p * d
    polynomial += r * (v["poly_Nr"] * n + v["poly_Pr"] * p + v["poly_Dr"] * d)
    found = law.loss(law.amounts(v | steps, at), x, at)
    wanted = loss * np.exp(polynomial + sum(walked.values()))
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_adaptation_has_a_coefficient_of_what_the_law_knows_and_priors_of_its_fields():
    names = set(Adaptation().apply(load_law("dcpt")).discrepancy_parameters)
    assert names == {
        "poly_NN",
        "poly_ND",
        "poly_Nr",
        "poly_Dr",
        "poly_rr",
        "walk_scale",
    }
    own = Adaptation(scale=0.05, square=0.06, share=0.07)
    priors = make_spec("form1", discrepancy=own).priors
    wanted = {
        "poly_NP": 0.05,
        "poly_NN": 0.06,
        "poly_PP": 0.06,
        "poly_rr": 0.07,
        "poly_Nr": 0.05,
    }
    assert {name: priors[name] for name in wanted} == {
        name: Prior("Normal", mu=0, sigma=sd) for name, sd in wanted.items()
    }
    # The log of r + .01 is finite at r = 0, so the polynomial cannot change a loss manyfold.
    rows = pd.DataFrame(
        {"params": 1e9, "tokens": 1e10, "ptpp": 60, "replay": [0.0, 0.25]}
    )
    x, at = Design(ADAPTED, rows).x, Design(ADAPTED, DESIGN).at
    assert (np.abs(x["mixed"] - at["mixed"]) < 3.5).all()


def test_priors_of_effects_beside_a_discrepancy_are_its_own_unless_a_law_file_states_them(
    tmp_path,
):
    priors = make_spec(
        "form1", discrepancy="adaptation", effects=["size", "base", "run"]
    ).priors
    medians = {
        "tau_size": (0.006, 0.3),
        "tau_base": (0.005, 0.6),
        "tau_run": (0.004, 0.6),
    }
    for name, (median, sigma) in medians.items():
        assert priors[name] == Prior("LogNormal", median=median, sigma=sigma)
    assert make_spec("form1", effects=["run"]).priors["tau_run"] != priors["tau_run"]
    text = (models_dir() / "form1.toml").read_text()
    stated = {
        "tau_run": "LogNormal(median=0.05, sigma=0.2)",
        "tau_base": "HalfNormal(sigma=0.01)",
    }
    stated |= {"tau_size": str(NOISE["tau_size"]), "sigma": "HalfNormal(sigma=0.1)"}
    lines = (f'{name} = "{prior}"\n' for name, prior in stated.items())
    (tmp_path / "own.toml").write_text(text + "".join(lines))
    for discrepancy in ("adaptation", "curvature", "none"):
        priors = make_spec(tmp_path / "own.toml", discrepancy=discrepancy).priors
        assert {n: priors[n] for n in stated} == {
            n: Prior.parse(p) for n, p in stated.items()
        }


ROWS = bl.grid(params=[1e8, 3e8, 1e9, 3e9], tokens=[1e9, 3e9, 1e10, 3e10])
WALKING = WalkingExponents().apply(load_law("chinchilla"))
AT = Design(WALKING, ROWS).at
X = Design(WALKING, ROWS).x


def drawn(law, seed, count=3):
    """Random reference coordinates and steps, as a posterior holds them."""
    rng = np.random.default_rng(seed)
    q = {name: rng.uniform(0.2, 0.6, (count, 1)) for name in law.coordinates}
    steps = {
        w.steps: rng.standard_normal((count, 1, len(w.knots.positions)))
        for w in law.walks
    }
    return q | {"L_ref": np.full((count, 1), 6.0)} | steps


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10**6))
def test_walks_by_hand(seed):
    law = with_knots(WALKING, X, AT)
    q = drawn(law, seed, 1)
    v = {name: value.ravel() for name, value in q.items()}
    n, d = X["params"] - AT["params"], X["tokens"] - AT["tokens"]
    knots = {walk.steps: walk.knots.positions for walk in law.walks}
    roots = {walk.steps: np.sqrt(walk.knots.spacing) for walk in law.walks}

    def hinges(name, u):
        side = np.copysign(1.0, knots[name])
        return (
            roots[name]
            * v[name]
            @ np.maximum(side[:, None] * u - abs(knots[name])[:, None], 0)
        )

    sd = v["walk_scale"] * 0.1
    walk_a = sd * (hinges("walk_AN", n) + hinges("walk_AD", d) * n / 2)
    walk_b = (
        sd * (hinges("walk_BD", d) + hinges("walk_BN", n) * d / 2)
        + v["cross_BN"] * n * d
    )
    size_a, size_b = v["slope_N"] / v["alpha"], v["slope_D"] / v["beta"]
    total, kappa = size_a + size_b, v["kappa"]
    of_a = size_a / total * np.exp(-v["alpha"] * n / kappa)
    of_b = size_b / total * np.exp(-v["beta"] * d / kappa)
    ratio = of_a + of_b
    loss = v["L_ref"] - total + total * ratio**kappa
    share = total * ratio**kappa / loss
    loss *= np.exp(share * (of_a * walk_a + of_b * walk_b) / ratio)
    np.testing.assert_allclose(law.loss(law.amounts(q, AT), X, AT)[0], loss, rtol=1e-12)


def test_the_default_is_by_the_kind_of_law():
    kinds = {law: make_spec(law, discrepancy="auto").discrepancy.kind for law in LAWS}
    walks = {"chinchilla": "walk", "skaling": "walk"}
    assert kinds == dict.fromkeys(LAWS, "adaptation") | walks
    assert make_spec("transfer", discrepancy="auto").discrepancy.kind == "from_base"
    assert make_spec("forgetting", discrepancy="auto").discrepancy.kind == "curvature"
    with pytest.raises(
        LawError, match="walking exponents are for a power of N and one of D"
    ):
        make_spec("form1", discrepancy="walk")
    with pytest.raises(
        LawError, match="from_base is for a law that starts from the losses of bas"
    ):
        make_spec("chinchilla", discrepancy="from_base")


def sided(walk):
    """Positions of the knots, of which the two at 0 differ."""
    return walk.knots.positions + np.copysign(1e-9, walk.knots.positions)


def test_steps_beyond_the_rows_are_of_the_prior_and_the_same_for_all_rows():
    fit = saved("walk")
    far = bl.grid(params=3e9, tokens=[1e11, 1e12, 1e13])
    together = fit.latent(far)
    np.testing.assert_allclose(fit.latent(far[:1])[:, 0], together[:, 0], rtol=1e-14)
    assert (np.diff(np.log(together).std(0)) > 0).all()
    # Nothing was learned about them, and a fit of other losses, of the same seed, has others.
    other = replace(
        fit, table=bl.from_frame(fit.table.frame.assign(loss=fit.table.loss * 1.01))
    )
    wide = bl.grid(params=[1e5, 1e13], tokens=[1e4, 1e17])
    (law, one), (_, two) = (
        fit.extended(fit.design(fit.rows(wide))),
        other.extended(other.design(other.rows(wide))),
    )
    for before, walk in zip(fit.law_with_knots.walks, law.walks, strict=True):
        fitted = np.isin(sided(walk), sided(before))
        np.testing.assert_array_equal(
            one[walk.steps][..., fitted], fit.steps()[walk.steps]
        )
        new, others = (q[walk.steps][..., ~fitted] for q in (one, two))
        assert new.shape[-1] > 3
        assert new.std() == pytest.approx(1, abs=0.1)
        assert abs(np.mean(new * others)) < 0.15


@cache
def mixed():
    """A fit of the law `transfer` with its default discrepancy."""
    return short("transfer", stages(), discrepancy="auto")


def test_a_third_of_the_draws_are_of_the_law_alone():
    fit, law = mixed(), mixed().law
    exact = fit.stats["exact"].values
    assert (exact.sum(axis=1) == round(exact.shape[1] / 3)).all()
    alone = exact.ravel()
    for name in law.discrepancy_parameters:
        values = fit.values()[name][:, 0]
        assert (values[alone] == 0).all()
        assert (values[~alone] != 0).all()
    # Also far beyond the rows, where the walks get new steps.
    rows = bl.grid(
        params=[1e8, 1e11], ptpp=[15, 900], replay=[0.1, 0.9], tokens=[1e8, 1e13]
    )
    plain, x = (
        law.without_discrepancy,
        fit.covariates(fit.design(fit.rows(rows, "rows"))),
    )
    x = {
        name: v[alone] if v.ndim > 1 else v for name, v in x.items()
    }  # bases that are not known
    q = {name: values[alone] for name, values in fit.values().items()}
    stated = plain.loss(plain.amounts(q, fit.at), x, fit.at)
    np.testing.assert_allclose(
        fit.law_loss(fit.design(fit.rows(rows, "rows")))[alone], stated, rtol=1e-12
    )


def test_the_part_with_a_discrepancy_is_a_posterior_of_its_own():
    fit = mixed()
    part, alone = fit.deviating, fit.stats["exact"].values.ravel()
    rows = bl.grid(params=[3e8, 1e9], ptpp=60, replay=0.1, tokens=2e9)  # of known bases
    np.testing.assert_array_equal(part.latent(rows), fit.latent(rows)[~alone])
    assert part.deviating is part
    assert "the law alone in 33 % of draws" in fit.how()[0]


def test_a_mixture_takes_the_worse_of_two_diagnostics():
    good = Convergence(1.0, 900, 800, 0, 0.9, (), 1000)
    for worse in ({"rhat": 1.5}, {"ess_tail": 10.0}, {"bfmi": 0.1}, {"rhat": math.nan}):
        bad = replace(good, **worse)
        assert bad.failures
        for found in (good.worst(bad), bad.worst(good)):
            assert found.failures == bad.failures
    assert good.worst(replace(good, divergences=3)).divergences == 3


def test_a_third_of_the_prior_is_the_law_alone():
    spec = replace(mixed().spec, effects=())
    data = make_data(spec, mixed().table)
    drawn, _ = prior.draw(data, 2000, np.random.default_rng(0))
    exact = drawn["walk_scale"][:, 0] == 0
    assert exact.mean() == pytest.approx(1 / 3, abs=0.04)
    assert (drawn["poly_NP"][exact] == 0).all()
    assert (drawn["poly_NP"][~exact] != 0).all()
