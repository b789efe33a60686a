"""The numbers of a plan: its fields, and queries for other limits, confidences and caps."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import BayeslawError
from bayeslaw.common.formatting import jsonable
from bayeslaw.laws.steps import epochs
from bayeslaw.planning.arguments import check_confidence
from bayeslaw.planning.chance_constraint import Candidate, Problem
from bayeslaw.planning.choices import Choice, choice_at, fields, replay_ratios
from bayeslaw.planning.likeliest import likeliest
from bayeslaw.planning.limits import NAMES
from bayeslaw.planning.planned_run import PlannedRun
from bayeslaw.planning.smallest import smallest

CHANGES = {"max_loss": 0.0025, "max_forgetting": 0.1, "baseline": 0.0025}
"""Relative changes of limits and baseline, down and up, under which plans are made again."""


@dataclass(frozen=True, kw_only=True)
class PlanNumbers(Choice):
    """The fields of a plan, as `bayeslaw.Plan` describes them, and queries on its lattice."""

    status: str
    evidence: str = ""
    cheaper: Choice | None = None
    likeliest: Choice | None = None
    confidence: float
    draws: int
    pairing: str
    losses: str
    other: Choice
    other_plan: Choice
    other_status: str
    spread: pd.DataFrame = field(repr=False)
    base: str
    baseline: str
    limits: Mapping[str, Any]
    binds: str
    best: Choice | None = None
    deterministic: Choice
    held_out: float
    error: Mapping[str, Any]
    outside: tuple[str, ...]
    data: Mapping[str, tuple[float, float]]
    unconverged: tuple[str, ...]
    synthetic: bool = False
    seed: int = 0
    problem: Problem = field(repr=False)
    run: PlannedRun = field(repr=False)

    @property
    def epochs(self) -> float | None:
        """Epochs of the new data in the plan, or in `best`; None if no data repeat."""
        unique_tokens = self.limits["unique_tokens"]
        if unique_tokens is None:
            return None
        chosen = self.chosen
        return epochs(chosen.tokens, chosen.replay, unique_tokens)

    @property
    def chosen(self) -> Choice:
        """The plan itself if it is feasible, otherwise `best`."""
        return self if self.best is None else self.best

    def surface(
        self, atpp: Sequence[float] | Floats, replay: Sequence[float] | Floats
    ) -> pd.DataFrame:
        """Probability that all limits hold, over budgets and replay ratios.

        Parameters
        ----------
        atpp, replay : sequence of float
            Adaptation tokens per parameter, and replay ratios.

        Returns
        -------
        DataFrame
            Probabilities; the index is ATPP, the columns are replay ratios in ascending order.
        """
        ratios = replay_ratios(replay)
        budgets = np.log(np.asarray(atpp, float))
        # A surface shows what the draws say, also where the plan may not lie.
        everywhere = replace(self.problem, far=None)
        budget_of_rows = np.repeat(budgets, len(ratios))
        ratio_of_rows = np.tile(ratios, len(budgets))
        meeting = everywhere.meeting(budget_of_rows, ratio_of_rows)
        chances = meeting.reshape(-1, len(ratios)) / self.draws
        index = pd.Index(atpp, name="atpp")
        return pd.DataFrame(chances, index, pd.Index(ratios, name="replay"))

    def _on(self, losses: str | None) -> Problem:
        """The problem of a kind of losses, by default the plan's."""
        return self.problem.on(self.losses if losses is None else losses)

    def lattice(
        self, *, losses: Literal["latent", "predictive"] | None = None
    ) -> tuple[Floats, Floats, dict[str, Floats]]:
        """What is limited, for each draw at each node of the lattice that the plan was found on.

        Parameters
        ----------
        losses : {"latent", "predictive"}, optional
            Kind of the losses; by default that of the plan.

        Returns
        -------
        atpp : array, shape (budgets,)
            Adaptation tokens per parameter.
        replay : array, shape (ratios,)
        values : dict of str to array, shape (budgets, ratios, draws)
            Of "target" its loss, nats per token, and of "forgetting" the rise of the source loss,
            in the unit of its limit. P(both) is the share of the draws that keep both limits.

        Examples
        --------
        >>> atpp, replay, values = plan.lattice()  # doctest: +SKIP
        """
        problem = self._on(losses)
        lattice = problem.lattice
        limited = zip(NAMES, problem.limits, lattice.losses, strict=True)
        values = {}
        for name, limit, latent in limited:
            values[name] = limit.values(latent, measured=problem.measured)
        return np.exp(lattice.budgets), lattice.ratios, values

    def at(
        self,
        *,
        atpp: float,
        replay: float,
        losses: Literal["latent", "predictive"] | None = None,
    ) -> Choice:
        """The probabilities and expectations of a budget and a replay ratio of your own.

        Parameters
        ----------
        atpp, replay : float
            Adaptation tokens per parameter, and replay ratio.
        losses : {"latent", "predictive"}, optional
            Kind of the losses; by default that of the plan.
        """
        (ratio,) = replay_ratios([replay])
        if not 0 < atpp < math.inf:
            raise BayeslawError(
                f"atpp={atpp:g}: give a positive number of tokens per parameter."
            )
        candidate = Candidate(math.log(atpp), float(ratio), 0)
        return choice_at(self._on(losses), candidate)

    def frontier(
        self,
        confidences: Sequence[float] = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99),
        *,
        losses: Literal["latent", "predictive"] | None = None,
    ) -> pd.DataFrame:
        """Smallest budget for each of several confidences; infinite if there is none.

        Parameters
        ----------
        confidences : sequence of float
            Between 0 and 1; 0.9 is 90 %.
        losses : {"latent", "predictive"}, optional
            Kind of the losses; by default that of the plan.

        Returns
        -------
        DataFrame
            One row per confidence: `confidence`, and the fields of `Choice`.
        """
        problem = self._on(losses)
        rows = []
        for confidence in confidences:
            check_confidence(confidence)
            of_plan = confidence == self.confidence
            candidate = smallest(problem, confidence, exact=of_plan)
            choice = choice_at(problem, candidate)
            rows.append({"confidence": confidence} | vars(choice))
        return pd.DataFrame(rows)

    def sensitivity(self) -> pd.DataFrame:
        """Plans under changed limits and a changed baseline.

        `max_loss` and `baseline` move by 0.25 %, `max_forgetting` by a tenth, each down and up.
        A baseline that is drawn is not changed.

        Returns
        -------
        DataFrame
            One row per change: `quantity` and `moved`, the relative change; `held`, P(both) of
            this plan under the changed limit; and the fields of `Choice` for the new plan.
        """
        losses = None
        if self.atpp < math.inf:
            losses = self.problem.losses(math.log(self.atpp), self.replay)
        rows = []
        for name in self._changed_limits():
            for factor in (1 - CHANGES[name], 1 + CHANGES[name]):
                problem = self.problem.scaled(**{name: factor})
                held = math.nan
                if losses is not None:
                    held = problem.count(losses)[0] / self.draws
                change = {"quantity": name, "moved": factor - 1, "held": float(held)}
                choice = choice_at(problem, smallest(problem))
                rows.append(change | vars(choice))
        return pd.DataFrame(rows)

    def _changed_limits(self) -> list[str]:
        """The limits, and the baseline, whose change may change the plan."""
        changed = [name for name in CHANGES if self.limits[name] is not None]
        # Draws are no measurement that could be off.
        drawn = "drawn" in np.ravel(self.limits["baseline"])
        without = "max_forgetting" not in changed
        if "baseline" in changed and (without or drawn):
            changed.remove("baseline")
        return changed

    def within(self, *, tokens: float = math.inf, flops: float = math.inf) -> Choice:
        """The choice most likely to meet all limits under a cap on tokens or FLOPs.

        Of equally probable choices it is the one with the smallest budget.

        Parameters
        ----------
        tokens, flops : float
            Upper bounds on D and on 6 N D.
        """
        params = self.problem.params
        most = min(tokens, flops / (6 * params))
        if not most > 0:
            raise BayeslawError(
                f"a cap of {most:g} tokens leaves no budget; give a positive cap."
            )
        candidate = likeliest(self.problem, math.log(most / params))
        if not candidate.meeting:
            return choice_at(self.problem, None, most)
        return choice_at(self.problem, candidate, most)

    def target_loss(self) -> tuple[float, float, float, float]:
        """Target loss there: 5, 50 and 95 %, and the `confidence` quantile; nats per token."""
        chosen = self.chosen
        problem = self.problem
        latent = problem.losses(math.log(chosen.atpp), chosen.replay)[0][0]
        losses = problem.limits[0].values(latent, measured=problem.measured)
        quantiles = np.quantile(losses, (0.05, 0.5, 0.95, self.confidence))
        low, middle, high, at_confidence = map(float, quantiles)
        return low, middle, high, at_confidence

    def to_dict(self) -> dict[str, object]:
        """The plan as plain numbers and text for JSON; values that are not finite become None."""
        numbers: dict[str, Any] = {}
        for name, value in vars(self).items():
            # Objects to compute with are large and have no form in JSON.
            if name not in ("problem", "run"):
                numbers[name] = fields(value) if isinstance(value, Choice) else value
        numbers["spread"] = self.spread.to_dict("index")
        numbers["evidence_of"] = self._evidence_of() if self.evidence else ""
        if self.epochs is not None:
            numbers["epochs"] = self.epochs
        document: dict[str, object] = jsonable(numbers)
        return document

    def _evidence_of(self) -> str:
        """Which choice the words of `evidence` are about."""
        if self.cheaper:
            return "cheaper"
        return "plan" if self.best is None else "best"
