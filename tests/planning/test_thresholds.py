"""Feasible budgets of single draws against brute force, and the counting of them."""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayeslaw.laws.law import CLIP
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.laws.terms import ORIGIN, Curved, Power
from bayeslaw.model.discrepancies import curved
from bayeslaw.planning.chance import Problem, meet
from bayeslaw.planning.curves import NODES, Curve
from bayeslaw.planning.intervals import intervals
from bayeslaw.planning.limits import curve_of
from bayeslaw.planning.paper_case import true_fits
from bayeslaw.planning.roots import rooted
from bayeslaw.planning.thresholds import below as below_slice
from bayeslaw.simulation.worlds import paper_world

WORLD = paper_world()
LOG_ATPP = np.linspace(-14, 18, 257)
AT = {
    "params": np.log(1e9),
    "tokens": np.log(5e9),
    "ptpp": np.log(60),
    "replay": np.log(0.25),
    "barrier": np.log(0.25 + 1e-5),
    "share": 0.25,
}


@dataclass(frozen=True)
class Skewed(Power):
    """A power of D whose exponent drifts with r: no common bend at r and in pure replay."""

    def shape(self, p, x, at, xp):
        drift = 0.1 * x["replay"] * (x["tokens"] - at["tokens"])
        return super().shape(p, x, at, xp) + 0.2 * p["beta"] * drift


DATA = Power("B", "slope_D", {"tokens": "beta"}, {"replay": "nu"})
TWICE = (DATA, Power("G", "slope_G", {"tokens": "phi"}))
BENT = Curved(Power("G", "slope_G", {"barrier": "gamma"}), {"cross_GD": ("tokens", "barrier")})
RISING = (DATA, Power("G", "slope_G", {"params": "alpha"}, {"tokens": "phi"}))


def laws():
    for name in ("form1", "form2", "form3", "dcpt", "chinchilla"):
        yield load_law(name)
        yield curved(load_law(name))


every_law = pytest.mark.parametrize(
    "law", list(laws()), ids=lambda law: f"{law.name}-{len(law.parameters)}"
)


def with_terms(*terms):
    law = load_law("form1")
    rest = tuple(t for t in law.terms if t.coefficient != "B")
    return replace(law, terms=(*rest, *terms))


def random_curve(rng, law, draws):
    """Draws of any sign of curvature, with exact zeros, at a random model and stage."""
    p = {"E": rng.uniform(0.4, 2.0, draws)}
    for name in law.coefficients:
        p[name] = rng.lognormal(np.log(0.2), 0.9, draws) * (rng.random(draws) > 0.02)
    for name in law.exponents:
        size = rng.lognormal(np.log(0.3), 0.6, draws) * (rng.random(draws) > 0.02)
        if name == "lambda_":
            size = rng.random(draws)
        elif name == "zeta":
            size = rng.normal(0, 0.7, draws)
        elif name.startswith(("curve", "cross")):
            size = rng.normal(0, 0.15, draws) * (rng.random(draws) > 0.1)
        elif name in law.drift:
            size = rng.normal(0, 0.02, draws)
        elif name.startswith("tilt"):
            size = rng.normal(0, 0.7, draws)
        p[name] = size
    params, ptpp = np.exp(rng.uniform(np.log(1e8), np.log(2e10))), rng.uniform(5, 300)
    law, p = law.settled(p, {"params": np.log(params), "ptpp": np.log(ptpp)}, AT)
    return Curve(law, p, AT, params, ptpp)


def below(curve, replay, limit, weight=None):
    if weight is None:
        return below_slice(curve.sliced(replay), limit)
    return below_slice(curve.sliced(replay), limit, curve.sliced([1.0]), weight)


def brute(curve, replay, budgets):
    """Loss of shape (budgets, draws) from the law, its concave terms held left of their peak."""
    law = curve.law
    tokens = curve.params * np.exp(budgets)
    rows = pd.DataFrame(
        {"params": curve.params, "ptpp": curve.ptpp, "replay": replay, "tokens": tokens}
    )
    p = {name: value[:, None] for name, value in curve.p.items()}
    x = law.covariates(rows)
    total = p["E"]
    for term in law.terms:
        shape = np.broadcast_to(term.shape(p, x, curve.at, np), (curve.draws, len(budgets)))
        if "tokens" in term.covariates:
            c2, c1, c0 = np.polyfit(budgets, shape.T, 2)[:, :, None]
            with np.errstate(divide="ignore", invalid="ignore"):
                left = (c2 < -1e-9) & (budgets < -0.5 * c1 / c2)
                shape = np.where(left, c0 - 0.25 * c1**2 / c2, shape)
        with np.errstate(over="ignore"):
            total = total + p[term.coefficient] * np.exp(shape)
    return total.T


def mismatches(curve, replay, limit, matched=None):
    """Budgets of the grid where a set and the sign of the brute-force loss disagree."""
    sets = below(curve, [replay], limit, matched)
    excess = brute(curve, replay, LOG_ATPP) - limit
    if matched is not None:
        excess = excess - matched * brute(curve, 1.0, LOG_ATPP)
    inside = np.stack([sets.contains(u)[0] for u in LOG_ATPP])
    clear = np.abs(excess) > 1e-9
    return ((inside != (excess <= 0)) & clear).sum(), sets


def random_limit(rng, curve, replay):
    """A limit near the losses, so that every answer occurs: none, all, and some budgets."""
    loss = curve.loss([replay], rng.uniform(-3, 5))[0]
    loss = np.where(np.isfinite(loss), loss, 2.0)  # a peak may lie beyond every number
    return loss * np.exp(rng.normal(0, 0.2, curve.draws))


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
        lower, upper = sets.lower[0, 0], sets.stop[0, 0]
        seen += [
            (lower == np.inf).sum(),
            (lower == -np.inf).sum(),
            np.isfinite(lower).sum(),
            np.isfinite(upper).sum(),
        ]
    assert cases == 2100  # 10 laws: 21,000 cases
    assert (seen[:3] > 0).all()
    assert (seen[3] > 0) == ("curve_B" in law.exponents)


@every_law
def test_matched_thresholds_agree_with_brute_force(law):
    rng = np.random.default_rng(2)
    for i in range(21):
        curve = random_curve(rng, law, 50)
        replay = [0.0, 1.0, CLIP, rng.random()][i % 4]
        weight = np.exp(rng.normal(0.02, 0.1, curve.draws))
        limit = rng.choice([0.0, 0.02, -0.05, 0.3])
        assert mismatches(curve, replay, limit, weight)[0] == 0


@pytest.mark.parametrize(
    "terms",
    [
        TWICE,
        RISING,
        (DATA, BENT),  # in D only by its bend
        (Skewed("B", "slope_D", {"tokens": "beta"}, {"replay": "nu"}),),
    ],
)
@pytest.mark.parametrize("matched", [None, 1.02])
def test_laws_without_a_closed_form(terms, matched):
    rng = np.random.default_rng(3)
    for _ in range(8):
        curve = random_curve(rng, with_terms(*terms), 60)
        replay = rng.random()
        limit = random_limit(rng, curve, replay) if matched is None else 0.02
        assert mismatches(curve, replay, limit, matched)[0] == 0


@pytest.mark.parametrize("matched", [None, 1.0])
def test_a_law_that_rises_and_saturates_in_tokens(matched):
    """Loss finite at D = 0, rising, then falling: sets that reach D = 0 are common."""
    rng, law, seen = np.random.default_rng(6), load_law("forgetting"), np.zeros(3, int)
    budgets = np.linspace(-14, 20, 257)
    for _ in range(10):
        p = {name: rng.uniform(0.1, 0.4, 100) for name in law.parameters}
        p |= {"A": rng.lognormal(5, 0.5, 100), "F": 10 * rng.lognormal(0, 0.5, 100)}
        p |= {"kappa": rng.uniform(1, 4, 100), "omega": rng.uniform(1, 4, 100)}
        curve, replay = Curve(law, p, ORIGIN, 1e9, 100.0), rng.random()
        limit = random_limit(rng, curve, replay) if matched is None else rng.uniform(-0.02, 0.05)
        sets = below(curve, [replay], limit, matched)
        excess = plain(curve, replay, budgets) - limit
        if matched is not None:
            excess = excess - matched * plain(curve, 1.0, budgets)
        inside = np.stack([sets.contains(u)[0] for u in budgets])
        assert not ((inside != (excess <= 0)) & (np.abs(excess) > 1e-9)).any()
        first, ends = sets.lower[0, 0], np.isfinite(sets.lower) | np.isfinite(sets.stop)
        seen += [(first == np.inf).sum(), (first == -np.inf).sum(), ends.any(0).sum()]
    assert (seen > 0).all()


def plain(curve, replay, budgets):
    """Loss of shape (budgets, draws) from the law as written."""
    rows = pd.DataFrame({"params": curve.params, "ptpp": curve.ptpp, "replay": replay}, range(257))
    x = curve.law.covariates(rows.assign(tokens=curve.params * np.exp(budgets)))
    return curve.law.loss({n: v[:, None] for n, v in curve.p.items()}, x, curve.at).T


def test_a_law_without_monotone_loss_is_a_set_of_its_own():
    """Loss that falls and rises again leaves a window of budgets, whose ends are the roots."""
    rng = np.random.default_rng(4)
    curve = random_curve(rng, with_terms(*RISING), 200)
    low = np.min(brute(curve, 0.3, np.linspace(-14, 18, 4001)), 0)
    sets = below(curve, [0.3], low + 1e-6)  # far narrower than the bracketing grid
    assert (sets.lower[0, 0] < np.inf).mean() > 0.9
    for draw in np.flatnonzero(np.isfinite(sets.lower[0, 0]) & np.isfinite(sets.stop[0, 0]))[:20]:
        one = curve.take([draw])
        for end in (sets.lower[0, 0, draw], sets.stop[0, 0, draw]):
            assert one.loss([0.3], end)[0, 0] == pytest.approx(low[draw] + 1e-6, abs=1e-11)


@every_law
@pytest.mark.parametrize("baseline", [None, "asymptote", "matched"])
def test_cvar_limit_against_brute_force(law, baseline):
    """Single ratios: the budget found meets both conditions, and no node before it does."""
    rng, bound = np.random.default_rng(9), 0
    for _ in range(24):
        curve, replay = random_curve(rng, law, 40), rng.random(1)
        middle = float(np.median(curve.loss(replay, rng.uniform(-2, 4))))
        problem = Problem(
            targets=(),
            source=curve,
            max_loss=(),
            max_forgetting=rng.uniform(0, 0.3),
            baseline=baseline or middle,
            relative=bool(rng.integers(2)),
            confidence=rng.choice([0.5, 0.8, 0.9]),
            noise=(np.zeros(40),),
        )
        joint = meet(problem.sets(replay))
        start = joint.first(problem.rank)[0]
        budget = (start if abs(start) < 15 else 0.0) + rng.uniform(-1, 3)
        problem = replace(problem, max_cvar=float(problem.cvar(replay, budget)[0]))
        if problem.max_cvar > 1e6:  # a draw near its far peak: rounding hides where it crosses
            continue

        def good(u, problem=problem, joint=joint, replay=replay):
            excess = np.sort(problem.rise(replay, u)[0] - problem.max_forgetting)
            held = np.count_nonzero(joint.contains(u)) >= problem.rank
            return held and excess[problem.rank :].mean() <= problem.max_cvar + 1e-12

        found = problem.first(joint, replay)[0]
        assert not any(good(u) for u in NODES if u < found)
        if np.isfinite(found):
            assert good(found)
            if found > joint.first(problem.rank)[0]:
                bound += 1
                assert not good(found - 1e-6)
    assert bound or baseline == "matched"


@every_law
def test_roots_agree_with_the_closed_form(law):
    rng = np.random.default_rng(5)
    for _ in range(5):
        curve = random_curve(rng, law, 60)
        limit = random_limit(rng, curve, 0.3)
        exact, here = below(curve, [0.3], limit), curve.sliced([0.3])
        room = limit - here.rest()
        found = intervals(*rooted(here, None, 0.0, room))
        inside = np.abs(np.where(np.isfinite(exact.lower), exact.lower, 0)) < 16
        stop = np.where(np.isfinite(exact.stop), exact.stop, 0)
        inside &= (stop > -16) & (stop < 20)
        draws = inside.all((0, 1))
        np.testing.assert_allclose(
            found.lower[0, 0][draws], exact.lower[0, 0][draws], rtol=1e-9, atol=1e-9
        )


@every_law
def test_least_loss_over_all_budgets(law):
    """What the asymptote baseline is: the least of the brute-force losses in pure replay."""
    curve = random_curve(np.random.default_rng(8), law, 100)
    budgets = np.linspace(np.log(1e-7), np.log(1e9), 2001)
    loss = brute(curve, 1.0, budgets)
    at = budgets[loss.argmin(0)]
    inside = (at > budgets[0] + 1) & (at < budgets[-1] - 1)  # not in the last cells of the bracket
    assert inside.any() == ("curve_B" in law.exponents)  # plain laws fall for ever
    least = curve.least(1.0)
    np.testing.assert_allclose(least[inside], loss.min(0)[inside], rtol=1e-5)
    assert (least <= loss[-1] * (1 + 1e-9)).all()


def test_threshold_is_the_papers_closed_form():
    law, p = WORLD.laws["french"], WORLD.truth["french"]
    fit = true_fits(WORLD)[0]
    curve = curve_of(fit, 8.1e9, 279)
    for r in (0.1, 0.34, 0.9):
        gate = 1 / (1 + 279 ** -p["zeta"])
        beta = p["beta"] * (1 - p["lambda_"] * gate)
        rest = p["E"] + p["A"] / 8.1e9 ** p["alpha"] + p["F"] / 279 ** p["eta"]
        rest += p["C"] / (r + law.epsilon) ** p["gamma"]
        tokens = (p["B"] * r ** p["nu"] / (1.8 - rest)) ** (1 / beta)
        assert 8.1e9 * np.exp(below(curve, [r], 1.8).lower[0, 0, 0]) == pytest.approx(tokens)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_interval_counts_agree_with_brute_force(data):
    draws = data.draw(st.integers(1, 8))
    ends = st.floats(-5, 5) | st.sampled_from([-np.inf, np.inf, 0.0, 1.0])
    pieces = []
    for _ in range(draws):
        four = sorted(data.draw(st.lists(ends, min_size=4, max_size=4)))
        both = four[1] < four[2]
        pieces.append([(four[0], four[1]), (four[2], four[3]) if both else (np.inf, -np.inf)])
    array = np.array(pieces, float).transpose(2, 1, 0)[:, :, None, :]
    sets = intervals(array[0], array[1])
    finite = np.unique(array[np.isfinite(array)])
    probes = np.unique(np.concatenate([[-np.inf, -1e3], finite, finite + 1e-9]))
    counts = np.array([sets.contains(u)[0].sum() for u in probes])
    expected = [
        sum(any(a <= u <= b and a < np.inf and b > -np.inf for a, b in s) for s in pieces)
        for u in probes
    ]
    np.testing.assert_array_equal(counts, expected)
    np.testing.assert_allclose(sets.share(probes)[:, 0], counts / draws)
    for rank in range(1, draws + 1):
        reached = probes[counts >= rank]
        assert sets.first(rank)[0] == (reached.min() if len(reached) else np.inf)
    for cap in (np.inf, 0.5):
        count, at = sets.most(cap)
        assert count[0] == counts[probes <= cap].max()
        if count[0]:
            assert at[0] == probes[(probes <= cap) & (counts == count[0])].min()
