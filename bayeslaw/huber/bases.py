"""Bases of a table: point fits of Chinchilla's law to the losses of pre-trained models."""

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import TableError
from bayeslaw.huber.descent import minimum
from bayeslaw.huber.objective import Objective
from bayeslaw.laws.departure import BASE_COLUMNS, Bases, log_slopes, total_tokens
from bayeslaw.laws.lawfiles import load_law
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
    frames = []
    for source in (baselines, frame):
        columns = [name for name in ("base", *BASE_COLUMNS) if name in source]
        if {*BASE_COLUMNS} <= {*columns}:
            frames.append(source[columns])
    rows = pd.concat(frames, ignore_index=True)
    measured = rows.dropna(subset=list(BASE_LOSSES))
    return measured.drop_duplicates(BASE_COLUMNS).reset_index(drop=True)


def fit_bases(bases: pd.DataFrame, name: str) -> Bases:
    """Bases of `base_table`, with fits of Chinchilla's law to both losses, D = P N.

    `name` is that of the table.
    """
    chinchilla = load_law("chinchilla")
    parameter_count = len(chinchilla.parameters)
    free = max(len(bases) - parameter_count, 1)
    params = bases["params"].to_numpy(float)
    pretraining = total_tokens(params, bases["ptpp"].to_numpy(float))
    parameters = {}
    errors = {}
    residuals = []
    for column in BASE_LOSSES:
        frame = pd.DataFrame(pretraining)
        frame["loss"] = bases[column]
        frame["run"] = np.arange(len(bases))
        rows = from_frame(frame, f"bases of {name}", loss_unit="nats")
        objective = Objective(chinchilla, rows, BASES_DELTA)
        best = minimum(objective)
        parameters[column] = objective.paper(best)
        log_ratios = objective.residuals(best[None])[0]
        residuals.append(-log_ratios)
        variance = (log_ratios**2).sum() / free
        slopes = log_slopes(chinchilla, parameters[column], pretraining)
        information = slopes @ slopes.T
        inverse = np.linalg.pinv(information, hermitian=True)
        errors[column] = _rows(variance * inverse)
    errors_of_both = np.array(residuals)
    spread = _rows(errors_of_both @ errors_of_both.T / free)
    labelled = _labelled(bases, name)
    return Bases(labelled, chinchilla, parameters, spread, errors)


def _labelled(
    bases: pd.DataFrame, name: str
) -> dict[str, tuple[float, float, float, float]]:
    """N, P and both losses of the bases that have labels."""
    if "base" not in bases:
        return {}
    labels = label_texts(bases["base"])
    columns = ["params", "ptpp", *BASE_LOSSES]
    numbers = bases.set_index(labels)[columns]
    has_label = numbers.index.notna()
    numbers = numbers[has_label].astype(float)
    first = numbers.groupby(level=0).transform("first")
    alike = np.isclose(numbers, first, rtol=1e-6, atol=0).all(1)
    if not alike.all():
        raise TableError(
            f"{name}: base {numbers.index[~alike][0]} has several params, ptpp, start_loss or "
            "base_loss; give each pre-trained model a label of its own."
        )
    of_label = {}
    for base, n, p, start_loss, base_loss in numbers.itertuples():
        of_label[base] = (n, p, start_loss, base_loss)
    return of_label


def _rows(matrix: Floats) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, matrix.tolist()))
