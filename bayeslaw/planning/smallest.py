"""The smallest budget that meets all limits: a query on the lattice of losses, made exact.

A query finds the first budget of the lattice that is feasible, and below it, up to the budget
before, the smallest one with interpolated losses. Lattices of exact losses around that candidate,
each four times finer, correct the interpolation. So feasible windows that are narrower than the
lattice can be missed.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from bayeslaw.common.arrays import Bools, Floats, Ints
from bayeslaw.planning.chance_constraint import FINER, Candidate, Problem, candidate_at
from bayeslaw.planning.lattice import SPACING, Lattice
from bayeslaw.planning.likeliest import likeliest

EXACT_ZOOMS = 2
MOST_STEPS = 8
"""Finer lattices of a plan, for one of other queries, which are right to .1 %; and most of any."""
EXACT = 1e-10
"""E-folds to which a plan is the smallest one at its ratio; of a fixed budget, of the ratio."""
FIRST_NODES = 17
"""Points between which `first_that` divides an interval."""


class First(NamedTuple):
    """The first feasible budget of a lattice: with interpolated losses, and of its nodes."""

    interpolated: Candidate
    node: Candidate


def smallest(
    problem: Problem, confidence: float | None = None, *, exact: bool = False
) -> Candidate | None:
    """The smallest budget that meets all limits with a confidence, by default the problem's.

    At a fixed budget, its least replay ratio. `exact` finds the smallest budget to `EXACT`.
    """
    rank = problem.rank(confidence)
    if problem.fixed is not None:
        return _least_replay(problem, problem.fixed, rank)
    first = _first_feasible(problem, rank, exact=exact)
    if first is None:
        return None
    candidate, node = first
    lattice = problem.lattice
    i = int(np.searchsorted(lattice.budgets, node.budget))
    beside = lattice.budgets[max(i - 1, 0) : i + 1]
    width = float(np.diff(beside).max(initial=0.0))
    step = lattice.ratio_step
    zooms = EXACT_ZOOMS if exact else 1
    for _ in range(MOST_STEPS):
        finer = problem.finer_lattice(candidate, width, step)
        found = _first_on(problem, finer, problem.meeting_on(finer), rank)
        if found is None:
            candidate = node
        else:
            candidate, node = found
        # At an edge of the finer lattice the least budget may lie beyond it.
        lower = finer.budgets[0] == node.budget > lattice.budgets[0]
        at_edge = candidate.ratio in finer.end_ratios
        aside = at_edge and candidate.ratio not in lattice.end_ratios
        if not (lower or aside):
            zooms = zooms - 1
            width = width / FINER
            step = step / FINER**2
        if not zooms:
            break
    if exact:
        return _lowest(problem, candidate, node, width, rank)
    return candidate


def _first_feasible(problem: Problem, rank: int, *, exact: bool) -> First | None:
    """Where the search for the smallest budget starts; None if no budget is feasible."""
    first = _first_on(problem, problem.lattice, problem.counts, rank)
    below = math.inf if first is None else first.interpolated.budget
    under = _under_most_epochs(problem, rank, below, zooms=3 if exact else 1)
    if under is not None:
        return First(under, under)
    if first is None:
        # Between the nodes a candidate may be feasible even so.
        best = likeliest(problem)
        first = First(best, best)
    return first if first.node.meeting >= rank else None


def _under_most_epochs(
    problem: Problem, rank: int, below: float, zooms: int
) -> Candidate | None:
    """The smallest feasible budget that repeats data nearly as often as the evidence goes.

    That edge runs across the lattice, and budgets under it may lie between two nodes. None if
    no budget smaller than `below` is feasible there, or if no data repeat.
    """
    if problem.far is None:
        return None
    best: Candidate | None = None
    lattice = problem.lattice
    ratios = lattice.ratios
    step = lattice.ratio_step
    for _ in range(zooms):
        high = problem.far.most_budgets(ratios)
        inside = (high - SPACING < below) & (high <= lattice.budgets[-1])
        inside[inside] = problem.meeting(high[inside], ratios[inside]) >= rank
        if not inside.any():
            break
        ratios = ratios[inside]
        high = _bisected(problem, high[inside], ratios, rank)
        k = int(high.argmin())
        if high[k] < below:
            best = Candidate(float(high[k]), float(ratios[k]), rank)
            below = best.budget
        ratios = ratios[k] + step * np.linspace(-1, 1, 2 * FINER + 1)
        ratios = np.unique(np.clip(ratios, *lattice.end_ratios))
        step = step / FINER
    return best


def _bisected(problem: Problem, high: Floats, ratios: Floats, rank: int) -> Floats:
    """Smallest budgets that are feasible at some ratios, up to `SPACING` below feasible ones."""
    low = high - SPACING
    while (high - low).max() > 1e-3:
        middle = (low + high) / 2
        enough = problem.meeting(middle, ratios) >= rank
        low = np.where(enough, low, middle)
        high = np.where(enough, middle, high)
    return high


def _first_on(
    problem: Problem, lattice: Lattice, counts: Ints, rank: int
) -> First | None:
    """The first feasible budget of a lattice of losses; None if no node is feasible."""
    feasible = (counts >= rank).any(1)
    if not feasible.any():
        return None
    i = int(feasible.argmax())
    j = int(counts[i].argmax())
    node = candidate_at(lattice, counts, i, j)
    if i == 0:
        return First(node, node)
    return First(_interpolated(problem, lattice, i, node, rank), node)


def _interpolated(
    problem: Problem, lattice: Lattice, i: int, node: Candidate, rank: int
) -> Candidate:
    """The smallest feasible budget between budgets i - 1 and i, with interpolated losses.

    It is found by bisection; the `node` at budget i is feasible.
    """
    ratios = _refined(lattice.ratios)
    below = lattice.budgets[i - 1]
    above = lattice.budgets[i]
    starts = []
    ends = []
    for losses in lattice.losses:
        starts.append(_refined_losses(losses[i - 1, :, problem.selected]))
        ends.append(_refined_losses(losses[i, :, problem.selected]))
    best = node
    low = 0.0
    high = 1.0
    while high - low > 1e-3:
        share = (low + high) / 2
        budget = below + share * (above - below)
        losses_there = []
        for start, end in zip(starts, ends, strict=True):
            losses_there.append(start + share * (end - start))
        counts = problem.none_beyond(problem.count(losses_there), budget, ratios)
        enough = counts >= rank
        if not enough.any():
            low = share
            continue
        high = share
        k = int(counts.argmax())
        best = Candidate(float(budget), float(ratios[k]), int(counts[k]))
        # Ratios that need more than this budget cannot need the least.
        ratios = ratios[enough]
        starts = [losses[enough] for losses in starts]
        ends = [losses[enough] for losses in ends]
    return best


def _refined(ratios: Floats) -> Floats:
    """Ratios that divide each interval into `FINER` parts."""
    finer = np.arange(0, len(ratios) - 1 + 1e-9, 1 / FINER)
    refined: Floats = np.interp(finer, np.arange(len(ratios)), ratios)
    return refined


def _refined_losses(losses: Floats) -> Floats:
    """Losses of shape (ratios, draws), interpolated at the `_refined` ratios."""
    if len(losses) == 1:
        return losses
    shares = np.arange(FINER)[:, None] / FINER
    rises = losses[1:] - losses[:-1]
    between = losses[:-1, None] + shares * rises[:, None]
    return np.concatenate([between.reshape(-1, losses.shape[1]), losses[-1:]])


def _lowest(
    problem: Problem, candidate: Candidate, node: Candidate, width: float, rank: int
) -> Candidate:
    """The smallest budget at the ratio of a candidate; the node if none is feasible there."""
    ratio = candidate.ratio
    distances = width * np.r_[10.0 ** -np.arange(8), 0.0]
    near = candidate.budget + np.r_[-distances, distances[::-1]]

    def enough(budgets: Floats) -> Bools:
        return problem.meeting(budgets, ratio) >= rank

    least = first_that(enough, near)
    return node if least is None else Candidate(least, ratio, rank)


def _least_replay(problem: Problem, budget: float, rank: int) -> Candidate | None:
    """The least ratio that meets all limits; without any limit, that of the best target loss."""
    if all(limit.most == math.inf for limit in problem.limits):
        return _best_replay(problem, budget, rank)

    def enough(ratios: Floats) -> Bools:
        return problem.meeting(budget, ratios) >= rank

    ratio = first_that(enough, problem.lattice.ratios)
    return None if ratio is None else Candidate(budget, ratio, rank)


def _best_replay(problem: Problem, budget: float, rank: int) -> Candidate | None:
    """The ratio whose target loss, as it holds with the confidence, is the least."""
    target = problem.limits[0]
    nodes = problem.lattice.ratios
    while True:
        rows = target.domain.run.rows(budget, nodes)
        values = problem.values(0, target.domain.losses(rows))
        at_confidence = np.sort(values, axis=-1)[:, rank - 1]
        near = problem.within_evidence(budget, nodes)
        at_confidence = np.where(near, at_confidence, np.inf)
        k = int(np.argmin(at_confidence))
        step = float(np.diff(nodes).max(initial=0.0))
        if step < 1e-5:
            break
        nodes = nodes[k] + step * np.linspace(-1, 1, 2 * FINER + 1)
        nodes = np.unique(np.clip(nodes, *problem.lattice.end_ratios))
    if at_confidence[k] == np.inf:
        return None
    return Candidate(budget, float(nodes[k]), problem.draws)


def held_out(problem: Problem) -> float:
    """P(both) on half of the draws of a plan of the other half, mean of both directions."""
    # In order: of alternating draws, which are correlated, each half would know the other.
    middle = problem.draws // 2
    first = replace(problem, selected=slice(middle))
    second = replace(problem, selected=slice(middle, None))
    shares = []
    for half, rest in ((first, second), (second, first)):
        plan = smallest(half)
        if plan is not None:
            meeting = rest.meeting(plan.budget, plan.ratio)[0]
            shares.append(meeting / rest.draws)
    return float(np.mean(shares)) if shares else math.nan


def first_that(holds: Callable[[Floats], Bools], points: Floats) -> float | None:
    """The first of some points at which something holds, refined to `EXACT` towards the last.

    None if it holds at none of them.
    """
    while True:
        holding = holds(points)
        if not holding.any():
            return None
        k = int(holding.argmax())
        if k == 0 or abs(points[k] - points[k - 1]) <= EXACT:
            return float(points[k])
        points = np.linspace(points[k - 1], points[k], FIRST_NODES)
