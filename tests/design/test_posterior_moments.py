"""Losses behind the choice of runs for a plan."""

from dataclasses import replace

import numpy as np
import pytest

from bayeslaw import Prior, grid, load, paper_world, plan
from bayeslaw.design.bayes_linear import centred
from bayeslaw.design.posterior_moments import _new_groups, joint_gaussian
from bayeslaw.inference.pools import pair_draws
from bayeslaw.model import effects
from bayeslaw.planning.intervals import intersection
from tests.design.problems import LIMITS, around


def test_joint_gaussian_of_a_plan_has_the_losses_of_its_posteriors():
    """Also with curvature of the whole loss, which a plan's curves have in their term sizes."""
    world = paper_world()
    curved = {name: around(world, getattr(world, name), 0.002) for name in ("target", "source")}
    loose = LIMITS | {"baseline": "asymptote", "max_loss": 2.2, "max_forgetting": 0.3}
    planned, pool = plan(**curved, **loose), world.design().query("ptpp == 31 and params < 1e9")
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
    needed = intersection(planned.problem.feasible_sets([planned.replay])).lower[0, 0]
    np.testing.assert_array_equal(keep, np.arange(planned.draws))
    assert np.isfinite(needed).all()
    score = joint.targets[:, -1][np.argsort(needed)] * np.sqrt(planned.draws - 1)
    assert (np.diff(score) > 0).all()
    np.testing.assert_allclose(score, -score[::-1], atol=1e-12)
    assert joint.variance[-1] == pytest.approx(1)
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
                size=effects.labels(fit.table.frame.drop_duplicates("params"), "size"),
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
    losses = [np.log(curve.loss([0.2, 0.4], np.log(20))).T for curve in curves]
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
    codes = np.stack([group for group, _ in found.effects])
    variance = np.array([each for _, each in found.effects])
    shared = (codes[:, :, None] == codes[:, None, :]) & (codes[:, :, None] >= 0)
    pairs = np.kron(np.eye(2), np.ones((2, 2)))
    want = np.kron(np.diag([tau["target"] ** 2, tau["source"] ** 2]), pairs)
    np.testing.assert_allclose(np.einsum("e,eij->ij", variance, shared), want)


def test_a_row_without_a_label_is_a_new_run_though_a_training_row_had_none_either():
    fit = load("tests/golden/tinycpt_form1.nc")
    labels = fit.draws["run"].values.astype(object)
    labels[:2] = "(row 0)", "(row 1)"  # as rows without a label are named
    fit = replace(fit, draws=fit.draws.assign_coords(run=labels))
    candidates = fit.table.frame.head(3).drop(columns="run")
    assert _new_groups(fit, candidates, "run", None).tolist() == [0, 1, 2]
    assert _new_groups(fit, fit.table.frame.tail(1), "run", None).tolist() == [-1]
