"""Every operation of the tape on its machine: values beside NumPy's, derivatives by differences."""

from itertools import product as pairs

import numpy as np
import pytest
from scipy import special

from bayeslaw.engine import tape as t
from bayeslaw.engine.machine import run
from bayeslaw.engine.program import assemble
from bayeslaw.engine.tape import FUNCTIONS as F
from bayeslaw.engine.tape import Tape

SHAPES = [(1, 1), (1, 5), (4, 1), (4, 5)]
TWO = {
    "add": (lambda a, b: a + b, np.add),
    "subtract": (lambda a, b: a - b, np.subtract),
    "multiply": (lambda a, b: a * b, np.multiply),
    "divide": (lambda a, b: a / b, np.divide),
    "maximum": (F.maximum, np.maximum),
}
ONE = {
    name: (getattr(F, name), plain)
    for name, plain in {
        **{n: getattr(np, n) for n in ("exp", "log", "log1p", "expm1", "tanh", "sqrt")},
        **{"erf": special.erf, "gammaln": special.gammaln, "sigmoid": special.expit},
        "softplus": lambda x: np.logaddexp(0, x),
    }.items()
}
SUMS = [
    (a, b, over, shape)
    for a, b, over, shape in pairs(SHAPES, repeat=4)
    if t.broadcast(a, b, shape, over) == over and not (1 in over and 1 not in shape)
]
MATRICES = {
    "product": (lambda a, b: a @ b, np.matmul, (3, 4), (4, 5)),
    "first transposed": (lambda a, b: a.T @ b, lambda a, b: a.T @ b, (4, 3), (4, 5)),
    "second transposed": (lambda a, b: a @ b.T, lambda a, b: a @ b.T, (3, 4), (5, 4)),
    "both transposed": (lambda a, b: a.T @ b.T, lambda a, b: a.T @ b.T, (4, 3), (5, 4)),
    "inner product": (lambda a, b: a @ b, np.matmul, (1, 4), (4, 1)),
    "Gram matrix": (lambda a: a @ a.T, lambda a: a @ a.T, (3, 4)),
    "transpose": (lambda a: F.exp(a.T), lambda a: np.exp(a.T), (3, 4)),
    "stack": (lambda a, b: t.stack([a, b, a]), lambda a, b: np.vstack([a, b, a]), (3, 4), (2, 4)),
    "row of rows": (lambda a, b: t.stack([a * a, b], 1), lambda a, b: np.hstack([a * a, b]),
                    (1, 4), (1, 2)),
    "view": (lambda a: (a * a).view(2, (1, 5)), lambda a: (a * a).ravel()[None, 2:7], (3, 4)),
    "gather": (lambda a: t.gather(a, a.tape.index([3, 1, 1, 0, 2], 4)),
               lambda a: a[:, [3, 1, 1, 0, 2]], (3, 4)),
    "scatter": (lambda a: t.scatter(a, a.tape.index([3, 1, 1, 0], 5)),
                lambda a: a @ np.eye(5)[[3, 1, 1, 0]], (3, 4)),
    "diagonal": (t.diagonal, lambda a: np.diag(a)[None], (4, 4)),
}  # fmt: skip
for length in (4, 900):  # by loops, and by BLAS
    MATRICES[f"row of {length}"] = (
        lambda a, b: a @ b,
        np.matmul,
        (1, length),
        (length, 5),
    )
    turned = lambda a, b: a @ b.T  # noqa: E731
    MATRICES[f"row of {length}, transposed"] = turned, turned, (1, length), (5, length)
    MATRICES[f"column of {length}"] = (
        lambda a, b: a @ b,
        np.matmul,
        (5, length),
        (length, 1),
    )
for size in (1, 2, 5, 6):  # rows are finished two at a time
    MATRICES[f"whiten {size}"] = (
        lambda a: t.whiten(a @ a.T + a.tape.constant(np.eye(a.shape[0]))),
        lambda a: np.linalg.inv(np.linalg.cholesky(a @ a.T + np.eye(len(a)))),
        *[(size, 7)],
    )


def agrees(formula, plain, *shapes):
    """Check values at positive points, and derivatives of their sum with random weights."""
    rng, tape = np.random.default_rng(0), Tape()
    sizes = [rows * columns for rows, columns in shapes]
    nodes = [tape.input(str(k), n).view(0, shapes[k]) for k, n in enumerate(sizes)]
    value = formula(*nodes)
    total = F.sum(value * tape.constant(rng.normal(size=value.shape)))
    rows = [
        by.view(0, (1, n))
        for by, n in zip(tape.gradient(total, nodes), sizes, strict=True)
    ]
    program = assemble(tape, [total, value, t.stack(rows, 1)])
    memory = program.memory.copy()
    run(program.once, program.index, memory)

    def output(point, place):
        memory[: point.size] = point
        run(program.code, program.index, memory)
        return program.read(memory, place)

    point = 0.3 + np.abs(rng.normal(size=sum(sizes)))
    parts = np.split(point, np.cumsum(sizes)[:-1])
    given = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
    np.testing.assert_allclose(output(point, 1), plain(*given), rtol=1e-11, atol=1e-12)
    gradient = output(point, 2).ravel()
    for k in rng.permutation(point.size)[:40]:
        h = 1e-6 * (np.arange(point.size) == k)
        slope = (output(point + h, 0) - output(point - h, 0)).item() / 2e-6
        assert gradient[k] == pytest.approx(slope, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", [*TWO, *ONE])
def test_operations_of_elements_agree_with_numpy(name):
    count = 2 if name in TWO else 1
    for shapes in pairs(SHAPES, repeat=count):
        agrees(*(TWO | ONE)[name], *shapes)


def test_of_equal_numbers_the_larger_has_the_whole_derivative_once():
    tape = Tape()
    nodes = [tape.input(name, 1) for name in "ab"]
    rows = tape.gradient(F.maximum(*nodes), nodes)
    program = assemble(tape, [t.stack(rows, 1)])
    memory = program.memory.copy()
    memory[:2] = 0.5
    for code in (program.once, program.code):
        run(code, program.index, memory)
    assert program.read(memory, 0).sum() == 1


def test_sums_of_products_agree_with_numpy():
    for a, b, over, shape in SUMS:  # of a product, spread to one shape, to another
        summed = tuple(k for k in (0, 1) if shape[k] == 1)
        agrees(
            lambda x, y, over=over, shape=shape: t.spread(
                t.product(x, y, over, shape), shape
            ),
            lambda x, y, over=over, k=summed: np.broadcast_to(x * y, over).sum(
                k, keepdims=True
            ),
            *(a, b),
        )


@pytest.mark.parametrize("name", MATRICES)
def test_operations_of_matrices_agree_with_numpy(name):
    agrees(*MATRICES[name])


def test_what_is_not_positive_definite_is_not_finite():
    program = assemble(tape := Tape(), [t.whiten(tape.input("a", 4).view(0, (2, 2)))])
    program.memory[:4] = 1.0, 2.0, 2.0, 1.0
    run(program.code, program.index, program.memory)
    assert not np.isfinite(program.read(program.memory, 0)).all()
