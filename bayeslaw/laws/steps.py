"""Steps of laws: coupled terms, checkpoints that are not annealed, repeated data."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import ClassVar, Self

import numpy as np

from bayeslaw.common.arrays import Array, Floats, Namespace, Untyped
from bayeslaw.laws.departure import Departure
from bayeslaw.laws.deviations import WHOLE, Linear
from bayeslaw.laws.priors import Prior
from bayeslaw.laws.step import Columns, Loss, Step, total
from bayeslaw.laws.symbols import COLUMN, SYMBOLS, Named, Values

UNIQUE = "unique_tokens"
"""Column of a table: distinct tokens of the new data."""
ANNEALED = "annealed"
"""Column of a table: whether the learning rate had fallen to its end when the loss was measured."""
OFFSET = "unannealed"
"""The offset where all covariates are 1."""
REPEATS = "R_D"
REPEATS_FALL = "R_D_N"
"""Epochs beyond the first after which a further one is worth 1/e of the first, for a model of 20
distinct tokens per parameter; how fast they fall with parameters per distinct token."""
LEAST_REPEATS = 1e-12
"""Epochs added to R, by which is divided: at its bound 0 repeated tokens are worth nothing."""
TOKENS_PER_PARAM = 20
"""Distinct tokens per parameter to which `R_D` refers."""
KAPPA = "kappa"
"""Parameter of a coupling of terms."""


@dataclass(frozen=True)
class Coupling(Step):
    """Terms T that enter as ``(sum of T^(1 / kappa))^kappa``; with kappa = 1 it is their sum."""

    along: Mapping[str, tuple[str, ...]]  # covariates of each term, by its coefficient
    added: bool = False

    @property
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        covariates: dict[str, None] = {}
        for along in self.along.values():
            covariates |= dict.fromkeys(along)
        return {KAPPA: tuple(covariates)}

    def varying(
        self, same: Collection[str], coefficients: Collection[str]
    ) -> Self | None:
        along = {name: c for name, c in self.along.items() if name in coefficients}
        return replace(self, along=along) if len(along) > 1 else None

    def act(self, loss: Loss, p: Values, x: Values, at: Values, xp: Namespace) -> Loss:
        parts = dict(loss[0])
        by = dict(loss[1])
        logs = {name: xp.log(parts.pop(name)) / p[KAPPA] for name in self.along}
        top = reduce(xp.maximum, logs.values())
        roots = {name: xp.exp(log - top) for name, log in logs.items()}
        whole = sum(roots.values())
        joined = xp.exp(p[KAPPA] * (top + xp.log(whole)))
        parts[KAPPA] = joined
        for name, root in roots.items():
            if name in by:
                by[name] = joined * (root / whole)
        return parts, by

    # Neither the sum at the reference point nor the slopes there depend on kappa.
    def amounts[A: Array](self, p: Named[A], at: Values) -> dict[str, A]:
        whole = sum(p[name] for name in self.along)
        return {name: whole * (p[name] / whole) ** p[KAPPA] for name in self.along}

    def to_reference[A: Array](self, p: Named[A], at: Values) -> dict[str, A]:
        roots = {name: p[name] ** (1 / p[KAPPA]) for name in self.along}
        whole: Untyped = sum(roots.values())
        return {name: whole ** (p[KAPPA] - 1) * root for name, root in roots.items()}

    def latex(self, parts: dict[str, str]) -> dict[str, str]:
        parts = dict(parts)
        roots = []
        for name in self.along:
            roots.append(rf"\left({parts.pop(name)}\right)^{{1/\kappa}}")
        joined = rf"\left[{' + '.join(roots)}\right]^{{\kappa}}"
        return {"E": parts.pop("E"), KAPPA: joined, **parts}


@dataclass(frozen=True)
class Offset(Step, Linear):
    """Factor of the loss of checkpoints that are not annealed, and 1 for those that are.

    Its log is a level that is linear in some covariates. Repeated tokens count as new ones.
    """

    of = WHOLE
    # Of the level, by covariate; the leading parameter is its intercept.
    slopes: Mapping[str, str]

    called_by = ANNEALED
    name = "offset"
    words = "offset of un-annealed checkpoints"
    leading = OFFSET
    # On log loss; of slopes per e-fold, of that in r over all of its range.
    priors: ClassVar[Mapping[str, Prior]] = {
        f"{OFFSET}_ref": Prior("Normal", mu=0, sigma=0.05),
        **{f"{OFFSET}_{c}": Prior("Normal", mu=0, sigma=0.02) for c in "DNP"},
        f"{OFFSET}_r": Prior("Normal", mu=0, sigma=0.05),
    }
    typical: ClassVar[Mapping[str, float]] = dict.fromkeys(
        (OFFSET, *(f"{OFFSET}_{c}" for c in "DNPr")), 0.02
    )

    @classmethod
    def of_columns(cls, columns: Collection[str]) -> Self:
        slopes = {}
        for covariate in ("tokens", "params", "ptpp", "share"):
            if COLUMN[covariate] in columns:
                slopes[covariate] = f"{OFFSET}_{SYMBOLS[covariate]}"
        return cls(slopes)

    @property
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        covariates: dict[str, tuple[str, ...]] = {OFFSET: (OFFSET,)}
        for covariate, name in self.slopes.items():
            covariates[name] = (OFFSET, covariate)
        return covariates

    def shift(self, p: Values, at: Values) -> Array:
        return sum(
            (p[name] * at[covariate] for covariate, name in self.slopes.items()), 0.0
        )

    def covariates(self, columns: Columns, token_unit: float) -> dict[str, Floats]:
        if ANNEALED not in columns:  # all rows are
            return {OFFSET: np.zeros(len(next(iter(columns.values()))))}
        return {OFFSET: 1.0 - columns[ANNEALED]}

    def column(self, name: str, x: Values, at: Values, xp: Namespace = np) -> Array:
        for covariate, slope in self.slopes.items():
            if slope == name:
                return x[OFFSET] * (x[covariate] - at[covariate])
        return x[OFFSET]

    def factor(self, p: Values, x: Values, at: Values, xp: Namespace) -> Array:
        seen = {**x, "tokens": x["seen"]} if "seen" in x else x
        factor: Array = xp.exp(self.value(p, seen, at, xp))
        return factor

    def act(self, loss: Loss, p: Values, x: Values, at: Values, xp: Namespace) -> Loss:
        factor = self.factor(p, x, at, xp)
        by = {name: slope * factor for name, slope in loss[1].items()}
        return {"": total(loss[0]) * factor}, by


@dataclass(frozen=True)
class Repetition(Step):
    """Tokens of one epoch that are worth the tokens of a run stand for these.

    ``D' = U + U R (1 - exp(-(D/U - 1) / R))`` stands for D, where U is the tokens until the new
    data repeat: distinct tokens, over 1 - r where a share r is replayed. However often they repeat,
    data are worth at most (1 + R) U (Muennighoff et al. 2023, equation (5), with R = 15.4). A large
    model learns less from repeating few data, so ``R = R_D (U / (20 N))^R_D_N``. D itself becomes
    `seen`.

    >>> x = {"params": np.log([5e7]), "tokens": np.log([8e9]), "unique": np.log([1e9])}
    >>> p = {"R_D": 15.4, "R_D_N": 0.5}
    >>> np.exp(Repetition().effective(p, x, np)["tokens"]).round(-7).tolist()
    [6630000000.0]
    """

    falls: bool = True  # whether R falls with N, which the law then knows

    called_by = UNIQUE
    distinct = 1
    name = "repetition"
    words = "worth of repeated tokens"
    of_covariates = True
    priors: ClassVar[Mapping[str, Prior]] = {
        REPEATS: Prior("LogNormal", median=80, sigma=1),
        REPEATS_FALL: Prior("HalfNormal", sigma=0.5),
    }
    # The numbers for the reference point, and where deviations count tokens: together R is 15 where
    # a model has as many parameters as 1.4 distinct tokens, as in the table of the published R.
    typical: ClassVar[Mapping[str, float]] = {REPEATS: 80.0, REPEATS_FALL: 0.5}

    @property
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        covariates: dict[str, tuple[str, ...]] = {REPEATS: ("tokens", "unique")}
        if self.falls:
            covariates[REPEATS_FALL] = ("params", "unique")
        return covariates

    @classmethod
    def of_columns(cls, columns: Collection[str]) -> Self:
        return cls(falls="params" in columns)

    def covariates(self, columns: Columns, token_unit: float) -> dict[str, Floats]:
        tokens = columns["tokens"]
        if UNIQUE not in columns:
            return {"unique": np.full(len(tokens), math.inf)}
        # New data are a share 1 - r of all tokens.
        replay = columns.get("replay", np.zeros(len(tokens)))
        with np.errstate(divide="ignore"):  # of pure replay no new data repeat
            unique = np.log(columns[UNIQUE] / token_unit) - np.log1p(-replay)
        return {"unique": unique}

    def effective[A: Array](
        self, p: Values, x: Named[A], xp: Namespace, token_unit: float = 1.0
    ) -> Named[A]:
        if "unique" not in x:
            return x
        unique = xp.minimum(x["unique"], x["tokens"])
        again = xp.exp(x["tokens"] - unique) - 1
        rate = p[REPEATS]
        if self.falls:
            # N counts parameters, U the law's units of tokens.
            size = x["params"] - unique + math.log(TOKENS_PER_PARAM / token_unit)
            rate = rate * xp.exp(-p[REPEATS_FALL] * size)
        rate = rate + LEAST_REPEATS
        tokens = unique + xp.log1p(rate * (1 - xp.exp(-again / rate)))
        counted = {**x, "seen": x["tokens"], "tokens": tokens}
        del counted["unique"]
        return counted

    def latex(self, parts: dict[str, str]) -> dict[str, str]:
        rate = "R_D^{*}"
        falls = ""
        if self.falls:
            rate = "R"
            falls = r",\quad R = R_D^{*} (U / 20 N)^{R_{DN}}"
        worth = rf"D = U + U {rate} \left(1 - e^{{-(D_{{\mathrm{{seen}}}}/U - 1)/{rate}}}\right)"
        return {"": rf"{' + '.join(parts.values())},\quad {worth}{falls}"}


STEPS: tuple[type[Step], ...] = (Coupling, Departure, Offset, Repetition)
"""Kinds of steps, in the order in which laws take them and have their parameters."""


def epochs(tokens: float, replay: float, unique: float) -> float:
    return tokens * (1 - replay) / unique if tokens < math.inf else math.inf
