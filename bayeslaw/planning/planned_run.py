"""The planned run: its model, its base and its data, but not its budget or replay ratio."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import BayeslawError, argument
from bayeslaw.design.design import with_held
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.inference.pools import Fit, with_draws
from bayeslaw.laws.law import Law
from bayeslaw.planning.arguments import check_positive
from bayeslaw.planning.bases import NEW_BASE, alike, base_of, labelled_bases
from bayeslaw.tables.units import check_units


@dataclass(frozen=True)
class PlannedRun:
    """The run that is planned, except for its budget and replay ratio.

    Parameters
    ----------
    params : float
        Parameters N.
    ptpp : float or None
        Pre-training tokens per parameter; None where no law knows it.
    base : str or None
        Label of the base. Without one, a law that starts from a base takes that of N and P.
    unique_tokens : float or None
        Distinct tokens of the new data; None if none repeat.
    seed : int
        Of the noise, and of random effects that are drawn.
    replay : float
        Replay ratio of `row`. A law that was fitted to one ratio knows no other.
    """

    params: float
    ptpp: float | None
    base: str | None
    unique_tokens: float | None
    seed: int
    replay: float

    def rows(self, budgets: float | Floats, ratios: float | Floats) -> pd.DataFrame:
        """A row for each pair of a budget, log ATPP, and a replay ratio."""
        budgets, ratios = np.broadcast_arrays(np.atleast_1d(budgets), ratios)
        columns = {
            "params": self.params,
            "tokens": self.params * np.exp(budgets),
            "replay": ratios,
        }
        optional = {
            "ptpp": self.ptpp,
            "base": self.base,
            "unique_tokens": self.unique_tokens,
        }
        for name, value in optional.items():
            if value is not None:
                columns[name] = value
        return pd.DataFrame(columns)

    @property
    def row(self) -> pd.DataFrame:
        """A row for random effects and noise, which depend on neither budget nor replay."""
        return self.rows(0.0, self.replay)

    def at(self, tokens: float, replay: float) -> pd.DataFrame:
        """The row of a budget and a replay ratio."""
        return self.row.assign(tokens=tokens, replay=replay)


def run_of(
    fits: Sequence[Fit],
    params: float | None,
    ptpp: float | None,
    base: str | None,
    unique_tokens: float | None,
    seed: int,
) -> tuple[PlannedRun, str]:
    """The planned run, checked against the laws of the fits, and its base in words."""
    for fit in fits:
        if not isinstance(fit, PointFit):
            with_draws(fit, "plan")
    bases = labelled_bases(fits)
    named = bases[bases["label"] == base]
    if params is None and named["params"].nunique() == 1:
        params = float(named["params"].iloc[0])
    if ptpp is None and named["ptpp"].nunique() == 1:
        ptpp = float(named["ptpp"].iloc[0])
    if params is None:
        if base is not None and base != NEW_BASE:
            # Raises an error that lists the labels, if the base has none of them.
            base_of(bases, base, math.nan, None)
        raise BayeslawError(
            "a plan needs params= (--params), or base= (--base), a known one."
        )
    stage = _stage_of(fits, ptpp)
    check_positive(params=params, ptpp=stage, unique_tokens=unique_tokens)
    label, words = base_of(bases, base, params, stage)
    rows_of_base = alike(bases[bases["label"] == label], params, stage)
    if len(rows_of_base):
        # The base's own numbers: those that the user gave may be rounded.
        params = float(rows_of_base["params"].iloc[0])
        if stage is not None:
            stage = float(rows_of_base["ptpp"].iloc[0])
    laws = [law for fit in fits for law in fit.laws]
    run = PlannedRun(params, stage, label, unique_tokens, seed, _only_replay(laws))
    # Tokens and replay are what the plan looks for.
    row = run.row.drop(columns=["tokens", "replay"])
    for law in laws:
        with_held(law, row, "plan")
    for fit in fits:
        if fit.table is not None:
            check_units(row, "plan", fit.table.frame)
    return run, words


def _only_replay(laws: Sequence[Law]) -> float:
    """The replay ratio of the first law that was fitted to a single one; 0.5 if none was."""
    for law in laws:
        if "replay" in law.held:
            return law.held["replay"]
    return 0.5


def _stage_of(fits: Sequence[Fit], ptpp: float | None) -> float | None:
    """Pre-training tokens per parameter: the argument, or the only value in the fits' tables."""
    stages: set[float] = set()
    for fit in fits:
        if fit.table is not None and "ptpp" in fit.table.frame:
            stages.update(fit.table.frame["ptpp"].astype(float))
    if ptpp is None and len(stages) == 1:
        return stages.pop()
    for fit in fits:
        declared = []
        for law in fit.laws:
            declared += [name for name in law.declared if name in law.columns]
        if declared:
            raise BayeslawError(
                f"{fit.name}: a plan does not know {', '.join(declared)}; fit the rows of one "
                f"value, such as {argument('where', f'{declared[0]} == 8')}."
            )
    if ptpp is None and any("ptpp" in fit.columns for fit in fits):
        raise BayeslawError(
            "a plan needs ptpp= (--ptpp): the laws know pre-training budgets."
        )
    return ptpp
