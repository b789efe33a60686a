"""What the rows of one run share, the runs of one base, and the models of one size.

Models of one size share what was chosen for it: depth, width, learning rate, batch. A law knows
nothing of that, and left-out sizes of every ladder here lie beside the curve through the others.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from bayeslaw.common.errors import LawError, TableError, unknown

COLUMNS = {"size": "params", "base": "base", "run": "run"}
"""Column that groups rows, by level, the coarser first: models of one size, the pre-trained model,
then a run adapted from it."""
LEVELS = tuple(COLUMNS)
ALONE = "(row"
"""How the label of a row without one starts: a group of its own, never met again."""
FEWEST = {"size": 4, "base": 3, "run": 3}
"""Groups below which the spread between them cannot be told from the law."""

type Floats = npt.NDArray[np.float64]


def choose(
    effects: str | Sequence[str], frame: pd.DataFrame, name: str, discrepancy: str = "none"
) -> tuple[str, ...]:
    """Levels that get an effect.

    Parameters
    ----------
    effects : "auto", "none", or levels, such as ``"base,run"``
        ``"auto"`` takes every level that repeats in `frame` and groups it differently from the
        level below; sizes only beside a discrepancy, whose part they are.

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
        levels = LEVELS[discrepancy == "none" :]
        return tuple(n for n in levels if COLUMNS[n] in frame and _repeats(frame, n))
    asked = tuple(effects.split(",")) if isinstance(effects, str) else tuple(effects)
    for level in asked:
        if level not in LEVELS:
            raise LawError(unknown("effect", level, ("auto", "none", *LEVELS)))
        if COLUMNS[level] not in frame:
            raise TableError(
                f"{name}: no column {COLUMNS[level]!r} for the effect; add it or drop it."
            )
    return tuple(level for level in LEVELS if level in asked)


def labels(frame: pd.DataFrame, level: str) -> npt.NDArray[np.str_]:
    """Group of each row, shape (rows,); a row without a label is a group of its own."""
    rows = np.array([f"{ALONE} {i})" for i in range(len(frame))])
    if level == "size" and "params" in frame:
        return frame["params"].to_numpy(float).astype(str)
    if level not in frame:
        return rows
    return np.where(frame[level].notna(), frame[level].astype(str), rows)


def draw(
    draws: xr.Dataset, levels: Sequence[str], frame: pd.DataFrame, rng: np.random.Generator | None
) -> Floats:
    """Sum of the effects on log loss of each row, shape (draws, rows).

    Groups that were fitted have their posterior effects, but for sizes, whose are in the loss: see
    `of_size`. New ones are drawn from the spread of their level, one per group, or are zero without
    `rng`.
    """
    total = np.zeros((draws.sizes["chain"] * draws.sizes["draw"], len(frame)))
    for level in levels:
        groups, index = np.unique(labels(frame, level), return_inverse=True)
        values, known = _fitted(draws, level, groups)
        if level == "size":
            values[:] = 0.0
        if rng is not None:
            tau = draws[f"tau_{level}"].values.reshape(-1, 1)
            values = np.where(known, values, tau * rng.standard_normal(values.shape))
        total += values[:, index]
    return total


def of_size(draws: xr.Dataset, levels: Sequence[str], frame: pd.DataFrame) -> Floats:
    """Effects of the rows' sizes, shape (draws, rows); zero for sizes that were not fitted."""
    if "size" not in levels:
        return np.zeros((draws.sizes["chain"] * draws.sizes["draw"], len(frame)))
    groups, index = np.unique(labels(frame, "size"), return_inverse=True)
    return _fitted(draws, "size", groups)[0][:, index]


def _fitted(
    draws: xr.Dataset, level: str, groups: npt.NDArray[np.str_]
) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Effects of groups, shape (draws, groups), zero for new ones, and which were fitted."""
    effects = draws[f"{level}_effect"].transpose("chain", "draw", level)
    flat = effects.values.reshape(-1, effects.sizes[level])
    place = dict(zip(effects[level].values, range(flat.shape[1]), strict=True))
    known = np.array([g in place and not g.startswith(ALONE) for g in groups])
    values = np.zeros((len(flat), len(groups)))
    values[:, known] = flat[:, [place[g] for g in groups[known]]]
    return values, known


def _repeats(frame: pd.DataFrame, level: str) -> bool:
    """Whether rows repeat within enough groups of a level, and it differs from the finer one."""
    group: Any = labels(frame, level)
    below = LEVELS[LEVELS.index(level) + 1 :]
    finer = [labels(frame, other) for other in below if other in frame]
    names = [group, *finer]
    if len(finer) and len(np.unique(group)) == len(np.unique(finer[0])):
        return False
    count = len(np.unique(names[0]))
    return FEWEST[level] <= count < len(frame)
