"""A power of D whose exponent falls with the pre-training tokens (``models/liew_kato.toml``)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bayeslaw.common.arrays import Floats, Namespace
from bayeslaw.laws.terms import TERMS, Array, Power, Term, Values, tex


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

    def shape(self, p: Values, x: Values, at: Values, xp: Namespace) -> Array:
        """Log of the term at `x` over its value at `at`."""
        lead = next(iter(self.down))
        there, here = (self.exponent(p, z, xp) * z[lead] for z in (at, x))
        return there - here - p[self.before] * (_before(x) - _before(at))

    def slopes(self, p: Values, x: Values, at: Values) -> dict[str, Array]:
        """Derivative of `shape` by each exponent."""
        return Term.slopes(self, p, x, at)

    @property
    def linear(self) -> bool:
        """False if a subclass overrides `shape`; `columns` would not match."""
        return type(self).shape is FadingPower.shape

    def columns(self, x: Values, at: Values) -> Floats:
        """Derivative of `shape`, which is linear in the exponents; shape (exponents, rows)."""
        found = self.slopes(dict.fromkeys(self.exponents, 0.0), x, at)
        return np.stack([found[name] for name in self.exponents])

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
