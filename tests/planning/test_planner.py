"""Plans: probabilities, order statistics, baselines, errors, on posteriors given as inputs."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from bayeslaw.common.errors import BayeslawError, NotConverged
from bayeslaw.laws.law import CLIP
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.laws.terms import ORIGIN
from bayeslaw.model.discrepancies import curved
from bayeslaw.planning import chance
from bayeslaw.planning.choices import NOWHERE, choose
from bayeslaw.planning.curves import Curve
from bayeslaw.planning.limits import curve_of
from bayeslaw.planning.paper_case import true_fits
from bayeslaw.planning.planner import plan
from bayeslaw.planning.thresholds import below
from bayeslaw.simulation.worlds import simulate
from bayeslaw.tables.table import grid
from tests.planning.posteriors import (
    BASE,
    GOOD,
    LIMITS,
    WORLD,
    both,
    losses,
    over_replay,
    posterior,
)
from tests.support import CHINCHILLA


@pytest.fixture(scope="module")
def fits():
    return both()


def test_probabilities_are_the_empirical_ones(fits):
    found = plan(**fits, **LIMITS, baseline=BASE)
    target, source = losses(fits, found)
    meets = (target <= 1.8) & (source <= 1.02 * BASE)
    assert found.p_target == np.mean(target <= 1.8)
    assert found.p_forgetting == np.mean(source <= 1.02 * BASE)
    assert found.p_both == meets.mean() >= 0.9
    assert found.flops == 6 * 8.1e9 * found.tokens
    assert found.tokens == 8.1e9 * found.atpp == int(found.tokens)
    assert found.p_failure == pytest.approx(0.1)


def test_plan_is_the_smallest(fits):
    found = plan(**fits, **LIMITS, baseline=BASE)
    target, source = losses(fits, replace(found, tokens=found.tokens * (1 - 1e-9)))
    assert np.mean((target <= 1.8) & (source <= 1.02 * BASE)) < 0.9
    target, source = over_replay(fits, 0.9999 * found.tokens)
    assert np.mean((target <= 1.8) & (source <= 1.02 * BASE), 0).max() < 0.9


@pytest.mark.parametrize(
    ("confidence", "draws", "rank"),
    [(0.9, 10, 9), (0.9, 4000, 3600), (0.95, 20, 19), (0.91, 10, 10), (0.5, 3, 2), (0.01, 10, 1)],
)
def test_rank(confidence, draws, rank):
    problem = plan(target=true_fits(WORLD)[0], source=true_fits(WORLD)[1], **LIMITS, baseline=BASE)
    problem = replace(problem.problem, confidence=confidence).take(np.zeros(draws, int))
    assert problem.rank == rank


@pytest.mark.parametrize("draws", [20, 40, 100])
def test_order_statistic(draws):
    """At a fixed ratio the plan is the ceil((1 - alpha) S)-th smallest threshold."""
    fits = {d: posterior(n, draws) for d, n in zip(("target", "source"), WORLD.laws, strict=True)}
    found = plan(**fits, **LIMITS, baseline=BASE, confidence=0.9, replay_grid=[0.4])
    low, high = np.full(draws, -5.0), np.full(draws, 40.0)

    def misses(log_atpp):
        tokens = 8.1e9 * np.exp(log_atpp)
        rows = pd.DataFrame({"params": 8.1e9, "ptpp": 279, "replay": 0.4, "tokens": tokens})
        target = np.diag(fits["target"].latent(rows))
        source = np.diag(np.roll(fits["source"].latent(rows), draws // 2, 0))
        return (target > 1.8) | (source > 1.02 * BASE)

    never = misses(high)
    for _ in range(60):
        middle = (low + high) / 2
        above = misses(middle)
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    thresholds = np.where(never, np.inf, np.exp(high))
    assert found.replay == 0.4
    assert found.atpp == pytest.approx(np.sort(thresholds)[round(0.9 * draws) - 1], rel=1e-9)
    assert found.p_both == 0.9


def test_papers_plan_from_the_true_laws():
    target, source = true_fits(WORLD)
    found = plan(target=target, source=source, **LIMITS, baseline=BASE)
    assert found.atpp == pytest.approx(8.9, abs=0.01)
    assert found.replay == pytest.approx(0.34, abs=0.001)
    assert found.p_both == 1
    assert found.deterministic.atpp == found.atpp
    assert found.draws == 1
    assert found.error == {}


def test_deterministic_plan_stands_beside_with_its_risk(fits):
    found = plan(**fits, **LIMITS, baseline=BASE, point=true_fits(WORLD))
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert told["deterministic"]["atpp"] == pytest.approx(8.9, abs=0.1)
    assert told["deterministic"]["replay"] == pytest.approx(0.34, abs=0.01)
    target, source = losses(fits, found.deterministic)
    risk = 1 - np.mean((target <= 1.8) & (source <= 1.02 * BASE))
    assert told["deterministic"]["p_failure"] == pytest.approx(risk)
    assert risk > 0.5  # both limits bind at the optimum: certainty is worth little there
    assert told["atpp"] > told["deterministic"]["atpp"]
    medians = plan(**fits, **LIMITS, baseline=BASE).deterministic
    assert medians.atpp == pytest.approx(8.9, rel=0.2)


def test_an_infinite_budget_is_no_choice(fits):
    problem = plan(**fits, **LIMITS, baseline=BASE).problem
    assert choose(problem, np.inf, 0.5) is NOWHERE
    assert choose(problem, 1e4, 0.5) is NOWHERE
    assert choose(problem, 599.0, 0.5).p_both > 0


def test_infeasible_is_an_answer(fits):
    found = plan(**fits, **LIMITS | {"max_loss": 1.45}, baseline=BASE)
    assert found.status == "infeasible"
    assert found.atpp == np.inf
    assert np.isnan(found.p_both)
    assert found.binds.startswith("target;")
    assert found.best.p_both < 0.9
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["atpp"] is None
    found = plan(**fits, **LIMITS | {"max_forgetting": -0.3}, baseline=BASE)
    assert found.binds.startswith("forgetting;")
    assert found.best.p_both == 0
    both = LIMITS | {"max_loss": 1.6, "max_forgetting": -0.1}
    assert plan(**fits, **both, baseline=BASE).binds.startswith(("target and", "target;"))


def test_best_attainable_probability(fits):
    """Where a share of the draws meets both limits, that share is what is reported."""
    tight = LIMITS | {"max_loss": 1.7}
    found = plan(**fits, **tight, baseline=BASE)
    assert found.status == "infeasible"
    rows = grid(params=8.1e9, ptpp=279, replay=np.linspace(0.005, 0.995, 199), tokens=1e290)
    target, source = (fits[n].latent(rows) for n in ("target", "source"))
    meets = (target <= 1.7) & (np.roll(source, len(source) // 2, 0) <= 1.02 * BASE)
    assert 0.05 < meets.mean(0).max() < 0.9
    assert found.best.p_both >= meets.mean(0).max()
    assert found.best.p_both == pytest.approx(meets.mean(0).max(), abs=0.02)


def test_predictive_noise_widens_the_limits():
    fits = {d: posterior(n) for d, n in zip(("target", "source"), WORLD.laws, strict=True)}
    latent = plan(**fits, **LIMITS, baseline=BASE)
    noisy = plan(**fits, **LIMITS, baseline=BASE, noise="predictive", seed=1)
    assert noisy.atpp > latent.atpp
    noise = noisy.problem.noise
    target, source = losses(fits, noisy)
    meets = (target * np.exp(noise[0]) <= 1.8) & (source * np.exp(noise[1]) <= 1.02 * BASE)
    assert noisy.p_both == meets.mean() >= 0.9
    assert np.std(noise[0]) == pytest.approx(WORLD.sigma["french"], rel=0.5)
    with pytest.raises(BayeslawError, match="has no noise"):
        plan(
            target=true_fits(WORLD)[0],
            source=fits["source"],
            **LIMITS,
            baseline=BASE,
            noise="predictive",
        )


def test_curved_laws(fits):
    bendable = {
        d: posterior(n, law=curved(WORLD.laws[n])) for d, n in zip(fits, WORLD.laws, strict=True)
    }
    found = plan(**bendable, **LIMITS, baseline=BASE, confidence=0.6)
    target, source = losses(bendable, found)
    meets = (target <= 1.8) & (source <= 1.02 * BASE)
    assert found.p_both == meets.mean() >= 0.6  # here no draw is left of its peak
    assert found.atpp > plan(**fits, **LIMITS, baseline=BASE, confidence=0.6).atpp


@pytest.mark.parametrize("unit", [1e6, 1e9])
def test_token_unit_is_the_laws_own(unit):
    """D in other units is another law where the exponent is gated; each is planned in its own."""
    law = replace(WORLD.laws["french"], token_unit=unit)
    truth = dict(WORLD.truth["french"])
    gate = 1 - truth["lambda_"] / (1 + 279 ** -truth["zeta"])
    truth["B"] /= unit ** (truth["beta"] * gate)  # same loss at PTPP 279
    fits = list(true_fits(WORLD))
    fits[0] = replace(fits[0], law=law, parameters=truth)
    found = plan(target=fits[0], source=fits[1], **LIMITS, baseline=BASE)
    assert found.atpp == pytest.approx(8.9, abs=0.01)


def test_own_share_orientation():
    """A law in the modelled domain's own share sees 1 - r."""
    law = replace(WORLD.laws["french"], ratio="own")
    curve = Curve(law, curve_of(true_fits(WORLD)[0], 8.1e9, 279).p, ORIGIN, 8.1e9, 279)
    own, plain = curve.loss([0.3], 2.0), replace(curve, law=WORLD.laws["french"]).loss([0.7], 2.0)
    np.testing.assert_allclose(own, plain)


def test_same_seed_same_plan(fits):
    one, again = (
        plan(**fits, **LIMITS, baseline=BASE, noise="predictive", seed=5) for _ in range(2)
    )
    assert one.to_dict() == again.to_dict()
    other = plan(**fits, **LIMITS, baseline=BASE, noise="predictive", seed=6)
    assert one.atpp != other.atpp


def test_chunks_do_not_matter(fits, monkeypatch):
    one = plan(**fits, **LIMITS, baseline=BASE)
    monkeypatch.setattr(chance, "CHUNK", 3000)
    assert plan(**fits, **LIMITS, baseline=BASE).to_dict() == one.to_dict()


def test_frontier_rises_and_surface_agrees(fits):
    found = plan(**fits, **LIMITS, baseline=BASE)
    frontier = found.frontier()
    assert (np.diff(frontier["atpp"]) > 0).all()
    assert (frontier["p_both"] >= frontier["confidence"]).all()
    assert frontier.query("confidence == 0.9")["atpp"].item() == found.atpp
    surface = found.surface([0.0, found.atpp], [0.1, found.replay])
    assert surface.loc[found.atpp, found.replay] == found.p_both
    assert surface.loc[0.0, 0.1] == 0
    for limit in ("target", "forgetting"):
        one = found.surface([found.atpp], [found.replay], limit).iloc[0, 0]
        assert one == getattr(found, f"p_{limit}")
    with pytest.raises(BayeslawError, match="unknown limit"):
        found.surface([1], [0.1], "loss")


def test_sensitivity_points_the_right_way(fits):
    found = plan(**fits, **LIMITS, baseline=BASE)
    moved = found.sensitivity().set_index("quantity")
    for name in ("max_loss", "max_forgetting", "baseline"):
        down, up = moved.loc[name, "atpp"]
        assert down > found.atpp > up
        assert moved.loc[name, "held"].iloc[0] < found.p_both < moved.loc[name, "held"].iloc[1]


def test_monte_carlo_error_covers_fresh_draws():
    """Plans from other draws of the same posterior scatter as the bootstrap says."""
    plans = [
        plan(
            target=posterior("french", seed=seed),
            source=posterior("english_arabic", seed=seed),
            **LIMITS,
            baseline=BASE,
        )
        for seed in range(12)
    ]
    scatter = np.std([p.atpp for p in plans])
    assert 0.5 < np.mean([p.error["atpp"] for p in plans]) / scatter < 2
    assert np.mean([p.held_out for p in plans]) == pytest.approx(0.9, abs=0.03)


def test_dependent_draws_are_resampled_in_blocks(fits):
    slow = replace(GOOD, ess_bulk=50)
    fits = fits | {"source": replace(fits["source"], convergence=slow)}
    assert plan(**fits, **LIMITS, baseline=BASE, allow_unconverged=True).error["block"] == 8


def test_unconverged_posteriors_need_consent(fits):
    bad = fits | {"target": replace(fits["target"], convergence=replace(GOOD, divergences=3))}
    with pytest.raises(NotConverged):
        plan(**bad, **LIMITS, baseline=BASE)
    told = plan(**bad, **LIMITS, baseline=BASE, allow_unconverged=True).unconverged
    assert "3 divergences" in told[0]


def test_what_lies_outside_the_data_is_said(fits):
    found = plan(**fits, **LIMITS, baseline=BASE, replay_grid=[0.7])
    assert any(
        text.startswith("replay 0.7 is outside the target's rows, 0.1") for text in found.outside
    )
    assert not any(text.startswith("ptpp") for text in found.outside)  # there are anchors
    assert any(
        "ptpp 1000" in t for t in plan(**fits, **LIMITS | {"ptpp": 1000}, baseline=2).outside
    )


def test_pairing_is_said(fits):
    assert plan(**fits, **LIMITS, baseline=BASE).pairing.startswith("independently")
    joint = {name: replace(fit, settings={"joint": "a"}) for name, fit in fits.items()}
    assert plan(**joint, **LIMITS, baseline=BASE).pairing.startswith("jointly")
    certain = plan(target=fits["target"], source=true_fits(WORLD)[1], **LIMITS, baseline=BASE)
    assert "certain" in certain.pairing
    assert certain.draws == 400
    few = fits | {"source": posterior("english_arabic", draws=100)}
    assert plan(**few, **LIMITS, baseline=BASE).draws == 100


@pytest.mark.parametrize(
    "wrong",
    [
        {"confidence": 1.0},
        {"confidence": 90},
        {"params": 0},
        {"max_loss": np.inf},
        {"max_forgetting": -1},
        {"max_cvar": np.nan},
        {"baseline": -2.0},
        {"noise": "none"},
        {"replay_grid": [30]},
        {"replay_grid": []},
    ],
)
def test_bad_arguments_are_refused(fits, wrong):
    with pytest.raises(BayeslawError):
        plan(**fits | LIMITS | {"baseline": BASE} | wrong)


@pytest.mark.parametrize("replay", [0.0, CLIP, 1 - CLIP, 1.0])
def test_plans_at_the_ends_of_the_replay_range(replay):
    """Pure adaptation, and pure replay, on laws that allow them."""
    law = load_law("form1")
    p = {"E": 1.5, "A": 0.0, "alpha": 0.3, "B": 50.0, "beta": 0.25, "nu": 0.0}
    p |= {"C": 0.0, "gamma": 0.1, "F": 0.0, "eta": 0.3}
    fit = replace(true_fits(WORLD)[1], law=law, parameters=p)
    limits = LIMITS | {"max_loss": 1.6, "max_forgetting": 0.1}
    found = plan(target=fit, source=fit, **limits, baseline=1.5, replay_grid=[replay])
    assert found.tokens == pytest.approx((50 / 0.1) ** (1 / 0.25), rel=1e-9)
    assert found.replay == replay


def test_laws_without_replay_or_tokens():
    law = load_law("chinchilla")
    table = simulate(
        law,
        CHINCHILLA,
        grid(params=[1e8, 1e9], tokens=[1e9, 1e10]),
    )
    fit = replace(true_fits(WORLD)[0], law=law, parameters=CHINCHILLA, table=table)
    found = plan(target=fit, source=fit, **LIMITS | {"max_loss": 2.2}, baseline=2.2)
    tokens = (410 / (2.2 - 1.7 - 400 / 8.1e9**0.34)) ** (1 / 0.28)
    assert found.tokens == pytest.approx(tokens, rel=1e-9)
    flat = replace(law, terms=law.terms[:1])
    curve = Curve(flat, {n: np.array([v]) for n, v in CHINCHILLA.items()}, ORIGIN, 1e9, 1)
    sets = below(curve.sliced([0.5]), 3.0)
    assert sets.lower.tolist() == [[[-np.inf]]]
    assert sets.upper is None
