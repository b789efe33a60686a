"""Exponential and logarithm as vector instructions, and PyTensor Ops that are compiled loops.

The functions of a C library take one number at a time. `exp` and `log` are straight-line code, so a
loop over rows takes several rows at once, about 1 ns each. They are exact to a unit in the last
place. The compiler may not reorder or fuse operations here, so the numbers are the same however the
code is compiled and inlined. `FUNCTIONS` are PyTensor's functions with these for vectors.
"""

from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytensor.tensor as pt
from llvmlite import ir
from numba import njit
from numba.core import cgutils, types
from numba.extending import intrinsic
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import (
    numba_njit,
    register_funcify_default_op_cache_key,
)

from bayeslaw.common.arrays import Floats, Tensor

ROUND = 1.5 * 2.0**52
"""Added to a number below 2^51 it rounds the number to an integer, held in the low bits."""
ROUND_BITS = np.int64(0x4338000000000000)
LN2_HIGH, LN2_LOW = 6.93145751953125e-1, 1.42860682030941723212e-6
ROOT_HALF_BITS = np.int64(0x3FE6A09E667F3BCD)
MANTISSA = np.int64(2**52 - 1)
LANES = 16
"""Length of the vectors in which `dot` multiplies."""
_CODE = b"".join(
    Path(__file__).with_name(f"{n}.py").read_bytes() for n in ("elementary", "kernels")
)
VERSION = int(sha256(_CODE).hexdigest()[:8], 16)
"""Changes with the code, so that PyTensor uses no compilation of other code from its cache."""


@njit(error_model="numpy")
def exp(x: float) -> float:
    """Exponential, of arguments cut off at -708 and 709."""
    x = min(max(x, -708.0), 709.0)
    shifted = x * 1.4426950408889634 + ROUND
    n = shifted - ROUND
    r = x - n * LN2_HIGH - n * LN2_LOW
    series = 1 / 479001600
    series = series * r + 1 / 39916800
    series = series * r + 1 / 3628800
    series = series * r + 1 / 362880
    series = series * r + 1 / 40320
    series = series * r + 1 / 5040
    series = series * r + 1 / 720
    series = series * r + 1 / 120
    series = series * r + 1 / 24
    series = series * r + 1 / 6
    series = series * r + 0.5
    series = series * r + 1.0
    series = series * r + 1.0
    power = (np.float64(shifted).view(np.int64) + np.int64(1023)) << np.int64(52)
    return series * np.int64(power).view(np.float64)


@njit(error_model="numpy")
def log(x: float) -> float:
    """Natural logarithm of a finite normal number; not a number if x is not positive."""
    bits = np.float64(x).view(np.int64) - ROOT_HALF_BITS
    power = np.int64((bits >> np.int64(52)) + ROUND_BITS).view(np.float64) - ROUND
    scaled = np.int64((bits & MANTISSA) + ROOT_HALF_BITS).view(np.float64)
    s = (scaled - 1.0) / (scaled + 1.0)
    square = s * s
    series = 1 / 21
    series = series * square + 1 / 19
    series = series * square + 1 / 17
    series = series * square + 1 / 15
    series = series * square + 1 / 13
    series = series * square + 1 / 11
    series = series * square + 1 / 9
    series = series * square + 1 / 7
    series = series * square + 1 / 5
    series = series * square + 1 / 3
    value = power * LN2_HIGH + (2 * s + (2 * s * square * series + power * LN2_LOW))
    return value if x > 0.0 else np.nan


@njit(error_model="numpy")
def digamma(x: float) -> float:
    """Derivative of the logarithm of the gamma function, for positive x."""
    total = 0.0
    while x < 10.0:
        total -= 1.0 / x
        x += 1.0
    square = 1.0 / (x * x)
    series = 1 / 12
    series = 691 / 32760 - series * square
    series = 1 / 132 - series * square
    series = 1 / 240 - series * square
    series = 1 / 252 - series * square
    series = 1 / 120 - series * square
    series = 1 / 12 - series * square
    return total + np.log(x) - 0.5 / x - series * square


@intrinsic
def _dot_of_blocks(context, a, b, blocks):
    """Sum of products of the first ``LANES * blocks`` elements: each lane's sum, then theirs.

    Written in vector instructions, since the compiler adds the numbers of a loop one by one.
    """
    if a.layout != "C" or b.layout != "C":
        raise TypeError("arrays must be contiguous")

    def generate(context, builder, signature, values):
        kind = ir.VectorType(ir.DoubleType(), LANES)
        first = [
            context.make_array(each)(context, builder, value).data
            for each, value in zip(signature.args[:2], values[:2], strict=True)
        ]
        pointers = [builder.bitcast(number, kind.as_pointer()) for number in first]
        total = cgutils.alloca_once_value(builder, ir.Constant(kind, [0.0] * LANES))
        with cgutils.for_range(builder, values[2]) as loop:
            x, y = (builder.load(builder.gep(p, [loop.index]), align=8) for p in pointers)
            builder.store(builder.fadd(builder.load(total), builder.fmul(x, y)), total)
        sums, count = builder.load(total), LANES
        while count > 1:
            count //= 2
            indices = ir.VectorType(ir.IntType(32), count)
            low, high = (
                builder.shuffle_vector(
                    sums, sums, ir.Constant(indices, list(range(first, first + count)))
                )
                for first in (0, count)
            )
            sums = builder.fadd(low, high)
        return builder.extract_element(sums, ir.Constant(ir.IntType(32), 0))

    return types.float64(a, b, types.int64), generate


@njit(error_model="numpy")
def dot(a: Floats, b: Floats, count: int) -> float:
    """Sum of products of the first `count` elements, in the same order on every machine."""
    total: float = _dot_of_blocks(a, b, count // LANES)  # type: ignore[call-arg]  # from Numba
    for i in range(count - count % LANES, count):
        total += a[i] * b[i]
    return total


class Loops(Op):  # type: ignore[misc]  # PyTensor ships no types
    """A PyTensor Op that is one compiled function of its inputs.

    Subclasses state `itypes` and `otypes`, the types of inputs and outputs, and `loops`.
    """

    __props__ = ()
    loops: ClassVar[Callable[..., Any]]
    """The function, for Numba; it returns the output or a tuple of outputs."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)

        @register_funcify_default_op_cache_key(cls)
        def funcify(op: Op, **_: object) -> tuple[Callable[..., object], int]:
            loops = cls.loops

            @numba_njit(fastmath=False)
            def call(*inputs):
                return loops(*inputs)

            return call, VERSION

    def make_node(self, *inputs: Tensor) -> Apply:
        """Node of inputs of these types; integers may have 32 bits, in which PyMC stores them."""
        variables = list(map(pt.as_tensor, inputs))
        for variable, stated in zip(variables, self.itypes, strict=True):
            dtypes = ("int32", "int64") if stated.dtype == "int64" else (stated.dtype,)
            if variable.type.ndim != stated.ndim or variable.type.dtype not in dtypes:
                raise TypeError(f"{variable} is {variable.type}, not {stated}.")
        return Apply(self, variables, [output() for output in self.otypes])

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: list[list[Floats]]) -> None:
        """The outputs, where PyTensor does not compile them."""
        result = type(self).loops(*inputs)
        for storage, value in zip(outputs, result if len(outputs) > 1 else [result], strict=True):
            storage[0] = value


@njit(error_model="numpy")
def exp_of_vector(x: Floats) -> Floats:
    """Exponential of each element."""
    result = np.empty(x.size)
    for i in range(x.size):
        result[i] = exp(x[i])
    return result


@njit(error_model="numpy")
def log_of_vector(x: Floats) -> Floats:
    """Logarithm of each element."""
    result = np.empty(x.size)
    for i in range(x.size):
        result[i] = log(x[i])
    return result


class VectorExp(Loops):
    """Exponential of a vector."""

    itypes = (pt.dvector,)
    otypes = (pt.dvector,)
    loops = exp_of_vector

    def infer_shape(self, node: Apply, shapes: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        """That of the input."""
        return [tuple(shapes[0])]

    def pullback(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], cotangents: Sequence[Tensor]
    ) -> list[Tensor]:
        """Derivative by the input."""
        return [cotangents[0] * outputs[0]]


class VectorLog(VectorExp):
    """Natural logarithm of a vector."""

    loops = log_of_vector

    def pullback(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], cotangents: Sequence[Tensor]
    ) -> list[Tensor]:
        """Derivative by the input."""
        return [cotangents[0] / inputs[0]]


class _Functions:
    """``pytensor.tensor`` with `VectorExp` and `VectorLog` for vectors."""

    def __getattr__(self, name: str) -> Any:
        return getattr(pt, name)

    @staticmethod
    def exp(x: Tensor) -> Tensor:
        return VectorExp()(x) if _vector(x) else pt.exp(x)

    @staticmethod
    def log(x: Tensor) -> Tensor:
        return VectorLog()(x) if _vector(x) else pt.log(x)

    @classmethod
    def log1p(cls, x: Tensor) -> Tensor:
        return cls.log(1 + x) if _vector(x) else pt.log1p(x)


FUNCTIONS = _Functions()
"""An array namespace for formulas that are compiled for the sampler."""


def _vector(x: Tensor) -> bool:
    return getattr(x, "ndim", 0) == 1 and x.dtype == "float64"
