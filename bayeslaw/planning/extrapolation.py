"""Where a plan extrapolates: ranges of the training rows, and choices outside them."""

import math
from collections.abc import Sequence

from bayeslaw.planning.choices import Choice
from bayeslaw.planning.fits import Fit


def training_ranges(fit: Fit) -> dict[str, tuple[float, float]]:
    """Smallest and largest params, ptpp, replay and ATPP of a fit's training rows."""
    if fit.table is None:
        return {}
    rows = fit.table.frame.assign(atpp=fit.table.frame["tokens"] / fit.table.frame["params"])
    columns = [c for c in ("params", "ptpp", "replay", "atpp") if c in rows]
    return {c: (float(rows[c].min()), float(rows[c].max())) for c in columns}


def common_ranges(fits: Sequence[Fit]) -> dict[str, tuple[float, float]]:
    """Intersections of the fits' training ranges."""
    ranges: dict[str, tuple[float, float]] = {}
    for name, (low, high) in (item for fit in fits for item in training_ranges(fit).items()):
        least, most = ranges.get(name, (-math.inf, math.inf))
        ranges[name] = max(low, least), min(high, most)
    return ranges


def extrapolations(
    choice: Choice, fits: Sequence[Fit], names: Sequence[str], params: float, ptpp: float
) -> tuple[str, ...]:
    """Quantities of a choice that lie outside a fit's training ranges, as text.

    Parameters
    ----------
    choice : Choice
    fits : sequence of Posterior or PointFit
    names : sequence of str
        Names of the fits.
    params, ptpp : float
    """
    found = []
    planned = {"params": params, "ptpp": ptpp, "replay": choice.replay, "atpp": choice.atpp}
    for name, fit in zip(names, fits, strict=True):
        for column, (low, high) in training_ranges(fit).items():
            value = planned[column]
            if math.isfinite(value) and not low * (1 - 1e-9) <= value <= high * (1 + 1e-9):
                rows = f"the {name}'s rows, {low:.4g} to {high:.4g}"
                found.append(f"{column} {value:.4g} is outside {rows}")
    return tuple(found)
