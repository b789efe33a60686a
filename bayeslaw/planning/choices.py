"""Choices of a budget and a replay ratio: their probabilities, and how sure the best one is."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bayeslaw.planning.chance import Problem, meet
from bayeslaw.planning.intervals import FAR, Floats

REPLICATES = 100
"""Of the bootstrap."""
CONTENDERS = 13
"""Replay ratios that plans of other draws are searched from."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A budget and replay ratio, with the probabilities that they meet the limits.

    Parameters
    ----------
    atpp, tokens, flops : float
        Adaptation tokens per parameter D/N, tokens D, and 6 N D; infinite where no budget serves.
    replay : float
    p_target, p_forgetting, p_both : float
        Share of the draws that meet the targets' limits (all of them), the source's, and all.
    p_targets : tuple of float
        Share of the draws that meet each target's limit.
    losses : tuple of float
        Expected loss of each target, nats per token.
    forgetting : float
        Expected rise of the source loss over its baseline: a share of the baseline or nats per
        token, as its limit is.
    cvar : float
        Conditional value at risk of the excess: mean of the rise less its limit in the worst
        ``1 - confidence`` of the draws; negative where even those keep the limit on average.
    """

    atpp: float
    replay: float
    tokens: float
    flops: float
    p_target: float
    p_forgetting: float
    p_both: float
    p_targets: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()
    forgetting: float = math.nan
    cvar: float = math.nan

    @property
    def budget(self) -> float:
        """Log ATPP, minus infinity for no token."""
        return math.log(self.atpp) if self.atpp else -math.inf

    @property
    def p_failure(self) -> float:
        """Probability that a limit is missed."""
        return 1 - self.p_both


NOWHERE = Choice(
    atpp=math.inf,
    replay=math.nan,
    tokens=math.inf,
    flops=math.inf,
    p_target=math.nan,
    p_forgetting=math.nan,
    p_both=math.nan,
)


def cheapest(problem: Problem, ratios: Floats) -> Choice:
    """The smallest budget that meets the limits, refined over replay; `NOWHERE` if none."""
    budget, ratio, _ = problem.smallest(ratios)
    return choose(problem, budget, ratio)


def choose(problem: Problem, budget: float, ratio: float, most: float = math.inf) -> Choice:
    """What a budget in log ATPP brings, rounded up to whole tokens but not above `most`.

    An infinite budget is `NOWHERE`.
    """
    if budget > FAR:
        return NOWHERE
    params = problem.params
    tokens = min(float(math.ceil(params * math.exp(budget) * (1 + 1e-12))), most)
    at = math.log(tokens / params) if tokens else -math.inf
    held = np.stack([each.contains(at)[0] for each in problem.sets([ratio])])
    choice = Choice(
        atpp=tokens / params,
        replay=ratio,
        tokens=tokens,
        flops=6 * params * tokens,
        p_target=float(held[:-1].all(0).mean()),
        p_forgetting=float(held[-1].mean()),
        p_both=float(held.all(0).mean()),
        p_targets=tuple(float(share) for share in held[:-1].mean(1)),
    )
    if not tokens:  # most laws have no value there
        return choice
    return replace(
        choice,
        losses=tuple(float(loss.mean()) for loss in problem.losses([ratio], at)),
        forgetting=float(problem.rise([ratio], at).mean()),
        cvar=float(problem.cvar([ratio], at)[0]),
    )


def binding(problem: Problem, ratios: Floats) -> str:
    """What prevents a plan: a limit that cannot be met alone, or all of them together."""
    best = np.max(
        [[each.most()[0].max() for each in sets] for _, sets in problem.pieces(ratios)], axis=0
    )
    failing = [name for name, n in zip(problem.names, best, strict=True) if n < problem.rank]
    if problem.max_cvar < math.inf:
        budget, _, _ = replace(problem, max_cvar=math.inf).smallest(ratios)
        failing = ["max_cvar"] if budget < math.inf else failing
    shares = (
        f"P({name}) up to {n / problem.draws:.3g}"
        for name, n in zip(problem.names, best, strict=True)
    )
    return f"{' and '.join(failing) or 'the limits together'}; alone, {', '.join(shares)}"


def contenders(
    problem: Problem, ratios: Floats, per_ratio: Floats, replay: float, block: int
) -> Floats:
    """Ratios that other draws could make the best: within four standard errors of the rank.

    At most `CONTENDERS` of them, evenly spread, and the best one.
    """
    draws, rank = problem.draws, problem.rank
    swing = 4 * math.sqrt(rank * (1 - rank / draws) * block)
    best = meet(problem.sets([replay]))
    least, most = (best.first(n)[0] for n in (rank, min(draws, math.ceil(rank + swing))))
    margin = most - least if most > least else 0.0
    near = ratios[per_ratio <= per_ratio.min() + margin]
    spread = np.linspace(0, len(near) - 1, min(CONTENDERS, len(near))).astype(int)
    return np.union1d(near[spread], replay)


def held_out(problem: Problem, near: Floats) -> float:
    """P(both) on half of the draws of a plan made on the other half, mean of both ways round."""
    half, kept = problem.draws // 2, []
    if not half:
        return math.nan
    index = np.arange(problem.draws)
    for fit, check in ((index[:half], index[half:]), (index[half:], index[:half])):
        budget, ratio, _ = problem.take(fit).smallest(near)
        kept.append(choose(problem.take(check), budget, ratio).p_both)
    return float(np.mean(kept))


def bootstrap(
    problem: Problem, near: Floats, rng: np.random.Generator, block: int
) -> dict[str, Any]:
    """Monte Carlo error of a plan: draws resampled in blocks, replay among the given ratios."""
    draws = problem.draws
    if draws == 1:
        return {}
    joint = meet(problem.sets(near))
    budget, where = np.empty(REPLICATES), np.empty(REPLICATES)
    for i in range(REPLICATES):
        starts = rng.integers(draws, size=math.ceil(draws / block))
        index = ((starts[:, None] + np.arange(block)) % draws).ravel()[:draws]
        drawn = problem if problem.max_cvar == math.inf else problem.take(index)
        first = drawn.first(joint.take(index), near)
        budget[i], where[i] = first.min(), near[first.argmin()]
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
