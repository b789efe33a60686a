"""Plans against brute force: losses on the grid, searches, limits, bases, choices and errors."""

import json
import re
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest

import bayeslaw as bl
from bayeslaw import BayeslawError, PointFit, Pool, grid, load_law, plan, simulate
from bayeslaw.common.formatting import certain
from bayeslaw.huber.bases import for_table
from bayeslaw.laws.law import REPLAY_CLIP
from bayeslaw.laws.terms import ORIGIN, Term
from bayeslaw.model.discrepancy import Curvature
from bayeslaw.planning import planned_run
from bayeslaw.planning.grid import COARSE, FAR_BUDGETS, NEAR_BUDGETS, Curve, LawDraws, first, spaced
from bayeslaw.planning.planned_run import PlannedRun, curve_of, deviations
from bayeslaw.planning.planner import baseline_of
from bayeslaw.planning.problem import Deviations, Limit, Problem, likeliest, monte_carlo, smallest
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
    of_role,
    over_replay,
    posterior,
    transfer,
)
from tests.support import CHINCHILLA, DESIGN, ROOT, TRANSFER, saved, truth_of

RUN, MODEL = {"params": 8.1e9, "ptpp": 279}, {"params": 4e8, "ptpp": 62.0}
POINTS = dict(zip(("target", "source"), true_fits(WORLD), strict=True))


@pytest.fixture(scope="module")
def fits():
    return both()


def accepted(**fits):
    """The fits, for plans however far from their rows."""
    return {name: fit.accepted(beyond_evidence=True) for name, fit in fits.items()}


@pytest.fixture(scope="module")
def found(fits):
    return plan(**fits, **LIMITS, baseline=BASE)


# -- losses on the grid ---------------------------------------------------------------------------

RISE, CONCAVE = {"rising": 1.0}, {"curve_B": -0.25}
FORGETTING = {"E": 0.6, "A": 14.0, "alpha": 0.25, "F": 57.0, "eta": 0.4, "phi": 0.31, "rho": 1.4}
FORGETTING |= {"G": 0.42, "xi": 3.0, "omega": 3.2}
KATO = {"E": 1.6, "A": 60.0, "alpha1": 0.02, "alpha2": 0.42, "alpha3": 0.011}
TRUTHS = {"liew_kato": KATO, "forgetting": FORGETTING, "transfer": TRANSFER}
STAGES = grid(params=[1e8, 4e8, 1.6e9], ptpp=[10, 40, 160], tokens=np.geomspace(1e8, 3e10, 6))
# Law, discrepancy, distinct tokens, and what moves it so that its loss rises with tokens.
LATENT = [
    ("chinchilla", "walk", None, {}), ("chinchilla", "trend", None, RISE),
    ("chinchilla", "curvature", None, CONCAVE), ("chinchilla", "walk", 3e10, RISE),
    ("skaling", "auto", None, {}), ("liew_kato", "auto", None, {}), ("dcpt", "auto", None, {}),
    ("form1", "none", None, {}), ("form1", "auto", 3e10, RISE), ("form2", "auto", None, {}),
    ("form3", "curvature", 1e9, CONCAVE), ("form3n", "auto", None, RISE),
    ("forgetting", "none", None, {}), ("transfer", "auto", None, RISE), ("pool", "auto", None, {}),
]  # fmt: skip


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
        table = bl.from_frame(table.frame.assign(unique_tokens=distinct))
    truth = truth | ({"R_D": 8.0} if unique else {})
    return drawn(for_table(load_law(name), table), table, truth, discrepancy, seed, **moved)


def around_the_rows(fit):
    """A model and stage, and budgets and ratios below, inside and above the fitted rows."""
    rows = fit.table.frame
    run = {"params": rows["params"].max(), "ptpp": rows["ptpp"].max() if "ptpp" in rows else 20.0}
    low, high = rows["tokens"].min() / run["params"], (rows["tokens"] / rows["params"]).max()
    atpp = np.array([low / 30, low / 3, *np.geomspace(low, high, 3), 3 * high, 3e3])
    ratios = np.array([0.0, 0.02, 0.3, 1.0] if "replay" in fit.columns else [1.0])
    return run, atpp, ratios, grid(**run, tokens=atpp * run["params"], replay=ratios)


def is_the_forecast(fit, unique=None):
    run, atpp, ratios, at = around_the_rows(fit)
    at = at.assign(unique_tokens=unique) if unique else at
    wanted = fit.latent(at).T.reshape(len(atpp), len(ratios), -1)
    curve = curve_of(fit, PlannedRun(**run, unique_tokens=unique))
    np.testing.assert_allclose(curve.loss(np.log(atpp), ratios), wanted, rtol=1e-9)
    along = curve.along(np.log(atpp)[:, None], ratios[-1])
    np.testing.assert_allclose(along, wanted[:, -1], rtol=1e-9)


@pytest.mark.parametrize(("name", "discrepancy", "unique", "moved"), LATENT)
def test_planned_losses_are_those_of_forecasts(name, discrepancy, unique, moved):
    """Draw by draw, below, inside and above the fitted rows."""
    is_the_forecast(made(name, discrepancy, unique, **moved), unique)


@pytest.mark.parametrize(("name", "unique"), [("columns", 5e9), ("columns", None), ("rates", None)])
def test_a_planned_run_ends_annealed_and_at_its_best_rate(name, unique):
    is_the_forecast(saved(name), unique)


@pytest.mark.parametrize("pooled", [False, True])
def test_a_law_that_starts_from_the_base_has_the_losses_of_the_planned_base(pooled):
    """One with a label, one of a new model and stage, and a new one; also of a point fit."""
    fit, other = adapted(0), adapted(1)
    point = PointFit(fit.law, TRANSFER, ORIGIN, 0.0, 0.02, 0, 0, 1.0, table=fit.table)
    each = Pool({"transfer": fit, "other": other}) if pooled else fit
    for model, base in (
        (MODEL, "base 12"),
        ({"params": 3e9, "ptpp": 100.0}, "new"),
        (MODEL, "new"),
    ):
        row = grid(**model, replay=0.3, tokens=5 * model["params"]).assign(base=base)
        loss, one = (
            curve_of(f, PlannedRun(**model, base=base)).loss([np.log(5.0)], [0.3])[0, 0]
            for f in (each, point)
        )
        np.testing.assert_allclose(loss, each.latent(row)[:, 0], rtol=1e-9)
        np.testing.assert_allclose(one, point.predict(row), rtol=1e-12)
    # The baseline of a source's draw is the loss that its curve starts from.
    asked = {"max_loss": 2.4, "max_forgetting": 0.2, "replay_grid": [0.3], "confidence": 0.5}
    asked |= MODEL | {"noise": "latent", "base": "new"}
    target, source = of_role(each, "target"), of_role(adapted(2), "source")
    limit = plan(target=target, source=source, **asked).problem.source
    np.testing.assert_allclose(limit.curve.loss_at_zero(), limit.baseline, rtol=1e-9)
    assert np.std(np.log(limit.baseline)) > 0.005
    # The source table of the source domain is itself, so swapped fits are refused.
    frame = other.table.frame.drop(columns="role")
    itself = replace(other.table, frame=frame.assign(start_loss=frame["base_loss"]))
    with pytest.raises(BayeslawError, match="target and source are swapped"):
        plan(target=replace(other, table=itself), source=fit, **asked)


@pytest.mark.parametrize("name", ["chinchilla", "pool"])
def test_probabilities_are_those_of_forecasts(name):
    target, source, levels, held = made(name, seed=1), made(name, seed=2, **RISE), [], []
    run, atpp, ratios, at = around_the_rows(target)
    for fit in (target, source):
        seeds = [fit.accepted(beyond_evidence=True).forecast(at, seed=k).samples for k in range(4)]
        levels.append(float(np.quantile(seeds[0][:, len(at) // 2], 0.6)))
        held.append(np.mean(np.array(seeds) <= levels[-1], (0, 1)).reshape(len(atpp), -1))
    source = of_role(source, "source")
    asked = {"max_loss": levels[0], "max_forgetting": 0.0, "baseline": levels[1], **run}
    found = plan(target=target, source=source, **asked, replay_grid=ratios, confidence=0.1)
    for (i, j), one in np.ndenumerate(held[0]):
        choice, other = found.at(atpp=atpp[i], replay=ratios[j]), held[1][i, j]
        assert choice.p_target == pytest.approx(one, abs=0.1)
        assert choice.p_forgetting == pytest.approx(other, abs=0.1)
        assert choice.p_both == pytest.approx(one * other, abs=0.13)


# -- searches -------------------------------------------------------------------------------------

RATIOS, FINE = np.linspace(0.05, 0.95, 7), np.linspace(0.005, 0.995, 34)
AT = {"params": np.log(1e9), "tokens": np.log(5e9), "ptpp": np.log(60), "replay": np.log(0.25)}
AT |= {"barrier": np.log(0.25 + 1e-5), "share": 0.25, "mixed": np.log(0.35)}


def with_term(term):
    """Form 1 with another term."""
    law = load_law("form1")
    data = Term("B", "slope_D", "-beta*log(D) + nu*log(r)")
    rest = tuple(t for t in law.terms if t.coefficient != "B")
    return replace(law, terms=(*rest, data, Term("G", "slope_G", term)))


TWICE = with_term("-phi*log(D)")
LAWS = {"form1": load_law("form1"), "curvature": Curvature().apply(load_law("chinchilla"))}
LAWS |= {"twice": TWICE, "rising": with_term("-alpha*log(N) + phi*log(D)")}


def at_one_stage(law, p, params, ptpp, at=AT):
    draws = LawDraws(law, p, at)
    return Curve((draws,), (np.arange(draws.count),), params, ptpp)


def random_curve(rng, law, draws):
    """Draws with curvatures of either sign and exact zeros, at a random model and stage."""
    p = {"E": rng.uniform(0.4, 2.0, draws)}
    for name in law.coefficients:
        p[name] = rng.lognormal(np.log(0.2), 0.9, draws) * (rng.random(draws) > 0.02)
    for name in law.exponents:
        p[name] = rng.lognormal(np.log(0.3), 0.6, draws) * (rng.random(draws) > 0.02)
        if name.startswith(("curve", "cross")):
            p[name] = rng.normal(0, 0.15, draws) * (rng.random(draws) > 0.1)
    return at_one_stage(law, p, np.exp(rng.uniform(18.4, 23.7)), rng.uniform(5, 300))


def by_law(curve, replay, budgets):
    """Loss of shape (budgets, draws) from the formula of the law."""
    (member,) = curve.members
    row = {"params": curve.params, "ptpp": curve.ptpp, "replay": replay, "tokens": curve.params}
    x = member.law.covariates(pd.DataFrame([row]))
    x["tokens"] = x["tokens"] + budgets
    loss = member.law.loss({name: v[:, None] for name, v in member.p.items()}, x, member.at)
    return np.broadcast_to(loss, (curve.draws, len(budgets))).T


@pytest.mark.parametrize("name", ["form1", "curvature"])
def test_the_asymptote_is_the_least_loss_in_pure_replay_from_the_fitted_budgets_on(name):
    curve = replace(random_curve(np.random.default_rng(8), LAWS[name], 100), lowest=-2.0)
    budgets = np.linspace(-2.0, np.log(1e9), 2001)
    loss = by_law(curve, 1.0, budgets)
    at = budgets[loss.argmin(0)]
    inside = (at > budgets[0] + 1) & (at < budgets[-1] - 1)
    assert inside.any() == (name == "curvature")  # plain laws decrease monotonically
    least = curve.minimum(1.0)
    np.testing.assert_allclose(least[inside], loss.min(0)[inside], rtol=1e-5)
    assert (least <= loss[-1] * (1 + 1e-9)).all()


def test_a_loss_that_vanishes_without_tokens_does_not_meet_its_limit_there():
    """A concave deviation is extrapolated as far below the fitted budgets as forecasts are made."""
    p = CHINCHILLA | {"curve_A": 0.0, "curve_B": -0.1, "cross_BN": 0.0}
    p |= {"A": p["A"] * 1e9**-0.34, "B": p["B"] * 2e10**-0.28}
    p, at = (
        {n: np.array([v]) for n, v in p.items()},
        {"params": np.log(1e9), "tokens": np.log(2e10)},
    )
    curve = replace(at_one_stage(LAWS["curvature"], p, 1e9, 20.0, at), lowest=np.log(20))
    least = curve.extent[0]
    assert by_law(curve, 1.0, [-16.0]) < 2
    loss = curve.loss([-np.inf, -16.0, least - 0.1, least + 0.1], [1.0])[:, 0, 0]
    np.testing.assert_allclose(loss, by_law(curve, 1.0, [least, least, least, least + 0.1])[:, 0])
    nodes = np.concatenate([NEAR_BUDGETS, FAR_BUDGETS])[:, None]
    (reached,) = first(lambda u: curve.along(u, 1.0) <= 2.5, nodes)
    assert curve.loss([reached], [1.0])[0, 0, 0] == pytest.approx(2.5)
    assert reached > np.log(20)


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

    @property
    def coarse(self):
        return self.take(spaced(self.draws, COARSE))


def limits_on(target, source, max_loss=1.0, rise=0.0, baseline=1.0, confidence=0.9):
    silent = Deviations({"noise": np.zeros(target.draws)})
    other = Limit(source, rise, silent, baseline=baseline, relative=True)
    return Problem((Limit(target, max_loss, silent), other), confidence)


def by_formulas(target, source, confidence=0.9, draws=500, seed=3):
    """Limits of 1 on a target, and on a source's rise over 1."""
    moves = 0.01 * np.random.default_rng(seed).standard_normal((2, draws))
    curves = (Drawn(*each) for each in zip((target, source), moves, strict=True))
    return limits_on(*curves, confidence=confidence)


def test_the_monte_carlo_error_where_draws_hold_for_a_range_of_budgets():
    """A source that forgets more, the more tokens: many draws that need less fail at the plan."""
    problem = by_formulas(
        lambda u, r: 1.0 + 0.005 * (2.0 - u) + 0 * r,
        lambda u, r: 1.0 + 0.005 * (u - 3.0) + 0 * r,
        0.33,
        4000,
    )
    ratios = np.array([0.3])
    (place,) = smallest(problem, ratios)
    error, held_out = monte_carlo(problem, ratios, place)
    low, high = np.log(error["atpp_90"])
    assert (problem.needed(0.3) <= place[0]).mean() > 0.38
    assert error["infeasible"] == 0
    assert low < place[0] < high < low + 0.5
    assert held_out == pytest.approx(0.33, abs=0.015)


@pytest.mark.parametrize("deeper", [0.2, 0.8])
def test_of_two_islands_the_lower_one_is_found(deeper):
    """P(both) has an island at replay .2 and one at .8, with less budget at one of them."""

    def target(u, r):
        valley = 2 * np.minimum(np.abs(r - deeper), np.abs(r - (1 - deeper)) + 0.03)
        return 2.0 - 0.2 * u + valley

    problem = by_formulas(target, lambda u, r: 0.5 + 0 * u * r)
    ((budget, ratio),) = smallest(problem, FINE)
    assert ratio == pytest.approx(deeper, abs=0.01)
    needed = np.sort(problem.limits[0].curve.moves)[problem.rank - 1]
    assert budget == pytest.approx((1.0 + needed) / 0.2, abs=0.01)


def test_a_feasible_window_between_the_nodes_is_found():
    """Of .04 e-folds at one replay ratio: the target needs tokens that forgetting forbids."""
    problem = by_formulas(
        lambda u, r: 1.0 - 0.05 * (u - 2.011) + 3 * np.abs(r - 0.3333),
        lambda u, r: 1.0 + 0.05 * (u - 2.69) + 0 * r,
    )
    fine = np.linspace(1.5, 3.5, 2001)
    ((budget, _),) = smallest(problem, FINE)
    most = problem.held(fine, np.array([0.3333]))[:, 0]
    held = most >= problem.rank
    assert 0 < held.mean() < 0.05
    assert budget == pytest.approx(fine[held.argmax()], abs=0.005)
    ((missed, _),) = smallest(replace(problem, confidence=0.999), FINE)
    assert missed == np.inf
    count, likely, _ = likeliest(problem, FINE)
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
            Deviations({"noise": t - b, "base": b}) for t, b in zip(totals, bases, strict=True)
        ]
        limit = Limit(source, rise, noise[1], baseline=baseline or other, relative=relative)
        yield Problem((Limit(target, max_loss, noise[0]), limit), confidence)


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
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


# -- the smallest plan ----------------------------------------------------------------------------


def test_a_plan_is_the_smallest_at_which_enough_draws_meet_all_limits(fits, found):
    target, source = losses(fits, found)
    one, other = target <= 1.8, source <= 1.02 * BASE
    assert (found.p_target, found.p_forgetting) == (one.mean(), other.mean())
    assert found.p_both == (one & other).mean() >= 0.9
    shifted = np.roll(np.arange(400), 200)  # draws of separate fits are paired at random
    np.testing.assert_array_equal(found.problem.source.index, shifted)
    assert found.p_failure == pytest.approx(0.1)
    assert found.flops == 6 * 8.1e9 * found.tokens
    assert found.tokens == 8.1e9 * found.atpp == int(found.tokens)
    assert found.losses == pytest.approx([target.mean()])
    assert found.forgetting == pytest.approx(np.mean(source / BASE - 1))
    target, source = losses(fits, replace(found, tokens=found.tokens * (1 - 1e-9)))
    assert np.mean((target <= 1.8) & (source <= 1.02 * BASE)) < 0.9
    target, source = over_replay(fits, 0.9999 * found.tokens)
    assert np.mean((target <= 1.8) & (source <= 1.02 * BASE), 0).max() < 0.9


def test_limits_on_measured_losses_have_the_noise_of_a_run_and_a_seed(fits, found):
    asked = WORLD.limits | {"baseline": BASE, "replay_grid": [0.3, 0.4]} | accepted(**fits)
    noisy, again, other = (plan(**asked, seed=seed) for seed in (1, 1, 2))
    noise = [limit.noise.total for limit in noisy.problem.limits]
    assert np.std(noise[0]) == pytest.approx(WORLD.sigma["french"], rel=0.5)
    target, source = losses(fits, noisy)
    meets = (target * np.exp(noise[0]) <= 1.8) & (source * np.exp(noise[1]) <= 1.02 * BASE)
    assert noisy.p_both == meets.mean() >= 0.9
    assert noisy.to_dict() == again.to_dict()
    assert found.atpp < noisy.atpp != other.atpp
    assert noisy.measured.p_both == noisy.p_both < noisy.latent.p_both
    assert found.latent.p_both == found.p_both > found.measured.p_both
    for each in (noisy, found):
        assert each.latent.tokens == each.measured.tokens == each.tokens


@pytest.mark.parametrize("replay", [0.0, REPLAY_CLIP, 1 - REPLAY_CLIP, 1.0])
def test_plans_at_the_ends_of_the_replay_range(replay):
    """Pure adaptation, and pure replay, on laws that allow them."""
    p = {"E": 1.5, "A": 0.0, "alpha": 0.3, "B": 50.0, "beta": 0.25, "nu": 0.0}
    p |= {"C": 0.0, "gamma": 0.1, "F": 0.0, "eta": 0.3}
    fit = replace(POINTS["source"], law=load_law("form1"), parameters=p)
    limits = LIMITS | {"max_loss": 1.6, "max_forgetting": 0.1, "baseline": 1.5}
    found = plan(target=fit, source=fit, **limits, replay_grid=[replay])
    assert found.tokens == pytest.approx((50 / 0.1) ** (1 / 0.25), rel=1e-9)
    assert found.replay == replay


def test_laws_without_replay_or_tokens():
    law = load_law("chinchilla")
    table = simulate(law, CHINCHILLA, grid(params=[1e8, 1e9], tokens=[1e9, 1e10]))
    fit = replace(POINTS["target"], law=law, parameters=CHINCHILLA, table=table)
    asked = {"target": fit, "source": fit, **LIMITS, "max_loss": 2.2, "baseline": 2.2}
    for ratios in (None, [0.3, 1.0]):
        with pytest.raises(BayeslawError, match="the law chinchilla does not know replay"):
            plan(**asked, replay_grid=ratios)
    tokens = (410 / (2.2 - 1.7 - 400 / 8.1e9**0.34)) ** (1 / 0.28)
    assert plan(**asked, replay_grid=[1.0]).tokens == pytest.approx(tokens, rel=1e-9)
    never = replace(fit, law=replace(law, terms=law.terms[:1]))
    assert plan(**asked | {"target": never, "source": never}, replay_grid=[1.0]).tokens == 0


@pytest.mark.parametrize("unit", [1, 1e6, 1e9])
def test_papers_plan_from_the_true_laws_in_any_unit_of_tokens(unit):
    """With a gated exponent the unit of D is part of the law; a plan uses the law's own unit."""
    p, (target, source) = WORLD.truth["french"], POINTS.values()
    beta, own = p["beta"] * (1 - p["lambda_"] / (1 + 279 ** -p["zeta"])), target.law.token_unit
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
    loose = LIMITS | {"max_forgetting": 0.9, "replay_grid": [0.9]}
    found = plan(**accepted(target=target, source=source), **loose, baseline=BASE)
    assert found.tokens == pytest.approx(tokens, rel=1e-9)


# -- several targets and sources ------------------------------------------------------------------


def test_several_targets_are_met_jointly(fits, found):
    """The draws of the three fits are shifted differently."""
    asked = LIMITS | {"target": [fits["target"], posterior("french", seed=7)], "baseline": BASE}
    more = plan(**asked | {"source": fits["source"], "max_loss": [1.8, 1.79]})
    rows = grid(**RUN, replay=more.replay, tokens=more.tokens)
    one, two, source = (f.latent(rows)[:, 0] for f in (*asked["target"], fits["source"]))
    meets = np.stack([one <= 1.8, np.roll(two, 133) <= 1.79, np.roll(source, 266) <= 1.02 * BASE])
    assert more.p_targets == (meets[0].mean(), meets[1].mean())
    assert more.p_target == meets[:2].all(0).mean()
    assert more.p_both == meets.all(0).mean() >= 0.9
    assert more.pairing.startswith("independently: 3 fits")
    assert more.atpp > found.atpp
    impossible = plan(**asked | {"source": fits["source"], "max_loss": [1.8, 1.3]})
    assert impossible.binds.startswith("target 2; alone, P(target 1) up to 1")


def test_several_sources_have_limits_and_baselines_of_their_own(fits, found):
    each = [*fits.values(), posterior("english_arabic", spread=0.006, seed=7)]
    asked = LIMITS | {"max_forgetting": [0.02, 0.016], "baseline": [BASE, (1.001 * BASE, 0.001)]}
    more = plan(target=each[0], source=each[1:], **asked, replay_grid=[0.3, 0.4, 0.5, 0.6])
    rows, (_, _, limit) = grid(**RUN, replay=more.replay, tokens=more.tokens), more.problem.limits
    pairs = zip(each, more.problem.limits, strict=True)
    target, one, two = (fit.latent(rows)[:, 0][limit.index] for fit, limit in pairs)
    assert np.std(limit.baseline) == pytest.approx(0.001, rel=0.2)
    holds = [target <= 1.8, one <= 1.02 * BASE, two <= 1.016 * limit.baseline]
    assert more.p_both == np.mean(np.all(holds, axis=0)) >= 0.9
    assert more.p_sources == (np.mean(holds[1]), np.mean(holds[2]))
    assert more.p_forgetting == np.mean(holds[1] & holds[2])
    assert more.forgettings[1] == pytest.approx(np.mean(two / limit.baseline - 1))
    assert more.atpp >= found.atpp
    assert more.problem.names == ("target", "forgetting 1", "forgetting 2")
    assert more.to_dict()["limits"]["max_forgetting"] == [0.02, 0.016]
    assert list(more.spread.index) == ["target", "source 1", "source 2"]
    assert set(more.sensitivity()["quantity"]) == {"max_loss", "max_forgetting", "baseline"}


def test_each_limit_has_the_noise_and_the_baseline_of_its_own_draws():
    """Of several targets and sources, also where the draws are thinned."""
    scales, noisy = [0.001, 0.03, 0.002, 0.04], []
    for k, scale in enumerate(scales):
        fit = posterior("french" if k < 2 else "english_arabic", seed=k)
        noisy.append(replace(fit, draws=fit.draws.assign(sigma=0 * fit.draws["sigma"] + scale)))
    asked = RUN | {"max_loss": [1.8, 1.9], "max_forgetting": [0.05, 0.2], "confidence": 0.3}
    asked |= {"baseline": [BASE, (BASE, 0.05)], "replay_grid": [0.4]}
    problem = plan(target=noisy[:2], source=noisy[2:], **asked).problem
    sizes = [np.median(np.abs(limit.noise.total)) for limit in problem.limits]
    np.testing.assert_allclose(sizes, 0.7 * np.array(scales), rtol=0.2)
    # The baselines are in the order of the draws of their own source.
    starts = BASE + 0.05 * np.random.default_rng([0, 11]).standard_normal(400)
    limit = problem.limits[3]
    np.testing.assert_array_equal(limit.baseline, starts[limit.index])
    some = np.array([399, 5, 250, 12])
    whole, part = (np.array(p.excesses([2.0], [0.4])) for p in (problem, problem.take(some)))
    np.testing.assert_array_equal(part, whole[..., some])


# -- baselines ------------------------------------------------------------------------------------


def test_baselines_that_are_computed_or_measured(fits, found):
    loose = LIMITS | {"max_forgetting": 0.1, "confidence": 0.7}
    asymptote = plan(**fits, **loose, baseline="asymptote")
    floor = fits["source"].latent(grid(**RUN, replay=1.0, tokens=1e300))[:, 0]
    target, source = losses(fits, asymptote)
    assert asymptote.p_both == np.mean((target <= 1.8) & (source <= 1.1 * np.roll(floor, 200)))
    nats = plan(**fits, **LIMITS | {"max_forgetting": 0.02 * BASE}, relative=False)
    assert nats.atpp == pytest.approx(found.atpp, rel=1e-9)
    assert "tokens = 0" in nats.baseline  # of the table
    unsure = plan(**fits, **LIMITS, baseline=(BASE, 0.01), replay_grid=[0.4])
    assert unsure.problem.source.baseline.mean() == pytest.approx(BASE, abs=2e-3)
    assert unsure.problem.source.baseline.std() == pytest.approx(0.01, rel=0.15)
    sure = plan(**fits, **LIMITS, baseline=BASE, replay_grid=[0.4])
    assert unsure.deterministic.atpp == pytest.approx(sure.deterministic.atpp, rel=0.05)
    assert "with sd 0.01" in unsure.baseline


def test_baseline_of_a_law_that_has_a_value_at_zero():
    """The law's loss at D = 0 against one by hand; limits that it meets need no tokens."""
    p = {"E": 1.5, "A": 100.0, "alpha": 0.3, "F": 0.5, "eta": 0.3, "phi": 0.01, "rho": 1.0}
    p |= {"G": 0.2, "xi": 2.0, "omega": 2.0}
    source = replace(POINTS["source"], law=load_law("forgetting"), parameters=p)
    start = 1.5 + 100 / 8.1e9**0.3 + 0.5 / (8.1e9**0.01 * 279**0.3)
    asked = LIMITS | accepted(target=POINTS["target"], source=source)
    own, given = (plan(**asked, baseline=b) for b in ("law", start))
    assert own.best is None
    assert (own.atpp, own.forgetting) == pytest.approx((given.atpp, given.forgetting), rel=1e-9)
    assert own.baseline.startswith("source law's own loss at D = 0")
    with pytest.raises(BayeslawError, match="one of 'asymptote', 'law'"):
        plan(**asked)
    fit = replace(source, parameters=p | {"A": 0.0, "F": 0.0, "phi": 0.3})
    none = plan(target=fit, source=fit, **LIMITS | {"max_loss": 3.0}, baseline="law")
    assert (none.status, none.tokens, none.p_both) == ("feasible", 0, 1)
    assert none.deterministic.tokens == 0
    assert (none.sensitivity()["held"] == 1).all()


def test_baseline_of_a_numbered_base_on_the_domain_of_the_source(fits):
    table, run = fits["source"].table, PlannedRun(**RUN, base="11")
    rows = pd.concat([table.frame, table.baselines], ignore_index=True)
    rows["base"] = rows.groupby(["params", "ptpp"]).ngroup().astype(float)
    rows.loc[0, "base"] = np.nan
    other = rows[rows["tokens"] == 0].assign(domain="greek", loss=9.0)

    def source_with(parts):
        read = bl.from_frame(pd.concat(parts))
        read = replace(table, frame=read.frame, baselines=read.baselines)
        return replace(fits["source"], table=read)

    fit = source_with([rows, other])
    assert planned_run.planned_base([fit], replace(run, base=None))[0] == "11"
    assert baseline_of(None, fit, run)[0] == pytest.approx(BASE)
    with pytest.raises(BayeslawError, match="0 rows with tokens = 0"):
        baseline_of(None, source_with([rows[rows["tokens"] > 0], other]), run)


# -- bases, sizes and shares of the variance ------------------------------------------------------

TAU, NEW = 0.02, PlannedRun(**RUN, base="new")
DOMAINS = ("french", "english_arabic")


def labelled(domain, tau=TAU):
    """A posterior with an effect of each base, .01 at the one named "big" and zero elsewhere."""
    fit = posterior(domain)
    big = fit.table.frame.eval("params == 8.1e9 and ptpp == 31")
    name = np.where(big, "31", fit.table.frame["params"].astype(str))
    frame = fit.table.frame.assign(base=name)
    frame.loc[frame.index[-1], ["params", "ptpp", "base"]] = 8.1e9, 279, "big"
    names, rng = np.unique(frame["base"]), np.random.default_rng(3)
    effect = 0.001 * rng.standard_normal((4, 100, len(names))) + 0.01 * (names == "big")
    draws = fit.draws.assign_coords(base=names).assign(
        tau_base=(("chain", "draw"), np.full((4, 100), tau)),
        base_effect=(("chain", "draw", "base"), effect),
    )
    spec, table = replace(fit.spec, effects=("base",)), replace(fit.table, frame=frame)
    return replace(fit, spec=spec, table=table, draws=draws)


def test_a_fitted_base_has_its_posterior_and_a_new_one_is_drawn():
    fit = labelled("french")
    known, new = (deviations([fit], replace(NEW, base=name))[0].base for name in ("big", "new"))
    assert np.median(known) == pytest.approx(0.01, abs=3e-4)
    assert known.std() == pytest.approx(0.001, rel=0.2)
    assert np.median(new) == pytest.approx(0, abs=3e-3)
    assert new.std() == pytest.approx(TAU, rel=0.15)


def test_the_base_is_the_only_one_of_its_model_and_stage():
    """One may be labelled "new": the name is then that base's."""

    def base(fit, ptpp=279, name=None):
        return planned_run.planned_base([fit], PlannedRun(8.1e9, ptpp, name))

    fit = labelled("french")
    assert base(fit) == ("big", "base big, with rows of its own")
    for label, text in (base(fit, name="new"), base(fit, ptpp=200)):
        assert (label, text[:10]) == ("new", "a new base")
    for name, says in (
        ("bigg", r"base 'bigg'; did you mean 'big'"),
        ("31", r"'31' has params = 8"),
    ):
        with pytest.raises(BayeslawError, match=says):
            base(fit, name=name)
    frame = fit.table.frame.assign(base=fit.table.frame["base"].replace("big", "new"))
    draws = fit.draws.assign_coords(base=[*fit.draws["base"].values[:-1], "new"])
    renamed = replace(fit, table=replace(fit.table, frame=frame), draws=draws)
    for name in (None, "new"):
        assert base(renamed, name=name) == ("new", "base new, with rows of its own")
    with pytest.raises(BayeslawError, match="a base is labelled 'new'"):
        base(renamed, ptpp=200)
    effect, big = deviations([renamed], NEW), deviations([fit], replace(NEW, base="big"))
    np.testing.assert_array_equal(effect[0].base, big[0].base)


def test_the_effect_of_the_base_cancels_against_a_computed_baseline():
    """The un-adapted model has it as well; against a measured baseline it does not cancel."""
    counts = {}
    for tau in (1e-6, 0.05):
        source = labelled("english_arabic", tau)
        curve, (noise,) = curve_of(source, NEW), deviations([source], NEW)
        silent = replace(noise, parts=noise.parts | {"noise": 0 * noise.total})
        for baseline, atpp in (("asymptote", 8.0), (BASE, 9.0)):
            limit = Limit(curve, 0.1, silent, baseline=baseline, relative=True)
            counts[tau, baseline] = limit.value(np.log([atpp]), [0.4])
    np.testing.assert_allclose(counts[1e-6, "asymptote"], counts[0.05, "asymptote"])
    assert np.std(counts[0.05, BASE]) > 2 * np.std(counts[1e-6, BASE])


def test_new_groups_are_drawn_apart_in_each_domain():
    one, two = (each.base for each in deviations([labelled(name) for name in DOMAINS], NEW))
    assert np.corrcoef(one, two)[0, 1] == pytest.approx(0, abs=0.15)


def test_shares_of_the_variance_of_a_new_base():
    target, source = (labelled(domain, 0.004) for domain in DOMAINS)
    asked = WORLD.limits | {"baseline": BASE, "base": "new"}
    asked |= accepted(target=target, source=source)
    found = plan(**asked, replay_grid=[0.3, 0.4])
    shares, limit = found.spread.drop(columns="sd"), found.problem.targets[0]
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    latent = np.log(limit.curve.loss([found.budget], [found.replay])[0, 0])
    total = found.spread.loc["target", "sd"]
    assert total == pytest.approx((latent + limit.noise.total).std(), rel=0.1)
    assert shares.loc["target", "base"] == pytest.approx(0.004**2 / total**2, rel=0.3)
    assert shares.loc["target", "law"] == pytest.approx(0, abs=1e-12)


def test_the_share_of_the_law_is_the_variance_between_the_members_of_a_pool(fits):
    low = fits["target"]
    high = replace(low, draws=low.draws.assign(L_ref=1.02 * low.draws["L_ref"]))
    pool = Pool({"low": low, "high": high}, {"low": 3.0, "high": 1.0})
    limits = WORLD.limits | {"max_loss": 1.9, "max_forgetting": 0.1, "baseline": BASE}
    found = plan(target=pool, source=fits["source"], **limits, replay_grid=[0.4])
    row = grid(**RUN, replay=found.replay, tokens=found.tokens)
    one, two = (np.log(member.latent(row)[:, 0]) for member in (low, high))
    between = 0.25 * 0.75 * (two.mean() - one.mean()) ** 2
    within = 0.75 * one.var() + 0.25 * two.var() + found.problem.targets[0].noise.total.var()
    target = found.spread.loc["target"]
    assert target["sd"] ** 2 == pytest.approx(between + within, rel=0.1)
    assert target["law"] == pytest.approx(between / (between + within), rel=0.1)


def test_new_sizes_are_drawn_apart_in_each_domain(fits):
    """At a size without rows, beside fits whose fitted sizes have no effect."""
    sized = []
    for fit in fits.values():
        sizes = np.unique(fit.table.frame["params"].astype(float).astype(str))
        draws = fit.draws.assign_coords(size=sizes).assign(
            tau_size=(("chain", "draw"), np.full((4, 100), TAU)),
            size_effect=(("chain", "draw", "size"), np.zeros((4, 100, len(sizes)))),
        )
        sized.append(replace(fit, spec=replace(fit.spec, effects=("size",)), draws=draws))
    limits = LIMITS | {"params": 4e9, "max_loss": 1.95, "max_forgetting": 0.1, "baseline": BASE}
    asked = limits | {"confidence": 0.6, "replay_grid": [0.4]}
    found = plan(**accepted(target=sized[0], source=sized[1]), **asked)
    row, effects = grid(params=4e9, ptpp=279, replay=0.4, tokens=4e10), []
    for limit, fit in zip(found.problem.limits, sized, strict=True):
        loss = limit.curve.loss([np.log(10.0)], [0.4])[0, 0]
        effects.append(np.log(loss / fit.latent(row)[limit.index, 0]))
    assert np.std(effects, axis=1) == pytest.approx([TAU, TAU], rel=0.15)
    assert np.corrcoef(effects)[0, 1] == pytest.approx(0, abs=0.15)
    assert found.spread.loc["target", "size"] > 0.5


def test_the_effect_of_a_new_size_is_taken_where_the_plan_lies():
    """With few sizes it depends on tokens, by the response of the law."""
    target = saved("curvature").accepted(unconverged=True, beyond_evidence=True)
    source = replace(target, draws=target.draws.assign(L_ref=1.01 * target.draws["L_ref"]))
    row = grid(params=4e9, tokens=8e10)
    most, baseline = (float(np.median(fit.latent(row))) for fit in (target, source))
    asked = {"max_loss": most, "max_forgetting": 0.01, "baseline": baseline, "confidence": 0.5}
    asked |= {"params": 4e9, "replay_grid": [1.0], "noise": "latent"}
    found = plan(target=target, source=source, **asked)
    assert found.run.tokens == pytest.approx(found.tokens, rel=0.1)


# -- choices, Monte Carlo error, and what binds ---------------------------------------------------


def problem_of(draws, max_loss=1.8, rise=0.02):
    """The limits on latent losses of posteriors of so many draws."""
    curves = (curve_of(fit, PlannedRun(**RUN)) for fit in both(draws).values())
    return limits_on(*curves, max_loss, rise, BASE)


def test_infeasible_plans_say_what_binds_and_what_is_likeliest(fits):
    tight = plan(**fits, **LIMITS | {"max_loss": 1.7}, baseline=BASE)
    assert (tight.status, tight.atpp) == ("infeasible", np.inf)
    assert np.isnan(tight.p_both)
    assert tight.binds.startswith("target;")
    assert json.loads(json.dumps(tight.to_dict(), allow_nan=False))["atpp"] is None
    # The largest fraction of draws that meets both limits, within the evidence or anywhere.
    target, source = over_replay(fits, 1e290)
    most = ((target <= 1.7) & (source <= 1.02 * BASE)).mean(0).max()
    best = likeliest(replace(tight.problem, beyond=None), tight.replay_grid)[0] / 400
    assert 0.05 < most <= best <= most + 0.02 < 0.9
    assert tight.best.p_both < best
    assert "% within the evidence" in tight.verdict
    never = plan(**fits, **LIMITS | {"max_forgetting": -0.3}, baseline=BASE)
    assert never.binds.startswith("forgetting;")
    assert never.best.p_both == 0


@pytest.mark.slow
def test_the_printed_plan_of_the_readme_is_that_of_five_seeds():
    """Seeds of the sampler and the plan, of one table: as little as another processor changes."""
    readme = " ".join((ROOT / "README.md").read_text().split())
    (printed,) = re.findall(r"Plan: (feasible: .*? draws [\d.]+)", readme)
    tables = [
        WORLD.table(domain, seed=0).split("ptpp <= 31", "ptpp == 279", WORLD.anchors)[0]
        for domain in (WORLD.target, WORLD.source)
    ]
    limits = WORLD.limits | {"max_forgetting": 0.03, "baseline": BASE, "confidence": 0.9}
    for seed in range(5):
        asked = {"discrepancy": "none", "target_accept": 0.995, "seed": seed}
        target, source = (
            bl.fit(WORLD.laws[domain], table, **asked)
            for domain, table in zip((WORLD.target, WORLD.source), tables, strict=True)
        )
        found = plan(target=target, source=source, seed=seed, **limits)
        assert found.verdict == printed


def test_numbers_are_shown_to_their_monte_carlo_error():
    shown = [certain(16.003, 0.26), certain(0.4177, 0.012), certain(1.296e11, 2.1e9)]
    assert shown == [16, 0.4, 1.3e11]
    assert [certain(4.7, 30), certain(17.0, 30)] == [5, 20]  # one digit is kept
    assert [certain(v, sd) for v, sd in ((0.65, 0), (0, 1), (np.inf, 1))] == [0.65, 0, np.inf]


def test_the_monte_carlo_error_is_that_of_resampled_draws():
    """At a fixed ratio, where a plan is an order statistic of the budgets that draws need."""
    problem, ratios = problem_of(1000), np.array([0.4])
    (place,) = smallest(problem, ratios)
    needed = problem.needed(0.4, 1e-12)
    assert place[0] == pytest.approx(np.sort(needed)[899], abs=1e-9)
    index = np.random.default_rng(0).integers(1000, size=(2000, 1000))
    budgets = np.sort(np.exp(needed)[index])[:, 899]
    error, held_out = monte_carlo(problem, ratios, place)
    np.testing.assert_allclose(error["atpp_90"], np.quantile(budgets, (0.05, 0.95)), rtol=0.03)
    assert error["atpp"] == pytest.approx(np.std(budgets), rel=0.3)
    one, two = needed[:500], needed[500:]
    wanted = [np.mean(b <= np.sort(a)[449]) for a, b in ((one, two), (two, one))]  # 450 of 500
    assert wanted != [0.9, 0.9]
    assert held_out == pytest.approx(np.mean(wanted), abs=1e-12)


def test_the_interval_of_a_plan_holds_that_of_all_draws():
    """Of fresh draws of the same distribution, 90 of 100 intervals; 82 are 2.6 errors below."""
    ratios, held = np.array([0.3]), 0

    def of(draws, seed):
        rises = lambda u, r: 1.0 + 0.005 * (2.0 - u) + 0 * r  # noqa: E731
        return by_formulas(rises, lambda u, r: 0.5 + 0 * (u + r), 0.8, draws, seed)

    ((truth, _),) = smallest(of(200_000, 0), ratios)
    for seed in range(1, 101):
        problem = of(200, seed)
        (place,) = smallest(problem, ratios)
        low, high = np.log(monte_carlo(problem, ratios, place)[0]["atpp_90"])
        held += low <= truth <= high
    assert 82 <= held <= 98


def test_the_rank_of_a_confidence():
    cases = [(0.9, 10, 9), (0.9, 4000, 3600), (0.95, 20, 19), (0.91, 10, 10), (0.5, 3, 2)]
    for confidence, draws, rank in (*cases, (0.01, 10, 1)):
        assert by_formulas(np.add, np.add, confidence, draws).rank == rank


# -- the result -----------------------------------------------------------------------------------


def test_deterministic_plan_has_its_failure_probability(fits, found):
    given = plan(**fits, **LIMITS, baseline=BASE, point=[*POINTS.values()])
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
VERDICTS = [
    (True, {}, "feasible", ""),
    (True, {"replay_grid": [0.8]}, BEYOND, "0.3 of replay (bands were tested to 0.25)"),
    (False, {"replay_grid": [0.9]}, BEYOND, "0.4 of replay (bands"),
    (False, {"max_loss": 100, "max_forgetting": 1}, "feasible", "decades of tokens"),
]


@pytest.mark.parametrize(("pooled", "asked", "status", "words"), VERDICTS)
def test_a_plan_has_the_verdict_of_the_check_there(fits, pooled, asked, status, words):
    """A plan within the evidence comes first, and a cheaper one beyond stands beside it."""
    target = Pool({"one": fits["target"], "other": posterior("french", seed=1)})
    both = accepted(**fits | ({"target": target} if pooled else {}))
    found = plan(**both, **LIMITS | {"baseline": BASE} | asked)
    assert found.status == status
    shown = certain(found.atpp, found.error["atpp"])
    assert str(found).startswith(f"Plan: {status}: about {shown:.3g} ATPP at ")
    assert str(found).count("No evidence") == bool(found.evidence) == bool(words)
    assert words in found.evidence
    row, columns = grid(**RUN, replay=found.replay, tokens=found.tokens), fits["target"].columns
    located = bl.locate(fits["target"].table, row, columns)
    assert (evidence(located, columns)[0] == "ok") == (status == "feasible")
    of = "" if not words else "plan" if found.cheaper is None else "cheaper"
    assert found.to_dict()["evidence_of"] == of
    few = f"{found.p_both:.3f}; on draws that did not choose it {found.held_out:.3f}"
    assert f"Chosen by 400 draws, for which P(both) is {few}" in " ".join(str(found).split())
    if "max_loss" not in asked:
        assert found.cheaper is None
    else:
        assert found.cheaper.atpp < 1e-3 < found.atpp
        assert found.cheaper.p_both >= 0.9
        assert "beyond the evidence" in str(found)


def test_what_lies_outside_the_rows_is_said_once_in_the_words_of_the_check(fits):
    """Anchors at PTPP 279 are of the smallest size only, so that a corner is empty."""
    row = grid(**RUN, replay=[0.4, 0.8], tokens=16 * 8.1e9)
    level, words, (far, exact) = planned_run.extrapolations(fits, row[:1])
    away = bl.locate(fits["target"].table, row[:1])["decades"].item()
    start = f"target and source: extrapolation by {away:.2g} decades"
    assert (level, words, far) == ("ok", "", f"{start}, each covariate within its range.")
    assert exact.startswith("target and source: The law is taken as exact")
    level, words, texts = planned_run.extrapolations(fits, row[1:].assign(tokens=8.1e15))
    assert level == "no evidence"
    assert "decades of tokens (bands were tested to 0.83) and 0.3 of replay (bands" in words
    assert not any("No evidence" in text or "millions" in text for text in texts)


def test_frontier_surface_and_sensitivity(found):
    frontier = found.frontier()
    assert (np.diff(frontier["atpp"]) > 0).all()
    assert (frontier["p_both"] >= frontier["confidence"]).all()
    assert frontier.query("confidence == 0.9")["atpp"].item() == found.atpp
    surface = found.surface([0.0, found.atpp], [0.1, found.replay])
    assert surface.loc[found.atpp, found.replay] == found.p_both
    assert surface.loc[0.0, 0.1] == 0
    for _, moved in found.sensitivity().groupby("quantity"):
        down, up = moved["atpp"]
        assert down > found.atpp > up
        assert moved["held"].iloc[0] < found.p_both < moved["held"].iloc[1]


def test_a_choice_of_ones_own_and_a_cap(found):
    own = found.at(atpp=found.atpp, replay=found.replay)
    assert own.tokens == pytest.approx(found.tokens, rel=1e-9)
    assert own.p_both == found.p_both
    for budget in (np.inf, 1e4):
        assert choice_at(found.problem, budget, 0.5) is INFEASIBLE
    assert choice_at(found.problem, 599.0, 0.5).p_both > 0
    capped = found.within(tokens=0.8 * found.tokens)
    assert capped.tokens <= 0.8 * found.tokens
    shares = found.surface([0.8 * found.atpp], np.linspace(0.005, 0.995, 331))
    assert capped.p_both >= shares.to_numpy().max()
    assert found.within(flops=0.8 * found.flops) == capped
    assert found.within(tokens=found.tokens).p_both >= 0.9 - 2 / 400  # one or two draws


# -- a fixed budget -------------------------------------------------------------------------------

RATIOS = np.linspace(0.005, 0.995, 1981)


def least_of_brute_force(problem, budget, confidence):
    """Least ratio of a fine grid at which enough draws keep the limits, and the largest share."""
    shares = problem.held(np.array([budget]), RATIOS)[0] / problem.draws
    enough = shares >= confidence - 1e-9
    return RATIOS[enough.argmax()] if enough.any() else np.inf, shares.max()


@pytest.mark.parametrize("noise", ["latent", "predictive"])
@pytest.mark.parametrize("max_loss", [None, 1.85])
def test_at_a_fixed_budget_the_least_replay_keeps_the_limits(fits, noise, max_loss):
    asked = LIMITS | {"baseline": BASE, "max_loss": max_loss, "noise": noise, "atpp": 20.0}
    found = plan(**accepted(**fits), **asked)
    assert found.atpp == pytest.approx(20.0)
    assert found.status.startswith("feasible")
    assert found.p_both >= found.confidence
    expected, _ = least_of_brute_force(found.problem, np.log(20.0), found.confidence)
    assert found.replay == pytest.approx(expected, abs=6e-4)
    assert found.replay <= expected
    by_confidence = found.frontier([0.5, 0.8, 0.9])["replay"]
    assert (by_confidence.diff()[1:] >= 0).all()
    document = found.to_dict()
    assert document["limits"]["atpp"] == 20.0
    assert document["limits"]["max_loss"] == max_loss
    text = " ".join(str(found).split())
    assert "at 20 ATPP, the least replay with" in text
    assert "Target loss at this budget and replay: median" in text
    assert ("P(target)" in text) == (max_loss is not None)


def test_at_a_fixed_budget_without_limits_the_replay_of_the_best_loss(fits):
    asked = LIMITS | {"baseline": BASE, "max_loss": None, "max_forgetting": None, "atpp": 20.0}
    found = plan(**accepted(**fits), **asked)
    losses = found.problem.targets[0].value([np.log(20.0)], RATIOS)[0]
    stated = np.sort(losses, axis=-1)[:, found.problem.rank - 1]
    assert found.replay == pytest.approx(RATIOS[stated.argmin()], abs=6e-4)
    assert found.target_loss()[3] == pytest.approx(stated.min(), rel=1e-3)
    assert "the least target loss that holds with probability 90 %" in " ".join(str(found).split())
    assert found.sensitivity().empty


def test_a_fixed_budget_that_keeps_no_limit_says_the_best_probability(fits):
    asked = LIMITS | {"baseline": BASE, "max_loss": None, "max_forgetting": -0.2, "atpp": 20.0}
    found = plan(**accepted(**fits), **asked)
    _, most = least_of_brute_force(found.problem, np.log(20.0), found.confidence)
    assert (found.status, found.atpp) == ("infeasible", np.inf)
    assert found.best.p_both == pytest.approx(most, abs=1 / found.draws)
    assert "no replay ratio at this budget meets the limits" in found.verdict
    assert f"at most {100 * found.best.p_both:.1f} %" in found.verdict


# -- mistakes -------------------------------------------------------------------------------------

TWO = {"source": lambda fits: [fits["source"]] * 2}
COPY = {"target": lambda fits: replace(fits["source"], draws=fits["source"].draws.copy())}
UNSURE = {"source": lambda fits: replace(fits["source"], convergence=replace(GOOD, divergences=3))}
# Arguments, or functions that make them of the fits; and what the error says.
MISTAKES = [
    ({"confidence": 1.0}, "confidence=1 is not between 0 and 1"),
    ({"confidence": 90}, "confidence=90 is not between 0 and 1"),
    ({"max_loss": None}, r"a plan needs max_loss .*or a fixed budget \(atpp=8\)"),
    ({"atpp": -8.0}, "atpp=-8: give a positive number"),
    ({"params": 0}, "params=0: give a positive number"),
    ({"ptpp": None}, "a plan needs ptpp="),
    ({"max_loss": np.inf}, "max_loss=inf: give a positive number"),
    ({"max_forgetting": -1}, "max_forgetting=-1: 0.02 allows"),
    ({"max_forgetting": 2}, "give a fraction, not a percentage; 0.02 allows a rise of 2 %"),
    ({"baseline": "asymptot"}, "did you mean 'asymptote'"),
    ({"baseline": -2.0}, "baseline=-2: give a source loss"),
    ({"baseline": (BASE, -1)}, "standard deviation"),
    ({"baseline": "law"}, r"at D = 0.*one of 'asymptote'"),
    ({"baseline": None, "ptpp": 100}, r"0 rows with tokens = 0.*no value at D = 0"),
    ({"baseline": None, "source": POINTS["source"]}, "No baseline.*no value at D = 0"),
    ({"base": "big"}, "no column base"),
    ({"noise": "none"}, "unknown noise 'none'"),
    ({"noise": None, "target": POINTS["target"]}, "has no noise"),
    ({"unique_tokens": -1}, "unique_tokens=-1: give a positive number"),
    ({"unique_tokens": 1e9}, "does not know what repeated tokens are worth"),
    ({"replay_grid": [30]}, "replay ratios lie in"),
    ({"replay_grid": []}, "replay ratios lie in"),
    ({"target": lambda fits: fits["source"]}, "target and source are one posterior"),
    (COPY, "target and source are one posterior"),  # as of one file that is given twice
    ({"target": lambda fits: [fits["target"]] * 2}, "2 targets and 1 limits"),
    (TWO | {"baseline": [BASE, BASE]}, "2 sources and 1 of max_forgetting"),
    (TWO | {"max_forgetting": [0.02, 0.1]}, "2 sources and 1 of baseline"),
    (TWO | {"max_forgetting": [0, 0.1], "baseline": [BASE, "law"]}, "only the first source"),
    (UNSURE, "3 divergences"),
    # Twice as far as bands were measured.
    ({"replay_grid": [1.0]}, r"no plan within the evidence.* 0\.5 of replay .*: ask for"),
    ({"ptpp": 279e2}, r"plan: No evidence: rows lie up to 2 decades of PTPP .*: ask for"),
]


@pytest.mark.parametrize(("wrong", "says"), MISTAKES, ids=[says[:30] for _, says in MISTAKES])
def test_mistakes_are_told(fits, wrong, says):
    wrong = {name: value(fits) if callable(value) else value for name, value in wrong.items()}
    with pytest.raises(BayeslawError, match=says):
        plan(**fits | LIMITS | {"baseline": BASE} | wrong)


def test_mistakes_about_a_plan_are_told(found):
    for call, says in (
        (lambda: found.within(tokens=0), "positive cap"),
        (lambda: found.at(atpp=0, replay=0.3), "atpp=0: give a positive number"),
        (lambda: found.at(atpp=5, replay=1.3), "replay ratios lie in"),
    ):
        with pytest.raises(BayeslawError, match=says):
            call()


def test_the_first_grid_is_evaluated_once_for_all_limits():
    fits = true_fits(bl.paper_world())
    plan = bl.plan(
        target=fits[0],
        source=fits[1],
        baseline=bl.paper_world().baseline(),
        **bl.paper_world().limits,
    )
    curve = plan.problem.limits[0].curve
    assert plan.problem.scaled(max_loss=0.99).limits[0].curve.coarse is curve.coarse
    budgets, ratios = np.array([[0.1, 0.2], [0.3, 0.4]]), np.array([0.3, 0.6])
    for asked in (budgets, budgets.ravel(), budgets[:1]):  # same bytes, other shapes
        for of in (curve.coarse, curve.coarse, curve.coarse.take(np.array([0]))):
            np.testing.assert_array_equal(of.loss(asked, ratios), curve.loss(asked, ratios))
