"""Costs of runs in FLOPs: their own training, and once per base its pre-training."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.common.errors import BayeslawError, unknown
from bayeslaw.model.random_effects import labels

KINDS = ("flops", "adaptation")
"""Costs that are computed from N, D and PTPP."""


@dataclass(frozen=True)
class Costs:
    """Costs of candidate rows.

    A row stands for its run trained up to that row. Rows of one run are its checkpoints: together
    they cost what the most expensive of them costs.

    Parameters
    ----------
    own : array, shape (rows,)
        Cost of the run up to the row.
    run, base : array of int, shape (rows,)
        Run and pre-trained model of each row.
    setup : array, shape (bases,)
        Cost of each base, paid with the first run from it; 0 if the base exists.

    Examples
    --------
    Two checkpoints of one run, and a run from another base:

    >>> each = Costs(np.array([1.0, 3.0, 2.0]), np.array([0, 0, 1]), np.array([0, 0, 1]),
    ...              np.array([10.0, 20.0]))
    >>> each.further([0]).tolist()
    [0.0, 2.0, 22.0]
    >>> each.total([0, 1])
    13.0
    """

    own: Floats
    run: Ints
    base: Ints
    setup: Floats

    def further(self, bought: Sequence[int]) -> Floats:
        """Further cost of each row once the rows `bought` are paid, shape (rows,)."""
        left = self.setup.copy()
        left[self.base[list(bought)]] = 0
        return np.maximum(self.own - self._paid(bought)[self.run], 0) + left[self.base]

    def total(self, bought: Sequence[int]) -> float:
        """Cost of the rows `bought` together."""
        bases = np.unique(self.base[list(bought)])
        return float(self._paid(bought).sum() + self.setup[bases].sum())

    def _paid(self, bought: Sequence[int]) -> Floats:
        """Cost of each run, without its base, for the rows `bought`, shape (runs,)."""
        paid = np.zeros(self.run.max() + 1)
        np.maximum.at(paid, self.run[list(bought)], self.own[list(bought)])
        return paid


def costs(
    frame: pd.DataFrame,
    columns: Sequence[str],
    *,
    cost: str = "flops",
    fitted: pd.DataFrame | None = None,
) -> Costs:
    """Costs of the rows of a table or grid.

    Parameters
    ----------
    frame : DataFrame
        Covariates, and `run` where rows are checkpoints of one run.
    columns : sequence of str
        Covariates of the law. Bases have a cost only if `ptpp` is one of them.
    cost : "flops", "adaptation", or a column of `frame`
        ``"flops"`` is 6 N D for each run, and for each base 6 N times its N PTPP pre-training
        tokens. A base is a pair of N and PTPP; one among the rows of `fitted` is free.
        ``"adaptation"`` is 6 N D alone. A column has the cost of each run up to the row, in any
        unit.
    fitted : DataFrame, optional
        Rows whose bases exist.

    Returns
    -------
    Costs

    Raises
    ------
    BayeslawError
        If `cost` is unknown, or a cost is not positive and finite.

    References
    ----------
    6 N D is the approximation of J. Kaplan et al. (2020), Scaling laws for neural language models,
    arXiv:2001.08361.
    """
    if cost in KINDS:
        own = 6 * frame["params"].to_numpy(float) * frame["tokens"].to_numpy(float)
    elif cost in frame:
        own = pd.to_numeric(frame[cost], errors="coerce").to_numpy(float)
    else:
        raise BayeslawError(unknown("cost", cost, [*KINDS, *map(str, frame.columns)]))
    if not ((own > 0) & np.isfinite(own)).all():
        raise BayeslawError(f"cost {cost!r}: not a positive number in every candidate row.")
    run = np.unique(labels(frame, "run"), return_inverse=True)[1]
    if "ptpp" not in columns:
        return Costs(own, run, np.zeros(len(frame), int), np.zeros(1))
    base, unique = bases(frame)
    setup = 6 * unique[:, 0] ** 2 * unique[:, 1]
    if cost != "flops":
        setup[:] = 0
    elif fitted is not None:
        existing = fitted[["params", "ptpp"]].to_numpy(float)
        setup[np.isclose(unique[:, None], existing, rtol=1e-6).all(-1).any(1)] = 0
    return Costs(own, run, base, setup)


def bases(frame: pd.DataFrame) -> tuple[Ints, Floats]:
    """Bases of the rows: distinct pairs of N and PTPP.

    Returns
    -------
    array of int, shape (rows,)
        Base of each row.
    array, shape (bases, 2)
        N and PTPP of each base.
    """
    pairs = frame[["params", "ptpp"]].to_numpy(float)
    unique, index = np.unique(pairs, axis=0, return_inverse=True)
    return index.ravel(), unique
