"""Plans: probabilities, order statistics, baselines and errors, for posteriors without a fit."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from bayeslaw import BayeslawError, grid, load_law, plan, simulate
from bayeslaw.laws.law import CLIP
from bayeslaw.laws.terms import ORIGIN
from bayeslaw.model.discrepancy import Curvature
from bayeslaw.planning.grid import Curve, LawDraws
from bayeslaw.simulation.worlds import true_fits
from tests.planning.posteriors import (
    BASE,
    LIMITS,
    WORLD,
    losses,
    over_replay,
    posterior,
)
from tests.support import CHINCHILLA


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


def test_predictive_noise_widens_the_limits():
    fits = {d: posterior(n) for d, n in zip(("target", "source"), WORLD.laws, strict=True)}
    latent = plan(**fits, **LIMITS, baseline=BASE)
    noisy = plan(**fits, **LIMITS | {"noise": None}, baseline=BASE, seed=1)
    assert noisy.atpp > latent.atpp
    noise = [limit.noise.total for limit in noisy.problem.limits]
    target, source = losses(fits, noisy)
    meets = (target * np.exp(noise[0]) <= 1.8) & (source * np.exp(noise[1]) <= 1.02 * BASE)
    assert noisy.p_both == meets.mean() >= 0.9
    assert np.std(noise[0]) == pytest.approx(WORLD.sigma["french"], rel=0.5)
    with pytest.raises(BayeslawError, match="has no noise"):
        plan(
            target=true_fits(WORLD)[0],
            source=fits["source"],
            **WORLD.limits,
            baseline=BASE,
        )


def test_curved_laws(fits):
    curved_fits = {
        d: posterior(n, law=Curvature().apply(WORLD.laws[n]))
        for d, n in zip(fits, WORLD.laws, strict=True)
    }
    found = plan(**curved_fits, **LIMITS, baseline=BASE, confidence=0.6)
    target, source = losses(curved_fits, found)
    meets = (target <= 1.8) & (source <= 1.02 * BASE)
    assert found.p_both == meets.mean() >= 0.6  # here no draw has D below its maximum
    assert found.atpp > plan(**fits, **LIMITS, baseline=BASE, confidence=0.6).atpp


def test_same_seed_same_plan(fits):
    one, again = (plan(**fits, **WORLD.limits, baseline=BASE, seed=5) for _ in range(2))
    assert one.to_dict() == again.to_dict()
    other = plan(**fits, **WORLD.limits, baseline=BASE, seed=6)
    assert one.atpp != other.atpp


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
    asked = {"target": fit, "source": fit, **LIMITS, "max_loss": 2.2, "baseline": 2.2}
    for ratios in (None, [0.3], [0.3, 1.0]):
        with pytest.raises(BayeslawError, match="the law chinchilla does not know replay"):
            plan(**asked, replay_grid=ratios)
    found = plan(**asked, replay_grid=[1.0])
    tokens = (410 / (2.2 - 1.7 - 400 / 8.1e9**0.34)) ** (1 / 0.28)
    assert found.tokens == pytest.approx(tokens, rel=1e-9)
    flat = replace(law, terms=law.terms[:1])
    draws = LawDraws(flat, {n: np.array([v]) for n, v in CHINCHILLA.items()}, ORIGIN)
    curve = Curve((draws,), (np.arange(1),), 1e9, 1)
    assert len(np.unique(curve.loss([-20.0, 0.0, 20.0], [0.5]))) == 1
    never = replace(fit, law=flat)
    assert plan(**asked | {"target": never, "source": never}, replay_grid=[1.0]).tokens == 0


def second(name, seed):
    """A further posterior of the source, of other draws."""
    return posterior(name, 400, spread=0.006, seed=seed)


def test_several_sources_each_with_a_limit_of_its_own(fits):
    target, source = fits.values()
    limits = {name: value for name, value in LIMITS.items() if name != "max_forgetting"}
    ratios = {"replay_grid": [0.3, 0.4, 0.5, 0.6]}
    one = plan(**fits, **LIMITS, baseline=BASE, **ratios)
    loose = plan(
        target=target,
        source=[source, second("english_arabic", 7)],
        max_forgetting=[LIMITS["max_forgetting"], 0.5],
        baseline=[BASE, BASE],
        **limits,
        **ratios,
    )
    assert loose.p_sources[1] == 1.0
    assert loose.problem.names == ("target", "forgetting 1", "forgetting 2")
    assert loose.atpp == pytest.approx(one.atpp, rel=0.02)  # the draws are paired otherwise
    found = plan(
        target=target,
        source=[source, second("english_arabic", 7)],
        max_forgetting=[LIMITS["max_forgetting"], 0.016],
        baseline=[BASE, (1.001 * BASE, 0.001)],
        **limits,
        **ratios,
    )
    rows = grid(params=8.1e9, ptpp=279, replay=found.replay, tokens=found.tokens)
    problem = found.problem
    values = [
        fit.latent(rows)[:, 0][i]
        for fit, i in zip(
            (target, source, second("english_arabic", 7)),
            [limit.index for limit in problem.limits],
            strict=True,
        )
    ]
    starts = problem.sources[1].baseline
    assert np.std(starts) == pytest.approx(0.001, rel=0.2)
    holds = [values[0] <= 1.8, values[1] <= 1.02 * BASE, values[2] <= 1.016 * starts]
    assert found.p_both == np.mean(np.all(holds, axis=0)) >= 0.9
    assert found.p_sources == (np.mean(holds[1]), np.mean(holds[2]))
    assert found.p_forgetting == np.mean(holds[1] & holds[2])
    assert found.forgettings[1] == pytest.approx(np.mean(values[2] / starts - 1))
    assert found.atpp >= one.atpp
    assert found.to_dict()["limits"]["max_forgetting"] == [0.02, 0.016]
    assert list(found.spread.index) == ["target", "source 1", "source 2"]
    moved = found.sensitivity()
    assert set(moved["quantity"]) == {"max_loss", "max_forgetting", "baseline"}


def test_each_limit_has_the_noise_and_the_baseline_of_its_own_draws(fits):
    """Of several targets and sources, also where the draws are thinned."""
    scales = [0.001, 0.03, 0.002, 0.04]
    names = ["french", "french", "english_arabic", "english_arabic"]
    noisy = []
    for k, (name, scale) in enumerate(zip(names, scales, strict=True)):
        fit = posterior(name, 400, seed=k)
        noisy.append(replace(fit, draws=fit.draws.assign(sigma=0 * fit.draws["sigma"] + scale)))
    found = plan(
        target=noisy[:2],
        source=noisy[2:],
        **{name: WORLD.limits[name] for name in ("params", "ptpp")},
        max_loss=[1.8, 1.9],
        max_forgetting=[0.05, 0.2],
        baseline=[BASE, (BASE, 0.05)],
        confidence=0.3,
        replay_grid=[0.3, 0.4, 0.5],
    )
    limits = found.problem.limits
    deviations = [np.median(np.abs(limit.noise.total)) for limit in limits]
    np.testing.assert_allclose(deviations, 0.7 * np.array(scales), rtol=0.2)
    some = np.array([399, 5, 250, 12])
    at = [found.budget], [found.replay]
    whole, part = (p.excesses(*at) for p in (found.problem, found.problem.take(some)))
    np.testing.assert_array_equal(part, np.array(whole)[..., some])


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"max_forgetting": 0.02, "baseline": [BASE, BASE]}, "2 sources and 1 of max_forgetting"),
        ({"max_forgetting": [0.02, 0.1], "baseline": BASE}, "2 sources and 1 of baseline"),
        ({"max_forgetting": [0.02, 0.1], "baseline": [BASE, "asymptote"]}, "only the first source"),
    ],
)
def test_sources_without_limits_of_their_own(fits, more, words):
    target, source = fits.values()
    limits = {name: value for name, value in LIMITS.items() if name != "max_forgetting"}
    with pytest.raises(BayeslawError, match=words):
        plan(target=target, source=[source, source], **limits, **more)


def test_papers_plan_from_the_true_laws():
    target, source = true_fits(WORLD)
    found = plan(target=target, source=source, **LIMITS, baseline=BASE)
    assert found.atpp == pytest.approx(8.9, abs=0.01)
    assert found.replay == pytest.approx(0.34, abs=0.001)
    assert found.p_both == 1
    assert found.deterministic.atpp == found.atpp
    assert found.draws == 1
    assert found.error == {}


@pytest.mark.parametrize("unit", [1e6, 1e9])
def test_token_unit_of_the_law_is_used(unit):
    """With a gated exponent the unit of D is part of the law; a plan uses the law's own unit."""
    law = replace(WORLD.laws["french"], token_unit=unit)
    truth = dict(WORLD.truth["french"])
    gate = 1 - truth["lambda_"] / (1 + 279 ** -truth["zeta"])
    truth["B"] /= unit ** (truth["beta"] * gate)  # same loss at PTPP 279
    fits = list(true_fits(WORLD))
    fits[0] = replace(fits[0], law=law, parameters=truth)
    found = plan(target=fits[0], source=fits[1], **LIMITS, baseline=BASE)
    assert found.atpp == pytest.approx(8.9, abs=0.01)
