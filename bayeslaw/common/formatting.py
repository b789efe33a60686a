"""Numbers as short text, values as JSON has them, and objects of named kinds as such values."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pkgutil import resolve_name
from typing import Any, cast

from bayeslaw.common.errors import LawError, unknown

ROUNDING = 1e-13
"""What sums of numbers of order one leave in place of 0."""
UNITS = (
    (1e12, 1, "T"),
    (1e9, 1, "B"),
    (1e6, 1, "M"),
    (1e3, 10, "k"),
)
"""Units of counts: their size, the least number of them that is written so, and their suffix."""


MOST_COUNT = 1e16
"""More parameters, or tokens, than any run has."""


def count(value: float) -> str:
    """Format a count with three significant digits and a unit: k (from 10k), M, B or T.

    FLOPs are more than any count, and have an exponent.
    """
    if abs(value) >= MOST_COUNT:
        return f"{value:.3g}".replace("e+", "e")
    for unit, least, suffix in UNITS:
        if abs(value) >= 0.9995 * least * unit:
            return f"{value / unit:.3g}{suffix}"
    if abs(value) < 999.5:
        return f"{value:.3g}"
    return f"{value:.0f}"


def digits(value: float, places: int = 3) -> str:
    """Format a number with `places` significant digits; NaN gives an empty string."""
    if abs(value) < ROUNDING:
        value = 0.0
    if math.isnan(value):
        return ""
    return f"{value:#.{places}g}".rstrip(".")


def certain(value: float, sd: float) -> float:
    """Round to a multiple of 1, 2 or 5 times a power of ten, four Monte Carlo sd or more.

    Other draws then give mostly the same number. It stays within a factor of two.
    """
    size = abs(value)
    if not (value and 0 < sd < math.inf and size < math.inf):
        return value
    least = min(4 * sd, size)
    ten = 10.0 ** math.floor(math.log10(least))
    units = [k * ten for k in (1, 2, 5, 10)]
    large_enough = [unit for unit in units if unit >= 0.999999 * least]
    unit = large_enough[0]
    if unit > size:
        unit = ten
    rounded = round(value / unit) * unit
    return float(f"{rounded:.12g}")


def percent(value: float) -> str:
    """Format a fraction as per cent; NaN gives an empty string."""
    if math.isnan(value):
        return ""
    return f"{round(100 * value)} %"


def duration(seconds: float) -> str:
    """Format a time in seconds, minutes from 100 s, or hours from 100 minutes."""
    for unit, name in ((1, "s"), (60, "minutes")):
        if seconds < 100 * unit:
            return f"{max(seconds / unit, 1):.0f} {name}"
    return f"{seconds / 3600:.2g} hours"


def listed(names: Sequence[str]) -> str:
    """Names as a list in a sentence: ``alpha, beta and eta``."""
    *first, last = names
    if not first:
        return last
    return f"{', '.join(first)} and {last}"


def jsonable(value: object) -> Any:
    """A value in the types of JSON; numbers that are not finite, or missing, become None."""
    import numpy as np  # inside, so that `bayeslaw --help` stays fast
    import pandas as pd

    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if value is pd.NA or value is pd.NaT:
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, bool | int | float | str | None):
        return value
    return str(value)


def kind_of[T](base: type, kinds: Mapping[str, type[T]], name: str) -> type[T]:
    """The class that is known by a name, or the user's own ``"package.module:Class"``."""
    if name in kinds:
        return kinds[name]
    what = base.__name__.lower()
    try:
        cls = resolve_name(name) if ":" in name else None
    except (ImportError, AttributeError, ValueError) as error:
        raise LawError(f"{what} {name!r}: cannot import it: {error}.") from error
    if isinstance(cls, type) and issubclass(cls, base):
        return cast("type[T]", cls)
    raise LawError(
        f"{unknown(what, name, kinds)} A class of your own, derived from {base.__name__}, is named "
        "'package.module:Class'."
    )


def stated[T](base: type, kinds: Mapping[str, type[T]], value: T) -> dict[str, Any]:
    """The kind and the fields of a dataclass as JSON has them; `made` makes an equal object."""
    cls = type(value)
    what = base.__name__.lower()
    name = f"{cls.__module__}:{cls.__qualname__}"
    for kind, of_kind in kinds.items():
        if of_kind is cls:
            name = kind
            break
    if "<locals>" in name or kind_of(base, kinds, name) is not cls:
        raise LawError(
            f"{what} {cls.__qualname__}: a file cannot name it; define the class at the top level "
            "of a module."
        )
    contents = {}
    for of_class in fields(value):  # type: ignore[arg-type]  # kinds are dataclasses
        contents[of_class.name] = getattr(value, of_class.name)
    for field, content in contents.items():
        try:
            read = json.loads(json.dumps(content))
            same = as_tuples(read) == content
        except (TypeError, ValueError):
            same = False
        if not same:
            raise LawError(
                f"{what} {name!r}: a file cannot hold its field {field!r}, {content!r}; use "
                "numbers, text, tuples, and dicts with text keys."
            )
    return {"kind": name, **contents}


def made[T](base: type, kinds: Mapping[str, type[T]], contents: Mapping[str, Any]) -> T:
    """The object that was `stated`; `LawError` if there is no such class, or no such field.

    The `contents`, as `stated` gives them, may come from a file, which must not choose what is
    imported.
    """
    values = {}
    for name, value in contents.items():
        if name != "kind":
            values[name] = as_tuples(value)
    kind = str(contents["kind"])
    what = base.__name__.lower()
    module, named, _ = kind.partition(":")
    if named and module not in sys.modules:
        raise LawError(
            f"{what} {kind!r} is not of this package: import {module} first, if you trust it."
        )
    try:
        return kind_of(base, kinds, kind)(**values)
    except TypeError as error:
        raise LawError(f"{what} {kind!r}: {error}.") from None


def as_tuples(value: Any) -> Any:
    """JSON's lists as tuples, which a frozen dataclass can hold."""
    if isinstance(value, list | tuple):
        return tuple(map(as_tuples, value))
    if isinstance(value, dict):
        return {key: as_tuples(item) for key, item in value.items()}
    return value
