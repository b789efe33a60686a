"""Anchor choice: against explicit Gaussian conditioning, brute force, and refits."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from bayeslaw.common.errors import BayeslawError, NotConverged, TableError, TableWarning
from bayeslaw.design.anchors import choose_anchors, predicted_sd
from bayeslaw.design.beliefs import beliefs_of, noise_variance
from bayeslaw.design.costs import costs
from bayeslaw.design.evsi import _distinct, _simulated, anchor_value
from bayeslaw.design.gains import Beliefs, centred, slots_of
from bayeslaw.design.picking import Search
from bayeslaw.inference.convergence import Convergence
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.refits import joined, refit
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.laws.priors import Prior
from bayeslaw.model import random_effects as effects
from bayeslaw.model.spec import make_spec
from bayeslaw.planning.planner import plan
from bayeslaw.simulation.worlds import paper_world, simulate
from bayeslaw.tables.table import grid
from tests.support import CHINCHILLA

POOL = grid(params=[2e8, 2e9, 6e9], tokens=[2e9, 2e10, 2e11])
GOALS = grid(params=[3e10], tokens=[1e11, 1e12])
LAW = load_law("chinchilla")
GOOD = Convergence(rhat=1.0, ess_bulk=1e6, ess_tail=1e6, divergences=0, bfmi=1.0)


def problem(seed: int, runs: int = 4, rows: int = 9, targets: int = 3, effect: float = 0.3):
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((5, rows + targets))
    draws = rng.standard_normal((200, 5)) @ mixing
    run = np.sort(rng.integers(runs, size=rows))
    run = np.unique(run, return_inverse=True)[1]
    base = run % 2
    beliefs = Beliefs(
        measured=centred(draws[:, :rows]),
        targets=centred(draws[:, rows:]),
        noise=rng.uniform(0.05, 0.5, rows),
        shared=[(run, effect), (base, 0.2)],
        slots=slots_of(run, np.arange(rows, dtype=float), np.arange(rows)),
        option=np.arange(rows),
    )
    return beliefs, draws, run, base, effect


def conditional(beliefs, draws, run, base, effect, have):
    """Target variances after measuring rows `have`, from the whole covariance matrix."""
    rows = len(run)
    full = np.cov(draws, rowvar=False)
    noise = np.diag(beliefs.noise) + effect * (run[:, None] == run)
    noise += 0.2 * (base[:, None] == base)
    full[:rows, :rows] += noise
    have = list(have)
    gain = full[rows:, have] @ np.linalg.inv(full[np.ix_(have, have)])
    return np.diag(full[rows:, rows:] - gain @ full[have, rows:]) if have else np.diag(full)[rows:]


def prefix(run, options):
    return [i for i in range(len(run)) if any(run[i] == run[o] and i <= o for o in options)]


@given(st.integers(0, 10_000), st.sets(st.integers(0, 8), max_size=4))
@settings(deadline=None, max_examples=60)
def test_update_is_gaussian_conditioning(seed, options):
    beliefs, *rest = problem(seed)
    run = rest[1]
    learnt = beliefs.given(sorted(options))
    have = prefix(run, options)
    np.testing.assert_allclose(learnt.variance, conditional(beliefs, *rest, have), rtol=1e-7)
    drop = learnt.drop()
    weights = np.array([0.5, 0.2, 0.3])
    np.testing.assert_allclose(learnt.mean_drop(weights), drop @ weights, atol=1e-10)
    for option in range(9):
        after = conditional(beliefs, *rest, prefix(run, [*options, option]))
        np.testing.assert_allclose(learnt.variance - drop[option], after, rtol=1e-6, atol=1e-9)


def test_information_is_the_ratio_of_determinants():
    beliefs, draws, run, base, effect = problem(3)
    alone = np.diag(beliefs.noise) + effect * (run[:, None] == run) + 0.2 * (base[:, None] == base)
    total = alone + np.cov(draws[:, :9], rowvar=False)
    for options in ([8], [0, 8], [2, 5, 8]):
        have = np.ix_(*[prefix(run, options)] * 2)
        ratio = np.linalg.slogdet(total[have])[1] - np.linalg.slogdet(alone[have])[1]
        assert beliefs.given(options).known == pytest.approx(ratio / 2)


def search(seed=0, k=2, budget=np.inf, gain="variance", power=0.0, second_size=False, **sizes):
    beliefs, _, run, _, _ = problem(seed, **sizes)
    rng = np.random.default_rng(seed)
    own = np.empty(len(run))
    for each in np.unique(run):
        own[run == each] = np.cumsum(rng.uniform(1, 5, (run == each).sum()))
    frame = pd.DataFrame({"cost": own, "params": 1.0 + run % 3, "tokens": 1.0})
    size = (run % 3).astype(int)
    price = costs(frame.assign(run=run), LAW, cost="cost")
    weights = np.full(3, 1 / 3)
    return Search(beliefs, price, size, gain, weights, k, budget, power, second_size)


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("gain", ["variance", "entropy", "doptimal"])
@pytest.mark.parametrize("budget", [np.inf, 9.0])
def test_small_problems_get_the_best_set_of_all(gain, budget, k):
    for seed in range(4):
        found = search(seed, k, budget, gain)
        picks, how = found.best()
        assert how == "every set tried"
        sets = [s for i in range(1, k + 1) for s in combinations(range(9), i)]
        paid = [s for s in sets if found.costs.total(s) <= budget]
        best = max(found.value(found.beliefs.given(s)) for s in paid)
        assert found.value(found.beliefs.given(picks)) == pytest.approx(best)


@given(st.integers(0, 10_000), st.sampled_from(["variance", "entropy", "doptimal"]))
@settings(deadline=None, max_examples=20)
def test_search_keeps_the_budget_and_beats_its_own_start(seed, gain):
    found = search(seed, 6, 25.0, gain, power=1.0, rows=14, runs=7)
    picks, how = found.best()
    assert how == "greedy, then exchanges"
    assert found.costs.total(picks) <= 25 * (1 + 1e-9)
    assert len({*found.costs.run[picks]}) == len(picks)
    start = found._greedy([], 1.0)
    value = [found.value(found.beliefs.given(p)) for p in (picks, start)]
    assert value[0] >= value[1] - 1e-12


def test_a_second_size_is_bought_while_it_can_be_paid():
    for seed in range(12):
        for budget in (6.0, 9.0, 14.0, np.inf):
            for k in (2, 5):
                found = search(seed, k, budget, power=1.0, second_size=True, rows=14, runs=7)
                picks, _ = found.best()
                pairs = combinations(range(14), 2)
                possible = any(
                    found.size[a] != found.size[b] and found.costs.total([a, b]) <= budget
                    for a, b in pairs
                )
                assert (len({*found.size[picks]}) > 1) == possible


# -- costs ----------------------------------------------------------------------------------------


def test_a_run_costs_its_longest_row_and_a_base_its_stage_once():
    frame = pd.DataFrame(
        {"params": [1e8, 1e8, 1e8, 2e8], "tokens": [1e9, 4e9, 1e9, 1e9], "ptpp": [20, 20, 20, 20.0]}
    )
    frame["run"], law = ["a", "a", "b", "c"], load_law("form1")
    price = costs(frame, law)
    stage, more = 6 * 1e8 * 1e8 * 20, 6 * 2e8 * 2e8 * 20
    assert price.further([])[1] == stage + 6e8 * 4e9
    assert price.total([0, 1]) == price.total([1]) == stage + 6e8 * 4e9
    assert price.further([0])[1] == pytest.approx(6e8 * 3e9)
    assert price.further([1])[0] == 0
    assert price.total([1, 2]) == stage + 6e8 * 5e9
    assert price.total([0, 1, 2, 3]) == pytest.approx(stage + more + 6e8 * 5e9 + 12e8 * 1e9)
    there = costs(frame, law, fitted=frame.iloc[:1])
    assert there.total([0]) == 6e8 * 1e9
    assert there.total([3]) == more + 12e8 * 1e9
    assert costs(frame, law, cost="adaptation").total([3]) == 12e8 * 1e9
    assert costs(frame, LAW).total([0]) == 6e8 * 1e9
    with pytest.raises(BayeslawError, match="unknown cost 'hours'"):
        costs(frame, law, cost="hours")
    with pytest.raises(BayeslawError, match="not a positive number"):
        costs(frame.assign(hours=[1, 2, 0, 4]), law, cost="hours")


# -- choose_anchors -------------------------------------------------------------------------------


def test_picks_say_what_they_cost_and_what_they_do(posterior):
    found = choose_anchors(posterior, POOL, GOALS, budget=3e22)
    picks = found.picks
    assert found.flops <= 3e22
    assert picks["flops_total"].iloc[-1] == pytest.approx(found.flops)
    assert found.frame["pick"].tolist() == list(range(1, len(picks) + 1))
    assert (np.diff(found.sd, axis=0) <= 0).all()
    now = np.log(posterior.latent(GOALS)).std(0, ddof=1)
    np.testing.assert_allclose(found.sd[0], now, rtol=0.02)
    np.testing.assert_allclose(picks["sd"], np.sqrt((found.sd[1:] ** 2).mean(1)))
    np.testing.assert_allclose(picks["gain"], picks["sd_before"] ** 2 - picks["sd"] ** 2)
    sd = predicted_sd(posterior, found.frame, GOALS)
    np.testing.assert_allclose(sd, found.sd[-1], rtol=1e-6)
    np.testing.assert_allclose(predicted_sd(posterior, POOL.iloc[:0], GOALS), now)
    again = choose_anchors(posterior, POOL, GOALS, budget=3e22)
    pd.testing.assert_frame_equal(again.picks, picks)


def test_prediction_holds_after_a_refit(posterior):
    """Median over targets and worlds within 15 %, Monte Carlo error of 4 refits included."""
    found = choose_anchors(posterior, POOL, GOALS, k=3)
    ratios = []
    for seed in range(4):
        measured = simulate("chinchilla", CHINCHILLA, found.frame, sigma=0.003, seed=seed)
        new = refit(posterior.spec, joined(posterior.table, measured), seed, draws=1000, tune=500)
        ratios.append(found.sd[-1] / np.log(new.latent(GOALS)).std(0, ddof=1))
    assert np.median(ratios) == pytest.approx(1, abs=0.15)


def test_checkpoints_of_a_bought_run_come_free(posterior):
    pool = POOL.assign(run=POOL["params"].map("n{:g}".format))
    found = choose_anchors(posterior, pool, GOALS, k=2, second_size=False)
    longest = pool.groupby("run")["tokens"].max()
    for _, pick in found.picks.iterrows():
        assert pick["tokens"] == longest[pick["run"]]  # without a cost, longer is never worse
        assert pick["flops"] == pytest.approx(6 * pick["params"] * pick["tokens"])
    assert len(found.frame) == 6
    alone = choose_anchors(posterior, POOL, GOALS, k=2, second_size=False)
    assert found.picks["sd"].iloc[-1] < alone.picks["sd"].iloc[-1]


def test_weights_move_the_choice_to_their_target(posterior):
    goals = pd.concat([GOALS, grid(params=[1e8], tokens=[1e9])], ignore_index=True)
    far = choose_anchors(posterior, POOL, goals, k=1, weights=[0, 1, 0])
    near = choose_anchors(posterior, POOL, goals, k=1, weights=[0, 0, 1])
    assert far.sd[-1][1] <= near.sd[-1][1]
    assert near.sd[-1][2] <= far.sd[-1][2]


def test_rows_already_fitted_are_left_out_and_said(posterior):
    mixed = pd.concat([POOL, posterior.table.frame[["params", "tokens"]]], ignore_index=True)
    with pytest.warns(TableWarning, match="20 of 29 are rows that were fitted"):
        found = choose_anchors(posterior, mixed, GOALS, k=2)
    plain = choose_anchors(posterior, POOL, GOALS, k=2)
    pd.testing.assert_frame_equal(found.picks, plain.picks)
    with pytest.raises(TableError, match="all of them are rows that were fitted"):
        choose_anchors(posterior, posterior.table, GOALS, k=2)


def test_targets_may_be_measured_rows(posterior):
    """A pool without losses beside targets with them, and the other way round."""
    plain = choose_anchors(posterior, POOL, GOALS, k=2)
    for pool, goals in ((POOL, GOALS.assign(loss=2.0)), (POOL.assign(loss=2.0), GOALS)):
        found = choose_anchors(posterior, pool, goals, k=2)
        pd.testing.assert_series_equal(found.picks["sd"], plain.picks["sd"])


def test_a_row_without_noise_teaches_all_of_itself(posterior):
    """A target measured itself keeps at most the measurement's own noise."""
    sd = predicted_sd(posterior, GOALS, GOALS)
    assert (sd**2 < noise_variance(posterior, GOALS)).all()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, "how many runs"),
        ({"k": 0}, "must be positive"),
        ({"k": 2, "gain": "varience"}, "did you mean 'variance'"),
        ({"k": 2, "gain": "plan"}, "needs plan="),
        ({"k": 2, "weights": [1.0]}, "give 2 numbers"),
        ({"budget": 1.0}, "nothing to buy for 1 FLOPs"),
        ({"k": 2, "cost": "hours"}, "unknown cost 'hours'"),
    ],
)
def test_mistakes_are_told(posterior, wrong, message):
    with pytest.raises(BayeslawError, match=message):
        choose_anchors(posterior, POOL, GOALS, **wrong)


def test_no_targets_no_tokens_and_mixed_runs_are_told(posterior):
    with pytest.raises(BayeslawError, match="say where the loss matters"):
        choose_anchors(posterior, POOL, k=1)
    with pytest.raises(TableError, match="no value at tokens = 0"):
        choose_anchors(posterior, POOL.assign(tokens=0), GOALS, k=1)
    with pytest.raises(TableError, match="'params' differs within a run"):
        choose_anchors(posterior, POOL.assign(run="a"), GOALS, k=1)


def test_an_unconverged_posterior_is_refused_or_named(unconverged):
    with pytest.raises(NotConverged):
        choose_anchors(unconverged, POOL, GOALS, k=1)
    found = choose_anchors(unconverged, POOL, GOALS, k=1, allow_unconverged=True)
    assert found.unconverged == unconverged.convergence.failures


# -- the plan's gain ------------------------------------------------------------------------------


def around(world, domain: str, bend: float | None = None) -> Posterior:
    """Four hundred draws around the truth, bent or straight, in place of a fit."""
    spec = make_spec(world.laws[domain], discrepancy="none" if bend is None else "curvature")
    table = world.table(domain).query("ptpp <= 31")
    at, rng = spec.law.reference_point(table.frame), np.random.default_rng(len(domain))
    truth = world.truth[domain] | dict.fromkeys(spec.law.curvatures, bend)
    q = spec.law.to_reference(truth, at) | {"sigma": 0.003, "dof_above_floor": 5.0}
    values = {
        name: (["chain", "draw"], v * (1 + 0.01 * rng.standard_normal((4, 100))))
        for name, v in q.items()
    }
    return Posterior(spec, table, at, xr.Dataset(values), xr.Dataset(), GOOD)


@pytest.fixture(scope="module")
def fits():
    world = paper_world()
    return {"target": around(world, world.target), "source": around(world, world.source)}


LIMITS = {"params": 8.1e9, "ptpp": 279, "max_loss": 1.9, "max_forgetting": 0.05}
LIMITS |= {"baseline": paper_world().baseline(), "confidence": 0.8}


def test_the_plans_gain_lowers_the_budget_that_is_needed(fits):
    target, planned = fits["target"], plan(**fits, **LIMITS)
    pool = paper_world().design().query("ptpp == 279 and params < 8e9")
    known = {"gain": "plan", "plan": planned, "source": fits["source"], "k": 4}
    found = choose_anchors(target, pool, **known)
    atpp = [found.atpp, *found.picks["atpp"]]
    assert found.atpp == planned.atpp
    assert (np.diff(atpp) <= 0).all()
    assert atpp[-1] < atpp[0]
    one_sided = choose_anchors(target, pool, gain="plan", plan=planned, k=4)
    assert one_sided.picks["gain"].sum() < found.picks["gain"].sum()


def test_beliefs_behind_a_plan_are_those_of_its_posteriors():
    """Also of laws that drift: a plan's own curves have the drift of its stage in their sizes."""
    world = paper_world()
    bent = {name: around(world, getattr(world, name), 0.002) for name in ("target", "source")}
    loose = LIMITS | {"baseline": "asymptote", "max_loss": 2.2, "max_forgetting": 0.3}
    planned, pool = plan(**bent, **loose), world.design().query("ptpp == 31 and params < 1e9")
    run, fits = np.arange(len(pool)), list(bent.values())
    found, _ = beliefs_of(fits, pool, run, pool.head(1), planned)
    losses = [
        np.log(fit.latent(pool))[index]
        for fit, index in zip(fits, planned.problem.index, strict=True)
    ]
    np.testing.assert_allclose(found.measured, centred(np.hstack(losses)), atol=1e-12)


@pytest.mark.parametrize("fitted", [True, False], ids=["effects of four", "three sizes"])
def test_a_candidate_of_the_plans_new_size_shares_its_effect(fitted):
    world, new = paper_world(), 3e10
    bent = {name: around(world, getattr(world, name), 0.002) for name in ("target", "source")}
    for name, fit in bent.items():
        if fitted:
            rng = np.random.default_rng(7)
            draws = fit.draws.assign(
                tau_size=(["chain", "draw"], np.full((4, 100), 0.01)),
                size_effect=(["chain", "draw", "size"], 0.01 * rng.standard_normal((4, 100, 4))),
                size=effects.labels(fit.table.frame.drop_duplicates("params"), "size"),
            )
            bent[name] = replace(fit, draws=draws, spec=replace(fit.spec, effects=("size",)))
        else:
            # Draws around a truth are no posterior: what they carry is only to be the same.
            tau = {"tau_size": Prior.parse("LogNormal(median=1e-5, sigma=0.1)")}
            spec = replace(fit.spec, priors=fit.spec.priors | tau)
            bent[name] = replace(fit, spec=spec, table=fit.table.query("params < 8e9"))
    loose = LIMITS | {"params": new, "baseline": "asymptote", "max_loss": 2.2}
    planned = plan(**bent, **loose | {"max_forgetting": 0.3}, seed=5)
    pool = grid(params=[1e10, new], tokens=20 * new, replay=[0.2, 0.4], ptpp=279)
    found, _ = beliefs_of(list(bent.values()), pool, np.arange(4), pool.tail(1), planned)
    curves = [*planned.problem.targets, planned.problem.source]
    losses = [np.log(curve.loss([0.2, 0.4], np.log(20))).T for curve in curves]
    here = np.tile(pool["params"] == new, 2)
    np.testing.assert_allclose(found.measured[:, here], centred(np.hstack(losses)), atol=1e-12)
    np.testing.assert_allclose(found.targets[:, 0], found.measured[:, 3], atol=1e-12)
    if fitted:  # another new size has an effect of its own
        assert np.corrcoef(found.measured[:, 0], found.measured[:, 2])[0, 1] < 0.9


def test_a_row_has_one_loss_in_all_sets():
    one = POOL.assign(run=["a", "b", None] * 3)
    rows, code = _distinct([one, one.iloc[[4, 2]], POOL.iloc[:1]])
    assert len(rows) == 10
    assert [places.tolist() for places in code] == [[*range(9)], [4, 2], [9]]


def test_truths_are_drawn_from_the_fits_and_noise_is_each_domains_own(fits):
    rows = paper_world().design().iloc[:200]
    losses = _simulated(tuple(fits.values()), rows, 3, 0)
    noise = []
    for fit, loss in zip(fits.values(), losses, strict=True):
        residuals = np.log(loss)[:, None] - np.log(fit.latent(rows))  # truth, draw, row
        size = np.sqrt((residuals**2).mean(-1))
        nearest = size.argmin(1)
        assert len({*nearest}) == 3
        assert size.min(1) == pytest.approx(0.0036, abs=0.001)  # Student-t of scale .003
        noise.append(residuals[range(3), nearest].ravel())
    assert abs(np.corrcoef(noise)[0, 1]) < 0.2


def test_mistakes_about_worth_are_told(fits, unconverged):
    rows = POOL.assign(replay=0.2, ptpp=279)
    with pytest.raises(BayeslawError, match="at least one set"):
        anchor_value({}, **fits, **LIMITS)
    with pytest.raises(BayeslawError, match="no plan now"):
        anchor_value({"some": rows}, **fits, **LIMITS | {"max_loss": 1.0})
    with pytest.raises(NotConverged):
        anchor_value({"some": rows}, **fits | {"source": unconverged}, **LIMITS)
