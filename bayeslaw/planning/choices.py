"""Choices of a budget and a replay ratio: probabilities, expectations, and Monte Carlo error."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.common.errors import BayeslawError, unknown
from bayeslaw.common.formatting import count, digits
from bayeslaw.common.shown import Format, Showing, Shown, Table
from bayeslaw.planning.chance_constraints import Problem
from bayeslaw.planning.intervals import MAX_LOG_ATPP, Intervals, intersection
from bayeslaw.planning.limits import rank_of
from bayeslaw.planning.loss_curves import NODES
from bayeslaw.planning.replay_search import possible_alone, smallest_budget

REPLICATES = 100
"""Number of bootstrap replicates."""
MOST_RATIOS = 13
"""Most replay ratios that a replicate searches where budgets have a closed form."""
BESIDE = np.array([-0.5, -0.2, -0.1, 0.1, 0.2, 0.5])
"""Ratios searched beside the plan's where they have none, in steps of the grid."""
NODE_REACH, NODE_STEP = 1.0, 0.4
"""Budgets around the plan's that a replicate may need, and the distance of brackets, e-folds."""


SHOWN = {"atpp": "ATPP", "replay": "replay", "tokens": "tokens", "flops": "FLOPs"}
SHOWN |= {"p_target": "P(target)", "p_forgetting": "P(forgetting)", "p_both": "P(both)"}
SHOWN |= {"held": "P(both) of this plan"}
"""Heads of the columns of a choice."""


@dataclass(frozen=True, kw_only=True)
class Choice(Showing):
    """A budget and replay ratio, with the probabilities that they meet the limits.

    Probabilities and expectations are over the posterior draws.

    Parameters
    ----------
    atpp, tokens, flops : float
        Adaptation tokens per parameter D/N, tokens D, and 6 N D; infinite if no budget is feasible.
    replay : float
        Replay ratio.
    p_target, p_forgetting, p_both : float
        Probability that all target limits hold, that all forgetting limits hold, and that all hold.
    p_targets, p_sources : tuple of float
        Probability that the limit of each target, and of each source, holds.
    losses : tuple of float
        Expected loss of each target, nats per token.
    forgetting : float
        Expected rise of the (first) source loss over its baseline: a fraction of the baseline or
        nats per token, as its limit is.
    forgettings : tuple of float
        The same of each source.

    Examples
    --------
    >>> choice = Choice(atpp=20.0, tokens=2e10, flops=1.2e20, replay=0.3,
    ...                 p_target=0.95, p_forgetting=0.96, p_both=0.92)
    >>> round(choice.p_failure, 2)
    0.08
    """

    atpp: float
    replay: float
    tokens: float
    flops: float
    p_target: float
    p_forgetting: float
    p_both: float
    p_targets: tuple[float, ...] = ()
    p_sources: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()
    forgetting: float = math.nan
    forgettings: tuple[float, ...] = ()

    @property
    def budget(self) -> float:
        """Log ATPP; minus infinity for a budget of zero tokens."""
        return math.log(self.atpp) if self.atpp else -math.inf

    @property
    def p_failure(self) -> float:
        """Probability that at least one limit does not hold."""
        return 1 - self.p_both

    def shown(self) -> Shown:
        """The budget, and the probabilities that it meets the limits."""
        return Shown("Choice", [choice_table({"choice": self})], fields(self))


def choice_table(choices: "Mapping[str, Choice | None]", title: str = "") -> Table:
    """A row for each choice that is not None: its budget, and the probabilities of the limits."""
    named = {name: choice for name, choice in choices.items() if choice is not None}
    rows = [
        {name: getattr(choice, name) for name in SHOWN if name != "held"}
        for choice in named.values()
    ]
    return budget_table(pd.DataFrame(rows, list(named)), title)


def budget_table(frame: pd.DataFrame, title: str = "") -> Table:
    """A table of budgets, with those of their columns that are in `SHOWN`."""
    feasible = frame["atpp"].map(math.isfinite)
    cells = {"atpp": digits, "replay": "{:.1f} %".format, "tokens": count, "flops": "{:.3g}".format}
    found = frame[[name for name in SHOWN if name in frame]].astype(object)
    for name, form in cells.items():
        values = 100 * frame[name] if name == "replay" else frame[name]
        found[name] = [form(v) if ok else "" for v, ok in zip(values, feasible, strict=True)]
    found.loc[~feasible, "atpp"] = "infeasible"
    formats: dict[str, Format] = {head: ".3f" for head in SHOWN.values() if head.startswith("P(")}
    return Table(found.rename(columns=SHOWN), title, formats, ("tokens",))


INFEASIBLE = Choice(
    atpp=math.inf,
    replay=math.nan,
    tokens=math.inf,
    flops=math.inf,
    p_target=math.nan,
    p_forgetting=math.nan,
    p_both=math.nan,
)
"""The choice where no budget is feasible."""


def cheapest(problem: Problem, ratios: Floats) -> Choice:
    """The smallest feasible budget, refined over a grid of replay ratios, or `INFEASIBLE`."""
    return choice_at(problem, *smallest_budget(problem, ratios)[:2])


def choice_at(problem: Problem, budget: float, ratio: float, most: float = math.inf) -> Choice:
    """The choice of a budget in log ATPP and a replay ratio; `INFEASIBLE` if it is infinite.

    Tokens are rounded up to whole ones, and are at most `most`.
    """
    if budget > MAX_LOG_ATPP:
        return INFEASIBLE
    params = problem.params
    tokens = min(float(math.ceil(params * math.exp(budget) * (1 + 1e-12))), most)
    at = math.log(tokens / params) if tokens else -math.inf
    if tokens:
        holds = problem.meets([ratio], at)[:, 0]
    else:  # most laws have no finite loss at D = 0
        holds = np.stack([each.contains(at)[0] for each in problem.feasible_sets([ratio])])
    choice = Choice(
        atpp=tokens / params,
        replay=ratio,
        tokens=tokens,
        flops=6 * params * tokens,
        p_target=float(holds[problem.part["target"]].all(0).mean()),
        p_forgetting=float(holds[problem.part["forgetting"]].all(0).mean()),
        p_both=float(holds.all(0).mean()),
        p_targets=tuple(float(p) for p in holds[problem.part["target"]].mean(1)),
        p_sources=tuple(float(p) for p in holds[problem.part["forgetting"]].mean(1)),
    )
    if not tokens:
        return choice
    return replace(
        choice,
        losses=tuple(float(each.value([ratio], at).mean()) for each in problem.targets),
        forgetting=float(problem.source.value([ratio], at).mean()),
        forgettings=tuple(float(each.value([ratio], at).mean()) for each in problem.sources),
    )


def probabilities(problem: Problem, atpp: Floats, ratios: Floats, limit: str) -> Floats:
    """Probability that limits hold, shape (budgets, replays); see `Plan.surface`."""
    if limit not in problem.part:
        raise BayeslawError(unknown("limit", limit, problem.part))
    part = problem.part[limit]
    with np.errstate(divide="ignore"):
        budgets = np.log(atpp)
    if problem.closed_form:
        found = [
            intersection(list(compress(sets, part))).fraction(budgets)
            for _, sets in problem.chunks(ratios)
        ]
    else:
        found = [
            np.array([problem.meets(some, u)[part].all(0).mean(-1) for u in budgets])
            for some in problem.portions(ratios)
        ]
    return np.concatenate(found, 1)


def binding_limits(problem: Problem, ratios: Floats) -> str:
    """Which limits make a problem infeasible, as text.

    They are the limits that no budget meets with the confidence, or all of them together if each
    can be met alone.
    """
    if problem.closed_form:
        every = [[s.most_common()[0].max() for s in sets] for _, sets in problem.chunks(ratios)]
        best: Ints = np.array(every, int).max(0)
    else:
        best = possible_alone(problem, ratios)
    failing = [name for name, n in zip(problem.names, best, strict=True) if n < problem.rank]
    alone = (
        f"P({name}) up to {n / problem.draws:.3g}"
        for name, n in zip(problem.names, best, strict=True)
    )
    return f"{' and '.join(failing) or 'the limits together'}; alone, {', '.join(alone)}"


def fields(choice: Choice) -> dict[str, Any]:
    """The fields of a choice by name, and `p_failure`."""
    return vars(choice) | {"p_failure": choice.p_failure}


def replanned(
    old: Choice, problems: Iterable[tuple[Mapping[str, object], Problem]], ratios: Floats
) -> pd.DataFrame:
    """Labels, P(both) of the old choice, and the plan of each problem."""
    rows = []
    for labels, problem in problems:
        held = math.nan
        if old.atpp < math.inf:
            held = choice_at(problem, old.budget, old.replay, old.tokens).p_both
        rows.append({**labels, "held": held} | vars(cheapest(problem, ratios)))
    return pd.DataFrame(rows)


# -- Monte Carlo error ----------------------------------------------------------------------------


def near_optimal(
    problem: Problem, ratios: Floats, per_ratio: Floats, replay: float, block: int
) -> tuple[Floats, Intervals]:
    """Replay ratios that may become optimal when the draws are resampled, and their budgets.

    They are the plan's ratio `replay` and some, evenly spread, of those on the grid `ratios` whose
    smallest budget `per_ratio` exceeds the plan's by at most a margin: four standard errors of the
    rank, where `block` draws count as one independent draw. Without closed-form budgets they are
    some beside the plan's, and the budgets are only those within `NODE_REACH` of the margin's ends.
    """
    draws, rank = problem.draws, problem.rank
    error = 4 * math.sqrt(rank * (1 - rank / draws) * block)
    best = intersection(problem.feasible_sets([replay]))
    least, most = (best.smallest(n)[0] for n in (rank, min(draws, math.ceil(rank + error))))
    margin = most - least if most > least else 0.0
    if problem.closed_form:
        near = ratios[per_ratio <= per_ratio.min() + margin]
        near = near[np.linspace(0, len(near) - 1, min(MOST_RATIOS, len(near))).astype(int)]
    else:
        near = replay + BESIDE * np.diff(ratios).max(initial=0.0)
        near = np.clip(near, ratios[0], ratios[-1])
    near, nodes = np.union1d(near, replay), NODES
    if not problem.closed_form and abs(least) < math.inf and most < math.inf:
        nodes = np.arange(least - margin - NODE_REACH, most + NODE_REACH + NODE_STEP, NODE_STEP)
    return near, intersection(problem.feasible_sets(near, nodes))


def split_half_probability(problem: Problem, feasible: Intervals) -> float:
    """P(both) on half of the draws of a plan made on the other half; mean of both directions.

    P(both) of a plan on the draws that it was made on is optimistic; this one is not. A half
    without a plan does not count; NaN if neither has one.
    """
    half, held = problem.draws // 2, []
    if not half:
        return math.nan
    index = np.arange(problem.draws)
    for first, second in ((index[:half], index[half:]), (index[half:], index[:half])):
        budgets = feasible.take(first).smallest(rank_of(problem.confidence, len(first)))
        best = int(budgets.argmin())
        if budgets[best] < math.inf:
            held.append(feasible.take(second).contains(budgets[best])[best].mean())
    return float(np.mean(held)) if held else math.nan


def bootstrap(
    problem: Problem, near: Floats, feasible: Intervals, rng: np.random.Generator, block: int
) -> dict[str, Any]:
    """`Plan.error`, by the circular block bootstrap over draws [1]_.

    Each replicate searches the replay ratios `near`, at which the budgets `feasible` meet all
    limits. Draws are autocorrelated over about the length of a block.

    References
    ----------
    .. [1] D. N. Politis and J. P. Romano (1992). A circular block-resampling procedure for
       stationary data. In Exploring the Limits of Bootstrap, 263-270. Wiley.
    """
    draws = problem.draws
    if draws == 1:
        return {}
    budget, where = np.empty(REPLICATES), np.empty(REPLICATES)
    for i in range(REPLICATES):
        starts = rng.integers(draws, size=math.ceil(draws / block))
        index = ((starts[:, None] + np.arange(block)) % draws).ravel()[:draws]
        per_ratio = feasible.take(index).smallest(problem.rank)
        budget[i], where[i] = per_ratio.min(), near[per_ratio.argmin()]
    atpp, finite = np.exp(budget), budget < math.inf
    spread = [float(np.std(v[finite])) if finite.any() else math.nan for v in (atpp, where)]
    low, high = np.quantile(atpp, (0.05, 0.95), method="nearest")
    return {
        "atpp": spread[0],
        "replay": spread[1],
        "atpp_90": (float(low), float(high)),
        "infeasible": float(1 - finite.mean()),
        "replicates": REPLICATES,
        "block": block,
    }
