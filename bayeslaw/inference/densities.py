"""A compiled log density with its data: evaluated from Python, or handed to nutpie."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import carray, cfunc, types
from nutpie import _lib
from nutpie.sample import CompiledModel

from bayeslaw.common.arrays import Floats
from bayeslaw.inference.compiling import Axis, Program, load

type Start = Callable[[int], Floats]
"""A starting point of a chain, in the sampler's coordinates, by a seed."""

_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_uint64, *[ctypes.c_void_p] * 4)
_numbers = types.CPointer(types.double)


@cache
def _copy() -> Any:
    """Compiled function by which nutpie stores a draw as it is.

    It is not cached on disk, because Numba raises where it finds no folder to write to.
    """

    @cfunc(types.int64(types.uint64, types.uint64, _numbers, _numbers, types.voidptr))
    def copy(count, size, sampled_, stored_, table_):
        sampled, stored = carray(sampled_, int(count)), carray(stored_, int(size))
        for i in range(stored.size):
            stored[i] = sampled[i]
        return 0

    return copy


class Density:
    """Log density of a model given data, over a vector of coordinates on the real line.

    Parameters
    ----------
    program : Program
    values : mapping of str to array
        The data.
    """

    def __init__(self, program: Program, values: Mapping[str, npt.NDArray[np.generic]]) -> None:
        self.program = program
        self._arrays = [np.asarray(values[n], dtype, order="C") for n, dtype, _ in program.data]
        for (name, _, dimensions), array in zip(program.data, self._arrays, strict=True):
            if array.ndim != dimensions:
                raise ValueError(f"data {name!r} have {array.ndim} dimensions, not {dimensions}")
        self._lengths = {name: len(value) for name, value in values.items() if np.ndim(value)}
        self._library, self._address = load(program.code)

    @cached_property
    def places(self) -> dict[str, slice]:
        """Slice of the vector of coordinates that each variable takes."""
        ends = np.cumsum([0, *(self._size(v.real) for v in self.program.variables)]).tolist()
        names = [variable.name for variable in self.program.variables]
        return {n: slice(a, b) for n, a, b in zip(names, ends[:-1], ends[1:], strict=True)}

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return max((place.stop for place in self.places.values()), default=0)

    @property
    def start(self) -> Floats:
        """Where PyMC would start, shape (coordinates,)."""
        parts = [
            np.broadcast_to(v.start, self._shape(v.real)).ravel() for v in self.program.variables
        ]
        return np.concatenate(parts)

    def gradient(self, point: Floats) -> tuple[float, Floats]:
        """Log density at a point, and its gradient; NaN where there is none.

        Raises
        ------
        ValueError
            If the point has another shape than (coordinates,).
        """
        point = np.ascontiguousarray(point, float)
        if point.shape != (self.size,):
            raise ValueError(f"a point has shape ({self.size},), not {point.shape}")
        value, gradient = np.zeros(1), np.zeros(self.size)
        failed = self._evaluate(self._table(0), point, gradient, value)
        return (np.nan if failed else float(value[0])), gradient

    def variables(self, points: Floats) -> dict[str, Floats]:
        """Values of the variables, each with the shape of `points` but for its last axis."""
        every = self.program.variables
        ends = np.cumsum([0, *(self._size(variable.shape) for variable in every)]).tolist()
        flat = np.ascontiguousarray(points.reshape(-1, self.size), float)
        found = np.empty((len(flat), ends[-1]))
        room, value, gradient = np.zeros(ends[-1]), np.zeros(1), np.zeros(self.size)
        table = self._table(ends[-1], room)
        for row, point in zip(found, flat, strict=True):
            self._evaluate(table, point, gradient, value)
            row[:] = room
        lead = points.shape[:-1]
        return {
            v.name: found[:, a:b].reshape(*lead, *self._shape(v.shape))
            for v, a, b in zip(every, ends[:-1], ends[1:], strict=True)
        }

    def mapped(self, shift: Floats, factor: Floats, start: Start) -> "Mapped":
        """The model for nutpie, in coordinates of which these are ``shift + factor @ sampled``."""
        table = self._table(0, np.zeros(0), shift, factor)
        return Mapped({}, self._address, table, self.size, start, self)

    def _table(
        self,
        count: int,
        room: Floats | None = None,
        shift: Floats | None = None,
        factor: Floats | None = None,
    ) -> "Table":
        size = self.size
        first = [
            np.zeros(0) if room is None else room,
            np.zeros(size) if shift is None else np.ascontiguousarray(shift),
            np.ones((size, 1)) if factor is None else np.ascontiguousarray(factor),
        ]
        return Table([*first, *self._arrays])

    def _evaluate(self, table: "Table", point: Floats, gradient: Floats, value: Floats) -> int:
        pointers = (array.ctypes.data for array in (point, gradient, value, table.words))
        return int(_FUNCTION(self._address)(self.size, *pointers))

    def _shape(self, axes: Sequence[Axis]) -> tuple[int, ...]:
        return tuple(self._lengths[axis] if isinstance(axis, str) else axis for axis in axes)

    def _size(self, axes: Sequence[Axis]) -> int:
        return int(np.prod(self._shape(axes), dtype=int))


class Table:
    """Addresses and lengths of arrays, in the order of `bayeslaw.inference.compiling.layout`."""

    def __init__(self, arrays: Sequence[npt.NDArray[Any]]) -> None:
        self.arrays = arrays  # kept, since only their addresses are in the table
        words = [number for array in arrays for number in (array.ctypes.data, *array.shape)]
        self.words = np.array(words, np.uint64)


@dataclass(frozen=True)
class Mapped(CompiledModel):  # type: ignore[misc]  # nutpie ships no types
    """A density in the form that ``nutpie.sample`` takes."""

    address: int
    table: Table
    size: int
    start: Start
    keep: object

    @property
    def n_dim(self) -> int:
        """Number of coordinates."""
        return self.size

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of what is stored."""
        return {"sampled": (self.size,)}

    @property
    def coords(self) -> dict[str, Any]:
        """Labels of dims: none."""
        return {}

    reparameterized_names = ()

    def _make_sampler(self, settings, init_mean, cores, *others):
        pointer = self.table.words.ctypes.data
        density = _lib.LogpFunc(self.address, pointer, self)
        stored = _lib.ExpandFunc(self.size, self.size, _copy().address, pointer, self)
        lengths, dims = {"coordinate": self.size}, {"sampled": ["coordinate"]}
        variables = _lib.PyVariable.new_variables(
            ["sampled"], ["float64"], [(self.size,)], lengths, dims
        )
        model = _lib.PyMcModel(
            density, stored, variables, self.size, lengths, {}, self.start, _no_adapter
        )
        return _lib.PySampler.from_pymc(settings, cores, model, *others)


def _no_adapter(*_: object) -> object:
    raise NotImplementedError("a density has no adapted transform")
