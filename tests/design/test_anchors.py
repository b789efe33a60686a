"""The choice of anchors: predictions against refits, and the losses behind a choice for a plan."""

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest

import bayeslaw as bl
from bayeslaw import (
    BayeslawError,
    NotConverged,
    Prior,
    TableError,
    TableWarning,
    grid,
    load,
    paper_world,
    plan,
    simulate,
)
from bayeslaw.inference.fitting import joined, refit
from bayeslaw.inference.pools import pair_draws
from bayeslaw.model.effects import labels
from tests.design.conftest import GOALS, LIMITS, POOL, around
from tests.inside import centred, joint_gaussian, predicted_sd
from tests.support import CHINCHILLA

choose_anchors = partial(bl.choose_anchors, gain="variance")


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


def test_random_runs_are_whole_seeded_and_within_the_limits(posterior):
    pool = POOL.assign(run=POOL["params"].map("n{:g}".format))
    for seed in range(5):
        found = bl.choose_anchors(posterior, POOL, GOALS, budget=5e21, seed=seed)
        again = bl.choose_anchors(posterior, POOL, GOALS, budget=5e21, seed=seed)
        pd.testing.assert_frame_equal(found.picks, again.picks)
        assert found.flops <= 5e21
        left = 5e21 - found.flops  # nothing else could be bought
        flops = POOL.merge(found.picks[["params", "tokens"]], how="left", indicator="bought")
        flops = flops.query("bought == 'left_only'").eval("6 * params * tokens")
        assert flops.min() > left
        assert found.picks["sd"].iloc[-1] < found.picks["sd_before"].iloc[0]
        two = bl.choose_anchors(posterior, POOL, GOALS, k=2, seed=seed)
        assert two.picks["params"].nunique() == 2
        whole = bl.choose_anchors(posterior, pool, GOALS, k=2, seed=seed)
        assert (whole.picks["tokens"] == 2e11).all()
        assert len(whole.frame) == 6
    firsts = {bl.choose_anchors(posterior, POOL, GOALS, k=1, seed=s).flops for s in range(20)}
    assert len(firsts) > 3


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
    joint, _ = joint_gaussian([posterior], GOALS, GOALS)
    variance, _ = joint.variances([0, 1])
    np.testing.assert_allclose(predicted_sd(posterior, GOALS, GOALS), np.sqrt(variance))
    assert (variance < np.diag(joint.noise)).all()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, "how many runs"),
        ({"k": 0}, "must be positive"),
        ({"k": 2, "gain": "varience"}, "did you mean 'variance'"),
        ({"k": 2, "gain": "plan"}, "needs plan="),
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


def test_joint_gaussian_of_a_plan_has_the_losses_of_its_posteriors(curved):
    """Also with curvature of the whole loss, which a plan's curves have in their term sizes."""
    loose = LIMITS | {"baseline": "asymptote", "max_loss": 2.2, "max_forgetting": 0.3}
    planned, pool = (
        plan(**curved, **loose),
        paper_world().design().query("ptpp == 31 and params < 1e9"),
    )
    fits = list(curved.values())
    found, _ = joint_gaussian(fits, pool, pool.head(1), planned)
    losses = [
        np.log(fit.latent(pool))[limit.index]
        for fit, limit in zip(fits, planned.problem.limits, strict=True)
    ]
    np.testing.assert_allclose(found.measured, centred(np.hstack(losses)), atol=1e-12)


def test_fits_of_different_numbers_of_draws_are_paired_without_a_plan(fits):
    few = replace(fits["source"], draws=fits["source"].draws.isel(draw=slice(0, 40)))
    pair, pool = [fits["target"], few], paper_world().design().head(6)
    found, keep = joint_gaussian(pair, pool, pool.head(1))
    index, _ = pair_draws(pair)
    losses = [np.log(fit.latent(pool))[i] for fit, i in zip(pair, index, strict=True)]
    np.testing.assert_array_equal(keep, np.arange(160))
    np.testing.assert_allclose(found.measured, centred(np.hstack(losses)), atol=1e-12)


def test_the_budget_that_a_plan_needs_is_a_standard_normal_target(fits):
    """Normal scores: in the order of the budgets, symmetric, with variance 1."""
    planned = plan(**fits, **LIMITS, noise="latent")
    pool = paper_world().design().head(2)
    joint, keep = joint_gaussian(list(fits.values()), pool, pool, planned)
    needed = planned.problem.needed(planned.replay)
    np.testing.assert_array_equal(keep, np.arange(planned.draws))
    assert np.isfinite(needed).all()
    score = joint.targets[:, -1][np.argsort(needed)] * np.sqrt(planned.draws - 1)
    assert (np.diff(score) > 0).all()
    np.testing.assert_allclose(score, -score[::-1], atol=1e-12)
    assert joint.variances([])[0][-1] == pytest.approx(1)
    assert np.mean(abs(score) < 1) == pytest.approx(0.683, abs=0.01)


@pytest.mark.parametrize("fitted", [True, False], ids=["effects of four", "three sizes"])
def test_a_candidate_of_the_plans_new_size_has_the_plans_effect(fitted):
    world, new = paper_world(), 3e10
    curved = {name: around(world, getattr(world, name), 0.002) for name in ("target", "source")}
    for name, fit in curved.items():
        if fitted:
            rng = np.random.default_rng(7)
            draws = fit.draws.assign(
                tau_size=(["chain", "draw"], np.full((4, 100), 0.01)),
                size_effect=(["chain", "draw", "size"], 0.01 * rng.standard_normal((4, 100, 4))),
                size=labels(fit.table.frame.drop_duplicates("params"), "size"),
            )
            curved[name] = replace(fit, draws=draws, spec=replace(fit.spec, effects=("size",)))
        else:
            # These draws are not a posterior, so only the equality of the effects is tested.
            tau = {"tau_size": Prior.parse("LogNormal(median=1e-5, sigma=0.1)")}
            spec = replace(fit.spec, priors=fit.spec.priors | tau)
            curved[name] = replace(fit, spec=spec, table=fit.table.query("params < 8e9"))
    loose = LIMITS | {"params": new, "baseline": "asymptote", "max_loss": 2.2}
    planned = plan(**curved, **loose | {"max_forgetting": 0.3}, seed=5)
    pool = grid(params=[1e10, new], tokens=20 * new, replay=[0.2, 0.4], ptpp=279)
    found, _ = joint_gaussian(list(curved.values()), pool, pool.tail(1), planned)
    curves = [limit.curve for limit in planned.problem.limits]
    losses = [np.log(curve.loss([np.log(20)], [0.2, 0.4])[0]).T for curve in curves]
    here = np.tile(pool["params"] == new, 2)
    np.testing.assert_allclose(found.measured[:, here], centred(np.hstack(losses)), atol=1e-12)
    np.testing.assert_allclose(found.targets[:, 0], found.measured[:, 3], atol=1e-12)
    if fitted:  # another new size has an effect of its own
        assert np.corrcoef(found.measured[:, 0], found.measured[:, 2])[0, 1] < 0.9


def test_new_runs_vary_as_those_of_their_own_domain():
    world, tau = paper_world(), {"target": 0.01, "source": 0.03}
    fits = []
    for name, scale in tau.items():
        fit = around(world, getattr(world, name))
        runs = {"run": ["a", "b"], "run_effect": (["chain", "draw", "run"], np.zeros((4, 100, 2)))}
        draws = fit.draws.assign(tau_run=(["chain", "draw"], np.full((4, 100), scale)))
        draws = draws.assign_coords(run=runs["run"]).assign(run_effect=runs["run_effect"])
        fits.append(replace(fit, draws=draws, spec=replace(fit.spec, effects=("run",))))
    pool = grid(params=[1e9, 2e9], tokens=[1e10, 3e10], replay=0.2, ptpp=31)
    pool["run"] = ["x", "x", "y", "y"]
    found, _ = joint_gaussian(fits, pool, pool.head(1))
    pairs = np.kron(np.eye(2), np.ones((2, 2)))
    shared = np.kron(np.diag([tau["target"] ** 2, tau["source"] ** 2]), pairs)
    apart = ~np.eye(8, dtype=bool)
    np.testing.assert_allclose(found.noise[apart], shared[apart], rtol=1e-12)


def test_a_row_without_a_label_is_a_new_run_though_a_training_row_had_none_either():
    fit = load("tests/data/tinycpt_form1.nc")
    names = fit.draws["run"].values.astype(object)
    names[:2] = "(row 0)", "(row 1)"  # as rows without a label are named
    fit = replace(fit, draws=fit.draws.assign_coords(run=names))
    variance = float(np.median(fit.draws["tau_run"] ** 2))

    def variances(rows):
        found, _ = joint_gaussian([fit], rows, rows)
        return np.diag(found.noise)

    rows = fit.table.frame.tail(3).reset_index(drop=True)
    new = variances(rows.drop(columns="run")) - variances(rows)
    np.testing.assert_allclose(new, variance, rtol=1e-9)
