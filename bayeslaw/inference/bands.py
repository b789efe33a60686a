"""Bands of losses: their ends as columns, as a table, and which measured losses lie inside."""

import math
from collections.abc import Sequence

import pandas as pd

from bayeslaw.common.errors import TableError
from bayeslaw.common.formatting import count
from bayeslaw.common.shown import Format, Table
from bayeslaw.tables.validation import LABEL_COLUMNS

BAND_LEVELS = (0.5, 0.8, 0.9)


def ends(level: float) -> list[float]:
    """Probabilities of the ends of a central band, whose level is strictly between 0 and 1."""
    if not 0 < level < 1:
        raise TableError(
            f"band level {level:g} is not between 0 and 1; 0.9 is a 90 % band."
        )
    return [(1 - level) / 2, (1 + level) / 2]


def listed(levels: float | Sequence[float]) -> Sequence[float]:
    """Levels of bands, of which one may be given as a number."""
    return [levels] if isinstance(levels, int | float) else levels


def band_columns(level: float) -> list[str]:
    """Columns with the ends of a central band, such as ``lower_90`` and ``upper_90``."""
    return [f"{side}_{100 * level:g}" for side in ("lower", "upper")]


def inside(frame: pd.DataFrame, levels: Sequence[float]) -> pd.DataFrame:
    """Whether losses lie inside their bands: `inside_90` and so on, missing without a loss."""
    loss = frame["loss"]
    marks = {}
    for level in levels:
        lower, upper = (frame[column] for column in band_columns(level))
        marks[f"inside_{100 * level:g}"] = loss.between(lower, upper)
    within = pd.DataFrame(marks, frame.index)
    # A row that was not measured lies neither inside nor outside.
    return (
        within.astype("boolean").where(loss.notna(), axis=0) if loss.hasnans else within
    )


def band_table(
    frame: pd.DataFrame, covariates: Sequence[str], levels: Sequence[float]
) -> Table:
    """Medians and bands of rows; beside measured losses the error, and whether they lie inside."""
    measured = "loss" in frame
    loss = f".{_decimals(frame, levels)}f"
    columns = {c: frame[c] for c in covariates}
    if measured:
        columns["loss"] = frame["loss"]
    columns["median"] = frame["median"]
    if measured:
        columns["error"] = 100 * (frame["median"] / frame["loss"] - 1)
    as_loss = f"{{:{loss}}}".format
    for level in levels:
        name = f"{100 * level:g}"
        low, high = band_columns(level)
        band = frame[low].map(as_loss) + "–" + frame[high].map(as_loss)
        if measured:
            band += frame[f"inside_{name}"].map({True: "  in", False: " out"})
        columns[f"{name} % band"] = band
    if "position" in frame and frame["position"].nunique() > 1:
        columns["position"] = frame["position"]
    # Rows inside the hull would have a column of zeros.
    if "decades" in frame and frame["decades"].any():
        columns["decades"] = frame["decades"]
    formats: dict[str, Format] = {
        c: count for c in covariates if c not in ("row", *LABEL_COLUMNS)
    }
    formats |= {
        "loss": loss,
        "median": loss,
        "error": "{:+z.1f} %".format,
        "decades": ".2f",
    }
    shown = pd.DataFrame(columns).reset_index(drop=True)
    left = ("position", *LABEL_COLUMNS)
    return Table(shown, "", formats, ("decades", "error", "position"), left)


def _decimals(frame: pd.DataFrame, levels: Sequence[float]) -> int:
    """Enough decimals to separate the narrowest band; further ones change with the seed."""
    widths = []
    for level in levels:
        low, high = band_columns(level)
        widths.append(float((frame[high] - frame[low]).min()))
    narrowest = min(widths, default=0.0)
    if not narrowest > 0:
        return 4
    return min(max(3, -math.floor(math.log10(narrowest / 2))), 6)


def inside_words(frame: pd.DataFrame, levels: Sequence[float]) -> str:
    """How many measured losses lie inside each band."""
    words_of_levels = []
    for level in levels:
        name = f"{100 * level:g}"
        losses = int(frame[f"inside_{name}"].sum())
        words_of_levels.append(f"{losses} in the {name} % band")
    *counts, last = words_of_levels
    words = f"{', '.join(counts)} and {last}" if counts else last
    return f"Of {len(frame)} measured losses, {words}."
