"""Residuals of log loss: their density, covariance and predictive draws, with random effects.

With at least `SIZE.fewest` model sizes in the training table the posterior has a random effect of
each size, and a new size draws one. With fewer sizes the effects are not identified: the law can
absorb them. Ignoring them would make forecasts for new sizes overconfident, so each training size
draws an effect from the prior here, and the forecast is shifted by the posterior's response to it.
This is part of ``effects="auto"``; a fit with ``"none"`` or named levels has only those named.
"""

import numpy as np
import pandas as pd
from scipy import stats
from scipy.special import logsumexp

from bayeslaw.common.arrays import Floats, Ints, Strings
from bayeslaw.inference.posterior import Posterior
from bayeslaw.model import errors
from bayeslaw.model import random_effects as effects
from bayeslaw.tables.table import LossTable, frame_of

NODES = 15
"""Number of nodes of the Gauss-Hermite quadrature over the random effect of a run."""
STEP = 1e-6
"""Step in log loss of the central difference that gives the derivative of the log likelihood."""


def residual(fit: Posterior, table: LossTable, levels: tuple[str, ...] = ()) -> Floats:
    """Measured log loss minus latent log loss and the random effects of `levels`, (draws, rows)."""
    given = effects.draw(fit.draws, levels, table.frame, None)
    return np.asarray(np.log(table.loss) - np.log(fit.latent(table)) - given)


def log_likelihood(fit: Posterior) -> Floats:
    """Log likelihood of each training log loss given the random effects, shape (draws, rows)."""
    return density(fit, fit.table.frame, residual(fit, fit.table, fit.spec.effects))


def run_likelihood(fit: Posterior) -> tuple[Floats, Strings]:
    """Log density of the losses of each training run, its random effect integrated out.

    Shape (draws, runs), with the labels of the runs. The integral, given each posterior draw of the
    other parameters, is a Gauss-Hermite rule, centred at the posterior mean that the random effect
    has under normal noise. Without a random effect of run it is the sum over the rows.
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
        moved, scale = innovations(fit, frame[rows], np.ones((1, rows.sum())), sigma[:, rows])
        own = innovations(fit, frame[rows], given[:, rows], sigma[:, rows])[0]
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


def averaging(index: Ints) -> Floats:
    """Matrix of the means over the rows of each group 0, 1, ..., shape (groups, rows)."""
    weights = (index == np.arange(index.max() + 1)[:, None]).astype(float)
    return np.asarray(weights / weights.sum(1, keepdims=True))


def density(fit: Posterior, frame: pd.DataFrame, residual: Floats) -> Floats:
    """Log density of residuals of log loss under the noise of the fit, shape (draws, rows).

    Where errors are correlated within a run, that of each row given the earlier ones of its run.
    """
    own, scale = innovations(fit, frame, residual, fit.scale(frame))
    return fit.spec.likelihood.log_density(own, scale, fit.values())


def innovations(
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


def too_few_sizes(fit: Posterior) -> bool:
    """Whether sizes should have random effects, but are too few to fit them."""
    spec = fit.spec
    if not (spec.new_sizes and spec.discrepancy.size_effects) or "size" in spec.effects:
        return False
    return "params" in spec.law.columns and (
        fit.table.frame["params"].nunique() < effects.SIZE.fewest
    )


def group_effects(fit: Posterior, frame: pd.DataFrame, rng: np.random.Generator) -> Floats:
    """Sum of the random effects on log loss that the latent loss does not include, (draws, rows).

    These are the effects of bases and runs, and of sizes without training rows. New groups draw
    theirs.
    """
    others = tuple(level for level in fit.spec.effects if level != "size")
    new = new_size_effects(fit, frame, rng)
    return new + effects.draw(fit.draws, others, frame, rng)


def new_size_effects(fit: Posterior, frame: pd.DataFrame, rng: np.random.Generator) -> Floats:
    """Random effects on log loss of sizes without training rows, shape (draws, rows).

    One effect per draw and new size; zero for rows of the training sizes. Those of the training
    sizes are drawn first, so generators in the same state draw the same ones for every `frame`.
    """
    if "size" in fit.spec.effects:
        return effects.draw(fit.draws, ("size",), frame, rng)
    count = len(fit.values()["sigma"])
    fitted = np.unique(effects.labels(fit.table.frame, "size"))
    groups, index = np.unique(effects.labels(frame, "size"), return_inverse=True)
    new = ~np.isin(groups, fitted)
    if not (too_few_sizes(fit) and new.any()):
        return np.zeros((count, len(frame)))
    import pymc as pm

    prior = fit.spec.priors["tau_size"].dist(size=(count, 1))
    tau = pm.draw(prior, random_seed=int(rng.integers(2**31)), mode="FAST_COMPILE")
    moved = tau * rng.standard_normal((count, len(fitted))) @ response(fit, frame).T
    own = tau * rng.standard_normal((count, len(groups)))
    return np.where(new[index], own[:, index] - moved, 0.0)


def response(fit: Posterior, frame: pd.DataFrame) -> Floats:
    """Derivative of forecasts by the training losses of each size.

    If the training losses of a size are multiplied by a factor near 1, the posterior mean of the
    log loss of a row changes, per unit of the log factor, by the posterior covariance
    ``Cov(log loss, d log likelihood / d log factor)``. This holds for every likelihood.

    Shape (rows, sizes): for a row of a training size about 1 at that size and about 0 at others.
    """
    rows = fit.table.frame
    sizes, index = np.unique(rows["params"], return_inverse=True)
    residuals = residual(fit, fit.table, fit.spec.effects)
    up, down = (density(fit, rows, residuals + sign * STEP) for sign in (1, -1))
    score = (up - down) / (2 * STEP) @ (index[:, None] == np.arange(len(sizes)))
    log_loss = np.log(fit.latent(frame))
    moves = (log_loss - log_loss.mean(0)).T @ (score - score.mean(0)) / len(score)
    return np.asarray(moves)


def residual_draws(
    fit: Posterior, table: LossTable | pd.DataFrame, rng: np.random.Generator
) -> Floats:
    """Posterior predictive draws of measured log loss minus latent log loss, shape (draws, rows).

    The sum of noise and random effects. Groups in the training table have their posterior effects,
    and new groups draw theirs from their distribution. The effect of a training size is not
    included, since it is part of `Posterior.latent`.
    """
    frame = frame_of(table)
    return error_draws(fit, frame, rng) + group_effects(fit, frame, rng)
