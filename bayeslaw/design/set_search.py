"""Costs of sets of runs, and the search for the best set to buy.

The cost of a run is its own training, and once per base the base's pre-training.

Small problems are solved by trying every set. Otherwise the set is built greedily, by gain per cost
[1]_, and improved by exchanging single runs as in optimal experimental design [2]_. Under a budget,
greedy steps by gain alone are tried as well, since either rule may be poor by itself [3]_.

References
----------
.. [1] A. Krause, A. Singh and C. Guestrin (2008). Near-optimal sensor placements in Gaussian
   processes. Journal of Machine Learning Research, 9, 235-284.
.. [2] V. V. Fedorov (1972). Theory of Optimal Experiments. Academic Press.
.. [3] J. Leskovec et al. (2007). Cost-effective outbreak detection in networks. Proceedings of the
   13th ACM SIGKDD International Conference, 420-429.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Bools, Floats, Ints
from bayeslaw.common.errors import BayeslawError, unknown
from bayeslaw.design.bayes_linear import JointGaussian, Update
from bayeslaw.model.effects import labels
from bayeslaw.tables.table import LossTable

KINDS = ("flops", "adaptation")
"""Costs that are computed from N, D and PTPP."""
EXHAUSTIVE = 2_000_000
"""Every set of up to three is tried if there are at most this many, which takes seconds."""
PASSES = 5
"""Most passes of exchanges."""
SLACK = 1 + 1e-9
"""Factor by which rounding may exceed the budget."""


@dataclass(frozen=True)
class Costs:
    """Costs of candidate rows.

    A row stands for its run trained up to that row. Rows of one run are its checkpoints: together
    they cost what the most expensive of them costs.

    Parameters
    ----------
    own : array, shape (rows,)
        Cost of the run up to the row.
    run, base : array of int, shape (rows,)
        Run and pre-trained model of each row.
    setup : array, shape (bases,)
        Cost of each base, paid with the first run from it; 0 if the base exists.

    Examples
    --------
    Two checkpoints of one run, and a run from another base:

    >>> each = Costs(np.array([1.0, 3.0, 2.0]), np.array([0, 0, 1]), np.array([0, 0, 1]),
    ...              np.array([10.0, 20.0]))
    >>> each.further([0]).tolist()
    [0.0, 2.0, 22.0]
    >>> each.total([0, 1])
    13.0
    """

    own: Floats
    run: Ints
    base: Ints
    setup: Floats

    def further(self, bought: Sequence[int]) -> Floats:
        """Further cost of each row once the rows `bought` are paid, shape (rows,)."""
        left = self.setup.copy()
        left[self.base[list(bought)]] = 0
        return np.maximum(self.own - self._paid(bought)[self.run], 0) + left[self.base]

    def total(self, bought: Sequence[int]) -> float:
        """Cost of the rows `bought` together."""
        bases = np.unique(self.base[list(bought)])
        return float(self._paid(bought).sum() + self.setup[bases].sum())

    def _paid(self, bought: Sequence[int]) -> Floats:
        """Cost of each run, without its base, for the rows `bought`, shape (runs,)."""
        paid = np.zeros(self.run.max() + 1)
        np.maximum.at(paid, self.run[list(bought)], self.own[list(bought)])
        return paid


def costs(
    frame: pd.DataFrame,
    columns: Sequence[str],
    *,
    cost: str = "flops",
    fitted: LossTable | None = None,
) -> Costs:
    """Costs of the rows of a table or grid.

    Parameters
    ----------
    frame : DataFrame
        Covariates, and `run` where rows are checkpoints of one run.
    columns : sequence of str
        Covariates of the law. Bases have a cost only if `ptpp` is one of them.
    cost : "flops", "adaptation", or a column of `frame`
        ``"flops"`` is 6 N D for each run, and for each base 6 N times its N PTPP pre-training
        tokens. A base is a pair of N and PTPP; one of `fitted` exists, so it is free.
        ``"adaptation"`` is 6 N D alone. A column has the cost of each run up to the row, in any
        unit.
    fitted : LossTable, optional
        Training table. The bases of its rows exist, also those that are known only by a row with
        ``tokens = 0``.

    Returns
    -------
    Costs

    Raises
    ------
    BayeslawError
        If `cost` is unknown, or a cost is not positive and finite.

    References
    ----------
    6 N D is the approximation of J. Kaplan et al. (2020), Scaling laws for neural language models,
    arXiv:2001.08361.
    """
    if cost in KINDS:
        own = 6 * frame["params"].to_numpy(float) * frame["tokens"].to_numpy(float)
    elif cost in frame:
        own = pd.to_numeric(frame[cost], errors="coerce").to_numpy(float)
    else:
        raise BayeslawError(unknown("cost", cost, [*KINDS, *map(str, frame.columns)]))
    if not ((own > 0) & np.isfinite(own)).all():
        raise BayeslawError(f"cost {cost!r}: not a positive number in every candidate row.")
    run = run_of_each(frame)
    if "ptpp" not in columns:
        return Costs(own, run, np.zeros(len(frame), int), np.zeros(1))
    base, unique = bases(frame)
    setup = 6 * unique[:, 0] ** 2 * unique[:, 1]
    if cost != "flops":
        setup[:] = 0
    elif fitted is not None:
        every = pd.concat([fitted.frame, fitted.baselines])
        existing = every[["params", "ptpp"]].to_numpy(float)
        setup[np.isclose(unique[:, None], existing, rtol=1e-6).all(-1).any(1)] = 0
    return Costs(own, run, base, setup)


def run_of_each(frame: pd.DataFrame) -> Ints:
    """Run of each row as a code, shape (rows,); a row without a label is a run of its own."""
    return np.unique(labels(frame, "run"), return_inverse=True)[1]


def bases(frame: pd.DataFrame) -> tuple[Ints, Floats]:
    """Base of each row, (rows,), and N and PTPP of each base, (bases, 2): their distinct pairs."""
    pairs = frame[["params", "ptpp"]].to_numpy(float)
    unique, index = np.unique(pairs, axis=0, return_inverse=True)
    return index.ravel(), unique


@dataclass(frozen=True)
class Gain:
    """What measurements are worth, given weights of the targets.

    Parameters
    ----------
    value : callable
        Value of an update in the unit of the gain; larger is better.
    increases : callable
        Increase of the value by each candidate, shape (candidates,).
    """

    value: Callable[[Update, Floats], float]
    increases: Callable[[Update, Floats], Floats]


VARIANCE = Gain(
    value=lambda update, weights: float(-update.variance @ weights),
    increases=lambda update, weights: update.weighted_reduction(weights),
)
ENTROPY = Gain(
    value=lambda update, weights: float(-(np.log(update.variance) / 2) @ weights),
    increases=lambda update, weights: np.asarray(
        -0.5 * np.log1p(-update.reductions() / update.variance) @ weights
    ),
)
INFORMATION = Gain(
    value=lambda update, weights: update.information,
    increases=lambda update, weights: update.further_information,
)
GAINS = {"variance": VARIANCE, "entropy": ENTROPY, "plan": VARIANCE, "doptimal": INFORMATION}
"""Gains of `bayeslaw.choose_anchors`; for that of a plan all weight is on the plan's budget."""


@dataclass(frozen=True)
class Search:
    """Search for a set of candidates of largest gain under limits on number and cost.

    Parameters
    ----------
    joint : JointGaussian
    costs : Costs
    size : array of int, shape (candidates,)
        Code of each candidate's N.
    gain : Gain
    weights : array, shape (targets,)
    k : int
        Most candidates bought.
    budget : float
        Most FLOPs together; infinite for none.
    power : float
        Greedy steps take the candidate of largest gain over its cost to this power. Without a
        budget, whole sets are compared in the same way.
    second_size : bool
        Whether two or more candidates must not all have the same N.
    """

    joint: JointGaussian
    costs: Costs
    size: Ints
    gain: Gain
    weights: Floats
    k: int
    budget: float
    power: float
    second_size: bool

    def best(self) -> tuple[list[int], str]:
        """The best set in the order to buy it, and the method of the search."""
        sets = len(self.size) * sum(math.comb(len(self.size), i) for i in range(self.k))
        if self.k <= 3 and sets <= EXHAUSTIVE:
            return self.order(self._exhaustive()), "every set tried"
        starts = [self.power, 0.0] if math.isfinite(self.budget) else [self.power]
        found = [self._exchange(self._greedy([], power)) for power in starts]
        score = [self._objective(picks) for picks in found]
        return self.order(found[int(np.argmax(score))]), "greedy, then exchanges"

    def order(self, picks: Sequence[int]) -> list[int]:
        """The picks in the order of a greedy search: largest gain over cost given those before."""
        done: list[int] = []
        while left := [pick for pick in picks if pick not in done]:
            rate = self._rate(done, self.power)
            done.append(max(left, key=lambda pick: rate[pick]))
        return done

    def value(self, picks: Sequence[int]) -> float:
        """Value of a set in the unit of the gain; larger is better."""
        return self.gain.value(self.joint.update(picks), self.weights)

    # -- searches -----------------------------------------------------------------------------

    def _rate(self, picks: Sequence[int], power: float) -> Floats:
        """Gain of each candidate over its further cost to a power."""
        extra = np.maximum(self.costs.further(picks), np.finfo(float).tiny)
        return self.gain.increases(self.joint.update(picks), self.weights) / extra**power

    def _greedy(self, picks: list[int], power: float) -> list[int]:
        """Add candidates of largest rate until `k` or the budget is reached."""
        while len(picks) < self.k:
            spent, extra = self.costs.total(picks), self.costs.further(picks)
            allowed = self._allowed(
                picks, extra, self.budget * SLACK - spent, last=len(picks) + 1 == self.k
            )
            rate = np.where(allowed, self._rate(picks, power), -math.inf)
            best = int(rate.argmax())
            if not rate[best] > 0:
                break
            picks = self._without_contained([*picks, best])
        return picks

    def _allowed(self, picks: list[int], extra: Floats, left: float, last: bool) -> Bools:
        """Candidates that the rest of the budget allows.

        While all picks have one N and a second is required, only those that have another N or leave
        enough for a candidate with another N, if there are any.
        """
        allowed = extra <= left
        if last and math.isinf(self.budget):
            # A run picked already costs nothing more, but the number of runs is `k`.
            allowed &= np.isin(self.costs.run, self.costs.run[picks], invert=True)
        if not self.second_size or self.k < 2 or len({*self.size[picks]}) > 1:
            return allowed
        second = np.isin(self.size, self.size[picks], invert=True) & bool(picks)
        if not last:
            for size in np.unique(self.size):
                here = self.size == size
                second |= here & (extra + extra[~here].min(initial=math.inf) <= left)
        return allowed & second if (allowed & second).any() else allowed

    def _exchange(self, picks: list[int]) -> list[int]:
        """Replace single picks by better ones, and add more, until nothing improves."""
        for _ in range(PASSES):
            before = list(picks)
            for pick in before:
                others = [p for p in picks if p != pick]
                if len(others) == len(picks):
                    continue
                best, score = self._best_addition(others)
                if score > self._objective(picks) + 1e-12 * abs(score):
                    picks = self._without_contained([*others, best])
            picks = self._greedy(picks, self.power) if math.isfinite(self.budget) else picks
            if picks == before:
                break
        return picks

    def _exhaustive(self) -> list[int]:
        """The best of all sets; those with a second N come first if one is required."""
        runs = min(self.k, int(self.costs.run.max()) + 1)
        fewest = 0 if math.isfinite(self.budget) else runs - 1
        sets = (combinations(range(len(self.size)), i) for i in range(fewest, runs))
        best: tuple[bool, float, list[int]] = (False, -math.inf, [])
        for some in chain.from_iterable(sets):
            if math.isinf(self.budget) and len({*self.costs.run[list(some)]}) < len(some):
                continue
            last, score = self._best_addition(list(some))
            varied = len({*self.size[[*some, last]]}) > 1 or not self.second_size
            if (varied, score) > best[:2] and score > -math.inf:
                best = varied, score, self._without_contained([*some, last])
        return best[2]

    def _best_addition(self, picks: list[int]) -> tuple[int, float]:
        """Best candidate to add to the picks as the last, and the objective with it."""
        spent, extra = self.costs.total(picks), self.costs.further(picks)
        update = self.joint.update(picks)
        allowed = self._allowed(picks, extra, self.budget * SLACK - spent, last=True)
        increases = self.gain.increases(update, self.weights)
        value = self.gain.value(update, self.weights) + increases - self._value_before
        score = np.where(allowed, value / self._cost_weight(spent + extra), -math.inf)
        best = int(score.argmax())
        return best, float(score[best])

    def _objective(self, picks: list[int]) -> float:
        """Gain of a set, without a budget over its cost to the power; 0 for an empty set."""
        if not picks:
            return 0.0
        value = self.value(picks) - self._value_before
        return float(value / self._cost_weight(self.costs.total(picks)))

    def _cost_weight(self, total: Floats | float) -> Floats:
        return np.asarray(total) ** self.power if math.isinf(self.budget) else np.ones_like(total)

    @cached_property
    def _value_before(self) -> float:
        return self.value([])

    def _without_contained(self, picks: Sequence[int]) -> list[int]:
        """The picks without checkpoints of a run of which a later checkpoint is picked too."""
        run, own = self.costs.run, self.costs.own
        return [p for p in picks if not any(run[p] == run[q] and own[p] < own[q] for q in picks)]
