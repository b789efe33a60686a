"""Posterior predictive check of the training rows by cell."""

import numpy as np
import pandas as pd

from bayeslaw.evaluate.densities import residual
from bayeslaw.evaluate.new_sizes import residual_draws
from bayeslaw.inference.posterior import Posterior

CELL = ("params", "ptpp", "replay")
"""Covariates that are equal within a cell; the tokens differ."""


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
