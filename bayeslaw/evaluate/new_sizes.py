"""Random effects of model size, for sizes without training rows.

With at least `SIZE.fewest` sizes in the training table the posterior has a random effect of each
size, and a new size draws one. With fewer sizes the effects are not identified: the law can absorb
them. Ignoring them would make forecasts for new sizes overconfident, so each training size draws an
effect from the prior here, and the forecast is shifted by the posterior's response to it. This is
part of ``effects="auto"``; a fit with ``"none"`` or named levels has only the effects named.
"""

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats
from bayeslaw.evaluate.densities import density, error_draws, residual
from bayeslaw.inference.posterior import Posterior
from bayeslaw.model import random_effects as effects
from bayeslaw.tables.table import LossTable

STEP = 1e-6
"""Step in log loss of the central difference that gives the derivative of the log likelihood."""


def too_few_sizes(fit: Posterior) -> bool:
    """Whether sizes should have random effects, but are too few to fit them."""
    spec = fit.spec
    if not (spec.new_sizes and spec.discrepancy.size_effects) or "size" in spec.effects:
        return False
    return "params" in spec.law.columns and (
        fit.table.frame["params"].nunique() < effects.SIZE.fewest
    )


def group_effects(
    fit: Posterior, frame: pd.DataFrame, rng: np.random.Generator, *, sizes: bool = True
) -> Floats:
    """Sum of the random effects on log loss that the latent loss does not include.

    These are the effects of bases and runs, and of sizes without training rows.

    Parameters
    ----------
    fit : Posterior
    frame : DataFrame
    rng : Generator
        Source of the effects of new groups.
    sizes : bool
        Whether to include the effects of new sizes.

    Returns
    -------
    array, shape (draws, rows)
    """
    others = tuple(level for level in fit.spec.effects if level != "size")
    new = new_size_effects(fit, frame, rng) if sizes else 0.0
    return new + effects.draw(fit.draws, others, frame, rng)


def new_size_effects(fit: Posterior, frame: pd.DataFrame, rng: np.random.Generator) -> Floats:
    """Random effects on log loss of sizes without training rows.

    Parameters
    ----------
    fit : Posterior
    frame : DataFrame
    rng : Generator
        The effects of the training sizes are drawn first, so generators in the same state draw the
        same ones for every `frame`.

    Returns
    -------
    array, shape (draws, rows)
        One effect per draw and new size; zero for rows of the training sizes.
    """
    if "size" in fit.spec.effects:
        return effects.draw(fit.draws, ("size",), frame, rng)
    return _unidentified_effects(fit, frame, rng)


def _unidentified_effects(fit: Posterior, frame: pd.DataFrame, rng: np.random.Generator) -> Floats:
    """Random effects of new sizes where there are too few training sizes, (draws, rows)."""
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

    Parameters
    ----------
    fit : Posterior
    frame : DataFrame

    Returns
    -------
    array, shape (rows, sizes)
        For a row of a training size about 1 at that size and about 0 at the others.
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
    fit: Posterior,
    table: LossTable | pd.DataFrame,
    rng: np.random.Generator,
    *,
    sizes: bool = True,
) -> Floats:
    """Posterior predictive draws of measured log loss minus latent log loss.

    The sum of noise and random effects. Groups in the training table have their posterior effects,
    and new groups draw theirs from their distribution. The effect of a training size is not
    included, since it is part of `Posterior.latent`.

    Parameters
    ----------
    fit : Posterior
    table : LossTable or DataFrame
    rng : Generator
    sizes : bool
        Whether to include the random effects of new sizes.

    Returns
    -------
    array, shape (draws, rows)
    """
    frame = table.frame if isinstance(table, LossTable) else table
    drawn = error_draws(fit, frame, rng)
    return drawn + group_effects(fit, frame, rng, sizes=sizes)
