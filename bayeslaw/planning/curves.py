"""A law at one model and stage, for many draws: the loss as a function of log ATPP and replay.

A D-term that is concave in log D rises, then falls. Left of its peak it is held at its peak:
extrapolated to D = 0 such a term vanishes, and would promise every target for nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.optimize import elementwise

from bayeslaw.laws.law import Law
from bayeslaw.laws.terms import Term, Values
from bayeslaw.planning.intervals import Floats

NODES = np.linspace(np.log(1e-7), np.log(1e9), 41)
"""Where laws without a closed form are bracketed, in log ATPP; beyond, they stay as at the end."""
find_minimum: Any = elementwise.find_minimum  # its type knows no `args`
STEP = 8.0
"""Distance of the points that fix a term's polynomial: wide, so that rounding stays small."""


type Polynomial = tuple[Any, Any, Any]
"""Coefficients of ``log term = c0 + c1 u + c2 u^2`` in u = log ATPP, over its reference value."""


@dataclass(frozen=True)
class Curve:
    """A law at one model and stage, for many draws: a loss as a function of D and r.

    Parameters
    ----------
    law : Law
    p : mapping
        Term sizes at the point `at`, in nats, and exponents, each of shape (draws,).
    at : mapping
        Logarithms of the covariates where the sizes are stated.
    params, ptpp : float
        Parameters N of the model, and pre-training tokens per parameter.
    """

    law: Law
    p: Values
    at: Values
    params: float
    ptpp: float

    @property
    def draws(self) -> int:
        """Number of draws."""
        return len(self.p["E"])

    def take(self, index: Any) -> "Curve":
        """The curve for some of the draws."""
        return replace(self, p={name: value[index] for name, value in self.p.items()})

    @cached_property
    def bends(self) -> dict[str, tuple[Any, Any] | None]:
        """`Slice.bend` of each term in D, one row if r does not matter and three if it does."""
        probe = self._bare([0.0, 0.5, 1.0])
        bends = {term.coefficient: probe.bend(term) for term in probe.data}
        for name, bend in bends.items():
            if bend and all(np.allclose(c, c[:1], 1e-12, 1e-14) for c in bend):
                bends[name] = bend[0][:1], bend[1][:1]
        return bends

    def sliced(self, replay: Sequence[float] | Floats) -> "Slice":
        """The curve at given replay ratios."""
        bare = self._bare(replay)
        logs: dict[str, Polynomial | None] = {}
        for term in bare.data:
            bend = self.bends[term.coefficient]
            if bend and len(bend[0]) > 1:
                bend = bare.bend(term)
            logs[term.coefficient] = bend and (bare.log(term, 0.0), *bend)
        return replace(bare, logs=logs)

    def _bare(self, replay: Sequence[float] | Floats) -> "Slice":
        """A slice whose polynomials are not known yet."""
        ratios = np.asarray(replay, float)[:, None]
        model = {"params": self.params, "tokens": self.params / self.law.token_unit}
        model["ptpp"] = self.ptpp
        x = {name: np.log([[value]]) for name, value in model.items()} | self.law.shares(ratios)
        return Slice(self.law, self.p, self.at, x)

    def loss(self, replay: Sequence[float] | Floats, budget: float | Floats) -> Floats:
        """Loss in nats per token, shape (replays, draws), at a budget in log ATPP."""
        here = self.sliced(replay)
        value = here.rest() + here.reach(budget)
        return np.broadcast_to(value, (len(replay), self.draws))

    def unadapted(self) -> Floats:
        """Loss at D = 0 as the law is written, shape (draws,); not finite where a term diverges."""
        x = {**self._bare([1.0]).x, "tokens": np.array([[-np.inf]])}
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            loss = self.law.loss(self.p, x, self.at)
        return np.asarray(np.broadcast_to(loss, (1, self.draws))[0])

    def least(self, replay: float) -> Floats:
        """Smallest loss over all budgets, shape (draws,): the asymptote where loss falls in D."""
        here = self.sliced([replay])
        if here.closed:
            values = here.rest() + np.zeros((1, self.draws))
            for term in here.data:
                c0, c1, c2 = here.polynomial(term)
                with np.errstate(divide="ignore", invalid="ignore"):
                    level = np.where(c2 > 0, -0.25 * c1**2 / c2, -np.inf)
                level = np.where((c1 == 0) & (c2 == 0), 0.0, level)
                values = values + self.p[term.coefficient] * np.exp(c0 + level)
            return np.asarray(values[0])
        values = np.stack([np.broadcast_to(here.reach(u), (1, self.draws))[0] for u in NODES])
        least, node = values.min(0), values.argmin(0)
        draw = np.flatnonzero((node > 0) & (node < len(NODES) - 1))
        node = node[draw]
        if len(draw):
            least[draw] = find_minimum(
                lambda u, d: here.take(0 * d, d).reach(u),
                (NODES[node - 1], NODES[node], NODES[node + 1]),
                args=(draw,),
            ).f_x
        return np.asarray(here.rest()[0] + least)


@dataclass(frozen=True)
class Slice:
    """A curve at fixed replay ratios; arrays broadcast to (replays, draws)."""

    law: Law
    p: Values
    at: Values
    x: Values
    logs: Mapping[str, Polynomial | None] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int]:
        """Replay ratios and draws."""
        return max(len(values) for values in self.x.values()), len(self.p["E"])

    @property
    def data(self) -> list[Term]:
        """The terms in D."""
        return [term for term in self.law.terms if "tokens" in term.covariates]

    @property
    def closed(self) -> bool:
        """Whether the feasible set is closed form."""
        return len(self.logs) < 2 and self.quadratic

    @property
    def quadratic(self) -> bool:
        """Whether the log of every term in D is a polynomial of degree 2 or less in log D."""
        return None not in self.logs.values()

    def log(self, term: Term, budget: Any) -> Any:
        """Log of a term over its reference value."""
        return term.shape(self.p, {**self.x, "tokens": self.x["tokens"] + budget}, self.at, np)

    def rest(self) -> Any:
        """Everything but the terms in D."""
        others = [term for term in self.law.terms if "tokens" not in term.covariates]
        return self.p["E"] + sum(
            (self.p[t.coefficient] * np.exp(self.log(t, 0.0)) for t in others), np.zeros((1, 1))
        )

    def reach(self, budget: Any) -> Any:
        """The terms in D, each held at its peak left of it."""
        total = np.zeros((1, 1)) if np.ndim(budget) == 0 else 0.0
        for term in self.data:
            polynomial = self.logs.get(term.coefficient)
            if polynomial is None:
                log = self.log(term, budget)
            else:
                c0, c1, c2 = polynomial
                held = budget
                if (c2 < 0).any():
                    with np.errstate(divide="ignore", invalid="ignore"):
                        held = np.maximum(budget, np.where(c2 < 0, -0.5 * c1 / c2, -np.inf))
                log = c0 + held * (c1 + held * c2)
            with np.errstate(over="ignore"):  # far out a convex term is infinite, and so says
                total = total + self.p[term.coefficient] * np.exp(log)
        return total

    def polynomial(self, term: Term) -> Polynomial:
        """Log of a term as a polynomial, which it must be."""
        polynomial = self.logs[term.coefficient]
        assert polynomial is not None
        return polynomial

    def bend(self, term: Term) -> tuple[Any, Any] | None:
        """c1 and c2 of a term's log, shape (1 or replays, draws); None if it is no quadratic."""
        low, mid, high = (self.log(term, u) for u in (-STEP, 0.0, STEP))
        c1, c2 = (high - low) / (2 * STEP), (high - 2 * mid + low) / (2 * STEP**2)
        size = 1 + np.maximum(np.abs(high), np.abs(low))
        for u in (-0.6 * STEP, 0.3 * STEP, 1.4 * STEP):
            miss = np.abs(self.log(term, u) - (mid + u * (c1 + u * c2)))
            if not (miss <= 1e-9 * size).all():
                return None
        c2 = np.where(np.abs(c2) * STEP**2 > 1e-13 * size, c2, 0.0)  # rounding is no curvature
        return np.atleast_2d(c1), np.atleast_2d(c2)

    def take(self, row: Any, draw: Any) -> "Slice":
        """Single elements of (replays, draws), as arrays of shape (elements,)."""

        def pick(values: Any) -> Any:
            rows, draws = np.shape(values)
            return values[row if rows > 1 else 0, draw if draws > 1 else 0]

        needed = self.logs if self.quadratic else self.p
        return Slice(
            self.law,
            {name: self.p[name][draw] for name in needed},
            self.at,
            {} if self.quadratic else {name: pick(value) for name, value in self.x.items()},
            {name: log and tuple(map(pick, log)) for name, log in self.logs.items()},
        )
