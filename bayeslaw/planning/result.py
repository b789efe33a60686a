"""The answer of the planner: a plan, its probabilities, and what else can be asked of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw.common.errors import BayeslawError, unknown
from bayeslaw.planning.chance import Problem, meet
from bayeslaw.planning.choices import NOWHERE, Choice, cheapest, choose
from bayeslaw.planning.intervals import Floats
from bayeslaw.planning.limits import replay_ratios

CONFIDENCES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True, kw_only=True)
class Plan(Choice):
    """The smallest budget that meets all limits with the stated probability, or why there is none.

    Parameters
    ----------
    status : {"feasible", "infeasible"}
    confidence : float
        Probability asked for.
    binds : str
        Where infeasible, what prevents it.
    best : Choice or None
        Where infeasible, the choice most likely to meet all limits, however large its budget.
    deterministic : Choice
        The plan of the point fits, with its probabilities under the posterior.
    point : str
        What the point fits are.
    held_out : float
        P(both) on half of the draws of a plan made on the other half, mean of both ways round.
    error : mapping
        Monte Carlo error, from a bootstrap over draws in blocks as long as their autocorrelation:
        standard deviations ``atpp`` and ``replay``, 5 and 95 % quantiles ``atpp_90``, and the
        share of replicates that are ``infeasible``.
    outside : tuple of str
        What of the plan lies outside the training data.
    data : mapping
        Ranges of params, ptpp, replay and ATPP that the rows of all fits cover.
    unconverged : tuple of str
        What fails in posteriors that failed the convergence gate.
    """

    status: str
    confidence: float
    draws: int
    pairing: str
    noise: str
    baseline: str
    limits: Mapping[str, Any]
    binds: str
    best: Choice | None
    deterministic: Choice
    point: str
    held_out: float
    error: Mapping[str, Any]
    outside: tuple[str, ...]
    data: Mapping[str, tuple[float, float]]
    unconverged: tuple[str, ...]
    note: str = ""
    seed: int = 0
    problem: Problem = field(repr=False)
    certain: Problem = field(repr=False)
    replay_grid: Floats = field(repr=False)

    def surface(
        self, atpp: Sequence[float] | Floats, replay: Sequence[float] | Floats, limit: str = "both"
    ) -> pd.DataFrame:
        """P(feasible) over budgets (index, ATPP) and replay ratios (columns).

        Parameters
        ----------
        atpp, replay : sequence of float
        limit : {"both", "target", "forgetting"}
        """
        which = {"target": slice(-1), "forgetting": slice(-1, None), "both": slice(None)}
        if limit not in which:
            raise BayeslawError(unknown("limit", limit, which))
        ratios = replay_ratios(replay)
        with np.errstate(divide="ignore"):
            budgets = np.log(np.asarray(atpp, float))
        shares = [meet(s[which[limit]]).share(budgets) for _, s in self.problem.pieces(ratios)]
        columns = pd.Index(ratios, name="replay")
        return pd.DataFrame(np.concatenate(shares, 1), pd.Index(atpp, name="atpp"), columns)

    def frontier(self, confidences: Sequence[float] = CONFIDENCES) -> pd.DataFrame:
        """Smallest budget against confidence; an infinite budget is infeasible."""
        rows = []
        for confidence in confidences:
            asked = replace(self.problem, confidence=confidence)
            rows.append({"confidence": confidence} | vars(cheapest(asked, self.replay_grid)))
        return pd.DataFrame(rows)

    def sensitivity(
        self, *, max_loss: float = 0.0025, max_forgetting: float = 0.1, baseline: float = 0.0025
    ) -> pd.DataFrame:
        """Plans under limits and a baseline moved down and up by a share of themselves.

        `held` is P(both) of this plan, unchanged, under the moved limit. Several target limits
        move together; a baseline that is not a number is not moved.
        """
        moves = {"max_loss": max_loss, "max_forgetting": max_forgetting, "baseline": baseline}
        rows: list[dict[str, Any]] = []
        for name, share in moves.items():
            at = getattr(self.problem, name)
            for factor in (1 - share, 1 + share) if not isinstance(at, str) else ():
                value = tuple(factor * v for v in at) if isinstance(at, tuple) else factor * at
                change: dict[str, Any] = {name: value}
                moved, held = replace(self.problem, **change), math.nan
                if self.status == "feasible":
                    held = choose(moved, self.budget, self.replay, self.tokens).p_both
                row = {"quantity": name, "moved": factor - 1, "held": held}
                rows.append(row | vars(cheapest(moved, self.replay_grid)))
        return pd.DataFrame(rows)

    def within(self, *, tokens: float = math.inf, flops: float = math.inf) -> Choice:
        """The likeliest choice under a cap on tokens or FLOPs: largest P(both), least budget.

        A limit of CVaR does not count; the choice says its own.
        """
        most = self._cap(tokens, flops)
        budget = math.log(most / self.problem.params)
        count, budget, ratio = self.problem.likeliest(budget, self.replay_grid)
        return choose(self.problem, budget, ratio, most) if count else NOWHERE

    def least_loss(self, *, tokens: float = math.inf, flops: float = math.inf) -> Choice:
        """Least expected target loss at a fixed budget, forgetting kept with the confidence.

        Of several targets the mean loss. Without a replay ratio that keeps the limits of
        forgetting the choice is infinite.
        """
        most = self._cap(tokens, flops)
        if most == math.inf:
            raise BayeslawError("least_loss needs a fixed budget; give tokens= or flops=.")
        budget = math.log(most / self.problem.params)
        value, ratio = self.problem.lowest(budget, self.replay_grid)
        return choose(self.problem, budget, ratio, most) if value < math.inf else NOWHERE

    def _cap(self, tokens: float, flops: float) -> float:
        most = min(tokens, flops / (6 * self.problem.params))
        if not most > 0:
            raise BayeslawError(f"a cap of {most:g} tokens leaves no budget; give a positive cap.")
        return most

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain numbers and text for JSON; what is not finite is None."""
        hidden = ("problem", "certain", "replay_grid")
        return {name: plain(value) for name, value in vars(self).items() if name not in hidden}


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, Choice):
        return plain(vars(value) | {"p_failure": value.p_failure})
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
