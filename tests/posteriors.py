"""Posteriors for tests of plans and designs, made from known true parameters without a sampler."""

from dataclasses import replace
from functools import cache

import numpy as np
import xarray as xr

from bayeslaw import Pool, Posterior, grid, load_law, paper_world, simulate
from bayeslaw.huber.bases import for_table
from bayeslaw.inference.convergence import Convergence
from bayeslaw.inference.pools import role_of
from bayeslaw.model.spec import make_spec
from tests.support import TRANSFER, transfer_design

WORLD = paper_world()
LIMITS = WORLD.limits
BASE = WORLD.baseline()
GOOD = Convergence(rhat=1.0, ess_bulk=1e4, ess_tail=1e4, divergences=0, bfmi=1.0)


def posterior(domain, draws=400, spread=0.004, seed=0, law=None, likelihood="studentt", **more):
    """A posterior whose draws are the true parameters plus independent noise."""
    rng = np.random.default_rng([seed, domain == WORLD.source])
    table = WORLD.table(domain).split("ptpp <= 31", "ptpp == 279", WORLD.anchors)[0]
    law = WORLD.laws[domain] if law is None else law
    discrepancy = "curvature" if law.discrepancy_parameters else "none"
    spec = make_spec(law, likelihood=likelihood, discrepancy=discrepancy)
    at = spec.law.reference_point(table.frame)
    q = WORLD.laws[domain].to_reference(WORLD.truth[domain], at)
    q |= {name: 0.0 for name in spec.law.coordinates if name not in q}
    values = {}
    for name, value in q.items():
        wide = 0.02 if name.startswith(("curve", "cross")) else spread * max(abs(value), 0.1)
        wide = 0.002 if name.startswith("drift_") else wide
        values[name] = value + wide * rng.standard_normal((4, draws // 4))
    values |= {"sigma": np.full((4, draws // 4), WORLD.sigma[domain])}
    if likelihood == "studentt":
        values["dof_above_floor"] = np.full((4, draws // 4), 8.0)
    data = xr.Dataset({name: (("chain", "draw"), value) for name, value in values.items()})
    return Posterior(spec, table, at, data, xr.Dataset(), more.pop("convergence", GOOD), more)


def both(draws=400, law=lambda law: law):
    """Posteriors of target and source, of a function of their laws."""
    pairs = {"target": WORLD.target, "source": WORLD.source}
    return {k: posterior(name, draws, law=law(WORLD.laws[name])) for k, name in pairs.items()}


def silent(fit):
    """The posterior without noise, whose measured losses are the latent ones."""
    return replace(fit, draws=fit.draws.assign(sigma=0 * fit.draws["sigma"]))


def drawn(law, table, truth, discrepancy="none", seed=0, draws=100, rising=0.0, **moved):
    """A posterior of any law: true parameters plus independent noise, deviations as of a prior.

    With `rising` the log of the term in D rises by so much per e-fold of D, by its random walk. The
    other named parameters are moved to a value.
    """
    rng, spec = np.random.default_rng(seed), make_spec(law, discrepancy=discrepancy)
    at = spec.law.reference_point(table.frame)
    size = (4, draws // 4)
    values = {
        name: value + 0.004 * max(abs(value), 0.1) * rng.standard_normal(size)
        for name, value in spec.law.without_discrepancy.to_reference(truth, at).items()
    }
    values |= {"sigma": np.full(size, 0.002), "dof_above_floor": np.full(size, 8.0)}
    for name in spec.law.discrepancy_parameters:
        scale = name in ("walk_scale", "kappa")
        values[name] = moved.get(name, 0.0) + scale + 0.01 * rng.standard_normal(size)
    variables = {name: (("chain", "draw"), value) for name, value in values.items()}
    for walk in spec.law.over(spec.law.covariates(table), at).walks:
        knots = walk.knots
        steps = rng.standard_normal((*size, len(knots.positions)))
        if walk.along == "tokens" and not walk.times:
            steps[..., 0] += rising / (walk.sd * knots.spacing**0.5)
            steps[..., knots.above] -= rising / (walk.sd * knots.spacing**0.5)
        variables[walk.steps] = (("chain", "draw", f"{walk.steps}_knot"), steps)
    return Posterior(spec, table, at, xr.Dataset(variables), xr.Dataset(), GOOD, {"seed": seed})


@cache
def transfer():
    """The law `transfer` with the losses of bases, and runs from them that follow it exactly."""
    table = simulate("transfer", TRANSFER, transfer_design(), sigma=0.0)
    return for_table(load_law("transfer"), table), table


def adapted(seed, draws=100):
    """A posterior of the law `transfer`: the true parameters plus independent noise."""
    return drawn(*transfer(), TRANSFER, seed=seed, draws=draws)


def of_role(fit, role):
    """The fit as one of losses of a role, if it is of one."""
    if isinstance(fit, Pool):
        return fit.with_members({n: of_role(m, role) for n, m in fit.members.items()})
    if not role_of(fit):
        return fit
    table = replace(fit.table, frame=fit.table.frame.assign(role=role))
    return replace(fit, table=table)


def losses(fits, choice):
    """Paired latent losses of target and source at a choice."""
    rows = grid(params=8.1e9, ptpp=279, replay=choice.replay, tokens=choice.tokens)
    target, source = (fits[name].latent(rows)[:, 0] for name in ("target", "source"))
    return target, np.roll(source, len(source) // 2)


def over_replay(fits, tokens):
    """Losses of shape (draws, 331 replay ratios)."""
    rows = grid(params=8.1e9, ptpp=279, replay=np.linspace(0.005, 0.995, 331), tokens=tokens)
    source = fits["source"].latent(rows)
    return fits["target"].latent(rows), np.roll(source, len(source) // 2, 0)
