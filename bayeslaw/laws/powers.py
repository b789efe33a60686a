"""Terms that are products of powers, some with an exponent that varies from row to row."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from bayeslaw.common.arrays import Namespace
from bayeslaw.laws.terms import SYMBOLS, TERMS, Array, Term, Values, tex


@TERMS.register
@dataclass(frozen=True)
class Power(Term):
    r"""Coefficient times a product of powers: loss falls in `down`, rises in `up`.

    ``A / N^alpha`` is ``Power("A", "slope_N", {"params": "alpha"})``.

    Parameters
    ----------
    coefficient : str
        The paper's symbol of the coefficient.
    slope : str
        Name of the local slope, nats per e-fold of the leading covariate at the reference point.
    down, up : mapping of covariate to exponent name
        The first of `down` leads: the term's slope is taken along it.

    Examples
    --------
    >>> Power("B", "slope_D", {"tokens": "beta"}, {"replay": "nu"}).latex()
    '\\frac{B r^{\\nu}}{D^{\\beta}}'
    """

    coefficient: str
    slope: str
    down: Mapping[str, str]
    up: Mapping[str, str] = field(default_factory=dict)
    kind: ClassVar[str] = "power"
    convex_in_ptpp: ClassVar[bool] = True

    @property
    def covariates(self) -> tuple[str, ...]:
        """Covariates the term depends on, the leading one first."""
        return tuple(dict.fromkeys([*self.down, *self.up]))

    @property
    def exponents(self) -> tuple[str, ...]:
        """Paper symbols of every parameter but the coefficient."""
        return (*self.down.values(), *self.up.values())

    @property
    def leading(self) -> str:
        """The paper's symbol of the leading exponent."""
        return next(iter(self.down.values()))

    @property
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        """Covariate of each power; other parameters act along all covariates of the term."""
        powers = {name: (c,) for c, name in (*self.down.items(), *self.up.items())}
        return dict.fromkeys(self.exponents, self.covariates) | powers

    def log_ratio(self, p: Values, x: Values, at: Values, xp: Namespace) -> Array:
        """Log of the term at `x` over its value at `at`."""
        rise: Array = 0.0
        for name, exponent in self.up.items():
            rise = rise + p[exponent] * (x[name] - at[name])
        for name, exponent in self.down.items():
            rise = rise - p[exponent] * (x[name] - at[name])
        return rise

    def slopes(self, p: Values, x: Values, at: Values) -> dict[str, Array]:
        """Derivative of `log_ratio` by each exponent."""
        if type(self).log_ratio is not Power.log_ratio:
            return super().slopes(p, x, at)
        by: dict[str, Array] = {}
        for powers, sign in ((self.up, 1.0), (self.down, -1.0)):
            for c, name in powers.items():
                by[name] = by.get(name, 0.0) + sign * (x[c] - at[c])
        return by

    def latex(self) -> str:
        """The term as LaTeX."""
        over = " ".join(f"{SYMBOLS[c]}^{{{self._latex_exponent(e)}}}" for c, e in self.down.items())
        times = "".join(rf" {SYMBOLS[c]}^{{{tex(e)}}}" for c, e in self.up.items())
        return rf"\frac{{{tex(self.coefficient)}{times}}}{{{over}}}"

    def _latex_exponent(self, exponent: str) -> str:
        return tex(exponent)


@TERMS.register
@dataclass(frozen=True)
class GatedPower(Power):
    r"""A power whose leading exponent is gated by the pre-training budget (paper, Forms 2 and 3).

    ``beta_eff = max(beta (1 - lambda sigmoid(zeta log P)), floor)``, the paper's
    ``beta (1 - lambda P^zeta / (1 + P^zeta))`` in a form that cannot overflow. Because the exponent
    varies from row to row, the unit of D is part of the model. In reference coordinates the
    leading exponent is the effective one at the reference PTPP, called ``<exponent>_ref``.

    Parameters
    ----------
    depth, rate : str
        Symbols of lambda, the depth of the gate, and zeta, its rate in log P.
    floor : float
        Least value of the effective exponent.
    """

    depth: str = "lambda_"
    rate: str = "zeta"
    floor: float = 1e-6
    kind: ClassVar[str] = "gated_power"
    convex_in_ptpp: ClassVar[bool] = False

    @property
    def covariates(self) -> tuple[str, ...]:
        """Covariates the term depends on, the leading one first."""
        return (*super().covariates, "ptpp")

    @property
    def exponents(self) -> tuple[str, ...]:
        """Paper symbols of every parameter but the coefficient."""
        return (*super().exponents, self.depth, self.rate)

    @property
    def local(self) -> str:
        """Name of the leading exponent in reference coordinates."""
        return f"{self.leading}_ref"

    @property
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        """The covariate of each power, and P for the gate."""
        return super().covariates_of | {self.depth: ("ptpp",), self.rate: ("ptpp",)}

    def log_ratio(self, p: Values, x: Values, at: Values, xp: Namespace) -> Array:
        """Log of the term at `x` over its value at `at`."""
        lead = next(iter(self.down))
        fixed = super().log_ratio({**p, self.leading: 0.0}, x, at, xp)
        return fixed - (self.exponent(p, x, xp) * x[lead] - self.exponent(p, at, xp) * at[lead])

    def slopes(self, p: Values, x: Values, at: Values) -> dict[str, Array]:
        """Derivative of `log_ratio` by each exponent."""
        there, here = self._lead_slopes(p, x), self._lead_slopes(p, at)
        return self._ungated.slopes(p, x, at) | {name: here[name] - there[name] for name in here}

    def exponent(self, p: Values, at: Values, xp: Namespace) -> Array:
        """Effective exponent at the pre-training budget of `at`."""
        return xp.maximum(p[self.leading] * self._open(p, at, xp), self.floor)

    def to_local(self, p: Values, at: Values, xp: Namespace) -> dict[str, Array]:
        """Exponents in reference coordinates from the paper's."""
        rest = {name: p[name] for name in self.exponents if name != self.leading}
        return {self.local: p[self.leading] * self._open(p, at, xp), **rest}

    def from_local(self, q: Values, at: Values, xp: Namespace) -> dict[str, Array]:
        """The paper's exponents from those in reference coordinates."""
        rest = {name: q[name] for name in self.exponents if name != self.leading}
        return {self.leading: q[self.local] / self._open(q, at, xp), **rest}

    @property
    def _ungated(self) -> Power:
        return Power(self.coefficient, self.slope, self.down, self.up)

    def _lead_slopes(self, p: Values, x: Values) -> dict[str, Array]:
        """Derivative of the effective exponent times the leading covariate."""
        beta, gate = self.leading, self._gate(p, x, np)
        open_ = 1 - p[self.depth] * gate
        reach = np.where(p[beta] * open_ > self.floor, x[next(iter(self.down))], 0.0)
        by_gate = -p[beta] * gate * reach
        by_rate = p[self.depth] * (1 - gate) * x["ptpp"] * by_gate
        return {beta: open_ * reach, self.depth: by_gate, self.rate: by_rate}

    def _open(self, p: Values, x: Values, xp: Namespace) -> Array:
        """Fraction of the exponent that the gate leaves."""
        return 1 - p[self.depth] * self._gate(p, x, xp)

    def _gate(self, p: Values, x: Values, xp: Namespace) -> Array:
        """``sigmoid(zeta log P)``."""
        return 0.5 * (1 + xp.tanh(0.5 * p[self.rate] * x["ptpp"]))

    def _latex_exponent(self, exponent: str) -> str:
        if exponent != self.leading:
            return tex(exponent)
        gate = rf"\frac{{P^{{{tex(self.rate)}}}}}{{1+P^{{{tex(self.rate)}}}}}"
        return rf"{tex(exponent)}\left(1-{tex(self.depth)} {gate}\right)"


@TERMS.register
@dataclass(frozen=True)
class FadingPower(Power):
    r"""``A D1^-a1 D^-(a2 - a3 log D1)``, D1 = N P the pre-training tokens [1]_.

    `down` is ``{"tokens": a2}``. The exponent of D varies from row to row, so the unit of D is part
    of the model. In reference coordinates a2 is the exponent at the reference point's D1, called
    ``<a2>_ref``.

    Parameters
    ----------
    before, fade : str
        Symbols of a1 and a3.

    References
    ----------
    .. [1] Liew and Kato 2025, From Acceleration to Saturation: Scaling Behavior of Bootstrapped
       Language Model Pretraining.
    """

    before: str = "alpha1"
    fade: str = "alpha3"
    kind: ClassVar[str] = "fading_power"
    convex_in_ptpp: ClassVar[bool] = False

    @property
    def covariates(self) -> tuple[str, ...]:
        """Covariates the term depends on, the leading one first."""
        return (*super().covariates, "params", "ptpp")

    @property
    def exponents(self) -> tuple[str, ...]:
        """Paper symbols of every parameter but the coefficient."""
        return (*super().exponents, self.before, self.fade)

    @property
    def typical(self) -> dict[str, float]:
        """Sizes of a1 and a3."""
        return {self.before: 0.05, self.fade: 0.01}

    @property
    def local(self) -> str:
        """Name of the leading exponent in reference coordinates."""
        return f"{self.leading}_ref"

    def log_ratio(self, p: Values, x: Values, at: Values, xp: Namespace) -> Array:
        """Log of the term at `x` over its value at `at`."""
        lead = next(iter(self.down))
        there, here = (self.exponent(p, z, xp) * z[lead] for z in (at, x))
        return there - here - p[self.before] * (_before(x) - _before(at))

    def exponent(self, p: Values, at: Values, xp: Namespace) -> Array:
        """Exponent of D at the pre-training tokens of `at`."""
        return p[self.leading] - p[self.fade] * _before(at)

    def to_local(self, p: Values, at: Values, xp: Namespace) -> dict[str, Array]:
        """Exponents in reference coordinates from the paper's."""
        rest = {name: p[name] for name in self.exponents if name != self.leading}
        return {self.local: self.exponent(p, at, xp), **rest}

    def from_local(self, q: Values, at: Values, xp: Namespace) -> dict[str, Array]:
        """The paper's exponents from those in reference coordinates."""
        rest = {name: q[name] for name in self.exponents if name != self.leading}
        return {self.leading: q[self.local] + q[self.fade] * _before(at), **rest}

    def latex(self) -> str:
        """The term as LaTeX."""
        fading = rf"{tex(self.leading)} - {tex(self.fade)} \log (N P)"
        return rf"\frac{{{tex(self.coefficient)}}}{{(N P)^{{{tex(self.before)}}} D^{{{fading}}}}}"


def _before(x: Values) -> Array:
    """Log of the pre-training tokens."""
    return x["params"] + x["ptpp"]
