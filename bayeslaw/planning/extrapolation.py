"""Where a plan extrapolates: ranges and convex hull of the training rows, choices outside them."""

import math
from collections.abc import Sequence

import pandas as pd

from bayeslaw.planning.choices import Choice
from bayeslaw.planning.fits import Fit
from bayeslaw.tables.hull import distance, locate


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
    """How a choice lies outside the training rows of each fit, as text.

    Quantities outside their range are named first. Then comes the distance of the plan from the
    convex hull of the training rows (see `bayeslaw.locate`), also if each quantity is in its range.

    Parameters
    ----------
    choice : Choice
    fits : sequence of Posterior or PointFit
    names : sequence of str
        Names of the fits.
    params, ptpp : float
    """
    found: list[str] = []
    planned = {"params": params, "ptpp": ptpp, "replay": choice.replay, "atpp": choice.atpp}
    row = pd.DataFrame([{**planned, "tokens": params * choice.atpp}])
    for name, fit in zip(names, fits, strict=True):
        if fit.table is None:
            continue
        own = []
        for column, (low, high) in training_ranges(fit).items():
            value = planned[column]
            if math.isfinite(value) and not low * (1 - 1e-9) <= value <= high * (1 + 1e-9):
                range_ = (
                    f"{low:.4g} to {high:.4g}" if low < high else f"all {low:.4g} (a projection)"
                )
                own.append(f"{column} {value:.4g} is outside the {name}'s rows, {range_}")
        if 0 < choice.atpp < math.inf:
            position = locate(fit.table, row, fit.columns).iloc[0]
            if position["efolds"]:
                far = distance(position["efolds"], position["decades"])
                each = "" if own else ", though each of its quantities is within its range"
                own.append(f"the plan is {far} outside the convex hull of the {name}'s rows{each}")
        found += own
    return tuple(found)
