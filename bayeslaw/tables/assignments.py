"""Covariates that are written as text, such as ``params=7e9 tokens=2e12``."""

from typing import Any

from bayeslaw.common.errors import TableError


def assignments(
    text: str, option: str, example: str, separator: str | None = None
) -> dict[str, str]:
    """Parse text such as ``"params=1e9 tokens=1e9,1e10"``, written as the `example`."""
    values: dict[str, str] = {}
    for assignment in filter(None, map(str.strip, text.split(separator))):
        name, _, value = map(str.strip, assignment.partition("="))
        if not (name and value):
            raise TableError(
                f"{option}: cannot read {assignment!r}; write it as {example!r}."
            )
        if name in values:
            raise TableError(f"{option}: {name!r} is there twice.")
        values[name] = value
    if not values:
        raise TableError(f"{option} is empty; write it as {example!r}.")
    return values


def covariates(text: str, option: str) -> dict[str, Any]:
    """Parse ``"params=8.1B tokens=1e9,1e10"`` to arguments of `bayeslaw.grid`; labels are text."""
    # The command line imports this module for its help, which needs no pandas.
    from bayeslaw.tables.validation import ALIASES, LABEL_COLUMNS, count

    example = "params=8.1e9 tokens=1e9,1e10"
    values: dict[str, Any] = {}
    for name, value in assignments(text, option, example).items():
        column = ALIASES.get(name, name)
        if column in values:
            raise TableError(f"{option}: {name!r} is there twice.")
        try:
            read = str if column in LABEL_COLUMNS else count
            values[column] = [read(number) for number in value.split(",")]
        except ValueError:
            message = (
                f"{option}: cannot read '{name}={value}'; write it as {example!r}."
            )
            raise TableError(message) from None
    return values
