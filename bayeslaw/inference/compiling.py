"""Compile the log density of a model for nutpie, once for data of any size.

nutpie calls a C function for the log density and its gradient, which Numba compiles from a PyTensor
graph. It takes the data by address, so other rows and other groups need no new compilation. It also
takes a linear map of the coordinates, so that the sampler can use the metric of
`bayeslaw.inference.metric`: the sampler moves in ``sampled``, and the model's coordinates are
``shift + factor @ sampled``. A factor of shape (n, n) is lower triangular, one of shape (n, 1) is a
diagonal.
"""

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from numba import carray, njit, types

from bayeslaw.common.arrays import Floats, Model, Tensor
from bayeslaw.model import elementary

type Axis = int | str
"""Length of an axis, or the name of the data that has that length."""

BEFORE = (("variables", "float64", 1), ("shift", "float64", 1), ("factor", "float64", 2))
"""Arrays before the data: room for the variables' values, or none, and the linear map."""
WORDS = 4
"""Words of `Table` for each array: its address, then the lengths of at most three axes."""


@dataclass(frozen=True)
class Variable:
    """A free variable of a model.

    Parameters
    ----------
    name : str
    shape : tuple of int or str
        A name stands for the length of the data of that name.
    real : tuple of int or str
        Shape on the real line, after the variable's transform.
    start : array
        Where the sampler starts on the real line; broadcasts to `real`.
    jitter : float
        Scale of the jitter around the start.
    """

    name: str
    shape: tuple[Axis, ...]
    real: tuple[Axis, ...]
    start: Floats
    jitter: float


@dataclass(frozen=True)
class Program:
    """A compiled log density.

    Parameters
    ----------
    variables : tuple of Variable
        In the sampler's order.
    data : tuple of (str, str, int)
        Name, dtype and number of dimensions of each array, in the order of the functions.
    code : bytes
        The compiled C function, as Numba writes it.
    """

    variables: tuple[Variable, ...]
    data: tuple[tuple[str, str, int], ...]
    code: bytes


def compile_program(model: Model) -> Program:
    """Compile a model whose data are ``pm.Data``."""
    import pytensor
    import pytensor.tensor as pt
    from pymc.pytensorf import compile as compile_function
    from pytensor.compile.mode import get_mode
    from pytensor.graph import clone_replace, rewrite_graph

    free = sorted(model.free_RVs, key=lambda variable: None in variable.type.shape)
    values = [model.rvs_to_values[variable] for variable in free]
    rewrites = ["canonicalize", "stabilize", "local_remove_check_parameter"]
    density = rewrite_graph(model.logp(), include=rewrites)
    gradient = pt.concatenate([pt.as_tensor(by).ravel() for by in pt.grad(density, values)])
    named = {variable.name: variable for variable in model.unobserved_value_vars}
    drawn = pt.concatenate([pt.as_tensor(named[variable.name]).ravel() for variable in free])
    point = pt.dvector("point")
    outputs = clone_replace([density, gradient, drawn], _split(point, free, values))
    # Rewrites to in-place operations take as long as all others, and save no time here.
    mode = get_mode("NUMBA").excluding("inplace")
    # With fast maths, code from PyTensor's cache on disk rounds differently from freshly compiled
    # code, and one seed would give several chains.
    with pytensor.config.change_flags(numba__fastmath=False):
        function = compile_function([point], outputs, mode=mode)
    shared = function.get_shared()
    data = tuple((each.name, each.type.dtype, each.type.ndim) for each in shared)
    initial = model.initial_point()
    variables = tuple(
        Variable(
            variable.name,
            _axes(model, variable, variable.type.shape),
            _axes(model, variable, value.type.shape),
            _start(initial[value.name]),
            getattr(model.rvs_to_transforms[variable], "jitter", 1.0),
        )
        for variable, value in zip(free, values, strict=True)
    )
    return Program(variables, data, _c_function(function.vm.jit_fn, data))


def _split(point: Tensor, free: Sequence[Tensor], values: Sequence[Tensor]) -> dict[Tensor, Tensor]:
    """Each value variable as a part of the sampler's vector; those of unknown length come last."""
    import pytensor.tensor as pt
    from pytensor.compile.builders import infer_shape

    parts, first, last = {}, 0, []
    for variable, value in zip(free, values, strict=True):
        shape = value.type.shape
        if None in shape:
            inferred = infer_shape([variable], [], [])[0]
            pairs = zip(shape, inferred, strict=True)
            last.append((value, [there if length is None else length for length, there in pairs]))
        else:
            size = int(np.prod(shape, dtype=int))
            part = point[first : first + size].reshape(shape) if shape else point[first]
            parts[value], first = part, first + size
    if last:
        sizes = pt.stack([pt.prod(pt.stack(shape)) for _, shape in last])
        rest = [point[first:]]
        if len(last) > 1:
            rest = pt.split(point[first:], splits_size=sizes, n_splits=len(last))
        for (value, shape), part in zip(last, rest, strict=True):
            parts[value] = part if value.ndim == 1 else part.reshape(shape)
    return parts


def _axes(model: Model, variable: Tensor, shape: Sequence[int | None]) -> tuple[Axis, ...]:
    """Lengths of the axes; an unknown one is that of the only vector of data it depends on."""
    from pytensor.graph.traversal import ancestors

    if None not in shape:
        return tuple(int(length) for length in shape if length is not None)
    behind = [v.name for v in ancestors([variable]) if v in model.data_vars and v.ndim == 1]
    (name,) = [name for name in behind if name.endswith(("_groups", "_knots"))]
    return tuple(name if length is None else int(length) for length in shape)


def _start(value: Floats) -> Floats:
    """A value; if all its elements are equal, a scalar that broadcasts to any length."""
    value = np.asarray(value, float)
    return value.flat[0] * np.ones(()) if value.size and np.ptp(value) == 0 else value


class Table:
    """Addresses and lengths of arrays, by which the C function finds them."""

    def __init__(self, arrays: Sequence[npt.NDArray[np.generic]]) -> None:
        self.arrays = arrays  # kept, since only their addresses are in the table
        self.words = np.zeros((len(arrays), WORDS), np.uint64)
        for row, array in zip(self.words, arrays, strict=True):
            row[: 1 + array.ndim] = array.ctypes.data, *array.shape


@njit(error_model="numpy")
def _forward(sampled: Floats, shift: Floats, factor: Floats) -> Floats:
    """The model's coordinates."""
    n = sampled.size
    point = np.empty(n)
    if factor.shape[1] == 1:
        for i in range(n):
            point[i] = shift[i] + factor[i, 0] * sampled[i]
        return point
    for i in range(n):
        point[i] = shift[i] + elementary.dot(factor[i], sampled, i + 1)
    return point


@njit(error_model="numpy")
def _backward(by: Floats, factor: Floats, gradient: Floats) -> bool:
    """Write the gradient by `sampled`, from that by the model's coordinates, into `gradient`.

    Returns whether it is finite.
    """
    n, total = by.size, 0.0
    for i in range(n):
        gradient[i] = 0.0
    if factor.shape[1] == 1:
        for i in range(n):
            gradient[i] = factor[i, 0] * by[i]
    else:
        for i in range(n):
            row, weight = factor[i], by[i]
            for j in range(i + 1):
                gradient[j] += weight * row[j]
    for i in range(n):
        total += abs(gradient[i])
    return bool(np.isfinite(total))


_SOURCE = """
def density(count, sampled_, gradient_, density_, table_):
    table, n = carray(table_, ({arrays}, {words}), np.uint64), int(count)
    {unpacked}
    try:
        value, by, drawn = inner(forward(carray(sampled_, n), shift, factor), {names})
    except Exception:
        return 1
    carray(density_, 1)[0] = value[()]
    if variables.size:
        for i in range(variables.size):
            variables[i] = drawn[i]
    return 0 if backward(by, factor, carray(gradient_, n)) and np.isfinite(value[()]) else 2
"""


def _c_function(inner: Callable[..., object], data: Sequence[tuple[str, str, int]]) -> bytes:
    """The C function, as Numba writes compiled code."""
    from numba.core import serialize
    from numba.core.ccallback import CFunc
    from numba.core.compiler_lock import global_compiler_lock
    from nutpie.compile_pymc import address_as_void_pointer

    numbered = [(f"data{i}", dtype, axes) for i, (_, dtype, axes) in enumerate(data)]
    unpacked = []
    for i, (name, dtype, axes) in enumerate((*BEFORE, *numbered)):
        lengths = "".join(f"int(table[{i}, {k}]), " for k in range(1, axes + 1))
        unpacked.append(f"{name} = carray(pointer(table[{i}, 0]), ({lengths}), np.{dtype})")
    source = _SOURCE.format(
        arrays=len(unpacked),
        words=WORDS,
        unpacked="\n    ".join(unpacked),
        names=", ".join(name for name, *_ in numbered),
    )
    scope = {
        "__name__": __name__,
        "np": np,
        "carray": carray,
        "pointer": address_as_void_pointer,
        "inner": inner,
        "forward": _forward,
        "backward": _backward,
    }
    exec(compile(source, "<density>", "exec"), scope)  # noqa: S102  # made of numbers and dtypes
    numbers = types.CPointer(types.double)
    arguments = types.uint64, numbers, numbers, numbers, types.voidptr
    function = CFunc(scope["density"], (arguments, types.int64), {}, {})
    with global_compiler_lock:
        return bytes(serialize.dumps(function._compile_uncached()._reduce()))


@cache
def load(code: bytes) -> tuple[object, int]:
    """Compiled code, to be kept while it is used, and the address of its C function.

    Each code is loaded once in a process: Numba never frees what it loaded.
    """
    from numba.core.compiler import CompileResult
    from numba.core.registry import cpu_target
    from numba.core.runtime import rtsys

    rtsys.initialize(cpu_target.target_context)  # symbols that the code refers to
    parts = pickle.loads(code)  # noqa: S301  # the code may have referenced nothing but parts
    result = CompileResult._rebuild(cpu_target.target_context, *parts)
    address = result.library.get_pointer_to_function(result.fndesc.llvm_cfunc_wrapper_name)
    return (parts, result), address
