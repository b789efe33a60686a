"""Part of a check: power-scaling sensitivity of forecasts to the prior and to the likelihood."""

from collections.abc import Mapping

import pandas as pd

from bayeslaw.checks.part import Part, Target, listed
from bayeslaw.common.arrays import Floats
from bayeslaw.evaluate.densities import log_likelihood, log_prior
from bayeslaw.inference.posterior import Posterior

SENSITIVE = 0.05
"""Threshold of the sensitivity, from its authors: the mean moves by about .3 sd."""


def sensitivity_part(fit: Posterior, to: Target) -> Part:
    """Power-scaling sensitivity of the forecast of each group of rows."""
    columns = dict(zip(to.groups, to.log_loss.T, strict=True))
    frame = power_scaling(fit, columns)
    driven = frame[(frame["prior"] >= SENSITIVE) & (frame["likelihood"] < SENSITIVE)]
    both = frame[(frame["prior"] >= SENSITIVE) & (frame["likelihood"] >= SENSITIVE)]
    words = []
    for part, text in (
        (driven, "to the priors and hardly to the data"),
        (both, "to the priors as well as to the data"),
    ):
        if len(part):
            words.append(
                f"The forecast at {listed([str(name) for name in part.index])} is sensitive {text} "
                f"(sensitivity to the prior up to {part['prior'].max():.2f}, to the likelihood up "
                f"to {part['likelihood'].max():.2f}; threshold {SENSITIVE:g})."
            )
    if not words:
        words = [f"No forecast is sensitive to the priors (at most {frame['prior'].max():.2f})."]
    level = "caution" if len(driven) + len(both) else "ok"
    return Part("sensitivity", level, tuple(words), frame)


def power_scaling(fit: Posterior, log_loss: Mapping[str, Floats]) -> pd.DataFrame:
    """Power-scaling sensitivity of forecasts to the prior and to the likelihood.

    Parameters
    ----------
    fit : Posterior
    log_loss : mapping of label to array of shape (draws,)
        Draws of the forecasts, chain by chain.

    Returns
    -------
    DataFrame
        Columns `prior` and `likelihood`: distance between the distribution of the forecast and its
        distribution with that component raised to a power near 1, per unit of log2 of the power. A
        mean that moves by .3 sd gives about .05.

    References
    ----------
    .. [1] Kallioinen, Paananen, Bürkner and Vehtari, Detecting and diagnosing prior and likelihood
       sensitivity with power-scaling. Statistics and Computing 34, 57 (2024).
    """
    import arviz as az

    sizes = fit.draws.sizes["chain"], fit.draws.sizes["draw"]
    tree = az.from_dict(
        {
            "posterior": {name: values.reshape(sizes) for name, values in log_loss.items()},
            "log_prior": {"prior": log_prior(fit).values},
            "log_likelihood": {"log_loss": log_likelihood(fit).reshape(*sizes, -1)},
        }
    )
    parts = {part: az.psense(tree, group=part) for part in ("prior", "likelihood")}
    return pd.DataFrame(
        {part: {name: float(found[name]) for name in log_loss} for part, found in parts.items()}
    ).rename_axis("forecast")
