"""Columns beside a law's covariates: repeated data, and checkpoints that are not annealed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats, Namespace
from bayeslaw.common.registry import storable
from bayeslaw.laws.deviations import WHOLE, Polynomial
from bayeslaw.laws.parts import Part
from bayeslaw.laws.priors import Prior
from bayeslaw.laws.terms import COLUMN, Array, Values
from bayeslaw.tables.validation import BASE_LOSSES

if TYPE_CHECKING:
    from bayeslaw.laws.law import Law

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
PRIORS = {
    LOCAL: Prior("Normal", mu=0, sigma=0.05),
    **{f"{OFFSET}_{c}": Prior("Normal", mu=0, sigma=0.02) for c in "DNP"},
    f"{OFFSET}_r": Prior("Normal", mu=0, sigma=0.05),
}
"""Priors, on log loss; of slopes per e-fold, of that in r over all of its range."""


LEAST = 1e-12
"""Epochs added to R, by which is divided: at its bound 0 repeated tokens are worth nothing."""


@storable
@dataclass(frozen=True)
class Repetition(Part):
    r"""Tokens of one epoch that are worth the tokens of a run, the fewer the more they repeat.

    A law takes ``D' = U + U R (1 - exp(-(D/U - 1) / R))`` for D, where U is the tokens until the
    new data repeat: distinct tokens, over 1 - r where a share r is replayed. Data up to U are all
    worth D, and however often they repeat, at most (1 + R) U [1]_.

    Parameters
    ----------
    symbol : str
        Of R, epochs beyond the first after which a further one is worth 1/e of the first.

    References
    ----------
    .. [1] Muennighoff et al., Scaling Data-Constrained Language Models. NeurIPS 2023, equation (5);
       their estimate of R is 15.4.

    Examples
    --------
    Eight epochs of 1e9 tokens:

    >>> x = {"tokens": np.log([8e9]), "unique": np.log([1e9])}
    >>> np.exp(Repetition().effective({"R_D": 15.4}, x, np)["tokens"]).round(-7).tolist()
    [6630000000.0]
    """

    symbol: str = "R_D"
    prior: ClassVar[Prior] = Prior("LogNormal", median=10, sigma=1)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Its one symbol."""
        return (self.symbol,)

    @property
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        """Tokens, and those until new data repeat."""
        return {self.symbol: ("tokens", "unique")}

    @property
    def typical(self) -> dict[str, float]:
        """R at which the reference point is chosen, and at which deviations count tokens."""
        return {self.symbol: 10.0}

    def read(self, frame: pd.DataFrame, law: "Law", name: str) -> dict[str, Array]:
        """Log of the tokens until the new data of each row repeat.

        Without the column `unique_tokens` no data repeat, at any tokens: it is infinite.
        """
        if UNIQUE not in frame:
            return {"unique": np.full(len(frame), math.inf)}
        replay = frame["replay"].to_numpy(float) if "replay" in frame else np.zeros(len(frame))
        return {"unique": until_repeated(frame[UNIQUE].to_numpy(float) / law.token_unit, replay)}

    def neutral(self, x: Values) -> dict[str, Array]:
        """The covariates at the typical R; no data repeat."""
        x = self.effective(self.typical, x, np)
        return {**x, "unique": x["tokens"]}

    def effective(self, p: Values, x: Values, xp: Namespace) -> dict[str, Array]:
        """The covariates with D' for D, which becomes `seen`, and without `unique`."""
        found = dict(x)
        if "unique" not in x:
            return found
        unique = xp.minimum(found.pop("unique"), x["tokens"])
        repeats = xp.exp(x["tokens"] - unique) - 1
        rate = p[self.symbol] + LEAST
        found["seen"] = x["tokens"]
        found["tokens"] = unique + xp.log1p(rate * (1 - xp.exp(-repeats / rate)))
        return found

    def latex(self) -> str:
        """What D stands for, as LaTeX."""
        name = r"R_D^{*}"
        return rf"D = U + U {name} \left(1 - e^{{-(D_{{\mathrm{{seen}}}}/U - 1)/{name}}}\right)"


@storable
@dataclass(frozen=True)
class Offset(Part):
    """Factor of the loss of checkpoints that are not annealed.

    Its log is linear in log N, log D, log P and r. D counts repeated tokens as it counts new ones.

    Parameters
    ----------
    polynomial : Polynomial
        Of the whole loss.
    """

    polynomial: Polynomial

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of its coefficients."""
        return self.polynomial.parameters

    @property
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        """Covariates that each coefficient acts along."""
        return self.polynomial.covariates_of

    @property
    def local(self) -> tuple[str, ...]:
        """The offset is another one at the reference point."""
        return tuple(LOCAL if name == OFFSET else name for name in self.parameters)

    @property
    def typical(self) -> dict[str, float]:
        """Size of an offset."""
        return dict.fromkeys(self.parameters, 0.02)

    def read(self, frame: pd.DataFrame, law: "Law", name: str) -> dict[str, Array]:
        """Which rows are not annealed."""
        return {OFFSET: unannealed(frame)}

    def neutral(self, x: Values) -> Values:
        """The covariates of annealed checkpoints."""
        return {**x, OFFSET: np.zeros(1)}

    def outer(self, p: Values, x: Values, at: Values, xp: Namespace) -> tuple[Array, Array]:
        """The factor; nothing is added."""
        x = {**x, "tokens": x.get("seen", x["tokens"])}
        return xp.exp(self.polynomial.value(p, x, at, xp)), 0.0

    def gradient(self, law: "Law", p: Values, x: Values, at: Values) -> dict[str, Array]:
        """Derivative of the loss by each coefficient."""
        loss = law.loss(p, x, at)
        return {name: loss * self.polynomial.column(name, x, at) for name in self.parameters}

    def to_local(self, p: Values, at: Values) -> dict[str, Array]:
        """Its reference coordinates from its parameters."""
        return {name: p[name] for name in self.parameters if name != OFFSET} | {
            LOCAL: _moved(p, at, 1)
        }

    def to_paper(self, p: Values, at: Values) -> dict[str, Array]:
        """The offset where all covariates are 1."""
        return {OFFSET: _moved(p, at, -1)}


def completed(frames: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """The frames, each with all columns of `ABSENT` that any of them has."""
    used = {c: value for c, value in ABSENT.items() if any(c in frame for frame in frames)}
    return [f.assign(**{c: value for c, value in used.items() if c not in f}) for f in frames]


def until_repeated(unique: float | Floats, replay: float | Floats) -> Floats:
    """Log of the tokens until new data repeat, which are a share ``1 - replay`` of all tokens."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(unique) - np.log1p(-np.asarray(replay, float)))


def epochs(tokens: float, replay: float, unique: float) -> float:
    """Epochs of the new data.

    Examples
    --------
    >>> epochs(1e10, 0.2, 1e9)
    8.0
    """
    return tokens * (1 - replay) / unique if tokens < math.inf else math.inf


def repeating(law: "Law") -> "Law":
    """The law with a term of repetition; one that has it is returned as it is."""
    if law.repetition:
        return law
    own = Repetition()
    return replace(
        law,
        repetition=own,
        priors={**law.priors, own.symbol: own.prior},
        bounds={**law.bounds, own.symbol: (0.0, math.inf)},
    )


def annealing(law: "Law") -> "Law":
    """The law with an offset for checkpoints that are not annealed, linear in its covariates.

    One that has it is returned as it is.
    """
    if law.offset:
        return law
    columns = {COLUMN[c] for c in law.covariate_names}
    along = {f"{OFFSET}_{letter}": c for c, letter in LETTERS.items() if COLUMN[c] in columns}
    columns_of = {OFFSET: (OFFSET,), **{name: (OFFSET, c) for name, c in along.items()}}
    own = Offset(Polynomial(WHOLE, columns_of))
    return replace(
        law,
        offset=own,
        priors={**law.priors, **{name: PRIORS[name] for name in (LOCAL, *along)}},
        bounds={**law.bounds, **dict.fromkeys(own.parameters, (-math.inf, math.inf))},
    )


def unannealed(frame: pd.DataFrame) -> Floats:
    """1 for rows that are not annealed and else 0; without the column all are annealed."""
    if ANNEALED not in frame:
        return np.zeros(len(frame))
    return 1.0 - frame[ANNEALED].to_numpy(float)


def _moved(p: Values, by: Values, sign: int) -> Array:
    """The offset where the covariates are `by` larger (sign 1) or smaller (sign -1)."""
    slopes = {c: f"{OFFSET}_{letter}" for c, letter in LETTERS.items()}
    return p[OFFSET] + sign * sum(p[name] * by[c] for c, name in slopes.items() if name in p)
