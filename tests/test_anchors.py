"""Anchors: costs of runs, predictions against conditioning and refits, and studies."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bayeslaw as bl
from bayeslaw import BayeslawError, LossTable, TableError, choose_anchors, grid
from bayeslaw.anchors.costs import costs
from bayeslaw.anchors.prediction import (
    JointGaussian,
    centred,
    joint_gaussian,
    predicted_sd,
)
from bayeslaw.design.design import Design
from bayeslaw.inference.fitting import joined, refit
from bayeslaw.laws.forms import taking
from bayeslaw.laws.steps import Offset, Repetition
from tests.posteriors import both
from tests.support import CHINCHILLA, refused, saved, small, with_effects

POOL = grid(params=[2e8, 2e9, 6e9], tokens=[2e9, 2e10, 2e11])
GOALS = grid(params=[3e10], tokens=[1e11, 1e12])
PLAIN, K2 = saved("plain"), {"k": 2}


@pytest.fixture(scope="module")
def world_fit():
    return both()["target"]


# -- costs and predictions ------------------------------------------------------------------------


@given(st.integers(0, 10_000), st.sets(st.integers(0, 3), max_size=4))
@settings(deadline=None, max_examples=20)
def test_an_update_is_gaussian_conditioning(seed, bought):
    rng = np.random.default_rng(seed)
    z = centred(rng.standard_normal((200, 5)) @ rng.standard_normal((5, 12)))
    run = np.unique(np.sort(rng.integers(4, size=9)), return_inverse=True)[1]
    same = run[:, None] == run
    noise = np.diag(rng.uniform(0.05, 0.5, 9)) + 0.3 * same
    joint, full = JointGaussian(z[:, :9], z[:, 9:], noise), z.T @ z
    full[:9, :9] += noise
    of_bought = np.isin(run, sorted(bought))
    have = np.flatnonzero(of_bought)
    gain = full[9:, have] @ np.linalg.inv(full[np.ix_(have, have)])
    expected = np.diag(full[9:, 9:] - gain @ full[have, 9:])
    np.testing.assert_allclose(joint.variances(of_bought), expected, rtol=1e-7)


def test_a_run_costs_its_longest_row_and_a_base_its_stage_once():
    columns = ("params", "tokens", "ptpp")
    rows = [(1e8, 1e9, "a"), (1e8, 4e9, "a"), (1e8, 1e9, "b"), (2e8, 1e9, "c")]
    frame = pd.DataFrame(rows, columns=["params", "tokens", "run"]).assign(ptpp=20.0)
    price = costs(frame, columns)
    stage, more = 6 * 1e8 * 1e8 * 20, 6 * 2e8 * 2e8 * 20
    assert price.alone[0] == stage + 6e8 * 4e9
    assert price.total([0, 1]) - price.total([0]) == pytest.approx(6e8 * 1e9)
    assert price.total([0, 1, 2]) == pytest.approx(
        stage + more + 6e8 * 5e9 + 12e8 * 1e9
    )
    there = costs(frame, columns, fitted=LossTable(frame[:1], "rows"))
    assert (there.total([0]), there.total([2])) == (6e8 * 4e9, more + 12e8 * 1e9)
    evaluated = LossTable(frame[3:], "rows", frame[:1].assign(tokens=0.0))
    assert (
        costs(frame, columns, fitted=evaluated).total([0, 2]) == 6e8 * 4e9 + 12e8 * 1e9
    )
    assert costs(frame, columns, cost="adaptation").total([2]) == 12e8 * 1e9
    assert costs(frame, columns[:2]).total([1]) == 6e8 * 1e9
    with pytest.raises(BayeslawError, match="not a positive number"):
        costs(frame.assign(hours=[1, 2, 0, 4]), columns, cost="hours")


@given(st.integers(0, 10_000), st.sampled_from([6.0, 14.0, 25.0]))
@settings(deadline=None, max_examples=25)
def test_runs_are_bought_in_order_while_the_budget_allows_one(seed, budget):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {"cost": rng.uniform(1, 12, 7), "params": 1.0 + rng.integers(3, size=7)}
    )
    price = costs(frame.assign(tokens=1.0), ("params", "tokens"), cost="cost")
    picks = price.buy(price.shuffled(seed), 6, budget)
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
    np.testing.assert_allclose(
        predicted_sd(PLAIN, found.frame, GOALS), found.sd[-1], rtol=1e-6
    )
    np.testing.assert_allclose(predicted_sd(PLAIN, POOL[:0], GOALS), now)


@pytest.mark.slow
def test_prediction_holds_after_a_refit():
    """Median over targets and worlds within 15 %, Monte Carlo error of 4 refits included."""
    found = choose_anchors(PLAIN, POOL, GOALS, k=3)
    ratios = []
    for seed in range(4):
        measured = bl.simulate(
            "chinchilla", CHINCHILLA, found.frame, sigma=0.003, seed=seed
        )
        new = refit(
            PLAIN.spec, joined(PLAIN.table, measured), seed, draws=1000, tune=500
        )
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
        # Nothing else could be bought.
        assert found.flops <= 5e21 < found.flops + min(left)
        whole = choose_anchors(PLAIN, pool, GOALS, k=2, seed=seed)
        assert (whole.picks["tokens"] == 2e11).all()
        assert len(whole.frame) == 6  # checkpoints of a bought run come free


def test_candidates_and_targets_may_be_rows_that_were_measured():
    plain = choose_anchors(PLAIN, POOL, GOALS, **K2).picks
    mixed = pd.concat(
        [POOL, PLAIN.table.frame[["params", "tokens"]]], ignore_index=True
    )
    with pytest.warns(bl.TableWarning, match="20 of 29 are rows that were fitted"):
        found = choose_anchors(PLAIN, mixed, GOALS, **K2)
    pd.testing.assert_frame_equal(found.picks, plain)
    for pool, goals in ((POOL, GOALS.assign(loss=2.0)), (POOL.assign(loss=2.0), GOALS)):
        found = choose_anchors(PLAIN, pool, goals, **K2)
        pd.testing.assert_series_equal(found.picks["sd"], plain["sd"])
    joint = joint_gaussian(PLAIN, GOALS, GOALS)
    variance = joint.variances(np.full(2, True))
    np.testing.assert_allclose(predicted_sd(PLAIN, GOALS, GOALS), np.sqrt(variance))
    assert (variance < np.diag(joint.noise)).all()


@pytest.mark.parametrize(
    ("pool", "goals", "wrong", "says"),
    [
        (POOL, GOALS, {"k": None}, "how many runs"),
        (POOL, GOALS, {"k": 0}, "must be positive"),
        (POOL, GOALS, {"budget": 1.0}, "nothing to buy for 1 FLOPs"),
        (POOL, GOALS, {"cost": "hours"}, "unknown cost 'hours'"),
        (POOL.assign(tokens=0), GOALS, {}, "no value at tokens = 0"),
        (POOL.assign(run="a"), GOALS, {}, "'params' differs within a run"),
        (PLAIN.table, GOALS, {}, "all of them are rows that were fitted"),
    ],
)
def test_mistakes_are_told(pool, goals, wrong, says):
    refused(BayeslawError, says, choose_anchors, PLAIN, pool, goals, **K2 | wrong)


def test_candidates_and_targets_of_one_new_size_have_its_effect(world_fit):
    fit = with_effects(world_fit, "size", None, 0.01)
    pool = grid(params=[1e10, 3e10], tokens=6e11, replay=[0.2, 0.4], ptpp=279)
    found = joint_gaussian(fit, pool, pool.tail(1))
    np.testing.assert_allclose(found.targets[:, 0], found.measured[:, 3], atol=1e-12)
    assert np.corrcoef(found.measured[:, 2], found.measured[:, 3])[0, 1] > 0.95
    assert np.corrcoef(found.measured[:, 0], found.measured[:, 2])[0, 1] < 0.9


def test_rows_of_a_new_run_vary_together(world_fit):
    tau, labels = 0.03, np.resize(["a", "b"], len(world_fit.table))
    fit = with_effects(world_fit, "run", labels, tau)
    pool = grid(params=[1e9, 2e9], tokens=[1e10, 3e10], replay=0.2, ptpp=31)
    found = joint_gaussian(fit, pool.assign(run=[*"xxyy"]), pool[:1])
    shared = tau**2 * np.kron(np.eye(2), np.ones((2, 2)))
    apart = ~np.eye(4, dtype=bool)
    np.testing.assert_allclose(found.noise[apart], shared[apart], rtol=1e-12)


def test_the_noise_of_a_pool_is_the_mean_of_its_members(world_fit):
    one = world_fit
    other = replace(one, draws=one.draws.assign(sigma=3 * one.draws["sigma"]))
    rows = grid(params=[1e9, 2e9], tokens=1e10, replay=0.2, ptpp=31)
    pooled = bl.Pool({"one": one, "other": other}, {"one": 1, "other": 3})
    noises = [joint_gaussian(fit, rows, rows).noise for fit in (one, other, pooled)]
    np.testing.assert_allclose(noises[2], noises[0] / 4 + 3 * noises[1] / 4, rtol=0.01)


def test_a_fit_of_one_base_knows_its_size():
    fit = saved("one_base").accepted({"unconverged", "beyond-evidence"})
    pool, goal = (
        grid(replay=[0.2, 0.3], tokens=[3e10, 4e10]),
        grid(replay=0.2, tokens=9e10),
    )
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
        np.diag(joint_gaussian(fit, each, each).noise)
        for each in (rows.drop(columns="run"), rows)
    )
    np.testing.assert_allclose(
        new - old, float(np.median(fit.draws["tau_run"] ** 2)), rtol=1e-9
    )


# -- studies --------------------------------------------------------------------------------------


def test_anchors_are_annealed_and_repeat_no_tokens_where_they_do_not_say():
    plain = bl.load_law("chinchilla")
    law = taking(plain, Repetition, Offset)
    p = CHINCHILLA | {"R_D": 5.0, "R_D_N": 0.5, "unannealed": 0.1}
    p |= {"unannealed_D": 0.0, "unannealed_N": 0.0}
    table = bl.from_frame(small().frame.assign(annealed=[0, 1] * 10, unique_tokens=2e9))
    anchors = bl.from_frame(grid(params=5e8, tokens=[1e9, 2e10]).assign(loss=3.0))
    expected = plain.loss(p, Design(plain, anchors).x)
    rows = joined(table, anchors).frame.tail(2)
    np.testing.assert_allclose(law.loss(p, Design(law, rows).x), expected, rtol=1e-12)
    said = bl.from_frame(anchors.frame.assign(annealed=0, unique_tokens=1e9))
    rows = law.loss(p, Design(law, joined(table, said).frame.tail(2)).x)
    np.testing.assert_allclose(rows, law.loss(p, Design(law, said.frame).x), rtol=1e-12)
    assert (rows > 1.05 * expected).all()


@pytest.mark.slow
def test_a_study_buys_at_equal_cost():
    table = small()
    parts = (
        "tokens < 2e10",
        "tokens > 2e10 and params < 2e9",
        "tokens > 2e10 and params > 2e9",
    )
    train, pool, targets = (table.query(query) for query in parts)
    how = {"budget": 1e21, "seeds": [0, 1], "jobs": 1, "draws": 60, "tune": 60}
    designs = ["none", "random", "cheapest", "grid"]
    found = bl.study("chinchilla", train, pool, targets, designs=designs, **how)
    tried = [(seed, design) for seed in (0, 1) for design in designs]
    assert [*zip(found["seed"], found["design"], strict=True)] == tried
    assert ((found["cost"] > 0) == (found["design"] != "none")).all()
    assert (found["cost"] <= 1e21).all()
    runs = found.pivot(index="seed", columns="design", values="runs")
    assert (runs["cheapest"] == runs.max(axis=1)).all()
    assert np.isfinite(found[["crps", "coverage_90", "sd", "sd_predicted"]]).all(
        axis=None
    )
    with pytest.raises(BayeslawError, match="did you mean 'random'"):
        bl.study("chinchilla", train, pool, targets, designs=["randm"])
