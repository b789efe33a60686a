"""Choices of a budget and a replay ratio: their probabilities, and how sure the best one is."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bayeslaw.planning.chance import Problem, meet
from bayeslaw.planning.intervals import Floats

REPLICATES = 100
"""Of the bootstrap."""


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
    forgetting, cvar : float
        Expected rise of the source loss over its baseline, and expected rise in the worst
        ``1 - confidence`` of the draws: a share of the baseline or nats per token, as the limit is.
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
    return choose(problem, budget, ratio) if budget < math.inf else NOWHERE


def choose(problem: Problem, budget: float, ratio: float, most: float = math.inf) -> Choice:
    """What a budget in log ATPP brings, rounded up to whole tokens but not above `most`."""
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
    if not tokens:  # the laws have no value there
        return choice
    rise = problem.rise([ratio], at)[0]
    return replace(
        choice,
        losses=tuple(float(loss.mean()) for loss in problem.losses([ratio], at)),
        forgetting=float(rise.mean()),
        cvar=float(np.sort(rise)[min(problem.rank, problem.draws - 1) :].mean()),
    )


def binding(problem: Problem, ratios: Floats) -> str:
    """What prevents a plan: a limit that cannot be met alone, or all of them together."""
    best = np.max(
        [[each.most()[0].max() for each in sets] for sets in problem.pieces(ratios)], axis=0
    )
    failing = [name for name, n in zip(problem.names, best, strict=True) if n < problem.rank]
    shares = (
        f"P({name}) up to {n / problem.draws:.3g}"
        for name, n in zip(problem.names, best, strict=True)
    )
    return f"{' and '.join(failing) or 'the limits together'}; alone, {', '.join(shares)}"


def contenders(
    problem: Problem, ratios: Floats, per_ratio: Floats, replay: float, block: int
) -> Floats:
    """Ratios that other draws could make the best: within four standard errors of the rank."""
    draws, rank = problem.draws, problem.rank
    swing = 4 * math.sqrt(rank * (1 - rank / draws) * block)
    (best,) = problem.joint(np.array([replay]))
    reach = best.first(min(draws, math.ceil(rank + swing)))[0]
    return np.asarray(ratios[per_ratio <= max(reach, per_ratio.min())])


def held_out(problem: Problem, near: Floats) -> float:
    """P(both) on half of the draws of a plan made on the other half, mean of both ways round."""
    half, kept = problem.draws // 2, []
    if not half:
        return math.nan
    index = np.arange(problem.draws)
    for fit, check in ((index[:half], index[half:]), (index[half:], index[:half])):
        budget, ratio, _ = problem.take(fit).smallest(near)
        if budget == math.inf:
            return math.nan
        kept.append(choose(problem.take(check), budget, ratio).p_both)
    return float(np.mean(kept))


def bootstrap(
    problem: Problem,
    near: Floats,
    replay: float,
    rng: np.random.Generator,
    block: int,
    most: int = 13,
) -> dict[str, Any]:
    """Monte Carlo error of a plan: draws resampled in blocks; at most `most` of the ratios."""
    draws, rank = problem.draws, problem.rank
    if draws == 1:
        return {}
    near = np.append(near[np.linspace(0, len(near) - 1, min(most, len(near))).astype(int)], replay)
    joint = meet(problem.sets(near))
    budget, where = np.empty(REPLICATES), np.empty(REPLICATES)
    for i in range(REPLICATES):
        starts = rng.integers(draws, size=math.ceil(draws / block))
        index = ((starts[:, None] + np.arange(block)) % draws).ravel()[:draws]
        first = joint.take(index).first(rank)
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
