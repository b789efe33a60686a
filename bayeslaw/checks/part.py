"""The result of one part of a check, and the rows to forecast."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.inference.posterior import Posterior
from bayeslaw.tables.table import LossTable
from bayeslaw.tables.validation import canonical

LEVELS = ("ok", "caution", "refuse")
RARE = 0.01
"""Significance level of each part: the false alarm rate for a fit of the true law."""
NEAR = 0.1
"""Distance beyond the training rows, in training ranges, that does not count as extrapolation."""
NAMES = {"params": "params", "tokens": "tokens", "replay": "replay", "ptpp": "PTPP"}
"""Names of the covariates in findings."""


@dataclass(frozen=True)
class Part:
    """Result of one part of a check.

    Parameters
    ----------
    name : str
    level : {"ok", "caution", "refuse"}
    words : tuple of str
        The findings, one or two sentences each.
    frame : DataFrame
        The numbers behind the findings.
    facts : mapping
        Single numbers behind the findings.
    """

    name: str
    level: str
    words: tuple[str, ...]
    frame: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    facts: Mapping[str, object] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Target:
    """The rows to forecast, in groups by PTPP, or by model size if the law has no PTPP.

    Parameters
    ----------
    frame : DataFrame
    groups : mapping of label to row numbers
    log_loss : array, shape (draws, groups)
        Mean latent log loss of each group.
    """

    frame: pd.DataFrame
    groups: Mapping[str, Ints]
    log_loss: Floats


def target(fit: Posterior, rows: LossTable | pd.DataFrame) -> Target:
    """Rows to forecast, with the posterior of their latent losses.

    Raises
    ------
    TableError
        If `rows` lack a covariate of the law.
    """
    given, name = (rows.frame, rows.name) if isinstance(rows, LossTable) else (rows, "rows")
    frame = canonical(given, name, fit.columns)
    by = "ptpp" if "ptpp" in fit.law.columns else "params"
    log_loss = np.log(fit.latent(frame))
    groups = {f"{NAMES[by]} {v:.3g}": np.array(i) for v, i in frame.groupby(by).indices.items()}
    means = np.stack([log_loss[:, index].mean(1) for index in groups.values()], 1)
    return Target(frame, groups, means)


def listed(names: Sequence[str]) -> str:
    """Names as a list in a sentence.

    Examples
    --------
    >>> listed(["alpha", "beta", "eta"])
    'alpha, beta and eta'
    """
    return " and ".join([", ".join(names[:-1])] * (len(names) > 1) + [names[-1]])
