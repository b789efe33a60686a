"""Smallest budgets of laws without a closed form: first the cell of a grid, then exactly.

A cell lies between two neighbouring budgets of `NODES`, at one replay ratio. The losses of all
draws at the nodes, computed once, bound the number of draws that can meet all limits within a cell:
those at which each limit holds at one end of the cell, or has an extremum near it that may cross.
Where this number is less than the rank, no budget of the cell is feasible. Of the other cells only
those of the smallest budgets are solved.
"""

import math

import numpy as np

from bayeslaw.common.arrays import Bools, Floats, Ints
from bayeslaw.planning.chance_constraints import Problem
from bayeslaw.planning.feasible_budgets import turning_points
from bayeslaw.planning.intervals import intersection
from bayeslaw.planning.loss_curves import NODES

PARTS = 4
"""Parts of a cell in which changes of sign are looked for."""


def smallest_budgets(problem: Problem, replay: Floats) -> Floats:
    """Smallest budget per replay ratio, where it is within a cell of the smallest of all.

    Parameters
    ----------
    problem : Problem
        Without a limit of CVaR.
    replay : array, shape (replays,)

    Returns
    -------
    array, shape (replays,)
        Log ATPP; infinite where there is none, or where it is larger.
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
    step = (high - low) / PARTS
    nodes = np.linspace(low - step, high + step, PARTS + 3)
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
        holds = np.ones(()) > 0
        for bound in problem.bounds:
            holds = holds & (bound.excess_at_nodes(ratios)[nodes] <= 0)
        most = holds.sum(-1).max(0)
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
        holds, near = (np.ones(()) > 0 for _ in range(2))
        for bound in problem.bounds:
            excess = bound.excess_at_nodes(ratios)
            holds = holds & (excess[0] <= 0)
            near = near & _may_hold(excess)
        first.append(holds.sum(-1))
        within.append(near.sum(-1).T)
    return np.concatenate(first), np.concatenate(within)


def _may_hold(excess: Floats) -> Bools:
    """Whether a limit may hold within each cell; shapes (nodes, ...) and (cells, ...)."""
    holds = excess <= 0
    found = holds[:-1] | holds[1:]
    node, *at = turning_points(excess)
    found[(node - 1, *at)] = True
    found[(node, *at)] = True
    return found
