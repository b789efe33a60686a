"""Chance constraints: search, probabilities and Monte Carlo error, given paired draws."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from bayeslaw.intervals import FAR, Floats, Intervals
from bayeslaw.thresholds import Curve, Slice, below

TOLERANCE = 2e-6
"""The replay ratio is refined to this."""
CHUNK = 1 << 17
"""Draws times replay ratios worked on at once."""
REPLICATES = 100
"""Of the bootstrap."""


@dataclass(frozen=True)
class Problem:
    """Two limits on two losses, for paired draws of both laws.

    Parameters
    ----------
    target, source : Curve
        Of as many draws each; draw i of one goes with draw i of the other.
    max_loss : float
        Limit of the target loss, nats per token.
    max_forgetting : float
        Limit of the rise of the source loss over its baseline.
    baseline : float, "asymptote" or "matched"
    relative : bool
        Whether `max_forgetting` is a share of the baseline, or nats per token.
    noise : tuple of array, shape (draws,)
        Noise of the measured target and source loss, on log loss; zeros for latent losses.
    """

    target: Curve
    source: Curve
    max_loss: float
    max_forgetting: float
    baseline: float | str
    relative: bool
    noise: tuple[Floats, Floats]

    @property
    def draws(self) -> int:
        """Number of draws."""
        return self.target.draws

    def take(self, index: Any) -> "Problem":
        """The problem for some of the draws."""
        target, source = self.target.take(index), self.source.take(index)
        return replace(
            self, target=target, source=source, noise=(self.noise[0][index], self.noise[1][index])
        )

    @cached_property
    def pure(self) -> Slice:
        """The source's law in pure replay."""
        return self.source.sliced([1.0])

    @cached_property
    def asymptote(self) -> Floats:
        """Smallest source loss that pure replay can reach, shape (draws,)."""
        return self.source.least(1.0)

    def sets(self, replay: Sequence[float] | Floats) -> tuple[Intervals, Intervals]:
        """Budgets that meet the limit on the target, and those that meet it on the source."""
        return self._sets(self.target.sliced(replay), self.source.sliced(replay))

    def joint(self, replay: Sequence[float] | Floats) -> Iterator[Intervals]:
        """Budgets that meet both limits, some replay ratios at a time."""
        target, source = self.target.sliced(replay), self.source.sliced(replay)
        step = max(1, CHUNK // self.draws)
        for start in range(0, len(replay), step):
            rows = slice(start, start + step)
            one, two = self._sets(target.rows(rows), source.rows(rows))
            yield one.meet(two)

    def _sets(self, target: Slice, source: Slice) -> tuple[Intervals, Intervals]:
        quiet = np.exp(-self.noise[0]), np.exp(-self.noise[1])
        scale = 1 + self.max_forgetting if self.relative else 1.0
        rise = 0.0 if self.relative else self.max_forgetting
        improved = below(target, self.max_loss * quiet[0])
        if self.baseline == "matched":
            kept = below(source, rise * quiet[1], self.pure, scale * quiet[1])
        else:
            base = self.asymptote if isinstance(self.baseline, str) else self.baseline
            kept = below(source, (scale * base + rise) * quiet[1])
        return improved, kept

    def smallest(self, rank: int, replay: Floats) -> tuple[float, float, Floats]:
        """Smallest budget (log ATPP) that lies in `rank` sets, its replay ratio, and per ratio.

        The best of the given ratios is refined between its neighbours.
        """

        def budgets(ratios: Floats) -> Floats:
            return np.concatenate([joint.first(rank) for joint in self.joint(ratios)])

        first = budgets(replay)
        budget, ratio = _refine(budgets, replay, first)
        return budget, ratio, first

    def likeliest(self, cap: float, replay: Floats) -> tuple[int, float, float]:
        """Most sets that share a budget up to `cap`, that budget, and its replay ratio."""

        def rarest(ratios: Floats) -> Floats:
            counts, budgets = zip(*(joint.most(cap) for joint in self.joint(ratios)), strict=True)
            # Of equal counts the smaller budget: a term below 1 in size.
            size = np.clip(np.concatenate(budgets), -FAR, FAR) / (3 * FAR)
            return np.asarray(size - np.concatenate(counts))

        _, ratio = _refine(rarest, replay, rarest(replay), rounds=2)
        (joint,) = self.joint(np.array([ratio]))
        count, budget = joint.most(cap)
        return int(count[0]), float(budget[0]), ratio


def _refine(
    values: Callable[[Floats], Floats], replay: Floats, first: Floats, rounds: int = 99
) -> tuple[float, float]:
    """Smallest value and where it is, between the neighbours of the best of the given ratios."""
    best = int(first.argmin())
    value, ratio = first[best], replay[best]
    width = np.diff(replay).max(initial=0.0)
    while len(replay) > 1 and width > TOLERANCE and rounds and math.isfinite(value):
        replay = np.linspace(max(ratio - width, replay[0]), min(ratio + width, replay[-1]), 33)
        width, rounds, found = replay[1] - replay[0], rounds - 1, values(replay)
        if found.min() < value:
            value, ratio = found.min(), replay[found.argmin()]
    return float(value), float(ratio)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A budget and replay ratio, with the probabilities that they meet the limits.

    Parameters
    ----------
    atpp, tokens, flops : float
        Adaptation tokens per parameter D/N, tokens D, and 6 N D; infinite where no budget serves.
    replay : float
    p_target, p_forgetting, p_both : float
        Share of the draws that meet each limit, and both.
    """

    atpp: float
    replay: float
    tokens: float
    flops: float
    p_target: float
    p_forgetting: float
    p_both: float

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


def rank_of(confidence: float, draws: int) -> int:
    """Fewest draws whose share is at least `confidence`; .9 of 10 is 9 whatever the rounding."""
    return max(1, math.ceil(confidence * draws - 1e-9 * draws))


def cheapest(problem: Problem, rank: int, ratios: Floats) -> Choice:
    """The smallest budget that serves `rank` draws, refined over replay; `NOWHERE` if none."""
    budget, ratio, _ = problem.smallest(rank, ratios)
    return choose(problem, budget, ratio) if budget < math.inf else NOWHERE


def choose(problem: Problem, budget: float, ratio: float, most: float = math.inf) -> Choice:
    """Probabilities at a budget in log ATPP, rounded up to whole tokens but not above `most`."""
    params = problem.target.params
    tokens = min(float(math.ceil(params * math.exp(budget) * (1 + 1e-12))), most)
    at = math.log(tokens / params) if tokens else -math.inf
    target, source = (each.contains(at)[0] for each in problem.sets([ratio]))
    return Choice(
        atpp=tokens / params,
        replay=ratio,
        tokens=tokens,
        flops=6 * params * tokens,
        p_target=float(target.mean()),
        p_forgetting=float(source.mean()),
        p_both=float((target & source).mean()),
    )


def binding(problem: Problem, rank: int, ratios: Floats) -> str:
    """What prevents a plan: a limit that cannot be met alone, or the two together."""
    best = np.zeros(2, int)
    for ratio in ratios:
        best = np.maximum(best, [each.most()[0][0] for each in problem.sets([ratio])])
    failing = [name for name, n in zip(("target", "forgetting"), best, strict=True) if n < rank]
    shares = f"P(target) up to {best[0] / problem.draws:.3g}, P(forgetting) up to "
    shares += f"{best[1] / problem.draws:.3g}"
    return f"{' and '.join(failing) or 'the two limits together'}; alone, {shares}"


def held_out(problem: Problem, confidence: float, ratios: Floats) -> float:
    """P(both) on half of the draws of a plan made on the other half, mean of both ways round."""
    half, kept = problem.draws // 2, []
    if not half:
        return math.nan
    index = np.arange(problem.draws)
    for fit, check in ((index[:half], index[half:]), (index[half:], index[:half])):
        choice = cheapest(problem.take(fit), rank_of(confidence, len(fit)), ratios)
        if choice.atpp == math.inf:
            return math.nan
        kept.append(choose(problem.take(check), math.log(choice.atpp), choice.replay).p_both)
    return float(np.mean(kept))


def bootstrap(
    problem: Problem,
    rank: int,
    ratios: Floats,
    per_ratio: Floats,
    replay: float,
    rng: np.random.Generator,
    block: int,
    most: int = 25,
) -> dict[str, Any]:
    """Bootstrap over draws, on the ratios that can become the best by chance."""
    draws = problem.draws
    share = rank / draws
    if draws == 1 or not (per_ratio < math.inf).any():
        return {}
    swing = 4 * math.sqrt(draws * share * (1 - share) * block)
    (best,) = problem.joint(np.array([replay]))
    reach = best.first(min(draws, math.ceil(rank + swing)))[0]
    near = ratios[per_ratio <= max(reach, per_ratio.min())]
    near = np.append(near[np.linspace(0, len(near) - 1, min(most, len(near))).astype(int)], replay)
    target, source = problem.sets(near)
    joint = target.meet(source)
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
