"""Values of options that are written as text: numbers, names, covariates, limits."""

from typing import Any

from bayeslaw.common.errors import BayeslawError, TableError, unknown

NEEDED = ("params", "max_loss", "max_forgetting")
"""Limits that a plan needs."""
LIMITS = (*NEEDED, "ptpp", "baseline", "base", "unique_tokens", "replay", "confidence")
"""Limits that a plan may have."""
CONFIDENCE = 0.9
"""Probability with which a plan meets its limits, unless one is given."""
PLAN = "params=8.1e9 ptpp=279 max_loss=1.8 max_forgetting=.02 baseline=2.05 confidence=.9"
"""Limits of a plan, as a user writes them."""


def assignments(
    text: str, option: str, example: str, separator: str | None = None
) -> dict[str, str]:
    """Parse text such as ``"params=1e9 tokens=1e9,1e10"``, written as the `example`."""
    values: dict[str, str] = {}
    for part in filter(None, map(str.strip, text.split(separator))):
        name, _, value = map(str.strip, part.partition("="))
        if not (name and value):
            raise TableError(f"{option}: cannot read {part!r}; write it as {example!r}.")
        if name in values:
            raise TableError(f"{option}: {name!r} is there twice.")
        values[name] = value
    if not values:
        raise TableError(f"{option} is empty; write it as {example!r}.")
    return values


def covariates(text: str | None, option: str = "--grid") -> dict[str, Any]:
    """Parse covariates such as ``"params=8.1B tokens=1e9,1e10"``, to arguments of `bayeslaw.grid`.

    Labels are text. There are none if the option was not given.
    """
    from bayeslaw.tables.validation import ALIASES, LABEL_COLUMNS, count

    example, values = "params=8.1e9 tokens=1e9,1e10", {}
    for name, value in assignments(text, option, example).items() if text is not None else ():
        column = ALIASES.get(name, name)
        if column in values:
            raise TableError(f"{option}: {name!r} is there twice.")
        try:
            read = str if column in LABEL_COLUMNS else count
            values[column] = [read(number) for number in value.split(",")]
        except ValueError:
            message = f"{option}: cannot read '{name}={value}'; write it as {example!r}."
            raise TableError(message) from None
    return values


def numbers(
    text: str | None,
    option: str,
    how: str = "write numbers with commas, such as 1,2",
    size: int = 0,
) -> list[float]:
    """Parse numbers such as ``"1e21,1e24"``: `size` of them, or any number if that is 0.

    There are none if the option was not given.
    """
    from bayeslaw.tables.validation import count

    if text is None:
        return []
    try:
        values = [count(number) for number in text.split(",")]
    except ValueError:
        values = []
    if not values or size not in (0, len(values)):
        raise BayeslawError(f"{option}: cannot read {text!r}; {how}.")
    return values


def names(text: str, option: str = "", what: str = "") -> list[str]:
    """Parse names such as ``"form1,form3"``: of `what`, at least one of them, if it is given."""
    listed = [name.strip() for name in text.split(",") if name.strip()]
    if what and not listed:
        raise BayeslawError(f"{option} names no {what}.")
    return listed


def band_levels(text: str) -> list[float]:
    """Parse levels of bands such as ``"0.5,0.9"``; sorted."""
    levels = numbers(text, "--levels", "write it as 0.5,0.9")
    for level in levels:
        if not 0 < level < 1:
            raise BayeslawError(f"--levels: {level:g} is not between 0 and 1; 0.9 is a 90 % band.")
    return sorted(set(levels))


def limits_of(text: str) -> dict[str, Any]:
    """Parse limits of a plan that are written like `PLAN`, to arguments of `bayeslaw.plan`."""
    from bayeslaw.tables.validation import count

    limits: dict[str, Any] = {"confidence": CONFIDENCE}
    for name, value in assignments(text, "--plan", PLAN).items():
        if name not in LIMITS:
            raise BayeslawError(f"--plan: {unknown('limit', name, LIMITS)}")
        try:
            limits[name] = value if name == "base" else count(value)
        except ValueError:
            if name != "baseline":
                message = f"--plan: cannot read '{name}={value}'; write it as {PLAN!r}."
                raise BayeslawError(message) from None
            limits[name] = value
    if lacking := [name for name in NEEDED if name not in limits]:
        raise BayeslawError(f"--plan lacks {', '.join(lacking)}; write it as {PLAN!r}.")
    if "replay" in limits:
        limits["replay_grid"] = [limits.pop("replay")]
    return limits
