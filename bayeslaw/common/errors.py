"""Errors and warnings of the package: each message says what is wrong, where, and what to do."""

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from typing import Literal, get_args

Acceptance = Literal["unconverged", "beyond-evidence"]
"""What may be accepted of a fit: a failed convergence check, rows too far from the fitted ones."""
_SHELL = ContextVar("shell", default=False)
"""Whether messages go to a user of the command line."""


class BayeslawError(Exception):
    """Base class: a mistake that the user can correct; the message is one line."""


class TableError(BayeslawError):
    """A loss table, or a query on one, cannot be used."""


class LawError(BayeslawError):
    """A law file, a parameter or a prior is not valid."""


class FitError(BayeslawError):
    """A fit could not be made from these data with these settings."""


class NotConverged(BayeslawError):  # noqa: N818 -- the name of a state
    """The posterior failed the convergence checks; see `Posterior.accepted`."""


class FileError(BayeslawError):
    """A file is missing, damaged, of another program, or of a newer version of this package."""


class TableWarning(UserWarning):
    """A table can be used, but something in it looks like a mistake."""


class FitWarning(UserWarning):
    """A fit has a property that changes its interpretation, such as a parameter on a bound."""


@contextmanager
def command_line() -> Iterator[None]:
    """Where messages write an `argument` as an option of the command line."""
    token = _SHELL.set(True)
    try:
        yield
    finally:
        _SHELL.reset(token)


def argument(name: str, value: object) -> str:
    """An argument in a message, as its reader would write it: in Python or as an option."""
    if not _SHELL.get():
        return f"{name}={value!r}"
    option = f"--{name.replace('_', '-')}"
    if value is True:
        return option
    text = str(value)
    if isinstance(value, Mapping) and value:
        pairs = [f"{key}={item}" for key, item in value.items()]
        text = "; ".join(pairs)
    elif isinstance(value, tuple):
        text = ",".join(f"{number:g}" for number in value)
    quoted = shlex.quote(text)
    if quoted != text and not set(text) & set('"`$\\!'):
        quoted = f'"{text}"'
    return f"{option} {quoted}"


def acceptances(
    names: Acceptance | Collection[Acceptance],
) -> frozenset[Acceptance]:
    """Names of what is accepted, as one set; `BayeslawError` for one that is not valid."""
    if isinstance(names, str):
        names = [names]
    accepted = frozenset(names)
    valid = get_args(Acceptance)
    for name in sorted(accepted):
        if name not in valid:
            raise BayeslawError(unknown("name to accept", name, valid))
    return accepted


def accept(what: Acceptance) -> str:
    """How a reader accepts `what`, in a message."""
    if not _SHELL.get():
        return f'use fit.accepted("{what}")'
    verb = "pass" if what == "unconverged" else "add"
    return f"{verb} --accept {what}"


def unknown(what: str, name: str, valid: Iterable[str]) -> str:
    """Message for a name of `what` that is not valid, with the nearest and all that are."""
    names = sorted(set(valid))
    near = get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return f"unknown {what} {name!r}{hint} Valid: {', '.join(names)}."
