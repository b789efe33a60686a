"""What acts on the loss beside floor and terms: departure from a base, offset, repeated data."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats, Namespace
from bayeslaw.laws.deviations import WHOLE, Polynomial
from bayeslaw.laws.priors import Prior
from bayeslaw.laws.terms import SYMBOLS, Array, Values, tex
from bayeslaw.tables.validation import BASE_LOSSES

REPLAY = 0.25
"""Replay ratio at which the factor in replay is 1."""
MIXED = 0.01
"""Added to r under the logarithm of the covariate ``mixed``."""
UNIQUE = "unique_tokens"
"""Column of a table: distinct tokens of the new data."""
ANNEALED = "annealed"
"""Column of a table: whether the learning rate had fallen to its end when the loss was measured."""
ABSENT: dict[str, Any] = {
    UNIQUE: lambda frame: frame["tokens"],
    ANNEALED: 1,
    "base": None,
    **dict.fromkeys(BASE_LOSSES, np.nan),
}
"""Columns that a table may lack, and what their absence stands for."""
OFFSET, LOCAL = "unannealed", "unannealed_ref"
"""The offset where all covariates are 1, and at the reference point."""
LETTERS = {"tokens": "D", "params": "N", "ptpp": "P", "share": "r"}
"""Covariates that the offset is linear in, and the ends of its parameters' names."""
OFFSET_PRIORS = {
    LOCAL: Prior("Normal", mu=0, sigma=0.05),
    **{f"{OFFSET}_{c}": Prior("Normal", mu=0, sigma=0.02) for c in "DNP"},
    f"{OFFSET}_r": Prior("Normal", mu=0, sigma=0.05),
}
"""Priors, on log loss; of slopes per e-fold, of that in r over all of its range."""
REPEATS, REPEATS_PRIOR = "R_D", Prior("LogNormal", median=10, sigma=1)
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
    the terms, times ``(b / b_hat)^k ((r + .01) / .26)^-gamma``. L_start is the pre-trained model's
    own loss on the domain, b its loss on the domain it was pre-trained on, and b_hat the loss there
    that models of its size and budget have. In reference coordinates z is ``z_ref``, the log of
    D_s over D at the reference point.
    """

    # Symbols of beta, v, z, the exponents of D_s by covariate, gamma and k.
    exponent: str
    fresh: str
    onset: str
    along: Mapping[str, str]
    replay: str
    base: str

    @property
    def parameters(self) -> tuple[str, ...]:
        along = self.along.values()
        return (self.exponent, self.fresh, self.onset, *along, self.replay, self.base)

    @property
    def local(self) -> tuple[str, ...]:
        return tuple(f"{name}_ref" if name == self.onset else name for name in self.parameters)

    @property
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        """Covariates that each parameter, or its reference coordinate, acts along."""
        along: dict[str, tuple[str, ...]] = {n: (covariate,) for covariate, n in self.along.items()}
        along |= dict.fromkeys((self.exponent, self.onset, f"{self.onset}_ref"), ("tokens",))
        return along | {self.fresh: ("fresh",), self.replay: ("mixed",), self.base: ("deviation",)}

    def shift(self, p: Values, at: Values) -> Array:
        """The onset in reference coordinates less that of the paper's."""
        return sum(p[name] * at[covariate] for covariate, name in self.along.items()) - at["tokens"]

    def remaining(self, p: Values, x: Values, xp: Namespace) -> Array:
        onset = p[self.onset] + sum(p[name] * x[c] for c, name in self.along.items())
        u = x["tokens"] - onset + p[self.fresh] * x["fresh"]
        return xp.exp(-p[self.exponent] * xp.log1p(xp.exp(u)))

    def factor(self, p: Values, x: Values, xp: Namespace) -> Array:
        share = x["mixed"] - math.log(REPLAY + MIXED)
        return xp.exp(p[self.base] * x["deviation"] - p[self.replay] * share)

    def latex(self, core: str) -> str:
        """The loss as LaTeX, from the core, and after a comma g."""
        power = rf"\left(\frac{{b}}{{\hat b}}\right)^{{{tex(self.base)}}}"
        tilt = rf"\left(\frac{{r+{MIXED}}}{{{REPLAY + MIXED}}}\right)^{{-{tex(self.replay)}}}"
        loss = rf"\left({core}\right) {power} {tilt} (1 - g) + L_{{\mathrm{{start}}}} g"
        along = "".join(rf" {SYMBOLS[c]}^{{{name}}}" for c, name in self.along.items())
        reach = rf"\frac{{(1-r)^{{{tex(self.fresh)}}} D}}{{e^{{{self.onset}}}{along}}}"
        return rf"{loss},\quad g = \left(1 + {reach}\right)^{{-{tex(self.exponent)}}}"


@dataclass(frozen=True)
class Offset(Polynomial):
    """Log of the factor of the loss of checkpoints that are not annealed.

    It is linear in log N, log D, log P and r. D counts repeated tokens as it counts new ones.
    """

    @property
    def local(self) -> tuple[str, ...]:
        return tuple(LOCAL if name == OFFSET else name for name in self.parameters)

    def shift(self, p: Values, at: Values) -> Array:
        along = {c: f"{OFFSET}_{letter}" for c, letter in LETTERS.items()}
        return sum(p[name] * at[c] for c, name in along.items() if name in self.parameters)


def offset_along(covariates: Sequence[str]) -> Offset:
    along = {f"{OFFSET}_{LETTERS[c]}": (OFFSET, c) for c in covariates}
    return Offset(WHOLE, {OFFSET: (OFFSET,), **along})


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
