"""Atomic writing of files: a reader finds the complete file or none."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bayeslaw.common.errors import BayeslawError, FileError


@contextmanager
def atomic_write(path: str | Path, error: type[BayeslawError] = FileError) -> Iterator[Path]:
    """Context manager for writing a file atomically.

    The block writes to a temporary file in the same folder. When the block ends without an error,
    the temporary file is renamed to `path`.

    Parameters
    ----------
    path : str or Path
    error : type of BayeslawError
        Raised if the file cannot be written.

    Yields
    ------
    Path
        The temporary file.

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
