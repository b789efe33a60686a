"""The machine that runs programs: instructions over one flat memory, compiled once by Numba.

A memory holds a tape's inputs, its constants, and a place for every value, so nothing is allocated
while a program runs. It belongs to one thread at a time: others need copies of it. Programs are
made by `bayeslaw.engine.program`.
"""

import math

import numpy as np
from numba import njit
from numba.extending import overload
from numba.types import Float

from bayeslaw.engine import tape as kinds

SUM_DOWN, SUM_ALONG, SUM_ALL = range(100, 103)
"""Instructions for products that are sums: over rows to a row, along rows to a column, over all."""

# Numba's cache is for this file as it is: who renumbers the kinds in `tape` has to touch it.
#
# Places in memory are unsigned: a signed index could count from the end, and a loop that checks
# for that is not vectorised. A slice of memory, or a row of `code`, costs an atomic count of
# references, as much as half a row of values. In Numba the sum of an unsigned integer and a literal
# is a float, so ONE has a name.
#
# Division by zero gives infinity, as in NumPy: such a point has no density, but raises nothing.
# Without Python's lock, chains run in threads.
ZERO, ONE = np.uint64(0), np.uint64(1)


@njit(cache=True, nogil=True, error_model="numpy")
def run(code, index, memory):
    """Run instructions: each is a kind, places of the result and of the arguments, and six numbers.

    Element by element these are how many rows and columns there are, and for each argument how far
    its rows, and its columns, are apart: 0 where they are repeated.
    """
    for k in range(code.shape[0]):
        kind, rows, columns = code[k, 0], code[k, 4], code[k, 5]
        if kind < kinds.EXP:
            if columns == ONE:
                memory[code[k, 1]] = _operator(
                    kind, memory[code[k, 2]], memory[code[k, 3]]
                )
            else:
                _operators(code, k, memory)
        elif kind < kinds.MATMUL:
            if columns == ONE:
                memory[code[k, 1]] = _function(kind, memory[code[k, 2]])
            else:
                _functions(code, k, memory)
        elif kind == kinds.MATMUL:
            if code[k, 9] == ONE:
                _row_product(code, k, memory)
            else:
                _matrix_product(code, k, memory)
        elif kind in (kinds.GATHER, kinds.SCATTER):
            _indexed(code, k, memory, index)
        elif kind == kinds.WHITEN:
            _whiten(memory, code[k, 1], code[k, 2], rows)
        elif kind >= SUM_DOWN:
            _sums(code, k, memory)
        else:
            _transpose(memory, code[k, 1], code[k, 2], rows, columns)


@njit(cache=True, nogil=True, error_model="numpy")
def digamma(x):
    """Derivative of the log of the gamma function, for x > 0."""
    total = 0.0
    while x < 10.0:
        total -= 1.0 / x
        x += 1.0
    y = 1.0 / (x * x)
    series = y * (1 / 12 - y * (1 / 120 - y * (1 / 252 - y * (1 / 240 - y / 132))))
    return total + math.log(x) - 0.5 / x - series


@njit(cache=True, nogil=True, error_model="numpy")
def _operator(kind, x, y):
    if kind == kinds.ADD:
        return x + y
    if kind == kinds.SUBTRACT:
        return x - y
    if kind == kinds.MULTIPLY:
        return x * y
    if kind == kinds.DIVIDE:
        return x / y
    if kind == kinds.MAXIMUM:
        return max(x, y)
    return 1.0 if x > y else 0.0


@njit(cache=True, nogil=True, error_model="numpy")
def _function(kind, x):
    if kind == kinds.EXP:
        return math.exp(x)
    if kind == kinds.LOG:
        return math.log(x)
    if kind == kinds.LOG1P:
        return math.log1p(x)
    if kind == kinds.EXPM1:
        return math.expm1(x)
    if kind == kinds.TANH:
        return math.tanh(x)
    if kind == kinds.SQRT:
        return math.sqrt(x)
    if kind == kinds.ERF:
        return math.erf(x)
    if kind == kinds.LGAMMA:
        return math.lgamma(x)
    return digamma(x) if kind == kinds.DIGAMMA else x


@njit(cache=True, nogil=True, error_model="numpy")
def _functions(code, k, memory):
    kind, out, x = code[k, 0], code[k, 1], code[k, 2]
    rows, columns = code[k, 4], code[k, 5]
    down, along = code[k, 6], code[k, 7]
    for _ in range(rows):
        if along == ZERO:
            value = _function(kind, memory[x])
            for i in range(columns):
                memory[out + i] = value
        elif kind == kinds.EXP:
            for i in range(columns):
                memory[out + i] = math.exp(memory[x + i])
        elif kind == kinds.LOG:
            for i in range(columns):
                memory[out + i] = math.log(memory[x + i])
        else:
            for i in range(columns):
                memory[out + i] = _function(kind, memory[x + i])
        out, x = out + columns, x + down


def _item(memory, x, i):
    """Element i of a row that begins at x in memory, or the number x."""


@overload(_item, inline="always")
def _item_of(memory, x, i):
    if isinstance(x, Float):
        return lambda memory, x, i: x
    return lambda memory, x, i: memory[x + i]


@njit(cache=True, nogil=True, error_model="numpy")
def _operator_row(kind, memory, out, x, y, columns):
    # One loop for each kind: a branch inside the loop would keep it from being vectorised.
    if kind == kinds.ADD:
        for i in range(columns):
            memory[out + i] = _item(memory, x, i) + _item(memory, y, i)
    elif kind == kinds.SUBTRACT:
        for i in range(columns):
            memory[out + i] = _item(memory, x, i) - _item(memory, y, i)
    elif kind == kinds.MULTIPLY:
        for i in range(columns):
            memory[out + i] = _item(memory, x, i) * _item(memory, y, i)
    elif kind == kinds.DIVIDE:
        for i in range(columns):
            memory[out + i] = _item(memory, x, i) / _item(memory, y, i)
    else:
        for i in range(columns):
            memory[out + i] = _operator(kind, _item(memory, x, i), _item(memory, y, i))


@njit(cache=True, nogil=True, error_model="numpy")
def _sum_row(kind, memory, out, x, y, columns):
    if kind == SUM_DOWN:
        _add_product(memory, out, x, y, columns)
    else:
        memory[out] += _dot(memory, x, y, columns)


@njit(cache=True, nogil=True, error_model="numpy")
def _operators(code, k, memory):
    kind, out, x, y = code[k, 0], code[k, 1], code[k, 2], code[k, 3]
    rows, columns = code[k, 4], code[k, 5]
    x_down, x_along, y_down, y_along = code[k, 6], code[k, 7], code[k, 8], code[k, 9]
    for _ in range(rows):
        if x_along == ZERO:
            _operator_row(kind, memory, out, memory[x], y, columns)
        elif y_along == ZERO:
            _operator_row(kind, memory, out, x, memory[y], columns)
        else:
            _operator_row(kind, memory, out, x, y, columns)
        out, x, y = out + columns, x + x_down, y + y_down


@njit(cache=True, nogil=True, error_model="numpy")
def _sums(code, k, memory):
    kind, out, x, y = code[k, 0], code[k, 1], code[k, 2], code[k, 3]
    rows, columns = code[k, 4], code[k, 5]
    x_down, x_along, y_down, y_along = code[k, 6], code[k, 7], code[k, 8], code[k, 9]
    out_down = ONE if kind == SUM_ALONG else ZERO
    _fill(
        memory, out, columns if kind == SUM_DOWN else rows if kind == SUM_ALONG else ONE
    )
    for _ in range(rows):
        if x_along == ZERO:
            _sum_row(kind, memory, out, memory[x], y, columns)
        elif y_along == ZERO:
            _sum_row(kind, memory, out, x, memory[y], columns)
        else:
            _sum_row(kind, memory, out, x, y, columns)
        out, x, y = out + out_down, x + x_down, y + y_down


# Terms may be added in any order: in one order a sum is not vectorised.
@njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})
def _dot(memory, x, y, columns):
    total = 0.0
    for i in range(columns):
        total += _item(memory, x, i) * _item(memory, y, i)
    return total


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _add_product(memory, out, x, y, columns):
    for i in range(columns):
        memory[out + i] += _item(memory, x, i) * _item(memory, y, i)


@njit(cache=True, nogil=True, error_model="numpy")
def _fill(memory, out, size):
    for i in range(size):
        memory[out + i] = 0.0


@njit(cache=True, nogil=True, error_model="numpy")
def _matrix_product(code, k, memory):
    """A product of matrices, of which one may be transposed."""
    out, x, y = code[k, 1], code[k, 2], code[k, 3]
    rows, columns, inner = code[k, 4], code[k, 5], code[k, 6]
    a, b = memory[x : x + rows * inner], memory[y : y + inner * columns]
    into = memory[out : out + rows * columns].reshape((rows, columns))
    if code[k, 7] == ONE:
        np.dot(a.reshape((inner, rows)).T, b.reshape((inner, columns)), into)
    elif code[k, 8] == ONE:
        np.dot(a.reshape((rows, inner)), b.reshape((columns, inner)).T, into)
    else:
        np.dot(a.reshape((rows, inner)), b.reshape((inner, columns)), into)


@njit(cache=True, nogil=True, error_model="numpy")
def _row_product(code, k, memory):
    """A product of a row and a small matrix, which may be transposed."""
    out, x, y = code[k, 1], code[k, 2], code[k, 3]
    columns, inner = code[k, 5], code[k, 6]
    if code[k, 8] == ONE:
        for j in range(columns):
            memory[out + j] = _dot(memory, x, y + j * inner, inner)
    else:
        _fill(memory, out, columns)
        for j in range(inner):
            _add_product(memory, out, memory[x + j], y + j * columns, columns)


@njit(cache=True, nogil=True, error_model="numpy")
def _indexed(code, k, memory, index):
    """Columns that are gathered by an index, or added up by it."""
    kind, out, x = code[k, 0], code[k, 1], code[k, 2]
    rows, columns = code[k, 4], code[k, 5]
    width, start = code[k, 6], code[k, 7]
    if kind == kinds.SCATTER:
        _fill(memory, out, rows * width)
    for _ in range(rows):
        if kind == kinds.GATHER:
            for i in range(width):
                memory[out + i] = memory[x + index[start + i]]
        else:
            for i in range(columns):
                memory[out + index[start + i]] += memory[x + i]
        out, x = out + width, x + columns


@njit(cache=True, nogil=True, error_model="numpy")
def _transpose(memory, out, x, rows, columns):
    for i in range(rows):
        for j in range(columns):
            memory[out + j * rows + i] = memory[x + i * columns + j]


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _whiten(memory, w, a, size):
    """The inverse of the Cholesky factor; what is not positive definite gives NaN.

    A and 1 are eliminated together, row by row. Rows of A fill the upper triangle until they are
    finished, rows of the inverse the lower one. Two rows are finished at a time, as each passes
    over all others: for 144 rows that takes half as long.
    """
    for i in range(size):
        for c in range(size):
            memory[w + i * size + c] = memory[a + i * size + c] if c >= i else 0.0
    for j in range(ZERO, size, ONE + ONE):
        one, k = w + j * size, j + ONE
        two = one + size
        _finish(memory, one, j, size)
        if k == size:
            break
        _add_product(memory, two, -memory[one + k], one, size)
        _finish(memory, two, k, size)
        for i in range(k + ONE, size):
            row, first, second = w + i * size, memory[one + i], memory[two + i]
            for c in range(i, size):
                memory[row + c] -= first * memory[one + c] + second * memory[two + c]
            for c in range(k):
                memory[row + c] -= first * memory[one + c] + second * memory[two + c]
            memory[row + k] -= second * memory[two + k]
    for i in range(size):
        _fill(memory, w + i * size + i + ONE, size - i - ONE)


@njit(cache=True, nogil=True, error_model="numpy")
def _finish(memory, row, j, size):
    """Scale row j of the matrix and of the inverse, whose element j replaces that of the matrix."""
    scale = 1.0 / math.sqrt(memory[row + j])
    for c in range(size):
        memory[row + c] *= scale
    memory[row + j] = scale


@njit(cache=True, nogil=True, error_model="numpy")
def value_and_gradient(code, index, memory, point, value, gradient):
    """A value at a point, and its gradient, given where in memory they begin.

    Where anything is not finite, the value is minus infinity.
    """
    memory[: point.size] = point
    run(code, index, memory)
    slopes = memory[gradient : gradient + point.size].copy()
    if not math.isfinite(memory[value] + slopes.sum()):
        return -math.inf, np.zeros(point.size)
    return memory[value], slopes
