"""What runs cost, in FLOPs: their own training, and once per base the set-up of its stage."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from bayeslaw.common.errors import BayeslawError, unknown
from bayeslaw.laws.law import Law
from bayeslaw.model.random_effects import labels

type Floats = npt.NDArray[np.float64]
type Ints = npt.NDArray[np.int64]

KINDS = ("flops", "adaptation")


@dataclass(frozen=True)
class Costs:
    """Costs of candidate rows, each its run trained up to that row.

    Parameters
    ----------
    own : array, shape (rows,)
        Cost of the run up to the row; rows of a run share it, so a run costs its dearest row.
    run, base : array of int, shape (rows,)
        Which rows share a run, and a pre-trained model.
    setup : array, shape (bases,)
        Cost of each base, paid with the first run from it; 0 if it is there already.
    """

    own: Floats
    run: Ints
    base: Ints
    setup: Floats

    def further(self, bought: Sequence[int]) -> Floats:
        """Further cost of each row after the rows `bought`, shape (rows,)."""
        left = self.setup.copy()
        left[self.base[list(bought)]] = 0
        return np.maximum(self.own - self._paid(bought)[self.run], 0) + left[self.base]

    def total(self, bought: Sequence[int]) -> float:
        """Cost of some rows together."""
        bases = np.unique(self.base[list(bought)])
        return float(self._paid(bought).sum() + self.setup[bases].sum())

    def _paid(self, bought: Sequence[int]) -> Floats:
        paid = np.zeros(self.run.max() + 1)
        np.maximum.at(paid, self.run[list(bought)], self.own[list(bought)])
        return paid


def costs(
    frame: pd.DataFrame,
    law: Law,
    *,
    cost: str = "flops",
    fitted: pd.DataFrame | None = None,
) -> Costs:
    """Costs of the rows of a table or grid.

    Parameters
    ----------
    frame : DataFrame
        Covariates, and `run` where rows are checkpoints of one run.
    law : Law
        Stages are set up for laws with `ptpp` alone.
    cost : "flops", "adaptation", or a column of `frame`
        ``"flops"`` is 6 N D, and for each pair of N and PTPP that is not among the rows of `fitted`
        once 6 N times its N PTPP pre-training tokens; ``"adaptation"`` is 6 N D alone, as if every
        base were there; a column holds each run's cost up to the row, in any unit.
    fitted : DataFrame, optional
        Rows whose bases exist.

    Raises
    ------
    BayeslawError
        If `cost` is unknown, or a cost is not positive and finite.
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
    if "ptpp" not in law.columns:
        return Costs(own, run, np.zeros(len(frame), int), np.zeros(1))
    base, unique = bases(frame)
    setup = 6 * unique[:, 0] ** 2 * unique[:, 1]
    if cost != "flops":
        setup[:] = 0
    elif fitted is not None:
        there = fitted[["params", "ptpp"]].to_numpy(float)
        setup[np.isclose(unique[:, None], there, rtol=1e-6).all(-1).any(1)] = 0
    return Costs(own, run, base, setup)


def bases(frame: pd.DataFrame) -> tuple[Ints, Floats]:
    """Pair of N and PTPP of each row, as an index, and the pairs."""
    pairs = frame[["params", "ptpp"]].to_numpy(float)
    unique, index = np.unique(pairs, axis=0, return_inverse=True)
    return index.ravel(), unique
