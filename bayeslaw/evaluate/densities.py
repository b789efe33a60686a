"""A posterior's log likelihood, log prior and prior draws, as its diagnostics need them."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr
from scipy import stats
from scipy.special import logsumexp

from bayeslaw.inference.posterior import Posterior
from bayeslaw.model import random_effects as effects
from bayeslaw.tables.table import LossTable

type Floats = npt.NDArray[np.float64]

NODES = 15
"""Of the quadrature over a run's effect."""


def log_likelihood(fit: Posterior, table: LossTable | None = None) -> Floats:
    """Log density of each measured log loss given each draw, shape (draws, rows).

    The effects of fitted bases and runs are given too, those of new ones are zero.

    Parameters
    ----------
    fit : Posterior
    table : LossTable, optional
        The training table if omitted.
    """
    table = table or fit.table
    return density(fit, table.frame, residual(fit, table, fit.spec.effects))


def run_likelihood(fit: Posterior) -> tuple[Floats, npt.NDArray[np.str_]]:
    """Log density of each training run's losses given each draw, its own effect integrated out.

    Returns
    -------
    array, shape (draws, runs), and the runs' labels
        Without a run effect the rows' densities are added. The integral is a Gauss-Hermite rule
        about where a normal noise would put the effect.
    """
    frame = fit.table.frame
    names, index = np.unique(effects.labels(frame, "run"), return_inverse=True)
    others = tuple(level for level in fit.spec.effects if level != "run")
    given = residual(fit, fit.table, others)
    if "run" not in fit.spec.effects:
        rows = density(fit, frame, given)
        return np.stack([rows[:, index == i].sum(1) for i in range(len(names))], 1), names
    tau, sigma = fit.values()["tau_run"], fit.scale(frame)
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    total = np.empty((len(tau), len(names)))
    for i in range(len(names)):
        rows = index == i
        precision = (1 / sigma[:, rows] ** 2).sum(1, keepdims=True) + 1 / tau**2
        centre = (given[:, rows] / sigma[:, rows] ** 2).sum(1, keepdims=True) / precision
        width = 1.5 / np.sqrt(precision)  # heavier tails than the normal's
        effect = centre + width * nodes
        terms = np.log(weights) + 0.5 * nodes**2 + np.log(width) + stats.norm.logpdf(effect / tau)
        terms -= np.log(tau)
        for k in range(NODES):
            terms[:, k] += density(fit, frame[rows], given[:, rows] - effect[:, [k]]).sum(1)
        total[:, i] = logsumexp(terms, 1)
    return total, names


def residual(fit: Posterior, table: LossTable, levels: tuple[str, ...] = ()) -> Floats:
    """Measured log loss minus the law's and the fitted effects of `levels`, (draws, rows)."""
    given = effects.draw(fit.draws, levels, table.frame, None)
    return np.asarray(np.log(table.loss) - np.log(fit.latent(table)) - given)


def covariance(fit: Posterior) -> Floats:
    """Covariance of the training rows' log losses about the law, shape (rows, rows).

    Noise, and the effects of bases and runs, at the posterior medians of their scales.
    """
    frame = fit.table.frame
    total = np.diag(np.median(fit.scale(frame), 0) ** 2)
    for level in fit.spec.effects:
        group = effects.labels(frame, level)
        total += float(fit.draws[f"tau_{level}"].median()) ** 2 * (group[:, None] == group)
    return total


def density(fit: Posterior, frame: pd.DataFrame, residual: Floats) -> Floats:
    """Log density of residuals of log loss under the fit's noise, shape (draws, rows)."""
    return fit.spec.likelihood.log_density(residual, fit.scale(frame), fit.values())


def log_prior(fit: Posterior) -> xr.DataArray:
    """Log prior density of each draw, dims (chain, draw).

    The prior of the floor is that of E: ``L_ref`` is E plus the terms' sizes, a shift. The effects
    of bases and runs are no part of it, their scales are.
    """
    import pymc as pm
    import pytensor.tensor as pt

    draws = {str(name): v for name, v in fit.draws.data_vars.items()} | {"E": fit.paper["E"]}
    total: Any = 0.0
    for name, value in draws.items():
        if prior := fit.spec.priors.get(fit.spec.likelihood.parameters.get(name, name)):
            total = total + pm.logp(prior.dist(), pt.as_tensor(value.values))
    return xr.DataArray(total.eval(mode="FAST_COMPILE"), draws["E"].coords, ("chain", "draw"))


def prior_draws(fit: Posterior, draws: int = 4000, seed: int = 0) -> dict[str, Floats]:
    """Draws of the prior of every sampled coordinate and of ``E``, each of shape (draws, 1)."""
    import pymc as pm

    priors = fit.spec.priors
    shapes = [getattr(pm, p.name).dist(**p.kwargs, size=(draws, 1)) for p in priors.values()]
    found = pm.draw(shapes, random_seed=seed, mode="FAST_COMPILE")
    named = {prior: own for own, prior in fit.spec.likelihood.parameters.items()}
    q = {named.get(n, n): np.asarray(v, float) for n, v in zip(priors, found, strict=True)}
    q["L_ref"] = q["E"] - fit.law.sizes({**q, "L_ref": 0.0}, fit.at)["E"]
    return {name: q[name] for name in [*fit.values(), "E"]}
