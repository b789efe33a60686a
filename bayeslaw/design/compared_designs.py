"""Designs that studies compare: rules for spending a budget on a pool's rows, and predictions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats
from bayeslaw.design.anchors import choose_anchors
from bayeslaw.design.posterior_moments import candidate_rows, joint_gaussian, new_size_effects
from bayeslaw.design.set_search import SLACK, Costs
from bayeslaw.inference.posterior import Posterior
from bayeslaw.planning.result import Plan
from bayeslaw.tables.table import LossTable, frame_of

MOST = 40
"""Most runs of a design by gain; the others are limited by the budget alone."""


@dataclass(frozen=True, kw_only=True)
class Purchase:
    """Rows that can be bought, the budget, and what designs may know.

    Parameters
    ----------
    pool : LossTable
        Candidate rows. Their losses are not used.
    costs : Costs
        Of the pool's rows.
    budget : float
        Most FLOPs together.
    rng : numpy Generator
        For the design ``"random"``.
    grid : str
        Query for the design ``"grid"``, such as the paper's 20 points.
    posterior, targets, source, plan
        For the designs of `bayeslaw.choose_anchors`; `source` and `plan` for ``"plan"`` alone.
    cost : str
        The cost that `costs` was made with.
    """

    pool: LossTable
    costs: Costs
    budget: float
    rng: np.random.Generator
    grid: str = ""
    posterior: Posterior
    targets: LossTable
    source: Posterior | None = None
    plan: Plan | None = None
    cost: str = "adaptation"

    @property
    def candidates(self) -> pd.DataFrame:
        """Rows of the pool without their losses."""
        return self.pool.frame.drop(columns="loss")

    def affordable(self, order: Iterable[int]) -> list[int]:
        """Rows in this order that the rest of the budget allows, and the cheaper ones of a run."""
        picks: list[int] = []
        for row in map(int, order):
            if self.costs.total([*picks, row]) <= self.budget * SLACK:
                picks.append(row)
        return with_checkpoints(picks, self.costs)


type Design = Callable[[Purchase], list[int]]
"""Positions in the pool of the rows that are measured, free checkpoints included."""


def none(purchase: Purchase) -> list[int]:
    """Buy nothing: the forecast without anchors."""
    return []


def random(purchase: Purchase) -> list[int]:
    """Whole runs in random order."""
    costs = purchase.costs
    whole = pd.Series(costs.own).groupby(costs.run).idxmax().to_numpy()
    return purchase.affordable(purchase.rng.permutation(whole))


def cheapest(purchase: Purchase) -> list[int]:
    """Rows in order of cost."""
    return purchase.affordable(np.argsort(purchase.costs.further([]), kind="stable"))


def by_query(purchase: Purchase) -> list[int]:
    """Rows of the query, or without one those of the smallest N; the cheapest first."""
    frame, query = purchase.candidates, purchase.grid
    rows = frame.query(query) if query else frame[frame["params"] == frame["params"].min()]
    order = rows.index[np.argsort(purchase.costs.own[rows.index], kind="stable")]
    return purchase.affordable(order.to_numpy())


def by_gain(gain: str, purchase: Purchase) -> list[int]:
    """Rows of `bayeslaw.choose_anchors` with a gain."""
    frame = purchase.candidates
    anchors = choose_anchors(
        purchase.posterior,
        frame.assign(row=frame.index),
        purchase.targets.frame,
        k=MOST,
        budget=purchase.budget,
        cost=purchase.cost,
        gain=gain,
        plan=purchase.plan if gain == "plan" else None,
        source=purchase.source if gain == "plan" else None,
        allow_unconverged=True,
    )
    return sorted(anchors.frame["row"])


DESIGNS: Mapping[str, Design] = {
    "none": none,
    "random": random,
    "cheapest": cheapest,
    "grid": by_query,
    **{gain: partial(by_gain, gain) for gain in ("doptimal", "variance", "entropy", "plan")},
}


def with_checkpoints(picks: Sequence[int], costs: Costs) -> list[int]:
    """Rows that are measured with some: themselves, and the cheaper rows of their runs."""
    run, own = costs.run, costs.own
    return [i for i in range(len(own)) if any(run[i] == run[p] and own[i] <= own[p] for p in picks)]


def predicted_sd(
    posterior: Posterior, rows: LossTable | pd.DataFrame, targets: LossTable | pd.DataFrame
) -> Floats:
    """Predicted standard deviation of log loss at each target once `rows` are measured.

    Without rows it is the posterior's own. The random effect of a target's size is included if the
    size has no training rows.
    """
    aim = frame_of(targets)
    if not len(rows):
        log_loss = np.log(posterior.latent(aim)) + new_size_effects(posterior, aim, None, 0)
        return np.asarray(log_loss.std(0, ddof=1))
    frame = candidate_rows(posterior, rows)
    joint, _ = joint_gaussian([posterior], frame, aim)
    return np.sqrt(joint.update(list(frame.index)).variance)
