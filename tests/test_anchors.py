"""Anchors: sets of runs against brute force, predictions against conditioning, and their costs."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bayeslaw as bl
from bayeslaw import BayeslawError, LossTable, TableError, choose_anchors, grid
from bayeslaw.design.anchors import costs
from bayeslaw.design.gaussian import JointGaussian, centred, joint_gaussian, predicted_sd
from bayeslaw.design.study import distinct_rows, simulated_losses, summary_of_set
from bayeslaw.inference.fitting import joined, refit
from bayeslaw.laws.steps import Offset, Repetition
from bayeslaw.model.discrepancy import Curvature
from bayeslaw.model.effects import labels
from tests.posteriors import BASE, WORLD, both
from tests.support import CHINCHILLA, saved, small

POOL = grid(params=[2e8, 2e9, 6e9], tokens=[2e9, 2e10, 2e11])
GOALS = grid(params=[3e10], tokens=[1e11, 1e12])
PLAIN, K2 = saved("plain"), {"k": 2}
LIMITS = {"params": 8.1e9, "ptpp": 279, "max_loss": 1.9, "max_forgetting": 0.05, "baseline": BASE}
LIMITS |= {"confidence": 0.8, "noise": "latent"}


@pytest.fixture(scope="module")
def fits():
    return both()


# -- costs and predictions ------------------------------------------------------------------------


@given(st.integers(0, 10_000), st.sets(st.integers(0, 3), max_size=4))
@settings(deadline=None, max_examples=20)
def test_an_update_is_gaussian_conditioning(seed, bought):
    rng = np.random.default_rng(seed)
    z = centred(rng.standard_normal((200, 5)) @ rng.standard_normal((5, 12)))
    run = np.unique(np.sort(rng.integers(4, size=9)), return_inverse=True)[1]
    same = run[:, None] == run
    noise = np.diag(rng.uniform(0.05, 0.5, 9)) + 0.3 * same
    joint, full = JointGaussian(z[:, :9], z[:, 9:], noise, run), z.T @ z
    full[:9, :9] += noise
    have = np.flatnonzero(np.isin(run, sorted(bought)))
    gain = full[9:, have] @ np.linalg.inv(full[np.ix_(have, have)])
    expected = np.diag(full[9:, 9:] - gain @ full[have, 9:])
    np.testing.assert_allclose(joint.variances(sorted(bought)), expected, rtol=1e-7)


def test_a_run_costs_its_longest_row_and_a_base_its_stage_once():
    columns = ("params", "tokens", "ptpp")
    rows = [(1e8, 1e9, "a"), (1e8, 4e9, "a"), (1e8, 1e9, "b"), (2e8, 1e9, "c")]
    frame = pd.DataFrame(rows, columns=["params", "tokens", "run"]).assign(ptpp=20.0)
    price = costs(frame, columns)
    stage, more = 6 * 1e8 * 1e8 * 20, 6 * 2e8 * 2e8 * 20
    assert price.further([])[0] == stage + 6e8 * 4e9
    assert price.further([0])[1] == pytest.approx(6e8 * 1e9)
    assert price.total([0, 1, 2]) == pytest.approx(stage + more + 6e8 * 5e9 + 12e8 * 1e9)
    there = costs(frame, columns, fitted=LossTable(frame[:1], "rows"))
    assert (there.total([0]), there.total([2])) == (6e8 * 4e9, more + 12e8 * 1e9)
    evaluated = LossTable(frame[3:], "rows", frame[:1].assign(tokens=0.0))
    assert costs(frame, columns, fitted=evaluated).total([0, 2]) == 6e8 * 4e9 + 12e8 * 1e9
    assert costs(frame, columns, cost="adaptation").total([2]) == 12e8 * 1e9
    assert costs(frame, columns[:2]).total([1]) == 6e8 * 1e9
    with pytest.raises(BayeslawError, match="not a positive number"):
        costs(frame.assign(hours=[1, 2, 0, 4]), columns, cost="hours")


@given(st.integers(0, 10_000), st.sampled_from([6.0, 14.0, 25.0]))
@settings(deadline=None, max_examples=25)
def test_runs_are_bought_in_order_while_the_budget_allows_one(seed, budget):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"cost": rng.uniform(1, 12, 7), "params": 1.0 + rng.integers(3, size=7)})
    price = costs(frame.assign(tokens=1.0), ("params", "tokens"), cost="cost")
    order = price.shuffled(seed)
    picks = price.choose(lambda _: order, 6, budget)
    assert price.total(picks) <= budget * (1 + 1e-9)
    assert len({*picks}) == len(picks)
    left = [i for i in range(7) if i not in picks]
    assert len(picks) == 6 or all(price.total([*picks, i]) > budget for i in left)


# -- the choice -----------------------------------------------------------------------------------


def test_costs_and_predictions_of_the_picks():
    found = choose_anchors(PLAIN, POOL, GOALS, budget=3e22)
    picks = found.picks
    assert picks["flops_total"].iloc[-1] == pytest.approx(found.flops)
    assert found.flops <= 3e22
    assert found.frame["pick"].tolist() == list(range(1, len(picks) + 1))
    assert (np.diff(found.sd, axis=0) <= 0).all()
    now = np.log(PLAIN.latent(GOALS)).std(0, ddof=1)
    np.testing.assert_allclose(found.sd[0], now, rtol=0.02)
    np.testing.assert_allclose(picks["sd"], np.sqrt((found.sd[1:] ** 2).mean(1)))
    np.testing.assert_allclose(predicted_sd(PLAIN, found.frame, GOALS), found.sd[-1], rtol=1e-6)
    np.testing.assert_allclose(predicted_sd(PLAIN, POOL[:0], GOALS), now)


@pytest.mark.slow
def test_prediction_holds_after_a_refit():
    """Median over targets and worlds within 15 %, Monte Carlo error of 4 refits included."""
    found = choose_anchors(PLAIN, POOL, GOALS, k=3)
    ratios = []
    for seed in range(4):
        measured = bl.simulate("chinchilla", CHINCHILLA, found.frame, sigma=0.003, seed=seed)
        new = refit(PLAIN.spec, joined(PLAIN.table, measured), seed, draws=1000, tune=500)
        ratios.append(found.sd[-1] / np.log(new.latent(GOALS)).std(0, ddof=1))
    assert np.median(ratios) == pytest.approx(1, abs=0.15)


def test_random_runs_are_whole_seeded_and_within_the_limits():
    pool = POOL.assign(run=POOL["params"].map("n{:g}".format))
    for seed in range(5):
        found, again = (
            choose_anchors(PLAIN, POOL, GOALS, budget=5e21, seed=seed) for _ in range(2)
        )
        pd.testing.assert_frame_equal(found.picks, again.picks)
        bought = {*zip(found.picks["params"], found.picks["tokens"], strict=True)}
        left = [6 * n * d for n, d in POOL.to_numpy() if (n, d) not in bought]
        assert found.flops <= 5e21 < found.flops + min(left)  # nothing else could be bought
        whole = choose_anchors(PLAIN, pool, GOALS, k=2, seed=seed)
        assert (whole.picks["tokens"] == 2e11).all()
        assert len(whole.frame) == 6  # checkpoints of a bought run come free


def test_candidates_and_targets_may_be_rows_that_were_measured():
    plain = choose_anchors(PLAIN, POOL, GOALS, **K2).picks
    mixed = pd.concat([POOL, PLAIN.table.frame[["params", "tokens"]]], ignore_index=True)
    with pytest.warns(bl.TableWarning, match="20 of 29 are rows that were fitted"):
        found = choose_anchors(PLAIN, mixed, GOALS, **K2)
    pd.testing.assert_frame_equal(found.picks, plain)
    for pool, goals in ((POOL, GOALS.assign(loss=2.0)), (POOL.assign(loss=2.0), GOALS)):
        found = choose_anchors(PLAIN, pool, goals, **K2)
        pd.testing.assert_series_equal(found.picks["sd"], plain["sd"])
    joint, _ = joint_gaussian([PLAIN], GOALS, GOALS)
    variance = joint.variances([0, 1])
    np.testing.assert_allclose(predicted_sd(PLAIN, GOALS, GOALS), np.sqrt(variance))
    assert (variance < np.diag(joint.noise)).all()


@pytest.mark.parametrize(
    ("pool", "goals", "wrong", "says"),
    [
        (POOL, GOALS, {"k": None}, "how many runs"),
        (POOL, GOALS, {"k": 0}, "must be positive"),
        (POOL, GOALS, {"gain": "randum"}, "did you mean 'random'"),
        (POOL, GOALS, {"gain": "plan"}, "needs plan="),
        (POOL, GOALS, {"budget": 1.0}, "nothing to buy for 1 FLOPs"),
        (POOL, GOALS, {"cost": "hours"}, "unknown cost 'hours'"),
        (POOL, None, {}, "say where the loss matters"),
        (POOL.assign(tokens=0), GOALS, {}, "no value at tokens = 0"),
        (POOL.assign(run="a"), GOALS, {}, "'params' differs within a run"),
        (PLAIN.table, GOALS, {}, "all of them are rows that were fitted"),
    ],
)
def test_mistakes_are_told(pool, goals, wrong, says):
    with pytest.raises((BayeslawError, TableError), match=says):
        choose_anchors(PLAIN, pool, goals, **K2 | wrong)


def test_an_unconverged_posterior_is_refused_or_named():
    fit = saved("unconverged")
    with pytest.raises(bl.NotConverged):
        choose_anchors(fit, POOL, GOALS, **K2)
    found = choose_anchors(fit.accepted(unconverged=True), POOL, GOALS, **K2)
    assert found.unconverged == fit.convergence.failures


# -- for a plan -----------------------------------------------------------------------------------


def test_the_gain_of_a_plan_lowers_its_predicted_budget(fits):
    planned, pool = (
        bl.plan(**fits, **LIMITS),
        WORLD.design().query("ptpp == 279 and 3e8 < params < 8e9"),
    )
    known = {"gain": "plan", "plan": planned, "k": 4}
    found = choose_anchors(fits["target"], pool[::3], source=fits["source"], **known)
    atpp = [found.atpp, *found.picks["atpp"]]
    assert found.atpp == planned.atpp
    assert atpp[-1] < atpp[0]
    assert found.picks["p_plan"].between(0.5, 1).all()
    # Of a number of runs the first is that of the largest gain, whatever it costs.
    rows = pool[::3].reset_index(drop=True)
    joint, _ = joint_gaussian(list(fits.values()), rows, rows[:1], planned)
    gains = [-joint.variances([run])[-1] for run in range(joint.run.max() + 1)]
    first = rows[joint.run[: len(rows)] == np.argmax(gains)].nlargest(1, "tokens")
    shown = ["params", "tokens", "replay"]
    np.testing.assert_array_equal(found.picks[shown][:1], first[shown])
    # The budget is a standard normal target: in the order of the budgets, symmetric, of variance 1.
    joint, keep = joint_gaussian(list(fits.values()), pool[:2], pool[:2], planned)
    needed = planned.problem.needed(planned.replay)
    np.testing.assert_array_equal(keep, np.arange(planned.draws))
    score = joint.targets[:, -1][np.argsort(needed)] * np.sqrt(planned.draws - 1)
    assert (np.diff(score) > 0).all()
    np.testing.assert_allclose(score, -score[::-1], atol=1e-12)
    assert joint.variances([])[-1] == pytest.approx(1)
    assert np.mean(abs(score) < 1) == pytest.approx(0.683, abs=0.01)
    hopeless = bl.plan(**fits, **LIMITS | {"max_loss": 0.5})
    with pytest.raises(BayeslawError, match="nothing to aim at"):
        choose_anchors(fits["target"], pool[:3], k=1, gain="plan", plan=hopeless)


def test_a_noisy_run_makes_a_plan_feasible_as_often_as_reweighted_draws_say(fits):
    """Draws weighted by their likelihood of each simulated loss, at the likeliest choice."""
    far = []
    for fit in fits.values():  # with rows at budgets where a plan is likeliest
        rows = fit.table.frame
        rows = pd.concat([rows, rows.assign(tokens=1e18, replay=0.995)], ignore_index=True)
        far.append(replace(fit, table=replace(fit.table, frame=rows)))
    target, source = far
    target = replace(target, draws=target.draws.assign(sigma=3 * target.draws["sigma"]))
    everywhere = target.latent(grid(params=8.1e9, ptpp=279, replay=0.995, tokens=1e290))
    most = float(np.quantile(everywhere, 0.85))
    limits = LIMITS | {"max_loss": most, "max_forgetting": 0.2, "confidence": 0.9}
    planned = bl.plan(target=target, source=source, **limits)
    assert planned.status == "infeasible"
    row = grid(params=8.1e9, ptpp=279, replay=0.35, tokens=1e11)
    aim = row.assign(replay=planned.best.replay, tokens=planned.best.tokens)
    meets = target.latent(aim)[:, 0] <= most
    assert 0.75 < meets.mean() < 0.9
    joint, _ = joint_gaussian([target], row, row)
    log_loss, sd = np.log(target.latent(row))[:, 0], joint.noise[0, 0] ** 0.5
    rng = np.random.default_rng(0)
    seen = rng.choice(log_loss, 2000) + sd * rng.standard_normal(2000)
    weights = np.exp(-0.5 * ((log_loss - seen[:, None]) / sd) ** 2)
    feasible = np.mean(weights @ meets / weights.sum(1) >= 0.9)
    found = choose_anchors(target, row, gain="plan", plan=planned, k=1)
    assert found.picks["p_plan"].item() == pytest.approx(feasible, abs=0.1)
    assert 0.2 < feasible < 0.5


@pytest.mark.parametrize("fitted", [True, False], ids=["effects of four", "three sizes"])
def test_a_candidate_of_the_plans_new_size_has_the_plans_effect(fitted):
    """Also with curvature of the whole loss, which a plan's curves have in their term sizes."""
    new, curved = 3e10, both(law=Curvature().apply)
    for name, fit in curved.items():
        # These draws are not a posterior, so only the equality of the effects is tested.
        spec = replace(fit.spec, effects=("size",)) if fitted else fit.spec
        table = fit.table if fitted else fit.table.query("params < 8e9")
        if fitted:
            effect = 0.01 * np.random.default_rng(7).standard_normal((4, 100, 4))
            draws = fit.draws.assign(
                tau_size=(["chain", "draw"], np.full((4, 100), 0.01)),
                size_effect=(["chain", "draw", "size"], effect),
                size=labels(table.frame.drop_duplicates("params"), "size"),
            )
            fit = replace(fit, draws=draws)
        else:
            tau = {"tau_size": bl.Prior.parse("LogNormal(median=1e-5, sigma=0.1)")}
            spec = replace(spec, priors=spec.priors | tau)
        curved[name] = replace(fit, spec=spec, table=table)
    loose = LIMITS | {"params": new, "baseline": "asymptote", "max_loss": 2.2, "seed": 5}
    planned = bl.plan(**curved, **loose | {"max_forgetting": 0.3})
    pool = grid(params=[1e10, new], tokens=20 * new, replay=[0.2, 0.4], ptpp=279)
    found, _ = joint_gaussian(list(curved.values()), pool, pool.tail(1), planned)
    curves = [limit.curve for limit in planned.problem.limits]
    losses = [np.log(curve.loss([np.log(20)], [0.2, 0.4])[0]).T for curve in curves]
    here = np.tile(pool["params"] == new, 2)
    np.testing.assert_allclose(found.measured[:, here], centred(np.hstack(losses)), atol=1e-12)
    np.testing.assert_allclose(found.targets[:, 0], found.measured[:, 3], atol=1e-12)
    if fitted:  # another new size has an effect of its own
        assert np.corrcoef(found.measured[:, 0], found.measured[:, 2])[0, 1] < 0.9


def test_new_runs_vary_as_those_of_their_own_domain(fits):
    tau, changed = [0.01, 0.03], []
    for scale, fit in zip(tau, fits.values(), strict=True):
        effect = (["chain", "draw", "run"], np.zeros((4, 100, 2)))
        draws = fit.draws.assign(tau_run=(["chain", "draw"], np.full((4, 100), scale)))
        draws = draws.assign_coords(run=["a", "b"]).assign(run_effect=effect)
        changed.append(replace(fit, draws=draws, spec=replace(fit.spec, effects=("run",))))
    pool = grid(params=[1e9, 2e9], tokens=[1e10, 3e10], replay=0.2, ptpp=31)
    found, _ = joint_gaussian(changed, pool.assign(run=[*"xxyy"]), pool[:1])
    shared = np.kron(np.diag(np.square(tau)), np.kron(np.eye(2), np.ones((2, 2))))
    apart = ~np.eye(8, dtype=bool)
    np.testing.assert_allclose(found.noise[apart], shared[apart], rtol=1e-12)


def test_the_noise_of_a_pool_is_the_mean_of_its_members(fits):
    one = fits["target"]
    other = replace(one, draws=one.draws.assign(sigma=3 * one.draws["sigma"]))
    rows = grid(params=[1e9, 2e9], tokens=1e10, replay=0.2, ptpp=31)
    pooled = bl.Pool({"one": one, "other": other}, {"one": 1, "other": 3})
    noises = [joint_gaussian([fit], rows, rows)[0].noise for fit in (one, other, pooled)]
    np.testing.assert_allclose(noises[2], noises[0] / 4 + 3 * noises[1] / 4, rtol=0.01)


def test_a_fit_of_one_base_knows_its_size():
    fit = saved("one_base").accepted(unconverged=True, beyond_evidence=True)
    pool, goal = grid(replay=[0.2, 0.3], tokens=[3e10, 4e10]), grid(replay=0.2, tokens=9e10)
    found = choose_anchors(fit, pool, goal, k=1)
    stated = {name: fit.laws[0].held[name] for name in ("params", "ptpp")}
    same = choose_anchors(fit, pool.assign(**stated), goal.assign(**stated), k=1)
    pd.testing.assert_frame_equal(found.picks, same.picks)
    with pytest.raises(TableError, match=r"was fitted to rows of params 3e\+08 alone"):
        choose_anchors(fit, pool.assign(params=1.05 * stated["params"]), goal, k=1)


def test_a_row_without_a_label_is_a_new_run_though_a_training_row_had_none_either():
    fit = saved("tinycpt_form1")
    names = fit.draws["run"].values.astype(object)
    names[:2] = "(row 0)", "(row 1)"  # as rows without a label are named
    fit = replace(fit, draws=fit.draws.assign_coords(run=names))
    rows = fit.table.frame.tail(3).reset_index(drop=True)
    new, old = (
        np.diag(joint_gaussian([fit], each, each)[0].noise)
        for each in (rows.drop(columns="run"), rows)
    )
    np.testing.assert_allclose(new - old, float(np.median(fit.draws["tau_run"] ** 2)), rtol=1e-9)


# -- the value of information, and studies --------------------------------------------------------


def test_the_value_of_sample_information_by_hand(fits):
    """Truths are draws, losses have noise of their domain, and outcomes are counted."""
    rows = WORLD.design()[:200]
    losses, noise = simulated_losses(tuple(fits.values()), rows, 3, 0), []
    for domain, fit, loss in zip(WORLD.sigma, fits.values(), losses, strict=True):
        residuals = np.log(loss)[:, None] - np.log(fit.latent(rows))  # truth, draw, row
        size = np.sqrt((residuals**2).mean(-1))
        assert size.min(1) == pytest.approx(WORLD.sigma[domain], rel=0.5)
        noise.append(residuals[range(3), size.argmin(1)].ravel())
    assert abs(np.corrcoef(noise)[0, 1]) < 0.2
    one = POOL.assign(run=["a", "b", None] * 3)
    distinct, code = distinct_rows([one, one.iloc[[4, 2]], POOL[:1]])
    assert (len(distinct), [list(places) for places in code]) == (10, [[*range(9)], [4, 2], [9]])
    # Four simulations from a plan of 80 FLOPs: two cheaper, one dearer, one without a plan.
    flops = np.array([50.0, 60.0, 100.0, np.inf])
    now, rhat = SimpleNamespace(atpp=8.0, flops=80.0), np.array([1.0, 1.1, 1.2, 1.3])
    found = summary_of_set(now, 7.0, flops / 10, flops, rhat)
    # Of an even number the worse of the two in the middle.
    wanted = {"atpp_now": 8, "atpp": 10, "atpp_90": np.inf, "less": 0.5, "infeasible": 0.25}
    wanted |= {"saved": -20, "net": -27, "saved_mean": 10, "saved_error": np.sqrt(700 / 3)}
    assert found == pytest.approx(wanted | {"rhat": 1.15})
    with pytest.raises(BayeslawError, match="at least one set"):
        bl.anchor_value({}, **fits, **LIMITS)
    with pytest.raises(BayeslawError, match="no plan now"):
        bl.anchor_value({"some": rows}, **fits, **LIMITS | {"max_loss": 1.0})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_value_of_anchors_is_flops_saved_less_flops_spent(monkeypatch):
    """Equal sets have equal values, since their truths and seeds are the same."""
    monkeypatch.setattr("bayeslaw.design.study.refit", partial(refit, draws=100, tune=150))
    names = {"target": "world_form3", "source": "world_source_form1"}
    fits = {each: saved(name).accepted(unconverged=True) for each, name in names.items()}
    rows = grid(params=[241e6, 1.4e9], tokens=[1e9, 1e10], replay=0.3, ptpp=279)
    sets = {"first 1": rows[:1], "all 2": rows[:2], "same": rows[:2].copy()}
    limits = LIMITS | {"max_loss": 1.85, "max_forgetting": 0.04, "noise": "predictive"}
    evsi = bl.anchor_value(sets, **fits, **limits, simulations=2).set_index("set")
    assert evsi.loc["all 2"].tolist() == evsi.loc["same"].tolist()
    assert evsi["net"].tolist() == pytest.approx((evsi["saved"] - evsi["flops"]).tolist())


def test_anchors_are_annealed_and_repeat_no_tokens_where_they_do_not_say():
    plain = bl.load_law("chinchilla")
    law = plain.taking(Repetition, Offset)
    p = CHINCHILLA | {"R_D": 5.0, "unannealed": 0.1, "unannealed_D": 0.0, "unannealed_N": 0.0}
    table = bl.from_frame(small().frame.assign(annealed=[0, 1] * 10, unique_tokens=2e9))
    anchors = bl.from_frame(grid(params=5e8, tokens=[1e9, 2e10]).assign(loss=3.0))
    expected = plain.loss(p, plain.covariates(anchors))
    rows = joined(table, anchors).frame.tail(2)
    np.testing.assert_allclose(law.loss(p, law.covariates(rows)), expected, rtol=1e-12)
    said = bl.from_frame(anchors.frame.assign(annealed=0, unique_tokens=1e9))
    rows = law.loss(p, law.covariates(joined(table, said).frame.tail(2)))
    np.testing.assert_allclose(rows, law.loss(p, law.covariates(said.frame)), rtol=1e-12)
    assert (rows > 1.05 * expected).all()


@pytest.mark.slow
def test_a_study_buys_at_equal_cost():
    table = small()
    parts = ("tokens < 2e10", "tokens > 2e10 and params < 2e9", "tokens > 2e10 and params > 2e9")
    train, pool, targets = (table.query(query) for query in parts)
    cases = [
        bl.Case(law="chinchilla", train=train, pool=pool, targets=targets, seed=k) for k in (0, 1)
    ]
    found = bl.study(cases, ["none", "random"], budget=1e21, jobs=1, draws=60, tune=60)
    assert ((found["flops"] > 0) == (found["design"] != "none")).all()
    assert (found["flops"] <= 1e21).all()
    assert np.isfinite(found[["crps", "coverage_90", "sd", "sd_predicted"]]).all(axis=None)
    with pytest.raises(BayeslawError, match="did you mean 'random'"):
        bl.study(cases, ["randm"])
