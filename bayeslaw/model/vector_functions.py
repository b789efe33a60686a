"""PyTensor's functions, with exponentials and logarithms of vectors as vector instructions.

PyTensor calls the C library for one number at a time, about ten times slower.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from numba import njit
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

from bayeslaw.common.arrays import Tensor
from bayeslaw.model import elementary
from bayeslaw.model.kernels import Outputs, register


class VectorExp(Op):  # type: ignore[misc]  # PyTensor ships no types
    """Exponential of a vector."""

    __props__ = ()

    def make_node(self, x: Tensor) -> Apply:
        """Node of a vector."""
        return Apply(self, [x], [pt.dvector()])

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Outputs) -> None:
        """The exponential in NumPy."""
        outputs[0][0] = np.exp(inputs[0])

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

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Outputs) -> None:
        """The logarithm in NumPy."""
        outputs[0][0] = np.log(inputs[0])

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


@njit(error_model="numpy")
def _exp(x):
    found = np.empty(x.size)
    for i in range(x.size):
        found[i] = elementary.exp(x[i])
    return found


@njit(error_model="numpy")
def _log(x):
    found = np.empty(x.size)
    for i in range(x.size):
        found[i] = elementary.log(x[i])
    return found


register(VectorExp, _exp)
register(VectorLog, _log)
