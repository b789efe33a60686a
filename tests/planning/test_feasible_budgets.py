"""Feasible budgets of single draws, and their counts, against brute force."""

import numpy as np
import pandas as pd
import pytest

from bayeslaw import load_law, paper_world
from bayeslaw.laws.law import CLIP
from bayeslaw.laws.terms import ORIGIN
from bayeslaw.model.discrepancy import Adaptation, Curvature, WalkingExponents
from bayeslaw.planning.deviations import PlannedRun
from bayeslaw.planning.feasible_budgets import by_roots
from bayeslaw.planning.fits import curve_of
from bayeslaw.planning.loss_curves import LossCurve
from bayeslaw.simulation.worlds import true_fits
from tests.planning.random_curves import (
    AT,
    RISING,
    SKEWED,
    TWICE,
    brute,
    by_law,
    every_law,
    feasible,
    mismatches,
    random_curve,
    random_limit,
    with_terms,
)
from tests.support import CHINCHILLA

WORLD = paper_world()


@every_law
def test_thresholds_agree_with_brute_force(law):
    rng, cases, seen = np.random.default_rng(1), 0, np.zeros(4, int)
    for i in range(21):
        curve = random_curve(rng, law, 100)
        replay = [0.0, 1.0, CLIP, 1 - CLIP, rng.random(), rng.random(), rng.random()][i % 7]
        limit = random_limit(rng, curve, replay)
        wrong, sets = mismatches(curve, replay, limit)
        assert wrong == 0
        cases += curve.draws
        lower, upper = sets.lower[0, 0], sets.upper_or_inf[0, 0]
        seen += [
            (lower == np.inf).sum(),
            (lower == -np.inf).sum(),
            np.isfinite(lower).sum(),
            np.isfinite(upper).sum(),
        ]
    assert cases == 2100  # 10 laws: 21,000 cases
    assert (seen[:3] > 0).all()
    assert (seen[3] > 0) == ("curve_B" in law.exponents)


@pytest.mark.parametrize(
    "terms",
    [
        TWICE,
        RISING,
        (SKEWED,),
    ],
)
def test_laws_without_a_closed_form(terms):
    rng = np.random.default_rng(3)
    for _ in range(8):
        curve = random_curve(rng, with_terms(*terms), 60)
        replay = rng.random()
        limit = random_limit(rng, curve, replay)
        assert mismatches(curve, replay, limit)[0] == 0


def test_a_law_that_rises_and_saturates_in_tokens():
    """Loss finite at D = 0, rising, then falling: sets that reach D = 0 are common."""
    rng, law, seen = np.random.default_rng(6), load_law("forgetting"), np.zeros(3, int)
    budgets = np.linspace(-14, 20, 257)
    for _ in range(10):
        p = {name: rng.uniform(0.1, 0.4, 100) for name in law.parameters}
        p |= {"A": rng.lognormal(5, 0.5, 100), "F": 10 * rng.lognormal(0, 0.5, 100)}
        p |= {"xi": rng.uniform(1, 4, 100), "omega": rng.uniform(1, 4, 100)}
        curve, replay = LossCurve(law, p, ORIGIN, 1e9, 100.0), rng.random()
        limit = random_limit(rng, curve, replay)
        sets = feasible(curve, [replay], limit)
        excess = brute(curve, replay, budgets) - limit
        inside = np.stack([sets.contains(u)[0] for u in budgets])
        assert not ((inside != (excess <= 0)) & (np.abs(excess) > 1e-9)).any()
        first, ends = sets.lower[0, 0], np.isfinite(sets.lower) | np.isfinite(sets.upper_or_inf)
        seen += [(first == np.inf).sum(), (first == -np.inf).sum(), ends.any(0).sum()]
    assert (seen > 0).all()


WALKING = (WalkingExponents().apply(load_law("chinchilla")), Adaptation().apply(load_law("form1")))


@pytest.mark.parametrize("law", WALKING, ids=lambda law: law.name)
def test_exponents_that_walk(law):
    """Log losses with a kink at every knot, which may rise between knots."""
    rng, seen = np.random.default_rng(7), np.zeros(3, int)
    reach = np.array([-14.0, 18.0])
    rows = {"params": 1e9, "ptpp": 60.0, "replay": 0.3, "tokens": 1e9 * np.exp(reach)}
    law = law.over(law.covariates(pd.DataFrame(rows)), AT)
    for _ in range(4):
        p = {n: rng.normal(0, 0.05, 60) for n in law.exponents}
        p |= {n: rng.lognormal(np.log(0.3), 0.5, 60) for n in law.without_discrepancy.exponents}
        p |= {n: rng.lognormal(np.log(0.2), 0.9, 60) for n in ("E", *law.coefficients)}
        p |= {"walk_scale": rng.lognormal(0, 0.5, 60)}
        p |= {"kappa": rng.lognormal(0, 0.3, 60)} if law.coupled else {}
        p |= {w.steps: rng.normal(0, 1, (60, len(w.knots.positions))) for w in law.walks}
        curve, replay = LossCurve(law, p, AT, 3e9, 80.0), rng.random()
        limit = random_limit(rng, curve, replay)
        wrong, sets = mismatches(curve, replay, limit)
        assert wrong == 0
        first = sets.lower[0, 0]
        seen += [(first == np.inf).sum(), (first == -np.inf).sum(), np.isfinite(first).sum()]
    assert seen[2] > 0


def test_a_loss_that_is_not_monotone_has_an_interval_of_budgets():
    """A loss that falls and rises again has an interval of budgets, whose ends are the roots."""
    rng = np.random.default_rng(4)
    curve = random_curve(rng, with_terms(*RISING), 200)
    low = np.min(brute(curve, 0.3, np.linspace(-14, 18, 4001)), 0)
    sets = feasible(curve, [0.3], low + 1e-6)  # far narrower than the bracketing grid
    assert (sets.lower[0, 0] < np.inf).mean() > 0.9
    for draw in np.flatnonzero(
        np.isfinite(sets.lower[0, 0]) & np.isfinite(sets.upper_or_inf[0, 0])
    )[:20]:
        one = curve.take([draw])
        for end in (sets.lower[0, 0, draw], sets.upper_or_inf[0, 0, draw]):
            assert one.loss([0.3], end)[0, 0] == pytest.approx(low[draw] + 1e-6, abs=1e-11)


def test_threshold_is_the_papers_closed_form():
    law, p = WORLD.laws["french"], WORLD.truth["french"]
    fit = true_fits(WORLD)[0]
    curve = curve_of(fit, PlannedRun(8.1e9, 279))
    for r in (0.1, 0.34, 0.9):
        gate = 1 / (1 + 279 ** -p["zeta"])
        beta = p["beta"] * (1 - p["lambda_"] * gate)
        rest = p["E"] + p["A"] / 8.1e9 ** p["alpha"] + p["F"] / 279 ** p["eta"]
        rest += p["C"] / (r + law.epsilon) ** p["gamma"]
        tokens = (p["B"] * r ** p["nu"] / (1.8 - rest)) ** (1 / beta)
        assert 8.1e9 * np.exp(feasible(curve, [r], 1.8).lower[0, 0, 0]) == pytest.approx(tokens)


@pytest.mark.parametrize("name", ["form1", "form2", "form3", "dcpt", "chinchilla"])
def test_roots_agree_with_the_closed_form(name):
    rng, compared = np.random.default_rng(5), 0
    for _ in range(5):
        curve = random_curve(rng, load_law(name), 60)
        limit = random_limit(rng, curve, 0.3)
        exact, here = feasible(curve, [0.3], limit), curve.at_replay([0.3])
        found = by_roots(here, limit - here.constant_terms())
        inside = np.abs(np.where(np.isfinite(exact.lower), exact.lower, 0)) < 16
        stop = np.where(np.isfinite(exact.upper_or_inf), exact.upper_or_inf, 0)
        inside &= (stop > -16) & (stop < 20)
        draws = inside.all((0, 1))
        np.testing.assert_allclose(
            found.lower[0, 0][draws], exact.lower[0, 0][draws], rtol=1e-9, atol=1e-9
        )
        np.testing.assert_allclose(
            found.upper_or_inf[0, 0][draws], exact.upper_or_inf[0, 0][draws], rtol=1e-9, atol=1e-9
        )
        compared += np.isfinite(exact.lower[0, 0][draws]).sum()
    assert compared > 20


def test_a_loss_that_vanishes_without_tokens_does_not_meet_its_limit_there():
    """Of a concave deviation: the law says 2 nats and less at the smallest budgets."""
    p = CHINCHILLA | {"curve_A": 0.0, "curve_B": -0.1, "cross_BN": 0.0}
    law = Curvature().apply(load_law("chinchilla"))
    sizes = {"A": p["A"] * 1e9**-0.34, "B": p["B"] * 2e10**-0.28}
    at = {"params": np.log(1e9), "tokens": np.log(2e10)}
    curve = LossCurve(law, {n: np.array([v]) for n, v in (p | sizes).items()}, at, 1e9, 20.0)
    assert by_law(curve, 1.0, np.array([-16.0])) < 2
    sets = feasible(curve, [1.0], 2.5)
    assert sets.lower.shape == (1, 1, 1)
    assert curve.loss([1.0], sets.lower[0, 0, 0])[0, 0] == pytest.approx(2.5)
    assert sets.lower[0, 0, 0] > np.log(20)
