"""Files are there whole or not at all: written beside, then renamed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bayeslaw.common.errors import BayeslawError, FileError


@contextmanager
def whole(path: str | Path, error: type[BayeslawError] = FileError) -> Iterator[Path]:
    """Path to write to in the block; it takes the place of `path` when the block ends.

    Raises
    ------
    BayeslawError
        Of class `error`, if the file cannot be written; an earlier one is left as it was.
    """
    path = Path(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield beside
        beside.replace(path)
    except OSError as cause:
        raise error(f"{path}: cannot write: {cause.strerror or cause}.") from cause
    finally:
        beside.unlink(missing_ok=True)
