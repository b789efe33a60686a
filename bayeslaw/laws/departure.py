"""A law whose loss departs from that of pre-trained models, and these models, its bases."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import numpy as np

from bayeslaw.common.arrays import Array, Floats, Namespace
from bayeslaw.common.errors import TableError
from bayeslaw.laws.deviations import CORE, START
from bayeslaw.laws.latex import tex
from bayeslaw.laws.shares import SHARE_OFFSET
from bayeslaw.laws.step import Columns, Loss, Step, total
from bayeslaw.laws.symbols import SYMBOLS, Named, Values
from bayeslaw.tables.validation import BASE_LOSSES

BASE_COLUMNS = ["params", "ptpp", *BASE_LOSSES]
"""Columns of a table of bases."""
REFERENCE_SHARE = 0.25
"""Share of the domain's own text at which its factor is 1."""


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
    # Of the table that it is fitted to.
    bases: Bases | None = field(default=None, repr=False)

    @property
    def leading(self) -> str:  # type: ignore[override]
        return self.onset

    @property
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        covariates = {
            self.exponent: ("tokens", "start"),
            self.fresh: ("fresh",),
            self.onset: ("tokens",),
        }
        for covariate, name in self.along.items():
            covariates[name] = (covariate,)
        covariates[self.share] = ("mixed",)
        covariates[self.base] = ("deviation",)
        covariates[self.rise] = ("own",)
        covariates.pop("", None)  # of parameters that the step does not have
        return covariates

    def varying(self, same: Collection[str], coefficients: Collection[str]) -> Self:
        along = {c: name for c, name in self.along.items() if c not in same}
        varying = replace(self, along=along)
        if "replay" in same:
            varying = replace(varying, fresh="", share="")
        if "base_loss" in same:
            varying = replace(varying, base="")
        return varying

    def of_role(self, role: str) -> Self:
        return self if role == "source" else replace(self, rise="")

    def covariates(self, columns: Columns, token_unit: float) -> dict[str, Floats]:
        if self.bases is None:
            raise TableError(
                "the law starts from bases and knows none; fit it to a table first."
            )
        start, deviation = self.bases.logs(columns)
        return {"start": start, "deviation": deviation}

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
        by[START] = gap
        by[CORE] = core * factor_left
        return {"": core * factor_left + start * left}, by

    def factor(self, p: Values, x: Values, at: Values, xp: Namespace) -> Array:
        if not (self.base or self.share):
            return 1.0
        power: Array = 0.0
        if self.base:
            power = p[self.base] * x["deviation"]
        if self.share:
            moved = x["mixed"] - math.log(REFERENCE_SHARE + SHARE_OFFSET)
            power = power - p[self.share] * moved
        factor: Array = xp.exp(power)
        return factor

    def latex(self, parts: dict[str, str]) -> dict[str, str]:
        power = tilt = rise = fresh = ""
        if self.base:
            power = rf"\left(\frac{{b}}{{\hat b}}\right)^{{{tex(self.base)}}}"
        if self.share:
            ratio = rf"\frac{{s+{SHARE_OFFSET}}}{{{REFERENCE_SHARE + SHARE_OFFSET}}}"
            tilt = rf"\left({ratio}\right)^{{-{tex(self.share)}}}"
        if self.rise:
            rise = rf" e^{{{tex(self.rise)} (1 - s)}}"
        if self.fresh:
            fresh = rf"(1-r)^{{{tex(self.fresh)}}} "
        core = " + ".join(parts.values())
        loss = rf"\left({core}\right) {power} {tilt} (1 - g) + L_{{\mathrm{{start}}}}{rise} g"
        along = "".join(rf" {SYMBOLS[c]}^{{{name}}}" for c, name in self.along.items())
        reach = rf"\frac{{{fresh}D}}{{e^{{{self.onset}}}{along}}}"
        way = rf"g = \left(1 + {reach}\right)^{{-{tex(self.exponent)}}}"
        return {"": rf"{loss},\quad {way}"}


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
