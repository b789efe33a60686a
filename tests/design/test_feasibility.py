"""Plans after a purchase against conditioning by hand, and infeasible plans."""

from dataclasses import replace

import numpy as np
import pytest

from bayeslaw.common.errors import BayeslawError
from bayeslaw.design import feasibility
from bayeslaw.design.anchors import choose_anchors
from bayeslaw.design.feasibility import plan_after
from bayeslaw.design.posterior_moments import joint_gaussian
from bayeslaw.planning.intervals import intersection
from bayeslaw.planning.planner import plan
from bayeslaw.simulation.worlds import paper_world
from tests.design.problems import LIMITS, around

WORLD = paper_world()


@pytest.fixture(scope="module")
def curved():
    return {name: around(WORLD, getattr(WORLD, name), 0.002) for name in ("target", "source")}


def bought(fits, planned, rows):
    joint, keep = joint_gaussian(
        list(fits.values()), rows, np.arange(len(rows)), rows.head(1), planned
    )
    return plan_after(planned, joint, keep, range(len(rows)))


def test_the_planned_runs_own_losses_make_the_plan_certain(curved, monkeypatch):
    """With almost no noise, the plan after measuring next to it is that of the true draw."""
    monkeypatch.setattr(feasibility, "DRAWS", 400)
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


def test_nothing_to_aim_at(curved):
    planned = plan(**curved, **LIMITS | {"max_loss": 0.5}, noise="latent")
    with pytest.raises(BayeslawError, match="nothing to aim at"):
        choose_anchors(curved["target"], WORLD.design().head(3), k=1, gain="plan", plan=planned)
