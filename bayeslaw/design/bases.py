"""Losses of the pre-trained models from which rows start: known, or drawn from their laws."""

import zlib
from collections.abc import Sequence

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Bools, Floats
from bayeslaw.laws.departure import BASE_COLUMNS, Bases, log_slopes, total_tokens
from bayeslaw.tables.validation import BASE_LOSSES, label_texts


def base_losses(bases: Bases, frame: pd.DataFrame) -> Floats:
    """Both losses of each row's base, NaN where they are not known, shape (2, rows).

    Losses in the table's columns count first, then those of known bases. Without labels, a row's
    base is the known one of its N and P, if there is only one.
    """
    measured_bases = pd.DataFrame.from_dict(
        dict(bases.known), orient="index", columns=BASE_COLUMNS
    )
    alone = measured_bases.drop_duplicates(["params", "ptpp"], keep=False)
    models = pd.MultiIndex.from_frame(frame[["params", "ptpp"]].astype(float))
    of_models = alone.set_index(["params", "ptpp"]).reindex(models)
    losses = of_models.to_numpy(float, copy=True)
    if "base" in frame:
        base = label_texts(frame["base"])
        of_labels = measured_bases.reindex(base)[list(BASE_LOSSES)].to_numpy(float)
        losses = np.where(base.isna().to_numpy()[:, None], losses, of_labels)
    for i, column in enumerate(BASE_LOSSES):
        if column in frame:
            measured = frame[column].to_numpy(float)
            losses[:, i] = np.where(np.isnan(measured), losses[:, i], measured)
    return np.asarray(losses.T)


def of_bases(bases: Bases, frame: pd.DataFrame) -> dict[str, Floats]:
    """N, P and both losses of each row's base, columns of `Bases.logs`."""
    columns = {name: frame[name].to_numpy(float) for name in ("params", "ptpp")}
    return columns | dict(zip(BASE_LOSSES, base_losses(bases, frame), strict=True))


def unknown_bases(bases: Bases, frame: pd.DataFrame) -> Bools:
    """Which rows start from a base whose losses are not known, shape (rows,)."""
    return np.asarray(np.isnan(base_losses(bases, frame)).any(axis=0))


def drawn_bases(
    bases: Bases, frame: pd.DataFrame, count: int, seed: Sequence[int]
) -> Floats:
    """Deviations of the logs of both losses from their laws, shape (2, count, rows).

    Rows of one `base` have the same; so have rows without a label of one N and P. Those of a base
    do not depend on the other bases in the frame.
    """
    names = frame["params"].astype(str) + "/" + frame["ptpp"].astype(str)
    if "base" in frame:
        names = label_texts(frame["base"]).fillna(names)
    group, labels = pd.factorize(names)
    effects = []
    for label in labels:
        rng = np.random.default_rng([*seed, zlib.crc32(label.encode())])
        effects.append(rng.multivariate_normal(np.zeros(2), bases.spread, count))
    drawn = np.transpose(effects, (2, 1, 0))[..., group]
    rng = np.random.default_rng(seed)
    none = np.zeros(len(bases.law.parameters))
    pretraining = total_tokens(
        frame["params"].to_numpy(float), frame["ptpp"].to_numpy(float)
    )
    for i, column in enumerate(BASE_LOSSES):
        errors = bases.errors[column]
        moved = rng.multivariate_normal(none, errors, count, method="eigh")
        drawn[i] += moved @ log_slopes(bases.law, bases.parameters[column], pretraining)
    return drawn
