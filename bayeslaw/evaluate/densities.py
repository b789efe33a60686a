"""Log likelihood, log prior and prior draws of a fitted law, for its diagnostics."""

import numpy as np
import pandas as pd
import xarray as xr
from scipy import stats
from scipy.special import logsumexp

from bayeslaw.common.arrays import Floats, Strings, Tensor
from bayeslaw.common.errors import FitError
from bayeslaw.inference.posterior import Posterior
from bayeslaw.model import errors
from bayeslaw.model import random_effects as effects
from bayeslaw.tables.table import LossTable

NODES = 15
"""Number of nodes of the Gauss-Hermite quadrature over the random effect of a run."""


def log_likelihood(fit: Posterior, table: LossTable | None = None) -> Floats:
    """Log likelihood of each measured log loss given each posterior draw.

    Parameters
    ----------
    fit : Posterior
    table : LossTable, optional
        By default the training table.

    Returns
    -------
    array, shape (draws, rows)
        Conditional on the random effects of the bases and runs in the training table. The random
        effects of other bases and runs are zero.
    """
    table = table or fit.table
    return density(fit, table.frame, residual(fit, table, fit.spec.effects))


def run_likelihood(fit: Posterior) -> tuple[Floats, Strings]:
    """Log density of the losses of each training run, its random effect integrated out.

    Parameters
    ----------
    fit : Posterior

    Returns
    -------
    density : array, shape (draws, runs)
        Given each posterior draw of the other parameters. The integral is a Gauss-Hermite rule,
        centred at the posterior mean that the random effect has under normal noise. Without a
        random effect of run it is the sum of the log densities of the rows.
    labels : array, shape (runs,)
    """
    frame = fit.table.frame
    names, index = np.unique(effects.labels(frame, "run"), return_inverse=True)
    others = tuple(level for level in fit.spec.effects if level != "run")
    given = residual(fit, fit.table, others)
    if "run" not in fit.spec.effects:
        rows = density(fit, frame, given)
        return np.stack([rows[:, index == i].sum(1) for i in range(len(names))], 1), names
    q, sigma = fit.values(), fit.scale(frame)
    tau = q["tau_run"]
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    total = np.empty((len(tau), len(names)))
    for i in range(len(names)):
        rows = index == i
        moved, scale = _innovations(fit, frame[rows], np.ones((1, rows.sum())), sigma[:, rows])
        own = _innovations(fit, frame[rows], given[:, rows], sigma[:, rows])[0]
        precision = (moved**2 / scale**2).sum(1, keepdims=True) + 1 / tau**2
        centre = (moved * own / scale**2).sum(1, keepdims=True) / precision
        width = 1.5 / np.sqrt(precision)  # wider than under normal noise, for its heavier tails
        effect = centre + width * nodes
        terms = np.log(weights) + 0.5 * nodes**2 + np.log(width) + stats.norm.logpdf(effect / tau)
        terms -= np.log(tau)
        for k in range(NODES):
            innovation = own - moved * effect[:, [k]]
            terms[:, k] += fit.spec.likelihood.log_density(innovation, scale, q).sum(1)
        total[:, i] = logsumexp(terms, 1)
    return total, names


def residual(fit: Posterior, table: LossTable, levels: tuple[str, ...] = ()) -> Floats:
    """Measured log loss minus latent log loss and the random effects of `levels`, (draws, rows)."""
    given = effects.draw(fit.draws, levels, table.frame, None)
    return np.asarray(np.log(table.loss) - np.log(fit.latent(table)) - given)


def covariance(fit: Posterior) -> Floats:
    """Covariance of the measured log losses of the training rows, shape (rows, rows).

    It is that of the noise and of the random effects of the model, at the posterior medians of
    their scales.
    """
    frame = fit.table.frame
    sigma = np.median(fit.scale(frame), 0)
    total = np.diag(sigma**2)
    if fit.spec.errors == "run":
        run, ell = errors.runs(frame), float(fit.draws[errors.LENGTH].median())
        total = sigma[:, None] * sigma * errors.correlation(run, frame["tokens"].to_numpy(), ell)
    for level in fit.spec.effects:
        group = effects.labels(frame, level)
        affected = effects.level(level).affected(group)
        same = (group[:, None] == group) * affected
        total += float(fit.draws[f"tau_{level}"].median()) ** 2 * same
    return total


def density(fit: Posterior, frame: pd.DataFrame, residual: Floats) -> Floats:
    """Log density of residuals of log loss under the noise of the fit, shape (draws, rows).

    Where errors are correlated within a run, that of each row given the earlier ones of its run.
    """
    own, scale = _innovations(fit, frame, residual, fit.scale(frame))
    return fit.spec.likelihood.log_density(own, scale, fit.values())


def innovations(fit: Posterior, frame: pd.DataFrame, residual: Floats) -> Floats:
    """Residuals of log loss over their scale, shape (draws, rows); of a right model independent.

    Where errors are correlated within a run, each given the earlier ones of its run.
    """
    own, scale = _innovations(fit, frame, residual, fit.scale(frame))
    return own / scale


def _innovations(
    fit: Posterior, frame: pd.DataFrame, residual: Floats, sigma: Floats
) -> tuple[Floats, Floats]:
    """Residuals given the earlier ones of their run, and their scale; as they are if independent.

    Both are linear in the residuals and in `sigma`, shape (draws, rows).
    """
    if fit.spec.errors == "independent":
        return residual, sigma
    rows, ell = errors.order(frame), fit.values()[errors.LENGTH]
    return errors.innovations(residual, sigma, ell, rows, np)


def error_draws(fit: Posterior, frame: pd.DataFrame, rng: np.random.Generator) -> Floats:
    """Draws of the errors of log loss of new measurements, shape (draws, rows).

    Where errors are correlated within a run, rows of one run are draws of one path. Rows of a
    fitted run beyond its last tokens go on from its last residual.
    """
    sigma, q = fit.scale(frame), fit.values()
    if fit.spec.errors == "independent":
        return fit.spec.likelihood.sample(rng, sigma.shape, sigma, q)
    count = len(frame)
    train = fit.table.frame
    run, fitted = (errors.runs(rows) for rows in (frame, train))
    last = train["tokens"].groupby(fitted).max()
    own = last.reindex(run)
    beyond = (frame["tokens"].to_numpy() > own.to_numpy()) & ~np.char.startswith(
        run, effects.UNLABELLED
    )
    ends = np.flatnonzero(
        (train["tokens"].to_numpy() == last.reindex(fitted).to_numpy())
        & np.isin(fitted, run[beyond])
    )
    # Rows within the range of a fitted run are of another run of the same settings.
    path = np.where(beyond, run, np.char.add(run, " again"))
    every = pd.DataFrame(
        {
            "run": np.concatenate([path, fitted[ends]]),
            "tokens": np.concatenate([frame["tokens"], train["tokens"].to_numpy()[ends]]),
        }
    )
    rows = errors.order(every)
    sigma = np.hstack([sigma, np.ones((len(sigma), len(ends)))])
    given = residual(fit, fit.table, fit.spec.effects)[:, ends]
    known = np.arange(count, count + len(ends)), given
    return errors.draw_paths(fit.spec.likelihood, rng, sigma, q, rows, known)[:, :count]


def log_prior(fit: Posterior) -> xr.DataArray:
    """Log prior density of each draw, dims (chain, draw).

    The prior of the floor is stated for E. It is that of ``L_ref`` as well, which is E plus the
    sizes of the terms. The standard deviations of the random effects are included, the random
    effects themselves are not.
    """
    import pymc as pm
    import pytensor.tensor as pt

    draws = {str(name): v for name, v in fit.draws.data_vars.items()} | {"E": fit.paper["E"]}
    total: Tensor = 0.0
    for name, value in draws.items():
        if prior := fit.spec.priors.get(fit.spec.likelihood.parameters.get(name, name)):
            total = total + pm.logp(prior.dist(), pt.as_tensor(value.values))
    return xr.DataArray(total.eval(mode="FAST_COMPILE"), draws["E"].coords, ("chain", "draw"))


def improper_priors(fit: Posterior) -> tuple[str, ...]:
    """Names of the priors that integrate to infinity."""
    return tuple(name for name, prior in fit.spec.priors.items() if not prior.proper)


def prior_draws(fit: Posterior, draws: int = 4000, seed: int = 0) -> dict[str, Floats]:
    """Draws from the prior of every sampled coordinate and of ``E``.

    Parameters
    ----------
    fit : Posterior
    draws : int
        Number of draws.
    seed : int

    Returns
    -------
    mapping of name to array, shape (draws, 1)

    Raises
    ------
    FitError
        If a prior is improper.
    """
    import pymc as pm

    priors = fit.spec.priors
    if improper := improper_priors(fit):
        raise FitError(
            f"{fit.law.name} on {fit.table.name}: the priors of {', '.join(improper)} are flat and "
            "improper, so nothing can be drawn from them; fit with proper priors."
        )
    shapes = [getattr(pm, p.name).dist(**p.kwargs, size=(draws, 1)) for p in priors.values()]
    found = pm.draw(shapes, random_seed=seed, mode="FAST_COMPILE")
    named = {prior: own for own, prior in fit.spec.likelihood.parameters.items()}
    q = {named.get(n, n): np.asarray(v, float) for n, v in zip(priors, found, strict=True)}
    q["L_ref"] = q["E"] - fit.law.sizes({**q, "L_ref": 0.0}, fit.at)["E"]
    return {name: q[name] for name in [*fit.values(), "E"]}
