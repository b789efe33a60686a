"""Numbers as a person reads them."""

import math


def count(value: float) -> str:
    """Write 8.1e9 as 8.1B, 2.16e4 as 21.6k, .33 as 0.33."""
    for scale, unit, suffix in (
        (1e12, 1e12, "T"),
        (1e9, 1e9, "B"),
        (1e6, 1e6, "M"),
        (1e4, 1e3, "k"),
    ):
        if abs(value) >= 0.9995 * scale:
            return f"{value / unit:.3g}{suffix}"
    return f"{value:.3g}" if abs(value) < 1e3 else f"{value:.0f}"


def digits(value: float, places: int = 3) -> str:
    """Significant digits of a number; nothing for NaN."""
    return "" if math.isnan(value) else f"{value:#.{places}g}".rstrip(".")
