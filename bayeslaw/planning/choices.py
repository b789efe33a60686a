"""Choices of a budget and a replay ratio: probabilities, expectations, and Monte Carlo error."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Bools, Floats
from bayeslaw.common.errors import BayeslawError, unknown
from bayeslaw.common.formatting import count, digits
from bayeslaw.common.shown import Format, Showing, Shown, Table
from bayeslaw.planning.grid import first, search
from bayeslaw.planning.problem import BUDGETS, Problem, likeliest, refined, smallest

REPLICATES = 100
"""Number of bootstrap replicates."""
NEAR = 40
"""Budgets around a plan at which its replicates are sought, spread evenly and by draws."""
SPAN = 5.0
"""E-folds of ATPP below and above a choice in which `ranges_around` searches."""


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


_NONE: dict[str, Any] = dict.fromkeys(("replay", "p_target", "p_forgetting", "p_both"), math.nan)
INFEASIBLE = Choice(atpp=math.inf, tokens=math.inf, flops=math.inf, **_NONE)
"""The choice where no budget is feasible."""


def choice_at(problem: Problem, budget: float, ratio: float, most: float = math.inf) -> Choice:
    """The choice of a budget in log ATPP and a replay ratio; `INFEASIBLE` if it is infinite.

    Tokens are rounded up to whole ones, and are at most `most`.
    """
    if budget > BUDGETS[-1]:
        return INFEASIBLE
    params, masks = problem.params, problem.masks
    tokens = min(float(math.ceil(params * math.exp(budget) * (1 + 1e-12))), most)
    at = [math.log(tokens / params) if tokens else -math.inf]
    holds = np.array(problem.excesses(at, [ratio]))[:, 0, 0] <= 0
    choice = Choice(
        atpp=tokens / params,
        replay=ratio,
        tokens=tokens,
        flops=6 * params * tokens,
        p_target=float(holds[masks["target"]].all(0).mean()),
        p_forgetting=float(holds[masks["forgetting"]].all(0).mean()),
        p_both=float(holds.all(0).mean()),
        p_targets=tuple(holds[masks["target"]].mean(1).tolist()),
        p_sources=tuple(holds[masks["forgetting"]].mean(1).tolist()),
    )
    if not tokens:  # most laws have no finite loss at D = 0
        return choice
    means = [float(limit.value(at, [ratio]).mean()) for limit in problem.limits]
    losses, rises = means[: len(problem.targets)], means[len(problem.targets) :]
    return replace(choice, losses=(*losses,), forgetting=rises[0], forgettings=(*rises,))


def cheapest(problem: Problem, ratios: Floats, confidences: Sequence[float] = ()) -> list[Choice]:
    """The smallest feasible budget of each confidence, or `INFEASIBLE`; see `smallest`."""
    return [choice_at(problem, *found) for found in smallest(problem, ratios, confidences)]


def probabilities(problem: Problem, atpp: Floats, ratios: Floats, limit: str) -> Floats:
    """Probability that limits hold, shape (budgets, replays); see `Plan.surface`."""
    if limit not in problem.masks:
        raise BayeslawError(unknown("limit", limit, problem.masks))
    with np.errstate(divide="ignore"):
        return problem.only(limit).held(np.log(atpp), ratios) / problem.draws


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
        rows.append({**labels, "held": held} | vars(*cheapest(problem, ratios)))
    return pd.DataFrame(rows)


def least_expected_loss(problem: Problem, budget: float, ratios: Floats) -> tuple[float, float]:
    """Least expected target loss at a budget in log ATPP, and its replay ratio.

    With several targets, the mean of their losses. Only replay ratios are considered at which the
    forgetting limit holds with the problem's confidence; without any, the loss is infinite.
    """
    at, sources = np.array([budget]), problem.only("forgetting")

    def worth(replay: Floats) -> tuple[Floats, Floats]:
        losses = [target.value(at, replay)[0].mean(-1) for target in problem.targets]
        allowed = sources.held(at, replay)[0] >= problem.rank
        value = np.where(allowed, np.mean(losses, axis=0), np.inf)
        return value, value

    loss, (ratio,) = search(worth, [ratios], [(ratios[0], ratios[-1])], [2e-6])
    return loss, ratio


def ranges_around(
    problem: Problem, budget: float, ratio: float, ratios: Floats
) -> dict[str, tuple[float, float]]:
    """Least and greatest ATPP at a ratio, and ratio at a budget, that meet all limits.

    Budgets are searched within five e-folds of the given one. NaN where none meets them with the
    confidence; a gap in between is not seen.
    """

    def ends(axis: int, nodes: Floats) -> Floats:
        at = [np.array([budget]), np.array([ratio])]

        def holds(points: Floats) -> Bools:
            at[axis] = points[:, 0]
            return np.asarray(problem.held(*at).reshape(-1, 1) >= problem.rank)

        found = np.concatenate([first(holds, n[:, None], 1e-9) for n in (nodes, nodes[::-1])])
        return np.where(found < np.inf, found, np.nan)

    low, high = np.exp(ends(0, budget + np.linspace(-SPAN, SPAN, 8 * int(SPAN) + 1)))
    least, most = ends(1, ratios)
    return {"atpp": (float(low), float(high)), "replay": (float(least), float(most))}


def stopping_budget(problem: Problem, ratio: float, nats: float, tokens: float) -> float:
    """Log ATPP from which further tokens lower the targets' expected loss by less than `nats`.

    Searched from 1e-3 to 1e6 ATPP; infinite if they lower it by more even there.
    """

    def worthwhile(budgets: Floats) -> Bools:
        now = budgets[:, 0]
        after = np.log(np.exp(now) + tokens / problem.params)
        losses = [
            np.mean([t.value(u, [ratio]).mean((1, 2)) for t in problem.targets], axis=0)
            for u in (now, after)
        ]
        return np.asarray(losses[0] - losses[1] >= nats)[:, None]

    nodes = np.linspace(math.log(1e6), math.log(1e-3), 84)
    found = float(first(worthwhile, nodes[:, None])[0])
    return {nodes[0]: math.inf, math.inf: float(nodes[-1])}.get(found, found)


# -- Monte Carlo error ----------------------------------------------------------------------------


def monte_carlo(
    problem: Problem, ratios: Floats, plan: Choice, block: int, rng: np.random.Generator
) -> tuple[dict[str, Any], float]:
    """`Plan.error`, by the circular block bootstrap over draws [1]_, and `Plan.held_out`.

    Draws are autocorrelated over about the length of a `block`. Replicates are plans on a grid
    around the plan, at whose points the losses are evaluated once. It reaches as far as plans move
    whose rank moves by four standard errors, of a half of the draws.

    References
    ----------
    .. [1] D. N. Politis and J. P. Romano (1992). A circular block-resampling procedure for
       stationary data. In Exploring the Limits of Bootstrap, 263-270. Wiley.
    """
    draws, rank = problem.draws, problem.rank
    if draws == 1:
        return {}, math.nan
    budgets, near, parts = _neighbourhood(problem, ratios, plan, block)
    starts = rng.integers(draws, size=(REPLICATES, math.ceil(draws / block), 1))
    index = ((starts + np.arange(block)) % draws).reshape(REPLICATES, -1)[:, :draws]
    weights = np.stack([np.bincount(i, minlength=draws) for i in index], -1).astype(np.float32)
    held = problem.reduced(lambda worst: (worst <= 0).astype(np.float32) @ weights, budgets, near)
    per_ratio = _reached(held, rank, budgets, parts)
    budget, where = per_ratio.min(0), near[per_ratio.argmin(0)]
    atpp, finite = np.where(budget > BUDGETS[0], np.exp(budget), 0.0), budget < math.inf
    spread = [float(np.std(v[finite])) if finite.any() else math.nan for v in (atpp, where)]
    low, high = np.quantile(atpp, (0.05, 0.95), method="nearest")
    error = {
        "atpp": spread[0],
        "replay": spread[1],
        "atpp_90": (float(low), float(high)),
        "infeasible": float(1 - finite.mean()),
        "replicates": REPLICATES,
        "block": block,
    }
    return error, split_half_probability(problem, budgets, near)


def _neighbourhood(
    problem: Problem, ratios: Floats, plan: Choice, block: int
) -> tuple[Floats, Floats, float]:
    """Budgets and ratios of `monte_carlo`, and how many draws need a budget between two of them."""
    draws, rank = problem.draws, problem.rank
    error = 4 * math.sqrt(2 * rank * (1 - rank / draws) * block)
    needed = np.sort(problem.needed(plan.replay, 1e-6))
    finite = int((needed < np.inf).sum())
    low, high = max(0, math.floor(rank - 1 - error)), min(draws, math.ceil(rank + error)) - 1
    ranks = np.unique(np.linspace(low, min(high, finite - 1), NEAR).round().astype(int))
    least, most = needed[ranks[[0, -1]]]
    # At other ratios a replicate may need less, or, where it is hardly feasible, far more.
    below = np.linspace(least - (most - least) / 4 - 1e-3, least, 5)
    beyond = BUDGETS[most < BUDGETS] if high >= finite else most + (below - least)[::-1] * -1
    even = np.linspace(least, most, NEAR)
    budgets = np.unique(np.concatenate([below, needed[ranks], even, beyond]))
    parts = (ranks[-1] - ranks[0]) / max(len(ranks) - 1, 1)
    if len(ratios) == 1:
        return budgets, ratios, parts
    also = ratios[problem.held(np.array([most]), ratios)[0] >= rank]
    step = np.diff(ratios).max()
    ends = min([plan.replay, *also]) - step, max([plan.replay, *also]) + step
    near = np.clip(np.linspace(*ends, int(np.clip(40_000 / draws, 9, 33))), ratios[0], ratios[-1])
    return budgets, np.union1d(near, plan.replay), parts


def _reached(held: Floats, rank: int, budgets: Floats, parts: float) -> Floats:
    """The budget at which counts of shape (budgets, ...) first reach a rank.

    It is one of the budgets if each is that of a draw, otherwise it may lie between two of them.
    """
    node = (held >= rank).argmax(0)
    after = np.take_along_axis(held, node[None], 0)[0]
    before = np.take_along_axis(held, np.maximum(node - 1, 0)[None], 0)[0]
    low = budgets[np.maximum(node - 1, 0)]
    with np.errstate(invalid="ignore", divide="ignore"):
        share = (rank - before) / (after - before) if parts > 1 else np.ones(node.shape)
    found = low + np.where(node > 0, share, 1.0) * (budgets[node] - low)
    return np.where(after >= rank, found, np.inf)


def split_half_probability(problem: Problem, budgets: Floats, near: Floats) -> float:
    """P(both) on half of the draws of a plan made on the other half; mean of both directions.

    P(both) of a plan on the draws that it was made on is optimistic; this one is not. A half
    without a plan does not count; NaN if neither has one.
    """
    index, held = np.arange(problem.draws), []
    halves = [problem.take(half) for half in np.split(index, [problem.draws // 2])]
    for one, other in (halves, halves[::-1]):
        budget, ratio = refined(one, [budgets[::5], near], near)
        if budget < math.inf:
            held.append(other.held(np.array([budget]), np.array([ratio]))[0, 0] / other.draws)
    return float(np.mean(held)) if held else math.nan
