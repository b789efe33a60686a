"""Formulas as tapes: traced once in Python, and differentiated and evaluated there.

A formula is written with Python's operators and the functions of `FUNCTIONS`, as with NumPy. Its
inputs are scalars, and rows: vectors with one value for each row of a table. `Tape.gradient` adds
the operations of the derivatives. One function (`bayeslaw.model.whitening.evaluate`), which Numba
compiles once for a machine, runs any tape, so a law is never compiled.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy import special

from bayeslaw.common.arrays import Floats, Ints, Namespace

INPUT, CONSTANT, ADD, SUBTRACT, MULTIPLY, DIVIDE, MAXIMUM, ABOVE, EXP, LOG, LOG1P, TANH, SUM = (
    range(13)
)
ERF, LGAMMA, DIGAMMA, SPREAD, EXPM1 = range(13, 18)
"""Kinds of operations. `ABOVE` is 1 where its first argument is above the second, and else 0;
`SPREAD` is a scalar as a row."""


@dataclass(frozen=True)
class Operation:
    """One operation: its kind, the places of its arguments, a constant's value, if it is a row."""

    kind: int
    first: int = -1
    second: int = -1
    value: float = 0.0
    row: bool = False


@dataclass(eq=False)
class Tape:
    """Operations in the order of evaluation, each once."""

    operations: list[Operation] = field(default_factory=list)
    places: dict[Operation, int] = field(default_factory=dict)
    inputs: dict[str, "Node"] = field(default_factory=dict)

    def input(self, name: str, *, row: bool = False) -> "Node":
        self.operations.append(Operation(INPUT, row=row))
        self.inputs[name] = Node(self, len(self.operations) - 1)
        return self.inputs[name]

    def constant(self, value: float) -> "Node":
        return self._add(Operation(CONSTANT, value=float(value)))

    def apply(self, kind: int, first: "Node", second: "Node | None" = None) -> "Node":
        last = first if second is None else second
        row = kind == SPREAD or (kind != SUM and (first.row or last.row))
        place = -1 if second is None else second.place
        return self._add(Operation(kind, first.place, place, row=row))

    def _add(self, operation: Operation) -> "Node":
        if operation not in self.places:
            self.operations.append(operation)
            self.places[operation] = len(self.operations) - 1
        return Node(self, self.places[operation])

    def gradient(self, total: "Node", by: Sequence["Node"]) -> list["Node"]:
        found = {total.place: self.constant(1.0)}
        for place in range(total.place, -1, -1):
            if place not in found:
                continue
            node = Node(self, place)
            partials = _PARTIALS.get(node.kind, lambda *_: ())
            parts = partials(node.first, node.second, node, found[place])
            for argument, part in zip((node.first, node.second), parts, strict=False):
                if part.row and not argument.row:
                    part = FUNCTIONS.sum(part)
                known = found.get(argument.place)
                found[argument.place] = part if known is None else known + part
        return [found.get(node.place, self.constant(0.0)) for node in by]

    def needed(self, outputs: Sequence["Node"]) -> list[int]:
        """Places of the operations that some outputs need, in the order of evaluation."""
        needed = {node.place for node in outputs}
        for place in range(max(needed), -1, -1):
            if place in needed:
                operation = self.operations[place]
                needed |= {p for p in (operation.first, operation.second) if p >= 0}
        return sorted(needed)

    def compile(self, outputs: Sequence["Node"], inputs: Sequence[str]) -> "Program":
        """The operations that some outputs need; the named inputs come first, in their order."""
        order = [self.inputs[name].place for name in inputs]
        order += [p for p in self.needed(outputs) if self.operations[p].kind != INPUT]
        position = {place: k for k, place in enumerate(order)}
        kept = [self.operations[place] for place in order]
        rows = np.array([o.row for o in kept])
        # Each kind of value is numbered by itself.
        slots = np.where(rows, np.cumsum(rows), np.cumsum(~rows)) - 1
        code = np.zeros((len(kept), 7), np.int64)
        for k, operation in enumerate(kept):
            code[k, [0, 3, 4]] = operation.kind, slots[k], rows[k]
            for column, place in ((1, operation.first), (2, operation.second)):
                if place >= 0:
                    code[k, [column, column + 4]] = slots[position[place]], rows[position[place]]
        return Program(
            code,
            np.array([o.value for o in kept]),
            np.array([position[node.place] for node in outputs], np.int64),
            (int(rows.sum()), int((~rows).sum())),
        )


@dataclass(frozen=True)
class Program:
    """A compiled tape."""

    code: Ints
    constants: Floats
    outputs: Ints
    sizes: tuple[int, int]


def _operators(kind: int) -> tuple[Callable[..., "Node"], Callable[..., "Node"]]:
    """The method of an operator, and the one for a node on its right."""
    return (
        lambda self, other: self._with(kind, other),
        lambda self, other: self._with(kind, other, swapped=True),
    )


@dataclass(frozen=True, eq=False)
class Node:
    """A value on a tape."""

    tape: Tape
    place: int
    __array_ufunc__ = None

    @property
    def operation(self) -> Operation:
        return self.tape.operations[self.place]

    @property
    def row(self) -> bool:
        return self.operation.row

    @property
    def kind(self) -> int:
        return self.operation.kind

    @property
    def first(self) -> "Node":
        return Node(self.tape, self.operation.first)

    @property
    def second(self) -> "Node":
        return Node(self.tape, self.operation.second)

    @property
    def number(self) -> float | None:
        return self.operation.value if self.kind == CONSTANT else None

    @property
    def names(self) -> set[str]:
        needed = self.tape.needed([self])
        return {name for name, node in self.tape.inputs.items() if node.place in needed}

    def _with(self, kind: int, other: "Node | float", *, swapped: bool = False) -> "Node":
        node = other if isinstance(other, Node) else self.tape.constant(other)
        one, two = (node, self) if swapped else (self, node)
        a, b = one.number, two.number
        if a is not None and b is not None:
            return self.tape.constant(_VALUES[kind](a, b, np))
        if (kind == ADD and a == 0) or (kind == MULTIPLY and a == 1):
            return two
        if (kind in (ADD, SUBTRACT) and b == 0) or (kind in (MULTIPLY, DIVIDE) and b == 1):
            return one
        if (kind == MULTIPLY and 0 in (a, b)) or (kind == DIVIDE and a == 0):
            return self.tape.constant(0.0)
        for sign, node in ((a, two), (b, one)):
            if kind == MULTIPLY == node.kind and sign == -1 == node.second.number:
                return node.first
        return self.tape.apply(kind, one, two)

    __add__, __radd__ = _operators(ADD)
    __sub__, __rsub__ = _operators(SUBTRACT)
    __mul__, __rmul__ = _operators(MULTIPLY)
    __truediv__, __rtruediv__ = _operators(DIVIDE)
    __gt__, _ = _operators(ABOVE)

    def __neg__(self) -> "Node":
        return self * -1.0

    def __pow__(self, power: "Node | float") -> "Node":
        return self * self if power == 2 else _exp(power * _log(self))


type Value = Node | float | Floats


def _one(kind: int, plain: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def apply(x: Value) -> Any:
        if not isinstance(x, Node):
            return plain(x)
        return x.tape.constant(plain(x.number)) if x.number is not None else x.tape.apply(kind, x)

    return apply


_exp, _log, _tanh = _one(EXP, np.exp), _one(LOG, np.log), _one(TANH, np.tanh)
_log1p = _one(LOG1P, np.log1p)


def _maximum(a: Any, b: Any) -> Any:
    if isinstance(a, Node):
        return a._with(MAXIMUM, b)
    return b._with(MAXIMUM, a, swapped=True) if isinstance(b, Node) else np.maximum(a, b)


def _softplus(x: Value) -> Any:
    return _maximum(x, 0.0) + _log1p(_exp(-_maximum(x, -x)))


def _sum(x: Value) -> Any:
    return x.tape.apply(SUM, x) if isinstance(x, Node) else np.sum(x, axis=-1, keepdims=True)


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
    sum=_sum,
    sqrt=lambda x: _exp(0.5 * _log(x)),
    sigmoid=lambda x: 0.5 * (1.0 + _tanh(0.5 * x)),
    softplus=_softplus,
)
"""Functions of nodes, numbers and arrays, under NumPy's names; ``sum`` is over rows."""

_PARTIALS: dict[int, Callable[[Node, Node, Node, Node], tuple[Node, ...]]] = {
    ADD: lambda x, y, z, out: (out, out),
    SUBTRACT: lambda x, y, z, out: (out, -out),
    MULTIPLY: lambda x, y, z, out: (out * y, out * x),
    DIVIDE: lambda x, y, z, out: (out / y, -out * z / y),
    MAXIMUM: lambda x, y, z, out: (out * (x > y), out * (1.0 - (x > y))),
    EXP: lambda x, y, z, out: (out * z,),
    LOG: lambda x, y, z, out: (out / x,),
    LOG1P: lambda x, y, z, out: (out / (1.0 + x),),
    EXPM1: lambda x, y, z, out: (out * _exp(x),),
    TANH: lambda x, y, z, out: (out * (1.0 - z * z),),
    SUM: lambda x, y, z, out: (x.tape.apply(SPREAD, out),),
    SPREAD: lambda x, y, z, out: (out,),
    ERF: lambda x, y, z, out: (out * (2 / math.sqrt(math.pi)) * FUNCTIONS.exp(-(x * x)),),
    LGAMMA: lambda x, y, z, out: (out * x.tape.apply(DIGAMMA, x),),
}
"""Derivatives of a value z = f(x, y) by its arguments, each times the derivative `out` by z."""


# -- formulas over other namespaces ----------------------------------------------------------------

_VALUES: dict[int, Callable[[Any, Any, Namespace], Any]] = {
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


@lru_cache(maxsize=1024)
def _order(nodes: tuple[Node, ...]) -> list[tuple[int, Operation, str]]:
    """Operations that nodes of one tape need, with their places, and the names of inputs."""
    tape = nodes[0].tape
    names = {node.place: name for name, node in tape.inputs.items()}
    return [(p, tape.operations[p], names.get(p, "")) for p in tape.needed(nodes)]


def evaluate(nodes: Sequence[Node], value_of: Callable[[str], Any], xp: Namespace) -> list[Any]:
    """Values of nodes of one tape over an array namespace, given those of inputs by name."""
    values: dict[int, Any] = {}
    for place, operation, name in _order(tuple(nodes)):
        if operation.kind == INPUT:
            values[place] = value_of(name)
        elif operation.kind == CONSTANT:
            values[place] = operation.value
        else:
            a, b = values[operation.first], values.get(operation.second)
            values[place] = _VALUES[operation.kind](a, b, xp)
    return [values[node.place] for node in nodes]
