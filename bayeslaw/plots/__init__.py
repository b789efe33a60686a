"""Figures of fits, forecasts and plans: each function returns a Matplotlib figure.

The colours are distinct for people with any colour vision; line styles and markers are distinct
without colour. `Plots` makes the same figures from a posterior, as ``fit.plot``.
"""

from dataclasses import dataclass
from typing import TypedDict, Unpack

import pandas as pd
from matplotlib.figure import Figure

from bayeslaw.inference.posterior import Posterior
from bayeslaw.plots.curves import forecast, in_sample
from bayeslaw.plots.figures import (
    backtest,
    compare,
    coverage,
    floor_sensitivity,
    observed,
    pit,
    pit_values,
    plan_frontier,
    plan_landscape,
    prior_posterior,
    ranks,
    residuals,
)
from bayeslaw.plots.overview import overview
from bayeslaw.tables.table import LossTable


class Settings(TypedDict, total=False):
    """Settings of a forecast; see `Posterior.forecast`."""

    seed: int
    allow_unconverged: bool


@dataclass(frozen=True)
class Plots:
    """Figures of one posterior, such as ``fit.plot.forecast(test)``.

    Settings are those of `Posterior.forecast`: `seed` and `allow_unconverged`. Each method returns
    a `matplotlib.figure.Figure`; the function of the same name has its description.
    """

    posterior: Posterior

    def forecast(self, rows: LossTable | pd.DataFrame, **settings: Unpack[Settings]) -> Figure:
        """Forecast against tokens, with bands; see `bayeslaw.plots.forecast`."""
        return forecast(self.posterior, rows, **settings)

    def in_sample(self, **settings: Unpack[Settings]) -> Figure:
        """Fitted curves on the training rows; see `bayeslaw.plots.in_sample`."""
        return in_sample(self.posterior, **settings)

    def overview(self, rows: LossTable | pd.DataFrame, **settings: Unpack[Settings]) -> Figure:
        """Fitted runs, law and forecasts by compute and tokens; see `bayeslaw.plots.overview`."""
        return overview(self.posterior, rows, **settings)

    def observed(self, rows: LossTable, **settings: Unpack[Settings]) -> Figure:
        """Measured loss against its forecast; see `bayeslaw.plots.observed`."""
        return observed(self.posterior.forecast(rows, **settings))

    def pit(self, rows: LossTable, **settings: Unpack[Settings]) -> Figure:
        """Probability integral transform of measured losses; see `bayeslaw.plots.pit`."""
        return pit(self.posterior.forecast(rows, **settings))

    def coverage(self, rows: LossTable, **settings: Unpack[Settings]) -> Figure:
        """Coverage of bands by nominal level; see `bayeslaw.plots.coverage`."""
        return coverage(self.posterior.forecast(rows, **settings))

    def residuals(self, rows: LossTable, **settings: Unpack[Settings]) -> Figure:
        """Residuals of held-out and training rows; see `bayeslaw.plots.residuals`."""
        fitted = self.posterior.forecast(self.posterior.table, **settings)
        return residuals(self.posterior.forecast(rows, **settings), fitted)

    def prior_posterior(self, *, seed: int = 0) -> Figure:
        """Prior against posterior; see `bayeslaw.plots.prior_posterior`."""
        return prior_posterior(self.posterior, seed=seed)

    def ranks(self) -> Figure:
        """Agreement of the chains; see `bayeslaw.plots.ranks`."""
        return ranks(self.posterior)


__all__ = [
    "Plots",
    "backtest",
    "compare",
    "coverage",
    "floor_sensitivity",
    "forecast",
    "in_sample",
    "observed",
    "overview",
    "pit",
    "pit_values",
    "plan_frontier",
    "plan_landscape",
    "prior_posterior",
    "ranks",
    "residuals",
]
