"""What runs cost: each by its longest row, and each new base once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.common.errors import BayeslawError, unknown
from bayeslaw.model import effects
from bayeslaw.tables.compute import flops_of
from bayeslaw.tables.table import LossTable

COSTS = {
    "flops": "6 N D, and the pre-training of each new base once",
    "adaptation": "6 N D of adaptation",
}
"""Costs that are computed from N, D and PTPP."""
SLACK = 1 + 1e-9
"""Factor by which rounding may exceed the budget."""


def codes_of_runs(frame: pd.DataFrame) -> Ints:
    """Run of each row as a code, shape (rows,); a row without a label is a run of its own."""
    runs = effects.labels(frame, "run")
    _, codes = np.unique(runs, return_inverse=True)
    return codes


def codes_of_bases(frame: pd.DataFrame) -> tuple[Ints, Floats]:
    """Base of each row, (rows,), and N and PTPP of each base, (bases, 2): their distinct pairs."""
    pairs = frame[["params", "ptpp"]].to_numpy(float)
    unique, index = np.unique(pairs, axis=0, return_inverse=True)
    return index.ravel(), unique


@dataclass(frozen=True)
class Costs:
    """Costs of runs: `own` of each, of its longest row, and `setup` of each base.

    That of a base, the code `base` of each run, is paid with the first run from it; it is 0 if the
    base exists. `code` is the run of each row.
    """

    own: Floats
    base: Ints
    setup: Floats
    code: Ints

    @property
    def alone(self) -> Floats:
        """Cost of each run if no other is bought, shape (runs,)."""
        return self.own + self.setup[self.base]

    def total(self, runs: Sequence[int] | Ints) -> float:
        """Cost of some runs together, with the bases that they need."""
        bought = np.unique(np.asarray(runs, int))
        bases = np.unique(self.base[bought])
        own = self.own[bought].sum()
        return float(own + self.setup[bases].sum())

    def buy(self, order: Iterable[int], k: int, budget: float) -> list[int]:
        """The first `k` runs of the order that the budget allows, each after those before it."""
        most = budget * SLACK
        bought: list[int] = []
        for run in order:
            if len(bought) < k and self.total([*bought, run]) <= most:
                bought.append(int(run))
        return bought

    def shuffled(self, seed: int | Sequence[int]) -> Ints:
        """The runs in random order."""
        rng = np.random.default_rng(seed)
        return rng.permutation(len(self.own))


def costs(
    frame: pd.DataFrame,
    columns: Sequence[str],
    *,
    cost: str = "flops",
    fitted: LossTable | None = None,
) -> Costs:
    """Costs of the runs of a table or grid; `cost` is that of `bayeslaw.choose_anchors`.

    Bases have a cost only if `ptpp` is one of the law's `columns`. Those of the training table
    `fitted` exist, also those that it has only in a row with ``tokens = 0``. 6 N D is the
    approximation of J. Kaplan et al. (2020), Scaling laws for neural language models,
    arXiv:2001.08361.
    """
    own = _costs_of_rows(frame, cost)
    positive = (own > 0) & np.isfinite(own)
    if not positive.all():
        raise BayeslawError(
            f"cost {cost!r}: not a positive number in every candidate row."
        )
    code = codes_of_runs(frame)
    # The other rows of a run are its checkpoints, and free.
    by_run = pd.Series(own).groupby(code)
    longest = by_run.idxmax().to_numpy()
    if "ptpp" not in columns:
        one_base = np.zeros(len(longest), int)
        return Costs(own[longest], one_base, np.zeros(1), code)
    base, unique = codes_of_bases(frame)
    # A column may be in another unit, to which FLOPs cannot be added.
    setup = np.zeros(len(unique))
    if cost == "flops":
        setup = _costs_of_bases(unique, fitted)
    return Costs(own[longest], base[longest], setup, code)


def _costs_of_rows(frame: pd.DataFrame, cost: str) -> Floats:
    """Cost of a run to each row: 6 N D, or what a column says."""
    if cost in COSTS:
        return flops_of(frame).to_numpy(float)
    if cost in frame:
        numbers = pd.to_numeric(frame[cost], errors="coerce")
        return numbers.to_numpy(float)
    names = [*COSTS, *map(str, frame.columns)]
    raise BayeslawError(unknown("cost", cost, names))


def _costs_of_bases(unique: Floats, fitted: LossTable | None) -> Floats:
    """FLOPs of the pre-training of bases, given N and PTPP of each, (bases, 2)."""
    # 6 N D, where D is N times PTPP.
    setup = 6 * unique[:, 0] ** 2 * unique[:, 1]
    if fitted is not None:
        rows = pd.concat([fitted.frame, fitted.baselines])
        trained = rows[["params", "ptpp"]].to_numpy(float)
        # A base that was fitted, or measured before adaptation, is paid for.
        same = np.isclose(unique[:, None], trained, rtol=1e-6).all(-1)
        exists = same.any(1)
        setup[exists] = 0
    return np.asarray(setup)
