"""Steps of a law: a coupling, a base, an offset, a rate, repeated data.

They act on the loss beside floor and terms. A law whose loss departs from that of pre-trained
models knows the losses of these, its `Bases`, and the laws that they follow.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import ClassVar, Protocol, Self

import numpy as np

from bayeslaw.common.arrays import Array, Floats, Namespace, Untyped
from bayeslaw.common.errors import TableError
from bayeslaw.laws.deviations import CORE, START, WHOLE, Deviation, Linear
from bayeslaw.laws.latex import tex
from bayeslaw.laws.priors import Prior
from bayeslaw.laws.symbols import COLUMN, SYMBOLS, Named, Values
from bayeslaw.tables.validation import BASE_LOSSES

BASE_COLUMNS = ["params", "ptpp", *BASE_LOSSES]
"""Columns of a table of bases."""
REFERENCE_SHARE = 0.25
"""Share of the domain's own text at which its factor is 1."""
SHARE_OFFSET = 0.01
"""Added to a share under the logarithms of the covariates ``mixed`` and ``rest``."""
UNIQUE = "unique_tokens"
"""Column of a table: distinct tokens of the new data."""
ANNEALED = "annealed"
"""Column of a table: whether the learning rate had fallen to its end when the loss was measured."""
RATE_COLUMN = "rate"
RATED_COLUMN = "rated"
"""Column of a table: the learning rate, or what else has a best value; whether a row has one."""
OFFSET = "unannealed"
"""The offset where all covariates are 1."""
RATE_COST = "rate_cost"
BEST_RATE = "rate_best"
"""Log loss per squared e-fold from the best rate; the log of the best rate where N = D = 1."""
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


# -- bases -----------------------------------------------------------------------------------------


type Columns = Mapping[str, Floats]
"""Columns of some rows by name, each of shape (rows,)."""


class LossLaw(Protocol):
    """The bases' law, of N and D alone: a `Law`, whose module imports this one."""

    @property
    def name(self) -> str: ...
    @property
    def parameters(self) -> tuple[str, ...]: ...
    def covariates(self, columns: Columns, /) -> dict[str, Floats]: ...
    def loss(self, p: Values, x: Values, /) -> Floats: ...
    def gradient(self, p: Values, x: Values, /) -> dict[str, Floats]: ...


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

    def logs(
        self, columns: Columns, noise: Floats | None = None
    ) -> tuple[Floats, Floats]:
        """Logs of the start loss, and of the base's loss over the expected one, shape (..., rows).

        Of `columns` it reads N, P, and both losses of each row's base; in place of losses that are
        not known (NaN) there are expected ones. `noise`, of shape (2, ..., rows), are deviations
        from the laws where losses are not known.
        """
        measured = np.log([columns[name] for name in BASE_LOSSES])
        x = self.law.covariates(total_tokens(columns["params"], columns["ptpp"]))
        expected = np.log(
            [self.law.loss(self.parameters[column], x) for column in BASE_LOSSES]
        )
        drawn = expected if noise is None else expected + np.moveaxis(noise, 0, -2)
        logs = np.where(np.isnan(measured), drawn, measured)
        return logs[..., 0, :], logs[..., 1, :] - expected[1]


# -- steps -----------------------------------------------------------------------------------------


type Loss = tuple[Values, Values]
"""Summands of the loss, and its derivatives by the log of some of its parts."""


class Step(ABC):
    """What acts on the loss beside floor and terms. Subclasses are frozen dataclasses.

    A new step is a class and its row in `STEPS`. A law's file states it, or it is called for by a
    column of a table that has so many `distinct` values.
    """

    called_by: ClassVar[str] = ""
    distinct: ClassVar[int] = 2
    name: ClassVar[str] = ""  # in saved laws, if a column calls for it
    words: ClassVar[str] = ""  # in reports, which leave it out if empty
    of_covariates: ClassVar[bool] = (
        False  # whether its parameters change the covariates
    )
    priors: ClassVar[
        Mapping[str, Prior]
    ] = {}  # in reference coordinates; others are the law's
    typical: ClassVar[
        Mapping[str, float]
    ] = {}  # sizes of parameters for which 1 is far from it
    leading: str = (
        ""  # the parameter that has another value in reference coordinates, if one has
    )
    added: bool = False  # whether a discrepancy added it to the law

    @classmethod
    def of_columns(cls, columns: Collection[str]) -> Self:
        """The step of a law that depends on these columns of a table."""
        return cls()

    @property
    @abstractmethod
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        """Covariates that each parameter acts along, by its symbol in paper coordinates."""

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(self.covariates_of)

    @property
    def local(self) -> tuple[str, ...]:
        """Names of its parameters in reference coordinates."""
        return tuple(
            f"{name}_ref" if name == self.leading else name for name in self.parameters
        )

    def varying(
        self, same: Collection[str], coefficients: Collection[str]
    ) -> Self | None:
        """The step of rows that are the `same` in some columns, in a law of some terms."""
        return self

    def of_role(self, role: str) -> Self:
        """The step of losses of the domain adapted to (`target`), or pre-trained on (`source`)."""
        return self

    def covariates(self, columns: Columns, token_unit: float) -> dict[str, Floats]:
        """Covariates beside those of the terms, each of shape (rows,)."""
        return {}

    def effective[A: Array](
        self, p: Values, x: Named[A], xp: Namespace, token_unit: float = 1.0
    ) -> Named[A]:
        """Covariates as floor and terms count them."""
        return x

    def act(self, loss: Loss, p: Values, x: Values, at: Values, xp: Namespace) -> Loss:
        """What becomes of floor ("E") and terms, or of what earlier steps made of them."""
        return loss

    def factor(self, p: Values, x: Values, at: Values, xp: Namespace) -> Array:
        """Factor of the floor."""
        return 1.0

    def shift(self, p: Values, at: Values) -> Array:
        """The leading parameter in reference coordinates less that of the paper."""
        return 0.0

    def amounts[A: Array](self, p: Named[A], at: Values) -> dict[str, A]:
        """What it changes of amounts at `at` that are still as in reference coordinates."""
        return {}

    def rescale[A: Array](self, p: Named[A], at: Values) -> dict[str, A]:
        """What it changes from amounts to paper coordinates."""
        return (
            {self.leading: p[self.leading] - self.shift(p, at)} if self.leading else {}
        )

    def to_reference[A: Array](self, p: Named[A], at: Values) -> dict[str, A]:
        """What it changes from paper to reference coordinates, with amounts of the terms."""
        return (
            {self.leading: p[self.leading] + self.shift(p, at)} if self.leading else {}
        )

    def latex(self, parts: dict[str, str]) -> dict[str, str]:
        """What becomes of floor and terms, as LaTeX."""
        return parts


def total(parts: Values) -> Array:
    """The loss of floor and terms, or of what steps made of them."""
    floor, *terms = parts.values()
    return floor + sum(terms) if terms else floor


@dataclass(frozen=True)
class Coupling(Step):
    """Terms T that enter as ``(sum of T^(1 / kappa))^kappa``; with kappa = 1 it is their sum."""

    along: Mapping[str, tuple[str, ...]]  # covariates of each term, by its coefficient
    added: bool = False

    @property
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        return {KAPPA: tuple(dict.fromkeys(sum(self.along.values(), ())))}

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
        joined = parts[KAPPA] = xp.exp(p[KAPPA] * (top + xp.log(whole)))
        return parts, by | {
            name: joined * (roots[name] / whole) for name in by if name in roots
        }

    # Neither the sum at the reference point nor the slopes there depend on kappa.
    def amounts[A: Array](self, p: Named[A], at: Values) -> dict[str, A]:
        whole = sum(p[name] for name in self.along)
        return {name: whole * (p[name] / whole) ** p[KAPPA] for name in self.along}

    def to_reference[A: Array](self, p: Named[A], at: Values) -> dict[str, A]:
        roots = {name: p[name] ** (1 / p[KAPPA]) for name in self.along}
        whole: Untyped = sum(roots.values())
        return {name: whole ** (p[KAPPA] - 1) * root for name, root in roots.items()}

    def latex(self, parts: dict[str, str]) -> dict[str, str]:
        roots = " + ".join(
            rf"\left({parts.pop(n)}\right)^{{1/\kappa}}" for n in self.along
        )
        return {
            "E": parts.pop("E"),
            KAPPA: rf"\left[{roots}\right]^{{\kappa}}",
            **parts,
        }


@dataclass(frozen=True)
class Departure(Step):
    """Loss that moves from the start loss to the law's core as adaptation goes on.

    ``L = core (1 - g) + L_start e^(c (1 - s)) g`` with ``g = (1 + (1 - r)^v D / D_s)^-beta``, the
    share of the way that is still to go, and ``log D_s = z + z_N log N + z_P log P``. The core is
    the floor and the terms, times ``(b / b_hat)^k ((s + .01) / .26)^-gamma``. L_start is the
    pre-trained model's own loss on the domain, s the share of the domain's own text, b the model's
    loss on the domain it was pre-trained on, and b_hat the loss there that models of its size and
    budget have. On the domain of pre-training the loss rises at once, by c in log where no text is
    of it; on the domain adapted to c is 0. In reference coordinates z is ``z_ref``, the log of D_s
    over D at the reference point.
    """

    # Symbols of beta, v, z, the exponents of D_s by covariate, gamma, k and c; v, gamma and k may
    # be "", for a factor that is the same in all rows, and c for a loss that does not rise at once.
    exponent: str
    fresh: str
    onset: str
    along: Mapping[str, str]
    share: str
    base: str
    rise: str = ""
    bases: Bases | None = field(
        default=None, repr=False
    )  # of the table that it is fitted to

    @property
    def leading(self) -> str:  # type: ignore[override]
        return self.onset

    @property
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        rows = (
            (self.exponent, ("tokens", "start")), (self.fresh, ("fresh",)),
            (self.onset, ("tokens",)), *((name, (c,)) for c, name in self.along.items()),
            (self.share, ("mixed",)), (self.base, ("deviation",)), (self.rise, ("own",)),
        )  # fmt: skip
        return {name: covariates for name, covariates in rows if name}

    def varying(self, same: Collection[str], coefficients: Collection[str]) -> Self:
        along = {c: name for c, name in self.along.items() if c not in same}
        parts = (self.fresh, "replay"), (self.share, "replay"), (self.base, "base_loss")
        fresh, share, base = (
            ("" if column in same else name) for name, column in parts
        )
        return replace(self, along=along, fresh=fresh, share=share, base=base)

    def of_role(self, role: str) -> Self:
        return self if role == "source" else replace(self, rise="")

    def covariates(self, columns: Columns, token_unit: float) -> dict[str, Floats]:
        if self.bases is None:
            raise TableError(
                "the law starts from bases and knows none; fit it to a table first."
            )
        return dict(zip(("start", "deviation"), self.bases.logs(columns), strict=True))

    def shift(self, p: Values, at: Values) -> Array:
        return (
            sum(p[name] * at[covariate] for covariate, name in self.along.items())
            - at["tokens"]
        )

    # The formula has the onset of paper coordinates.
    def amounts[A: Array](self, p: Named[A], at: Values) -> dict[str, A]:
        return super().rescale(p, at)

    def rescale[A: Array](self, p: Named[A], at: Values) -> dict[str, A]:
        return {}

    def remaining(self, p: Values, x: Values, xp: Namespace) -> Array:
        onset = p[self.onset] + sum(p[name] * x[c] for c, name in self.along.items())
        u = x["tokens"] - onset
        u = u + p[self.fresh] * x["fresh"] if self.fresh else u
        left: Array = xp.exp(-p[self.exponent] * xp.log1p(xp.exp(u)))
        return left

    def act(self, loss: Loss, p: Values, x: Values, at: Values, xp: Namespace) -> Loss:
        left = self.remaining(p, x, xp)
        factor = self.factor(p, x, at, xp)
        core = total(loss[0])
        rise: Array = p[self.rise] * (1 - xp.exp(x["own"])) if self.rise else 0.0
        start = xp.exp(x["start"] + rise)
        # The share of the way still to go is a part too: by its log, the loss has this derivative.
        gap = left * (start - factor * core)
        factor_left = factor * (1 - left)
        by = {name: slope * factor_left for name, slope in loss[1].items()}
        return {"": core * factor_left + start * left}, {
            **by,
            START: gap,
            CORE: core * factor_left,
        }

    def factor(self, p: Values, x: Values, at: Values, xp: Namespace) -> Array:
        power: Array = p[self.base] * x["deviation"] if self.base else 0.0
        if self.share:
            power = power - p[self.share] * (
                x["mixed"] - math.log(REFERENCE_SHARE + SHARE_OFFSET)
            )
        return xp.exp(power) if self.base or self.share else 1.0

    def latex(self, parts: dict[str, str]) -> dict[str, str]:
        power = (
            rf"\left(\frac{{b}}{{\hat b}}\right)^{{{tex(self.base)}}}"
            if self.base
            else ""
        )
        ratio = rf"\frac{{s+{SHARE_OFFSET}}}{{{REFERENCE_SHARE + SHARE_OFFSET}}}"
        tilt = rf"\left({ratio}\right)^{{-{tex(self.share)}}}" if self.share else ""
        core = " + ".join(parts.values())
        rise = rf" e^{{{tex(self.rise)} (1 - s)}}" if self.rise else ""
        loss = rf"\left({core}\right) {power} {tilt} (1 - g) + L_{{\mathrm{{start}}}}{rise} g"
        along = "".join(rf" {SYMBOLS[c]}^{{{name}}}" for c, name in self.along.items())
        fresh = rf"(1-r)^{{{tex(self.fresh)}}} " if self.fresh else ""
        reach = rf"\frac{{{fresh}D}}{{e^{{{self.onset}}}{along}}}"
        way = rf"g = \left(1 + {reach}\right)^{{-{tex(self.exponent)}}}"
        return {"": rf"{loss},\quad {way}"}


@dataclass(frozen=True)
class Factor(Step, Deviation):
    """A factor of the loss of rows that are not as the law's, and 1 for those that are.

    Its log depends on a level that is linear in some covariates. Repeated tokens count as new ones.
    """

    of = WHOLE
    slopes: Mapping[
        str, str
    ]  # of the level, by covariate; the leading parameter is its intercept
    along: ClassVar[
        tuple[str, ...]
    ]  # covariates of the level, as far as a law has them
    marks: ClassVar[tuple[str, ...]]  # covariates of rows that are not as the law's

    @classmethod
    def of_columns(cls, columns: Collection[str]) -> Self:
        return cls(
            {
                c: f"{cls.leading}_{SYMBOLS[c]}"
                for c in cls.along
                if COLUMN[c] in columns
            }
        )

    @property
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        slopes = {
            name: (*self.marks, covariate) for covariate, name in self.slopes.items()
        }
        return {self.leading: self.marks, **slopes}

    def shift(self, p: Values, at: Values) -> Array:
        return sum(
            (p[name] * at[covariate] for covariate, name in self.slopes.items()), 0.0
        )

    def factor(self, p: Values, x: Values, at: Values, xp: Namespace) -> Array:
        seen = {**x, "tokens": x.get("seen", x["tokens"])}
        factor: Array = xp.exp(self.value(p, seen, at, xp))
        return factor

    def act(self, loss: Loss, p: Values, x: Values, at: Values, xp: Namespace) -> Loss:
        factor = self.factor(p, x, at, xp)
        return {"": total(loss[0]) * factor}, {
            n: slope * factor for n, slope in loss[1].items()
        }


@dataclass(frozen=True)
class Offset(Linear, Factor):
    """Factor of the loss of checkpoints that are not annealed; its log is the level."""

    called_by = ANNEALED
    name = "offset"
    words = "offset of un-annealed checkpoints"
    leading = OFFSET
    along = ("tokens", "params", "ptpp", "share")
    marks = (OFFSET,)
    # On log loss; of slopes per e-fold, of that in r over all of its range.
    priors: ClassVar[Mapping[str, Prior]] = {
        f"{OFFSET}_ref": Prior("Normal", mu=0, sigma=0.05),
        **{f"{OFFSET}_{c}": Prior("Normal", mu=0, sigma=0.02) for c in "DNP"},
        f"{OFFSET}_r": Prior("Normal", mu=0, sigma=0.05),
    }
    typical: ClassVar[Mapping[str, float]] = dict.fromkeys(
        (OFFSET, *(f"{OFFSET}_{c}" for c in "DNPr")), 0.02
    )

    def covariates(self, columns: Columns, token_unit: float) -> dict[str, Floats]:
        if ANNEALED not in columns:  # all rows are
            return {OFFSET: np.zeros(len(columns["tokens"]))}
        return {OFFSET: 1.0 - columns[ANNEALED]}

    def column(self, name: str, x: Values, at: Values, xp: Namespace = np) -> Array:
        moved = {name: x[c] - at[c] for c, name in self.slopes.items()}
        return x[OFFSET] * moved.get(name, 1.0)


@dataclass(frozen=True)
class Tuning(Factor):
    """Factor of the loss of runs at another rate than the best one.

    Its log is ``cost (log(rate / best))^2``, and log best is the level. So the law is that of runs
    at their best rate, which rows without a rate are. In reference coordinates the best rate is
    that at the reference point, over the geometric mean of the fitted rates.
    """

    called_by = RATE_COLUMN
    name = "tuning"
    leading = BEST_RATE
    along = ("params", "tokens")
    marks = (RATE_COLUMN, RATED_COLUMN)
    # Of the log of the best rate over the mean one at the reference point, per e-fold.
    priors: ClassVar[Mapping[str, Prior]] = {
        RATE_COST: Prior("LogNormal", median=0.02, sigma=1),
        f"{BEST_RATE}_ref": Prior("Normal", mu=0, sigma=1),
        **{f"{BEST_RATE}_{c}": Prior("Normal", mu=0, sigma=0.3) for c in "DN"},
    }
    typical: ClassVar[Mapping[str, float]] = {RATE_COST: 0.02}

    @property
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        return {RATE_COST: self.marks, **super().covariates_of}

    def covariates(self, columns: Columns, token_unit: float) -> dict[str, Floats]:
        if RATE_COLUMN not in columns:
            none = np.zeros(len(columns["tokens"]))
            return dict.fromkeys((RATE_COLUMN, RATED_COLUMN), none)
        log = np.log(columns[RATE_COLUMN])
        rated = ~np.isnan(log)
        # In place of a missing rate is the mean of the others, which thus is that of all.
        middle = log[rated].mean() if rated.any() else 0.0
        return {
            RATE_COLUMN: np.where(rated, log, middle),
            RATED_COLUMN: rated.astype(float),
        }

    def shift(self, p: Values, at: Values) -> Array:
        return super().shift(p, at) - at[RATE_COLUMN]

    def best(self, p: Values, x: Values, at: Values) -> Untyped:
        """Log of the best rate."""
        drift = sum(p[name] * (x[c] - at[c]) for c, name in self.slopes.items())
        return at[RATE_COLUMN] + p[BEST_RATE] + drift

    def value(self, p: Values, x: Values, at: Values, xp: Namespace) -> Array:
        best: Array = self.best(p, x, at)
        return p[RATE_COST] * x[RATED_COLUMN] * (x[RATE_COLUMN] - best) ** 2


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
        falls = {REPEATS_FALL: ("params", "unique")} if self.falls else {}
        return {REPEATS: ("tokens", "unique"), **falls}

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
        rest = {name: values for name, values in x.items() if name != "unique"}
        return {**rest, "seen": x["tokens"], "tokens": tokens}

    def latex(self, parts: dict[str, str]) -> dict[str, str]:
        rate, falls = (
            ("R", r",\quad R = R_D^{*} (U / 20 N)^{R_{DN}}")
            if self.falls
            else ("R_D^{*}", "")
        )
        worth = rf"D = U + U {rate} \left(1 - e^{{-(D_{{\mathrm{{seen}}}}/U - 1)/{rate}}}\right)"
        return {"": rf"{' + '.join(parts.values())},\quad {worth}{falls}"}


STEPS: tuple[type[Step], ...] = (Coupling, Departure, Offset, Tuning, Repetition)
"""Kinds of steps, in the order in which laws take them and have their parameters."""


# -- columns of tables -----------------------------------------------------------------------------


def epochs(tokens: float, replay: float, unique: float) -> float:
    return tokens * (1 - replay) / unique if tokens < math.inf else math.inf


def total_tokens(params: Floats, ptpp: Floats) -> dict[str, Floats]:
    """`params` and `tokens` of the pre-training of each row's base, columns of a law of bases."""
    return {"params": params, "tokens": params * ptpp}


def log_slopes(law: LossLaw, p: Mapping[str, float], columns: Columns) -> Floats:
    """Derivatives of log loss by a law's parameters, shape (parameters, rows)."""
    x = law.covariates(columns)
    by = law.gradient(p, x)
    loss = law.loss(p, x)
    return np.stack(
        [np.broadcast_to(by[name], loss.shape) / loss for name in law.parameters]
    )
