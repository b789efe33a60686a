"""Terms of a source loss that rises as adaptation starts (``models/forgetting.toml``)."""

import math
from dataclasses import dataclass
from typing import ClassVar

from bayeslaw.common.arrays import Namespace
from bayeslaw.laws.powers import Power
from bayeslaw.laws.terms import ORIGIN, SYMBOLS, TERMS, Array, Values, tex


@TERMS.register
@dataclass(frozen=True)
class SeenPower(Power):
    r"""A power of the tokens seen per parameter, in pre-training and in adaptation.

    It is `Power` with ``P + rho D/N`` in the place of P, which `down` names as ``ptpp``:
    ``F / (N^phi (P + rho D/N)^eta)``. At D = 0 it is the pre-trained model's own term. It falls
    with log P, and is convex in it where ``eta P >= rho D/N`` only.

    Parameters
    ----------
    weight : str, optional
        Symbol of rho, what an adaptation token counts in pre-training tokens; without it, 1.
    total : bool
        Take all tokens seen, ``P N + rho D``, in place of those per parameter.
    """

    weight: str = ""
    total: bool = False
    kind: ClassVar[str] = "seen_power"
    convex_in_ptpp: ClassVar[bool] = False

    @property
    def covariates(self) -> tuple[str, ...]:
        """Covariates the term depends on, the leading one first."""
        return tuple(dict.fromkeys([*super().covariates, "params", "tokens"]))

    @property
    def exponents(self) -> tuple[str, ...]:
        """Paper symbols of every parameter but the coefficient."""
        return (*super().exponents, *filter(None, [self.weight]))

    def log_ratio(self, p: Values, x: Values, at: Values, xp: Namespace) -> Array:
        """Log of the term at `x` over its value at `at`; at `ORIGIN`, over its coefficient."""
        there = at if at is ORIGIN else self._seen(p, at, xp)
        return super().log_ratio(p, self._seen(p, x, xp), there, xp)

    def exponent(self, p: Values, at: Values, xp: Namespace) -> Array:
        """Local exponent along log P at the point `at`: P is a part of the tokens seen."""
        tokens = at["ptpp"] + at["params"] if self.total else at["ptpp"]
        return p[self.local] * xp.exp(tokens - self._seen(p, at, xp)["ptpp"])

    def latex(self) -> str:
        """The term as LaTeX."""
        each, per = (" N", "D") if self.total else ("", "D/N")
        seen = rf"\left(P{each} + {tex(self.weight)} {per}\right)^"
        return super().latex().replace(SYMBOLS["ptpp"] + "^", seen)

    def _seen(self, p: Values, x: Values, xp: Namespace) -> Values:
        weight = p[self.weight] if self.weight else 1.0
        seen = xp.log(xp.exp(x["ptpp"]) + weight * xp.exp(x["tokens"] - x["params"]))
        return {**x, "ptpp": seen + x["params"] if self.total else seen}


@TERMS.register
@dataclass(frozen=True)
class Rise(Power):
    r"""A rise in D that saturates: ``G exp(-xi r) (1 - exp(-D / (h N P)))``, h = 10^-omega.

    It is 0 at D = 0, within 5 % of its height once D is three times the share h of the
    pre-training tokens N P, and damped exponentially by the leading covariate of `down`, the
    replay ratio. `up` may let it grow with another covariate.

    Parameters
    ----------
    pace : str
        Symbol of omega. It is used in place of h, because rows that begin after the rise give only
        an upper bound of h, and a fit of h itself would end at 0.
    """

    pace: str = "omega"
    kind: ClassVar[str] = "rise"
    convex_in_ptpp: ClassVar[bool] = False
    curvable: ClassVar[bool] = False  # few replay ratios distinguish its curvature from xi

    @property
    def covariates(self) -> tuple[str, ...]:
        """Covariates the term depends on, the leading one first."""
        return tuple(dict.fromkeys([*super().covariates, "tokens", "params", "ptpp"]))

    @property
    def exponents(self) -> tuple[str, ...]:
        """Paper symbols of every parameter but the coefficient."""
        return (*super().exponents, self.pace)

    def log_ratio(self, p: Values, x: Values, at: Values, xp: Namespace) -> Array:
        """Log of the term at `x` over its value at `at`; at `ORIGIN`, over its coefficient."""
        return self._log(p, x, xp) - (0.0 if at is ORIGIN else self._log(p, at, xp))

    def exponent(self, p: Values, at: Values, xp: Namespace) -> Array:
        """Local exponent along the leading covariate at the point `at`."""
        return p[self.local] * xp.exp(at[next(iter(self.down))])

    def latex(self) -> str:
        """The term as LaTeX."""
        damped = " ".join(f"{tex(e)} {SYMBOLS[c]}" for c, e in self.down.items())
        times = "".join(rf" {SYMBOLS[c]}^{{{tex(e)}}}" for c, e in self.up.items())
        full = rf"\left(1 - e^{{-10^{{{tex(self.pace)}}} D/(N P)}}\right)"
        return rf"{tex(self.coefficient)}{times} e^{{-{damped}}} {full}"

    def _log(self, p: Values, x: Values, xp: Namespace) -> Array:
        seen = x["tokens"] - x["params"] - x["ptpp"]
        log = xp.log(-xp.expm1(-xp.exp(math.log(10) * p[self.pace] + seen)))
        for name, exponent in self.up.items():
            log = log + p[exponent] * x[name]
        for name, exponent in self.down.items():
            log = log - p[exponent] * xp.exp(x[name])
        return log
