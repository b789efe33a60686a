"""Files: atomic writing, so that none is found half-written; JSON; the folder of shipped laws."""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bayeslaw.common.errors import BayeslawError, FileError

HDF5 = b"\x89HDF\r\n\x1a\n"


@contextmanager
def atomic_write(path: str | Path, error: type[BayeslawError] = FileError) -> Iterator[Path]:
    """Context manager for writing a file atomically.

    The block writes to a temporary file in the same folder, which is yielded. When the block ends
    without an error, the temporary file is renamed to `path`.

    Raises
    ------
    BayeslawError
        Of class `error`, if the file cannot be written. An existing file is left unchanged.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        temporary.replace(path)
    except OSError as cause:
        raise error(f"{path}: cannot write: {cause.strerror or cause}.") from cause
    finally:
        temporary.unlink(missing_ok=True)


def write_json(document: Mapping[str, object], path: str | Path) -> None:
    """Write JSON that is easy to read: each innermost list or mapping on one line.

    Raises
    ------
    FileError
        If the file cannot be written. An existing file is left unchanged.
    """
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    # Join the lines of the innermost brackets. A line break is never inside a JSON string.
    text = re.sub(r"[\[{]\n[^\[\]{}]*[\]}]", lambda part: re.sub(r"\n\s*", " ", part[0]), text)
    with atomic_write(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def read_json(path: str | Path, form: str, schema: int, what: str) -> dict[str, Any]:
    """Read a JSON document whose ``format`` is `form`, and whose ``schema`` is `schema` or less.

    Raises
    ------
    FileError
        If the file is missing, of another format, or of a newer schema.
    ValueError, KeyError, TypeError, AttributeError
        If the file is damaged.
    """
    path = Path(path)
    if not path.is_file():
        raise FileError(f"{path}: no such file.")
    document = json.loads(path.read_text(encoding="utf-8"))
    if document["format"] != form:
        raise FileError(f"{path}: not {what} of bayeslaw.")
    if document["schema"] > schema:
        raise FileError(
            f"{path}: schema {document['schema']} is newer than this version reads ({schema}); "
            "upgrade bayeslaw."
        )
    return dict(document)


def digest(value: object) -> str:
    """SHA-256 of plain data: equal for equal data, however the file is laid out.

    Examples
    --------
    >>> digest({"a": 1, "b": 0.5}) == digest({"b": 0.5, "a": 1.0})
    True
    """
    numbers = json.loads(json.dumps(value), parse_int=_number)
    text = json.dumps(numbers, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _number(text: str) -> float:
    """An integer as a float where that is exact: other programs write 1e9 for 1000000000."""
    return float(text) if int(text) == float(text) else int(text)


def is_hdf5(path: Path) -> bool:
    """Whether a file has the first bytes of HDF5, as saved posteriors have."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(HDF5)) == HDF5


def installing(extra: str) -> str:
    """Command that installs an extra of the package: uv's in a clone, else pip's.

    Examples
    --------
    >>> installing("explore")
    'uv sync --extra explore'
    """
    clone = (Path(__file__).parents[2] / "pyproject.toml").is_file()
    return f"uv sync --extra {extra}" if clone else f"pip install 'bayeslaw[{extra}]'"


def named_file(name: str | Path) -> Path | None:
    """The TOML file of that path; none if the text is a name and not a path.

    Raises
    ------
    FileError
        If it is a path, by its suffix or a folder in it, and there is no such file.
    """
    path = Path(name)
    if path.is_file():
        return path
    if isinstance(name, Path) or path.suffix or len(path.parts) > 1:
        raise FileError(f"{path}: no such file.")
    return None


def models_dir() -> Path:
    """Folder of the shipped laws: inside an installed wheel, or beside the package in a clone."""
    here = Path(__file__).parent.parent
    return here / "models" if (here / "models").is_dir() else here.parent / "models"
