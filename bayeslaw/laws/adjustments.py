"""What acts on the loss beside floor and terms: a base, an offset, a rate, repeated data.

A law whose loss departs from that of pre-trained models knows the losses of these, its `Bases`, and
the laws that they follow.
"""

import math
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Bools, Floats, Namespace
from bayeslaw.common.errors import TableError
from bayeslaw.laws.deviations import WHOLE, Deviation, Polynomial
from bayeslaw.laws.priors import Prior
from bayeslaw.laws.terms import SYMBOLS, Array, Values, tex
from bayeslaw.tables.validation import ABSENT, BASE_LOSSES, label_texts, row_numbers

BASE_COLUMNS = ["params", "ptpp", *BASE_LOSSES]
"""Columns of a table of bases."""
SHARE = 0.25
"""Share of the domain's own text at which its factor is 1."""
MIXED = 0.01
"""Added to a share under the logarithms of the covariates ``mixed`` and ``rest``."""
UNIQUE = "unique_tokens"
"""Column of a table: distinct tokens of the new data."""
ANNEALED = "annealed"
"""Column of a table: whether the learning rate had fallen to its end when the loss was measured."""
RATE, RATED = "rate", "rated"
"""Column of a table: the learning rate, or what else has a best value; whether a row has one."""
OFFSET, LOCAL = "unannealed", "unannealed_ref"
"""The offset where all covariates are 1, and at the reference point."""
OFFSET_ALONG = {c: f"{OFFSET}_{SYMBOLS[c]}" for c in ("tokens", "params", "ptpp", "share")}
"""The offset's slopes by the covariates that it is linear in."""
OFFSET_PRIORS = {
    LOCAL: Prior("Normal", mu=0, sigma=0.05),
    **{f"{OFFSET}_{c}": Prior("Normal", mu=0, sigma=0.02) for c in "DNP"},
    f"{OFFSET}_r": Prior("Normal", mu=0, sigma=0.05),
}
"""Priors, on log loss; of slopes per e-fold, of that in r over all of its range."""
COST, BEST = "rate_cost", "rate_best"
"""Log loss per squared e-fold from the best rate; the log of the best rate where N = D = 1."""
RATE_PRIORS = {
    COST: Prior("LogNormal", median=0.02, sigma=1),
    f"{BEST}_ref": Prior("Normal", mu=0, sigma=1),
    **{f"{BEST}_{c}": Prior("Normal", mu=0, sigma=0.3) for c in "DN"},
}
"""Priors; of the log of the best rate over the mean one at the reference point, per e-fold."""
REPEATS, REPEATS_PRIORS = "R_D", {"R_D": Prior("LogNormal", median=10, sigma=1)}
"""Epochs beyond the first after which a further one is worth 1/e of the first."""
TYPICAL_REPEATS = 10.0
"""Their number for the reference point, and where deviations count tokens."""
LEAST = 1e-12
"""Epochs added to R, by which is divided: at its bound 0 repeated tokens are worth nothing."""


@dataclass(frozen=True)
class Departure:
    """Loss that moves from the start loss to the law's core as adaptation goes on.

    ``L = core (1 - g) + L_start g`` with ``g = (1 + (1 - r)^v D / D_s)^-beta``, the share of the
    way that is still to go, and ``log D_s = z + z_N log N + z_P log P``. The core is the floor and
    the terms, times ``(b / b_hat)^k ((s + .01) / .26)^-gamma``. L_start is the pre-trained model's
    own loss on the domain, b its loss on the domain it was pre-trained on, and b_hat the loss there
    that models of its size and budget have. In reference coordinates z is ``z_ref``, the log of
    D_s over D at the reference point.
    """

    # Symbols of beta, v, z, the exponents of D_s by covariate, gamma and k; v, gamma and k may be
    # "", for a factor that is the same in all rows.
    exponent: str
    fresh: str
    onset: str
    along: Mapping[str, str]
    share: str
    base: str

    @property
    def parameters(self) -> tuple[str, ...]:
        along = self.along.values()
        names = (self.exponent, self.fresh, self.onset, *along, self.share, self.base)
        return tuple(name for name in names if name)

    @property
    def local(self) -> tuple[str, ...]:
        return tuple(f"{name}_ref" if name == self.onset else name for name in self.parameters)

    @property
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        """Covariates that each parameter, or its reference coordinate, acts along."""
        along: dict[str, tuple[str, ...]] = {n: (covariate,) for covariate, n in self.along.items()}
        along |= dict.fromkeys((self.exponent, self.onset, f"{self.onset}_ref"), ("tokens",))
        others = {self.fresh: ("fresh",), self.share: ("mixed",), self.base: ("deviation",)}
        return along | {name: covariates for name, covariates in others.items() if name}

    def without(self, columns: Collection[str]) -> "Departure":
        """The departure of rows in which some columns of a table do not vary."""
        along = {c: name for c, name in self.along.items() if c not in columns}
        same = {"fresh": "replay", "share": "replay", "base": "base_loss"}
        none = {part: "" for part, column in same.items() if column in columns}
        return replace(self, along=along, **none)

    def shift(self, p: Values, at: Values) -> Array:
        """The onset in reference coordinates less that of the paper's."""
        return sum(p[name] * at[covariate] for covariate, name in self.along.items()) - at["tokens"]

    def remaining(self, p: Values, x: Values, xp: Namespace) -> Array:
        onset = p[self.onset] + sum(p[name] * x[c] for c, name in self.along.items())
        u = x["tokens"] - onset
        u = u + p[self.fresh] * x["fresh"] if self.fresh else u
        return xp.exp(-p[self.exponent] * xp.log1p(xp.exp(u)))

    def factor(self, p: Values, x: Values, xp: Namespace) -> Array:
        power: Array = p[self.base] * x["deviation"] if self.base else 0.0
        if self.share:
            power = power - p[self.share] * (x["mixed"] - math.log(SHARE + MIXED))
        return xp.exp(power) if self.base or self.share else 1.0

    def latex(self, core: str) -> str:
        """The loss as LaTeX, from the core, and after a comma g."""
        power = rf"\left(\frac{{b}}{{\hat b}}\right)^{{{tex(self.base)}}}" if self.base else ""
        tilt = rf"\left(\frac{{s+{MIXED}}}{{{SHARE + MIXED}}}\right)^{{-{tex(self.share)}}}"
        tilt = tilt if self.share else ""
        loss = rf"\left({core}\right) {power} {tilt} (1 - g) + L_{{\mathrm{{start}}}} g"
        along = "".join(rf" {SYMBOLS[c]}^{{{name}}}" for c, name in self.along.items())
        fresh = rf"(1-r)^{{{tex(self.fresh)}}} " if self.fresh else ""
        reach = rf"\frac{{{fresh}D}}{{e^{{{self.onset}}}{along}}}"
        return rf"{loss},\quad g = \left(1 + {reach}\right)^{{-{tex(self.exponent)}}}"


@dataclass(frozen=True)
class Offset(Polynomial):
    """Log of the factor of the loss of checkpoints that are not annealed.

    It is linear in log N, log D, log P and r. D counts repeated tokens as it counts new ones.
    """

    leading = OFFSET

    @property
    def local(self) -> tuple[str, ...]:
        return tuple(LOCAL if name == OFFSET else name for name in self.parameters)

    def shift(self, p: Values, at: Values) -> Array:
        """The offset at the reference point less that where all covariates are 1."""
        return sum(p[name] * at[c] for c, name in OFFSET_ALONG.items() if name in self.parameters)


def worth(repeats: Array, x: Values, xp: Namespace) -> dict[str, Array]:
    """The covariates, with tokens of one epoch that are worth the tokens of a run.

    ``D' = U + U R (1 - exp(-(D/U - 1) / R))`` stands for D, where U is the tokens until the new
    data repeat: distinct tokens, over 1 - r where a share r is replayed. However often they repeat,
    data are worth at most (1 + R) U (Muennighoff et al. 2023, equation (5), with R = 15.4). D
    itself becomes `seen`.

    >>> x = {"tokens": np.log([8e9]), "unique": np.log([1e9])}
    >>> np.exp(worth(15.4, x, np)["tokens"]).round(-7).tolist()
    [6630000000.0]
    """
    unique = xp.minimum(x["unique"], x["tokens"])
    again = xp.exp(x["tokens"] - unique) - 1
    rate = repeats + LEAST
    tokens = unique + xp.log1p(rate * (1 - xp.exp(-again / rate)))
    others = {name: values for name, values in x.items() if name != "unique"}
    return {**others, "seen": x["tokens"], "tokens": tokens}


@dataclass(frozen=True)
class Tuning(Deviation):
    """Log of the factor of the loss of runs at another rate than the best one.

    It is ``cost (log(rate / best))^2``, and log best is linear in log N and log D, which counts
    repeated tokens as it counts new ones. So the law is that of runs at their best rate, which rows
    without a rate are. In reference coordinates the best rate is that at the reference point, over
    the geometric mean of the fitted rates.
    """

    slopes: Mapping[str, str]  # of log best, by covariate
    of: str = WHOLE
    leading = BEST

    @property
    def parameters(self) -> tuple[str, ...]:
        return (COST, BEST, *self.slopes.values())

    @property
    def local(self) -> tuple[str, ...]:
        return (COST, f"{BEST}_ref", *self.slopes.values())

    @property
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        along = {name: (covariate, RATE) for covariate, name in self.slopes.items()}
        return {COST: (RATE, RATED), BEST: (RATE,), f"{BEST}_ref": (RATE,), **along}

    def shift(self, p: Values, at: Values) -> Array:
        """Log of the best rate at the reference point less that where N = D = 1."""
        return sum(p[name] * at[c] for c, name in self.slopes.items()) - at[RATE]

    def best(self, p: Values, x: Values, at: Values) -> Array:
        drift = sum(p[name] * (x[c] - at[c]) for c, name in self.slopes.items())
        return at[RATE] + p[BEST] + drift

    def value(self, p: Values, x: Values, at: Values, xp: Namespace) -> Array:
        return p[COST] * x[RATED] * (x[RATE] - self.best(p, x, at)) ** 2


def rates(frame: pd.DataFrame) -> dict[str, Floats]:
    """Log of the rate of each row, and 1 if it has one and else 0.

    In place of a missing one is the mean of the others, which thus is that of all.
    """
    if RATE not in frame:
        return dict.fromkeys((RATE, RATED), np.zeros(len(frame)))
    log = np.log(frame[RATE].to_numpy(float))
    rated = ~np.isnan(log)
    middle = log[rated].mean() if rated.any() else 0.0
    return {RATE: np.where(rated, log, middle), RATED: rated.astype(float)}


WORTH_LATEX = r"D = U + U R_D^{*} \left(1 - e^{-(D_{\mathrm{seen}}/U - 1)/R_D^{*}}\right)"


def completed(frames: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """The frames, each with all columns of `ABSENT` that any of them has."""
    used = {c: value for c, value in ABSENT.items() if any(c in frame for frame in frames)}
    return [f.assign(**{c: value for c, value in used.items() if c not in f}) for f in frames]


def until_repeated(unique: float | Floats, replay: float | Floats) -> Floats:
    """Log of the tokens until new data repeat, which are a share ``1 - replay`` of all tokens."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(unique) - np.log1p(-np.asarray(replay, float)))


def epochs(tokens: float, replay: float, unique: float) -> float:
    return tokens * (1 - replay) / unique if tokens < math.inf else math.inf


def unannealed(frame: pd.DataFrame) -> Floats:
    """1 for rows that are not annealed and else 0; without the column all are annealed."""
    if ANNEALED not in frame:
        return np.zeros(len(frame))
    return 1.0 - frame[ANNEALED].to_numpy(float)


# -- bases -----------------------------------------------------------------------------------------

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
        known = pd.DataFrame.from_dict(dict(self.known), orient="index", columns=BASE_COLUMNS)
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
    frames = [f[[c for c in ("base", *BASE_COLUMNS) if c in f]] for f in (baselines, frame)]
    rows = pd.concat([f for f in frames if {*BASE_COLUMNS} <= {*f}], ignore_index=True)
    return (
        rows.dropna(subset=list(BASE_LOSSES)).drop_duplicates(BASE_COLUMNS).reset_index(drop=True)
    )
