"""Parts of a law beside the floor and the terms."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pandas as pd
from scipy.special import logsumexp

from bayeslaw.common.arrays import Namespace
from bayeslaw.laws.terms import STEP, Array, Term, Values

if TYPE_CHECKING:
    from bayeslaw.laws.law import Law

KAPPA = "kappa"
"""Parameter of a coupling of terms."""


class Part(ABC):
    """What a law has beside the floor and the terms, with parameters of its own.

    It may change the covariates of rows (`effective`), and multiply the loss and add to it
    (`outer`). A subclass gives `parameters` and `covariates_of`, and of the methods those that do
    something.
    """

    additive: ClassVar[bool] = False
    """Whether the loss is still the floor plus functions of the terms alone."""

    @property
    @abstractmethod
    def parameters(self) -> tuple[str, ...]:
        """Names of its parameters."""

    @property
    @abstractmethod
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        """Covariates that each parameter, or its reference coordinate, acts along."""

    @property
    def covariates(self) -> tuple[str, ...]:
        """Covariates it depends on."""
        return tuple(dict.fromkeys(c for along in self.covariates_of.values() for c in along))

    @property
    def local(self) -> tuple[str, ...]:
        """Names of the parameters in reference coordinates."""
        return self.parameters

    @property
    def typical(self) -> dict[str, float]:
        """Typical sizes of parameters for which 1 is far from it."""
        return {}

    def read(self, frame: pd.DataFrame, law: "Law", name: str) -> dict[str, Array]:
        """Covariates that only this part reads from rows of a table, each of shape (rows,).

        `name` is that of the table, for errors.
        """
        return {}

    def neutral(self, x: Values) -> Values:
        """Covariates of rows as the reference point counts them: as if the part did nothing."""
        return x

    def effective(self, p: Values, x: Values, xp: Namespace) -> Values:
        """The covariates that the floor, the terms and the other parts see."""
        return x

    def outer(self, p: Values, x: Values, at: Values, xp: Namespace) -> tuple[Array, Array]:
        """Factor of the loss, and what is added to it; arguments as for `Law.loss`."""
        return 1.0, 0.0

    def limit(self, p: Values, x: Values, at: Values) -> Array:
        """Factor of the floor where all terms have vanished and adaptation has ended."""
        return self.outer(p, x, at, np)[0]

    def gradient(self, law: "Law", p: Values, x: Values, at: Values) -> dict[str, Array]:
        """Derivative of the law's loss by each of the parameters."""

        def loss(name: str) -> Array:
            return law.loss({**p, name: p[name] + 1j * STEP}, x, at)

        return {name: loss(name).imag / STEP for name in self.parameters}

    def to_local(self, p: Values, at: Values) -> dict[str, Array]:
        """Its reference coordinates from its parameters."""
        return {local: p[name] for name, local in zip(self.parameters, self.local, strict=True)}

    def from_local(self, q: Values, at: Values) -> dict[str, Array]:
        """Its parameters from its reference coordinates."""
        return {name: q[local] for name, local in zip(self.parameters, self.local, strict=True)}

    def to_paper(self, p: Values, at: Values) -> dict[str, Array]:
        """Those of its parameters that have another value where all covariates are 1."""
        return {}


@dataclass(frozen=True)
class Coupling(Part):
    """Terms T that enter as ``(sum of T^(1 / kappa))^kappa``; at kappa = 1 that is their sum.

    Parameters
    ----------
    terms : tuple of Term
    """

    terms: tuple[Term, ...]
    additive: ClassVar[bool] = True

    @property
    def parameters(self) -> tuple[str, ...]:
        """Its one parameter, kappa."""
        return (KAPPA,)

    @property
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        """Covariates of the coupled terms."""
        return {KAPPA: tuple(dict.fromkeys(c for term in self.terms for c in term.covariates))}

    def sensitivities(self, p: Values, ratios: Mapping[str, Array]) -> dict[str, Array]:
        """Derivative of the joined terms by each one's size; `ratios` are those of `Law.ratios`."""
        total, _, shares, _ = self._roots(p, ratios)
        return {name: total * share / p[name] for name, share in shares.items()}

    def gradient(self, law: "Law", p: Values, x: Values, at: Values) -> dict[str, Array]:
        """Derivative of the loss by kappa."""
        x = law.effective(p, x)
        total, root, shares, logs = self._roots(p, law.ratios(p, x, at, np))
        mean = sum(share * logs[name] for name, share in shares.items())
        by = total * (root - mean / p[KAPPA])
        return {KAPPA: by * law.outer(p, x, at, np)[0]}

    def _roots(
        self, p: Values, ratios: Mapping[str, Array]
    ) -> tuple[Array, Array, dict[str, Array], dict[str, Array]]:
        """The joined terms, log of the sum of roots, each term's share in it, and its log.

        All but the last are NaN or infinite where kappa is 0, on its bound.
        """
        logs = {t.coefficient: np.log(p[t.coefficient] * ratios[t.coefficient]) for t in self.terms}
        with np.errstate(divide="ignore", invalid="ignore"):
            root = logsumexp([log / p[KAPPA] for log in logs.values()], axis=0)
            shares = {name: np.exp(log / p[KAPPA] - root) for name, log in logs.items()}
            return np.exp(p[KAPPA] * root), root, shares, logs

    def shares(self, terms: Mapping[str, Array], kappa: Array, xp: Namespace) -> dict[str, Array]:
        """Derivative of the log of the joined terms by the log of each."""
        logs = {term.coefficient: xp.log(terms[term.coefficient]) / kappa for term in self.terms}
        top = reduce(xp.maximum, logs.values())
        roots = {name: xp.exp(log - top) for name, log in logs.items()}
        total = sum(roots.values())
        return {name: root / total for name, root in roots.items()}

    def joined(self, sizes: Mapping[str, Array], kappa: Array) -> dict[str, Array]:
        """Sizes of coupled terms with the total and the local slopes of a sum of such sizes."""
        own = {term.coefficient: sizes[term.coefficient] for term in self.terms}
        total = sum(own.values())
        return {name: total * (size / total) ** kappa for name, size in own.items()}

    def summed(self, sizes: Mapping[str, Array], kappa: Array) -> dict[str, Array]:
        """The inverse of `joined`."""
        roots = {t.coefficient: sizes[t.coefficient] ** (1 / kappa) for t in self.terms}
        total = sum(roots.values())
        return {name: total ** (kappa - 1) * root for name, root in roots.items()}

    def latex(self) -> str:
        """The joined terms as LaTeX."""
        roots = " + ".join(rf"\left({t.latex()}\right)^{{1/\kappa}}" for t in self.terms)
        return rf"\left[{roots}\right]^{{\kappa}}"


def couple(terms: Sequence[Array], kappa: Array, xp: Namespace) -> Array:
    """The terms joined as ``(sum of T^(1 / kappa))^kappa``."""
    logs = [xp.log(term) / kappa for term in terms]
    top = reduce(xp.maximum, logs)
    return xp.exp(kappa * (top + xp.log(sum(xp.exp(log - top) for log in logs))))
