"""Pre-trained models that adaptation starts from: their losses, and the laws that these follow."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Bools, Floats
from bayeslaw.common.errors import TableError
from bayeslaw.tables.validation import BASE_LOSSES, label_texts, row_numbers

COLUMNS = ["params", "ptpp", *BASE_LOSSES]


type LossLaw = Any
"""The bases' law, of N and D alone: a `Law`, whose module imports this one."""


@dataclass(frozen=True)
class Bases:
    """Losses of the pre-trained models of a table, and of others like them; nats per token."""

    # N, P and both losses of each base by its label; the law of both losses, with D = P N, and its
    # parameters for each column; the covariance of the logs of both losses around their laws; for
    # each column, that of the estimates of the law's parameters.
    known: Mapping[str, tuple[float, float, float, float]]
    law: LossLaw
    parameters: Mapping[str, Mapping[str, float]]
    spread: tuple[tuple[float, ...], ...]
    errors: Mapping[str, tuple[tuple[float, ...], ...]]

    def unknown(self, frame: pd.DataFrame) -> Bools:
        """Which rows start from a base whose losses are not known, shape (rows,)."""
        return np.asarray(np.isnan(self._losses(frame)).any(axis=0))

    def logs(self, frame: pd.DataFrame, noise: Floats | None = None) -> tuple[Floats, Floats]:
        """Logs of the start loss, and of the base's loss over the expected one, shape (..., rows).

        Losses in the table's columns count first, then those of known bases, then expected ones.
        Without labels, a row's base is the known one of its N and P, if there is only one. `noise`,
        of shape (2, ..., rows), are deviations from the laws where losses are not known.
        """
        measured, x = np.log(self._losses(frame)), self.law.covariates(total_tokens(frame))
        expected = np.log([self.law.loss(self.parameters[column], x) for column in BASE_LOSSES])
        drawn = expected if noise is None else expected + np.moveaxis(noise, 0, -2)
        logs = np.where(np.isnan(measured), drawn, measured)
        return logs[..., 0, :], logs[..., 1, :] - expected[1]

    def draws(self, frame: pd.DataFrame, count: int, seed: Sequence[int]) -> Floats:
        """Deviations of the logs of both losses from their laws, shape (2, count, rows).

        Rows of one `base` have the same; so have rows without a label of one N and P. Those of a
        base do not depend on the other bases in the frame.
        """
        names = frame["params"].astype(str) + "/" + frame["ptpp"].astype(str)
        if "base" in frame:
            base = label_texts(frame["base"])
            names = base.where(base.notna(), names)
        group, labels = pd.factorize(names)
        effects = [
            np.random.default_rng([*seed, zlib.crc32(label.encode())]).multivariate_normal(
                np.zeros(2), self.spread, count
            )
            for label in labels
        ]
        drawn = np.transpose(effects, (2, 1, 0))[..., group]
        rng = np.random.default_rng(seed)
        for i, column in enumerate(BASE_LOSSES):
            moved = rng.multivariate_normal(
                np.zeros(len(self.law.parameters)), self.errors[column], count, method="eigh"
            )
            drawn[i] += moved @ log_slopes(self.law, self.parameters[column], total_tokens(frame))
        return drawn

    def _losses(self, frame: pd.DataFrame) -> Floats:
        """Both losses of each row's base, NaN where they are not known, shape (2, rows)."""
        known = pd.DataFrame.from_dict(dict(self.known), orient="index", columns=COLUMNS)
        alone = known.drop_duplicates(["params", "ptpp"], keep=False)
        at = pd.MultiIndex.from_frame(frame[["params", "ptpp"]].astype(float))
        losses = alone.set_index(["params", "ptpp"]).reindex(at).to_numpy(float, copy=True)
        if "base" in frame:
            base = label_texts(frame["base"])
            of_labels = known.reindex(base)[list(BASE_LOSSES)].to_numpy(float)
            losses = np.where(base.isna().to_numpy()[:, None], losses, of_labels)
        for i, column in enumerate(BASE_LOSSES):
            if column in frame:
                measured = frame[column].to_numpy(float)
                losses[:, i] = np.where(np.isnan(measured), losses[:, i], measured)
        return np.asarray(losses.T)


def total_tokens(frame: pd.DataFrame) -> pd.DataFrame:
    """`params` and `tokens` of the pre-training of each row's base, as rows of a law of bases."""
    params = frame["params"]
    return pd.DataFrame({"params": params, "tokens": params * frame["ptpp"], "loss": 1.0})


def log_slopes(law: LossLaw, p: Mapping[str, float], rows: pd.DataFrame) -> Floats:
    """Derivatives of log loss by a law's parameters, shape (parameters, rows)."""
    x = law.covariates(rows)
    by, loss = law.gradient(p, x), law.loss(p, x)
    return np.stack([np.broadcast_to(by[name], loss.shape) / loss for name in law.parameters])


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
    frames = [f[[c for c in ("base", *COLUMNS) if c in f]] for f in (baselines, frame)]
    rows = pd.concat([f for f in frames if {*COLUMNS} <= {*f}], ignore_index=True)
    return rows.dropna(subset=list(BASE_LOSSES)).drop_duplicates(COLUMNS).reset_index(drop=True)
