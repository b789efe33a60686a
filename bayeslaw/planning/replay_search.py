"""Searches over the replay ratio, each on a grid that is refined around its best point.

Laws without a closed form are searched by cells. A cell lies between two neighbouring budgets of
`NODES`, at one replay ratio. The losses of all draws at the nodes, computed once, bound the number
of draws that can meet all limits within a cell: those at which each limit holds at one end of the
cell, or has an extremum near it that may cross. Where this number is less than the rank, no budget
of the cell is feasible. Of the other cells only those of the smallest budgets are solved.
"""

import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq

from bayeslaw.common.arrays import Bools, Floats, Ints
from bayeslaw.planning.chance_constraints import Problem
from bayeslaw.planning.feasible_budgets import turning_points
from bayeslaw.planning.intervals import MAX_LOG_ATPP, intersection
from bayeslaw.planning.loss_curves import NODES

TOLERANCE, COARSE = 2e-6, 5e-4
"""Spacing of the replay ratios at which the refinement ends: with closed-form budgets, and else."""
WINDOW = 0.2
"""E-folds below the smallest budget known in which a smaller one is sought first."""
SPAN = 5.0
"""E-folds of ATPP below and above a choice in which `ranges_around` searches."""
CELL_PARTS = 4
"""Parts of a cell in which changes of sign are looked for."""


def smallest_budget(problem: Problem, replay: Floats) -> tuple[float, float, Floats]:
    """Smallest budget that meets all limits with the problem's confidence, and its replay ratio.

    The third result is the smallest budget at each of the ratios `replay`, which ascend; the best
    is refined between its neighbours. Budgets are log ATPP, infinite if none is feasible.
    """

    def budgets(ratios: Floats, least: float = math.inf) -> Floats:
        if problem.closed_form:
            sets = (intersection(sets) for _, sets in problem.chunks(ratios))
            return np.concatenate([each.smallest(problem.rank) for each in sets])
        if least == math.inf:
            return smallest_budgets(problem, ratios)
        return budgets_between(problem, ratios, least - WINDOW, least)

    per_ratio = budgets(replay)
    tolerance = TOLERANCE if problem.closed_form else COARSE
    budget, ratio = _refined_minimum(budgets, replay, per_ratio, tolerance=tolerance)
    return budget, ratio, per_ratio


def most_probable(problem: Problem, cap: float, replay: Floats) -> tuple[int, float, float]:
    """Most draws that meet all limits together, and the log ATPP up to `cap` and ratio with them.

    Of equally probable budgets it is the smallest.
    """

    def negative_count(ratios: Floats, least: float = math.inf) -> Floats:
        most = (intersection(sets).most_common(cap) for _, sets in problem.chunks(ratios))
        counts, budgets = zip(*most, strict=True)
        # Of equal counts prefer the smaller budget: a term of absolute value below 1 / 2.
        size = np.clip(np.concatenate(budgets), -MAX_LOG_ATPP, MAX_LOG_ATPP) / (3 * MAX_LOG_ATPP)
        return np.asarray(size - np.concatenate(counts))

    if not problem.closed_form and len(replay) > 3:  # only next to the ratio best at the nodes
        best = int(most_at_nodes(problem, replay, cap).argmax())
        replay = replay[max(best - 1, 0) : best + 2]
    _, ratio = _refined_minimum(negative_count, replay, negative_count(replay), rounds=2)
    count, budget = intersection(problem.feasible_sets([ratio])).most_common(cap)
    return int(count[0]), float(budget[0]), ratio


def least_expected_loss(problem: Problem, budget: float, replay: Floats) -> tuple[float, float]:
    """Least expected target loss at a budget in log ATPP, and its replay ratio.

    With several targets, the mean of their losses. Only replay ratios are considered at which the
    forgetting limit holds with the problem's confidence; without any, the loss is infinite.
    """

    def expected(ratios: Floats, least: float = math.inf) -> Floats:
        part = problem.part["forgetting"]
        portions = problem.portions(ratios)
        counts = [problem.meets(some, budget)[part].all(0).sum(-1) for some in portions]
        allowed = np.concatenate(counts) >= problem.rank
        value = np.full(len(ratios), np.inf)
        value[allowed] = np.mean(
            [each.value(ratios[allowed], budget).mean(-1) for each in problem.targets], axis=0
        )
        return value

    return _refined_minimum(expected, replay, expected(replay))


def ranges_around(
    problem: Problem, budget: float, ratio: float, ratios: Floats
) -> dict[str, tuple[float, float]]:
    """Least and greatest ATPP at a ratio, and ratio at a budget, that meet all limits.

    Budgets are searched within five e-folds of the given one. NaN where none meets them with the
    confidence; a gap in between is not seen.
    """

    def holds(u: float, r: float) -> bool:
        return bool(problem.meets([r], u)[:, 0].all(0).sum() >= problem.rank)

    budgets = budget + np.linspace(-SPAN, SPAN, 8 * int(SPAN) + 1)
    low, high = _ends(lambda u: holds(u, ratio), budgets)
    at_budget = _ends(lambda r: holds(budget, r), ratios)
    return {"atpp": (math.exp(low), math.exp(high)), "replay": at_budget}


def _ends(holds: Callable[[float], bool], nodes: Floats) -> tuple[float, float]:
    """Least and greatest value that holds, refined by bisection; NaN if no node does."""
    good = np.flatnonzero([holds(float(node)) for node in nodes])
    if not len(good):
        return math.nan, math.nan
    found = []
    for last, step in ((good[0], -1), (good[-1], 1)):
        inside, beyond = float(nodes[last]), last + step
        if 0 <= beyond < len(nodes):
            outside = float(nodes[beyond])
            for _ in range(30):
                middle = (inside + outside) / 2
                inside, outside = (middle, outside) if holds(middle) else (inside, middle)
        found.append(inside)
    return found[0], found[1]


def stopping_budget(problem: Problem, ratio: float, nats: float, tokens: float) -> float:
    """Log ATPP from which further tokens lower the targets' expected loss by less than `nats`.

    Searched from 1e-3 to 1e6 ATPP; infinite if they lower it by more even there.
    """

    def gain(u: float) -> float:
        after = math.log(math.exp(u) + tokens / problem.params)
        now, then = (
            np.mean([target.value([ratio], each) for target in problem.targets])
            for each in (u, after)
        )
        return float(now - then) - nats

    nodes = np.linspace(math.log(1e-3), math.log(1e6), 84)
    more = np.flatnonzero([gain(float(u)) >= 0 for u in nodes])
    if not len(more):
        return float(nodes[0])
    if more[-1] == len(nodes) - 1:
        return math.inf
    return float(brentq(gain, *nodes[more[-1] : more[-1] + 2]))


def _refined_minimum(
    function: Callable[[Floats, float], Floats],
    replay: Floats,
    values: Floats,
    rounds: int = 99,
    tolerance: float = TOLERANCE,
) -> tuple[float, float]:
    """Minimum of a function of the replay ratio, and where it is.

    The function takes ratios, and the smallest value known; larger ones need not be exact. `values`
    are those on the ascending grid `replay`. Each round evaluates a finer grid between the
    neighbours of the best point, until its spacing is at most `tolerance`.
    """
    best = int(values.argmin())
    value, ratio = values[best], replay[best]
    width = np.diff(replay).max(initial=0.0)
    while len(replay) > 1 and width > tolerance and rounds and math.isfinite(value):
        replay = np.linspace(max(ratio - width, replay[0]), min(ratio + width, replay[-1]), 17)
        width, rounds, found = replay[1] - replay[0], rounds - 1, function(replay, value)
        if found.min() < value:
            value, ratio = found.min(), replay[found.argmin()]
    return float(value), float(ratio)


# -- laws without a closed form -------------------------------------------------------------------


def smallest_budgets(problem: Problem, replay: Floats) -> Floats:
    """Smallest budget per replay ratio, log ATPP, where it is within a cell of the smallest of all.

    Infinite where there is none, or where it is larger.
    """
    at_first, possible = _possible(problem, replay)
    found = np.where(at_first >= problem.rank, -math.inf, math.inf)
    cells = np.flatnonzero((possible >= problem.rank).any(0))
    if found.min() == -math.inf:
        return found
    last = len(NODES)
    for cell in map(int, cells):
        if cell > last:
            break
        rows = np.flatnonzero((possible[:, cell] >= problem.rank) & (found == math.inf))
        if not len(rows):
            continue
        low, high = NODES[cell], NODES[cell + 1]
        found[rows] = budgets_between(problem, replay[rows], low, high)
        if found.min() < math.inf and last == len(NODES):
            last = cell + 1
    return found


def budgets_between(problem: Problem, replay: Floats, low: float, high: float) -> Floats:
    """Smallest budget per replay ratio up to `high`, sought from `low` on; shape (replays,).

    Where a ratio is feasible at `low`, smaller budgets are sought as well. Infinite where no
    budget up to `high` is feasible.
    """
    step = (high - low) / CELL_PARTS
    nodes = np.linspace(low - step, high + step, CELL_PARTS + 3)
    sets = (intersection(sets) for _, sets in problem.chunks(replay, nodes))
    found = np.concatenate([each.smallest(problem.rank) for each in sets])
    below = np.flatnonzero(found == -math.inf)
    if len(below) and low > NODES[0]:
        found[below] = budgets_between(problem, replay[below], low - 3 * (high - low), low)
    return np.where(found > high + step, math.inf, found)


def most_at_nodes(problem: Problem, replay: Floats, cap: float) -> Ints:
    """Most draws that meet all limits at one of `NODES` up to a cap, or at the cap; (replays,)."""
    nodes, found = cap >= NODES, []
    for ratios in problem.portions(replay):
        excess = [bound.excess_at_nodes(ratios)[nodes] for bound in problem.bounds]
        most = np.all([each <= 0 for each in excess], 0).sum(-1).max(0)
        if cap < NODES[-1]:
            most = np.maximum(most, problem.meets(ratios, cap).all(0).sum(-1))
        found.append(most)
    return np.concatenate(found)


def possible_alone(problem: Problem, replay: Floats) -> Ints:
    """Bound on the number of draws for which each limit can hold at one budget, (limits,)."""
    return np.array(
        [
            max(_may_hold(bound.excess_at_nodes(r)).sum(-1).max() for r in problem.portions(replay))
            for bound in problem.bounds
        ]
    )


def _possible(problem: Problem, replay: Floats) -> tuple[Ints, Ints]:
    """Numbers of draws that meet all limits at the first node, and that may within each cell.

    Of shape (replays,) and (replays, cells).
    """
    first, within = [], []
    for ratios in problem.portions(replay):
        excess = [bound.excess_at_nodes(ratios) for bound in problem.bounds]
        first.append(np.all([each[0] <= 0 for each in excess], 0).sum(-1))
        within.append(np.all([_may_hold(each) for each in excess], 0).sum(-1).T)
    return np.concatenate(first), np.concatenate(within)


def _may_hold(excess: Floats) -> Bools:
    """Whether a limit may hold within each cell; shapes (nodes, ...) and (cells, ...)."""
    holds = excess <= 0
    found = holds[:-1] | holds[1:]
    node, *at = turning_points(excess)
    found[(node - 1, *at)] = True
    found[(node, *at)] = True
    return found
