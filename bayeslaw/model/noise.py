"""Scale of the noise on log loss: constant, a power of N, or that of each group."""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats, Namespace, Strings
from bayeslaw.common.errors import LawError, unknown
from bayeslaw.laws.priors import Prior
from bayeslaw.laws.terms import Array, Values
from bayeslaw.model import random_effects

STANDARD = "noise_z"
"""Standardised log scales of the groups."""


class Noise(ABC):
    """How the scale of the noise on log loss varies between rows; subclasses are dataclasses."""

    parameters: ClassVar[tuple[str, ...]] = ()
    """Names of its parameters, beside ``sigma``."""
    priors: ClassVar[Mapping[str, Prior]] = {}
    """Default priors that no law file states."""

    @property
    def words(self) -> str:
        """How the scale varies, for reports; empty for a constant one."""
        return ""

    def labels(self, frame: pd.DataFrame) -> Strings | None:
        """Group of each row, shape (rows,); none without groups."""
        return None

    @abstractmethod
    def scale(self, q: Values, size: Array, standard: Array, xp: Namespace) -> Array:
        """Scale of the noise on log loss of each row.

        Parameters
        ----------
        q : mapping
            ``sigma`` and `parameters`: numbers, draws of shape (draws, 1), or PyTensor variables.
        size : array
            log N of the rows, less that of the reference point.
        standard : array
            Standardised log scale of each row's group.
        xp : module
            NumPy or ``pytensor.tensor``.
        """


@dataclass(frozen=True)
class Constant(Noise):
    """The same scale for all rows."""

    def scale(self, q: Values, size: Array, standard: Array, xp: Namespace) -> Array:
        """``sigma``."""
        return q["sigma"]


@dataclass(frozen=True)
class LogLinear(Noise):
    """A scale that is a power of N: ``sigma (N / N0)^noise_slope``."""

    parameters: ClassVar[tuple[str, ...]] = ("noise_slope",)

    @property
    def words(self) -> str:
        """How the scale varies."""
        return "log-linear in N"

    def scale(self, q: Values, size: Array, standard: Array, xp: Namespace) -> Array:
        """``sigma (N / N0)^noise_slope``."""
        return q["sigma"] * xp.exp(q["noise_slope"] * size)


@dataclass(frozen=True)
class Grouped(Noise):
    """A scale for each group, partially pooled: their logs are normal around that of ``sigma``.

    A new group draws its own. The standard deviation of the logs is ``tau_noise``.

    Parameters
    ----------
    level : str
        A level of random effects, such as ``size``, or a column of labels.
    """

    level: str
    parameters: ClassVar[tuple[str, ...]] = ("tau_noise",)
    priors: ClassVar[Mapping[str, Prior]] = {"tau_noise": Prior("LogNormal", median=0.3, sigma=0.4)}

    @property
    def words(self) -> str:
        """How the scale varies."""
        return f"for each {self.level}, partially pooled"

    def labels(self, frame: pd.DataFrame) -> Strings:
        """Group of each row.

        Raises
        ------
        LawError
            If the table has no such column.
        """
        level = random_effects.level(self.level)
        if level.column not in frame:
            known = (*NOISES, *random_effects.registered(), *map(str, frame.columns))
            raise LawError(unknown("noise", self.level, dict.fromkeys(known)))
        return level.labels(frame)

    def scale(self, q: Values, size: Array, standard: Array, xp: Namespace) -> Array:
        """``sigma exp(tau_noise z)``."""
        return q["sigma"] * xp.exp(q["tau_noise"] * standard)


NOISES: Mapping[str, Noise] = {"constant": Constant(), "loglinear": LogLinear()}
"""Kinds of scale that are no groups."""


def make_noise(name: str) -> Noise:
    """The kind of scale of that name; any other name is that of groups."""
    return NOISES.get(name) or Grouped(name)


def row_scale(
    noise: Noise,
    q: Mapping[str, Array],
    frame: pd.DataFrame,
    log_reference: float,
    groups: Mapping[str, Floats],
    seed: int,
) -> Floats:
    """Scale of each row in NumPy, shape (draws, rows).

    Parameters
    ----------
    noise : Noise
    q : mapping of str to array, shape (draws, 1)
        Parameters of the noise.
    frame : DataFrame
    log_reference : float
        log N of the reference point.
    groups : mapping of label to array, shape (draws,)
        Standardised log scales of the fitted groups.
    seed : int
        Of those of new groups, by their labels.
    """
    size, standard = np.zeros(len(frame)), np.zeros((1, len(frame)))
    if "params" in frame:
        size = np.log(frame["params"].to_numpy(float)) - log_reference
    labels = noise.labels(frame)
    if labels is not None:
        names, index = np.unique(labels.astype(str), return_inverse=True)
        count = len(q["sigma"])
        of_groups = [groups[n] if n in groups else _drawn(n, seed, count) for n in names]
        standard = np.stack(of_groups, 1)[:, index]
    return np.broadcast_to(noise.scale(q, size, standard, np), (len(q["sigma"]), len(frame)))


def _drawn(label: str, seed: int, count: int) -> Floats:
    rng = np.random.default_rng([zlib.crc32(label.encode()), seed])
    return np.asarray(rng.standard_normal(count))
