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
    """A further source domain, with a limit of its own.

    Parameters
    ----------
    curve : LossCurve or PooledCurve
    max_forgetting : float
        As that of `Problem`.
    baseline : float or array, shape (draws,)
        Source loss of the un-adapted model.
    """

    curve: Curve
    max_forgetting: float
    baseline: float | Floats


@dataclass(frozen=True)
class Problem:
    """Limits on the losses of target domains and of source domains, for paired draws.

    Parameters
    ----------
    targets : tuple of LossCurve or PooledCurve
    source : LossCurve or PooledCurve
        All curves have the same number of draws; draw i of one is paired with draw i of the others.
    max_loss : tuple of float
        Limit of each target loss, nats per token.
    max_forgetting : float
        Limit of the forgetting, which is the rise of the source loss over its baseline.
    baseline : float, array of shape (draws,), "asymptote", "law" or "matched"
        Source loss of the un-adapted model, or how to compute it; see `bayeslaw.plan`.
    relative : bool
        Whether `max_forgetting` is a fraction of the baseline; otherwise it is in nats per token.
    confidence : float
        Probability with which all limits must hold.
    noise : tuple of array, shape (draws,)
        Noise on log loss of each target, of each further source and of the source; zeros for
        latent losses.
    bases : tuple of array, shape (draws,)
        The part of `noise` that the un-adapted model has as well: the effect of the base. That of
        the source counts where the baseline is computed from the source law.
    max_cvar : float
        Limit of `cvar`, in the unit of `max_forgetting`.
    drawn : tuple of array, shape (draws,)
        The part of `noise` that is neither the effect of a fitted group nor of the law.
    index : tuple of int array, shape (draws,)
        For each fit, in the order of `noise`, the posterior draw that each paired draw consists of.
    further : tuple of Source
        Sources beside `source`, each with a limit of its own.
    """

    targets: tuple[Curve, ...]
    source: Curve
    max_loss: tuple[float, ...]
    max_forgetting: float
    baseline: float | Floats | str
    relative: bool
    confidence: float
    noise: tuple[Floats, ...]
    bases: tuple[Floats, ...] = ()
    drawn: tuple[Floats, ...] = ()
    max_cvar: float = math.inf
    index: tuple[Ints, ...] = ()
    further: tuple[Source, ...] = ()

    @property
    def draws(self) -> int:
        """Number of paired draws."""
        return self.source.draws

    @property
    def params(self) -> float:
        """Parameters N of the model."""
        return self.source.params

    @property
    def rank(self) -> int:
        """Smallest number of draws whose fraction is at least the confidence."""
        # The small number keeps .9 of 10 draws at 9 despite rounding.
        return max(1, math.ceil((self.confidence - 1e-9) * self.draws))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the limits, in the order of `feasible_sets`."""
        count = len(self.targets)
        several = tuple(f"target {i + 1}" for i in range(count))
        others = tuple(f"forgetting {i + 2}" for i in range(len(self.further)))
        own = "forgetting 1" if others else "forgetting"
        return (*(several if count > 1 else ("target",)), *others, own)

    @property
    def part(self) -> dict[str, slice]:
        """Places of the limits of the targets, of forgetting, and of both among all limits."""
        count = len(self.targets)
        return {"target": slice(count), "forgetting": slice(count, None), "both": slice(None)}

    @property
    def closed_form(self) -> bool:
        """Whether the feasible budgets of every law have a closed form, which is fast."""
        others = [each.curve for each in self.further]
        curves = (*self.targets, *others, self.source)
        return all(curve.closed_form for curve in curves)

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
        base = self.baseline
        return replace(
            self,
            targets=tuple(curve.take(draws) for curve in self.targets),
            source=self.source.take(draws),
            further=tuple(
                replace(each, curve=each.curve.take(draws), baseline=_taken(each.baseline, draws))
                for each in self.further
            ),
            noise=tuple(noise[draws] for noise in self.noise),
            drawn=tuple(noise[draws] for noise in self.drawn),
            bases=tuple(effect[draws] for effect in self.bases),
            baseline=base if isinstance(base, str) else _taken(base, draws),
        )

    def scaled(
        self, max_loss: float = 1.0, max_forgetting: float = 1.0, baseline: float = 1.0
    ) -> "Problem":
        """The problem with limits and baselines multiplied; a baseline by name stays."""
        base = self.baseline
        return replace(
            self,
            max_loss=tuple(max_loss * loss for loss in self.max_loss),
            max_forgetting=max_forgetting * self.max_forgetting,
            baseline=base if isinstance(base, str) else baseline * base,
            further=tuple(
                Source(s.curve, max_forgetting * s.max_forgetting, baseline * s.baseline)
                for s in self.further
            ),
        )

    @property
    def shared(self) -> float | Floats:
        """Effect of the base on the log loss of the source."""
        return self.bases[-1] if self.bases else 0.0

    @cached_property
    def baseline_loss(self) -> float | Floats:
        """Source loss of the un-adapted model: a number, or of shape (draws,).

        The matched baseline depends on D and is computed where it is used.
        """
        if not isinstance(self.baseline, str):
            return self.baseline
        asymptote = self.baseline == "asymptote"
        own = self.source.minimum(1.0) if asymptote else self.source.loss_at_zero()
        return own * np.exp(self.shared)

    # -- losses -------------------------------------------------------------------------------

    def losses(self, replay: Sequence[float] | Floats, budget: float) -> list[Floats]:
        """Each target's loss at a budget in log ATPP, nats per token, shape (replays, draws)."""
        return [
            curve.loss(replay, budget) * np.exp(noise)
            for curve, noise in zip(self.targets, self.noise, strict=False)
        ]

    def rise(self, replay: Sequence[float] | Floats, budget: float | Floats) -> Floats:
        """Forgetting: rise of the source loss over its baseline, in the unit of its limit.

        Parameters
        ----------
        replay : sequence of float
        budget : float or array, shape (replays, 1)
            Log ATPP.

        Returns
        -------
        array, shape (replays, draws)
        """
        loss = self.source.loss(replay, budget) * np.exp(self.noise[-1])
        if isinstance(self.baseline, str) and self.baseline == "matched":
            pure = self.source.loss(np.ones(len(replay)), budget)
            base: float | Floats = pure * np.exp(self.shared)
        else:
            base = self.baseline_loss
        return np.asarray(loss / base - 1 if self.relative else loss - base)

    def rises(self, replay: Sequence[float] | Floats, budget: float) -> list[Floats]:
        """`rise` of the source and of each further one."""
        found, first = [self.rise(replay, budget)], len(self.targets)
        for each, noise in zip(self.further, self.noise[first:-1], strict=True):
            loss = each.curve.loss(replay, budget) * np.exp(noise)
            found.append(loss / each.baseline - 1 if self.relative else loss - each.baseline)
        return found

    def cvar(self, replay: Sequence[float] | Floats, budget: float | Floats) -> Floats:
        """Conditional value at risk of forgetting in excess of its limit, shape (replays,).

        It is the mean excess over the ``draws - rank`` draws with the largest forgetting, but over
        one draw at least [1]_.

        References
        ----------
        .. [1] R. T. Rockafellar and S. Uryasev (2000). Optimization of conditional value-at-risk.
           Journal of Risk, 2(3), 21-41.
        """
        excess = self.rise(replay, budget) - self.max_forgetting
        worst = min(self.rank, self.draws - 1)
        return np.asarray(np.partition(excess, worst, -1)[:, worst:].mean(-1))

    # -- sets of budgets ----------------------------------------------------------------------

    @cached_property
    def bounds(self) -> list[Bound]:
        """Each limit as a bound on a loss without noise, in the order of `noise`."""
        without_noise = [np.exp(-noise) for noise in self.noise]
        found = [
            Bound(curve, most * factor)
            for curve, most, factor in zip(
                self.targets, self.max_loss, without_noise[: len(self.targets)], strict=True
            )
        ]
        for each, factor in zip(self.further, without_noise[len(self.targets) : -1], strict=True):
            most = each.baseline * (1 + each.max_forgetting * self.relative)
            most = most + each.max_forgetting * (not self.relative)
            found.append(Bound(each.curve, most * factor))
        scale = 1 + self.max_forgetting if self.relative else 1.0
        rise = 0.0 if self.relative else self.max_forgetting
        factor = without_noise[-1]
        if isinstance(self.baseline, str) and self.baseline == "matched":
            weight = scale * factor * np.exp(self.shared)
            return [*found, Bound(self.source, rise * factor, weight)]
        return [*found, Bound(self.source, (scale * self.baseline_loss + rise) * factor)]

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

        Parameters
        ----------
        feasible : Intervals
            Budgets that meet all limits at these ratios.
        replay : array, shape (replays,)

        Returns
        -------
        array, shape (replays,)
            Log ATPP; infinite where there is none.
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


def _taken(values: float | Floats, draws: Ints) -> float | Floats:
    return values if np.ndim(values) == 0 else np.asarray(values)[draws]
