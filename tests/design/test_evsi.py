"""The expected value of sample information for a plan."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from bayeslaw import (
    BayeslawError,
    NotConverged,
    anchor_value,
    choose_anchors,
    from_frame,
    grid,
    load_law,
    paper_world,
    plan,
)
from bayeslaw.inference.fitting import joined
from tests.design.conftest import LIMITS, POOL
from tests.inside import (
    distinct_rows,
    joint_gaussian,
    plan_after,
    simulated_losses,
    summary_of_set,
)
from tests.support import CHINCHILLA


def test_equal_rows_of_several_sets_are_one_row():
    one = POOL.assign(run=["a", "b", None] * 3)
    rows, code = distinct_rows([one, one.iloc[[4, 2]], POOL.iloc[:1]])
    assert len(rows) == 10
    assert [places.tolist() for places in code] == [[*range(9)], [4, 2], [9]]
    rows, code = distinct_rows([POOL, POOL.assign(annealed=0)[:1], POOL.assign(annealed=1)[:1]])
    assert [places.tolist() for places in code] == [[*range(9)], [9], [0]]
    assert rows["annealed"].tolist() == [1.0] * 9 + [0.0]


def test_simulated_truths_are_posterior_draws_and_noise_is_independent_by_domain(fits):
    rows = paper_world().design().iloc[:200]
    losses = simulated_losses(tuple(fits.values()), rows, 3, 0)
    noise = []
    for fit, loss in zip(fits.values(), losses, strict=True):
        residuals = np.log(loss)[:, None] - np.log(fit.latent(rows))  # truth, draw, row
        size = np.sqrt((residuals**2).mean(-1))
        nearest = size.argmin(1)
        assert len({*nearest}) == 3
        assert size.min(1) == pytest.approx(0.0036, abs=0.001)  # Student-t of scale .003
        noise.append(residuals[range(3), nearest].ravel())
    assert abs(np.corrcoef(noise)[0, 1]) < 0.2


def test_anchor_value_refuses_bad_arguments(fits, unconverged):
    rows = POOL.assign(replay=0.2, ptpp=279)
    with pytest.raises(BayeslawError, match="at least one set"):
        anchor_value({}, **fits, **LIMITS)
    with pytest.raises(BayeslawError, match="no plan now"):
        anchor_value({"some": rows}, **fits, **LIMITS | {"max_loss": 1.0})
    with pytest.raises(NotConverged):
        anchor_value({"some": rows}, **fits | {"source": unconverged}, **LIMITS)


def test_anchors_are_annealed_and_repeat_no_tokens_where_they_do_not_say(small):
    plain = load_law("chinchilla")
    law = plain.repeating().annealing()
    p = CHINCHILLA | {"R_D": 5.0, "unannealed": 0.1, "unannealed_D": 0.0, "unannealed_N": 0.0}
    table = from_frame(small.frame.assign(annealed=[0, 1] * 10, unique_tokens=2e9))
    anchors = from_frame(grid(params=5e8, tokens=[1e9, 2e10]).assign(loss=3.0))
    expected = plain.loss(p, plain.covariates(anchors))
    rows = joined(table, anchors).frame.tail(2)
    np.testing.assert_allclose(law.loss(p, law.covariates(rows)), expected, rtol=1e-12)
    said = from_frame(anchors.frame.assign(annealed=0, unique_tokens=1e9))
    rows = joined(table, said).frame.tail(2)
    np.testing.assert_allclose(
        law.loss(p, law.covariates(rows)), law.loss(p, law.covariates(said.frame)), rtol=1e-12
    )
    assert (law.loss(p, law.covariates(rows)) > 1.05 * expected).all()


def test_outcomes_by_hand():
    """Four simulations from a plan of 80 FLOPs: two cheaper, one dearer, one without a plan."""
    now = SimpleNamespace(atpp=8.0, flops=80.0)
    flops, rhat = np.array([50.0, 60.0, 100.0, np.inf]), np.array([1.0, 1.1, 1.2, 1.3])
    found = summary_of_set(now, 7.0, flops / 10, flops, rhat)
    assert found == {
        "atpp_now": 8.0,
        "atpp": 10.0,  # of an even number the worse of the two in the middle
        "atpp_90": np.inf,
        "less": 0.5,
        "infeasible": 0.25,
        "saved": -20.0,
        "net": -27.0,
        "saved_mean": pytest.approx(10.0),
        "saved_error": pytest.approx(np.sqrt(700 / 3)),
        "rhat": pytest.approx(1.15),
    }


WORLD = paper_world()
GOAL = WORLD.design().tail(1)


def bought(fits, planned, rows):
    """Median budget, and fraction of feasible plans, once the rows are measured; two seeds."""
    joint, keep = joint_gaussian(list(fits.values()), rows, rows.head(1), planned)
    after = [plan_after(planned, joint, keep, range(len(rows)), seed) for seed in range(2)]
    return np.mean(after, axis=0)


def sorted_by(draws, order):
    """The draws in another order, in the same chains."""
    return draws.map(lambda each: each.copy(data=each.values.ravel()[order].reshape(each.shape)))


@pytest.mark.parametrize("ratios", [[0.05], [0.34], [0.9], [0.1, 0.3]])
def test_the_plan_asked_again_has_its_own_replay_ratios(curved, ratios):
    loose = LIMITS | {"max_loss": 1.95, "max_forgetting": 0.1}
    planned = plan(**curved, **loose, noise="latent", replay_grid=ratios, beyond_evidence=True)
    joint, keep = joint_gaussian(list(curved.values()), WORLD.design()[:1], GOAL, planned)
    atpp, feasible = plan_after(planned, joint, keep, [])
    assert feasible == (planned.best is None)
    # Budgets after a purchase are on a grid of tenths of an e-fold.
    assert atpp == pytest.approx(planned.atpp, rel=0.11)


def test_the_planned_runs_own_losses_make_the_plan_certain(curved):
    """With almost no noise, the plan after measuring next to it is that of the true draw.

    The draws are in the order of their losses, so that the truths must be a sample of all.
    """
    rows = WORLD.design().query("ptpp == 279 and params == 8.1e9")
    order = curved["target"].latent(rows.tail(1))[:, 0].argsort()
    curved = {
        name: replace(fit, draws=sorted_by(fit.draws.assign(sigma=1e-3 * fit.draws.sigma), order))
        for name, fit in curved.items()
    }
    loose = LIMITS | {"max_loss": 1.95, "max_forgetting": 0.1}
    planned = plan(**curved, **loose, noise="latent")
    atpp, feasible = bought(curved, planned, rows)
    ratios = np.linspace(0.05, 0.95, 19)
    needed = np.min([planned.problem.needed(ratio) for ratio in ratios], axis=0)
    assert feasible == pytest.approx(np.isfinite(needed).mean(), abs=0.1)
    middle = np.exp(np.quantile(needed, 0.5, method="higher"))
    assert atpp == pytest.approx(middle, rel=0.25)
    assert atpp < planned.atpp


def test_runs_may_make_an_infeasible_plan_feasible(curved):
    planned = plan(**curved, **LIMITS | {"max_loss": 1.83, "confidence": 0.95}, noise="latent")
    assert planned.status == "infeasible"
    pool = WORLD.design().query("ptpp == 279 and params < 8e9")[::3]
    known = {"gain": "plan", "plan": planned, "source": curved["source"]}
    found = choose_anchors(curved["target"], pool, **known, k=3)
    assert found.atpp == np.inf
    assert 0 < found.picks["p_plan"].iloc[-1] <= 1


def measured_far_out(fit):
    """The fit, with rows at budgets where a plan is likeliest, so that it lies within them."""
    rows = fit.table.frame
    rows = pd.concat([rows, rows.assign(tokens=1e18, replay=0.995)], ignore_index=True)
    return replace(fit, table=replace(fit.table, frame=rows))


def test_a_noisy_run_makes_a_plan_feasible_as_often_as_reweighted_draws_say(fits):
    """Draws weighted by their likelihood of each simulated loss, at the likeliest choice."""
    target, source = map(measured_far_out, fits.values())
    target = replace(target, draws=target.draws.assign(sigma=10 * target.draws["sigma"]))
    limits = LIMITS | {"max_loss": 1.716, "max_forgetting": 0.2, "confidence": 0.9}
    planned = plan(target=target, source=source, **limits, noise="latent")
    assert planned.status == "infeasible"
    row = grid(params=8.1e9, ptpp=279, replay=0.35, tokens=1e11)
    aim = row.assign(replay=planned.best.replay, tokens=planned.best.tokens)
    meets = target.latent(aim)[:, 0] <= 1.716
    assert 0.8 < meets.mean() < 0.9
    joint, _ = joint_gaussian([target], row, row)
    log_loss, sd = np.log(target.latent(row))[:, 0], joint.noise[0, 0] ** 0.5
    rng = np.random.default_rng(0)
    seen = rng.choice(log_loss, 2000) + sd * rng.standard_normal(2000)
    weights = np.exp(-0.5 * ((log_loss - seen[:, None]) / sd) ** 2)
    feasible = np.mean(weights @ meets / weights.sum(1) >= 0.9)
    found = choose_anchors(target, row, gain="plan", plan=planned, k=1)
    assert found.picks["p_plan"].item() == pytest.approx(feasible, abs=0.1)
    assert 0.15 < feasible < 0.35


def test_nothing_to_aim_at(curved):
    planned = plan(**curved, **LIMITS | {"max_loss": 0.5}, noise="latent")
    with pytest.raises(BayeslawError, match="nothing to aim at"):
        choose_anchors(curved["target"], WORLD.design().head(3), k=1, gain="plan", plan=planned)
