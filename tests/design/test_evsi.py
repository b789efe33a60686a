"""The expected value of sample information for a plan."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from bayeslaw.common.errors import BayeslawError, NotConverged
from bayeslaw.design import evsi
from bayeslaw.design.anchors import choose_anchors
from bayeslaw.design.evsi import (
    _distinct_rows,
    _simulated_losses,
    _summary,
    anchor_value,
    plan_after,
)
from bayeslaw.design.posterior_moments import joint_gaussian, noise_variance
from bayeslaw.planning.intervals import intersection
from bayeslaw.planning.planner import plan
from bayeslaw.simulation.worlds import paper_world
from bayeslaw.tables.table import grid
from tests.design.problems import LIMITS, POOL, around


def test_equal_rows_of_several_sets_are_one_row():
    one = POOL.assign(run=["a", "b", None] * 3)
    rows, code = _distinct_rows([one, one.iloc[[4, 2]], POOL.iloc[:1]])
    assert len(rows) == 10
    assert [places.tolist() for places in code] == [[*range(9)], [4, 2], [9]]


def test_simulated_truths_are_posterior_draws_and_noise_is_independent_by_domain(fits):
    rows = paper_world().design().iloc[:200]
    losses = _simulated_losses(tuple(fits.values()), rows, 3, 0)
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


def test_outcomes_by_hand():
    """Four simulations from a plan of 80 FLOPs: two cheaper, one dearer, one without a plan."""
    now = SimpleNamespace(atpp=8.0, flops=80.0)
    flops, rhat = np.array([50.0, 60.0, 100.0, np.inf]), np.array([1.0, 1.1, 1.2, 1.3])
    found = _summary(now, 7.0, flops / 10, flops, rhat)
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


@pytest.fixture(scope="module")
def curved():
    return {name: around(WORLD, getattr(WORLD, name), 0.002) for name in ("target", "source")}


def bought(fits, planned, rows):
    joint, keep = joint_gaussian(list(fits.values()), rows, rows.head(1), planned)
    return plan_after(planned, joint, keep, range(len(rows)))


def test_the_planned_runs_own_losses_make_the_plan_certain(curved, monkeypatch):
    """With almost no noise, the plan after measuring next to it is that of the true draw."""
    monkeypatch.setattr(evsi, "DRAWS", 400)
    curved = {
        name: replace(fit, draws=fit.draws.assign(sigma=1e-3 * fit.draws["sigma"]))
        for name, fit in curved.items()
    }
    loose = LIMITS | {"max_loss": 1.95, "max_forgetting": 0.1}
    planned = plan(**curved, **loose, noise="latent")
    rows = WORLD.design().query("ptpp == 279 and params == 8.1e9")
    after = bought(curved, planned, rows)
    ratios = np.linspace(0.05, 0.95, 19)
    needed = intersection(planned.problem.feasible_sets(ratios)).lower.min((0, 1))
    assert after.feasible == pytest.approx(np.isfinite(needed).mean(), abs=0.1)
    middle = np.exp(np.quantile(needed, 0.5, method="higher"))
    assert after.atpp == pytest.approx(middle, rel=0.25)
    assert after.atpp < planned.atpp


def test_runs_may_make_an_infeasible_plan_feasible(curved):
    planned = plan(**curved, **LIMITS | {"max_loss": 1.83, "confidence": 0.95}, noise="latent")
    assert planned.status == "infeasible"
    pool = WORLD.design().query("ptpp == 279 and params < 8e9")
    known = {"gain": "plan", "plan": planned, "source": curved["source"]}
    found = choose_anchors(curved["target"], pool, **known, k=3)
    assert found.atpp == np.inf
    assert 0 < found.picks["p_plan"].iloc[-1] <= 1


def test_a_noisy_run_makes_a_plan_feasible_as_often_as_reweighted_draws_say(fits):
    """Draws weighted by their likelihood of each simulated loss, at the likeliest choice."""
    target = fits["target"]
    target = replace(target, draws=target.draws.assign(sigma=10 * target.draws["sigma"]))
    limits = LIMITS | {"max_loss": 1.716, "max_forgetting": 0.2, "confidence": 0.9}
    planned = plan(target=target, source=fits["source"], **limits, noise="latent")
    assert planned.status == "infeasible"
    row = grid(params=8.1e9, ptpp=279, replay=0.35, tokens=1e11)
    aim = row.assign(replay=planned.best.replay, tokens=planned.best.tokens)
    meets = target.latent(aim)[:, 0] <= 1.716
    assert 0.8 < meets.mean() < 0.9
    log_loss, sd = np.log(target.latent(row))[:, 0], noise_variance(target, row)[0] ** 0.5
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
