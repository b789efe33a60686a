"""A posterior as an ArviZ ``DataTree``: its groups, among them draws of the prior."""

import numpy as np
import xarray as xr

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import FitError
from bayeslaw.inference.fitted import FittedLaw
from bayeslaw.inference.residuals import log_likelihood, residual_draws
from bayeslaw.laws.priors import FLOOR
from bayeslaw.model import effects, noise
from bayeslaw.model.noise import OBSERVED
from bayeslaw.tables.validation import COVARIATES

NATS = "nats per token"
UNITS = {"params": "parameters", "tokens": "tokens", "replay": "fraction", "ptpp": "tokens/param"}


def to_datatree(fit: FittedLaw, *, seed: int = 0, prior: int = 1000) -> xr.DataTree:
    """See `Posterior.to_datatree`."""
    frame, rng = fit.table.frame, np.random.default_rng(seed)
    shape = fit.draws.sizes["chain"], fit.draws.sizes["draw"]
    rows = {"row": np.arange(len(frame))}

    def drawn(values: Floats, shape: tuple[int, int] = shape) -> xr.Dataset:
        return xr.Dataset({OBSERVED: (("chain", "draw", "row"), values.reshape(*shape, -1))}, rows)

    latent = np.log(fit.latent(frame))
    improper = [name for name, p in fit.spec.priors.items() if not p.proper]
    groups_of = [effects.level(name).column for name in fit.spec.effects]
    known = [c for c in (*COVARIATES, *groups_of) if c in frame]
    observed = xr.DataArray(np.log(fit.table.loss), rows, ("row",))
    replicated = latent + residual_draws(fit, frame, rng, training=True)
    groups = {
        "posterior": xr.merge([fit.draws, fit.paper], compat="override"),
        "sample_stats": fit.stats,
        "log_likelihood": drawn(log_likelihood(fit)),
        "posterior_predictive": drawn(replicated),
        "observed_data": xr.Dataset({OBSERVED: observed}),
        "constant_data": xr.Dataset({c: ("row", frame[c].to_numpy()) for c in known}, rows),
    }
    if not improper:
        before = prior_draws(fit, prior, seed)
        by_draw = {n: (("chain", "draw"), v.reshape(1, -1)) for n, v in before.items()}
        predictive = _prior_predictive(fit, before, rng)
        groups["prior"] = xr.Dataset(by_draw)
        groups["prior_predictive"] = drawn(predictive, (1, prior))
    tree = xr.DataTree.from_dict({name: with_units(group, fit) for name, group in groups.items()})
    tree.attrs = {"law": fit.law.name, "table": fit.table.name}
    if improper:
        tree.attrs["prior"] = f"not drawn: improper for {', '.join(improper)}"
    return tree


def _prior_predictive(fit: FittedLaw, q: dict[str, Floats], rng: np.random.Generator) -> Floats:
    """Log losses of the training rows under draws of the prior, shape (draws, rows)."""
    frame, law = fit.table.frame, fit.law
    x = law.covariates(frame)
    law = law.over(x, fit.at)
    counts = {name: len(each.positions) for name, each in law.knots(x, fit.at).items()}
    steps = {n: rng.standard_normal((len(q["E"]), 1, count)) for n, count in counts.items()}
    log_loss = np.log(law.loss(law.amounts(q | steps, fit.at), x, fit.at))
    for level in fit.spec.effects:
        groups, index = np.unique(effects.labels(frame, level), return_inverse=True)
        z = rng.standard_normal((len(log_loss), len(groups)))
        log_loss = log_loss + (q[f"tau_{level}"] * z)[:, index]
    sigma = np.broadcast_to(q["sigma"], log_loss.shape)
    if fit.spec.errors == "run":
        rows = noise.order(frame)
        return np.asarray(log_loss + noise.draw_paths(fit.spec.likelihood, rng, sigma, q, rows))
    return np.asarray(log_loss + fit.spec.likelihood.sample(rng, log_loss.shape, sigma, q))


def with_units(group: xr.Dataset, fit: FittedLaw) -> xr.Dataset:
    """The variables of a fit with their unit in ``attrs["units"]``."""
    slopes = {term.slope for term in fit.law.terms}
    units = (
        UNITS | dict.fromkeys(slopes, "nats per token and e-fold") | {OBSERVED: f"log of {NATS}"}
    )
    units |= dict.fromkeys(("L_ref", "E"), NATS) | dict.fromkeys(fit.law.exponents, "dimensionless")
    units |= dict.fromkeys(fit.spec.likelihood.parameters, "dimensionless")
    units |= dict.fromkeys(fit.law.coefficients, f"{NATS}, at covariates of 1")
    group = group.copy()
    for name, values in group.data_vars.items():
        if str(name) in units:
            values.attrs["units"] = units[str(name)]
        elif str(name) == "sigma" or str(name).startswith("tau_") or "_effect" in str(name):
            values.attrs["units"] = "log loss, about a relative error"
    return group


def prior_draws(fit: FittedLaw, draws: int = 4000, seed: int = 0) -> dict[str, Floats]:
    """Prior draws of every sampled coordinate and of ``E``, each of shape (draws, 1)."""
    import pymc as pm

    # In an order that is that of a loaded fit, too: each prior has its own stream of numbers.
    priors = dict(sorted(fit.spec.priors.items()))
    if improper := [name for name, p in priors.items() if not p.proper]:
        raise FitError(
            f"{fit.law.name} on {fit.table.name}: the priors of {', '.join(improper)} are flat and "
            "improper, so nothing can be drawn from them; fit with proper priors."
        )
    shapes = [getattr(pm, p.name).dist(**p.kwargs, size=(draws, 1)) for p in priors.values()]
    drawn = pm.draw(shapes, random_seed=seed, mode="FAST_COMPILE")
    variables = {prior: variable for variable, prior in fit.spec.likelihood.parameters.items()}
    q = {variables.get(n, n): np.asarray(v, float) for n, v in zip(priors, drawn, strict=True)}
    sizes = -fit.law.amounts({**q, "L_ref": 0.0}, fit.at)["E"]
    q["L_ref"] = sizes / (1 - q[FLOOR]) if FLOOR in q else q["E"] + sizes
    q["E"] = q["L_ref"] - sizes
    return {name: q[name] for name in [*fit.values(), "E"]}
