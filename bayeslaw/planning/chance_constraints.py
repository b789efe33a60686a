"""Chance constraints: limits on the losses that must hold jointly with a stated probability.

The probability is estimated by the fraction of posterior draws at which all limits hold (sample
average approximation of a chance-constrained problem [1]_ [2]_). At a fixed replay ratio, each draw
has a set of budgets that meet its limits (`bayeslaw.planning.feasible_budgets`), so the fraction at
a budget is the fraction of sets that contain it, and the smallest feasible budget is exact for the
draws given. Only the replay ratio is searched (`bayeslaw.planning.replay_search`).

References
----------
.. [1] A. Charnes and W. W. Cooper (1959). Chance-constrained programming. Management Science, 6(1),
   73-79.
.. [2] J. Luedtke and S. Ahmed (2008). A sample approximation approach for optimization with
   probabilistic constraints. SIAM Journal on Optimization, 19(2), 674-699.
.. [3] R. L. Iman and W. J. Conover (1982). A distribution-free approach to inducing rank
   correlation among input variables. Communications in Statistics: Simulation and Computation,
   11(3), 311-334.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import ndtri
from scipy.stats import rankdata

from bayeslaw.common.arrays import Bools, Floats, Ints
from bayeslaw.model.random_effects import BASE
from bayeslaw.planning.deviations import Deviation
from bayeslaw.planning.feasible_budgets import Bound, root_between
from bayeslaw.planning.intervals import Intervals
from bayeslaw.planning.loss_curves import NODES, Curve

CHUNK = 1 << 16
"""Draws times replay ratios that are evaluated at once; it bounds the memory."""


@dataclass(frozen=True)
class Source:
    """A source domain, with its limit of forgetting: of the rise of its loss over its baseline.

    Parameters
    ----------
    curve : LossCurve or PooledCurve
    max_forgetting : float
    baseline : float, array of shape (draws,), "asymptote", "law" or "matched"
        Loss of the un-adapted model, or how to compute it; see `bayeslaw.plan`. Only the first
        source of a problem may have a name.
    """

    curve: Curve
    max_forgetting: float
    baseline: float | Floats | str

    def take(self, draws: Ints) -> "Source":
        """The source for some of the draws."""
        base = self.baseline
        own = base if isinstance(base, str) or np.ndim(base) == 0 else np.asarray(base)[draws]
        return replace(self, curve=self.curve.take(draws), baseline=own)


@dataclass(frozen=True)
class Problem:
    """Limits on the losses of target domains and of source domains, for paired draws.

    Parameters
    ----------
    targets : tuple of LossCurve or PooledCurve
        All curves have the same number of draws; draw i of one is paired with draw i of the others.
    sources : tuple of Source
        In the order 2, 3, ..., 1 of the user's: ``sources[-1]`` is the first.
    max_loss : tuple of float
        Limit of each target loss, nats per token.
    relative : bool
        Whether limits of forgetting are fractions of the baselines, otherwise nats per token.
    confidence : float
        Probability with which all limits must hold.
    noise : tuple of array, shape (draws,)
        Noise on log loss of each target and of each source; zeros for latent losses.
    bases : tuple of array, shape (draws,)
        The part of `noise` that the un-adapted model has as well: the effect of the base. That of
        the first source counts where the baseline is computed from the source law.
    max_cvar : float
        Limit of `cvar`, in the unit of forgetting.
    drawn : tuple of array, shape (draws,)
        The part of `noise` that is neither the effect of a fitted group nor of the law.
    index : tuple of int array, shape (draws,)
        For each fit, in the order of `noise`, the posterior draw that each paired draw consists of.
    """

    targets: tuple[Curve, ...]
    sources: tuple[Source, ...]
    max_loss: tuple[float, ...]
    relative: bool
    confidence: float
    noise: tuple[Floats, ...]
    bases: tuple[Floats, ...] = ()
    drawn: tuple[Floats, ...] = ()
    max_cvar: float = math.inf
    index: tuple[Ints, ...] = ()

    @property
    def source(self) -> Source:
        """The first source: that of `cvar`, and the one whose baseline may be computed."""
        return self.sources[-1]

    @property
    def curves(self) -> list[Curve]:
        """All curves, in the order of `noise`."""
        return [*self.targets, *(source.curve for source in self.sources)]

    @property
    def draws(self) -> int:
        """Number of paired draws."""
        return self.source.curve.draws

    @property
    def params(self) -> float:
        """Parameters N of the model."""
        return self.source.curve.params

    @property
    def rank(self) -> int:
        """Smallest number of draws whose fraction is at least the confidence."""
        # The small number keeps .9 of 10 draws at 9 despite rounding.
        return max(1, math.ceil((self.confidence - 1e-9) * self.draws))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the limits, in the order of `feasible_sets`."""
        count, numbers = len(self.targets), [*range(2, len(self.sources) + 1), 1]
        several = tuple(f"target {i + 1}" for i in range(count))
        own = [f"forgetting {i}" for i in numbers] if len(numbers) > 1 else ["forgetting"]
        return (*(several if count > 1 else ("target",)), *own)

    @property
    def part(self) -> dict[str, slice]:
        """Places of the limits of the targets, of forgetting, and of both among all limits."""
        count = len(self.targets)
        return {"target": slice(count), "forgetting": slice(count, None), "both": slice(None)}

    @property
    def closed_form(self) -> bool:
        """Whether the feasible budgets of every law have a closed form, which is fast."""
        return all(curve.closed_form for curve in self.curves)

    def with_noise(self, deviations: Sequence[Deviation]) -> "Problem":
        """The problem for measured losses, with the deviation of each target and of the source."""
        return replace(
            self,
            noise=tuple(each.total for each in deviations),
            drawn=tuple(each.drawn for each in deviations),
            bases=tuple(each.part(BASE.name) * np.ones(self.draws) for each in deviations),
        )

    def correlated(self, correlation: float, seed: int) -> "Problem":
        """The problem with `drawn` correlated between targets and source.

        The source's draws are put in the order of normal scores that have this correlation with
        those of the targets' mean [3]_. Effects that were fitted stay as they are.
        """
        rng, count = np.random.default_rng([seed, 13]), self.draws
        scores = ndtri((rankdata(np.sum(self.drawn[: len(self.targets)], axis=0)) - 0.5) / count)
        wanted = correlation * scores + math.sqrt(1 - correlation**2) * rng.standard_normal(count)
        order = np.empty(count, int)
        order[np.argsort(wanted, kind="stable")] = np.argsort(self.drawn[-1], kind="stable")
        moved = self.drawn[-1][order]
        noise = (*self.noise[:-1], self.noise[-1] - self.drawn[-1] + moved)
        return replace(self, noise=noise, drawn=(*self.drawn[:-1], moved))

    def take(self, draws: Ints) -> "Problem":
        """The problem for some of the draws."""
        return replace(
            self,
            targets=tuple(curve.take(draws) for curve in self.targets),
            sources=tuple(source.take(draws) for source in self.sources),
            noise=tuple(noise[draws] for noise in self.noise),
            drawn=tuple(noise[draws] for noise in self.drawn),
            bases=tuple(effect[draws] for effect in self.bases),
            index=tuple(index[draws] for index in self.index),
        )

    def scaled(
        self, max_loss: float = 1.0, max_forgetting: float = 1.0, baseline: float = 1.0
    ) -> "Problem":
        """The problem with limits and baselines multiplied; a baseline by name stays."""
        sources = (
            Source(
                each.curve,
                max_forgetting * each.max_forgetting,
                each.baseline if isinstance(each.baseline, str) else baseline * each.baseline,
            )
            for each in self.sources
        )
        most = tuple(max_loss * loss for loss in self.max_loss)
        return replace(self, sources=tuple(sources), max_loss=most)

    @property
    def shared(self) -> float | Floats:
        """Effect of the base on the log loss of the first source."""
        return self.bases[-1] if self.bases else 0.0

    @cached_property
    def baselines(self) -> list[float | Floats | None]:
        """Loss of the un-adapted model of each source: a number, or of shape (draws,).

        None for the matched baseline, which depends on D.
        """
        found: list[float | Floats | None] = []
        for source in self.sources:
            if not isinstance(source.baseline, str):
                found.append(source.baseline)
            elif source.baseline == "matched":
                found.append(None)
            else:
                asymptote = source.baseline == "asymptote"
                own = source.curve.minimum(1.0) if asymptote else source.curve.loss_at_zero()
                found.append(own * np.exp(self.shared))
        return found

    # -- losses -------------------------------------------------------------------------------

    def losses(self, replay: Sequence[float] | Floats, budget: float) -> list[Floats]:
        """Each target's loss at a budget in log ATPP, nats per token, shape (replays, draws)."""
        return [
            curve.loss(replay, budget) * np.exp(noise)
            for curve, noise in zip(self.targets, self.noise, strict=False)
        ]

    def rise(
        self, replay: Sequence[float] | Floats, budget: float | Floats, place: int = -1
    ) -> Floats:
        """Forgetting of a source, by default the first: rise of its loss over its baseline.

        In the unit of its limit, shape (replays, draws). The budget is a number or of shape
        (replays, 1), log ATPP.
        """
        curve, base = self.sources[place].curve, self.baselines[place]
        noise = self.noise[len(self.targets) :][place]
        loss = curve.loss(replay, budget) * np.exp(noise)
        if base is None:
            base = curve.loss(np.ones(len(replay)), budget) * np.exp(self.shared)
        return np.asarray(loss / base - 1 if self.relative else loss - base)

    def cvar(self, replay: Sequence[float] | Floats, budget: float | Floats) -> Floats:
        """Conditional value at risk of forgetting in excess of its limit, shape (replays,).

        It is the mean excess over the ``draws - rank`` draws with the largest forgetting, but over
        one draw at least [1]_.

        References
        ----------
        .. [1] R. T. Rockafellar and S. Uryasev (2000). Optimization of conditional value-at-risk.
           Journal of Risk, 2(3), 21-41.
        """
        excess = self.rise(replay, budget) - self.source.max_forgetting
        worst = min(self.rank, self.draws - 1)
        return np.asarray(np.partition(excess, worst, -1)[:, worst:].mean(-1))

    # -- sets of budgets ----------------------------------------------------------------------

    @cached_property
    def bounds(self) -> list[Bound]:
        """Each limit as a bound on a loss without noise, in the order of `noise`."""
        factors, count = [np.exp(-noise) for noise in self.noise], len(self.targets)
        found = [
            Bound(curve, most * factor)
            for curve, most, factor in zip(self.targets, self.max_loss, factors, strict=False)
        ]
        for source, base, factor in zip(self.sources, self.baselines, factors[count:], strict=True):
            scale = 1 + source.max_forgetting if self.relative else 1.0
            rise = 0.0 if self.relative else source.max_forgetting
            if base is None:
                weight = scale * factor * np.exp(self.shared)
                found.append(Bound(source.curve, rise * factor, weight))
            else:
                found.append(Bound(source.curve, (scale * base + rise) * factor))
        return found

    def feasible_sets(
        self, replay: Sequence[float] | Floats, nodes: Floats = NODES
    ) -> list[Intervals]:
        """Budgets that meet each limit: of the targets, then of forgetting; see `names`."""
        return [bound.budgets(replay, nodes) for bound in self.bounds]

    def meets(self, replay: Sequence[float] | Floats, budget: float) -> Bools:
        """Whether each limit holds at a budget in log ATPP, shape (limits, replays, draws)."""
        return np.stack([bound.excess(replay, budget) <= 0 for bound in self.bounds])

    def portions(self, replay: Floats) -> Iterator[Floats]:
        """Some replay ratios at a time, so that the memory stays bounded."""
        step = max(1, CHUNK // self.draws)
        for start in range(0, len(replay), step):
            yield replay[start : start + step]

    def chunks(
        self, replay: Floats, nodes: Floats = NODES
    ) -> Iterator[tuple[Floats, list[Intervals]]]:
        """Some replay ratios at a time, with their `feasible_sets`."""
        for ratios in self.portions(replay):
            yield ratios, self.feasible_sets(ratios, nodes)

    # -- budgets ------------------------------------------------------------------------------

    def smallest_budgets(self, feasible: Intervals, replay: Floats) -> Floats:
        """Smallest budget per replay ratio that is feasible for `rank` draws and meets `max_cvar`.

        `feasible` has the budgets that meet all limits. Log ATPP, infinite where there is none.
        """
        budget = feasible.smallest(self.rank)
        if self.max_cvar == math.inf:
            return budget
        while True:
            raised = self._raised_for_cvar(replay, budget)
            budget = feasible.smallest(self.rank, raised)
            if (budget == raised).all():
                return budget

    def _raised_for_cvar(self, replay: Floats, budget: Floats) -> Floats:
        """Smallest budgets, from the given ones on, that meet `max_cvar`.

        A range of such budgets without a point of `NODES` in it is missed. The search stops above
        e times the smallest ATPP found at any ratio, since the remaining ratios cannot be the best;
        their budgets are infinite.
        """

        def excess(u: Floats, row: Ints) -> Floats:
            return self.cvar(replay[row], u[:, None]) - self.max_cvar

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
