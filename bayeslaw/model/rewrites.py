"""An identity that PyTensor's rewrites do not see through, for the law's loss over rows.

PyTensor merges products into a single fraction each. For a mean log loss with 50 derivatives that
makes 100 divisions a row, where the derivative of the logarithm needs one. `opaque` keeps what is
exponentiated or logged apart, in the loss and in its gradient; on 576 rows a gradient then takes
half the time.
"""

from collections.abc import Sequence

import pytensor.tensor as pt
from pytensor.compile.ops import TypeCastingOp
from pytensor.graph.basic import Apply
from pytensor.tensor import expm1, maximum, tanh

from bayeslaw.common.arrays import Tensor

__all__ = ["exp", "expm1", "log", "maximum", "opaque", "tanh"]


class OpaqueIdentity(TypeCastingOp):  # type: ignore[misc]  # PyTensor ships no types
    """Its input, and its output's gradient, unchanged."""

    def make_node(self, x: Tensor) -> Apply:
        """Node of a tensor."""
        x = pt.as_tensor(x)
        return Apply(self, [x], [x.type()])

    def infer_shape(self, node: Apply, input_shapes: Sequence[Tensor]) -> Sequence[Tensor]:
        """Shape of the input."""
        return input_shapes

    def pullback(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], cotangents: Sequence[Tensor]
    ) -> list[Tensor]:
        """Gradient, opaque too."""
        return [self(cotangents[0])]


opaque = OpaqueIdentity()


def __getattr__(name: str) -> Tensor:
    return getattr(pt, name)


def exp(x: Tensor) -> Tensor:
    """Exponential of an opaque value."""
    return pt.exp(opaque(x))


def log(x: Tensor) -> Tensor:
    """Logarithm of an opaque value."""
    return pt.log(opaque(x))
