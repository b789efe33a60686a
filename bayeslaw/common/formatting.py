"""Numbers as short text."""

import math


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
