"""Compiled models, kept in the process and on disk.

A program is compiled once for a specification and serves any rows. On disk it lies in the user's
cache folder, or in the folder that ``BAYESLAW_CACHE`` names; ``BAYESLAW_CACHE=off`` keeps none.
"""

import hashlib
import logging
import os
import pickle
import stat
import sys
from collections.abc import Hashable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bayeslaw.common.arrays import Model
from bayeslaw.common.errors import FileError
from bayeslaw.common.files import atomic_write
from bayeslaw.inference.compiling import Program, compile_program, load
from bayeslaw.model.building import build
from bayeslaw.model.joint_spec import JointSpec, build_joint
from bayeslaw.model.spec import Spec

type AnySpec = Spec | JointSpec
"""What can be sampled: the model of one table, or of several."""
type Values = Mapping[str, npt.NDArray[np.generic]]

COMPILERS = ("llvmlite", "numba", "numpy", "nutpie", "pymc", "pytensor", "scipy")
"""Packages that the machine code depends on."""
MOST = 200
"""Files that are kept; each takes about a megabyte."""
_log = logging.getLogger(__name__)
_programs: dict[Hashable, Program] = {}


def program(spec: AnySpec, values: Values) -> Program:
    """The compiled model of a specification, for data of the kinds in `values`.

    It does not depend on the numbers in `values`.
    """
    kinds = [(name, value.dtype.str, value.ndim) for name, value in sorted(values.items())]
    counts = [len(v) for name, v in sorted(values.items()) if name.endswith("_groups")]
    # A joint model is compiled for given numbers of groups, that of one table for any numbers.
    key = (spec.key, *kinds, *(counts if isinstance(spec, JointSpec) else []))
    if key not in _programs:
        path = _path(key)
        found = _read(path) if path else None
        if not found:
            # Zeros as data, so that starting points depend on the seed and not on earlier fits.
            blank = {name: np.zeros_like(value) for name, value in values.items()}
            found = compile_program(build_model(spec, blank, for_sampling=True))
            _write(path, found)
        _programs[key] = found
    return _programs[key]


def build_model(spec: AnySpec, values: Values, *, for_sampling: bool) -> Model:
    """The ``pm.Model`` of one table's specification, or of several domains'."""
    if isinstance(spec, JointSpec):
        return build_joint(spec, values, for_sampling=for_sampling)
    return build(spec, values, for_sampling=for_sampling)


def _path(key: tuple[object, ...]) -> Path | None:
    """File of a program; none for third-party classes, since their source is not in the hash."""
    folder = os.environ.get("BAYESLAW_CACHE")
    if folder == "off" or not all(_own(part) for part in key):
        return None
    from numba.core.registry import cpu_target

    machine = cpu_target.target_context.codegen().magic_tuple()
    versions = [version(name) for name in COMPILERS]
    text = repr((key, machine, versions, sys.version, _source()))
    if folder is None:
        from platformdirs import user_cache_path

        folder = str(user_cache_path("bayeslaw", appauthor=False))
    return Path(folder) / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.program"


def _own(part: object) -> bool:
    if isinstance(part, tuple):
        return all(_own(each) for each in part)
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
        found: Program = pickle.loads(content)  # noqa: S301  # the user's own file, whole
        load(found.code)
    except Exception as error:  # of any kind, where another version wrote the file
        _log.info("compiled model in %s not used: %s", path, error)
        return None
    return found


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


def _write(path: Path | None, found: Program) -> None:
    """Keep a program; without a folder that can be written to, the next process compiles again."""
    if path is None:
        return
    content = pickle.dumps(found)
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
