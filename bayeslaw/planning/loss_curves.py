"""Loss as a function of log ATPP and replay ratio, at one model and stage, for many draws.

A data term is a term of the law that depends on D. In most laws it diverges at D = 0. Deviations
may outweigh it there: the loss then has a maximum, falls as D becomes smaller, and vanishes at
D = 0. This is an artefact of extrapolation, and would make any limit on the loss feasible without
tokens. Below the D of this maximum, the loss is therefore replaced by the maximum.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from scipy.optimize.elementwise import find_minimum

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.laws.adjustments import until_repeated
from bayeslaw.laws.law import KAPPA, Law, couple
from bayeslaw.laws.terms import Term

NODES = np.linspace(np.log(1e-7), np.log(1e9), 41)
"""Grid in log ATPP on which losses without a closed form are bracketed. Outside it, a limit that
holds at the nearer end is taken to hold."""
PROBE_STEP = 8.0
"""Distance in log ATPP of the points that determine the slope of a term's log. It is wide, so that
rounding errors of the slope are small."""
NEAR_ZERO = -1e300
"""Log of a D at which every power of D with a negative exponent has overflowed."""


type Line = tuple[Floats, Floats]
"""Coefficients of ``log(term / reference value) = c0 + c1 u`` in u = log ATPP."""


@dataclass(frozen=True)
class LossCurve:
    """Loss of a law at one model and stage as a function of D and r, for many draws.

    Parameters
    ----------
    law : Law
    p : mapping of str to array, shape (draws,)
        Term sizes at the point `at`, in nats, and exponents.
    at : mapping of str to float
        Logarithms of the covariates at the point where the sizes are stated.
    params, ptpp : float
        Parameters N of the model, and its pre-training tokens per parameter.
    base : mapping of str to array, shape (draws,)
        Covariates of the base, `start` and `deviation`, of a law that starts from it.
    unique : float, optional
        Distinct tokens of the new data, for a law with repetition.
    tables : dict
        Losses that `losses_at_nodes` found.

    Examples
    --------
    The law ``1.7 + 400 / N^0.34 + 410 / D^0.28`` at N = 1e9 and 20 tokens per parameter:

    >>> from bayeslaw.laws.lawfiles import load_law
    >>> from bayeslaw.laws.terms import ORIGIN
    >>> p = {"E": 1.7, "A": 400.0, "alpha": 0.34, "B": 410.0, "beta": 0.28}
    >>> draws = {name: np.array([value]) for name, value in p.items()}
    >>> curve = LossCurve(load_law("chinchilla"), draws, ORIGIN, params=1e9, ptpp=20.0)
    >>> curve.loss([0.5], np.log(20)).round(3).tolist()
    [[2.584]]
    """

    law: Law
    p: Mapping[str, Floats]
    at: Mapping[str, float]
    params: float
    ptpp: float
    base: Mapping[str, Floats] = field(default_factory=dict)
    unique: float | None = None
    tables: dict[bytes, Floats] = field(default_factory=dict, repr=False, compare=False)

    @property
    def draws(self) -> int:
        """Number of draws."""
        return len(self.p["E"])

    @property
    def closed_form(self) -> bool:
        """Whether the budgets below a limit have a closed form at all replay ratios."""
        return self.at_replay([0.5]).closed_form

    def take(self, draws: Ints) -> "LossCurve":
        """The curve for some of the draws."""
        p, base = (
            {name: value[draws] for name, value in values.items()} for values in (self.p, self.base)
        )
        return replace(self, p=p, base=base, tables={})

    @cached_property
    def _slopes(self) -> dict[str, Floats | None]:
        """`ReplaySlice.slope` of each data term: one row, or three if r matters.

        None for every term of a law that is not additive.
        """
        if not self.law.additive:
            return dict.fromkeys(self.law.coefficients)
        probe = self._without_lines([0.0, 0.5, 1.0])
        slopes = {term.coefficient: probe.slope(term) for term in probe.data}
        for name, slope in slopes.items():
            if slope is not None and np.allclose(slope, slope[:1], 1e-12, 1e-14):
                slopes[name] = slope[:1]
        return slopes

    def at_replay(self, replay: Sequence[float] | Floats) -> "ReplaySlice":
        """The curve at given replay ratios, as a function of the budget alone."""
        here = self._without_lines(replay)
        lines: dict[str, Line | None] = {}
        for term in here.data:
            slope = self._slopes[term.coefficient]
            if slope is not None and len(slope) > 1:
                slope = here.slope(term)
            lines[term.coefficient] = None if slope is None else (here.log_term(term, 0.0), slope)
        here = replace(here, lines=lines)
        return replace(here, peak=here.maximum()) if self.law.deviations else here

    def _without_lines(self, replay: Sequence[float] | Floats) -> "ReplaySlice":
        ratios = np.asarray(replay, float)[:, None]
        model = {"params": self.params, "tokens": self.params / self.law.token_unit}
        model["ptpp"] = self.ptpp
        x = {name: np.log([[value]]) for name, value in model.items()} | self.law.shares(ratios)
        x |= {name: value[None] for name, value in self.base.items()}
        if self.unique is not None:
            x["unique"] = until_repeated(self.unique / self.law.token_unit, ratios)
        return ReplaySlice(self.law, self.p, self.at, x)

    def loss(self, replay: Sequence[float] | Floats, budget: float | Floats) -> Floats:
        """Loss in nats per token, shape (replays, draws), at a budget in log ATPP."""
        loss: Floats = self.losses(replay, [budget])[0]
        return loss

    def losses(
        self, replay: Sequence[float] | Floats, budgets: Sequence[float | Floats] | Floats
    ) -> Floats:
        """Loss in nats per token, shape (budgets, replays, draws), at budgets in log ATPP."""
        here = self.at_replay(replay)
        constant, found = here.constant_terms(), np.empty((len(budgets), len(replay), self.draws))
        for value, budget in zip(found, budgets, strict=True):
            value[:] = constant + here.data_terms(budget)
        return found

    def loss_at_zero(self) -> Floats:
        """Loss at D = 0 in nats per token, (draws,); not finite where a term diverges there."""
        x = {**self._without_lines([1.0]).x, "tokens": np.array([[-np.inf]])}
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            loss = self.law.loss(self.p, x, self.at)
        return np.asarray(np.broadcast_to(loss, (1, self.draws))[0])

    def minimum(self, replay: float) -> Floats:
        """Smallest loss over all budgets, (draws,): the asymptote where the loss falls with D."""
        here = self.at_replay([replay])
        if here.closed_form:
            values = here.constant_terms() + np.zeros((1, self.draws))
            for term in here.data:
                c0, c1 = here.line(term)
                values = values + self.p[term.coefficient] * np.exp(c0) * (c1 == 0)
            return np.asarray(values[0])
        values = np.stack([np.broadcast_to(here.data_terms(u), (1, self.draws))[0] for u in NODES])
        least, node = values.min(0), values.argmin(0)
        draw = np.flatnonzero((node > 0) & (node < len(NODES) - 1))
        node = node[draw]

        def data_terms(u: Floats, draw: Ints) -> Floats:
            return np.asarray(here.take(0 * draw, draw).data_terms(u)[0])

        if len(draw):
            bracket = (NODES[node - 1], NODES[node], NODES[node + 1])
            least[draw] = find_minimum(data_terms, bracket, args=(draw,)).f_x
        return np.asarray(here.constant_terms()[0] + least)


@dataclass(frozen=True)
class ReplaySlice:
    """A loss curve at fixed replay ratios; arrays broadcast to (replays, draws).

    Parameters
    ----------
    law, p, at
        As of `LossCurve`.
    x : mapping of str to array
        Logarithms of the covariates at one token per parameter.
    lines : mapping of str to Line or None
        Of each data term, by its coefficient; None where its log is not linear in log D.
    peak : pair of array, optional
        Log ATPP below which the loss is constant, or minus infinity, and that loss.
    """

    law: Law
    p: Mapping[str, Floats]
    at: Mapping[str, float]
    x: Mapping[str, Floats]
    lines: Mapping[str, Line | None] = field(default_factory=dict)
    peak: tuple[Floats, Floats] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Number of replay ratios and of draws."""
        return max(len(values) for values in self.x.values()), len(self.p["E"])

    @property
    def data(self) -> list[Term]:
        """The data terms: those that depend on D, or are coupled with one that does.

        All terms, and the floor with them, if the law is not additive.
        """
        if not self.law.additive:
            return list(self.law.terms)
        names = {term.coefficient for term in self.law.terms if "tokens" in term.covariates}
        if names & {*self.law.coupled}:
            names |= {*self.law.coupled}
        return [term for term in self.law.terms if term.coefficient in names]

    @property
    def closed_form(self) -> bool:
        """Whether the budgets below a limit have a closed form."""
        return len(self.lines) < 2 and self.log_linear

    @property
    def log_linear(self) -> bool:
        """Whether the log of every data term is linear in log D."""
        return None not in self.lines.values() and not self.law.coupled

    def log_term(self, term: Term, budget: float | Floats) -> Floats:
        """Log of a term over its reference value, at a budget in log ATPP."""
        x = {**self.x, "tokens": self.x["tokens"] + budget}
        log: Floats = term.log_ratio(self.p, x, self.at, np)
        return log

    def constant_terms(self) -> Floats:
        """Sum of the floor and the terms that do not depend on D, in nats."""
        if not self.law.additive:
            return np.zeros((1, 1))
        others = [term for term in self.law.terms if term not in self.data]
        values = (self.p[t.coefficient] * np.exp(self.log_term(t, 0.0)) for t in others)
        total: Floats = self.p["E"] + sum(values, np.zeros((1, 1)))
        return total

    def data_terms(self, budget: float | Floats) -> Floats:
        """Sum of the data terms at a budget in log ATPP, in nats."""
        if not self.law.additive:
            x = {**self.x, "tokens": self.x["tokens"] + budget}
            with np.errstate(over="ignore"):
                loss: Floats = self.law.loss(self.p, x, self.at)
            return np.where(budget < self.peak[0], self.peak[1], loss) if self.peak else loss
        total = np.zeros((1, 1))
        coupled: dict[str, Floats] = {}
        for term in self.data:
            line = self.lines.get(term.coefficient)
            log = self.log_term(term, budget) if line is None else line[0] + line[1] * budget
            with np.errstate(over="ignore"):
                value = self.p[term.coefficient] * np.exp(log)
            if term.coefficient in self.law.coupled:
                coupled[term.coefficient] = value
            else:
                total = total + value
        return total + couple(coupled, self.p[KAPPA], np)[0] if coupled else total

    def line(self, term: Term) -> Line:
        """Line of a data term whose log has one."""
        line = self.lines[term.coefficient]
        assert line is not None
        return line

    def slope(self, term: Term) -> Floats | None:
        """Slope of the log of a data term in log D, shape (1 or replays, draws); None if it varies.

        It is computed from two points and checked at four others.
        """
        low, high = (self.log_term(term, u) for u in (-PROBE_STEP, PROBE_STEP))
        slope = (high - low) / (2 * PROBE_STEP)
        size = 1 + np.maximum(np.abs(high), np.abs(low))
        for u in (-0.6 * PROBE_STEP, 0.0, 0.3 * PROBE_STEP, 1.4 * PROBE_STEP):
            error = np.abs(self.log_term(term, u) - (low + (u + PROBE_STEP) * slope))
            if not (error <= 1e-9 * size).all():
                return None
        return np.atleast_2d(slope)

    def maximum(self) -> tuple[Floats, Floats] | None:
        """The first maximum of the loss, and its budget in log ATPP, each (replays, draws).

        The budget is minus infinity where the loss falls with D at the first of `NODES`, or the law
        without deviations does not diverge at D = 0. None if it is so everywhere.
        """
        first, second = (np.broadcast_to(self.data_terms(u), self.shape) for u in NODES[:2])
        if not (first < second).any():
            return None
        law, x = replace(self.law, deviations=()), {**self.x, "tokens": np.array([[NEAR_ZERO]])}
        with np.errstate(all="ignore"):
            diverges = ~np.isfinite(law.loss(self.p, x, self.at))
        row, draw = np.nonzero((first < second) & diverges)
        if not len(row):
            return None

        def negative(u: float | Floats, row: Ints, draw: Ints) -> Floats:
            return np.asarray(-self.take(row, draw).data_terms(u)[0])

        values = np.stack([negative(u, row, draw) for u in NODES])
        falls = np.vstack([values[1:] > values[:-1], np.ones((1, len(row)), bool)])
        node = falls.argmax(0)
        budget, top = NODES[node], values[node, np.arange(len(row))]
        turns = node < len(NODES) - 1
        low, middle, high = (NODES[node[turns] + i] for i in (-1, 0, 1))
        of = row[turns], draw[turns]
        # The loss is flat there, so its maximum is more accurate than the budget.
        turned = find_minimum(negative, (low, middle, high), args=of, tolerances={"xatol": 1e-6})
        budget[turns], top[turns] = turned.x, turned.f_x
        budgets, losses = np.full(self.shape, -np.inf), np.zeros(self.shape)
        budgets[row, draw], losses[row, draw] = budget, -top
        return budgets, losses

    def take(self, replay: Ints, draw: Ints) -> "ReplaySlice":
        """Single elements of (replays, draws), as a slice of shape (1, elements)."""

        def pick(values: Floats) -> Floats:
            rows, draws = np.shape(values)
            picked = values[replay if rows > 1 else 0, draw if draws > 1 else 0]
            return np.reshape(picked, (1, -1))

        simple = self.log_linear  # its lines stand for the covariates and exponents
        return ReplaySlice(
            self.law,
            {name: self.p[name][draw] for name in (self.lines if simple else self.p)},
            self.at,
            {} if simple else {name: pick(value) for name, value in self.x.items()},
            {
                name: None if line is None else (pick(line[0]), pick(line[1]))
                for name, line in self.lines.items()
            },
            self.peak and (pick(self.peak[0]), pick(self.peak[1])),
        )


@dataclass(frozen=True)
class PooledCurve:
    """`LossCurve` of draws that belong to several laws.

    `places` are those of each part's draws among the draws of the pool.
    """

    parts: tuple[LossCurve, ...]
    places: tuple[Ints, ...]
    tables: dict[bytes, Floats] = field(default_factory=dict, repr=False, compare=False)

    closed_form = False

    @property
    def draws(self) -> int:
        """Number of draws."""
        return sum(map(len, self.places))

    @property
    def params(self) -> float:
        """Parameters N of the model."""
        return self.parts[0].params

    def take(self, draws: Ints) -> "PooledCurve":
        """The curve for some of the draws."""
        owner, own = np.empty(self.draws, int), np.empty(self.draws, int)
        for k, at in enumerate(self.places):
            owner[at], own[at] = k, np.arange(len(at))
        places = [np.flatnonzero(owner[draws] == k) for k in range(len(self.parts))]
        parts = [part.take(own[draws[at]]) for part, at in zip(self.parts, places, strict=True)]
        kept = [k for k, at in enumerate(places) if len(at)]
        return PooledCurve(tuple(parts[k] for k in kept), tuple(places[k] for k in kept))

    def loss(self, replay: Sequence[float] | Floats, budget: float | Floats) -> Floats:
        """Loss in nats per token, shape (replays, draws), at a budget in log ATPP."""
        return self._joined([part.loss(replay, budget) for part in self.parts])

    def losses(self, replay: Sequence[float] | Floats, budgets: Floats) -> Floats:
        """Loss in nats per token, shape (budgets, replays, draws), at budgets in log ATPP."""
        return self._joined([part.losses(replay, budgets) for part in self.parts])

    def loss_at_zero(self) -> Floats:
        """The laws' loss at D = 0 in nats per token, shape (draws,)."""
        return self._joined([part.loss_at_zero() for part in self.parts])

    def minimum(self, replay: float) -> Floats:
        """Smallest loss over all budgets, shape (draws,)."""
        return self._joined([part.minimum(replay) for part in self.parts])

    def _joined(self, values: Sequence[Floats]) -> Floats:
        """Values of the parts, whose last axis is that of draws, in the pool's order."""
        return np.concatenate(values, axis=-1)[..., np.argsort(np.concatenate(self.places))]


type Curve = LossCurve | PooledCurve


def losses_at_nodes(curve: Curve, replay: Floats) -> Floats:
    """Loss at `NODES`, shape (nodes, replays, draws); computed once per curve and ratios."""
    key = replay.tobytes()
    if key not in curve.tables:
        curve.tables[key] = curve.losses(replay, NODES)
    return curve.tables[key]
