"""Chance constraints: limits on the losses that must hold jointly with a stated probability.

The probability is estimated by the fraction of posterior draws at which all limits hold (sample
average approximation of a chance-constrained problem [1]_ [2]_). Of the draws, the excesses over
the limits are evaluated on a grid of budgets and replay ratios. Where the excess that is exceeded
by a fraction ``1 - confidence`` of the draws is at most zero, a budget is feasible. This order
statistic is continuous in budget and ratio, so that on a coarse grid it also says where a feasible
region may lie between the nodes.

References
----------
.. [1] A. Charnes and W. W. Cooper (1959). Chance-constrained programming. Management Science, 6(1),
   73-79.
.. [2] J. Luedtke and S. Ahmed (2008). A sample approximation approach for optimization with
   probabilistic constraints. SIAM Journal on Optimization, 19(2), 674-699.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any

import numpy as np
from scipy.ndimage import maximum_filter, minimum_filter

from bayeslaw.common.arrays import Bools, Floats, Ints
from bayeslaw.planning.grid import BLOCK, BUDGETS, COARSE, Curve, first, minima, search, spaced

SEARCH_SPACING = (1e-4, 5e-6)
"""Spacing of log ATPP and of replay ratios at which a search in both ends."""
MOST_ISLANDS, ISLAND_WIDTH = 3, 0.01
"""Most islands, and most gaps between nodes, that are searched; and difference in log ATPP of
islands of which each may be the best."""
FIXED_RATIOS = 397
"""Replay ratios among which the likeliest is sought at a fixed budget."""
NEVER = 1e6
"""Added to the excess of infeasible points, so that any feasible budget is better."""
NORMAL_95 = 1.6449
"""Standard deviations from the median of a normal to its quantile at 95 %."""


@dataclass(frozen=True)
class Deviations:
    """Deviation of the measured log loss of a new run from the latent one, as a sum of parts.

    They are effects by level of grouping, and ``noise``, each of shape (draws,). The un-adapted
    model has the effect of the base as well.
    """

    parts: Mapping[str, Floats]

    @cached_property
    def total(self) -> Floats:
        return np.asarray(sum(self.parts.values()))

    @property
    def base(self) -> Floats:
        return self.parts.get("base", np.zeros_like(self.total))

    def take(self, draws: Ints) -> "Deviations":
        return Deviations({name: part[draws] for name, part in self.parts.items()})


@dataclass(frozen=True)
class Limit:
    """An upper limit on the loss of a target, or on the rise of a source's loss over its baseline.

    Draws are paired; `index` are those of the fit. A limit on the loss has no `baseline`. A rise is
    in nats per token or, if `relative`, a fraction of the baseline.
    """

    curve: Curve
    most: float
    noise: Deviations
    index: Ints | None = None
    baseline: float | Floats | str | None = None
    relative: bool = False

    def text(self, value: float) -> str:
        """A value of what is limited; a loss goes without its unit."""
        if self.baseline is None:
            return f"{value:g}"
        return f"{100 * value:.3g} %" if self.relative else f"{value:.3g} nats"

    @cached_property
    def baseline_loss(self) -> float | Floats:
        """Loss of the un-adapted model, a number or of shape (draws,); 0 without a baseline."""
        if not isinstance(self.baseline, str):
            return 0.0 if self.baseline is None else self.baseline
        curve, asymptote = self.curve, self.baseline == "asymptote"
        # The un-adapted model is of the same base, so its effect cancels in a relative rise.
        return (curve.minimum(1.0) if asymptote else curve.loss_at_zero()) * np.exp(self.noise.base)

    def value(self, budgets: Sequence[float] | Floats, replay: Sequence[float] | Floats) -> Floats:
        """What is limited, (budgets, replays, draws), in the unit of `most`; see `Curve.loss`."""
        loss = self.curve.loss(budgets, replay) * np.exp(self.noise.total)
        return loss / self.baseline_loss - 1 if self.relative else loss - self.baseline_loss

    @cached_property
    def threshold(self) -> Floats:
        """The limit as one on the latent loss, nats per token, shape (draws,)."""
        base = self.baseline_loss
        most = (1 + self.most) * base if self.relative else base + self.most
        # Noise moves the limit, once, in place of the losses at every node of a grid.
        return most * np.exp(-self.noise.total)

    def take(self, draws: Ints) -> "Limit":
        base = self.baseline
        if isinstance(base, np.ndarray) and base.ndim:
            base = base[draws]
        index = None if self.index is None else self.index[draws]
        curve, noise = self.curve.take(draws), self.noise.take(draws)
        return replace(self, curve=curve, noise=noise, index=index, baseline=base)


@dataclass(frozen=True)
class Problem:
    """Limits on the losses of the targets, then of the sources; draw i of all curves is a pair."""

    limits: tuple[Limit, ...]
    confidence: float
    # Of log ATPP and replay ratio: positive where a run lies beyond the evidence; then no limit
    # counts as met. See `bayeslaw.planning.planned_run.farness`.
    beyond: Callable[[tuple[Floats, Floats]], Floats] | None = None
    fixed: float | None = None  # log ATPP, if the budget is given and the least replay is sought

    @cached_property
    def targets(self) -> tuple[Limit, ...]:
        return tuple(limit for limit in self.limits if limit.baseline is None)

    @cached_property
    def sources(self) -> tuple[Limit, ...]:
        return self.limits[len(self.targets) :]

    @property
    def source(self) -> Limit:
        return self.sources[0]

    @property
    def draws(self) -> int:
        return self.limits[0].curve.draws

    @property
    def params(self) -> float:
        return self.limits[0].curve.params

    @property
    def rank(self) -> int:
        """Smallest number of draws whose fraction is at least the confidence."""
        # The small number keeps .9 of 10 draws at 9 despite rounding.
        return max(1, math.ceil((self.confidence - 1e-9) * self.draws))

    @property
    def names(self) -> tuple[str, ...]:
        kinds = ("target", self.targets), ("forgetting", self.sources)
        return tuple(name for kind, limits in kinds for name in numbered(kind, len(limits)))

    def with_noise(self, noise: Iterable[Deviations]) -> "Problem":
        """The problem for losses with other noise, given in the order of the limits."""
        pairs = zip(self.limits, noise, strict=True)
        return replace(self, limits=tuple(replace(limit, noise=own) for limit, own in pairs))

    def take(self, draws: Ints) -> "Problem":
        return replace(self, limits=tuple(limit.take(draws) for limit in self.limits))

    def thinned(self, most: int) -> "Problem":
        """The problem for at most so many draws, evenly spread."""
        if self.draws <= most:
            return self
        return self.take(spaced(self.draws, most))

    @property
    def coarse(self) -> "Problem":
        """The problem for the draws of the first grid, whose losses are evaluated once."""
        thinned = self.thinned(COARSE)
        pairs = zip(thinned.limits, self.limits, strict=True)
        return replace(
            thinned, limits=tuple(replace(few, curve=all_.curve.coarse) for few, all_ in pairs)
        )

    def scaled(
        self, max_loss: float = 1.0, max_forgetting: float = 1.0, baseline: float = 1.0
    ) -> "Problem":
        """The problem with limits and baselines multiplied by factors; a name of one stays."""
        limits = []
        for limit in self.limits:
            base = limit.baseline
            most = limit.most * (max_loss if base is None else max_forgetting)
            if base is not None and not isinstance(base, str):
                base = baseline * base
            limits.append(replace(limit, most=most, baseline=base))
        return replace(self, limits=tuple(limits))

    def excesses(
        self, budgets: Sequence[float] | Floats, replay: Sequence[float] | Floats
    ) -> list[Floats]:
        """Excess of each loss over its limit, nats per token, (budgets, replays, draws)."""
        with np.errstate(over="ignore", invalid="ignore"):
            return [limit.curve.loss(budgets, replay) - limit.threshold for limit in self.limits]

    def worst(self, budgets: Sequence[float] | Floats, replay: Sequence[float] | Floats) -> Floats:
        """Largest excess of a loss over its limit; not positive where all limits hold."""
        worst = reduce(np.maximum, self.excesses(budgets, replay))
        if self.beyond is None:
            return worst
        u = np.asarray(budgets, float)
        beyond = self.beyond((u if u.ndim > 1 else u[:, None], np.asarray(replay, float)))
        return np.maximum(worst, beyond[..., None])

    def reduced(self, statistic: Callable[[Floats], Any], budgets: Floats, replay: Floats) -> Any:
        """A function of `worst` at (budgets, replays, ...), evaluated some budgets at a time."""
        step = max(1, BLOCK // (self.draws * len(replay)))
        starts = range(0, len(budgets), step)
        return np.concatenate(
            [statistic(self.worst(budgets[i : i + step], replay)) for i in starts]
        )

    def held(self, budgets: Floats, replay: Floats) -> Ints:
        """Number of draws at which all limits hold, (budgets, replays)."""
        return np.asarray(self.reduced(lambda worst: (worst <= 0).sum(-1), budgets, replay))

    def order(self, budgets: Floats, replay: Floats, ranks: Sequence[int]) -> Floats:
        """The excess that so many draws do not exceed, (budgets, replays, ranks)."""
        places = np.array(ranks) - 1

        def statistic(worst: Floats) -> Floats:
            excess = np.partition(worst, np.unique(places), axis=-1)[..., places]
            # A loss that is not a number meets no limit.
            return np.nan_to_num(excess, nan=np.inf, posinf=np.inf)

        order: Floats = self.reduced(statistic, budgets, replay)
        return order

    def needed(self, ratio: float, tolerance: float = 1e-9) -> Floats:
        """Smallest log ATPP of each draw that meets all limits at a replay ratio, (draws,)."""

        def holds(budgets: Floats) -> Bools:
            excesses = [
                limit.curve.along(budgets, ratio) - limit.threshold for limit in self.limits
            ]
            far = -np.inf if self.beyond is None else self.beyond((budgets, np.array(ratio)))
            return np.asarray(np.maximum(np.max(excesses, axis=0), far) <= 0)

        return first(holds, BUDGETS[:, None], tolerance)


def numbered(name: str, count: int) -> list[str]:
    """A name for each of some things: the name itself, or with numbers if there are several."""
    return [name] if count == 1 else [f"{name} {i + 1}" for i in range(count)]


# -- the best budget ------------------------------------------------------------------------------


def smallest(
    problem: Problem, ratios: Floats, confidences: Sequence[float] = ()
) -> list[tuple[float, float]]:
    """Smallest log ATPP that meets all limits, and its replay ratio, for each of the confidences.

    Infinite where none does, and minus infinity where no tokens are needed. The default is the
    problem's own confidence. At a fixed budget, see `at_budget`.
    """
    if problem.fixed is not None:
        return [at_budget(replace(problem, confidence=c), ratios) for c in confidences] or [
            at_budget(problem, ratios)
        ]
    thinned = problem.coarse
    problems = [replace(problem, confidence=c) for c in confidences] or [problem]
    ranks = [replace(thinned, confidence=at.confidence).rank for at in problems]
    margins = thinned.order(BUDGETS, ratios, ranks)
    plans = []
    for at, margin in zip(problems, np.moveaxis(margins, -1, 0), strict=True):
        starts = _islands(at, margin, ratios)
        starts += [_around(i, j, ratios) for i, j in _gaps(margin)]
        local = [refined(at, axes, ratios[[0, -1]]) for axes in starts]
        plans.append(min(local, key=lambda plan: plan[0], default=(math.inf, math.nan)))
    return plans


def at_budget(problem: Problem, ratios: Floats) -> tuple[float, float]:
    """The least replay ratio that meets all limits at the fixed budget; infinite if none does.

    Without any limit it is the ratio at which the target loss that holds with the confidence is
    least. The first place is the budget, as that of `smallest`.
    """
    budget, place = problem.fixed or 0.0, np.array([problem.fixed or 0.0])

    def held(replay: Floats) -> Ints:
        counts: Ints = problem.held(place, replay[:, 0])[0][:, None]
        return counts

    if any(limit.most < math.inf for limit in problem.limits):
        (ratio,) = first(lambda replay: held(replay) >= problem.rank, ratios[:, None])
    else:

        def stated(replay: Floats) -> Floats:
            loss = np.sort(problem.targets[0].value(place, replay[:, 0])[0], axis=-1)
            return np.where(held(replay) > 0, loss[:, problem.rank - 1, None], np.inf)

        ((ratio,), (least,)) = minima(stated, ratios[:, None], SEARCH_SPACING[1])
        ratio = ratio if least < math.inf else math.inf
    return (budget, float(ratio)) if ratio < math.inf else (math.inf, math.nan)


def refined(problem: Problem, axes: Sequence[Floats], ends: Floats) -> tuple[float, float]:
    """`smallest` from a grid of budgets and ratios around it; `ends` are those of the ratios."""

    def worth(budgets: Floats, replay: Floats) -> tuple[Floats, Floats]:
        margin = problem.order(budgets, replay, [problem.rank])[..., 0]
        return np.where(margin <= 0, budgets[:, None], NEVER + margin), margin

    bounds = [(BUDGETS[0], BUDGETS[-1]), (ends[0], ends[-1])]
    value, (budget, ratio) = search(worth, axes, bounds, SEARCH_SPACING)
    if value >= NEVER:
        return math.inf, math.nan
    return lowest(problem, budget, ratio, problem.rank), ratio


def lowest(problem: Problem, budget: float, ratio: float, count: int) -> float:
    """The smallest budget at which so many draws meet all limits, to rounding errors.

    It is sought up to an e-fold below one, since limits may hold for a short range of budgets.
    """
    replay = np.array([ratio])
    below = np.r_[np.arange(1, 0, -1 / 16), SEARCH_SPACING[0] * np.array([16, 8, 4, 2, 1, 0])]
    nodes = np.maximum(budget - below, BUDGETS[0])
    (least,) = first(lambda u: problem.held(u[:, 0], replay) >= count, nodes[:, None], 1e-13)
    return -math.inf if least <= BUDGETS[0] else float(least)


def likeliest(problem: Problem, ratios: Floats, cap: float = math.inf) -> tuple[int, float, float]:
    """Most draws that meet all limits together, and the log ATPP up to `cap` and ratio with them.

    Of equally probable budgets it is the smallest.
    """
    if problem.fixed is not None:
        nodes = np.unique(np.r_[ratios, np.linspace(ratios[0], ratios[-1], FIXED_RATIOS)])
        counts = problem.held(np.array([problem.fixed]), nodes)[0]
        most = int(counts.argmax())  # of equal ones the least replay
        if not counts[most] or problem.fixed > cap:
            return 0, math.inf, math.nan
        return int(counts[most]), problem.fixed, float(nodes[most])
    # The cap is a node of its own: often the likeliest choice spends all that is allowed.
    budgets = BUDGETS if cap == math.inf else np.append(BUDGETS[cap > BUDGETS], cap)

    def worth(budgets: Floats, replay: Floats) -> tuple[Floats, Floats]:
        def statistic(worst: Floats) -> Floats:
            held, nearest = (worst <= 0).sum(-1), np.fmin.reduce(worst, -1)
            # Where no draw meets all limits, the smallest excess leads to where one may.
            return np.where(held > 0, -held, np.nan_to_num(nearest, nan=np.inf))

        value = problem.reduced(statistic, budgets, replay)
        return value, np.broadcast_to(budgets[:, None], value.shape)

    value, _ = worth(budgets, ratios)
    peaks = np.argwhere((minimum_filter(value, 3) == value) & (value < np.inf))
    # Of equal peaks the smaller budget comes first.
    starts = sorted(peaks.tolist(), key=lambda at: (value[*at], at))[:MOST_ISLANDS]
    bounds = [(budgets[0], budgets[-1]), (ratios[0], ratios[-1])]
    local = [
        search(worth, _around(i, j, ratios, budgets, 8), bounds, SEARCH_SPACING) for i, j in starts
    ]
    least, (budget, ratio) = min(local, default=(math.inf, (math.inf, math.nan)))
    if least >= 0:
        return 0, math.inf, math.nan
    return round(-least), lowest(problem, budget, ratio, round(-least)), ratio


def _around(
    i: int, j: int, ratios: Floats, budgets: Floats = BUDGETS, parts: int = 1
) -> list[Floats]:
    """Budgets and ratios of the cells beside a node of the grid, each cell in some parts."""
    axes = []
    for nodes, at in ((budgets, i), (ratios, j)):
        near = nodes[max(at - 1, 0) : at + 2]
        steps = np.linspace(0, len(near) - 1, parts * (len(near) - 1) + 1)
        axes.append(np.interp(steps, np.arange(len(near)), near))
    return axes


def _islands(problem: Problem, margin: Floats, ratios: Floats) -> list[list[Floats]]:
    """Budgets and ratios around the smallest feasible budgets, from the margins of the first grid.

    They are local minima, over the ratios, of the smallest budget at each ratio: a feasible region
    may have several islands, and of a few draws it has a rugged shore. Searches from the lowest
    local minima of the first grid alone moved 20 of 200 random problems, and missed a smaller
    budget of smooth losses.
    """
    node, feasible = (margin <= 0).argmax(0), (margin <= 0).any(0)
    near = np.flatnonzero(feasible & (node <= node[feasible].min(initial=len(BUDGETS)) + 1))
    if not len(near):
        return []
    cells = np.clip(node[near] + np.arange(-2, 2)[:, None], 0, len(BUDGETS) - 1)

    def holds(budgets: Floats) -> Bools:
        return problem.order(budgets, ratios[near], [problem.rank])[..., 0] <= 0

    budget = np.full(len(ratios), np.inf)
    budget[near] = first(holds, BUDGETS[cells], ISLAND_WIDTH)
    islands = np.flatnonzero((minimum_filter(budget, 3) == budget) & (budget < np.inf))
    islands = islands[np.argsort(budget[islands], kind="stable")][:MOST_ISLANDS]
    close = budget[islands] <= budget.min() + 2 * ISLAND_WIDTH
    below = np.array([-8.0, -4.0, -2.0, -1.0, 0.0]) * ISLAND_WIDTH
    return [[budget[j] + below, ratios[max(j - 1, 0) : j + 2]] for j in islands[close]]


def _gaps(margin: Floats) -> list[tuple[int, int]]:
    """Nodes with infeasible margins beside which a smaller budget may be feasible.

    They are local minima of the margin that are as near to zero as to a neighbour, or any if no
    node is feasible. Without them one of 200 random problems needed 5 times the budget.
    """
    feasible = (margin <= 0).any(1)
    lower = np.arange(len(BUDGETS)) < (feasible.argmax() if feasible.any() else len(BUDGETS))
    change = maximum_filter(np.where(margin < np.inf, margin, -np.inf), 3) - margin
    gaps = (minimum_filter(margin, 3) == margin) & (margin > 0) & (margin < np.inf)
    gaps &= lower[:, None] & ((margin <= change) | (not feasible.any()))
    places = np.argwhere(gaps)[np.argsort(margin[gaps], kind="stable")][:MOST_ISLANDS]
    return [(int(i), int(j)) for i, j in places]


def binding_limits(problem: Problem, ratios: Floats) -> str:
    """Which limits make a problem infeasible, as text.

    They are the limits that no budget meets with the confidence, or all of them together if each
    can be met alone.
    """
    alone = [replace(problem, limits=(limit,)) for limit in problem.limits]
    most = {n: likeliest(p, ratios)[0] for n, p in zip(problem.names, alone, strict=True)}
    failing = " and ".join(name for name, count in most.items() if count < problem.rank)
    shares = ", ".join(f"P({n}) up to {count / problem.draws:.3g}" for n, count in most.items())
    return f"{failing or 'the limits together'}; alone, {shares}"


# -- Monte Carlo error ----------------------------------------------------------------------------


def monte_carlo(
    problem: Problem, ratios: Floats, place: tuple[float, float]
) -> tuple[dict[str, Any], float]:
    """`Plan.error`, from plans of neighbouring ranks [1]_, and `Plan.held_out`.

    `place` is the log ATPP and the ratio of the plan. It is an order statistic of the budgets that
    draws need. Among other draws its rank is binomial, of as many trials as the draws are worth in
    independent ones. So the plans at quantiles of that rank are the ends of its interval.

    References
    ----------
    .. [1] W. J. Conover (1999). Practical Nonparametric Statistics, section 3.2. Wiley.
    """
    # Imported here, so that the command line starts fast.
    from arviz_stats.base import array_stats
    from scipy.stats import binom

    draws, share = problem.draws, problem.rank / problem.draws
    # Point fits alone: there are no other draws to vary with.
    if draws == 1:
        return {}, math.nan
    # What counts is whether the limits hold: parameters may mix more slowly, or noise dominate.
    holds = problem.worst([place[0]], [place[1]])[0, 0] <= 0
    ess = array_stats.ess(holds[None].astype(float), method="mean")
    trials = round(float(np.clip(ess, 1, draws))) if np.isfinite(ess) else draws  # NaN: few draws
    ends = np.asarray(binom.ppf((0.05, 0.95), trials, share)) / trials
    (low, left), (high, right) = smallest(problem, ratios, ends.tolist())
    if high == math.inf:  # other draws may have no plan
        most = max(likeliest(problem, ratios)[0] / draws, share)
        infeasible = float(binom.cdf(math.ceil(trials * share) - 1, trials, most))
        right, width = place[1], (math.exp(place[0]) - math.exp(low)) / NORMAL_95
    else:
        # The ends are the quantiles at 5 and 95 %, twice NORMAL_95 standard deviations apart.
        infeasible, width = 0.0, (math.exp(high) - math.exp(low)) / NORMAL_95 / 2
    return {
        "atpp": width,
        "replay": abs(right - left) / NORMAL_95 / (2 if high < math.inf else 1),
        "atpp_90": (math.exp(low), math.exp(high)),
        "infeasible": infeasible,
        "ess": trials,
    }, split_half_probability(problem, ratios)


def split_half_probability(problem: Problem, ratios: Floats) -> float:
    """P(both) on half of the draws of a plan made on the other half; mean of both directions.

    P(both) of a plan on the draws that it was made on is optimistic; this one is not. A half
    without a plan does not count; NaN if neither has one.
    """
    index, held = np.arange(problem.draws), []
    # Halves in order: of alternating draws, which are correlated, each half would know the other.
    halves = [problem.take(half) for half in np.split(index, [problem.draws // 2])]
    for one, other in (halves, halves[::-1]):
        ((budget, ratio),) = smallest(one, ratios)
        if budget < math.inf:
            held.append(other.held(np.array([budget]), np.array([ratio]))[0, 0] / other.draws)
    return float(np.mean(held)) if held else math.nan
