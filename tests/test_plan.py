"""Plans against brute force: losses on the grid, searches, limits, bases, choices and errors."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest

from bayeslaw import (
    BayeslawError,
    NotConverged,
    PointFit,
    Pool,
    from_frame,
    grid,
    load_law,
    locate,
    plan,
    simulate,
)
from bayeslaw.huber.point_fit import for_table
from bayeslaw.laws.law import CLIP
from bayeslaw.laws.terms import ORIGIN, Term
from bayeslaw.model.discrepancy import Curvature
from bayeslaw.planning.grid import FAR, NODES, Curve, LawDraws, first, minima, search
from bayeslaw.planning.planned_run import (
    PlannedRun,
    curve_of,
    deviations,
    extrapolations,
    planned_base,
)
from bayeslaw.planning.planner import baseline_of
from bayeslaw.planning.problem import Limit, Noise, Problem, likeliest, monte_carlo, smallest
from bayeslaw.planning.result import INFEASIBLE, choice_at
from bayeslaw.simulation.worlds import true_fits
from bayeslaw.tables.hull import evidence
from tests.posteriors import (
    BASE,
    GOOD,
    LIMITS,
    WORLD,
    adapted,
    both,
    drawn,
    losses,
    over_replay,
    posterior,
    transfer,
)
from tests.support import CHINCHILLA, DESIGN, TRANSFER, saved, truth_of


@pytest.fixture(scope="module")
def fits():
    return both()


@pytest.fixture(scope="module")
def found(fits):
    return plan(**fits, **LIMITS, baseline=BASE)


# -- losses on the grid ---------------------------------------------------------------------------

LOG_ATPP = np.linspace(-14, 18, 257)
RATIOS = np.linspace(0.05, 0.95, 7)
BUDGETS = np.concatenate([NODES, FAR])[:, None]
AT = {
    "params": np.log(1e9),
    "tokens": np.log(5e9),
    "ptpp": np.log(60),
    "replay": np.log(0.25),
    "barrier": np.log(0.25 + 1e-5),
    "share": 0.25,
    "mixed": np.log(0.35),
}
NAMES = ("form1", "form2", "form3", "dcpt", "chinchilla")
every_law = pytest.mark.parametrize(
    "law",
    [law for name in NAMES for law in (load_law(name), Curvature().apply(load_law(name)))],
    ids=lambda law: f"{law.name}-{len(law.parameters)}",
)


def with_terms(*terms):
    """Form 1 with its term in D, and another one."""
    law = load_law("form1")
    data = Term("B", "slope_D", "-beta*log(D) + nu*log(r)")
    rest = tuple(t for t in law.terms if t.coefficient != "B")
    return replace(law, terms=(*rest, data, *terms))


TWICE = with_terms(Term("G", "slope_G", "-phi*log(D)"))
RISING = with_terms(Term("G", "slope_G", "-alpha*log(N) + phi*log(D)"))


def random_curve(rng, law, draws):
    """Draws with curvatures of either sign and exact zeros, at a random model and stage."""
    p = {"E": rng.uniform(0.4, 2.0, draws)}
    for name in law.coefficients:
        p[name] = rng.lognormal(np.log(0.2), 0.9, draws) * (rng.random(draws) > 0.02)
    for name in law.exponents:
        size = rng.lognormal(np.log(0.3), 0.6, draws) * (rng.random(draws) > 0.02)
        if name == "lambda_":
            size = rng.random(draws)
        elif name == "zeta" or name.startswith("tilt"):
            size = rng.normal(0, 0.7, draws)
        elif name.startswith(("curve", "cross")):
            size = rng.normal(0, 0.15, draws) * (rng.random(draws) > 0.1)
        elif name.startswith("drift_"):
            size = rng.normal(0, 0.02, draws)
        p[name] = size
    params, ptpp = np.exp(rng.uniform(np.log(1e8), np.log(2e10))), rng.uniform(5, 300)
    return at_one_stage(law, p, params, ptpp)


def at_one_stage(law, p, params, ptpp, at=AT):
    draws = LawDraws(law, p, at)
    return Curve((draws,), (np.arange(draws.count),), params, ptpp)


def by_law(curve, replay, budgets):
    """Loss of shape (budgets, draws) from the formula of the law; budgets may differ by draw."""
    member = curve.members[0]
    row = {"params": curve.params, "ptpp": curve.ptpp, "replay": replay, "tokens": curve.params}
    x = member.law.covariates(pd.DataFrame([row]))
    x["tokens"] = x["tokens"] + budgets
    p = {name: value[:, None] for name, value in member.p.items()}
    with np.errstate(over="ignore"):
        loss = member.law.loss(p, x, member.at)
    return np.broadcast_to(loss, (curve.draws, np.shape(budgets)[-1])).T


@every_law
def test_losses_are_those_of_the_law(law):
    """Also where deviations outweigh a term, so that the loss vanishes without tokens."""
    rng, rising = np.random.default_rng(1), 0
    for replay in [0.0, 1.0, CLIP, 1 - CLIP, *rng.random(3)]:
        curve = random_curve(rng, law, 100)
        wanted = by_law(curve, replay, LOG_ATPP)
        loss = curve.loss(LOG_ATPP, [replay, 0.5])[:, 0]
        np.testing.assert_allclose(loss, wanted, rtol=1e-12)
        np.testing.assert_allclose(curve.along(LOG_ATPP[:, None], replay), loss, rtol=1e-12)
        rising += (wanted[1] > wanted[0] * 1.01).sum()
    assert (rising > 0) == ("curve_B" in law.exponents)


@every_law
def test_the_asymptote_is_the_least_loss_in_pure_replay_from_the_fitted_budgets_on(law):
    curve = replace(random_curve(np.random.default_rng(8), law, 100), lowest=-2.0)
    budgets = np.linspace(-2.0, np.log(1e9), 2001)
    loss = by_law(curve, 1.0, budgets)
    at = budgets[loss.argmin(0)]
    inside = (at > budgets[0] + 1) & (at < budgets[-1] - 1)
    assert inside.any() == ("curve_B" in law.exponents)  # plain laws decrease monotonically
    least = curve.minimum(1.0)
    np.testing.assert_allclose(least[inside], loss.min(0)[inside], rtol=1e-5)
    assert (least <= loss[-1] * (1 + 1e-9)).all()


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
    loss = curve.loss([-np.inf, -16.0, least - 0.1, least + 0.1], [1.0])[:, 0, 0]
    np.testing.assert_allclose(loss, wanted)
    (reached,) = first(lambda u: curve.along(u, 1.0) <= 2.5, BUDGETS)
    assert curve.loss([reached], [1.0])[0, 0, 0] == pytest.approx(2.5)
    assert reached > np.log(20)


def test_a_law_in_the_share_of_the_new_data_depends_on_1_less_the_ratio():
    curve = curve_of(true_fits(WORLD)[0], PlannedRun(8.1e9, 279))
    (member,) = curve.members
    own = replace(curve, members=(replace(member, law=replace(member.law, ratio="own")),))
    np.testing.assert_allclose(own.loss([2.0], [0.3]), curve.loss([2.0], [0.7]))


RISE = {"rising": 1.0}
CONCAVE = {"curve_B": -0.25}
FORGETTING = {"E": 0.6, "A": 14.0, "alpha": 0.25, "F": 57.0, "eta": 0.4, "phi": 0.31, "rho": 1.4}
FORGETTING |= {"G": 0.42, "xi": 3.0, "omega": 3.2}
KATO = {"E": 1.6, "A": 60.0, "alpha1": 0.02, "alpha2": 0.42, "alpha3": 0.011}
TRUTHS = {"liew_kato": KATO, "forgetting": FORGETTING, "transfer": TRANSFER}
STAGES = grid(params=[1e8, 4e8, 1.6e9], ptpp=[10, 40, 160], tokens=np.geomspace(1e8, 3e10, 6))
# Law, discrepancy, distinct tokens, and what moves it so that its loss rises with tokens.
LATENT = [
    ("chinchilla", "walk", None, {}),
    ("chinchilla", "trend", None, RISE),
    ("chinchilla", "curvature", None, CONCAVE),
    ("chinchilla", "walk", 3e10, RISE),
    ("skaling", "auto", None, {}),
    ("liew_kato", "auto", None, {}),
    ("dcpt", "auto", None, {}),
    ("form1", "none", None, {}),
    ("form1", "auto", 3e10, RISE),
    ("form2", "auto", None, {}),
    ("form3", "curvature", 1e9, CONCAVE),
    ("form3n", "auto", None, RISE),
    ("forgetting", "none", None, {}),
    ("transfer", "auto", None, RISE),
    ("pool", "auto", None, {}),
]


def made(name, discrepancy="auto", unique=None, seed=1, **moved):
    """A posterior, or a pool of them, without a fit."""
    if name == "pool":
        laws = ("form1n", "transfer")
        return Pool({law: made(law, discrepancy, unique, seed, **moved) for law in laws})
    truth, table = TRUTHS.get(name) or truth_of(load_law(name).parameters), transfer()[1]
    if name not in ("transfer", "form1n"):
        table = simulate(name, truth, STAGES if name == "liew_kato" else DESIGN, sigma=0.002)
    if unique:
        distinct = np.resize([3e9, 1e12], len(table))
        table = from_frame(table.frame.assign(unique_tokens=distinct))
    truth = truth | ({"R_D": 8.0} if unique else {})
    return drawn(for_table(load_law(name), table), table, truth, discrepancy, seed, **moved)


def around_the_rows(fit):
    """A model and stage, and budgets and ratios below, inside and above the fitted rows."""
    rows = fit.table.frame
    run = {"params": rows["params"].max(), "ptpp": rows["ptpp"].max() if "ptpp" in rows else 20.0}
    low, high = rows["tokens"].min() / run["params"], (rows["tokens"] / rows["params"]).max()
    atpp = np.array([low / 30, low / 3, *np.geomspace(low, high, 3), 3 * high, 3e3])
    return run, atpp, np.array([0.02, 0.3, 0.9] if "replay" in fit.columns else [1.0])


def is_the_forecast(fit, unique=None):
    run, atpp, ratios = around_the_rows(fit)
    at = grid(**run, tokens=atpp * run["params"], replay=ratios)
    at = at.assign(unique_tokens=unique) if unique else at
    wanted = fit.latent(at).T.reshape(len(atpp), len(ratios), -1)
    loss = curve_of(fit, PlannedRun(**run, unique_tokens=unique)).loss(np.log(atpp), ratios)
    np.testing.assert_allclose(loss, wanted, rtol=1e-9)


@pytest.mark.parametrize(("name", "discrepancy", "unique", "moved"), LATENT)
def test_planned_losses_are_those_of_forecasts(name, discrepancy, unique, moved):
    """Draw by draw, below, inside and above the fitted rows."""
    is_the_forecast(made(name, discrepancy, unique, **moved), unique)


@pytest.mark.parametrize(("name", "unique"), [("columns", 5e9), ("columns", None), ("rates", None)])
def test_a_planned_run_ends_annealed_and_at_its_best_rate(name, unique):
    is_the_forecast(saved(name), unique)


@pytest.mark.parametrize("name", ["chinchilla", "pool"])
def test_probabilities_are_those_of_forecasts(name):
    target, source = made(name, seed=1), made(name, seed=2, **RISE)
    run, atpp, ratios = around_the_rows(target)
    at = grid(**run, tokens=atpp * run["params"], replay=ratios)
    levels, held = [], []
    for fit in (target, source):
        seeds = [fit.forecast(at, seed=k, beyond_evidence=True).samples for k in range(4)]
        levels.append(float(np.quantile(seeds[0][:, len(at) // 2], 0.6)))
        held.append(np.mean(np.array(seeds) <= levels[-1], (0, 1)).reshape(len(atpp), -1))
    asked = {"max_loss": levels[0], "max_forgetting": 0.0, "baseline": levels[1], **run}
    found = plan(target=target, source=source, **asked, replay_grid=ratios, confidence=0.1)
    for (i, j), one in np.ndenumerate(held[0]):
        choice, other = found.at(atpp=atpp[i], replay=ratios[j]), held[1][i, j]
        assert choice.p_target == pytest.approx(one, abs=0.1)
        assert choice.p_forgetting == pytest.approx(other, abs=0.1)
        assert choice.p_both == pytest.approx(one * other, abs=0.13)


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


@pytest.mark.parametrize(("high", "wanted"), [(10.0, 7.0), (5.0, 5.0)])
def test_a_search_leaves_its_first_grid_only_within_its_bounds(high, wanted):
    _, (place,) = search(
        lambda a: (np.abs(a - 7.0), a), [np.linspace(0, 2, 3)], [(0.0, high)], [1e-7]
    )
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
    """Limits of 1 on a target, and on a source's rise over 1."""
    rng, silent = np.random.default_rng(3), Noise({"noise": np.zeros(draws)})
    one, other = (Drawn(f, 0.01 * rng.standard_normal(draws)) for f in (target, source))
    limits = Limit(one, 1.0, silent), Limit(other, 0.0, silent, baseline=1.0, relative=True)
    return Problem(limits, confidence)


def test_the_monte_carlo_error_where_draws_hold_for_a_range_of_budgets():
    """A source that forgets more, the more tokens: many draws that need less fail at the plan."""
    problem = drawn_problem(
        lambda u, r: 1.0 + 0.005 * (2.0 - u) + 0 * r,
        lambda u, r: 1.0 + 0.005 * (u - 3.0) + 0 * r,
        0.33,
        4000,
    )
    ratios = np.array([0.3])
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
    problem = drawn_problem(
        lambda u, r: 1.0 - 0.05 * (u - 2.011) + 3 * np.abs(r - 0.3333),
        lambda u, r: 1.0 + 0.05 * (u - 2.69) + 0 * r,
    )
    ratios, fine = np.linspace(0.005, 0.995, 34), np.linspace(1.5, 3.5, 2001)
    ((budget, _),) = smallest(problem, ratios)
    most = problem.held(fine, np.array([0.3333]))[:, 0]
    held = most >= problem.rank
    assert 0 < held.mean() < 0.05
    assert budget == pytest.approx(fine[held.argmax()], abs=0.005)
    ((missed, _),) = smallest(replace(problem, confidence=0.999), ratios)
    assert missed == np.inf
    count, likely, _ = likeliest(problem, ratios)
    assert max(most.max() - 2, problem.rank) <= count <= problem.draws
    assert 2 < likely < 3


def problems(law, baseline, count, draws=60):
    rng = np.random.default_rng(8)
    for _ in range(count):
        target, source = (replace(random_curve(rng, law, draws), lowest=0.0) for _ in range(2))
        at = rng.uniform(-2, 4)
        one, other = (float(np.median(curve.loss([at], [0.3]))) for curve in (target, source))
        max_loss, rise = one * rng.uniform(1.0, 1.3), rng.uniform(0, 0.3)
        relative, confidence = bool(rng.integers(2)), rng.choice([0.1, 0.3, 0.6])
        totals, bases = rng.normal(0, 0.01, (2, 2, draws))
        noise = [
            Noise({"noise": total - base, "base": base})
            for total, base in zip(totals, bases, strict=True)
        ]
        limit = Limit(source, rise, noise[1], baseline=baseline or other, relative=relative)
        yield Problem((Limit(target, max_loss, noise[0]), limit), confidence)


CASES = [load_law("form1"), Curvature().apply(load_law("chinchilla")), TWICE, RISING]


@pytest.mark.parametrize("law", CASES, ids=["form1", "curvature", "twice", "rising"])
@pytest.mark.parametrize("baseline", [None, "asymptote"])
def test_plans_are_the_smallest_of_brute_force(law, baseline):
    """No budget of a fine grid that is 2 % smaller has as many draws, at any ratio searched."""
    finite, ratios = 0, np.linspace(0.05, 0.95, 19)
    for problem in problems(law, baseline, 3 if law.deviations else 12):
        ((budget, ratio),) = smallest(problem, ratios)
        if budget == -np.inf:
            continue
        fine = np.arange(-14, min(budget - 0.02, 14), 0.1)
        assert (problem.held(fine, ratios) < problem.rank).all()
        if np.isfinite(budget):
            finite += 1
            at = problem.held(np.array([budget, budget - 1e-9]), np.array([ratio]))[:, 0]
            assert at[0] >= problem.rank > at[1]
    assert finite >= 2 or baseline


@pytest.mark.parametrize("cap", [0.0, np.inf])
def test_the_most_probable_choice_under_a_cap(cap):
    """No ratio and budget of a fine grid has more draws, but for one or two."""
    for problem in problems(TWICE, None, 6):
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
        # A limit near the losses, so that every answer occurs: none, all, and some budgets.
        near = curve.loss([rng.uniform(-3, 5)], [r])[0, 0]
        limit = np.where(np.isfinite(near), near, 2.0) * np.exp(rng.normal(0, 0.2, curve.draws))
        problem = Problem((Limit(curve, 1.0, Noise({"noise": -np.log(limit)})),), 0.5)
        needed = problem.needed(r)
        fine = np.linspace(NODES[0], 18, 3401)
        holds = by_law(curve, r, fine) <= limit
        wanted = np.where(holds.any(0), fine[holds.argmax(0)], np.inf)
        some = (wanted > NODES[0]) & (wanted < np.inf)
        assert (np.abs(needed[some] - wanted[some]) < 0.011).mean() > 0.97
        assert (needed[wanted == NODES[0]] == NODES[0]).all()


# -- the smallest plan ----------------------------------------------------------------------------


def test_a_plan_is_the_smallest_at_which_enough_draws_meet_all_limits(fits, found):
    target, source = losses(fits, found)
    meets = (target <= 1.8) & (source <= 1.02 * BASE)
    assert (found.p_target, found.p_forgetting) == (
        np.mean(target <= 1.8),
        np.mean(source <= 1.02 * BASE),
    )
    assert found.p_both == meets.mean() >= 0.9
    assert found.p_failure == pytest.approx(0.1)
    assert found.flops == 6 * 8.1e9 * found.tokens
    assert found.tokens == 8.1e9 * found.atpp == int(found.tokens)
    assert found.losses == pytest.approx([target.mean()])
    assert found.forgetting == pytest.approx(np.mean(source / BASE - 1))
    target, source = losses(fits, replace(found, tokens=found.tokens * (1 - 1e-9)))
    assert np.mean((target <= 1.8) & (source <= 1.02 * BASE)) < 0.9
    target, source = over_replay(fits, 0.9999 * found.tokens)
    assert np.mean((target <= 1.8) & (source <= 1.02 * BASE), 0).max() < 0.9


def test_at_a_fixed_ratio_the_plan_is_an_order_statistic_of_thresholds():
    fits = both(40)
    found = plan(**fits, **LIMITS, baseline=BASE, confidence=0.9, replay_grid=[0.4])
    low, high = np.full(40, -5.0), np.full(40, 40.0)

    def misses(log_atpp):
        tokens = 8.1e9 * np.exp(log_atpp)
        rows = pd.DataFrame({"params": 8.1e9, "ptpp": 279, "replay": 0.4, "tokens": tokens})
        target = np.diag(fits["target"].latent(rows))
        source = np.diag(np.roll(fits["source"].latent(rows), 20, 0))
        return (target > 1.8) | (source > 1.02 * BASE)

    never = misses(high)
    for _ in range(50):
        middle = (low + high) / 2
        above = misses(middle)
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    thresholds = np.where(never, np.inf, np.exp(high))
    assert (found.replay, found.p_both) == (0.4, 0.9)
    assert found.atpp == pytest.approx(np.sort(thresholds)[35], rel=1e-9)


def test_limits_on_measured_losses_have_the_noise_of_a_run_and_a_seed(fits, found):
    noisy, again, other = (
        plan(**fits, **WORLD.limits, baseline=BASE, seed=seed, beyond_evidence=True)
        for seed in (1, 1, 2)
    )
    noise = [limit.noise.total for limit in noisy.problem.limits]
    assert np.std(noise[0]) == pytest.approx(WORLD.sigma["french"], rel=0.5)
    target, source = losses(fits, noisy)
    meets = (target * np.exp(noise[0]) <= 1.8) & (source * np.exp(noise[1]) <= 1.02 * BASE)
    assert noisy.p_both == meets.mean() >= 0.9
    assert noisy.to_dict() == again.to_dict()
    assert noisy.atpp not in (other.atpp, found.atpp)
    assert (noisy.noise, found.noise) == ("predictive", "latent")
    assert noisy.measured.p_both == noisy.p_both < noisy.latent.p_both
    assert found.latent.p_both == found.p_both > found.measured.p_both
    for each in (noisy, found):
        assert each.latent.tokens == each.measured.tokens == each.tokens
        assert each.to_dict()["latent"]["p_both"] == each.latent.p_both


@pytest.mark.parametrize("replay", [0.0, CLIP, 1 - CLIP, 1.0])
def test_plans_at_the_ends_of_the_replay_range(replay):
    """Pure adaptation, and pure replay, on laws that allow them."""
    p = {"E": 1.5, "A": 0.0, "alpha": 0.3, "B": 50.0, "beta": 0.25, "nu": 0.0}
    p |= {"C": 0.0, "gamma": 0.1, "F": 0.0, "eta": 0.3}
    fit = replace(true_fits(WORLD)[1], law=load_law("form1"), parameters=p)
    limits = LIMITS | {"max_loss": 1.6, "max_forgetting": 0.1}
    found = plan(target=fit, source=fit, **limits, baseline=1.5, replay_grid=[replay])
    assert found.tokens == pytest.approx((50 / 0.1) ** (1 / 0.25), rel=1e-9)
    assert found.replay == replay


def test_laws_without_replay_or_tokens():
    law = load_law("chinchilla")
    table = simulate(law, CHINCHILLA, grid(params=[1e8, 1e9], tokens=[1e9, 1e10]))
    fit = replace(true_fits(WORLD)[0], law=law, parameters=CHINCHILLA, table=table)
    asked = {"target": fit, "source": fit, **LIMITS, "max_loss": 2.2, "baseline": 2.2}
    for ratios in (None, [0.3, 1.0]):
        with pytest.raises(BayeslawError, match="the law chinchilla does not know replay"):
            plan(**asked, replay_grid=ratios)
    found = plan(**asked, replay_grid=[1.0])
    tokens = (410 / (2.2 - 1.7 - 400 / 8.1e9**0.34)) ** (1 / 0.28)
    assert found.tokens == pytest.approx(tokens, rel=1e-9)
    never = replace(fit, law=replace(law, terms=law.terms[:1]))
    assert plan(**asked | {"target": never, "source": never}, replay_grid=[1.0]).tokens == 0


@pytest.mark.parametrize("unit", [1, 1e6, 1e9])
def test_papers_plan_from_the_true_laws_in_any_unit_of_tokens(unit):
    """With a gated exponent the unit of D is part of the law; a plan uses the law's own unit."""
    p = WORLD.truth["french"]
    beta = p["beta"] * (1 - p["lambda_"] / (1 + 279 ** -p["zeta"]))
    target, source = true_fits(WORLD)
    own = target.law.token_unit
    law = replace(target.law, token_unit=own * unit)
    target = replace(target, law=law, parameters=p | {"B": p["B"] / unit**beta})
    found = plan(target=target, source=source, **LIMITS, baseline=BASE)
    assert found.atpp == pytest.approx(8.9, abs=0.01)
    assert found.replay == pytest.approx(0.34, abs=0.001)
    assert (found.p_both, found.draws, found.error) == (1, 1, {})
    assert found.deterministic.atpp == found.atpp
    # The paper's closed form of the threshold.
    rest = p["E"] + p["A"] / 8.1e9 ** p["alpha"] + p["F"] / 279 ** p["eta"]
    rest += p["C"] / (0.9 + law.epsilon) ** p["gamma"]
    tokens = own * (p["B"] * 0.9 ** p["nu"] / (1.8 - rest)) ** (1 / beta)
    loose = LIMITS | {"max_forgetting": 0.9, "beyond_evidence": True}
    found = plan(target=target, source=source, **loose, baseline=BASE, replay_grid=[0.9])
    assert found.tokens == pytest.approx(tokens, rel=1e-9)


# -- several targets and sources ------------------------------------------------------------------


def test_several_targets_are_met_jointly(fits, found):
    """The draws of the three fits are shifted differently."""
    other = posterior("french", seed=7)
    asked = {"target": [fits["target"], other], "source": fits["source"], "max_loss": [1.8, 1.79]}
    more = plan(**LIMITS | asked, baseline=BASE)
    rows = grid(params=8.1e9, ptpp=279, replay=more.replay, tokens=more.tokens)
    one, two, source = (fit.latent(rows)[:, 0] for fit in (*asked["target"], fits["source"]))
    meets = np.stack([one <= 1.8, np.roll(two, 133) <= 1.79, np.roll(source, 266) <= 1.02 * BASE])
    assert more.p_targets == (meets[0].mean(), meets[1].mean())
    assert more.p_target == meets[:2].all(0).mean()
    assert more.p_both == meets.all(0).mean() >= 0.9
    assert more.pairing.startswith("independently: 3 fits")
    assert more.atpp > found.atpp
    impossible = plan(**LIMITS | asked | {"max_loss": [1.8, 1.3]}, baseline=BASE)
    assert impossible.binds.startswith("target 2; alone, P(target 1) up to 1")


def test_several_sources_have_limits_and_baselines_of_their_own(fits, found):
    sources = [fits["source"], posterior("english_arabic", spread=0.006, seed=7)]
    asked = LIMITS | {"max_forgetting": [0.02, 0.016], "baseline": [BASE, (1.001 * BASE, 0.001)]}
    both = plan(target=fits["target"], source=sources, **asked, replay_grid=[0.3, 0.4, 0.5, 0.6])
    rows = grid(params=8.1e9, ptpp=279, replay=both.replay, tokens=both.tokens)
    latent = [
        fit.latent(rows)[:, 0][limit.index]
        for fit, limit in zip((fits["target"], *sources), both.problem.limits, strict=True)
    ]
    starts = both.problem.sources[1].baseline
    assert np.std(starts) == pytest.approx(0.001, rel=0.2)
    holds = [latent[0] <= 1.8, latent[1] <= 1.02 * BASE, latent[2] <= 1.016 * starts]
    assert both.p_both == np.mean(np.all(holds, axis=0)) >= 0.9
    assert both.p_sources == (np.mean(holds[1]), np.mean(holds[2]))
    assert both.p_forgetting == np.mean(holds[1] & holds[2])
    assert both.forgettings[1] == pytest.approx(np.mean(latent[2] / starts - 1))
    assert both.atpp >= found.atpp
    assert both.problem.names == ("target", "forgetting 1", "forgetting 2")
    assert both.to_dict()["limits"]["max_forgetting"] == [0.02, 0.016]
    assert list(both.spread.index) == ["target", "source 1", "source 2"]
    assert set(both.sensitivity()["quantity"]) == {"max_loss", "max_forgetting", "baseline"}


def test_each_limit_has_the_noise_and_the_baseline_of_its_own_draws():
    """Of several targets and sources, also where the draws are thinned."""
    scales, noisy = [0.001, 0.03, 0.002, 0.04], []
    for k, scale in enumerate(scales):
        fit = posterior("french" if k < 2 else "english_arabic", seed=k)
        noisy.append(replace(fit, draws=fit.draws.assign(sigma=0 * fit.draws["sigma"] + scale)))
    asked = {
        "max_loss": [1.8, 1.9],
        "max_forgetting": [0.05, 0.2],
        "baseline": [BASE, (BASE, 0.05)],
    }
    asked |= {"confidence": 0.3, "replay_grid": [0.4], "params": 8.1e9, "ptpp": 279}
    found = plan(target=noisy[:2], source=noisy[2:], **asked)
    limits = found.problem.limits
    deviations = [np.median(np.abs(limit.noise.total)) for limit in limits]
    np.testing.assert_allclose(deviations, 0.7 * np.array(scales), rtol=0.2)
    # The baselines are in the order of the draws of their own source.
    rng = np.random.default_rng([0, 11])
    np.testing.assert_array_equal(
        limits[3].baseline, (BASE + 0.05 * rng.standard_normal(400))[limits[3].index]
    )
    some = np.array([399, 5, 250, 12])
    at = [found.budget], [found.replay]
    whole, part = (p.excesses(*at) for p in (found.problem, found.problem.take(some)))
    np.testing.assert_array_equal(part, np.array(whole)[..., some])


def test_pairing_is_reported(fits, found):
    def at(**fits):
        return plan(**fits, **LIMITS, baseline=BASE, replay_grid=[0.4], beyond_evidence=True)

    assert found.pairing.startswith("independently")
    joint = at(**{name: replace(fit, settings={"joint": "a"}) for name, fit in fits.items()})
    assert joint.pairing.startswith("jointly")
    certain = at(target=fits["target"], source=true_fits(WORLD)[1])
    assert "point fits" in certain.pairing
    assert certain.draws == 400
    assert at(target=fits["target"], source=posterior("english_arabic", 100)).draws == 100


# -- baselines ------------------------------------------------------------------------------------


def test_baselines_that_are_computed_or_measured(fits, found):
    asymptote = plan(
        **fits, **LIMITS | {"max_forgetting": 0.1}, baseline="asymptote", confidence=0.7
    )
    rows = grid(params=8.1e9, ptpp=279, replay=1.0, tokens=1e300)
    floor = np.roll(fits["source"].latent(rows)[:, 0], 200)
    target, source = losses(fits, asymptote)
    assert asymptote.p_both == np.mean((target <= 1.8) & (source <= 1.1 * floor))
    nats = plan(**fits, **LIMITS | {"max_forgetting": 0.02 * BASE}, relative=False)
    assert nats.atpp == pytest.approx(found.atpp, rel=1e-9)
    assert "tokens = 0" in nats.baseline  # of the table
    unsure = plan(**fits, **LIMITS, baseline=(BASE, 0.01), replay_grid=[0.4])
    assert unsure.problem.source.baseline.mean() == pytest.approx(BASE, abs=2e-3)
    assert unsure.problem.source.baseline.std() == pytest.approx(0.01, rel=0.15)
    assert unsure.deterministic_problem.source.baseline == pytest.approx(BASE, abs=2e-3)
    assert "with sd 0.01" in unsure.baseline
    assert unsure.atpp > found.atpp


def test_baseline_of_a_law_that_has_a_value_at_zero():
    """The law's loss at D = 0 against one by hand; limits that it meets need no tokens."""
    p = {"E": 1.5, "A": 100.0, "alpha": 0.3, "F": 0.5, "eta": 0.3, "phi": 0.01, "rho": 1.0}
    p |= {"G": 0.2, "xi": 2.0, "omega": 2.0}
    target, source = true_fits(WORLD)
    source = replace(source, law=load_law("forgetting"), parameters=p)
    start = 1.5 + 100 / 8.1e9**0.3 + 0.5 / (8.1e9**0.01 * 279**0.3)
    asked = LIMITS | {"target": target, "source": source, "beyond_evidence": True}
    own, given = (plan(**asked, baseline=b) for b in ("law", start))
    assert own.best is None
    assert own.atpp == pytest.approx(given.atpp, rel=1e-9)
    assert own.forgetting == pytest.approx(given.forgetting, rel=1e-9)
    assert own.baseline.startswith("source law's own loss at D = 0")
    with pytest.raises(BayeslawError, match="one of 'asymptote', 'law'"):
        plan(**asked)
    fit = replace(source, parameters=p | {"A": 0.0, "F": 0.0, "phi": 0.3})
    none = plan(target=fit, source=fit, **LIMITS | {"max_loss": 3.0}, baseline="law")
    assert (none.status, none.tokens, none.p_both) == ("feasible", 0, 1)
    assert none.deterministic.tokens == 0
    assert (none.sensitivity()["held"] == 1).all()


def test_baseline_of_a_numbered_base_on_the_domain_of_the_source(fits):
    table = fits["source"].table
    rows = pd.concat([table.frame, table.baselines], ignore_index=True)
    rows["base"] = rows.groupby(["params", "ptpp"]).ngroup().astype(float)
    rows.loc[0, "base"] = np.nan
    other = rows[rows["tokens"] == 0].assign(domain="greek", loss=9.0)

    def source_with(parts):
        read = from_frame(pd.concat(parts))
        return replace(
            fits["source"], table=replace(table, frame=read.frame, baselines=read.baselines)
        )

    fit = source_with([rows, other])
    run = PlannedRun(8.1e9, 279, planned_base([fit], PlannedRun(8.1e9, 279))[0])
    assert run.base == "11"
    assert baseline_of(None, fit, run)[0] == pytest.approx(BASE)
    with pytest.raises(BayeslawError, match="0 rows with tokens = 0"):
        baseline_of(None, source_with([rows[rows["tokens"] > 0], other]), run)


# -- bases ----------------------------------------------------------------------------------------

TAU = 0.02
NEW = PlannedRun(8.1e9, 279, "new")


def labelled(domain, tau=TAU, **settings):
    """A posterior with an effect of each base, .01 at the one named "big" and zero elsewhere."""
    fit = posterior(domain)
    big = fit.table.frame.eval("params == 8.1e9 and ptpp == 31")
    name = np.where(big, "31", fit.table.frame["params"].astype(str))
    frame = fit.table.frame.assign(base=name)
    frame.loc[frame.index[-1], ["params", "ptpp", "base"]] = 8.1e9, 279, "big"
    names = np.unique(frame["base"])
    rng = np.random.default_rng(3)
    effect = 0.001 * rng.standard_normal((4, 100, len(names))) + 0.01 * (names == "big")
    draws = fit.draws.assign_coords(base=names).assign(
        tau_base=(("chain", "draw"), np.full((4, 100), tau)),
        base_effect=(("chain", "draw", "base"), effect),
    )
    spec, table = replace(fit.spec, effects=("base",)), replace(fit.table, frame=frame)
    return replace(fit, spec=spec, table=table, draws=draws, settings=settings)


def test_a_fitted_base_has_its_posterior_and_a_new_one_is_drawn():
    known, new = (
        deviations([labelled("french")], PlannedRun(8.1e9, 279, base))[0].base
        for base in ("big", "new")
    )
    assert np.median(known) == pytest.approx(0.01, abs=3e-4)
    assert known.std() == pytest.approx(0.001, rel=0.2)
    assert np.median(new) == pytest.approx(0, abs=3e-3)
    assert new.std() == pytest.approx(TAU, rel=0.15)


def test_the_base_is_the_only_one_of_its_model_and_stage():
    """One may be labelled "new": the name is then that base's."""
    bases = [labelled("french"), labelled("english_arabic")]

    def base(bases=bases, ptpp=279, name=None):
        return planned_base(bases, PlannedRun(8.1e9, ptpp, name))

    assert base() == ("big", "base big, with rows of its own")
    for label, text in (base(name="new"), base(ptpp=200)):
        assert label == "new"
        assert text.startswith("a new base")
    with pytest.raises(BayeslawError, match=r"base 'bigg'; did you mean 'big'"):
        base(name="bigg")
    with pytest.raises(BayeslawError, match=r"'31' has params = 8.1e\+09, ptpp = 31"):
        base(name="31")
    renamed = []
    for fit in bases:
        frame = fit.table.frame.assign(base=fit.table.frame["base"].replace("big", "new"))
        draws = fit.draws.assign_coords(base=[*fit.draws["base"].values[:-1], "new"])
        renamed.append(replace(fit, table=replace(fit.table, frame=frame), draws=draws))
    for name in (None, "new"):
        assert base(renamed, name=name) == ("new", "base new, with rows of its own")
    effect = deviations(renamed, NEW)[0].base
    np.testing.assert_array_equal(effect, deviations(bases, replace(NEW, base="big"))[0].base)
    with pytest.raises(BayeslawError, match="a base is labelled 'new'"):
        base(renamed, ptpp=200)


def test_the_effect_of_the_base_cancels_against_a_computed_baseline():
    """The un-adapted model has it as well; against a measured baseline it does not cancel."""
    shares = {}
    for tau in (1e-6, 0.05):
        source = labelled("english_arabic", tau)
        curve, (noise,) = curve_of(source, NEW), deviations([source], NEW)
        for baseline, atpp in (("asymptote", 12.0), (BASE, 9.0)):
            limit = Limit(curve, 0.1, noise, baseline=baseline, relative=True)
            held = Problem((limit,), 0.6).held(np.log([atpp]), np.array([0.4]))
            shares[tau, baseline] = held.item()
    assert shares[1e-6, "asymptote"] == shares[0.05, "asymptote"]
    assert shares[1e-6, BASE] != shares[0.05, BASE]


def test_new_groups_of_joint_fits_are_correlated():
    joint = {"joint": "ab12", "correlation": {"base": [[1, 0.9], [0.9, 1]]}}
    for about, wanted, near in ((joint, 0.9, 0.05), ({}, 0.0, 0.15)):
        fits = [
            labelled(domain, **about, **({"place": k} if about else {}))
            for k, domain in enumerate(("french", "english_arabic"))
        ]
        one, two = (each.base for each in deviations(fits, NEW))
        assert np.corrcoef(one, two)[0, 1] == pytest.approx(wanted, abs=near)


def test_shares_of_the_variance_of_a_new_base():
    fits = {"target": labelled("french", 0.004), "source": labelled("english_arabic", 0.004)}
    asked = WORLD.limits | {"baseline": BASE, "beyond_evidence": True, "base": "new"}
    found = plan(**fits, **asked, replay_grid=[0.3, 0.4])
    shares = found.spread.drop(columns="sd")
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    target = found.problem.targets[0]
    latent = np.log(target.curve.loss([found.budget], [found.replay])[0, 0])
    total = found.spread.loc["target", "sd"]
    assert total == pytest.approx((latent + target.noise.total).std(), rel=0.1)
    assert shares.loc["target", "base"] == pytest.approx(0.004**2 / total**2, rel=0.3)
    assert shares.loc["target", "law"] == pytest.approx(0, abs=1e-12)


def test_the_share_of_the_law_is_the_variance_between_the_members_of_a_pool():
    low = posterior("french")
    high = replace(low, draws=low.draws.assign(L_ref=1.02 * low.draws["L_ref"]))
    pool = Pool({"low": low, "high": high}, {"low": 3.0, "high": 1.0})
    limits = WORLD.limits | {"max_loss": 1.9, "max_forgetting": 0.1, "baseline": BASE}
    found = plan(target=pool, source=posterior("english_arabic"), **limits, replay_grid=[0.4])
    row = grid(params=8.1e9, ptpp=279, replay=found.replay, tokens=found.tokens)
    one, two = (np.log(member.latent(row)[:, 0]) for member in (low, high))
    between = 0.25 * 0.75 * (two.mean() - one.mean()) ** 2
    within = 0.75 * one.var() + 0.25 * two.var() + found.problem.targets[0].noise.total.var()
    target = found.spread.loc["target"]
    assert target["sd"] ** 2 == pytest.approx(between + within, rel=0.1)
    assert target["law"] == pytest.approx(between / (between + within), rel=0.1)
    assert target["law"] > 0.5


def test_new_sizes_of_joint_fits_have_correlated_effects():
    """At a size without rows, beside fits whose fitted sizes have no effect."""
    joint = []
    for place, domain in enumerate(("french", "english_arabic")):
        fit = posterior(domain)
        sizes = np.unique(fit.table.frame["params"].astype(float).astype(str))
        draws = fit.draws.assign_coords(size=sizes).assign(
            tau_size=(("chain", "draw"), np.full((4, 100), TAU)),
            size_effect=(("chain", "draw", "size"), np.zeros((4, 100, len(sizes)))),
        )
        about = {"joint": "ab12", "place": place, "correlation": {"size": [[1, 0.9], [0.9, 1]]}}
        spec = replace(fit.spec, effects=("size",))
        joint.append(replace(fit, spec=spec, draws=draws, settings=about))
    limits = LIMITS | {"params": 4e9, "max_loss": 1.95, "max_forgetting": 0.1, "baseline": BASE}
    asked = limits | {"confidence": 0.6, "replay_grid": [0.4], "beyond_evidence": True}
    found = plan(target=joint[0], source=joint[1], **asked)
    row = grid(params=4e9, ptpp=279, replay=0.4, tokens=4e10)
    effects = [
        np.log(limit.curve.loss([np.log(10.0)], [0.4])[0, 0] / fit.latent(row)[:, 0])
        for limit, fit in zip(found.problem.limits, joint, strict=True)
    ]
    assert np.std(effects, axis=1) == pytest.approx([TAU, TAU], rel=0.15)
    assert np.corrcoef(effects)[0, 1] == pytest.approx(0.9, abs=0.05)
    assert found.spread.loc["target", "size"] > 0.5


MODEL = {"params": 4e8, "ptpp": 62.0}


@pytest.fixture(scope="module")
def adaptation():
    """Posteriors of the law `transfer`, whose bases have labels."""
    return adapted(0), adapted(1)


@pytest.mark.parametrize(
    ("model", "base", "pooled"),
    [
        (MODEL, "base 12", False),
        ({"params": 3e9, "ptpp": 100.0}, None, False),
        (MODEL, "new", True),
    ],
)
def test_plans_of_a_law_that_starts_from_the_base(adaptation, model, base, pooled):
    """At one ratio, against the losses of the posteriors on a fine grid of budgets."""
    target, source = adaptation
    target = Pool({"transfer": target, "other": adapted(2)}) if pooled else target
    atpp = np.geomspace(0.05, 50, 400)
    rows = grid(**model, replay=0.3, tokens=model["params"] * atpp)
    rows = rows.sort_values("tokens").assign(base=base or "new")
    latent = [fit.latent(rows) for fit in (target, source)]
    wanted, level = (
        float(np.median(loss[:, i])) for loss, i in zip(latent, (250, 200), strict=True)
    )
    asked = {"max_loss": wanted, "max_forgetting": 0.01, "baseline": level, "confidence": 0.7}
    asked |= {"base": None if base == "base 12" else base, "noise": "latent", "replay_grid": [0.3]}
    found = plan(target=target, source=source, **model, **asked)
    one, other = (
        loss[limit.index] for loss, limit in zip(latent, found.problem.limits, strict=True)
    )
    held = ((one <= wanted) & (other <= 1.01 * level)).mean(0)
    smallest = int(np.argmax(held >= 0.7))
    assert held[smallest] >= 0.7
    assert atpp[smallest - 1] < found.atpp <= atpp[smallest] * (1 + 1e-9)
    assert 0 < found.deterministic.atpp < found.atpp


def test_a_new_base_starts_from_losses_that_are_drawn(adaptation):
    """The baseline of a source's draw is the loss that its curve starts from."""
    target, source = adaptation
    asked = MODEL | {"max_loss": 2.4, "max_forgetting": 0.2, "noise": "latent"}
    asked |= {"base": "new", "replay_grid": [0.3], "confidence": 0.5}
    limit = plan(target=target, source=source, **asked).problem.source
    np.testing.assert_allclose(limit.curve.loss_at_zero(), limit.baseline, rtol=1e-9)
    assert np.std(np.log(limit.baseline)) > 0.005
    # The source table of the source domain is itself, so swapped fits are refused.
    frame = source.table.frame
    itself = replace(source.table, frame=frame.assign(start_loss=frame["base_loss"]))
    with pytest.raises(BayeslawError, match="target and source are swapped"):
        plan(target=replace(source, table=itself), source=target, **asked)


def test_point_fits_of_a_law_that_starts_from_the_base(adaptation):
    """Target, source and deterministic plan; the curve is the fit's prediction."""
    points = [
        PointFit(fit.law, TRANSFER, ORIGIN, 0.0, 0.02, 0, 0, 1.0, table=fit.table)
        for fit in adaptation
    ]
    row = grid(**MODEL, replay=0.3, tokens=5 * MODEL["params"])
    for base in ("base 12", "new"):
        loss = curve_of(points[0], PlannedRun(**MODEL, base=base)).loss([np.log(5.0)], [0.3])
        np.testing.assert_allclose(loss[0, 0], points[0].predict(row.assign(base=base)), rtol=1e-12)
    asked = MODEL | {"max_loss": 2.4, "max_forgetting": 0.1, "baseline": 2.3, "noise": "latent"}
    asked |= {"replay_grid": [0.3], "base": "new", "confidence": 0.6}
    target, source = adaptation
    both = plan(target=target, source=source, point=points, **asked)
    assert both.deterministic.atpp == plan(target=points[0], source=points[1], **asked).atpp
    with pytest.raises(BayeslawError, match="0 rows with tokens = 0"):
        plan(target=target, source=points[1], **asked | {"baseline": None})


# -- choices, Monte Carlo error, and what binds ---------------------------------------------------


def problem_of(draws, **limits):
    """The limits on latent losses of fresh posteriors of so many draws."""
    asked, run = LIMITS | limits, PlannedRun(8.1e9, 279)
    target, source = (curve_of(fit, run) for fit in both(draws).values())
    silent = Noise({"noise": np.zeros(draws)})
    rise = Limit(source, asked["max_forgetting"], silent, baseline=BASE, relative=True)
    return Problem((Limit(target, asked["max_loss"], silent), rise), 0.9)


def test_infeasible_plans_say_what_binds_and_what_is_likeliest(fits):
    tight = plan(**fits, **LIMITS | {"max_loss": 1.7}, baseline=BASE)
    assert (tight.status, tight.atpp) == ("infeasible", np.inf)
    assert np.isnan(tight.p_both)
    assert tight.binds.startswith("target;")
    assert json.loads(json.dumps(tight.to_dict(), allow_nan=False))["atpp"] is None
    # The largest fraction of draws that meets both limits, within the evidence or anywhere.
    rows = grid(params=8.1e9, ptpp=279, replay=np.linspace(0.005, 0.995, 199), tokens=1e290)
    target, source = (fits[n].latent(rows) for n in ("target", "source"))
    meets = (target <= 1.7) & (np.roll(source, len(source) // 2, 0) <= 1.02 * BASE)
    assert 0.05 < meets.mean(0).max() < 0.9
    best = likeliest(replace(tight.problem, beyond=None), tight.replay_grid)[0] / 400
    assert meets.mean(0).max() <= best <= meets.mean(0).max() + 0.02
    assert tight.best.p_both < best
    assert "% within the evidence" in tight.verdict
    never = plan(**fits, **LIMITS | {"max_forgetting": -0.3}, baseline=BASE)
    assert never.binds.startswith("forgetting;")
    assert never.best.p_both == 0


def test_monte_carlo_error_covers_fresh_draws():
    """Plans from other draws of the same posterior vary as much as the bootstrap predicts."""
    whole, ratios = problem_of(2400), np.linspace(0.2, 0.6, 9)
    parts = [whole.take(part) for part in np.split(np.arange(2400), 12)]
    places = [smallest(part, ratios)[0] for part in parts]
    errors = [
        monte_carlo(part, ratios, place, 1, np.random.default_rng(0))
        for part, place in zip(parts, places, strict=True)
    ]
    scatter = np.std([np.exp(budget) for budget, _ in places])
    assert 0.5 < np.mean([error["atpp"] for error, _ in errors]) / scatter < 2
    # Each plan on the draws of the next: P(both) that no choice was made on.
    fresh = [
        part.held(np.array([budget]), np.array([ratio]))[0, 0] / part.draws
        for part, (budget, ratio) in zip(parts[1:] + parts[:1], places, strict=True)
    ]
    assert np.mean([held_out for _, held_out in errors]) == pytest.approx(np.mean(fresh), abs=0.02)


def test_replicates_search_the_ratios_that_are_optimal_for_resampled_draws():
    """Against plans of resampled draws by a fine grid of all ratios."""
    problem, ratios = problem_of(100), np.linspace(0.005, 0.995, 34)
    (place,) = smallest(problem, ratios)
    error, _ = monte_carlo(problem, ratios, place, 1, np.random.default_rng(0))
    needed = np.array([problem.needed(ratio, 1e-3) for ratio in ratios])
    index = np.random.default_rng(0).integers(100, size=(400, 100))
    budgets = np.sort(needed[:, index])[..., problem.rank - 1]
    assert error["replay"] == pytest.approx(np.std(ratios[budgets.argmin(0)]), rel=0.3)
    assert error["atpp"] == pytest.approx(np.std(np.exp(budgets.min(0))), rel=0.3)


def test_monte_carlo_error_and_held_out_probability_at_a_fixed_ratio():
    """There a plan of some draws is an order statistic of the budgets that they need."""
    problem, ratios = problem_of(100), np.array([0.4])
    (place,) = smallest(problem, ratios)
    needed = problem.needed(0.4, 1e-12)
    index = np.random.default_rng(0).integers(100, size=(20_000, 100))
    low, high = np.quantile(np.sort(np.exp(needed)[index])[:, 89], (0.05, 0.95))
    found = [
        monte_carlo(problem, ratios, place, 1, rng) for rng in map(np.random.default_rng, range(40))
    ]
    ends = np.mean([error["atpp_90"] for error, _ in found], axis=0)
    assert ends == pytest.approx([low, high], rel=0.01)
    halves = needed[:50], needed[50:]
    planned = [np.sort(half)[44] for half in halves]  # 45 of 50 draws
    wanted = [np.mean(halves[1] <= planned[0]), np.mean(halves[0] <= planned[1])]
    assert wanted != [0.9, 0.9]
    assert found[0][1] == pytest.approx(np.mean(wanted), abs=1e-12)


def test_a_block_is_the_draws_per_effective_draw_rounded_up(fits):
    """Each draw eight times in a row carries as much information as the draw once."""
    bad = replace(GOOD, ess_bulk=60, divergences=3)
    unsure = fits | {"source": replace(fits["source"], convergence=bad)}
    with pytest.raises(NotConverged):
        plan(**unsure, **LIMITS, baseline=BASE)
    asked = LIMITS | {"allow_unconverged": True, "beyond_evidence": True, "replay_grid": [0.4]}
    found = plan(**unsure, **asked, baseline=BASE)
    assert "3 divergences" in " ".join(found.unconverged)
    assert found.error["block"] == 7
    problem, ratios = problem_of(100), np.array([0.4])
    (place,) = smallest(problem, ratios)

    def error(problem, block):
        rngs = map(np.random.default_rng, range(5))
        found = [monte_carlo(problem, ratios, place, block, rng)[0]["atpp"] for rng in rngs]
        return np.mean(found)

    once, slow = error(problem, 1), problem.take(np.repeat(np.arange(100), 8))
    assert error(slow, 8) == pytest.approx(once, rel=0.3)
    assert error(slow, 1) < 0.6 * once


def test_of_equally_probable_choices_the_smallest_budget_is_taken():
    problem, ratios = problem_of(400, max_loss=2.2, max_forgetting=0.3), np.linspace(0.2, 0.8, 13)
    needed = np.array([problem.needed(ratio).max() for ratio in ratios])
    assert np.sum(needed < np.inf) > 3
    count, budget, _ = likeliest(problem, ratios)
    assert count == problem.draws
    assert budget <= needed.min() + 1e-6


@pytest.mark.parametrize(
    ("confidence", "draws", "rank"),
    [(0.9, 10, 9), (0.9, 4000, 3600), (0.95, 20, 19), (0.91, 10, 10), (0.5, 3, 2), (0.01, 10, 1)],
)
def test_rank(confidence, draws, rank):
    problem = drawn_problem(np.add, np.add, confidence)
    assert problem.take(np.zeros(draws, int)).rank == rank


# -- the result -----------------------------------------------------------------------------------


def test_deterministic_plan_has_its_failure_probability(fits, found):
    given = plan(**fits, **LIMITS, baseline=BASE, point=true_fits(WORLD))
    document = json.loads(json.dumps(given.to_dict(), allow_nan=False))
    assert document["deterministic"]["atpp"] == pytest.approx(8.9, abs=0.1)
    assert document["deterministic"]["replay"] == pytest.approx(0.34, abs=0.01)
    target, source = losses(fits, given.deterministic)
    risk = 1 - np.mean((target <= 1.8) & (source <= 1.02 * BASE))
    assert document["deterministic"]["p_failure"] == pytest.approx(risk)
    assert risk > 0.5  # both limits bind at the optimum, so half of the draws or more violate one
    assert document["atpp"] > document["deterministic"]["atpp"]
    assert given.point == "point fits as given"
    assert found.deterministic.atpp == pytest.approx(8.9, rel=0.2)
    assert found.point == "posterior medians of the reference coordinates"


BEYOND = "feasible, beyond the evidence"


@pytest.mark.parametrize(
    ("pooled", "asked", "status", "words"),
    [
        (True, {}, "feasible", ""),
        (True, {"replay_grid": [0.7]}, BEYOND, "0.2 of replay (bands were tested to 0.15)"),
        (False, {"replay_grid": [0.9], "beyond_evidence": True}, BEYOND, "0.4 of replay (bands"),
        (False, {"max_loss": 3.0, "max_forgetting": 0.9}, "feasible", "decades of tokens"),
        (False, {"max_loss": 100, "max_forgetting": 1}, "feasible", "decades of tokens"),
    ],
)
def test_a_plan_has_the_verdict_of_the_check_there(fits, pooled, asked, status, words):
    """A plan within the evidence comes first, and a cheaper one beyond stands beside it."""
    target = Pool({"one": fits["target"], "other": posterior("french", seed=1)})
    both = fits | ({"target": target} if pooled else {})
    found = plan(**both, **LIMITS | {"baseline": BASE} | asked)
    assert found.status == status
    assert str(found).startswith(f"Plan: {status}: {found.atpp:.3g} ATPP at ")
    assert words in found.evidence
    assert bool(found.evidence) == bool(words)
    row = grid(params=8.1e9, ptpp=279, replay=found.replay, tokens=found.tokens)
    located = locate(fits["target"].table, row, fits["target"].columns)
    assert (evidence(located, fits["target"].columns)[0] == "ok") == (status == "feasible")
    if cheaper := found.cheaper:
        assert cheaper.atpp < (found.atpp if asked["max_loss"] == 3 else min(1e-3, found.atpp))
        assert cheaper.p_both >= 0.9
        assert "beyond the evidence" in str(found)
    assert (found.cheaper is None) == ("max_loss" not in asked)
    assert str(found).count("No evidence") == bool(words)


def test_what_lies_outside_the_rows_is_said_once_in_the_words_of_the_check(fits):
    """Anchors at PTPP 279 are of the smallest size only, so that a corner is empty."""

    def said(params, ptpp, replay, atpp):
        row = grid(params=params, ptpp=ptpp, replay=replay, tokens=params * atpp)
        return extrapolations(fits, row)

    assert said(241e6, 31, 0.3, 5.0) == said(241e6, 279, 0.4, 16.0) == ("ok", "", ())
    level, words, (far, exact) = said(8.1e9, 279, 0.4, 16.0)
    assert (level, words) == ("ok", "")
    row = grid(params=8.1e9, ptpp=279, replay=0.4, tokens=16 * 8.1e9)
    away = locate(fits["target"].table, row)["decades"].item()
    assert away > 0.5
    assert far == (
        f"target and source: extrapolation by {away:.2g} decades, each covariate within its range."
    )
    assert exact.startswith("target and source: The law is taken as exact")
    level, words, texts = said(8.1e9, 279, 0.7, 1e6)
    assert level == "no evidence"
    assert "decades of tokens (bands were tested to 0.83) and 0.2 of replay (bands" in words
    assert not any("No evidence" in text or "millions" in text for text in texts)


def test_frontier_surface_and_sensitivity(found):
    frontier = found.frontier()
    assert (np.diff(frontier["atpp"]) > 0).all()
    assert (frontier["p_both"] >= frontier["confidence"]).all()
    assert frontier.query("confidence == 0.9")["atpp"].item() == found.atpp
    surface = found.surface([0.0, found.atpp], [0.1, found.replay])
    assert surface.loc[found.atpp, found.replay] == found.p_both
    assert surface.loc[0.0, 0.1] == 0
    moved = found.sensitivity().set_index("quantity")
    for name in ("max_loss", "max_forgetting", "baseline"):
        down, up = moved.loc[name, "atpp"]
        assert down > found.atpp > up
        assert moved.loc[name, "held"].iloc[0] < found.p_both < moved.loc[name, "held"].iloc[1]


def test_a_choice_of_ones_own_and_a_cap(found):
    own = found.at(atpp=found.atpp, replay=found.replay)
    assert own.tokens == pytest.approx(found.tokens, rel=1e-9)
    assert own.p_both == found.p_both
    assert found.at(atpp=found.atpp / 2, replay=0.3).p_both < found.p_both
    for budget in (np.inf, 1e4):
        assert choice_at(found.problem, budget, 0.5) is INFEASIBLE
    assert choice_at(found.problem, 599.0, 0.5).p_both > 0
    capped = found.within(tokens=0.8 * found.tokens)
    assert capped.tokens <= 0.8 * found.tokens
    shares = found.surface([0.8 * found.atpp], np.linspace(0.005, 0.995, 331))
    assert capped.p_both >= shares.to_numpy().max()
    assert found.within(flops=0.8 * found.flops) == capped
    assert found.within(tokens=found.tokens).p_both >= 0.9 - 2 / 400  # one or two draws


def test_least_expected_loss_at_a_budget(fits, found):
    best = found.least_loss(tokens=2e11)
    assert best.tokens == 2e11
    target, source = over_replay(fits, 2e11)
    kept = np.mean(source <= 1.02 * BASE, 0) >= 0.9
    assert kept.any()
    assert target.mean(0)[kept].min() >= best.losses[0] - 1e-9
    assert found.least_loss(tokens=1e10).atpp == np.inf  # forgetting cannot be kept


def test_how_far_a_choice_can_be_moved(found):
    near = found.around(atpp=1.5 * found.atpp, replay=found.replay)
    assert near["atpp"][0] == pytest.approx(found.atpp, rel=1e-4)
    for ratio in near["replay"]:
        assert found.at(atpp=1.5 * found.atpp, replay=ratio).p_both >= 0.9


def test_where_to_stop(found):
    enough = found.stop(0.002, 1e9)
    one, two = (
        found.at(atpp=tokens / 8.1e9, replay=found.replay).losses[0]
        for tokens in (enough.tokens, enough.tokens + 1e9)
    )
    assert one - two == pytest.approx(0.002, rel=1e-3)


# -- mistakes -------------------------------------------------------------------------------------

# Arguments, or functions that make them of the fits; and what the error says.
MISTAKES = [
    ({"confidence": 1.0}, "confidence=1 is not between 0 and 1"),
    ({"confidence": 90}, "confidence=90 is not between 0 and 1"),
    ({"params": 0}, "params=0: give a positive number"),
    ({"ptpp": None}, "a plan needs ptpp="),
    ({"max_loss": np.inf}, "max_loss=inf: give a positive number"),
    ({"max_forgetting": -1}, "max_forgetting=-1: 0.02 allows"),
    ({"max_forgetting": 2}, "give a fraction, not a percentage; 0.02 allows a rise of 2 %"),
    ({"confidense": 0.9}, "unknown argument 'confidense'; did you mean 'confidence'"),
    ({"max_cvar": 0.0}, "max_cvar= was removed: lower the limit"),
    ({"baseline": "asymptot"}, "did you mean 'asymptote'"),
    ({"baseline": -2.0}, "baseline=-2: give a source loss"),
    ({"baseline": (BASE, -1)}, "standard deviation"),
    ({"baseline": "law"}, r"at D = 0.*one of 'asymptote'"),
    ({"baseline": None, "ptpp": 100}, r"0 rows with tokens = 0.*no value at D = 0"),
    ({"baseline": None, "source": lambda _: true_fits(WORLD)[1]}, "No baseline.*no value at D = 0"),
    ({"base": "big"}, "no column base"),
    ({"noise": "none"}, "unknown noise 'none'"),
    ({"noise": None, "target": lambda _: true_fits(WORLD)[0]}, "has no noise"),
    ({"unique_tokens": -1}, "unique_tokens=-1: give a positive number"),
    ({"unique_tokens": 1e9}, "does not know what repeated tokens are worth"),
    ({"replay_grid": [30]}, "replay ratios lie in"),
    ({"replay_grid": []}, "replay ratios lie in"),
    ({"target": lambda f: f["source"]}, "target and source are one posterior"),
    # A copy, as of one file that is given twice.
    (
        {"target": lambda f: replace(f["source"], draws=f["source"].draws.copy())},
        "target and source are one posterior",
    ),
    ({"target": lambda f: [f["target"]] * 2}, "2 targets and 1 limits"),
    (
        {"source": lambda f: [f["source"]] * 2, "baseline": [BASE, BASE]},
        "2 sources and 1 of max_forgetting",
    ),
    (
        {"source": lambda f: [f["source"]] * 2, "max_forgetting": [0.02, 0.1]},
        "2 sources and 1 of baseline",
    ),
    (
        {
            "source": lambda f: [f["source"]] * 2,
            "max_forgetting": [0.02, 0.1],
            "baseline": [BASE, "asymptote"],
        },
        "only the first source",
    ),
    # Twice as far as bands were measured.
    ({"replay_grid": [0.9]}, r"no plan within the evidence.* 0\.4 of replay .*: ask for"),
    ({"ptpp": 279e2}, r"plan: No evidence: rows lie up to 2 decades of PTPP .*: ask for"),
]


@pytest.mark.parametrize(("wrong", "says"), MISTAKES, ids=[says[:30] for _, says in MISTAKES])
def test_mistakes_are_told(fits, wrong, says):
    wrong = {name: value(fits) if callable(value) else value for name, value in wrong.items()}
    with pytest.raises(BayeslawError, match=says):
        plan(**fits | LIMITS | {"baseline": BASE} | wrong)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda found: found.within(tokens=0), "positive cap"),
        (lambda found: found.least_loss(), "fixed budget"),
        (lambda found: found.stop(0), "positive nats and tokens"),
        (lambda found: found.at(atpp=0, replay=0.3), "atpp=0: give a positive number"),
        (lambda found: found.at(atpp=5, replay=1.3), "replay ratios lie in"),
    ],
)
def test_mistakes_about_a_plan_are_told(found, call, says):
    with pytest.raises(BayeslawError, match=says):
        call(found)
