"""Programs: what some outputs of a tape need, as instructions for the machine."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.engine import tape as kinds
from bayeslaw.engine.machine import SUM_ALL, SUM_ALONG, SUM_DOWN
from bayeslaw.engine.tape import Node, Shape, Tape, broadcast

type Unsigned = npt.NDArray[np.uint64]

BLAS = 3000
"""Numbers of a matrix from which its product with a row is faster by BLAS than in loops."""


@dataclass(frozen=True)
class Program:
    """A compiled tape."""

    once: Unsigned  # instructions for what depends on no input: they run when constants change
    code: Unsigned  # the others
    index: Unsigned  # indices of columns, one after another
    memory: Floats  # with the constants; the inputs come first, as the tape got them
    outputs: Sequence[tuple[int, Shape]]  # where in memory each begins
    named: Mapping[str, int]  # where in memory constants with a name begin

    def read(self, memory: Floats, output: int) -> Floats:
        """An output, as the last run left it."""
        first, shape = self.outputs[output]
        return memory[first : first + math.prod(shape)].reshape(shape).copy()


def assemble(tape: Tape, outputs: Sequence[Node]) -> Program:
    """The program of what some outputs need."""
    inputs = list(tape.inputs.values())
    nodes = [
        *inputs,
        *(node for node in tape.needed(outputs) if node.kind != kinds.INPUT),
    ]
    first, size = _placed(nodes)
    starts, varying = np.cumsum([0, *map(len, tape.indices)]), tape.depending(inputs)
    once: list[list[int]] = []
    code: list[list[int]] = []
    memory = np.zeros(size)
    for node in nodes:
        if node.kind == kinds.CONSTANT:
            number = node.number
            array = tape.arrays[node.detail[0]].ravel() if number is None else number
            memory[first[node] : first[node] + math.prod(node.shape)] = array
        (code if node in varying else once).extend(_instructions(node, first, starts))
    return Program(
        once=np.array(once, np.uint64).reshape(-1, 10),
        code=np.array(code, np.uint64).reshape(-1, 10),
        index=np.concatenate([np.zeros(0, np.int64), *tape.indices]).astype(np.uint64),
        memory=memory,
        outputs=[(first[node], node.shape) for node in outputs],
        named={name: first[node] for name, node in tape.named.items() if node in first},
    )


def _placed(nodes: Sequence[Node]) -> tuple[dict[Node, int], int]:
    """Where in memory each value begins, and the size of memory.

    A view lies inside what it is a view of. A part of a stack is computed inside the stack, unless
    it has a place already, in another.
    """
    first: dict[Node, int] = {}
    size = 0
    for node in (*(n for n in nodes if n.kind == kinds.INPUT), *reversed(nodes)):
        if node.kind != kinds.VIEW and node not in first:
            first[node], size = size, size + math.prod(node.shape)
        if node.kind == kinds.STACK:
            at = first[node]
            for part in node.arguments:
                if part.kind != kinds.VIEW:
                    first.setdefault(part, at)
                at += math.prod(part.shape)
    for node in nodes:
        if node.kind == kinds.VIEW:
            first[node] = first[node.first] + node.detail
    return first, size


type Part = tuple[int, Shape]
"""Where an argument begins in memory, and its shape."""


def _instructions(
    node: Node, first: Mapping[Node, int], starts: Ints
) -> list[list[int]]:
    """Instructions of an operation, as `run` reads them; `starts` is where each index begins."""
    kind, shape, out = node.kind, node.shape, first[node]
    parts = [(first[part], part.shape) for part in node.arguments]
    if kind in (kinds.INPUT, kinds.CONSTANT, kinds.VIEW):
        return []
    if kind == kinds.STACK:
        copies = []
        for x, part in parts:
            if x != out:
                copies += _by_element(kinds.SPREAD, out, [(x, part)], part)
            out += math.prod(part)
        return copies
    if kind < kinds.MATMUL:
        return _by_element(kind, out, parts, shape)
    x, (rows, columns) = parts[0]
    if kind == kinds.MATMUL:
        y, (of_x, of_y) = parts[1][0], node.detail
        inner = rows if of_x else columns
        if shape[1] == 1:  # a column is, in memory, the row of the transposed product
            x, y, of_x, of_y, shape = y, x, False, not of_x, (1, shape[0])
        # A row and a small matrix are multiplied in loops, which cost less than a call of BLAS.
        loops = shape[0] == 1 and inner * shape[1] <= BLAS
        return [[kind, out, x, y, *shape, inner, int(of_x), int(of_y), int(loops)]]
    start = starts[node.detail[0]] if node.detail else 0
    return [[kind, out, x, 0, rows, columns, shape[1], start, 0, 0]]


def _by_element(
    kind: int, out: int, parts: Sequence[Part], shape: Shape
) -> list[list[int]]:
    over = broadcast(shape, *(part for _, part in parts))
    if shape != over:
        kind = SUM_DOWN if shape[1] > 1 else SUM_ALONG if shape[0] > 1 else SUM_ALL
    # Where every array is whole or one number, all are read as one row.
    flat = all(part in (over, (1, 1)) for part in (shape, *(part for _, part in parts)))
    places, steps = [], []
    for at, part in (*parts, (0, (1, 1)))[:2]:
        along = math.prod(part) > 1 if flat else part[1] > 1
        places.append(at)
        steps += [0 if flat or part[0] == 1 else part[1], int(along)]
    return [[kind, out, *places, *((1, math.prod(over)) if flat else over), *steps]]
