"""Compiled models: kept in the process and on disk, and bound to data.

A program is compiled once for a specification and serves any rows. On disk it lies in the user's
cache folder, or in the folder that ``BAYESLAW_CACHE`` names; ``BAYESLAW_CACHE=off`` keeps none.
A `Density` is a program with data; Python evaluates it, and nutpie samples it.
"""

import ctypes
import hashlib
import logging
import os
import pickle
import stat
import sys
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numba import carray, cfunc, types
from nutpie import _lib
from nutpie.sample import CompiledModel

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import FileError
from bayeslaw.common.files import atomic_write
from bayeslaw.inference.compiling import Axis, Program, Table, compile_program, load
from bayeslaw.model.building import build
from bayeslaw.model.data import Arrays
from bayeslaw.model.spec import JointSpec, Spec

type Start = Callable[[int], Floats]
"""A starting point of a chain, in the sampler's coordinates, by a seed."""

COMPILERS = ("llvmlite", "numba", "numpy", "nutpie", "pymc", "pytensor", "scipy")
"""Packages that the machine code depends on."""
MOST = 200
"""Files that are kept; each takes about a megabyte."""
_log = logging.getLogger(__name__)
_programs: dict[Hashable, Program] = {}


def program(spec: Spec | JointSpec, arrays: Arrays) -> Program:
    """The compiled model of a specification, for data of the names and types of `arrays`.

    It does not depend on the numbers in `arrays`.
    """
    types_of_data = [(name, v.dtype.str, v.ndim) for name, v in sorted(arrays.items())]
    counts = [len(v) for name, v in sorted(arrays.items()) if name.endswith("_groups")]
    # A joint model is compiled for given numbers of groups, that of one table for any numbers.
    key = (spec.key, *types_of_data, *(counts if isinstance(spec, JointSpec) else []))
    if key not in _programs:
        path = _path(key)
        compiled = _read(path) if path else None
        if not compiled:
            # Zeros as data, so that starting points depend on the seed and not on earlier fits.
            blank = {name: np.zeros_like(value) for name, value in arrays.items()}
            compiled = compile_program(build(spec, blank, for_sampling=True))
            _write(path, compiled)
        _programs[key] = compiled
    return _programs[key]


def _path(key: tuple[object, ...]) -> Path | None:
    """File of a program; none for third-party classes, since their source is not in the hash."""
    folder = os.environ.get("BAYESLAW_CACHE")
    if folder == "off" or not all(_shipped(part) for part in key):
        return None
    from numba.core.registry import cpu_target

    machine = cpu_target.target_context.codegen().magic_tuple()
    versions = [version(name) for name in COMPILERS]
    text = repr((key, machine, versions, sys.version, _source()))
    if folder is None:
        from platformdirs import user_cache_path

        folder = str(user_cache_path("bayeslaw", appauthor=False))
    return Path(folder) / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.program"


def _shipped(part: object) -> bool:
    """Whether all classes in a key are this package's."""
    if isinstance(part, tuple):
        return all(_shipped(each) for each in part)
    return not isinstance(part, type) or part.__module__.startswith("bayeslaw.")


@cache
def _source() -> str:
    """Hash of the package's code that a program comes from."""
    package = Path(__file__).parents[1]
    folders = ("laws", "model", "inference")
    files = sorted(file for folder in folders for file in (package / folder).glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _read(path: Path) -> Program | None:
    """The program in a file; none if it is not whole, not the user's alone, or does not load."""
    try:
        if (content := _content(path)) is None:
            return None
        program: Program = pickle.loads(content)  # noqa: S301  # the user's own file, whole
        load(program.code)
    except Exception as error:  # of any kind, where another version wrote the file
        _log.info("compiled model in %s not used: %s", path, error)
        return None
    return program


def _content(path: Path) -> bytes | None:
    """Content of a whole file that none but the user may have written."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        if not all(map(_private, (os.fstat(file.fileno()), path.parent.stat()))):
            return None
        digest, content = file.read().split(b"\n", 1)
    return content if hashlib.sha256(content).hexdigest().encode() == digest else None


def _private(status: os.stat_result) -> bool:
    """Whether a file or folder is the user's and closed to others; on Windows not known: yes."""
    return not hasattr(os, "getuid") or (
        status.st_uid == os.getuid() and not status.st_mode & stat.S_IWOTH
    )


def _write(path: Path | None, program: Program) -> None:
    """Keep a program; without a folder that can be written to, the next process compiles again."""
    if path is None:
        return
    content = pickle.dumps(program)
    digest = hashlib.sha256(content).hexdigest().encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with atomic_write(path) as temporary:
            temporary.write_bytes(digest + b"\n" + content)
        files = sorted(path.parent.glob("*.program"), key=lambda file: file.stat().st_mtime)
        for file in files[:-MOST]:
            file.unlink(missing_ok=True)
    except (OSError, FileError) as error:
        _log.info("compiled model not kept: %s", error)


_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_uint64, *[ctypes.c_void_p] * 4)


class Density:
    """Log density of a model given data, over a vector of coordinates on the real line.

    Parameters
    ----------
    program : Program
    arrays : mapping of str to array
        The data.

    Attributes
    ----------
    size : int
        Number of coordinates.
    places : dict of str to slice
        Part of the vector of coordinates that each variable takes.
    start : array, shape (coordinates,)
        Where PyMC would start.
    """

    def __init__(self, program: Program, arrays: Arrays) -> None:
        self.program = program
        self._data = [np.asarray(arrays[n], dtype, order="C") for n, dtype, _ in program.data]
        for (name, _, dimensions), array in zip(program.data, self._data, strict=True):
            if array.ndim != dimensions:
                raise ValueError(f"data {name!r} have {array.ndim} dimensions, not {dimensions}")
        lengths = {name: len(value) for name, value in arrays.items() if np.ndim(value)}

        def shape(axes: tuple[Axis, ...]) -> tuple[int, ...]:
            return tuple(lengths[axis] if isinstance(axis, str) else axis for axis in axes)

        self._shapes = {v.name: shape(v.shape) for v in program.variables}
        real = {v.name: shape(v.real) for v in program.variables}
        self.size, self.places = _places(real)
        starts = [np.broadcast_to(v.start, real[v.name]).ravel() for v in program.variables]
        self.start = np.concatenate(starts)
        self._loaded, self._address = load(program.code)
        self._identity = np.zeros(self.size), np.ones((self.size, 1))
        self._unmapped = self._table(np.zeros(0), *self._identity)

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
        failed = self._evaluate(self._unmapped, point, gradient, value)
        return (np.nan if failed else float(value[0])), gradient

    def variables(self, points: Floats) -> dict[str, Floats]:
        """Values of the variables, each with the shape of `points` but for its last axis."""
        count, places = _places(self._shapes)
        flat = np.ascontiguousarray(points.reshape(-1, self.size), float)
        values = np.empty((len(flat), count))
        room, value, gradient = np.zeros(count), np.zeros(1), np.zeros(self.size)
        table = self._table(room, *self._identity)
        for row, point in zip(values, flat, strict=True):
            self._evaluate(table, point, gradient, value)
            row[:] = room
        lead = points.shape[:-1]
        return {
            name: values[:, places[name]].reshape(*lead, *shape)
            for name, shape in self._shapes.items()
        }

    def mapped(self, shift: Floats, factor: Floats, start: Start) -> "Mapped":
        """The model for nutpie, in coordinates of which these are ``shift + factor @ sampled``."""
        table = self._table(np.zeros(0), np.ascontiguousarray(shift), np.ascontiguousarray(factor))
        return Mapped({}, self._address, table, self.size, start, self)

    def _table(self, room: Floats, shift: Floats, factor: Floats) -> Table:
        return Table([room, shift, factor, *self._data])

    def _evaluate(self, table: Table, point: Floats, gradient: Floats, value: Floats) -> int:
        pointers = (array.ctypes.data for array in (point, gradient, value, table.words))
        return int(_FUNCTION(self._address)(self.size, *pointers))


def _places(shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, dict[str, slice]]:
    """Length of a vector of variables of these shapes, and the part that each takes."""
    end, places = 0, {}
    for name, shape in shapes.items():
        places[name] = slice(end, end := end + int(np.prod(shape, dtype=int)))
    return end, places


@cache
def _copy() -> Any:
    """Compiled function by which nutpie stores a draw as it is.

    It is not cached on disk, because Numba raises where it finds no folder to write to.
    """
    numbers = types.CPointer(types.double)

    @cfunc(types.int64(types.uint64, types.uint64, numbers, numbers, types.voidptr))
    def copy(count, size, sampled_, stored_, table_):
        sampled, stored = carray(sampled_, int(count)), carray(stored_, int(size))
        for i in range(stored.size):
            stored[i] = sampled[i]
        return 0

    return copy


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
