"""The terms of a scaling law, each formula written once.

A term is a coefficient times ``exp(shape)``. `shape` is the log of the term over its value at a
reference point `at`, so it is zero there. It is written over an array namespace `xp` (NumPy or
``pytensor.tensor``) and over real or complex parameters, so that prediction, the PyTensor model,
complex-step derivatives, the planner and the LaTeX all come from the same lines.

Covariates are logarithms: ``params``, ``tokens`` (in the law's token unit), ``ptpp``, ``replay``
(r clipped to [1e-9, 1 - 1e-9]) and ``barrier`` (r + epsilon); but ``share`` is r itself.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

type Array = Any
"""NumPy array, PyTensor variable, or number."""
type Values = Mapping[str, Array]

SYMBOLS = {
    "params": "N",
    "tokens": "D",
    "replay": "r",
    "barrier": r"(r+\varepsilon)",
    "share": "r",
    "ptpp": "P",
}
COLUMN = {"barrier": "replay", "share": "replay"} | {
    name: name for name in ("params", "tokens", "replay", "ptpp")
}
ORIGIN: Mapping[str, float] = dict.fromkeys(SYMBOLS, 0.0)
"""The point where every covariate is 1: reference of the paper's coordinates."""

STEP = 1e-30
"""Of complex steps: too small to touch the real part."""

_GREEK = (
    "alpha", "beta", "gamma", "eta", "nu", "lambda", "zeta", "phi",
    "kappa", "mu", "omega", "rho",
)  # fmt: skip


@dataclass(frozen=True)
class Power:
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
    """

    coefficient: str
    slope: str
    down: Mapping[str, str]
    up: Mapping[str, str] = field(default_factory=dict)
    stiff: ClassVar[bool] = False
    """Whether the law's discrepancy leaves the term as it is."""

    @property
    def plain(self) -> "Power":
        """The term without discrepancy."""
        return self

    @property
    def covariates(self) -> tuple[str, ...]:
        """Covariates the term depends on, the leading one first."""
        return tuple(dict.fromkeys([*self.down, *self.up]))

    @property
    def exponents(self) -> tuple[str, ...]:
        """Paper symbols of every parameter but the coefficient."""
        return (*self.down.values(), *self.up.values())

    @property
    def local(self) -> str:
        """Name of the leading exponent in reference coordinates."""
        return next(iter(self.down.values()))

    def shape(self, p: Values, x: Values, at: Values, xp: Any) -> Array:
        """Log of the term at `x` over its value at `at`."""
        rise: Array = 0.0
        for name, exponent in self.up.items():
            rise = rise + p[exponent] * (x[name] - at[name])
        for name, exponent in self.down.items():
            rise = rise - p[exponent] * (x[name] - at[name])
        return rise

    def slopes(self, p: Values, x: Values, at: Values) -> dict[str, Array]:
        """Derivative of `shape` by each exponent: a power's shape is linear in them."""
        none = dict.fromkeys(self.exponents, 0.0)
        return {e: Power.shape(self, {**none, e: 1.0}, x, at, np) for e in self.exponents}

    def exponent(self, p: Values, at: Values, xp: Any) -> Array:
        """Local exponent along the leading covariate at the point `at`."""
        return p[self.local]

    def to_local(self, p: Values, at: Values, xp: Any) -> dict[str, Array]:
        """Exponents in reference coordinates from the paper's."""
        return {name: p[name] for name in self.exponents}

    def from_local(self, q: Values, at: Values, xp: Any) -> dict[str, Array]:
        """The paper's exponents from those in reference coordinates."""
        return {name: q[name] for name in self.exponents}

    def latex(self) -> str:
        """The term as LaTeX."""
        over = " ".join(f"{SYMBOLS[c]}^{{{self._latex_exponent(e)}}}" for c, e in self.down.items())
        times = "".join(rf" {SYMBOLS[c]}^{{{tex(e)}}}" for c, e in self.up.items())
        return rf"\frac{{{tex(self.coefficient)}{times}}}{{{over}}}"

    def _latex_exponent(self, exponent: str) -> str:
        return tex(exponent)


@dataclass(frozen=True)
class GatedPower(Power):
    r"""A power whose leading exponent is gated by the pre-training budget (paper, Forms 2 and 3).

    ``beta_eff = max(beta (1 - lambda sigmoid(zeta log P)), floor)``, the paper's
    ``beta (1 - lambda P^zeta / (1 + P^zeta))`` in a form that cannot overflow. Because the exponent
    varies from row to row, the unit of D is part of the model. In reference coordinates the
    leading exponent is the effective one at the reference PTPP, called ``<exponent>_ref``.
    """

    depth: str = "lambda_"
    rate: str = "zeta"
    floor: float = 1e-6

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
        return f"{super().local}_ref"

    def shape(self, p: Values, x: Values, at: Values, xp: Any) -> Array:
        """Log of the term at `x` over its value at `at`."""
        lead, name = next(iter(self.down)), super().local
        fixed = super().shape({**p, name: 0.0}, x, at, xp)
        return fixed - (self.exponent(p, x, xp) * x[lead] - self.exponent(p, at, xp) * at[lead])

    def slopes(self, p: Values, x: Values, at: Values) -> dict[str, Array]:
        """Derivative of `shape` by each exponent."""
        there, here = self._lead_slopes(p, x), self._lead_slopes(p, at)
        return super().slopes(p, x, at) | {name: here[name] - there[name] for name in here}

    def exponent(self, p: Values, at: Values, xp: Any) -> Array:
        """Effective exponent at the pre-training budget of `at`."""
        return xp.maximum(p[super().local] * self._open(p, at, xp), self.floor)

    def to_local(self, p: Values, at: Values, xp: Any) -> dict[str, Array]:
        """Exponents in reference coordinates from the paper's."""
        beta = super().local
        rest = {name: p[name] for name in self.exponents if name != beta}
        return {self.local: p[beta] * self._open(p, at, xp), **rest}

    def from_local(self, q: Values, at: Values, xp: Any) -> dict[str, Array]:
        """The paper's exponents from those in reference coordinates."""
        beta = super().local
        rest = {name: q[name] for name in self.exponents if name != beta}
        return {beta: q[self.local] / self._open(q, at, xp), **rest}

    def _lead_slopes(self, p: Values, x: Values) -> dict[str, Array]:
        """Derivative of the effective exponent times the leading covariate."""
        beta, gate = super().local, self._gate(p, x, np)
        share = 1 - p[self.depth] * gate
        reach = np.where(p[beta] * share > self.floor, x[next(iter(self.down))], 0.0)
        by_gate = -p[beta] * gate * reach
        by_rate = p[self.depth] * (1 - gate) * x["ptpp"] * by_gate
        return {beta: share * reach, self.depth: by_gate, self.rate: by_rate}

    def _open(self, p: Values, x: Values, xp: Any) -> Array:
        return 1 - p[self.depth] * self._gate(p, x, xp)

    def _gate(self, p: Values, x: Values, xp: Any) -> Array:
        return 0.5 * (1 + xp.tanh(0.5 * p[self.rate] * x["ptpp"]))

    def _latex_exponent(self, exponent: str) -> str:
        if exponent != super().local:
            return tex(exponent)
        gate = rf"\frac{{P^{{{tex(self.rate)}}}}}{{1+P^{{{tex(self.rate)}}}}}"
        return rf"{tex(exponent)}\left(1-{tex(self.depth)} {gate}\right)"


@dataclass(frozen=True)
class Curved:
    r"""A term whose log is bent: ``shape + c x y``, ``c x^2 / 2`` along one covariate, or tilted.

    x and y are covariates from the reference point, where a bent term keeps its size and slope. A
    tilt ``c x`` is along the share r, where a bend in log r would be infinite without replay. This
    is the law's discrepancy: real losses are power laws only locally.

    Parameters
    ----------
    plain : Power
    curves : mapping of curvature name to the covariates it bends along
    """

    plain: Power
    curves: Mapping[str, tuple[str, ...]]

    @property
    def coefficient(self) -> str:
        """The paper's symbol of the coefficient."""
        return self.plain.coefficient

    @property
    def slope(self) -> str:
        """Name of the local slope."""
        return self.plain.slope

    @property
    def covariates(self) -> tuple[str, ...]:
        """Covariates the term depends on, the leading one first."""
        bent = (name for pair in self.curves.values() for name in pair)
        return tuple(dict.fromkeys([*self.plain.covariates, *bent]))

    @property
    def exponents(self) -> tuple[str, ...]:
        """Symbols of every parameter but the coefficient."""
        return (*self.plain.exponents, *self.curves)

    def shape(self, p: Values, x: Values, at: Values, xp: Any) -> Array:
        """Log of the term at `x` over its value at `at`."""
        return self.plain.shape(p, x, at, xp) + bend(self.curves, p, x, at)

    def slopes(self, p: Values, x: Values, at: Values) -> dict[str, Array]:
        """Derivative of `shape` by each exponent and curvature."""
        bent = {
            name: bend({name: along}, {name: 1.0}, x, at) for name, along in self.curves.items()
        }
        return self.plain.slopes(p, x, at) | bent

    def exponent(self, p: Values, at: Values, xp: Any) -> Array:
        """Local exponent along the leading covariate at the reference point."""
        return self.plain.exponent(p, at, xp)

    def to_local(self, p: Values, at: Values, xp: Any) -> dict[str, Array]:
        """Exponents and curvatures in reference coordinates."""
        return self.plain.to_local(p, at, xp) | {name: p[name] for name in self.curves}

    def from_local(self, q: Values, at: Values, xp: Any) -> dict[str, Array]:
        """The paper's exponents, and the curvatures."""
        return self.plain.from_local(q, at, xp) | {name: q[name] for name in self.curves}

    def latex(self) -> str:
        """The plain term as LaTeX."""
        return self.plain.latex()


type Term = Power | Curved


def bend(curves: Mapping[str, tuple[str, ...]], p: Values, x: Values, at: Values) -> Array:
    """Sum of the Taylor terms along `curves`: ``c x``, ``c x y``, ``c x^2 / 2``, and so on.

    x and y are covariates from `at`.
    """
    bent: Array = 0.0
    for name, along in curves.items():
        value = p[name] / math.prod(math.factorial(along.count(c)) for c in set(along))
        for covariate in along:
            value = value * (x[covariate] - at[covariate])
        bent = bent + value
    return bent


def tex(symbol: str) -> str:
    """LaTeX of a parameter's symbol."""
    bare = symbol.removesuffix("_")
    return f"\\{bare}" if bare in _GREEK else bare
