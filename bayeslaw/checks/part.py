"""A part of a check, and what its parts share: the rows to forecast, and words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw.evaluate.densities import Floats
from bayeslaw.inference.posterior import Posterior
from bayeslaw.tables.table import LossTable

LEVELS = ("ok", "caution", "refuse")
RARE = 0.01
"""Chance of a deviation this large in a sound fit, per part, below which the part says caution."""
NAMES = {"params": "params", "tokens": "tokens", "replay": "replay", "ptpp": "PTPP"}


@dataclass(frozen=True)
class Part:
    """One part of a check.

    Parameters
    ----------
    name : str
    level : {"ok", "caution", "refuse"}
    words : tuple of str
        The finding, a sentence or two each.
    frame : DataFrame
        The numbers behind it.
    facts : mapping
        Single numbers behind it.
    """

    name: str
    level: str
    words: tuple[str, ...]
    frame: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Target:
    """The rows to forecast, in groups of one stage, or of one size where the law has no PTPP.

    Parameters
    ----------
    frame : DataFrame
    groups : mapping of label to row numbers
    log_loss : array, shape (draws, groups)
        Mean latent log loss of each group.
    """

    frame: pd.DataFrame
    groups: Mapping[str, Any]
    log_loss: Floats


def target(fit: Posterior, rows: LossTable | pd.DataFrame) -> Target:
    """Rows with what the posterior forecasts for them."""
    frame = (rows.frame if isinstance(rows, LossTable) else rows).reset_index(drop=True)
    by = "ptpp" if "ptpp" in fit.law.columns else "params"
    log_loss = np.log(fit.latent(frame))
    groups = {f"{NAMES[by]} {v:.3g}": np.array(i) for v, i in frame.groupby(by).indices.items()}
    means = np.stack([log_loss[:, index].mean(1) for index in groups.values()], 1)
    return Target(frame, groups, means)


def worst(*levels: str) -> str:
    """The worst of some levels."""
    return max(levels, key=LEVELS.index)


def listed(names: Sequence[str]) -> str:
    """Names as in a sentence: a, b and c."""
    return " and ".join([", ".join(names[:-1])] * (len(names) > 1) + [names[-1]])
