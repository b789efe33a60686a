"""Measured results, a function for each: `python -m benchmarks NAME`."""

from benchmarks import calibration, columns, held_out, huber, pictures, plans, speed  # noqa: F401
from benchmarks.runner import EXPERIMENTS

__all__ = ["EXPERIMENTS"]
