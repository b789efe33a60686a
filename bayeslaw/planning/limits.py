"""Limits of a plan, each on a loss of one domain: for every posterior draw it holds or it does not.

A kind of limit is one class: what it limits, in which unit, and which budgets meet it. The planner,
the terminal and the report use limits through these methods.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self

import numpy as np

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.planning.feasible_budgets import Bound
from bayeslaw.planning.loss_curves import Curve


@dataclass(frozen=True)
class Noise:
    """Deviation of the measured log loss of a new run from the latent one; arrays (draws,).

    Parameters
    ----------
    total : array
    base : array
        The part that the un-adapted model has as well: the effect of the base.
    """

    total: Floats
    base: Floats

    def take(self, draws: Ints) -> "Noise":
        """The noise of some of the draws."""
        return Noise(self.total[draws], self.base[draws])


def no_noise(draws: int) -> Noise:
    """The noise of latent losses."""
    return Noise(*np.zeros((2, draws)))


@dataclass(frozen=True)
class Limit(ABC):
    """An upper limit on a loss of one domain, for paired draws.

    Parameters
    ----------
    curve : LossCurve or PooledCurve
    most : float
        The limit.
    noise : Noise
        Added to log losses.
    index : int array, shape (draws,), optional
        For each paired draw, which draw of the fit it consists of.
    """

    kind: ClassVar[str]
    """Part of the probabilities that the limit counts in, as in ``p_target``."""
    argument: ClassVar[str]
    """Argument of `bayeslaw.plan` that states the limit."""

    curve: Curve
    most: float
    noise: Noise
    index: Ints | None = None

    @property
    @abstractmethod
    def unit(self) -> str:
        """Unit of the limit in text."""

    @abstractmethod
    def number(self, value: float) -> str:
        """A value of what is limited as text, without its unit."""

    @abstractmethod
    def value(self, replay: Sequence[float] | Floats, budget: float | Floats) -> Floats:
        """What is limited, shape (replays, draws), in the unit of `most`.

        The budget is a number or of shape (replays, 1), log ATPP.
        """

    @property
    @abstractmethod
    def bound(self) -> Bound:
        """The limit as a bound on the latent loss."""

    def take(self, draws: Ints) -> Self:
        """The limit for some of the draws."""
        index = None if self.index is None else self.index[draws]
        return replace(
            self, curve=self.curve.take(draws), noise=self.noise.take(draws), index=index
        )

    def scaled(self, factors: Mapping[str, float]) -> Self:
        """The limit multiplied by the factor of its `argument`, if there is one."""
        return replace(self, most=factors.get(self.argument, 1.0) * self.most)


@dataclass(frozen=True)
class LossLimit(Limit):
    """A limit on the loss of a target domain, nats per token."""

    kind, argument, unit = "target", "max_loss", "nats per token"

    def number(self, value: float) -> str:
        """The loss as text."""
        return f"{value:g}"

    def value(self, replay: Sequence[float] | Floats, budget: float | Floats) -> Floats:
        """The loss."""
        return self.curve.loss(replay, budget) * np.exp(self.noise.total)

    @cached_property
    def bound(self) -> Bound:
        """The limit as a bound on the latent loss."""
        return Bound(self.curve, self.most * np.exp(-self.noise.total))


@dataclass(frozen=True, kw_only=True)
class ForgettingLimit(Limit):
    """A limit on forgetting: on the rise of the loss of a source domain over its baseline.

    Parameters
    ----------
    baseline : float, array of shape (draws,), "asymptote" or "law"
        Loss of the un-adapted model, or how to compute it; see `bayeslaw.plan`.
    relative : bool
        Whether the limit is a fraction of the baseline, otherwise nats per token.
    """

    kind, argument = "forgetting", "max_forgetting"

    baseline: float | Floats | str
    relative: bool

    @property
    def unit(self) -> str:
        """Per cent of the baseline, or nats per token."""
        return "%" if self.relative else "nats per token"

    def number(self, value: float) -> str:
        """The rise as text."""
        return f"{100 * value if self.relative else value:.3g}"

    def text(self, value: float) -> str:
        """The rise as text, with a short unit."""
        return f"{self.number(value)} {'%' if self.relative else 'nats'}"

    @cached_property
    def baseline_loss(self) -> float | Floats:
        """Loss of the un-adapted model, a number or of shape (draws,)."""
        if not isinstance(self.baseline, str):
            return self.baseline
        asymptote = self.baseline == "asymptote"
        own = self.curve.minimum(1.0) if asymptote else self.curve.loss_at_zero()
        return own * np.exp(self.noise.base)

    def value(self, replay: Sequence[float] | Floats, budget: float | Floats) -> Floats:
        """The rise of the loss over the baseline."""
        loss, base = self.curve.loss(replay, budget) * np.exp(self.noise.total), self.baseline_loss
        return np.asarray(loss / base - 1 if self.relative else loss - base)

    @cached_property
    def bound(self) -> Bound:
        """The limit as a bound on the latent loss."""
        base = self.baseline_loss
        most = (1 + self.most) * base if self.relative else base + self.most
        return Bound(self.curve, most * np.exp(-self.noise.total))

    def take(self, draws: Ints) -> Self:
        """The limit for some of the draws."""
        base = self.baseline
        own = base if isinstance(base, str) or np.ndim(base) == 0 else np.asarray(base)[draws]
        return replace(super().take(draws), baseline=own)

    def scaled(self, factors: Mapping[str, float]) -> Self:
        """The limit and the baseline multiplied; a baseline by name stays."""
        base = self.baseline
        moved = base if isinstance(base, str) else factors.get("baseline", 1.0) * base
        return replace(super().scaled(factors), baseline=moved)


def rank_of(confidence: float, draws: int) -> int:
    """Smallest number of draws whose fraction is at least the confidence."""
    # The small number keeps .9 of 10 draws at 9 despite rounding.
    return max(1, math.ceil((confidence - 1e-9) * draws))
