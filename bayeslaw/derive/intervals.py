"""Quantiles and intervals of draws that may be infinite or undefined."""

import numpy as np

from bayeslaw.common.arrays import Floats
from bayeslaw.common.formatting import digits
from bayeslaw.inference.bands import ends

DETERMINED = 10.0
"""Factor between the ends of a 90 % interval from which the number is not determined."""


def quantile(values: Floats, q: float) -> float:
    """Quantile of the defined values; between a finite and an infinite one it is infinite."""
    defined = values[~np.isnan(values)]
    if not len(defined):
        return np.nan
    with np.errstate(invalid="ignore"):
        between = float(np.quantile(defined, q))
    if np.isnan(between):
        # Interpolation beside an infinite value gives NaN, also where its weight is 0.
        return float(np.quantile(defined, q, method="higher"))
    return between


def interval(values: Floats, level: float) -> tuple[float, float]:
    """The ends of the central interval of a probability."""
    low, high = ends(level)
    lower = quantile(values, low)
    upper = quantile(values, high)
    return lower, upper


def determined(low: float, high: float) -> bool:
    """Whether a number with these ends of its 90 % interval counts as determined."""
    if low == high:
        return True
    near, far = sorted((abs(low), abs(high)))
    same_sign = low * high > 0
    return same_sign and far < DETERMINED * near


def is_determined(values: Floats) -> bool:
    """Whether a number with these draws counts as determined."""
    low, high = interval(values, 0.9)
    return determined(low, high)


def number(value: float) -> str:
    """A number as text, with four digits."""
    if 1e-3 < value < 1e4:
        return digits(value, 4)
    return f"{value:.4g}"
