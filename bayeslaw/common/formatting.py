"""Numbers as short text, and values as JSON has them."""

import math
from collections.abc import Mapping
from typing import Any


def count(value: float) -> str:
    """Format a count with three significant digits and a unit: k, M, B or T.

    Examples
    --------
    >>> count(8.1e9), count(2.16e4), count(279), count(999.6)
    ('8.1B', '21.6k', '279', '1000')
    """
    for scale, unit, suffix in (
        (1e12, 1e12, "T"),
        (1e9, 1e9, "B"),
        (1e6, 1e6, "M"),
        (1e4, 1e3, "k"),
    ):
        if abs(value) >= 0.9995 * scale:
            return f"{value / unit:.3g}{suffix}"
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"


def digits(value: float, places: int = 3) -> str:
    """Format a number with `places` significant digits; NaN gives an empty string.

    Examples
    --------
    >>> digits(0.12), digits(2), digits(float("nan"))
    ('0.120', '2.00', '')
    """
    return "" if math.isnan(value) else f"{value:#.{places}g}".rstrip(".")


def jsonable(value: object) -> Any:
    """Convert a value to the types of JSON; numbers that are not finite, or missing, become None.

    Examples
    --------
    >>> jsonable({"atpp": math.inf, "losses": (1.8, 2.0)})
    {'atpp': None, 'losses': [1.8, 2.0]}
    """
    import numpy as np  # inside, so that `bayeslaw --help` stays fast
    import pandas as pd

    if isinstance(value, Mapping):
        return {str(key): jsonable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    if value is pd.NA or value is pd.NaT or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value if isinstance(value, bool | int | float | str | None) else str(value)
