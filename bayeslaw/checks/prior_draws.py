"""Draws of a fit's prior, and the spread of a coordinate, in which findings are measured."""

import numpy as np

from bayeslaw.common.arrays import Floats
from bayeslaw.inference.posterior import Posterior
from bayeslaw.model.prior import draw_parameters

PRIOR_DRAWS = 4000


def prior_of(fit: Posterior) -> dict[str, Floats]:
    """Draws of the prior of every parameter, each of shape (draws, 1)."""
    rng = np.random.default_rng(0)
    return draw_parameters(fit.spec, fit.at, PRIOR_DRAWS, rng)


def spread(values: Floats) -> float:
    """Half the width of the central 68 % interval: the sd of a normal, finite for heavy tails."""
    low, high = np.quantile(values, (0.16, 0.84))
    return float(high - low) / 2
