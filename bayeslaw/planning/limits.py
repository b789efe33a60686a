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
from bayeslaw.planning.feasible_budgets import Bound, root_between
from bayeslaw.planning.loss_curves import NODES, Curve


@dataclass(frozen=True)
class Noise:
    """Deviation of the measured log loss of a new run from the latent one; arrays (draws,).

    Parameters
    ----------
    total : array
    base : array
        The part that the un-adapted model has as well: the effect of the base.
    drawn : array
        The part that is neither the effect of a fitted group nor of the law.
    """

    total: Floats
    base: Floats
    drawn: Floats

    def take(self, draws: Ints) -> "Noise":
        """The noise of some of the draws."""
        return Noise(self.total[draws], self.base[draws], self.drawn[draws])


def no_noise(draws: int) -> Noise:
    """The noise of latent losses."""
    return Noise(*np.zeros((3, draws)))


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
    baseline : float, array of shape (draws,), "asymptote", "law" or "matched"
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
    def baseline_loss(self) -> float | Floats | None:
        """Loss of the un-adapted model, a number or of shape (draws,).

        None for the matched baseline, which depends on D.
        """
        if not isinstance(self.baseline, str):
            return self.baseline
        if self.baseline == "matched":
            return None
        asymptote = self.baseline == "asymptote"
        own = self.curve.minimum(1.0) if asymptote else self.curve.loss_at_zero()
        return own * np.exp(self.noise.base)

    def value(self, replay: Sequence[float] | Floats, budget: float | Floats) -> Floats:
        """The rise of the loss over the baseline."""
        loss, base = self.curve.loss(replay, budget) * np.exp(self.noise.total), self.baseline_loss
        if base is None:
            base = self.curve.loss(np.ones(len(replay)), budget) * np.exp(self.noise.base)
        return np.asarray(loss / base - 1 if self.relative else loss - base)

    @cached_property
    def bound(self) -> Bound:
        """The limit as a bound on the latent loss, less a multiple of that of pure replay."""
        factor, base = np.exp(-self.noise.total), self.baseline_loss
        scale, rise = (1 + self.most, 0.0) if self.relative else (1.0, self.most)
        if base is None:
            return Bound(self.curve, rise * factor, scale * factor * np.exp(self.noise.base))
        return Bound(self.curve, (scale * base + rise) * factor)

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


@dataclass(frozen=True)
class CvarLimit:
    """A limit on the conditional value at risk (CVaR) of forgetting beyond its own limit [1]_.

    CVaR is the mean excess over the draws with the largest forgetting: a fraction
    ``1 - confidence`` of them, but one draw at least.

    Parameters
    ----------
    limit : ForgettingLimit
    confidence : float
    most : float
        In the unit of forgetting; infinite without a limit.

    References
    ----------
    .. [1] R. T. Rockafellar and S. Uryasev (2000). Optimization of conditional value-at-risk.
       Journal of Risk, 2(3), 21-41.
    """

    limit: ForgettingLimit
    confidence: float
    most: float

    def text(self, value: float) -> str:
        """A CVaR as text: the mean forgetting of these draws."""
        rise = self.limit.text(self.limit.most + value)
        return f"{rise} in the worst {100 - 100 * self.confidence:g} % of draws"

    def value(self, replay: Sequence[float] | Floats, budget: float | Floats) -> Floats:
        """CVaR, shape (replays,)."""
        excess, draws = self.limit.value(replay, budget) - self.limit.most, self.limit.curve.draws
        worst = min(rank_of(self.confidence, draws), draws - 1)
        return np.asarray(np.partition(excess, worst, -1)[:, worst:].mean(-1))

    def raised(self, replay: Floats, budget: Floats) -> Floats:
        """Smallest budgets per replay ratio, from the given ones on, that meet the limit.

        A range of such budgets without a point of `NODES` in it is missed. The search stops above
        e times the smallest ATPP found at any ratio, since the remaining ratios cannot be the best;
        their budgets are infinite.
        """

        def excess(u: Floats, row: Ints) -> Floats:
            return self.value(replay[row], u[:, None]) - self.most

        low, found = np.maximum(budget, NODES[0]), budget.copy()
        left = np.flatnonzero(budget < math.inf)
        left = left[excess(low[left], left) > 0]
        found[left] = math.inf
        for node in NODES:
            if not len(left) or found.min() < node - 2:
                break
            row = left[low[left] < node]
            good = excess(np.full(len(row), node), row) <= 0
            crossed = row[good]
            upper = np.full(len(crossed), node)
            found[crossed] = root_between(excess, low[crossed], upper, crossed)
            low[row] = node
            left = left[found[left] == math.inf]
        return found


def rank_of(confidence: float, draws: int) -> int:
    """Smallest number of draws whose fraction is at least the confidence."""
    # The small number keeps .9 of 10 draws at 9 despite rounding.
    return max(1, math.ceil((confidence - 1e-9) * draws))
