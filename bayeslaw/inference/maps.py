"""Linear maps of a sampler's coordinates, compiled by Numba.

The sampler moves in ``sampled``; the model's coordinates are ``shift + factor @ sampled``. A factor
of shape (n, n) is lower triangular, one of shape (n, 1) is a diagonal.
"""

import numpy as np
from numba import njit

from bayeslaw.common.arrays import Floats
from bayeslaw.model import elementary


@njit(error_model="numpy")
def forward(sampled: Floats, shift: Floats, factor: Floats) -> Floats:
    """The model's coordinates."""
    n = sampled.size
    point = np.empty(n)
    if factor.shape[1] == 1:
        for i in range(n):
            point[i] = shift[i] + factor[i, 0] * sampled[i]
        return point
    for i in range(n):
        point[i] = shift[i] + elementary.dot(factor[i], sampled, i + 1)
    return point


@njit(error_model="numpy")
def backward(by: Floats, factor: Floats, gradient: Floats) -> bool:
    """Write the gradient by `sampled`, from that by the model's coordinates, into `gradient`.

    Returns whether it is finite.
    """
    n, total = by.size, 0.0
    for i in range(n):
        gradient[i] = 0.0
    if factor.shape[1] == 1:
        for i in range(n):
            gradient[i] = factor[i, 0] * by[i]
    else:
        for i in range(n):
            row, weight = factor[i], by[i]
            for j in range(i + 1):
                gradient[j] += weight * row[j]
    for i in range(n):
        total += abs(gradient[i])
    return bool(np.isfinite(total))
