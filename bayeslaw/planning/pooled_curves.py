"""Loss curves of a pool: those of its members, draw after draw."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.planning.loss_curves import LossCurve, ReplaySlice

type Part = tuple[Ints, Callable[[Floats], Floats], Floats]
"""Elements of one law: places, a function of the budget, and the constant terms."""


@dataclass(frozen=True)
class PooledCurve:
    """`LossCurve` of draws that belong to several laws.

    Parameters
    ----------
    parts : tuple of LossCurve
        Each with draws of one law.
    places : tuple of int array
        Places of each part's draws among those of the pool.
    tables : dict
        Losses that `losses_at_nodes` found.
    """

    parts: tuple[LossCurve, ...]
    places: tuple[Ints, ...]
    tables: dict[bytes, Floats] = field(default_factory=dict, repr=False, compare=False)

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
        owner, own = _owners(self.places, self.draws)
        places = [np.flatnonzero(owner[draws] == k) for k in range(len(self.parts))]
        parts = [part.take(own[draws[at]]) for part, at in zip(self.parts, places, strict=True)]
        kept = [k for k, at in enumerate(places) if len(at)]
        return PooledCurve(tuple(parts[k] for k in kept), tuple(places[k] for k in kept))

    def at_replay(self, replay: Sequence[float] | Floats) -> "PooledSlice":
        """The curve at given replay ratios, as a function of the budget alone."""
        return PooledSlice(tuple(part.at_replay(replay) for part in self.parts), self.places)

    def loss(self, replay: Sequence[float] | Floats, budget: float | Floats) -> Floats:
        """Loss in nats per token, shape (replays, draws), at a budget in log ATPP."""
        return _joined([part.loss(replay, budget) for part in self.parts], self.places)

    def losses(self, replay: Sequence[float] | Floats, budgets: Floats) -> Floats:
        """Loss in nats per token, shape (budgets, replays, draws), at budgets in log ATPP."""
        return _joined([part.losses(replay, budgets) for part in self.parts], self.places)

    def loss_at_zero(self) -> Floats:
        """The laws' loss at D = 0 in nats per token, shape (draws,)."""
        return _joined([part.loss_at_zero() for part in self.parts], self.places)

    def minimum(self, replay: float) -> Floats:
        """Smallest loss over all budgets, shape (draws,)."""
        return _joined([part.minimum(replay) for part in self.parts], self.places)


@dataclass(frozen=True)
class PooledSlice:
    """`ReplaySlice` of draws that belong to several laws; the losses are evaluated whole."""

    parts: tuple[ReplaySlice, ...]
    places: tuple[Ints, ...]

    closed_form = False

    @property
    def shape(self) -> tuple[int, int]:
        """Number of replay ratios and of draws."""
        return self.parts[0].shape[0], sum(map(len, self.places))

    def constant_terms(self) -> Floats:
        """Zero: all terms count as data terms."""
        return np.zeros((1, 1))

    def data_terms(self, budget: float | Floats) -> Floats:
        """Losses at a budget in log ATPP, shape (replays, draws)."""

        def whole(part: ReplaySlice) -> Floats:
            value = part.constant_terms() + part.data_terms(budget)
            return np.broadcast_to(value, part.shape)

        return _joined([whole(part) for part in self.parts], self.places)

    def take(self, replay: Ints, draw: Ints) -> "_Elements":
        """Single elements of (replays, draws), as arrays of shape (elements,)."""
        owner, own = _owners(self.places, self.shape[1])
        found: list[Part] = []
        for k, part in enumerate(self.parts):
            at: Ints = np.flatnonzero(owner[draw] == k).astype(np.int64)
            constant = np.broadcast_to(part.constant_terms(), part.shape)
            found.append(
                (
                    at,
                    part.take(replay[at], own[draw[at]]).data_terms,
                    constant[replay[at], own[draw[at]]],
                )
            )
        return _Elements(found, len(draw))


@dataclass(frozen=True)
class _Elements:
    """Elements of several laws: places, a function of the budget, and the constant terms."""

    found: list[Part]
    count: int

    def data_terms(self, budget: Floats) -> Floats:
        """Losses at budgets in log ATPP, shape (elements,)."""
        loss = np.empty(self.count)
        for at, data_terms, constant in self.found:
            if len(at):
                loss[at] = constant + data_terms(budget[at])
        return loss


def _owners(places: Sequence[Ints], count: int) -> tuple[Ints, Ints]:
    """Part of each draw, and its place in that part."""
    owner, own = np.empty(count, int), np.empty(count, int)
    for k, at in enumerate(places):
        owner[at], own[at] = k, np.arange(len(at))
    return owner, own


def _joined(values: Sequence[Floats], places: Sequence[Ints]) -> Floats:
    """Values of the parts, whose last axis is that of draws, in the pool's order."""
    return np.concatenate(values, axis=-1)[..., np.argsort(np.concatenate(places))]
