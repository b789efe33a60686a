"""Linear algebra of many points at once: matrices and vectors with the points on the first axis."""

import numpy as np

from bayeslaw.common.arrays import Bools, Floats


def times(matrices: Floats, vectors: Floats) -> Floats:
    """Products of matrices with vectors, (points, rows, columns) with (points, columns)."""
    products: Floats = matrices @ vectors[..., None]
    return products[..., 0]


def solved(matrices: Floats, vectors: Floats) -> Floats:
    """Solutions of linear equations, (points, size, size) and (points, size)."""
    solutions: Floats = np.linalg.solve(matrices, vectors[..., None])
    return solutions[..., 0]


def diagonals(matrices: Floats) -> Floats:
    """Diagonals of square matrices, (points, size)."""
    return np.diagonal(matrices, axis1=-2, axis2=-1)


def with_added(matrices: Floats, diagonal: Floats) -> Floats:
    """Square matrices with diagonals (points, size) added to them."""
    unit = np.eye(diagonal.shape[-1])
    return matrices + unit * diagonal[:, None, :]


def both(chosen: Bools) -> Bools:
    """Elements of square matrices whose row and column are both chosen, (points, size, size)."""
    rows = chosen[:, :, None]
    columns = chosen[:, None, :]
    return rows & columns
