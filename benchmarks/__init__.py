"""Measured results, a function for each: `python -m benchmarks NAME`."""

from benchmarks import (  # noqa: F401
    calibration,
    columns,
    figures,
    frontier,
    gaps,
    held_out,
    huber,
    judged,
    ladders,
    measured,
    optimum,
    pictures,
    plans,
    speed,
)
from benchmarks.runner import EXPERIMENTS

__all__ = ["EXPERIMENTS"]
