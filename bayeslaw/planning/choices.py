"""Choices of a budget and a replay ratio: their probabilities, their words and their tables."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import BayeslawError
from bayeslaw.common.formatting import certain, count, digits
from bayeslaw.common.shown import Format, Showing, Shown, Table
from bayeslaw.planning.chance_constraint import Candidate, Problem

LARGE_ERROR = 0.03
"""Monte Carlo error, as a fraction of the budget, from which the first line states it."""
HEADS = {
    "atpp": "ATPP",
    "replay": "replay",
    "tokens": "tokens",
    "flops": "FLOPs",
    "p_target": "P(target)",
    "p_forgetting": "P(forgetting)",
    "p_both": "P(both)",
    "held": "P(both) of this plan",
}
"""Heads of the columns of a table of budgets."""


def replay_ratios(replay: float | Sequence[float] | Floats) -> Floats:
    """Distinct replay ratios in ascending order; `BayeslawError` unless all lie in [0, 1]."""
    ratios = np.unique(np.asarray(replay, float))
    inside = (ratios >= 0) & (ratios <= 1)
    if not len(ratios) or not inside.all():
        raise BayeslawError(
            "replay ratios lie in [0, 1]; give at least one, as fractions."
        )
    return ratios


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
        Probability that the limit of the target loss holds, that of forgetting, and both.
    loss : float
        Expected target loss, nats per token.
    forgetting : float
        Expected rise of the source loss over its baseline: a fraction of the baseline or nats per
        token, as its limit is.

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
    loss: float = math.nan
    forgetting: float = math.nan

    @property
    def p_failure(self) -> float:
        """Probability that at least one limit does not hold."""
        return 1 - self.p_both

    def shown(self) -> Shown:
        """The budget, and the probabilities that it meets the limits."""
        return Shown("Choice", [choice_table({"choice": self})], fields(self))


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


def fields(choice: Choice) -> dict[str, Any]:
    """The fields of a choice by name, and the probability that it fails."""
    return vars(choice) | {"p_failure": choice.p_failure}


def choice_at(
    problem: Problem, candidate: Candidate | None, most: float = math.inf
) -> Choice:
    """The choice of a budget and a replay ratio; `INFEASIBLE` without one.

    Tokens are rounded up to whole ones, and are at most `most`.
    """
    if candidate is None:
        return INFEASIBLE
    params = problem.params
    # Rounding in the exponential could give a token less, at which a limit just fails.
    whole = math.ceil(params * math.exp(candidate.budget) * (1 + 1e-12))
    tokens = min(float(whole), most)
    # The probabilities are those of the whole tokens that are shown.
    losses_of_rows = problem.losses(math.log(tokens / params), candidate.ratio)
    losses = [rows[0] for rows in losses_of_rows]
    target, source = problem.holds(losses)
    expected = []
    for limit, latent in zip(problem.limits, losses, strict=True):
        values = limit.values(latent, measured=problem.measured)
        expected.append(float(values.mean()))
    return Choice(
        atpp=tokens / params,
        replay=candidate.ratio,
        tokens=tokens,
        flops=6 * params * tokens,
        p_target=float(target.mean()),
        p_forgetting=float(source.mean()),
        p_both=float((target & source).mean()),
        loss=expected[0],
        forgetting=expected[1],
    )


# -- words and tables -----------------------------------------------------------------------------


def certain_budget(choice: Choice, error: Mapping[str, Any]) -> tuple[float, float]:
    """ATPP and replay ratio of a plan, with the digits that plans of other draws have, too.

    `error` is that of `Plan.error`; without one, the numbers stay as they are.
    """
    atpp = choice.atpp
    replay = choice.replay
    if not error:
        return atpp, replay
    sd = error["atpp"]
    # The budget is flat along the ratio. Unless that is given or lies at an end, plans of
    # neighbouring ranks may have the same one by chance: of other fits to the rows of
    # `plan_example`, at 3 % of forgetting, it varies by 3 %, and the budget by 2 %.
    replay_sd = error["replay"]
    if replay_sd > 1e-4:
        replay_sd = max(replay_sd, 2 * replay * sd / atpp)
    return certain(atpp, sd), certain(replay, max(replay_sd, 0.0))


def budget_text(choice: Choice, error: Mapping[str, Any]) -> str:
    """The `certain_budget` in words, with its Monte Carlo error if that is large."""
    atpp, replay = certain_budget(choice, error)
    about = ""
    large_error = ""
    if error:
        about = "about "
        sd = error["atpp"]
        if sd > LARGE_ERROR * atpp:
            large_error = f" (Monte Carlo error {certain(sd, sd):.3g})"
    return f"{about}{atpp:.3g} ATPP{large_error} at {100 * replay:.3g} % replay"


def choice_table(choices: Mapping[str, Choice | None], title: str = "") -> Table:
    """A row for each choice that is not None: its budget, and the probabilities of the limits."""
    named = {name: choice for name, choice in choices.items() if choice is not None}
    columns = {}
    for column in HEADS:
        if column != "held":
            columns[column] = [getattr(choice, column) for choice in named.values()]
    return budget_table(pd.DataFrame(columns, list(named)), title)


def budget_table(frame: pd.DataFrame, title: str = "") -> Table:
    """A table of budgets, with those of their columns that are in `HEADS`."""
    formats_of_cells = {
        "atpp": digits,
        "replay": "{:.1f} %".format,
        "tokens": count,
        "flops": "{:.3g}".format,
    }
    feasible = frame["atpp"].map(math.isfinite)
    texts = frame[[name for name in HEADS if name in frame]].astype(object)
    for name, form in formats_of_cells.items():
        values = frame[name]
        if name == "replay":
            values = 100 * values
        cells = []
        for value, shown in zip(values, feasible, strict=True):
            cells.append(form(value) if shown else "")
        texts[name] = cells
    texts.loc[~feasible, "atpp"] = "infeasible"
    formats: dict[str, Format] = {}
    for head in HEADS.values():
        if head.startswith("P("):
            formats[head] = ".3f"
    return Table(texts.rename(columns=HEADS), title, formats, ("tokens",))
