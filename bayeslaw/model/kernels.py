"""Log loss over rows and its Student-t density, each as one PyTensor Op with its gradient.

A law's loss is a floor plus a sum of exponentials, and each exponent is a weighted sum of columns
that are known before the sampler starts. PyTensor compiles such a sum into dozens of passes over
the rows; these Ops take a few, as loops that Numba compiles. The readable formula of the same loss
is `bayeslaw.laws.law.Law.loss`.
"""

import math
from collections.abc import Sequence

import numpy as np
import pytensor.tensor as pt
from numba import njit
from pytensor.graph.basic import Apply

from bayeslaw.common.arrays import Tensor
from bayeslaw.model import elementary
from bayeslaw.model.elementary import Loops


@njit(error_model="numpy")
def log_loss(floor, sizes, weights, offsets, effects, kappa, columns, starts, groups, coupled):
    """Outputs of `LogLoss`."""
    terms, rows, joined = sizes.size, columns.shape[1], coupled[()]
    ratios, loss = np.empty((terms, rows)), np.empty(rows)
    mu, inverse = np.empty(rows), np.empty(rows)
    by_kappa = np.empty(rows if joined else 0)
    for i in range(rows):
        loss[i] = 0.0 if joined else floor[()]
    for k in range(terms):
        u, size = ratios[k], sizes[k]
        _add_columns(u, k, weights, offsets, columns, starts)
        for i in range(rows):
            u[i] = elementary.exp(u[i])
        for i in range(rows):
            loss[i] += size * u[i]
        if k == joined - 1:
            _couple(ratios, loss, by_kappa, inverse, kappa[()], floor[()], joined)
    for i in range(rows):
        inverse[i] = elementary.log(loss[i])
    _add_columns(mu, terms, weights, offsets, columns, starts)
    for i in range(rows):
        mu[i] += inverse[i]
    for i in range(rows):
        inverse[i] = 1.0 / loss[i]
    for k in range(terms):
        u = ratios[k]
        for i in range(rows):
            u[i] *= inverse[i]
    for level in range(groups.shape[0]):
        group = groups[level]
        for i in range(rows):
            mu[i] += effects[group[i]]
    for i in range(by_kappa.size):
        by_kappa[i] *= inverse[i]
    return mu, ratios, inverse, by_kappa


@njit(error_model="numpy")
def _couple(ratios, loss, by_kappa, room, kappa, floor, joined):
    """Raise the sum in `loss` to the power kappa and add the floor."""
    for i in range(loss.size):
        room[i] = elementary.log(loss[i])
    for i in range(loss.size):
        by_kappa[i] = elementary.exp(kappa * room[i])
    for k in range(joined):
        u = ratios[k]
        for i in range(loss.size):
            u[i] *= kappa * by_kappa[i] / loss[i]
    for i in range(loss.size):
        loss[i] = floor + by_kappa[i]
        by_kappa[i] *= room[i]


@njit(error_model="numpy")
def _add_columns(u, k, weights, offsets, columns, starts):
    if offsets.shape[0]:
        for i in range(u.size):
            u[i] = offsets[k, i]
    else:
        for i in range(u.size):
            u[i] = 0.0
    for j in range(starts[k], starts[k + 1]):
        weight, column = weights[j], columns[j]
        for i in range(u.size):
            u[i] += weight * column[i]


@njit(error_model="numpy")
def log_loss_gradient(
    by, sizes, offsets, effects, columns, starts, groups, ratios, inverse, by_kappa
):
    """Outputs of `LogLossGradient`."""
    terms, rows = ratios.shape
    by_sizes, by_weights = np.empty(terms), np.empty(columns.shape[0])
    by_offsets, by_effects = np.empty(offsets.shape), np.empty(effects.size)
    row = np.empty(rows)
    for k in range(terms + 1):
        if k < terms:
            ratio, size = ratios[k], sizes[k]
            by_sizes[k] = elementary.dot(ratio, by, rows)
            for i in range(rows):
                row[i] = size * ratio[i] * by[i]
        else:
            for i in range(rows):
                row[i] = by[i]
        for j in range(starts[k], starts[k + 1]):
            by_weights[j] = elementary.dot(columns[j], row, rows)
        if offsets.shape[0]:
            for i in range(rows):
                by_offsets[k, i] = row[i]
    for j in range(effects.size):
        by_effects[j] = 0.0
    # Adjacent rows are often of one group, so their sum is kept in a register.
    for level in range(groups.shape[0]):
        group, last, total = groups[level], groups[level, 0], 0.0
        for i in range(rows):
            if group[i] != last:
                by_effects[last] += total
                last, total = group[i], 0.0
            total += by[i]
        by_effects[last] += total
    return (
        np.array(elementary.dot(by, inverse, rows)),
        by_sizes,
        by_weights,
        by_offsets,
        by_effects,
        np.array(elementary.dot(by, by_kappa, by_kappa.size)),
    )


@njit(error_model="numpy")
def student_t(residual, scale, dof):
    """Outputs of `StudentTLogDensity`."""
    rows, nu, sd = residual.size, dof[()], scale[()]
    square = nu * sd * sd
    by, ratio = np.empty(rows), np.empty(rows)
    for i in range(rows):
        by[i] = -(nu + 1.0) * residual[i] / (square + residual[i] * residual[i])
    share = -elementary.dot(by, residual, rows)
    for i in range(rows):
        ratio[i] = 1.0 + residual[i] * residual[i] / square
    # log a + log b + log c + log d = log(abcd), which overflows only if ratios exceed 1e77.
    quarter = rows // 4 if elementary.dot(residual, residual, rows) < 1e76 * square else 0
    for i in range(quarter):
        ratio[i] *= ratio[i + quarter] * (ratio[i + 2 * quarter] * ratio[i + 3 * quarter])
        ratio[i] = elementary.log(ratio[i])
    log = 0.0
    for i in range(quarter):
        log += ratio[i]
    for i in range(4 * quarter, rows):
        log += elementary.log(ratio[i])
    half = 0.5 * nu
    one = math.lgamma(half + 0.5) - math.lgamma(half) - 0.5 * math.log(nu * math.pi) - math.log(sd)
    by_one = 0.5 * (elementary.digamma(half + 0.5) - elementary.digamma(half) - 1.0 / nu)
    return (
        np.array(rows * one - (half + 0.5) * log),
        by,
        np.array((share - rows) / sd),
        np.array(rows * by_one - 0.5 * log + 0.5 * share / nu),
    )


REAL = (pt.dscalar, pt.dvector, pt.dvector, pt.dmatrix, pt.dvector, pt.dscalar)
"""Types of the inputs of `LogLoss` that are not data: `floor` to `kappa`."""


class LogLoss(Loops):
    """Log of a floor plus a sum of exponentials, plus a linear addition and random effects.

    Row i has ``log(floor + sum_k sizes[k] exp(u[k, i])) + u[K, i] + sum_l effects[groups[l, i]]``,
    where ``u[k] = weights[a:b] @ columns[a:b] + offsets[k]`` with ``a, b = starts[k:k+2]``. The sum
    of the first `coupled` of the K terms is raised to the power kappa.

    Inputs
    ------
    floor : scalar
    sizes : (terms,)
    weights : (columns,)
    offsets : (terms + 1, rows) or (0, 0)
        Part of the exponents that is no weighted sum of columns; (0, 0) if there is none.
    effects : (groups,)
    kappa : scalar
    columns : (columns, rows)
    starts : (terms + 2,)
        First column of each term and of the linear addition, and the number of columns.
    groups : (levels, rows)
        Place in `effects` of each row's groups.
    coupled : scalar
        Number of terms, from the first, whose sum is raised to a power.

    Outputs
    -------
    mu : (rows,)
        Log loss.
    ratios : (terms, rows)
        Derivatives of the log loss by the sizes.
    inverse : (rows,)
        Derivative by the floor.
    by_kappa : (rows,) or (0,)
        Derivative by kappa; empty if no terms are coupled.
    """

    itypes = (*REAL, pt.dmatrix, pt.lvector, pt.lmatrix, pt.lscalar)
    otypes = (pt.dvector, pt.dmatrix, pt.dvector, pt.dvector)
    loops = log_loss

    def infer_shape(self, node: Apply, shapes: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        """Shapes of the outputs."""
        terms, rows = shapes[1][0], shapes[6][1]
        last = pt.switch(pt.gt(node.inputs[-1], 0), rows, 0)
        return [(rows,), (terms, rows), (rows,), (last,)]

    def pullback(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], cotangents: Sequence[Tensor]
    ) -> list[Tensor]:
        """Derivatives by the first six inputs; the rest are data."""
        _, sizes, _, offsets, effects, _, *data = inputs
        rows = *data[:-1], *outputs[1:]
        derivatives = LogLossGradient()(cotangents[0], sizes, offsets, effects, *rows)
        return [*derivatives, *(value.zeros_like(dtype=float) for value in data)]


class LogLossGradient(Loops):
    """Derivatives of a weighted sum of `LogLoss` by its inputs that are not data.

    Inputs are the weights of the sum, shape (rows,), then inputs and outputs of `LogLoss`.
    """

    itypes = (
        *(pt.dvector, pt.dvector, pt.dmatrix, pt.dvector),  # weights, sizes, offsets, effects
        *(pt.dmatrix, pt.lvector, pt.lmatrix),  # columns, starts, groups
        *(pt.dmatrix, pt.dvector, pt.dvector),  # ratios, inverse, by_kappa
    )
    otypes = REAL
    loops = log_loss_gradient


class StudentTLogDensity(Loops):
    """Log density of Student-t residuals, summed over rows, and its derivatives.

    Inputs are residuals of shape (rows,), and scalars: the scale and the degrees of freedom. The
    outputs after the sum are its derivatives by them, in that order.
    """

    itypes = (pt.dvector, pt.dscalar, pt.dscalar)
    otypes = (pt.dscalar, pt.dvector, pt.dscalar, pt.dscalar)
    loops = student_t

    def pullback(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], cotangents: Sequence[Tensor]
    ) -> list[Tensor]:
        """Derivatives by residuals, scale and degrees of freedom."""
        return [cotangents[0] * by for by in outputs[1:]]
