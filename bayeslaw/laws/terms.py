"""Terms of a scaling law, each formula written once.

A term is a coefficient times ``exp(shape)``. `shape` is the log of the term over its value at a
reference point `at`, so it is zero there. It is written over an array namespace `xp` (NumPy or
``pytensor.tensor``) and over real or complex parameters. Prediction, the PyTensor model,
complex-step derivatives, the planner and the LaTeX all use this one formula.

Covariates are logarithms: ``params``, ``tokens`` (in the law's token unit), ``ptpp``, ``replay``
(r clipped to [1e-9, 1 - 1e-9]), ``barrier`` (r + epsilon) and ``mixed`` (r + .01, whose log stays
bounded at r = 0), ``fresh`` (1 - r), ``start`` (the base's loss on the domain) and ``deviation``
(the base's loss on the domain of pre-training, over that expected of its size and budget),
``unique`` (tokens until new data repeat, at most ``tokens``). ``share`` is r itself, ``unannealed``
1 for checkpoints that are not annealed and else 0.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from bayeslaw.common.arrays import Floats, Namespace, Tensor
from bayeslaw.common.registry import Registry

type Array = Tensor
"""NumPy array, PyTensor variable, or number."""
type Values = Mapping[str, Array]

SYMBOLS = {
    "params": "N",
    "tokens": "D",
    "replay": "r",
    "barrier": r"(r+\varepsilon)",
    "share": "r",
    "mixed": "r",
    "ptpp": "P",
    "fresh": "(1-r)",
    "start": r"L_{\mathrm{start}}",
    "deviation": r"(b/\hat b)",
    "unique": "U",
    "unannealed": "h",
}
COLUMN = {
    **{name: name for name in ("params", "tokens", "replay", "ptpp")},
    **dict.fromkeys(("barrier", "share", "mixed", "fresh"), "replay"),
    "start": "start_loss",
    "deviation": "base_loss",
    "unique": "unique_tokens",
    "unannealed": "annealed",
}
"""Column of a loss table behind each covariate."""
ORIGIN: Mapping[str, float] = dict.fromkeys(SYMBOLS, 0.0)
"""The point where every covariate is 1: reference of the paper's coordinates."""

STEP = 1e-30
"""Imaginary step of complex-step derivatives: too small to change the real part."""

_GREEK = (
    "alpha", "beta", "gamma", "eta", "nu", "lambda", "zeta", "phi",
    "kappa", "mu", "omega", "rho",
)  # fmt: skip


class Term(ABC):
    """A coefficient times ``exp(shape)``; subclasses are frozen dataclasses.

    A subclass gives `shape` and `latex`, lists its `exponents` and `covariates`, and declares the
    fields `coefficient` and `slope`. With `TERMS.register` a law file can name it by its `kind`.

    Attributes
    ----------
    coefficient : str
        The paper's symbol of the coefficient.
    slope : str
        Name of the local slope, nats per e-fold of the leading covariate at the reference point.
    """

    coefficient: str
    slope: str
    kind: ClassVar[str] = ""
    """Name of the kind in law files."""
    curvable: ClassVar[bool] = True
    """Whether the curvature discrepancy applies to the term."""
    convex_in_ptpp: ClassVar[bool] = False
    """Whether the term, where it depends on P, falls with log P and is convex in it."""

    @property
    @abstractmethod
    def covariates(self) -> tuple[str, ...]:
        """Covariates the term depends on, the leading one first."""

    @property
    @abstractmethod
    def exponents(self) -> tuple[str, ...]:
        """Symbols of every parameter but the coefficient, the leading exponent first."""

    @abstractmethod
    def shape(self, p: Values, x: Values, at: Values, xp: Namespace) -> Array:
        """Log of the term at `x` over its value at `at`; at `ORIGIN`, over its coefficient.

        Parameters
        ----------
        p : mapping
            Exponents by symbol: numbers, arrays of draws, or PyTensor variables.
        x, at : mapping
            Covariates of the rows, and of the reference point.
        xp : module
            NumPy or ``pytensor.tensor``.
        """

    @abstractmethod
    def latex(self) -> str:
        """The term as LaTeX."""

    @property
    def linear(self) -> bool:
        """Whether `columns` and `weights` give the shape; such a kind is sampled faster."""
        return False

    def columns(self, x: Values, at: Values) -> Floats:
        """Columns of which `shape` is a weighted sum, shape (columns, rows)."""
        raise NotImplementedError

    def weights(self, p: Values, given: Values, at: Values, xp: Namespace) -> list[Array]:
        """Weight of each of the `columns`: numbers, or arrays of shape (weights,).

        `given` is the result of the method `given`; the other arguments are those of `shape`.
        """
        raise NotImplementedError

    def given(self, x: Values) -> dict[str, Floats]:
        """Values computed from the rows that `weights` depends on; by default none."""
        return {}

    @property
    def plain(self) -> "Term":
        """The term without discrepancy."""
        return self

    @property
    def typical(self) -> dict[str, float]:
        """Typical sizes of exponents for which 1 is far from it."""
        return {}

    @property
    def leading(self) -> str:
        """The paper's symbol of the leading exponent."""
        return self.exponents[0]

    @property
    def local(self) -> str:
        """Name of the leading exponent in reference coordinates."""
        return self.leading

    @property
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        """Covariates that each exponent acts along; by default all of the term's."""
        return dict.fromkeys(self.exponents, self.covariates)

    def slopes(self, p: Values, x: Values, at: Values) -> dict[str, Array]:
        """Derivative of `shape` by each exponent, by complex steps through `shape`."""

        def shape(name: str) -> Array:
            return self.shape({**p, name: p[name] + 1j * STEP}, x, at, np)

        return {name: shape(name).imag / STEP for name in self.exponents}

    def exponent(self, p: Values, at: Values, xp: Namespace) -> Array:
        """Local exponent at `at`: minus the derivative of `shape` along the leading covariate."""
        return p[self.local]

    def to_local(self, p: Values, at: Values, xp: Namespace) -> dict[str, Array]:
        """Exponents in reference coordinates from the paper's."""
        return {name: p[name] for name in self.exponents}

    def from_local(self, q: Values, at: Values, xp: Namespace) -> dict[str, Array]:
        """The paper's exponents from those in reference coordinates."""
        return {name: q[name] for name in self.exponents}


TERMS: Registry[Term] = Registry("term kind", "bayeslaw.terms")
"""Terms that a law file may name under `kind`."""


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

    def shape(self, p: Values, x: Values, at: Values, xp: Namespace) -> Array:
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

    @property
    def linear(self) -> bool:
        """False if a subclass overrides `shape`; `columns` would not match."""
        return type(self).shape is Power.shape

    def columns(self, x: Values, at: Values) -> Floats:
        """Derivative of `shape` by each exponent, shape (exponents, rows)."""
        return np.stack(list(Power.slopes(self, {}, x, at).values()))

    def weights(self, p: Values, given: Values, at: Values, xp: Namespace) -> list[Array]:
        """The exponents."""
        return [p[name] for name in self.exponents]

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

    def shape(self, p: Values, x: Values, at: Values, xp: Namespace) -> Array:
        """Log of the term at `x` over its value at `at`."""
        lead = next(iter(self.down))
        fixed = super().shape({**p, self.leading: 0.0}, x, at, xp)
        return fixed - (self.exponent(p, x, xp) * x[lead] - self.exponent(p, at, xp) * at[lead])

    def slopes(self, p: Values, x: Values, at: Values) -> dict[str, Array]:
        """Derivative of `shape` by each exponent."""
        there, here = self._lead_slopes(p, x), self._lead_slopes(p, at)
        return super().slopes(p, x, at) | {name: here[name] - there[name] for name in here}

    @property
    def linear(self) -> bool:
        """False if a subclass overrides `shape`; `columns` would not match."""
        return type(self).shape is GatedPower.shape

    def columns(self, x: Values, at: Values) -> Floats:
        """Columns of the other powers, of the leading covariate for each value of P, and at `at`.

        In the column of a value of P, the leading covariate is zero in the rows of other values.
        """
        fixed = Power.slopes(self, {}, x, at)
        lead, budgets = next(iter(self.down)), self.given(x)["ptpp"]
        at_budget = [-x[lead] * (x["ptpp"] == budget) for budget in budgets]
        others = [fixed[name] for name in super().exponents if name != self.leading]
        return np.stack([*others, *at_budget, np.full_like(x[lead], at[lead])])

    def weights(self, p: Values, given: Values, at: Values, xp: Namespace) -> list[Array]:
        """The other exponents, then the effective exponent at each value of P and at `at`."""
        others = [p[name] for name in super().exponents if name != self.leading]
        return [*others, self.exponent(p, given, xp), self.exponent(p, at, xp)]

    def given(self, x: Values) -> dict[str, Floats]:
        """Distinct values of log P in ascending order."""
        return {"ptpp": np.unique(x["ptpp"])}

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


def tex(symbol: str) -> str:
    """LaTeX of a parameter's symbol."""
    bare = symbol.removesuffix("_")
    return f"\\{bare}" if bare in _GREEK else bare
