"""Figures of fits, forecasts and plans: each function returns a Matplotlib figure.

The colours are distinct for people with any colour vision; line styles and markers are distinct
without colour. `Plots` makes the same figures from a posterior, as ``fit.plot``.
"""

from bayeslaw.inference.posterior import Plots
from bayeslaw.plots.curves import compute_optimal, forecast, in_sample, overview
from bayeslaw.plots.figures import (
    backtest,
    compare,
    coverage,
    observed,
    pit_values,
    plan_frontier,
    plan_landscape,
    residuals,
)

__all__ = [
    "Plots",
    "backtest",
    "compare",
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
