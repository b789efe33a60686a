"""Where the uncertainty of a planned run comes from: shares of the variance of its log losses."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.inference.posterior import Posterior
from bayeslaw.model.random_effects import BASE
from bayeslaw.planning.deviations import Deviation, planned_row, planned_size_effects
from bayeslaw.planning.fits import Fit

PARTS = ("law", "parameters", "discrepancy", "size", "base", "run", "noise")
"""Sources of variance: which law of a pool is right, its parameters and discrepancy, the effects of
a new size, of the base and of the run (and of any other level), and measurement noise."""


def spread(
    fits: Mapping[str, Fit],
    deviations: Sequence[Deviation],
    params: float,
    ptpp: float,
    base: str | None,
    tokens: float,
    replay: float,
    seed: int,
    unique: float | None = None,
) -> pd.DataFrame:
    """Shares of the variance of the measured log loss of a planned run.

    The log loss is a sum of parts; the share of a part is its covariance with the sum over the
    variance of the sum. Shares sum to 1, and one is negative if its part is offset by the others.

    Parameters
    ----------
    fits : mapping of name to Posterior, Pool or PointFit
        Point fits are left out.
    deviations : sequence of Deviation
        Of each of `fits`.
    params, ptpp, base, tokens, replay
        The planned run.
    seed : int
        Of the plan.
    unique : float, optional
        Distinct tokens of the new data; without it, none repeat.

    Returns
    -------
    DataFrame
        One row per domain: `sd`, the standard deviation of log loss, and the shares of `PARTS`.
    """
    row = planned_row(params, ptpp, base).assign(tokens=tokens, replay=replay)
    row = row if unique is None else row.assign(unique_tokens=unique)
    found = {}
    for k, ((name, fit), own) in enumerate(zip(fits.items(), deviations, strict=True)):
        if isinstance(fit, PointFit):
            continue
        parts = {part: np.zeros(fit.count) for part in PARTS}
        for member, draws, at in fit.parts():
            for part, values in _latent_parts(member, row, [seed, k]).items():
                parts[part][at] = values[draws]
            centre = parts["parameters"][at].mean() + parts["discrepancy"][at].mean()
            parts["law"][at] = centre
            for part in ("parameters", "discrepancy"):
                parts[part][at] -= parts[part][at].mean()
        for part, values in own.parts.items():
            parts[part if part in PARTS else "run"] += values
        total = np.sum(list(parts.values()), axis=0)
        variance = total.var()
        shares = {part: np.cov(v, total, ddof=0)[0, 1] / variance for part, v in parts.items()}
        found[name] = {"sd": float(np.sqrt(variance))} | shares
    return pd.DataFrame.from_dict(found, orient="index")


def _latent_parts(fit: Posterior, row: pd.DataFrame, seed: Sequence[int]) -> dict[str, Floats]:
    """Parts of the latent log loss that vary, each of shape (draws,)."""
    q, plain = fit.values(), fit.law.plain
    p, x = plain.sizes(q, fit.at), fit.covariates(row)
    middle = {name: np.median(v, axis=0) if np.ndim(v) > 1 else v for name, v in x.items()}

    def log_loss(x: Mapping[str, Floats]) -> Floats:
        return np.log(np.broadcast_to(plain.loss(p, x, fit.at), (fit.count, 1)))[:, 0]

    law, fitted = log_loss(middle), log_loss(x)
    return {
        "parameters": law,
        BASE.name: fitted - law,
        "discrepancy": np.log(fit.latent(row))[:, 0] - fitted,
        "size": planned_size_effects(fit, row, seed)[:, 0],
    }
