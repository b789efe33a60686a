"""A plan as text: its limits, and the cells of its tables, for the terminal and the report."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw.common.formatting import count, digits
from bayeslaw.planning.choices import Choice
from bayeslaw.planning.limits import Limit
from bayeslaw.planning.result import Plan

BUDGET = ("ATPP", "replay", "tokens", "FLOPs")
CHOICE = ("", *BUDGET, "P(target)", "P(forgetting)", "P(both)")
"""Heads of the columns of a budget, and of a choice."""


@dataclass(frozen=True)
class Cells:
    """Cells of tables of a plan; replay ratios and probabilities in stated formats.

    Parameters
    ----------
    percent, probability : str
        Format specifications, such as ".1f" and ".3f".
    """

    percent: str
    probability: str

    def chance(self, value: float) -> str:
        """A probability; NaN gives an empty cell."""
        return "" if math.isnan(value) else f"{value:{self.probability}}".rstrip(".")

    def budget(self, choice: Any) -> list[str]:
        """The cells of `BUDGET`, of a choice or of a row with its fields."""
        if not math.isfinite(choice.atpp):
            return ["infeasible", "", "", ""]
        ratio = f"{100 * choice.replay:{self.percent}} %"
        return [digits(choice.atpp), ratio, count(choice.tokens), f"{choice.flops:.3g}"]

    def choices(self, named: Mapping[str, Choice | None]) -> list[list[str]]:
        """A row of `CHOICE` for each choice that is not None."""
        return [
            [
                name,
                *self.budget(each),
                *map(self.chance, (each.p_target, each.p_forgetting, each.p_both)),
            ]
            for name, each in named.items()
            if each is not None
        ]

    def frontier(self, frontier: pd.DataFrame) -> list[list[str]]:
        """The rows of `Plan.frontier`: a confidence, and the cells of `BUDGET`."""
        rows = (row for _, row in frontier.iterrows())
        return [[f"{100 * row['confidence']:g} %", *self.budget(row)] for row in rows]


def stated(limits: Sequence[Limit]) -> str:
    """Limits of one kind with their unit, such as "1.8 and 1.7 nats per token"."""
    return f"{' and '.join(each.number(each.most) for each in limits)} {limits[0].unit}"


def baseline_losses(plan: Plan) -> list[str]:
    """The baselines that are losses, without those by name."""
    given = plan.limits["baseline"]
    every = given if isinstance(given, list) else [given]
    return [f"{np.ravel(each)[0]:.4g}" for each in every if not isinstance(each, str)]


def monte_carlo(plan: Plan) -> list[str]:
    """The Monte Carlo error of a feasible plan of several draws, as text."""
    if not plan.error or plan.status != "feasible":
        return []
    low, high = plan.error["atpp_90"]
    return [
        f"Monte Carlo error: ATPP ± {digits(plan.error['atpp'])} (90 %: {digits(low)} to "
        f"{digits(high)}), replay ± {100 * plan.error['replay']:.2g} points. "
        f"On held-out draws P(both) is {plan.held_out:.3f}."
    ]
