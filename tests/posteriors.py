"""Posteriors for tests of plans and designs, made from known true parameters without a sampler."""

from dataclasses import replace

import numpy as np
import xarray as xr

from bayeslaw import PointFit, Pool, Posterior, load_law, paper_world
from bayeslaw.design.design import Design
from bayeslaw.inference.convergence import Convergence
from bayeslaw.inference.pools import role_of
from bayeslaw.laws.forms import with_knots
from bayeslaw.model.spec import make_spec
from bayeslaw.model.training import for_table
from tests.support import TRANSFER, exact_transfer

WORLD = paper_world()
LIMITS = WORLD.limits
BASE = WORLD.baseline()
GOOD = Convergence(rhat=1.0, ess_bulk=1e4, ess_tail=1e4, divergences=0, bfmi=1.0)


def posterior(domain, draws=400, seed=0):
    """A posterior of a domain of the world, at its true parameters."""
    table = WORLD.table(domain).split("ptpp <= 31", "ptpp == 279", WORLD.anchors)[0]
    how = {
        "seed": [seed, domain == WORLD.source],
        "draws": draws,
        "sigma": WORLD.sigma[domain],
    }
    return drawn(WORLD.laws[domain], table, WORLD.truth[domain], **how)


def both(draws=400):
    """Posteriors of target and source."""
    pairs = {"target": WORLD.target, "source": WORLD.source}
    return {name: posterior(domain, draws) for name, domain in pairs.items()}


def silent(fit):
    """The posterior without noise, whose measured losses are the latent ones."""
    return replace(fit, draws=fit.draws.assign(sigma=0 * fit.draws["sigma"]))


def drawn(law, table, truth, discrepancy="none", seed=0, draws=100, sigma=0.002):
    """A posterior of any law: true parameters plus independent noise, deviations as of a prior."""
    spec = make_spec(for_table(load_law(law), table), discrepancy=discrepancy)
    rng, size, at = (
        np.random.default_rng(seed),
        (4, draws // 4),
        Design(spec.law, table).at,
    )
    values = {
        name: value + 0.004 * max(abs(value), 0.1) * rng.standard_normal(size)
        for name, value in spec.law.without_discrepancy.to_reference(truth, at).items()
    }
    values |= {"sigma": np.full(size, sigma), "dof_above_floor": np.full(size, 8.0)}
    for name in spec.law.discrepancy_parameters:
        scale = name in ("walk_scale", "kappa")
        values[name] = scale + 0.01 * rng.standard_normal(size)
    variables = {name: (("chain", "draw"), value) for name, value in values.items()}
    for walk in with_knots(spec.law, Design(spec.law, table).x, at).walks:
        steps = rng.standard_normal((*size, len(walk.knots.positions)))
        variables[walk.steps] = (("chain", "draw", f"{walk.steps}_knot"), steps)
    settings = {"seed": int(np.sum(seed))}
    return Posterior(
        spec, table, at, xr.Dataset(variables), xr.Dataset(), GOOD, settings
    )


def adapted(seed, draws=100):
    """A posterior of the law `transfer`."""
    return drawn("transfer", exact_transfer(), TRANSFER, seed=seed, draws=draws)


def turned(fit):
    """A fit with its draws in the opposite order: another posterior of the same losses."""
    if isinstance(fit, PointFit):
        return fit
    if isinstance(fit, Pool):
        return fit.with_members(
            {name: turned(member) for name, member in fit.members.items()}
        )
    return replace(fit, draws=fit.draws.isel(draw=slice(None, None, -1)))


def of_role(fit, role):
    """The fit as one of losses of a role, if it is of one."""
    if isinstance(fit, Pool):
        return fit.with_members({n: of_role(m, role) for n, m in fit.members.items()})
    if not role_of(fit):
        return fit
    table = replace(fit.table, frame=fit.table.frame.assign(role=role))
    return replace(fit, table=table)
