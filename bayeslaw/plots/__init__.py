"""Figures of fits, forecasts and plans: each function returns a Matplotlib figure.

The colours are distinct for people with any colour vision; line styles and markers are distinct
without colour.
"""

from bayeslaw.plots._compute_optimal import compute_optimal
from bayeslaw.plots._overview import overview
from bayeslaw.plots.curves import forecast, in_sample
from bayeslaw.plots.figures import (
    backtest,
    coverage,
    observed,
    pit_values,
    residuals,
)
from bayeslaw.plots.plans import plan_frontier, plan_landscape

__all__ = [
    "backtest",
    "compute_optimal",
    "coverage",
    "forecast",
    "in_sample",
    "observed",
    "overview",
    "pit_values",
    "plan_frontier",
    "plan_landscape",
    "residuals",
]
