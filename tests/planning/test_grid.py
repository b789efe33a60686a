"""Losses on the grid, and searches on it, against brute force."""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest

from bayeslaw import load_law, paper_world
from bayeslaw.laws.law import CLIP
from bayeslaw.model.discrepancy import Curvature, WalkingExponents
from bayeslaw.planning.grid import FAR, NODES, Curve, first, minima, search
from bayeslaw.planning.planned_run import PlannedRun, curve_of
from bayeslaw.planning.problem import (
    Limit,
    Noise,
    Problem,
    likeliest,
    monte_carlo,
    smallest,
)
from bayeslaw.simulation.worlds import true_fits
from tests.planning.random_curves import (
    AT,
    LOG_ATPP,
    RISING,
    TWICE,
    at_one_stage,
    by_law,
    every_law,
    random_curve,
    random_limit,
    with_terms,
)
from tests.support import CHINCHILLA

WORLD = paper_world()
RATIOS = np.linspace(0.05, 0.95, 7)
BUDGETS = np.concatenate([NODES, FAR])[:, None]


# -- losses ---------------------------------------------------------------------------------------


@every_law
def test_losses_are_those_of_the_law(law):
    """Also where deviations outweigh a term, so that the loss vanishes without tokens."""
    rng, rising = np.random.default_rng(1), 0
    for i in range(7):
        curve = random_curve(rng, law, 100)
        replay = [0.0, 1.0, CLIP, 1 - CLIP, rng.random(), rng.random(), rng.random()][i]
        wanted = by_law(curve, replay, LOG_ATPP)
        found = curve.loss(LOG_ATPP, [replay, 0.5])[:, 0]
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
        np.testing.assert_allclose(curve.along(LOG_ATPP[:, None], replay), found, rtol=1e-12)
        rising += (wanted[1] > wanted[0] * 1.01).sum()
    assert (rising > 0) == ("curve_B" in law.exponents)


def walking_curve(rng, draws=60):
    law = WalkingExponents().apply(load_law("chinchilla"))
    reach = np.array([-14.0, 18.0])
    rows = {"params": 1e9, "ptpp": 60.0, "replay": 0.3, "tokens": 1e9 * np.exp(reach)}
    law = law.over(law.covariates(pd.DataFrame(rows)), AT)
    p = {n: rng.normal(0, 0.05, draws) for n in law.exponents}
    plain = law.without_discrepancy
    p |= {n: rng.lognormal(np.log(0.3), 0.5, draws) for n in plain.exponents}
    p |= {n: rng.lognormal(np.log(0.2), 0.9, draws) for n in ("E", *law.coefficients)}
    p |= {"walk_scale": rng.lognormal(0, 0.5, draws)}
    p |= {"kappa": rng.lognormal(0, 0.3, draws)} if law.coupled else {}
    p |= {w.steps: rng.normal(0, 1, (draws, len(w.knots.positions))) for w in law.walks}
    return at_one_stage(law, p, 3e9, 80.0)


def test_exponents_that_walk():
    rng = np.random.default_rng(7)
    for _ in range(4):
        curve, replay = walking_curve(rng), rng.random()
        wanted = by_law(curve, replay, LOG_ATPP)
        np.testing.assert_allclose(curve.loss(LOG_ATPP, [replay])[:, 0], wanted, rtol=1e-12)


def test_a_pool_has_the_losses_of_its_members_at_their_places():
    rng = np.random.default_rng(2)
    one, two = (random_curve(rng, load_law("form1"), n).members[0] for n in (3, 2))
    pool = Curve((one, two), (np.array([0, 2, 4]), np.array([3, 1])), 1e9, 60.0)
    loss = pool.loss([0.0, 2.0], RATIOS)
    for member, places in zip(pool.members, pool.places, strict=True):
        alone = Curve((member,), (np.arange(member.count),), 1e9, 60.0)
        np.testing.assert_array_equal(loss[..., places], alone.loss([0.0, 2.0], RATIOS))
    some = np.array([3, 0, 1])
    np.testing.assert_array_equal(
        pool.take(some).loss([1.0], [0.3]), pool.loss([1.0], [0.3])[..., some]
    )


def test_threshold_is_the_papers_closed_form():
    law, p = WORLD.laws["french"], WORLD.truth["french"]
    curve = curve_of(true_fits(WORLD)[0], PlannedRun(8.1e9, 279))
    for r in (0.1, 0.34, 0.9):
        gate = 1 / (1 + 279 ** -p["zeta"])
        beta = p["beta"] * (1 - p["lambda_"] * gate)
        rest = p["E"] + p["A"] / 8.1e9 ** p["alpha"] + p["F"] / 279 ** p["eta"]
        rest += p["C"] / (r + law.epsilon) ** p["gamma"]
        tokens = (p["B"] * r ** p["nu"] / (1.8 - rest)) ** (1 / beta)
        (found,) = first(lambda u, r=r: curve.along(u, r) <= 1.8, BUDGETS)
        assert 8.1e9 * np.exp(found) == pytest.approx(tokens, rel=1e-9)


def test_a_loss_that_vanishes_without_tokens_does_not_meet_its_limit_there():
    """Of a concave deviation: the law says 2 nats and less at the smallest budgets.

    It is extrapolated as far below the fitted budgets as forecasts are made.
    """
    p = CHINCHILLA | {"curve_A": 0.0, "curve_B": -0.1, "cross_BN": 0.0}
    law = Curvature().apply(load_law("chinchilla"))
    p |= {"A": p["A"] * 1e9**-0.34, "B": p["B"] * 2e10**-0.28}
    at = {"params": np.log(1e9), "tokens": np.log(2e10)}
    curve = at_one_stage(law, {n: np.array([v]) for n, v in p.items()}, 1e9, 20.0, at)
    curve = replace(curve, lowest=np.log(20))
    least = curve.extent[0]
    assert by_law(curve, 1.0, np.array([-16.0])) < 2
    wanted = by_law(curve, 1.0, np.array([least, least, least, least + 0.1]))[:, 0]
    found = curve.loss([-np.inf, -16.0, least - 0.1, least + 0.1], [1.0])[:, 0, 0]
    np.testing.assert_allclose(found, wanted)
    (found,) = first(lambda u: curve.along(u, 1.0) <= 2.5, BUDGETS)
    assert curve.loss([found], [1.0])[0, 0, 0] == pytest.approx(2.5)
    assert found > np.log(20)


@every_law
def test_least_loss_over_all_budgets(law):
    """The asymptote baseline is the least loss in pure replay, from the fitted budgets on."""
    curve = replace(random_curve(np.random.default_rng(8), law, 100), lowest=-2.0)
    budgets = np.linspace(-2.0, np.log(1e9), 2001)
    loss = by_law(curve, 1.0, budgets)
    at = budgets[loss.argmin(0)]
    inside = (at > budgets[0] + 1) & (at < budgets[-1] - 1)
    assert inside.any() == ("curve_B" in law.exponents)  # plain laws decrease monotonically
    least = curve.minimum(1.0)
    np.testing.assert_allclose(least[inside], loss.min(0)[inside], rtol=1e-5)
    assert (least <= loss[-1] * (1 + 1e-9)).all()


def test_own_share_orientation():
    """A law in the modelled domain's own share of the data depends on 1 - r."""
    curve = curve_of(true_fits(WORLD)[0], PlannedRun(8.1e9, 279))
    (member,) = curve.members
    own = replace(curve, members=(replace(member, law=replace(member.law, ratio="own")),))
    np.testing.assert_allclose(own.loss([2.0], [0.3]), curve.loss([2.0], [0.7]))


# -- searches -------------------------------------------------------------------------------------


def test_the_first_point_and_the_least_value_of_each_element():
    rng = np.random.default_rng(0)
    root, depth = rng.uniform(-4, 4, 200), rng.normal(0, 1, 200)
    nodes = np.linspace(-5, 5, 21)[:, None]
    np.testing.assert_allclose(first(lambda u: u >= root, nodes), root, rtol=1e-11, atol=1e-11)
    last = first(lambda u: u <= root, nodes[::-1])
    np.testing.assert_allclose(last, root, rtol=1e-11, atol=1e-11)
    assert (first(lambda u: u + 0 * root > 9, nodes) == np.inf).all()
    assert (first(lambda u: u + 0 * root < 9, nodes) == nodes[0]).all()
    place, least = minima(lambda u: (u - root) ** 2 + depth, nodes)
    np.testing.assert_allclose(place, root, atol=1e-6)
    np.testing.assert_allclose(least, depth, atol=1e-12)
    place, _ = minima(lambda u: -u + 0 * root, nodes)
    np.testing.assert_allclose(place, 5.0)


def test_a_search_leaves_its_first_grid_only_within_its_bounds():
    def worth(a):
        return np.abs(a - 7.0), a

    for high, wanted in ((10.0, 7.0), (5.0, 5.0)):
        _, (place,) = search(worth, [np.linspace(0, 2, 3)], [(0.0, high)], [1e-7])
        assert place == pytest.approx(wanted, abs=1e-6)


@dataclass(frozen=True)
class Drawn:
    """A curve by a formula of log ATPP and replay ratio, moved for each draw."""

    formula: object
    moves: np.ndarray
    params: float = 1e9

    @property
    def draws(self):
        return len(self.moves)

    def loss(self, budgets, replay):
        u = np.asarray(budgets, float)
        u = u[..., None] if u.ndim > 1 else u[:, None, None]
        return self.formula(u, np.asarray(replay)[:, None]) + self.moves

    def along(self, budgets, replay):
        return self.formula(budgets, replay) + self.moves

    def take(self, draws):
        return replace(self, moves=self.moves[draws])


def drawn_problem(target, source, confidence=0.9, draws=500):
    rng = np.random.default_rng(3)
    silent = Noise({"noise": np.zeros(draws)})
    limits = (
        Limit(Drawn(target, 0.01 * rng.standard_normal(draws)), 1.0, silent),
        Limit(
            Drawn(source, 0.01 * rng.standard_normal(draws)),
            0.0,
            silent,
            baseline=1.0,
            relative=True,
        ),
    )
    return Problem(limits, confidence)


def test_the_monte_carlo_error_where_draws_hold_for_a_range_of_budgets():
    """A source that forgets more, the more tokens: many draws that need less fail at the plan."""

    def target(u, r):
        return 1.0 + 0.005 * (2.0 - u) + 0 * r

    def source(u, r):
        return 1.0 + 0.005 * (u - 3.0) + 0 * r

    problem, ratios = drawn_problem(target, source, 0.33, 4000), np.array([0.3])
    (place,) = smallest(problem, ratios)
    error, held_out = monte_carlo(problem, ratios, place, 1, np.random.default_rng(0))
    low, high = np.log(error["atpp_90"])
    assert (problem.needed(0.3) <= place[0]).mean() > 0.38
    assert error["infeasible"] == 0
    assert 0 < high - low < 0.5
    assert low < place[0] < high
    assert held_out == pytest.approx(0.33, abs=0.015)


@pytest.mark.parametrize("deeper", [0.2, 0.8])
def test_of_two_islands_the_lower_one_is_found(deeper):
    """P(both) has an island at replay .2 and one at .8, with less budget at one of them."""

    def target(u, r):
        valley = 2 * np.minimum(np.abs(r - deeper), np.abs(r - (1 - deeper)) + 0.03)
        return 2.0 - 0.2 * u + valley

    problem = drawn_problem(target, lambda u, r: 0.5 + 0 * u * r)
    ((budget, ratio),) = smallest(problem, np.linspace(0.005, 0.995, 34))
    assert ratio == pytest.approx(deeper, abs=0.01)
    needed = np.sort(problem.limits[0].curve.moves)[problem.rank - 1]
    assert budget == pytest.approx((1.0 + needed) / 0.2, abs=0.01)


def test_a_feasible_window_between_the_nodes_is_found():
    """Of .04 e-folds at one replay ratio: the target needs tokens that forgetting forbids."""

    def target(u, r):
        return 1.0 - 0.05 * (u - 2.011) + 3 * np.abs(r - 0.3333)

    def source(u, r):
        return 1.0 + 0.05 * (u - 2.69) + 0 * r

    problem = drawn_problem(target, source)
    ((budget, _),) = smallest(problem, np.linspace(0.005, 0.995, 34))
    fine = np.linspace(1.5, 3.5, 2001)
    held = problem.held(fine, np.array([0.3333]))[:, 0] >= problem.rank
    assert 0 < held.mean() < 0.05
    assert budget == pytest.approx(fine[held.argmax()], abs=0.005)
    ((missed, _),) = smallest(replace(problem, confidence=0.999), np.linspace(0.005, 0.995, 34))
    assert missed == np.inf
    count, likely, _ = likeliest(problem, np.linspace(0.005, 0.995, 34))
    assert count >= problem.held(fine, np.array([0.3333])).max() - 2
    assert problem.rank <= count <= problem.draws
    assert 2 < likely < 3


def problems(law, baseline, count, draws=60):
    rng = np.random.default_rng(8)
    for _ in range(count):
        target, source = (replace(random_curve(rng, law, draws), lowest=0.0) for _ in range(2))
        at = rng.uniform(-2, 4)
        losses = [float(np.median(curve.loss([at], [0.3]))) for curve in (target, source)]
        max_loss, rise = losses[0] * rng.uniform(1.0, 1.3), rng.uniform(0, 0.3)
        relative, confidence = bool(rng.integers(2)), rng.choice([0.1, 0.3, 0.6])
        totals, bases = rng.normal(0, 0.01, (2, 2, draws))
        noise = [
            Noise({"noise": total - base, "base": base})
            for total, base in zip(totals, bases, strict=True)
        ]
        start = baseline or losses[1]
        limits = (
            Limit(target, max_loss, noise[0]),
            Limit(source, rise, noise[1], baseline=start, relative=relative),
        )
        yield Problem(limits, confidence)


CASES = [
    load_law("form1"),
    Curvature().apply(load_law("chinchilla")),
    with_terms(*TWICE),
    with_terms(*RISING),
]


@pytest.mark.parametrize("law", CASES, ids=lambda law: f"{law.name}-{len(law.parameters)}")
@pytest.mark.parametrize("baseline", [None, "asymptote"])
def test_plans_are_the_smallest_of_brute_force(law, baseline):
    """No budget of a fine grid that is 2 % smaller has as many draws, at any ratio searched."""
    finite, ratios = 0, np.linspace(0.05, 0.95, 19)
    for problem in problems(law, baseline, 3 if law.deviations else 12):
        ((budget, ratio),) = smallest(problem, ratios)
        if budget == -np.inf:
            continue
        fine = np.arange(-14, min(budget - 0.02, 14), 0.1)
        held = problem.held(fine, ratios)
        assert (held < problem.rank).all()
        if np.isfinite(budget):
            finite += 1
            at = problem.held(np.array([budget, budget - 1e-9]), np.array([ratio]))[:, 0]
            assert at[0] >= problem.rank > at[1]
    assert finite >= 2 or baseline


@pytest.mark.parametrize("cap", [0.0, np.inf])
def test_the_most_probable_choice_under_a_cap(cap):
    """No ratio and budget of a fine grid has more draws, but for one or two."""
    for problem in problems(with_terms(*TWICE), None, 8):
        count, budget, ratio = likeliest(problem, RATIOS, cap)
        assert budget <= cap
        fine = np.arange(-14, min(cap, 15) + 1e-9, 0.25)
        assert count >= problem.held(fine, RATIOS).max() - 2
        if count:
            assert problem.held(np.array([budget]), np.array([ratio]))[0, 0] == count


def test_the_budget_that_each_draw_needs():
    rng = np.random.default_rng(5)
    for law in CASES[:3]:
        curve, r = random_curve(rng, law, 100), rng.random()
        limit = random_limit(rng, curve, r)
        problem = Problem((Limit(curve, 1.0, Noise({"noise": -np.log(limit)})),), 0.5)
        needed = problem.needed(r)
        fine = np.linspace(NODES[0], 18, 3401)
        holds = by_law(curve, r, fine) <= limit
        wanted = np.where(holds.any(0), fine[holds.argmax(0)], np.inf)
        some = (wanted > NODES[0]) & (wanted < np.inf)
        assert (np.abs(needed[some] - wanted[some]) < 0.011).mean() > 0.97
        assert (needed[wanted == NODES[0]] == NODES[0]).all()
