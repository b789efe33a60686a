"""Losses of pre-trained models, from which some laws start: point fits of Chinchilla's law."""

from dataclasses import replace

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import TableError
from bayeslaw.huber.descent import Objective, polish_best, screened_starts
from bayeslaw.laws.adjustments import Bases, base_table, log_slopes, total_tokens
from bayeslaw.laws.law import Law
from bayeslaw.laws.lawfiles import for_columns, load_law
from bayeslaw.tables.table import LossTable, from_frame
from bayeslaw.tables.validation import BASE_LOSSES, label_texts

DELTA, STARTS, POLISH = 0.01, 64, 6
"""Huber threshold, starts screened and starts polished.

Losses of bases of one kind differ by less than a per cent."""


def for_table(law: Law, table: LossTable, *, whole: bool = False) -> Law:
    """The law of `for_columns`, with the bases of the table if it starts from these."""
    law = for_columns(law, table, whole=whole)
    if law.departure is None or law.bases is not None:
        return law
    law = replace(
        law, bases=fit_bases(base_table(table.frame, table.baselines, table.name), table.name)
    )
    return law if whole else law.for_bases(table)


def fit_bases(bases: pd.DataFrame, name: str) -> Bases:
    """Bases of `base_table`, with fits of Chinchilla's law to both losses, D = P N.

    `name` is that of the table.
    """
    chinchilla = load_law("chinchilla")
    free = max(len(bases) - len(chinchilla.parameters), 1)
    parameters, errors, residuals = {}, {}, []
    for column in BASE_LOSSES:
        frame = total_tokens(bases).assign(loss=bases[column], run=np.arange(len(bases)))
        rows = from_frame(frame, f"bases of {name}", loss_unit="nats")
        objective = Objective(chinchilla, rows, DELTA)
        starts = screened_starts(objective, STARTS, 0)
        points, values, _ = polish_best(objective, starts, POLISH)
        best = points[int(np.argmin(values))]
        parameters[column] = objective.paper(best)
        residuals.append(-objective.residuals(best[None])[0])
        slopes = log_slopes(chinchilla, parameters[column], frame)
        variance = (residuals[-1] ** 2).sum() / free
        errors[column] = _rows(variance * np.linalg.pinv(slopes @ slopes.T, hermitian=True))
    spread = _rows(np.array(residuals) @ np.array(residuals).T / free)
    return Bases(_known(bases, name), chinchilla, parameters, spread, errors)


def _known(bases: pd.DataFrame, name: str) -> dict[str, tuple[float, float, float, float]]:
    """N, P and both losses of the bases that have labels."""
    if "base" not in bases:
        return {}
    numbers = bases.set_index(label_texts(bases["base"]))[["params", "ptpp", *BASE_LOSSES]]
    numbers = numbers[numbers.index.notna()].astype(float)
    differ = ~np.isclose(numbers, numbers.groupby(level=0).transform("first"), 1e-6, 0).all(1)
    if differ.any():
        raise TableError(
            f"{name}: base {numbers.index[differ][0]} has several params, ptpp, start_loss or "
            "base_loss; give each pre-trained model a label of its own."
        )
    return {base: (n, p, start, own) for base, n, p, start, own in numbers.itertuples()}


def _rows(matrix: Floats) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, matrix.tolist()))
