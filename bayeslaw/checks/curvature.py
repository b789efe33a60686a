"""Part of a check: whether the curvature of the discrepancy is consistent with its prior."""

import numpy as np
import pandas as pd
from scipy import stats

from bayeslaw.checks import extrapolation, identifiability
from bayeslaw.checks.part import NAMES, NEAR, RARE, Part, Target, listed
from bayeslaw.evaluate.densities import prior_draws
from bayeslaw.inference.posterior import Posterior


def curvature_part(fit: Posterior, to: Target | None) -> Part | None:
    """Whether the data imply more curvature than the prior of the discrepancy expects.

    The distance of the posterior median from the prior median, in prior standard deviations, of
    each parameter of the discrepancy. The threshold is exceeded by one fit in a hundred if the law
    and the prior are right. A forecast that extrapolates such a curvature is refused.

    Returns
    -------
    Part or None
        None if the law has no discrepancy.
    """
    if not fit.law.discrepancy_parameters:
        return None
    prior, drawn = prior_draws(fit), fit.values()
    off = {
        name: float(np.median(drawn[name]) - np.median(prior[name]))
        / identifiability.spread(prior[name])
        for name in fit.law.discrepancy_parameters
    }
    frame = pd.DataFrame({"off": off}).rename_axis("name")
    far = frame["off"].abs().sort_values(ascending=False)
    strained = far[far > stats.norm.isf(RARE / (2 * len(far)))]
    if strained.empty:
        words = (
            "The curvature of the discrepancy is consistent with its prior (posterior medians at "
            f"most {far.iloc[0]:.1f} prior sds from the prior median: {far.index[0]})."
        )
        return Part("curvature", "ok", (words,), frame)
    each = [f"{name} by {value:.1f}" for name, value in strained.items()]
    words = (
        "The data imply more curvature than the prior of the discrepancy expects, in prior sds: "
        f"{listed(each)}."
    )
    beyond: list[str] = []
    if to is not None:
        away = extrapolation.distances(fit, to.frame).max()
        along = fit.law.covariates_of
        followed = {c for name in strained.index for c in along[str(name)]}
        beyond = [NAMES[str(c)] for c in away.index[away >= NEAR] if c in followed]
    if beyond:
        text = (
            f"A forecast beyond the {listed(beyond)} of the training rows extrapolates this "
            "curvature: choose another law."
        )
        return Part("curvature", "refuse", (words, text), frame)
    return Part("curvature", "caution", (words,), frame)
