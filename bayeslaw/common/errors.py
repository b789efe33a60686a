"""The errors a user can meet: each message says what is wrong, where, and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


class BayeslawError(Exception):
    """Base class: a mistake the user can mend, told in one line."""


class TableError(BayeslawError):
    """A loss table, or a query on one, cannot be used."""


class LawError(BayeslawError):
    """A law file, a parameter or a prior is not valid."""


class FitError(BayeslawError):
    """A fit could not be made from these data with these settings."""


class NotConverged(BayeslawError):  # noqa: N818 -- it names the state of the posterior
    """The posterior failed the convergence gate; pass ``allow_unconverged=True`` to use it."""


class FileError(BayeslawError):
    """A file is missing, truncated, foreign, or newer than this version can read."""


class TableWarning(UserWarning):
    """A table is usable but something about it looks like a mistake."""


class FitWarning(UserWarning):
    """A fit ended somewhere that changes what it means, such as on a bound."""


def unknown(what: str, name: str, valid: Iterable[str]) -> str:
    """Sentence for a misspelt name: the nearest valid one, then all of them."""
    names = sorted(valid)
    near = get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return f"unknown {what} {name!r}{hint} Valid: {', '.join(names)}."
