"""The likeliest candidate of a plan, and why no candidate is likely enough."""

import math
from dataclasses import replace

import numpy as np

from bayeslaw.common.arrays import Ints
from bayeslaw.planning.chance_constraint import Candidate, Problem, candidate_at
from bayeslaw.planning.lattice import SPACING, Lattice
from bayeslaw.planning.limits import NAMES

ZOOMS = 5
"""Finer lattices, each of half the width, around the likeliest candidate."""


def likeliest(problem: Problem, cap: float = math.inf) -> Candidate:
    """Most draws that meet all limits together at a budget up to `cap`, and where that is.

    Of equally probable budgets it is the smallest.
    """
    lattice = problem.lattice
    best = _on_lattice(problem, cap)
    under = _under_most_epochs(problem, cap)
    if under is not None and under.meeting > best.meeting:
        best = under
    if not best.meeting:
        return best
    width = 2 * SPACING
    step = lattice.ratio_step
    for _ in range(ZOOMS):
        finer = problem.finer_lattice(best, width, 4 * step)
        below = finer.budgets <= cap
        counts = problem.meeting_on(finer)[below]
        if below.any() and counts.max() > best.meeting:
            best = _most(finer, counts)
        width = width / 2
        step = step / 2
    return best


def _most(lattice: Lattice, counts: Ints) -> Candidate:
    """The first candidate of a lattice with the most draws."""
    i, j = np.unravel_index(counts.argmax(), counts.shape)
    return candidate_at(lattice, counts, int(i), int(j))


def _on_lattice(problem: Problem, cap: float) -> Candidate:
    """The likeliest candidate of the lattice, and of its ratios at the cap itself."""
    lattice = problem.lattice
    counts = problem.counts
    budgets = lattice.budgets
    if cap < budgets[-1]:
        # Often the likeliest choice spends all that is allowed.
        below = budgets < cap
        at_cap = problem.meeting(cap, lattice.ratios)
        counts = np.vstack([counts[below], at_cap])
        budgets = np.append(budgets[below], cap)
    return _most(replace(lattice, budgets=budgets), counts)


def _under_most_epochs(problem: Problem, cap: float) -> Candidate | None:
    """The likeliest candidate that repeats data nearly as often as the evidence goes.

    It may lie between two nodes of the lattice. None if no data repeat.
    """
    if problem.far is None or math.isinf(problem.far.most_epochs):
        return None
    lattice = problem.lattice
    greatest = min(cap, lattice.budgets[-1])
    budgets = problem.far.most_budgets(lattice.ratios).clip(max=greatest)
    counts = problem.meeting(budgets, lattice.ratios)
    k = int(counts.argmax())
    return Candidate(float(budgets[k]), float(lattice.ratios[k]), int(counts[k]))


def binding(problem: Problem) -> str:
    """Which limits make the problem infeasible: those that cannot be met alone, or all."""
    rank = problem.rank()
    most = [_most_alone(problem, k) for k in range(len(NAMES))]
    failing = []
    shares = []
    for name, meeting in zip(NAMES, most, strict=True):
        if meeting < rank:
            failing.append(name)
        shares.append(f"P({name}) up to {meeting / problem.draws:.3g}")
    binding_limits = " and ".join(failing) or "the limits together"
    words = f"{binding_limits}; alone, {', '.join(shares)}"
    for k, meeting in enumerate(most):
        if meeting < rank:
            words += _reached(problem, k)
    return words


def _most_alone(problem: Problem, k: int) -> int:
    """Most draws that meet limit `k` alone."""
    lattice = replace(problem.lattice, losses=[problem.lattice.losses[k]])
    alone = replace(problem, limits=(problem.limits[k],), lattice=lattice)
    return likeliest(alone).meeting


def _reached(problem: Problem, k: int) -> str:
    """The least value of what limit `k` is on that holds with the confidence, in words."""
    least = reachable(problem, k)
    if not math.isfinite(least):
        return ""
    what = "target loss" if NAMES[k] == "target" else "rise of the source loss"
    within = "" if problem.far is None else " within the evidence"
    reached = problem.limits[k].text(float(f"{least:.4g}"))
    return (
        f"; the lowest {what} that is reached with probability "
        f"{100 * problem.confidence:g} %{within} is {reached}"
    )


def reachable(problem: Problem, k: int) -> float:
    """Least value of what limit `k` is on that holds with the confidence, on the lattice.

    Infinite where no run is within the evidence.
    """
    lattice = problem.lattice
    rank = problem.rank()
    least = math.inf
    for budget, latent in zip(lattice.budgets, lattice.losses[k], strict=True):
        values = problem.values(k, latent)
        at_confidence = np.partition(values, rank - 1, axis=-1)[:, rank - 1]
        near = problem.within_evidence(budget, lattice.ratios)
        least = min(least, float(at_confidence[near].min(initial=math.inf)))
    return least
