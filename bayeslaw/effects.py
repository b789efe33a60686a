"""What the rows of one run share, and the runs of one base: groups of a table and their effects."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from bayeslaw.errors import LawError, TableError, unknown

LEVELS = ("base", "run")
"""Columns that group rows, the coarser first: the pre-trained model, then a run adapted from it."""
ALONE = "(row"
"""How the label of a row without one starts: a group of its own, never met again."""
FEWEST = 3
"""Groups below which the spread between them cannot be told from the law."""

type Floats = npt.NDArray[np.float64]


def choose(effects: str | Sequence[str], frame: pd.DataFrame, name: str) -> tuple[str, ...]:
    """Levels that get an effect.

    Parameters
    ----------
    effects : "auto", "none", or levels, such as ``"base,run"``
        ``"auto"`` takes every level that repeats in `frame` and groups it differently from the
        level above.

    Raises
    ------
    LawError
        If a level is unknown.
    TableError
        If a level asked for is not a column of the table.
    """
    if effects == "none":
        return ()
    if effects == "auto":
        return tuple(level for level in LEVELS if level in frame and _repeats(frame, level))
    asked = tuple(effects.split(",")) if isinstance(effects, str) else tuple(effects)
    for level in asked:
        if level not in LEVELS:
            raise LawError(unknown("effect", level, ("auto", "none", *LEVELS)))
        if level not in frame:
            raise TableError(f"{name}: no column {level!r} for the effect; add it or drop it.")
    return tuple(level for level in LEVELS if level in asked)


def labels(frame: pd.DataFrame, level: str) -> npt.NDArray[np.str_]:
    """Group of each row, shape (rows,); a row without a label is a group of its own."""
    rows = np.array([f"{ALONE} {i})" for i in range(len(frame))])
    if level not in frame:
        return rows
    return np.where(frame[level].notna(), frame[level].astype(str), rows)


def draw(
    draws: xr.Dataset, levels: Sequence[str], frame: pd.DataFrame, rng: np.random.Generator | None
) -> Floats:
    """Sum of the effects on log loss of each row, shape (draws, rows).

    Groups that were fitted have their posterior effects. New ones are drawn from the spread of
    their level, one per group, or are zero without `rng`.
    """
    total = np.zeros((draws.sizes["chain"] * draws.sizes["draw"], len(frame)))
    for level in levels:
        effects = draws[f"{level}_effect"].transpose("chain", "draw", level)
        fitted = dict(zip(effects[level].values, np.arange(effects.sizes[level]), strict=True))
        groups, index = np.unique(labels(frame, level), return_inverse=True)
        values = np.zeros((len(total), len(groups)))
        if rng is not None:
            tau = draws[f"tau_{level}"].values.reshape(-1, 1)
            values = tau * rng.standard_normal(values.shape)
        known = [i for i, g in enumerate(groups) if g in fitted and not g.startswith(ALONE)]
        flat = effects.values.reshape(len(total), -1)
        values[:, known] = flat[:, [fitted[groups[i]] for i in known]]
        total += values[:, index]
    return total


def _repeats(frame: pd.DataFrame, level: str) -> bool:
    """Whether rows repeat within enough groups of a level, and it differs from the finer one."""
    group: Any = labels(frame, level)
    finer = [labels(frame, other) for other in LEVELS[LEVELS.index(level) + 1 :] if other in frame]
    names = [group, *finer]
    if len(finer) and len(np.unique(group)) == len(np.unique(finer[0])):
        return False
    count = len(np.unique(names[0]))
    return FEWEST <= count < len(frame)
