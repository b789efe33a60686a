"""The baseline of forgetting: the source loss of the un-adapted model."""

import math
from typing import NamedTuple

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import BayeslawError
from bayeslaw.design.bases import drawn_bases, of_bases
from bayeslaw.inference.pools import Fit
from bayeslaw.laws.departure import Bases, Departure
from bayeslaw.planning.bases import NEW_BASE
from bayeslaw.planning.domains import Domain
from bayeslaw.tables.table import LossTable, Rows, of_domains
from bayeslaw.tables.validation import label_texts

type Baseline = float | tuple[float, float] | None
"""Argument of `bayeslaw.plan`: a loss, a loss and its standard deviation, or none."""
STREAM = 11
"""Random stream of a measured baseline, beside those of noise and effects of the same seed."""


class Start(NamedTuple):
    """Source loss of the un-adapted model, a number or (pairs,); in words; and as in `limits`."""

    loss: float | Floats
    words: str
    argument: float | tuple[float, float] | str


def baseline_of(baseline: Baseline, source: Domain) -> Start:
    """Baseline of forgetting of a source.

    None stands for the row with ``tokens = 0`` of the base in the source's table, on its domain.
    """
    if baseline is None:
        return _start_of_base(source)
    loss, *errors = np.atleast_1d(np.asarray(baseline, float)).tolist()
    valid_errors = len(errors) <= 1 and all(0 <= error < math.inf for error in errors)
    if not 0 < loss < math.inf or not valid_errors:
        text = f"{baseline}" if errors else f"{loss:g}"
        raise BayeslawError(
            f"baseline={text}: give a source loss in nats per token, or that and its "
            "standard deviation."
        )
    words = "measured source loss of the un-adapted model, as given"
    if not errors:
        return Start(loss, words, loss)
    sd = errors[0]
    rng = np.random.default_rng([source.run.seed, STREAM])
    normal = rng.standard_normal(source.fit.count)
    drawn = loss + sd * normal[source.pairs]
    return Start(drawn, f"{words}, with sd {sd:g}", (loss, sd))


def _start_of_base(source: Domain) -> Start:
    """The loss of the base in the source's table; of a new base, draws of it."""
    fit = source.fit
    bases = _bases_of(fit)
    is_new = source.run.base == NEW_BASE
    if fit.members and is_new and bases is not None and NEW_BASE not in bases.known:
        return Start(
            _drawn_starts(source, bases),
            "starting loss of a new base, drawn from the law of the bases",
            "drawn",
        )
    why = "pass baseline= (--baseline), the measured source loss of that model"
    if fit.table is None:
        raise BayeslawError(f"No baseline for the un-adapted model: {why}.")
    loss = _loss_in_table(source, fit.table, why)
    return Start(loss, f"row with tokens = 0 of {fit.table.name}", loss)


def _bases_of(fit: Fit) -> Bases | None:
    """Bases that a law of the fit starts from; None if no law starts from bases."""
    for law in fit.laws:
        departure = law.step(Departure)
        if departure is not None:
            return departure.bases
    return None


def _drawn_starts(source: Domain, bases: Bases) -> Floats:
    """Losses of a new base, (pairs,), drawn from the law of the bases."""
    run = source.run
    losses = np.empty(len(source.pairs))
    for k, (member, draws, pairs) in enumerate(source.fit.by_member(source.pairs)):
        if member.law.step(Departure):
            start = member.covariates(member.design(Rows(run.row)))["start"]
        else:
            drawn = drawn_bases(bases, run.row, member.count, [run.seed, k])
            start = bases.logs(of_bases(bases, run.row), drawn)[0]
        starts = np.broadcast_to(start[..., 0], member.count)
        losses[pairs] = np.exp(starts)[draws]
    return losses


def _loss_in_table(source: Domain, table: LossTable, why: str) -> float:
    """The loss of the only row with ``tokens = 0`` of the run's base in the source's table."""
    run = source.run
    rows: pd.DataFrame = of_domains(table.baselines, table.frame)
    for column, value in (("params", run.params), ("ptpp", run.ptpp)):
        if column in rows and value is not None:
            rows = rows[np.isclose(rows[column], value, rtol=1e-6, atol=0)]
    if run.base is not None and "base" in rows:
        rows = rows[label_texts(rows["base"]) == run.base]
    if len(rows) == 1:
        return float(rows["loss"].iloc[0])
    model = f"params = {run.params:g}"
    if run.ptpp is not None:
        model += f", ptpp = {run.ptpp:g}"
    if run.base is not None:
        model += f", base {run.base}"
    raise BayeslawError(
        f"{table.name}: {len(rows)} rows with tokens = 0 for {model}, not one; {why}."
    )
