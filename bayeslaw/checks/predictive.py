"""Posterior predictive checks of the training rows: means by cell, noise scales by group."""

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.evaluate.densities import innovations, residual
from bayeslaw.evaluate.new_sizes import residual_draws
from bayeslaw.inference.posterior import Posterior
from bayeslaw.model import random_effects

CELL = ("params", "ptpp", "replay")
"""Covariates that are equal within a cell; the tokens differ."""
FEWEST = 4
"""Rows of a group from which its noise scale is looked at."""


def cells(fit: Posterior, seed: int = 0) -> pd.DataFrame:
    """Posterior predictive check of the mean log loss of every cell of one N, PTPP and r.

    Parameters
    ----------
    fit : Posterior
    seed : int
        Seed of the replicated noise.

    Returns
    -------
    DataFrame
        Per cell of the training table: `rows`; `miss`, mean measured minus predicted log loss; and
        `p`, the fraction of replicated cell means below the measured one. Replicates have new noise
        and the posterior random effects of their bases and runs.
    """
    frame, law = fit.table.frame, fit.law
    columns = [c for c in CELL if c in law.columns and frame[c].nunique() > 1] or ["params"]
    groups = frame.groupby(columns)
    index = groups.ngroup().to_numpy()
    average = (index == np.arange(groups.ngroups)[:, None]).astype(float)
    average /= average.sum(1, keepdims=True)
    measured = residual(fit, fit.table) @ average.T
    replicated = residual_draws(fit, frame, np.random.default_rng(seed)) @ average.T
    found = groups.size().rename("rows").reset_index()
    return found.assign(
        miss=np.median(measured, 0), p=(replicated < measured).mean(0).clip(0.5 / len(measured))
    )


def scales(fit: Posterior, seed: int = 0) -> pd.DataFrame:
    """Posterior predictive check of the noise scale, between the groups of each level.

    The statistic is the standard deviation, over the groups with at least four rows, of the log of
    the mean absolute residual, in units of the fitted scale and given fitted random effects.

    Parameters
    ----------
    fit : Posterior
    seed : int
        Seed of the replicated noise.

    Returns
    -------
    DataFrame
        Per level with two such groups or more: `groups`; `ratio`, of the largest to the smallest
        mean absolute residual; `largest`, the group of the largest; and `p`, the fraction of
        replicates with at least the measured statistic.
    """
    frame = fit.table.frame
    measured = np.abs(innovations(fit, frame, residual(fit, fit.table, fit.spec.effects)))
    rng, ones = np.random.default_rng(seed), np.ones(measured.shape)
    replicated = np.abs(fit.spec.likelihood.sample(rng, ones.shape, ones, fit.values()))
    found = {}
    for name in random_effects.registered():
        level = random_effects.level(name)
        if level.column not in frame:
            continue
        names, index, rows = np.unique(level.labels(frame), return_inverse=True, return_counts=True)
        kept = np.flatnonzero(rows >= FEWEST)
        if len(kept) < 2:
            continue
        own, other = (_log_means(values, index, kept) for values in (measured, replicated))
        middle = np.median(own, axis=0)
        found[name] = {
            "groups": len(kept),
            "ratio": float(np.exp(np.ptp(middle))),
            "largest": str(names[kept[middle.argmax()]]),
            "p": float((other.std(axis=1) >= own.std(axis=1)).mean().clip(0.5 / len(own))),
        }
    columns = ["groups", "ratio", "largest", "p"]
    return pd.DataFrame.from_dict(found, orient="index", columns=columns)


def _log_means(values: Floats, index: Ints, groups: Ints) -> Floats:
    """Log of the mean of each group, shape (draws, groups)."""
    return np.log(np.stack([values[:, index == g].mean(axis=1) for g in groups], axis=1))
