"""What models of a size share, for sizes that were not fitted.

From `effects.FEWEST` sizes a posterior has their effects, and a new size draws one. Fewer cannot be
told from the law, which goes through all of them; they are there all the same, and a law that
follows them leads astray beyond them. So each fitted size draws an effect here, of the prior's
scale, and the forecast moves as the fit would have, had the losses of that size been less by it.
"""

import numpy as np
import numpy.typing as npt
import pandas as pd

from bayeslaw.evaluate.densities import density, residual
from bayeslaw.inference.posterior import Posterior
from bayeslaw.model import random_effects as effects
from bayeslaw.tables.table import LossTable

type Floats = npt.NDArray[np.float64]

STEP = 1e-6
"""Of the difference that gives a row's score, in log loss."""


def few(fit: Posterior) -> bool:
    """Whether a discrepancy's effects of sizes are too few to be fitted."""
    spec = fit.spec
    if not spec.discrepancy.size_effects or {"size"} & {*spec.effects}:
        return False
    if "params" not in spec.law.columns:
        return False
    return fit.table.frame["params"].nunique() < effects.SIZE.fewest


def shared(
    fit: Posterior, frame: pd.DataFrame, rng: np.random.Generator, *, sizes: bool = True
) -> Floats:
    """What rows share that is not in the latent loss, shape (draws, rows).

    Effects of new sizes, unless `sizes` is false, and of bases and runs, fitted or new.
    """
    others = tuple(level for level in fit.spec.effects if level != "size")
    new = unseen(fit, frame, rng) if sizes else 0.0
    return new + effects.draw(fit.draws, others, frame, rng)


def unseen(fit: Posterior, frame: pd.DataFrame, rng: np.random.Generator) -> Floats:
    """Effects on log loss of sizes that were not fitted, shape (draws, rows); zero for the others.

    One per draw and size. What fitted sizes carry into them is drawn first: generators in one state
    draw it alike, whichever sizes are asked for.
    """
    if "size" in fit.spec.effects:
        return effects.draw(fit.draws, ("size",), frame, rng)
    return carried(fit, frame, rng)


def carried(fit: Posterior, frame: pd.DataFrame, rng: np.random.Generator) -> Floats:
    """Effects of new sizes where too few were fitted; shape (draws, rows), zero elsewhere."""
    count = len(fit.values()["sigma"])
    fitted = np.unique(effects.labels(fit.table.frame, "size"))
    groups, index = np.unique(effects.labels(frame, "size"), return_inverse=True)
    new = ~np.isin(groups, fitted)
    if not (few(fit) and new.any()):
        return np.zeros((count, len(frame)))
    import pymc as pm

    prior = fit.spec.priors["tau_size"].dist(size=(count, 1))
    tau = pm.draw(prior, random_seed=int(rng.integers(2**31)), mode="FAST_COMPILE")
    moved = tau * rng.standard_normal((count, len(fitted))) @ response(fit, frame).T
    own = tau * rng.standard_normal((count, len(groups)))
    return np.where(new[index], own[:, index] - moved, 0.0)


def response(fit: Posterior, frame: pd.DataFrame) -> Floats:
    """By how much log losses rise with those of each fitted size, shape (rows, sizes).

    Had the training losses of a size been larger by a small factor, the posterior mean of a row's
    log loss would be larger by ``Cov(log loss, d log likelihood / d log factor)`` over the
    posterior, whatever the likelihood. For a row of a fitted size that is near 1 for its own, 0 for
    the others.
    """
    rows = fit.table.frame
    sizes, index = np.unique(rows["params"], return_inverse=True)
    missed = residual(fit, fit.table, fit.spec.effects)
    up, down = (density(fit, rows, missed + sign * STEP) for sign in (1, -1))
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
    """Draws of a measured log loss minus its latent log loss, shape (draws, rows).

    Noise, and the random effects of each row's groups: fitted groups have their posterior effects,
    new groups draw theirs from the prior. The effect of a new size is left out if `sizes` is false;
    that of a fitted size is part of `Posterior.latent`.
    """
    frame = table.frame if isinstance(table, LossTable) else table
    sigma = fit.scale(frame)
    drawn = fit.spec.likelihood.sample(rng, sigma.shape, sigma, fit.values())
    return drawn + shared(fit, frame, rng, sizes=sizes)
