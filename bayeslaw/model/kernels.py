"""Log loss over rows and its Student-t density, each as one PyTensor Op with its gradient.

A law's loss is a floor plus a sum of exponentials, and each exponent is a weighted sum of columns
that are known before the sampler starts. PyTensor compiles such a sum into dozens of passes over
the rows; these Ops take a few, as loops that Numba compiles. The readable formula of the same loss
is `bayeslaw.laws.law.Law.loss`.
"""

import math
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytensor.tensor as pt
from numba import njit
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import (
    numba_njit,
    register_funcify_default_op_cache_key,
)

from bayeslaw.common.arrays import Floats, Tensor
from bayeslaw.model import elementary

type Outputs = list[list[Floats]]


class LogLoss(Op):  # type: ignore[misc]  # PyTensor ships no types
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

    __props__ = ()

    def make_node(self, *inputs: Tensor) -> Apply:
        """Node of the inputs above."""
        *real, starts, groups, coupled = map(pt.as_tensor, inputs)
        kinds = [pt.dscalar, pt.dvector, pt.dvector, pt.dmatrix, pt.dvector, pt.dscalar, pt.dmatrix]
        _check(real, kinds)
        outputs = [pt.dvector(), pt.dmatrix(), pt.dvector(), pt.dvector()]
        return Apply(self, [*real, starts, groups, coupled], outputs)

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Outputs) -> None:
        """The formula as loops."""
        for storage, value in zip(outputs, log_loss(*inputs), strict=True):
            storage[0] = value

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
        found = LogLossGradient()(cotangents[0], sizes, offsets, effects, *rows)
        return [*found, *(value.zeros_like(dtype=float) for value in data)]


class LogLossGradient(Op):  # type: ignore[misc]
    """Derivatives of a weighted sum of `LogLoss` by its inputs that are not data.

    Inputs are the weights of the sum, shape (rows,), then inputs and outputs of `LogLoss`.
    """

    __props__ = ()

    def make_node(self, *inputs: Tensor) -> Apply:
        """Node of the inputs above."""
        kinds = [pt.dscalar, pt.dvector, pt.dvector, pt.dmatrix, pt.dvector, pt.dscalar]
        return Apply(self, list(map(pt.as_tensor, inputs)), [kind() for kind in kinds])

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Outputs) -> None:
        """The formula as loops."""
        for storage, value in zip(outputs, log_loss_gradient(*inputs), strict=True):
            storage[0] = value


class StudentTLogDensity(Op):  # type: ignore[misc]
    """Log density of Student-t residuals, summed over rows, and its derivatives.

    Inputs are residuals of shape (rows,), and scalars: the scale and the degrees of freedom. The
    outputs after the sum are its derivatives by them, in that order.
    """

    __props__ = ()

    def make_node(self, *inputs: Tensor) -> Apply:
        """Node of residuals, scale and degrees of freedom."""
        given = list(map(pt.as_tensor, inputs))
        _check(given, [pt.dvector, pt.dscalar, pt.dscalar])
        kinds = [pt.dscalar, pt.dvector, pt.dscalar, pt.dscalar]
        return Apply(self, given, [kind() for kind in kinds])

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Outputs) -> None:
        """The formula as loops."""
        for storage, value in zip(outputs, student_t(*inputs), strict=True):
            storage[0] = value

    def pullback(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], cotangents: Sequence[Tensor]
    ) -> list[Tensor]:
        """Derivatives by residuals, scale and degrees of freedom."""
        return [cotangents[0] * by for by in outputs[1:]]


def _check(inputs: Sequence[Tensor], kinds: Sequence[Callable[[], Tensor]]) -> None:
    for value, kind in zip(inputs, kinds, strict=True):
        if (value.type.dtype, value.type.ndim) != (kind().type.dtype, kind().type.ndim):
            raise TypeError(f"{value} is {value.type}, not {kind().type}.")


# -- the formulas as loops -----------------------------------------------------------------------

# Loops throughout, because Numba takes seconds to compile an assignment to a slice.


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


VERSION = int(
    sha256(b"".join(Path(m).read_bytes() for m in (__file__, elementary.__file__))).hexdigest()[:8],
    16,
)
"""Changes with the code, so that no compilation of other code is used from a cache on disk."""


def register(op: type[Op], kernel: Callable[..., object]) -> None:
    """Let Numba compile an Op as a function of its inputs."""

    @register_funcify_default_op_cache_key(op)
    def funcify(op: Op, **_: object) -> tuple[Callable[..., object], int]:
        @numba_njit(fastmath=False)
        def call(*inputs):
            return kernel(*inputs)

        return call, VERSION


register(LogLoss, log_loss)
register(LogLossGradient, log_loss_gradient)
register(StudentTLogDensity, student_t)
