"""Bases of a table: point fits of Chinchilla's law to the losses of pre-trained models."""

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import TableError
from bayeslaw.huber.descent import minimum
from bayeslaw.huber.objective import Objective
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.laws.steps import BASE_COLUMNS, Bases, log_slopes, total_tokens
from bayeslaw.tables.reading import from_frame
from bayeslaw.tables.validation import BASE_LOSSES, label_texts, row_numbers

BASES_DELTA = 0.01
"""Huber threshold: losses of bases of one kind differ by less than a per cent."""


def base_table(frame: pd.DataFrame, baselines: pd.DataFrame, name: str) -> pd.DataFrame:
    """The distinct bases of a table: `base`, `params`, `ptpp`, `start_loss` and `base_loss`."""
    for column in (*BASE_LOSSES, "ptpp"):
        if column not in frame:
            raise TableError(
                f"{name}: column {column!r} is missing: the law starts from the base's own losses. "
                "Read the table with source= (--source-table), a table with rows of tokens = 0 on "
                "the domain of pre-training, or give the columns start_loss and base_loss."
            )
    lacking = frame[list(BASE_LOSSES)].isna().any(axis=1)
    if lacking.any():
        raise TableError(
            f"{name}: {row_numbers(lacking)} have no start_loss or base_loss; add the losses of "
            "their bases as rows with tokens = 0, on both domains."
        )
    frames = [
        f[[c for c in ("base", *BASE_COLUMNS) if c in f]] for f in (baselines, frame)
    ]
    rows = pd.concat([f for f in frames if {*BASE_COLUMNS} <= {*f}], ignore_index=True)
    return (
        rows.dropna(subset=list(BASE_LOSSES))
        .drop_duplicates(BASE_COLUMNS)
        .reset_index(drop=True)
    )


def fit_bases(bases: pd.DataFrame, name: str) -> Bases:
    """Bases of `base_table`, with fits of Chinchilla's law to both losses, D = P N.

    `name` is that of the table.
    """
    chinchilla = load_law("chinchilla")
    free = max(len(bases) - len(chinchilla.parameters), 1)
    parameters = {}
    errors = {}
    residuals = []
    for column in BASE_LOSSES:
        pretraining = total_tokens(
            bases["params"].to_numpy(float), bases["ptpp"].to_numpy(float)
        )
        frame = pd.DataFrame(pretraining).assign(
            loss=bases[column], run=np.arange(len(bases))
        )
        rows = from_frame(frame, f"bases of {name}", loss_unit="nats")
        objective = Objective(chinchilla, rows, BASES_DELTA)
        best = minimum(objective)
        parameters[column] = objective.paper(best)
        residuals.append(-objective.residuals(best[None])[0])
        slopes = log_slopes(chinchilla, parameters[column], pretraining)
        variance = (residuals[-1] ** 2).sum() / free
        errors[column] = _rows(
            variance * np.linalg.pinv(slopes @ slopes.T, hermitian=True)
        )
    spread = _rows(np.array(residuals) @ np.array(residuals).T / free)
    return Bases(_known(bases, name), chinchilla, parameters, spread, errors)


def _known(
    bases: pd.DataFrame, name: str
) -> dict[str, tuple[float, float, float, float]]:
    """N, P and both losses of the bases that have labels."""
    if "base" not in bases:
        return {}
    numbers = bases.set_index(label_texts(bases["base"]))[
        ["params", "ptpp", *BASE_LOSSES]
    ]
    numbers = numbers[numbers.index.notna()].astype(float)
    differ = ~np.isclose(
        numbers, numbers.groupby(level=0).transform("first"), 1e-6, 0
    ).all(1)
    if differ.any():
        raise TableError(
            f"{name}: base {numbers.index[differ][0]} has several params, ptpp, start_loss or "
            "base_loss; give each pre-trained model a label of its own."
        )
    return {base: (n, p, start, own) for base, n, p, start, own in numbers.itertuples()}


def _rows(matrix: Floats) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, matrix.tolist()))
