"""Values of options that are written as text, as the types of the options that have them.

An option of an annotated type is parsed by the function of its annotation before a command runs:
from the text and the name of the option. One that was not given is empty.
"""

from functools import partial
from typing import Annotated, Any

from bayeslaw.common.errors import BayeslawError, unknown
from bayeslaw.tables.assignments import assignments, covariates

LIMITS = [
    "params",
    "max_loss",
    "max_forgetting",
    "ptpp",
    "baseline",
    "base",
    "unique_tokens",
]
LIMITS += ["replay", "confidence", "losses"]
"""Limits that a plan may have; the first three are needed."""
CONFIDENCE = 0.9
"""Probability with which a plan meets its limits, unless one is given."""
PLAN = (
    "params=8.1e9 ptpp=279 max_loss=1.8 max_forgetting=.02 baseline=2.05 confidence=.9"
)
"""Limits of a plan, as a user writes them."""


def numbers(
    text: str,
    option: str,
    how: str = "write numbers with commas, such as 1,2",
    size: int = 0,
) -> list[float]:
    """Parse ``"1e21,1e24"``: `size` numbers, or as many as there are if that is 0."""
    from bayeslaw.tables.validation import count

    try:
        values = [count(number) for number in text.split(",")]
    except ValueError:
        values = []
    if not values or size not in (0, len(values)):
        raise BayeslawError(f"{option}: cannot read {text!r}; {how}.")
    return values


def band_levels(text: str, option: str) -> list[float]:
    """Parse levels of bands such as ``"0.5,0.9"``; sorted."""
    levels = numbers(text, option, "write it as 0.5,0.9")
    for level in levels:
        if not 0 < level < 1:
            raise BayeslawError(
                f"{option}: {level:g} is not between 0 and 1; 0.9 is a 90 % band."
            )
    return sorted(set(levels))


def law_names(text: str, option: str) -> list[str]:
    """Parse ``"form1,form3"``."""
    listed = [name.strip() for name in text.split(",") if name.strip()]
    if not listed:
        raise BayeslawError(f"{option} names no law.")
    return listed


def limits(text: str, option: str) -> dict[str, Any]:
    """Parse limits of a plan that are written like `PLAN`, to arguments of `bayeslaw.plan`."""
    from bayeslaw.tables.validation import count

    values: dict[str, Any] = {"confidence": CONFIDENCE}
    for name, value in assignments(text, option, PLAN).items():
        if name not in LIMITS:
            raise BayeslawError(f"{option}: {unknown('limit', name, LIMITS)}")
        try:
            values[name] = value if name in ("base", "losses") else count(value)
        except ValueError:
            message = f"{option}: cannot read '{name}={value}'; write it as {PLAN!r}."
            raise BayeslawError(message) from None
    # A base has its own params.
    needed = LIMITS[1:3] if "base" in values else LIMITS[:3]
    if lacking := [name for name in needed if name not in values]:
        raise BayeslawError(
            f"{option} lacks {', '.join(lacking)}; write it as {PLAN!r}."
        )
    return values


Numbers = Annotated[list[float], numbers]
Range = Annotated[list[float], partial(numbers, how="write it as 1,1000", size=2)]
Ratios = Annotated[list[float], partial(numbers, how="write it as 0.3 or 0.1,0.2")]
Levels = Annotated[list[float], band_levels]
Covariates = Annotated[dict[str, Any], covariates]
Columns = Annotated[
    dict[str, str],
    partial(assignments, example="params=size; loss=final_loss", separator=";"),
]
Laws = Annotated[list[str], law_names]
PlanLimits = Annotated[dict[str, Any], limits]
