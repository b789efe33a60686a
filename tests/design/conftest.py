"""Posteriors around the truth of the synthetic world, without a fit."""

import numpy as np
import pytest
import xarray as xr

from bayeslaw import Posterior, grid, paper_world
from bayeslaw.inference.fitted import Convergence
from bayeslaw.model.spec import make_spec

POOL = grid(params=[2e8, 2e9, 6e9], tokens=[2e9, 2e10, 2e11])
GOALS = grid(params=[3e10], tokens=[1e11, 1e12])
LIMITS = {"params": 8.1e9, "ptpp": 279, "max_loss": 1.9, "max_forgetting": 0.05}
LIMITS |= {"baseline": paper_world().baseline(), "confidence": 0.8}
GOOD = Convergence(rhat=1.0, ess_bulk=1e6, ess_tail=1e6, divergences=0, bfmi=1.0)


def around(world, domain: str, curvature: float | None = None) -> Posterior:
    """Four hundred draws around the true parameters, with or without curvature."""
    spec = make_spec(world.laws[domain], discrepancy="none" if curvature is None else "curvature")
    table = world.table(domain).query("ptpp <= 31")
    at, rng = spec.law.reference_point(table.frame), np.random.default_rng(len(domain))
    truth = world.truth[domain] | dict.fromkeys(spec.law.discrepancy_parameters, curvature)
    q = spec.law.to_reference(truth, at) | {"sigma": 0.003, "dof_above_floor": 5.0}
    values = {
        name: (["chain", "draw"], v * (1 + 0.01 * rng.standard_normal((4, 100))))
        for name, v in q.items()
    }
    return Posterior(spec, table, at, xr.Dataset(values), xr.Dataset(), GOOD)


@pytest.fixture(scope="session")
def fits():
    world = paper_world()
    return {name: around(world, getattr(world, name)) for name in ("target", "source")}


@pytest.fixture(scope="session")
def curved():
    world = paper_world()
    return {name: around(world, getattr(world, name), 0.002) for name in ("target", "source")}
