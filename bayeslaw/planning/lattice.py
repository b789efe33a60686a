"""The lattice of a plan: the losses of all domains at some budgets and replay ratios."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from bayeslaw.common.arrays import Floats
from bayeslaw.inference.pools import Fit
from bayeslaw.planning.domains import Domain
from bayeslaw.tables.verdict import MEASURED_DECADES, TOO_FAR

SPACING = 0.2
"""Spacing of the lattice in e-folds of the budget."""
REACH = TOO_FAR * MEASURED_DECADES["tokens"] * math.log(10)
"""E-folds beyond the fitted budgets that are searched: as far as forecasts are made."""
ACCEPTED = np.arange(1.0, 9.0)
"""E-folds beyond those that are searched as well if the fits are accepted beyond the evidence."""
NO_TABLE = math.log(1e-3), math.log(1e6)
"""Fitted budgets, log ATPP, of laws without a table."""


@dataclass(frozen=True)
class Lattice:
    """Latent losses of some domains, each (budgets, ratios, pairs); budgets are log ATPP."""

    budgets: Floats
    ratios: Floats
    losses: Sequence[Floats] = field(repr=False)

    @property
    def ratio_step(self) -> float:
        """Greatest distance of two neighbouring ratios; 0 of a single one."""
        return float(np.diff(self.ratios).max(initial=0.0))

    @property
    def end_ratios(self) -> Floats:
        """The least and the greatest ratio."""
        return self.ratios[[0, -1]]


def lattice_of(domains: Sequence[Domain], budgets: Floats, ratios: Floats) -> Lattice:
    """The exact losses at all pairs of a budget and a ratio."""
    budget_of_rows = np.repeat(budgets, len(ratios))
    ratio_of_rows = np.tile(ratios, len(budgets))
    rows = domains[0].run.rows(budget_of_rows, ratio_of_rows)
    losses = []
    for domain in domains:
        losses_of_rows = domain.losses(rows)
        losses.append(losses_of_rows.reshape(len(budgets), len(ratios), -1))
    return Lattice(budgets, ratios, losses)


def searched_budgets(fits: Collection[Fit], params: float) -> Floats:
    """Budgets of the lattice of a plan, log ATPP, from the least to the greatest."""
    lows = []
    highs = []
    for fit in fits:
        low, high = NO_TABLE
        if fit.table is not None:
            rows = fit.table.frame
            low = np.log(rows["tokens"] / np.maximum(rows["params"], params)).min()
            high = np.log(rows["tokens"].max() / params)
        lows.append(low)
        highs.append(high)
    low = min(lows) - REACH
    high = max(highs) + REACH
    nodes = math.ceil((high - low) / SPACING) + 1
    budgets = np.linspace(low, high, nodes)
    if all("beyond-evidence" in fit.accepts for fit in fits):
        return np.concatenate([low - ACCEPTED[::-1], budgets, high + ACCEPTED])
    return budgets
