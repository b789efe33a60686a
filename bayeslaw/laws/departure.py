"""The departure of an adapted model's loss from that of the pre-trained model it starts from."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Namespace
from bayeslaw.common.errors import TableError
from bayeslaw.common.registry import storable
from bayeslaw.laws.parts import Part
from bayeslaw.laws.terms import SYMBOLS, Array, Values, tex

if TYPE_CHECKING:
    from bayeslaw.laws.law import Law

REPLAY = 0.25
"""Replay ratio at which the factor in replay is 1."""
MIXED = 0.01
"""Added to r under the logarithm of the covariate ``mixed``."""


@storable
@dataclass(frozen=True)
class Departure(Part):
    r"""Loss that moves from the start loss to the law's core as adaptation goes on.

    ``L = core (1 - g) + L_start g`` with ``g = (1 + (1 - r)^v D / D_s)^-beta``, the share of the
    way that is still to go, and ``log D_s = z + z_N log N + z_P log P``. The core is the floor and
    the terms, times ``(b / b_hat)^k ((r + .01) / .26)^-gamma``. L_start is the pre-trained model's
    own loss on the domain, b its loss on the domain it was pre-trained on, and b_hat the loss there
    that models of its size and budget have. In reference coordinates z is ``z_ref``, the log of
    D_s over D at the reference point.

    Parameters
    ----------
    exponent, fresh : str
        Symbols of beta and of v, the exponent of the share of new tokens.
    onset : str
        Symbol of z.
    along : mapping of covariate to str
        Symbols of the exponents of D_s.
    replay, base : str
        Symbols of gamma and k.
    """

    exponent: str
    fresh: str
    onset: str
    along: Mapping[str, str]
    replay: str
    base: str

    @property
    def parameters(self) -> tuple[str, ...]:
        """Symbols of its parameters."""
        along = self.along.values()
        return (self.exponent, self.fresh, self.onset, *along, self.replay, self.base)

    @property
    def local(self) -> tuple[str, ...]:
        """The onset is stated over the tokens of the reference point."""
        return tuple(f"{name}_ref" if name == self.onset else name for name in self.parameters)

    @property
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        """Covariates that each parameter acts along."""
        along: dict[str, tuple[str, ...]] = {n: (covariate,) for covariate, n in self.along.items()}
        along |= dict.fromkeys((self.exponent, self.onset, f"{self.onset}_ref"), ("tokens",))
        along |= {self.fresh: ("fresh",), self.replay: ("mixed",), self.base: ("deviation",)}
        return along

    @property
    def covariates(self) -> tuple[str, ...]:
        """Covariates it depends on."""
        used = [c for along in self.covariates_of.values() for c in along]
        return tuple(dict.fromkeys([*used, "start"]))

    def read(self, frame: pd.DataFrame, law: "Law", name: str) -> dict[str, Array]:
        """Logs of the start loss, and of the base's loss over the expected one."""
        if law.bases is None:
            raise TableError(f"{name}: {law.name} knows no bases; fit it to a table first.")
        start, deviation = law.bases.logs(frame)
        return {"start": start, "deviation": deviation}

    def to_local(self, p: Values, at: Values) -> dict[str, Array]:
        """Its reference coordinates from its parameters."""
        return super().to_local({**p, self.onset: p[self.onset] + self._shift(p, at)}, at)

    def from_local(self, q: Values, at: Values) -> dict[str, Array]:
        """Its parameters from its reference coordinates."""
        found = super().from_local(q, at)
        return {**found, self.onset: found[self.onset] - self._shift(q, at)}

    def _shift(self, p: Values, at: Values) -> Array:
        """The onset in reference coordinates less that of the paper's."""
        return sum(p[name] * at[covariate] for covariate, name in self.along.items()) - at["tokens"]

    def remaining(self, p: Values, x: Values, xp: Namespace) -> Array:
        """g, the share of the way from the start loss to the core that is still to go."""
        onset = p[self.onset] + sum(p[name] * x[c] for c, name in self.along.items())
        u = x["tokens"] - onset + p[self.fresh] * x["fresh"]
        return xp.exp(-p[self.exponent] * xp.log1p(xp.exp(u)))

    def outer(self, p: Values, x: Values, at: Values, xp: Namespace) -> tuple[Array, Array]:
        """Factor of the core, and what the start loss adds."""
        g = self.remaining(p, x, xp)
        return self._factor(p, x, xp) * (1 - g), xp.exp(x["start"]) * g

    def change(self, p: Values, x: Values, core: Array, xp: Namespace) -> Array:
        """Derivative of the loss by log g, from the floor and the terms."""
        g = self.remaining(p, x, xp)
        return g * (xp.exp(x["start"]) - self._factor(p, x, xp) * core)

    def limit(self, p: Values, x: Values, at: Values) -> Array:
        """Factor of the floor where adaptation has ended."""
        return self._factor(p, x, np)

    def _factor(self, p: Values, x: Values, xp: Namespace) -> Array:
        """Factor of the core by what the base is like, and by replay."""
        share = x["mixed"] - math.log(REPLAY + MIXED)
        return xp.exp(p[self.base] * x["deviation"] - p[self.replay] * share)

    def latex(self, core: str) -> str:
        """The loss as LaTeX, from the core, and after a comma g."""
        power = rf"\left(\frac{{b}}{{\hat b}}\right)^{{{tex(self.base)}}}"
        tilt = rf"\left(\frac{{r+{MIXED}}}{{{REPLAY + MIXED}}}\right)^{{-{tex(self.replay)}}}"
        loss = rf"\left({core}\right) {power} {tilt} (1 - g) + L_{{\mathrm{{start}}}} g"
        along = "".join(rf" {SYMBOLS[c]}^{{{name}}}" for c, name in self.along.items())
        reach = rf"\frac{{(1-r)^{{{tex(self.fresh)}}} D}}{{e^{{{self.onset}}}{along}}}"
        return rf"{loss},\quad g = \left(1 + {reach}\right)^{{-{tex(self.exponent)}}}"
