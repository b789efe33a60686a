"""Files: atomic writing, so that none is found half-written; JSON; what is shipped; processes."""

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_ident
from typing import Any
from uuid import uuid4

from bayeslaw.common.errors import BayeslawError, FileError
from bayeslaw.common.progress import showing, step

type Document = dict[str, Any]
"""Plain data of a JSON or TOML file."""

type Call[T] = tuple[Callable[..., T], tuple[object, ...]]
"""A function and its arguments."""


LONGEST_HOLD = 10.0
"""Seconds that others wait for a file that is `held`; reading and writing it takes milliseconds."""


def atomic_write(
    path: str | Path,
    content: bytes | memoryview | str,
    error: type[BayeslawError] = FileError,
    *,
    new: bool = False,
) -> None:
    """Write a file at once: an earlier one stays whole if an error or an interrupt comes.

    A symbolic link stays one, and an earlier file's permissions are kept. What is no file, such as
    ``/dev/stdout``, is written to. A `new` file replaces none, also if two are written at one time.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        target = Path(os.path.realpath(path))
        if os.path.exists(target) and not os.path.isfile(target):
            target.write_bytes(data)
            return
        # In the same folder, since a rename is atomic only within a file system. Its name is short,
        # for the longest names that there may be, and no other thread or process has it.
        temporary = target.with_name(f".{uuid4().hex}")
        try:
            with temporary.open("xb") as file:
                with suppress(FileNotFoundError):
                    shutil.copymode(target, temporary)
                file.write(data)
            if new:
                _claim(target, temporary)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as cause:
        raise error(f"{path}: cannot write: {cause.strerror or cause}.") from cause


def _claim(target: Path, content: Path) -> None:
    """Make a file that does not exist yet, with that content; `FileExistsError` if it does."""
    try:
        os.link(content, target)
    except FileExistsError:
        raise
    except OSError:  # of a file system without hard links
        # Empty for a moment: only one process can create it, and then it replaces its own file.
        target.open("xb").close()


@contextmanager
def held(path: str | Path) -> Iterator[None]:
    """Hold a file, so that what is read and written inside is not lost to another process.

    A second file says that it is held. Only one process can create that, also on a shared file
    system, where locks of the operating system may be without effect.
    """
    target = Path(os.path.realpath(path))
    # A short name, for the longest names that there may be.
    name = hashlib.sha256(target.name.encode()).hexdigest()
    mark = target.with_name(f".{name[:16]}.lock")
    until = time.monotonic() + LONGEST_HOLD
    while True:
        try:
            mark.open("xb").close()
            break
        except FileExistsError as cause:
            if time.monotonic() > until:
                raise FileError(
                    f"{path}: another process is writing it, or one was killed while it did; if "
                    f"none is, delete {mark}."
                ) from cause
            time.sleep(0.02)
        except OSError as cause:
            raise FileError(
                f"{path}: cannot write: {cause.strerror or cause}."
            ) from cause
    try:
        yield
    finally:
        mark.unlink(missing_ok=True)


def write_json(
    document: Mapping[str, object], path: str | Path, *, new: bool = False
) -> None:
    """Write JSON that is easy to read: each innermost list or mapping on one line."""

    def joined(match: re.Match[str]) -> str:
        return re.sub(r"\n\s*", " ", match[0])

    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    # Join the lines of the innermost brackets. A line break is never inside a JSON string.
    text = re.sub(r"[\[{]\n[^\[\]{}]*[\]}]", joined, text)
    atomic_write(path, text + "\n", new=new)


def read_json(path: str | Path, form: str, schema: int, what: str) -> Document:
    """Read a JSON document of a ``format`` with that ``schema`` or an older one.

    A file that is damaged raises ValueError, KeyError, TypeError, AttributeError or RecursionError.
    """
    path = Path(path)
    if not path.is_file():
        raise FileError(f"{path}: no such file.")

    def unique(pairs: list[tuple[str, object]]) -> Document:
        # Of two values of a key, a reader may see the one and the package the other.
        values: Document = {}
        for key, value in pairs:
            if key in values:
                raise ValueError(f"{key!r} is there twice")
            values[key] = value
        return values

    document = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=unique)
    if document["format"] != form:
        raise FileError(f"{path}: not {what} of bayeslaw.")
    if document["schema"] > schema:
        raise FileError(
            f"{path}: schema {document['schema']} is newer than this version reads ({schema}); "
            "upgrade bayeslaw."
        )
    return dict(document)


def digest(value: object) -> str:
    """SHA-256 of plain data: equal for equal data, however the file is laid out."""

    def number(text: str) -> float:
        # Other programs write 1e9 for 1000000000; integers beyond 2^53 must stay apart.
        return float(text) if int(text) == float(text) else int(text)

    numbers = json.loads(json.dumps(value), parse_int=number)
    text = json.dumps(numbers, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def is_hdf5(path: Path) -> bool:
    """Whether a file has the first bytes of HDF5, as saved posteriors have."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(8) == b"\x89HDF\r\n\x1a\n"


def named_file(name: str | Path) -> Path | None:
    """The file of that path; none if the text is a name and not a path."""
    path = Path(name)
    if path.is_file():
        return path
    if isinstance(name, Path) or path.suffix or len(path.parts) > 1:
        raise FileError(f"{path}: no such file.")
    return None


def shipped(name: str) -> Path:
    """A file or folder that comes with the package, in an installed wheel or in a clone."""
    package = Path(__file__).parents[1]
    installed = package / name
    return installed if installed.exists() else package.parent / name


def models_dir() -> Path:
    """The folder of the law files that come with the package."""
    return shipped("models")


def results[T](
    calls: Sequence[Call[T]],
    jobs: int,
    what: str,
    show: bool | None,
    *,
    ordered: bool = True,
) -> Iterator[T]:
    """Results of calls, each as soon as it is there; `show` says whether progress is shown.

    The calls run in `jobs` processes of joblib, or on the backend of `joblib.parallel_config`.
    """
    from joblib import Parallel, delayed

    with showing(show), step(what, len(calls)) as move:
        here = (os.getpid(), get_ident())
        tasks = (delayed(_call)(here, *call) for call in calls)
        how = "generator" if ordered else "generator_unordered"
        parallel = Parallel(n_jobs=jobs, return_as=how)
        for done, result in enumerate(parallel(tasks), 1):
            move(done)
            yield result


def _call[T](
    caller: object, function: Callable[..., T], arguments: tuple[object, ...]
) -> T:
    # Several processes or threads at once cannot say on one line what they do.
    here = (os.getpid(), get_ident())
    with showing(None if caller == here else False):
        return function(*arguments)
