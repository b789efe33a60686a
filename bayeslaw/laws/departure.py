"""The departure of an adapted model's loss from that of the pre-trained model it starts from."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from bayeslaw.common.arrays import Namespace
from bayeslaw.common.registry import storable
from bayeslaw.laws.modifiers import Modifier
from bayeslaw.laws.terms import SYMBOLS, Array, Values, tex

REPLAY = 0.25
"""Replay ratio at which the factor in replay is 1."""
MIXED = 0.01
"""Added to r under the logarithm of the covariate ``mixed``."""


@storable
@dataclass(frozen=True)
class Departure:
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
    modifier : Modifier, optional
        Addition to log g, by a discrepancy.
    """

    exponent: str
    fresh: str
    onset: str
    along: Mapping[str, str]
    replay: str
    base: str
    modifier: Modifier | None = None

    @property
    def own(self) -> tuple[str, ...]:
        """Symbols of its parameters without those of the modifier."""
        along = self.along.values()
        return (self.exponent, self.fresh, self.onset, *along, self.replay, self.base)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Symbols of all parameters."""
        return (*self.own, *(self.modifier.parameters if self.modifier else ()))

    @property
    def local(self) -> str:
        """Name of z in reference coordinates."""
        return f"{self.onset}_ref"

    @property
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        """Covariates that each parameter acts along."""
        along = {name: (covariate,) for covariate, name in self.along.items()}
        along |= dict.fromkeys((self.exponent, self.onset, self.local), ("tokens",))
        along |= {self.fresh: ("fresh",), self.replay: ("mixed",), self.base: ("deviation",)}
        return along | (self.modifier.covariates_of if self.modifier else {})

    @property
    def covariates(self) -> tuple[str, ...]:
        """Covariates it depends on."""
        used = [c for along in self.covariates_of.values() for c in along]
        return tuple(dict.fromkeys([*used, "start"]))

    def to_local(self, p: Values, at: Values) -> dict[str, Array]:
        """Its reference coordinates from its parameters."""
        shift = sum(p[name] * at[covariate] for covariate, name in self.along.items())
        names = {name: name for name in self.parameters} | {self.onset: self.local}
        moved = {**p, self.onset: p[self.onset] + shift - at["tokens"]}
        return {local: moved[name] for name, local in names.items()}

    def from_local(self, q: Values, at: Values) -> dict[str, Array]:
        """Its parameters from its reference coordinates."""
        shift = sum(q[name] * at[covariate] for covariate, name in self.along.items())
        found = {name: q[name] for name in self.parameters if name != self.onset}
        return {**found, self.onset: q[self.local] - shift + at["tokens"]}

    def remaining(
        self, p: Values, x: Values, at: Values, xp: Namespace, added: Array | None = None
    ) -> Array:
        """g, the share of the way from the start loss to the core that is still to go.

        `added` is the value of the modifier, if it is known.
        """
        if added is None:
            added = self.modifier.shape(p, x, at, xp) if self.modifier else 0.0
        onset = p[self.onset] + sum(p[name] * x[c] for c, name in self.along.items())
        u = x["tokens"] - onset + p[self.fresh] * x["fresh"]
        return xp.exp(added - p[self.exponent] * xp.log1p(xp.exp(u)))

    def factor(self, p: Values, x: Values, xp: Namespace) -> Array:
        """Factor of the core by what the base is like, and by replay."""
        share = x["mixed"] - math.log(REPLAY + MIXED)
        return xp.exp(p[self.base] * x["deviation"] - p[self.replay] * share)

    def join(
        self,
        core: Array,
        p: Values,
        x: Values,
        at: Values,
        xp: Namespace,
        added: Array | None = None,
    ) -> Array:
        """The loss, from the floor and the terms; arguments as for `Law.loss` and `remaining`."""
        g = self.remaining(p, x, at, xp, added)
        return core * self.factor(p, x, xp) * (1 - g) + xp.exp(x["start"]) * g

    def scale(self, p: Values, x: Values, at: Values) -> Array:
        """Derivative of the loss by the core."""
        return self.factor(p, x, np) * (1 - self.remaining(p, x, at, np))

    @property
    def plain(self) -> "Departure":
        """The departure without discrepancy."""
        return replace(self, modifier=None)

    def latex(self, core: str) -> str:
        """The loss as LaTeX, from the core, and after a comma g."""
        power = rf"\left(\frac{{b}}{{\hat b}}\right)^{{{tex(self.base)}}}"
        tilt = rf"\left(\frac{{r+{MIXED}}}{{{REPLAY + MIXED}}}\right)^{{-{tex(self.replay)}}}"
        loss = rf"\left({core}\right) {power} {tilt} (1 - g) + L_{{\mathrm{{start}}}} g"
        along = "".join(rf" {SYMBOLS[c]}^{{{name}}}" for c, name in self.along.items())
        reach = rf"\frac{{(1-r)^{{{tex(self.fresh)}}} D}}{{e^{{{self.onset}}}{along}}}"
        return rf"{loss},\quad g = \left(1 + {reach}\right)^{{-{tex(self.exponent)}}}"
