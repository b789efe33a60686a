"""Terms of a scaling law, each formula written once.

A term is a coefficient times ``exp(log_ratio)``. `log_ratio` is the log of the term over its value
at a reference point `at`, so it is zero there. It is written over an array namespace `xp` (NumPy or
``pytensor.tensor``) and over real or complex parameters. Prediction, the PyTensor model,
complex-step derivatives, the planner and the LaTeX all use this one formula.

Covariates are logarithms: ``params``, ``tokens`` (in the law's token unit), ``ptpp``, ``replay``
(r clipped to [1e-9, 1 - 1e-9]), ``barrier`` (r + epsilon) and ``mixed`` (r + .01, whose log stays
bounded at r = 0), ``fresh`` (1 - r), ``start`` (the base's loss on the domain) and ``deviation``
(the base's loss on the domain of pre-training, over that expected of its size and budget),
``unique`` (tokens until new data repeat). ``share`` is r itself, ``unannealed``
1 for checkpoints that are not annealed and else 0.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from bayeslaw.common.arrays import Namespace, Tensor
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
    "kappa", "mu", "omega", "rho", "xi",
)  # fmt: skip


class Term(ABC):
    """A coefficient times ``exp(log_ratio)``; subclasses are frozen dataclasses.

    A subclass gives `log_ratio` and `latex`, lists its `exponents` and `covariates`, and declares
    the fields `coefficient` and `slope`. A law file names it by its `kind`, a class outside the
    package as ``"package.module:Class"``.

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
    def log_ratio(self, p: Values, x: Values, at: Values, xp: Namespace) -> Array:
        """Log of the term at `x` over its value at `at`; at `ORIGIN`, over its coefficient.

        Parameters
        ----------
        p : mapping
            Parameters by name: numbers, arrays of draws, or PyTensor variables; complex numbers
            too, for derivatives.
        x, at : mapping
            Covariates of the rows, and of the reference point.
        xp : module
            NumPy or ``pytensor.tensor``.
        """

    @abstractmethod
    def latex(self) -> str:
        """The term as LaTeX."""

    def slopes(self, p: Values, x: Values, at: Values) -> dict[str, Array]:
        """Derivative of `log_ratio` by each exponent."""

        def shape(name: str) -> Array:
            return self.log_ratio({**p, name: p[name] + 1j * STEP}, x, at, np)

        return {name: shape(name).imag / STEP for name in self.exponents}

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

    def exponent(self, p: Values, at: Values, xp: Namespace) -> Array:
        """Local exponent at `at`: minus the slope of `log_ratio` along the leading covariate."""
        return p[self.local]

    def to_local(self, p: Values, at: Values, xp: Namespace) -> dict[str, Array]:
        """Exponents in reference coordinates from the paper's."""
        return {name: p[name] for name in self.exponents}

    def from_local(self, q: Values, at: Values, xp: Namespace) -> dict[str, Array]:
        """The paper's exponents from those in reference coordinates."""
        return {name: q[name] for name in self.exponents}


TERMS: Registry[Term] = Registry("term kind", Term)
"""Terms that a law file may name under `kind`."""


def tex(symbol: str) -> str:
    """LaTeX of a parameter's symbol."""
    bare = symbol.removesuffix("_")
    return f"\\{bare}" if bare in _GREEK else bare
