"""Formulas of arrays as tapes: traced once in Python, and differentiated there by rules.

Every value is an array of two dimensions; a scalar is (1, 1), a row (1, n), and shapes broadcast as
in NumPy. A formula is written with Python's operators, the functions of `FUNCTIONS`, and those of
matrices below. `Tape.gradient` adds the operations of the derivatives. One interpreter
(`bayeslaw.engine.machine`), which Numba compiles once, runs any tape, so a law is never compiled.

Two conventions make rules of derivatives short, and their results fast:

- A product may also be a sum: the result of `MULTIPLY` has length one along axes that are summed.
  So the derivative of a product is a product again, without an array in between, whatever was
  broadcast; and a sum is a product with 1.
- A derivative may have length one along an axis where its value is longer. It is then the same all
  along that axis.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import SimpleNamespace

import numpy as np
from scipy import special

from bayeslaw.common.arrays import Array, Floats, Ints, Namespace, Untyped

type Shape = tuple[int, int]

(
    INPUT, CONSTANT, VIEW, STACK,
    ADD, SUBTRACT, MULTIPLY, DIVIDE, MAXIMUM, ABOVE,
    EXP, LOG, LOG1P, EXPM1, TANH, SQRT, ERF, LGAMMA, DIGAMMA, SPREAD,
    MATMUL, TRANSPOSE, GATHER, SCATTER, WHITEN,
) = range(25)  # fmt: skip
"""Kinds of operations, in the order by which the interpreter tells them apart: those that compute
nothing, those of two arrays element by element, of one, and those of matrices.

`VIEW` are successive numbers of an array in another shape, `STACK` arrays one after another.
`ABOVE` is 1 where the first argument is above the second, and else 0. `SPREAD` repeats an array to
a shape. `GATHER` takes columns by an index, `SCATTER` adds columns up by one. `WHITEN` of A is the
lower triangular W with ``W A W' = 1``, the inverse of A's Cholesky factor.
"""


@dataclass(eq=False)
class Tape:
    """Values in the order of evaluation, each once."""

    nodes: list["Node"] = field(default_factory=list)
    known: dict[object, "Node"] = field(default_factory=dict)
    inputs: dict[str, "Node"] = field(default_factory=dict)
    arrays: list[Floats] = field(default_factory=list)
    # Constants that a program can replace.
    named: dict[str, "Node"] = field(default_factory=dict)
    indices: list[Ints] = field(default_factory=list)

    def input(self, name: str, size: int = 1) -> "Node":
        self.inputs[name] = self.apply(INPUT, shape=(1, size), detail=name)
        return self.inputs[name]

    def constant(self, value: float | Floats | Ints, name: str = "") -> "Node":
        """A number, or an array, which is never merged with an equal one."""
        if np.ndim(value) == 0:
            return self.apply(CONSTANT, shape=(1, 1), detail=float(value))
        array = np.atleast_2d(np.asarray(value, float))
        self.arrays.append(array)
        # In a tuple, so that it is not taken for a number: 1 is equal to 1.0.
        node = self.apply(CONSTANT, shape=array.shape, detail=(len(self.arrays) - 1,))
        if name:
            self.named[name] = node
        return node

    def index(self, columns: Ints | list[int], count: int) -> tuple[int, int]:
        """An index of columns, of which there are `count`, for `gather` and `scatter`."""
        self.indices.append(np.asarray(columns, np.int64))
        return len(self.indices) - 1, count

    def apply(
        self, kind: int, *of: "Node", shape: Shape | None = None, detail: Untyped = None
    ) -> "Node":
        """The value of an operation; by default its shape is that to which arguments broadcast."""
        key = kind, tuple(node.place for node in of), shape, detail
        if key not in self.known:
            shape = shape or broadcast(*(node.shape for node in of))
            self.known[key] = Node(self, len(self.nodes), kind, of, shape, detail)
            self.nodes.append(self.known[key])
        return self.known[key]

    def gradient(self, total: "Node", by: Sequence["Node"]) -> list["Node"]:
        """Derivatives of a scalar by some nodes, each in the shape of its node."""
        found, active = {total: self.constant(1.0)}, self.depending(by)
        for node in reversed(self.nodes[: total.place + 1]):
            if node not in found or node in by or node.kind not in PARTIALS:
                continue
            parts = PARTIALS[node.kind](node, found[node], *node.arguments)
            for argument, part in zip(node.arguments, parts, strict=True):
                if argument in active:
                    found[argument] = (
                        found[argument] + part if argument in found else part
                    )
        return [spread(found.get(node, self.constant(0.0)), node.shape) for node in by]

    def depending(self, on: Sequence["Node"]) -> set["Node"]:
        """Some nodes, and all that depend on them."""
        found = set(on)
        for node in self.nodes:
            if not found.isdisjoint(node.arguments):
                found.add(node)
        return found

    def needed(self, outputs: Sequence["Node"]) -> list["Node"]:
        """Nodes that some outputs need, in the order of evaluation."""
        needed = set(outputs)
        for node in reversed(self.nodes):
            if node in needed:
                needed.update(node.arguments)
        return [node for node in self.nodes if node in needed]


def _operators(kind: int) -> tuple[Callable[..., "Node"], Callable[..., "Node"]]:
    """The method of an operator, and the one for a node on its right."""
    return (
        lambda self, other: _operate(kind, self, other),
        lambda self, other: _operate(kind, other, self),
    )


@dataclass(frozen=True, eq=False)
class Node:
    """A value on a tape."""

    tape: Tape = field(repr=False)
    place: int
    kind: int
    arguments: tuple["Node", ...] = field(repr=False)
    shape: Shape
    # The name of an input, a constant or the place of its array, the first number of a view, which
    # arguments of a matrix product are transposed, or an index and how many columns it is of.
    detail: Untyped
    __array_ufunc__ = None

    @property
    def first(self) -> "Node":
        return self.arguments[0]

    @property
    def second(self) -> "Node":
        return self.arguments[1]

    @property
    def number(self) -> float | None:
        """The value of a constant that is a number."""
        return (
            self.detail
            if self.kind == CONSTANT and isinstance(self.detail, float)
            else None
        )

    @property
    def names(self) -> set[str]:
        return {node.detail for node in self.tape.needed([self]) if node.kind == INPUT}

    @property
    def T(self) -> "Node":  # noqa: N802  # as NumPy's
        turned = self.shape[::-1]
        if 1 in turned:  # a vector: the same numbers in the same order
            return self.view(0, turned)
        if self.kind == TRANSPOSE:
            return self.first
        return self.tape.apply(TRANSPOSE, self, shape=turned)

    def view(self, first: int, shape: Shape) -> "Node":
        """Numbers from `first` on, in another shape."""
        if shape == self.shape:
            return self
        if self.kind == VIEW:
            return self.first.view(first + self.detail, shape)
        return self.tape.apply(VIEW, self, shape=shape, detail=first)

    __add__, __radd__ = _operators(ADD)
    __sub__, __rsub__ = _operators(SUBTRACT)
    __mul__, __rmul__ = _operators(MULTIPLY)
    __truediv__, __rtruediv__ = _operators(DIVIDE)
    __gt__, __lt__ = _operators(ABOVE)

    def __neg__(self) -> "Node":
        return self * -1.0

    def __pow__(self, power: "Node | float") -> "Node":
        return self * self if power == 2 else _exp(power * _log(self))

    def __matmul__(self, other: "Node") -> "Node":
        if self.shape[1] == 1:
            return self * other
        turned = self.kind == TRANSPOSE, other.kind == TRANSPOSE
        if all(turned):
            return (other.T @ self.T).T
        # A transposed argument is read in place, so its transpose is often not computed at all.
        one, two = (n.T if t else n for n, t in zip((self, other), turned, strict=True))
        shape = self.shape[0], other.shape[1]
        return self.tape.apply(MATMUL, one, two, shape=shape, detail=turned)


# -- element by element ----------------------------------------------------------------------------

VALUES: dict[int, Callable[[Untyped, Untyped, Namespace], Untyped]] = {
    ADD: lambda a, b, xp: a + b,
    SUBTRACT: lambda a, b, xp: a - b,
    MULTIPLY: lambda a, b, xp: a * b,
    DIVIDE: lambda a, b, xp: a / b,
    MAXIMUM: lambda a, b, xp: xp.maximum(a, b),
    ABOVE: lambda a, b, xp: (a > b) * 1.0,
    EXP: lambda a, b, xp: xp.exp(a),
    LOG: lambda a, b, xp: xp.log(a),
    LOG1P: lambda a, b, xp: xp.log1p(a),
    EXPM1: lambda a, b, xp: xp.expm1(a),
    TANH: lambda a, b, xp: xp.tanh(a),
}
"""Values of the operations of a law's formula over an array namespace."""


def broadcast(*shapes: Shape) -> Shape:
    return max(s[0] for s in shapes), max(s[1] for s in shapes)


def _operate(kind: int, one: "Node | float", two: "Node | float") -> Node:
    """An operation, simpler where an argument is a number. In a product a number comes second."""
    tape = one.tape if isinstance(one, Node) else two.tape  # type: ignore[union-attr]
    one, two = (x if isinstance(x, Node) else tape.constant(x) for x in (one, two))
    a, b = one.number, two.number
    if a is not None and b is not None:
        return tape.constant(VALUES[kind](a, b, np))
    if (kind == ADD and a == 0) or (kind == MULTIPLY and a == 1):
        return two
    if (kind in (ADD, SUBTRACT) and b == 0) or (kind in (MULTIPLY, DIVIDE) and b == 1):
        return one
    if (kind == MULTIPLY and 0 in (a, b)) or (kind == DIVIDE and a == 0):
        return tape.constant(0.0)
    if kind == MULTIPLY and a is not None:
        return _operate(kind, two, one)
    if kind == MULTIPLY == one.kind and b == -1 == one.second.number:
        return one.first
    return tape.apply(kind, one, two)


def product(a: Node, b: Node, over: Shape, shape: Shape) -> Node:
    """``a * b``, broadcast to `over`, summed along axes where `shape` has length one.

    Along the other axes it may be shorter than `shape`, if all its numbers are equal there.
    """
    own, summed = (
        broadcast(a.shape, b.shape),
        [k for k in (0, 1) if shape[k] == 1 < over[k]],
    )
    # A sum of equal numbers is a multiple of one of them.
    count = float(math.prod(over[k] for k in summed if own[k] == 1))
    if all(own[k] == 1 for k in summed):
        return a * b * count
    for one, two in (
        (a, b),
        (b, a),
    ):  # a number is multiplied last, when there are fewer others
        if two.number not in (None, 1.0):
            return product(one, two.tape.constant(1.0), over, shape) * two
    kept = (1 if 0 in summed else own[0], 1 if 1 in summed else own[1])
    return a.tape.apply(MULTIPLY, a, b, shape=kept) * count


def spread(x: Node, shape: Shape) -> Node:
    return x if x.shape == shape else x.tape.apply(SPREAD, x, shape=shape)


def _one(
    kind: int, plain: Callable[[Untyped], Untyped]
) -> Callable[[Untyped], Untyped]:
    def apply(x: Untyped) -> Untyped:
        if not isinstance(x, Node):
            return plain(x)
        return (
            x.tape.constant(plain(x.number))
            if x.number is not None
            else x.tape.apply(kind, x)
        )

    return apply


_exp, _log, _tanh = _one(EXP, np.exp), _one(LOG, np.log), _one(TANH, np.tanh)
_log1p = _one(LOG1P, np.log1p)


def _maximum(a: Untyped, b: Untyped) -> Untyped:
    nodes = isinstance(a, Node) or isinstance(b, Node)
    return _operate(MAXIMUM, a, b) if nodes else np.maximum(a, b)


FUNCTIONS = SimpleNamespace(
    exp=_exp,
    log=_log,
    log1p=_log1p,
    expm1=_one(EXPM1, np.expm1),
    tanh=_tanh,
    erf=_one(ERF, special.erf),
    gammaln=_one(LGAMMA, special.gammaln),
    maximum=_maximum,
    minimum=lambda a, b: -_maximum(-a, -b),
    sum=lambda x: product(x, x.tape.constant(1.0), x.shape, (1, 1)),
    sqrt=_one(SQRT, np.sqrt),
    sigmoid=lambda x: 0.5 * (1.0 + _tanh(0.5 * x)),
    softplus=lambda x: _maximum(x, 0.0) + _log1p(_exp(-_maximum(x, -x))),
)
"""Functions of nodes, numbers and arrays, under NumPy's names; ``sum`` is of a node, over all."""


@lru_cache(maxsize=1024)
def _needed(nodes: tuple[Node, ...]) -> list[Node]:
    return nodes[0].tape.needed(nodes)


def evaluate(
    nodes: Sequence[Node], value_of: Callable[[str], Array], xp: Namespace
) -> list[Untyped]:
    """Values of a law's formulas over an array namespace, given those of inputs by name."""
    values: dict[Node, Untyped] = {}
    for node in _needed(tuple(nodes)):
        if node.kind in (INPUT, CONSTANT):
            values[node] = value_of(node.detail) if node.kind == INPUT else node.detail
        else:
            first, last = values[node.arguments[0]], values[node.arguments[-1]]
            values[node] = VALUES[node.kind](first, last, xp)
    return [values[node] for node in nodes]


# -- matrices --------------------------------------------------------------------------------------


def stack(nodes: Sequence[Node], axis: int = 0) -> Node:
    """Matrices below each other, or with `axis` 1 rows one after another."""
    if len(nodes) == 1:
        return nodes[0]
    length, other = sum(node.shape[axis] for node in nodes), nodes[0].shape[1 - axis]
    shape = (other, length) if axis else (length, other)
    return nodes[0].tape.apply(STACK, *nodes, shape=shape)


def gather(x: Node, index: tuple[int, int]) -> Node:
    """Columns by an index of `Tape.index`."""
    shape = x.shape[0], x.tape.indices[index[0]].size
    return x.tape.apply(GATHER, x, shape=shape, detail=index)


def scatter(x: Node, index: tuple[int, int]) -> Node:
    """Sums of the columns that have the same index."""
    return x.tape.apply(SCATTER, x, shape=(x.shape[0], index[1]), detail=index)


def whiten(x: Node) -> Node:
    return x.tape.apply(WHITEN, x)


def diagonal(x: Node) -> Node:
    """The diagonal of a matrix as a row."""
    size = x.shape[0]
    return product(x, x.tape.constant(np.eye(size)), x.shape, (1, size))


# -- derivatives -----------------------------------------------------------------------------------


def _onto(x: Node, z: Node, a: Node, b: Node | None = None) -> Node:
    """The derivative by an argument x, given ``a * b``, that by x as broadcast for z."""
    over = broadcast(z.shape, *(node.shape for node in z.arguments))
    return product(a, b or a.tape.constant(1.0), over, x.shape)


def _by_matmul(z: Node, g: Node, x: Node, y: Node) -> tuple[Node, Node]:
    g = spread(g, z.shape)
    match z.detail:
        case (False, True) if x is y:  # one product instead of two
            return (g + g.T) @ x, z.tape.constant(0.0)
        case (False, True):
            return g @ y, g.T @ x
        case (True, False):
            return y @ g.T, x @ g
    return g @ y.T, x.T @ g


def _by_stack(z: Node, g: Node, *parts: Node) -> list[Node]:
    g, firsts = spread(g, z.shape), np.cumsum([0, *(math.prod(x.shape) for x in parts)])
    return [
        g.view(int(first), x.shape) for first, x in zip(firsts[:-1], parts, strict=True)
    ]


def _by_view(z: Node, g: Node, x: Node) -> tuple[Node]:
    first, size = z.detail, math.prod(z.shape)
    index = z.tape.index(np.arange(first, first + size), math.prod(x.shape))
    return (scatter(spread(g, z.shape).view(0, (1, size)), index).view(0, x.shape),)


def _by_whiten(z: Node, g: Node, x: Node) -> tuple[Node]:
    # From dW = -half(W dA W') W, where `half` is the lower triangle with half of the diagonal. The
    # result is not symmetric, but x is, and so is all that it may change by.
    half = z.tape.constant(np.tril(np.ones(z.shape)) - 0.5 * np.eye(z.shape[0]))
    return (-(z.T @ ((spread(g, z.shape) @ z.T) * half) @ z),)


PARTIALS: dict[int, Callable[..., Sequence[Node]]] = {
    ADD: lambda z, g, x, y: (_onto(x, z, g), _onto(y, z, g)),
    SUBTRACT: lambda z, g, x, y: (_onto(x, z, g), -_onto(y, z, g)),
    MULTIPLY: lambda z, g, x, y: (_onto(x, z, g, y), _onto(y, z, g, x)),
    DIVIDE: lambda z, g, x, y: (_onto(x, z, g / y), -_onto(y, z, g, z) / y),
    MAXIMUM: lambda z, g, x, y: (_onto(x, z, g, x > y), _onto(y, z, g, 1.0 - (x > y))),
    EXP: lambda z, g, x: (g * z,),
    LOG: lambda z, g, x: (g / x,),
    LOG1P: lambda z, g, x: (g / (1.0 + x),),
    EXPM1: lambda z, g, x: (g * _exp(x),),
    TANH: lambda z, g, x: (g * (1.0 - z * z),),
    SQRT: lambda z, g, x: (0.5 * g / z,),
    ERF: lambda z, g, x: (g * (2 / math.sqrt(math.pi)) * _exp(-(x * x)),),
    LGAMMA: lambda z, g, x: (g * x.tape.apply(DIGAMMA, x),),
    SPREAD: lambda z, g, x: (_onto(x, z, g),),
    VIEW: _by_view,
    STACK: _by_stack,
    MATMUL: _by_matmul,
    TRANSPOSE: lambda z, g, x: (spread(g, z.shape).T,),
    GATHER: lambda z, g, x: (scatter(spread(g, z.shape), z.detail),),
    SCATTER: lambda z, g, x: (gather(spread(g, z.shape), z.detail),),
    WHITEN: _by_whiten,
}
"""Derivatives by the arguments x, y of z, given the derivative g by z. Of kinds that are not here,
`ABOVE` and `DIGAMMA`, no derivative is ever needed."""
