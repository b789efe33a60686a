"""What a table says beyond its rows: repeated tokens, and laws of its bases' losses."""

from dataclasses import replace

import numpy as np

from bayeslaw.common.arrays import Floats
from bayeslaw.huber.multistart import polish_best
from bayeslaw.huber.objective import Objective
from bayeslaw.huber.starts import screened_starts
from bayeslaw.laws.adjustments import UNIQUE, unannealed
from bayeslaw.laws.bases import Bases, base_table, log_slopes, total_tokens
from bayeslaw.laws.law import Law
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.tables.reading import from_frame
from bayeslaw.tables.table import LossTable
from bayeslaw.tables.validation import BASE_LOSSES

SAME = 0.01
"""Threshold of the Huber loss; losses of bases of one kind differ by less than a per cent."""
STARTS, POLISH = 64, 6
"""Starts that are screened, and of those, polished."""


def for_table(law: Law, table: LossTable) -> Law:
    """The law with what the columns of a table call for.

    With `unique_tokens` it has a term of repetition, and with rows that are `annealed` and others
    that are not, an offset of the latter. One that starts from the base has what the
    table says of bases: both losses of the bases are fitted by Chinchilla's law of N and D = P N.

    Raises
    ------
    TableError
        If the table does not say the losses of its bases.
    """
    law = law.repeating() if UNIQUE in table.frame else law
    law = law.annealing() if np.unique(unannealed(table.frame)).size == 2 else law
    if law.departure is None or law.bases is not None:
        return law
    bases, chinchilla = base_table(table.frame, table.baselines, table.name), load_law("chinchilla")
    free = max(len(bases) - len(chinchilla.parameters), 1)
    parameters, errors, residuals = {}, {}, []
    for column in BASE_LOSSES:
        frame = total_tokens(bases).assign(loss=bases[column], run=np.arange(len(bases)))
        problem = Objective(chinchilla, from_frame(frame, f"bases of {table.name}"), SAME)
        points, objective, _ = polish_best(problem, screened_starts(problem, STARTS, 0), POLISH)
        best = points[int(np.argmin(objective))]
        parameters[column] = problem.paper(best)
        residuals.append(-problem.residuals(best[None])[0])
        slopes = log_slopes(chinchilla, parameters[column], frame)
        variance = (residuals[-1] ** 2).sum() / free
        errors[column] = _rows(variance * np.linalg.pinv(slopes @ slopes.T, hermitian=True))
    spread = _rows(np.array(residuals) @ np.array(residuals).T / free)
    known = {}
    if "base" in bases:
        numbers = bases[["params", "ptpp", *BASE_LOSSES]].to_numpy(float)
        known = {str(b): tuple(own) for b, own in zip(bases["base"], numbers.tolist(), strict=True)}
    return replace(law, bases=Bases(known, chinchilla, parameters, spread, errors))


def _rows(matrix: Floats) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, matrix.tolist()))
