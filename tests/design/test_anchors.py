"""Anchor choice: against explicit Gaussian conditioning, brute force, and refits."""

import numpy as np
import pandas as pd
import pytest

from bayeslaw import (
    BayeslawError,
    NotConverged,
    TableError,
    TableWarning,
    choose_anchors,
    grid,
    paper_world,
    plan,
    simulate,
)
from bayeslaw.design.compared_designs import predicted_sd
from bayeslaw.design.posterior_moments import noise_variance
from bayeslaw.inference.fitting import joined, refit
from tests.design.problems import GOALS, LIMITS, POOL
from tests.support import CHINCHILLA


def test_costs_and_predictions_of_the_picks(posterior):
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
    assert far.sd[-1][1] < near.sd[-1][1]
    assert near.sd[-1][2] < far.sd[-1][2]
    size = ["params", "tokens"]
    assert far.picks[size].to_numpy().tolist() == [[6e9, 2e11]]
    assert near.picks["tokens"].tolist() == [2e9]  # the smallest and the largest size gain as much


def test_training_rows_are_left_out_with_a_warning(posterior):
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


def test_a_measured_target_has_at_most_the_variance_of_its_noise(posterior):
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
def test_bad_arguments_are_refused(posterior, wrong, message):
    with pytest.raises(BayeslawError, match=message):
        choose_anchors(posterior, POOL, GOALS, **wrong)


def test_no_targets_no_tokens_and_mixed_runs_are_refused(posterior):
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


def test_the_gain_of_a_plan_lowers_its_predicted_budget(fits):
    target, planned = fits["target"], plan(**fits, **LIMITS, noise="latent")
    pool = paper_world().design().query("ptpp == 279 and params < 8e9")[::3]
    known = {"gain": "plan", "plan": planned, "source": fits["source"], "k": 4}
    found = choose_anchors(target, pool, **known)
    atpp = [found.atpp, *found.picks["atpp"]]
    assert found.atpp == planned.atpp
    assert atpp[-1] < atpp[0]
    assert found.picks["p_plan"].between(0.5, 1).all()
    one_sided = choose_anchors(target, pool, gain="plan", plan=planned, k=4)
    assert one_sided.picks["gain"].sum() < found.picks["gain"].sum()
