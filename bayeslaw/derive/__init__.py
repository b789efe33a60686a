"""Numbers computed from the draws of a law: each with its median and credible intervals.

All but `accuracy` are of the latent loss: the law with its discrepancy, without measurement noise
and without random effects.
"""

from bayeslaw.derive._frontier import Frontier, frontier
from bayeslaw.derive.derived import Derived
from bayeslaw.derive.downstream import accuracy
from bayeslaw.derive.exponents import floor, local_exponents
from bayeslaw.derive.floors import AtFloors, at_floors
from bayeslaw.derive.optimum import compute_optimal
from bayeslaw.derive.reach import compute_multiplier, flops_to_reach

__all__ = [
    "AtFloors",
    "Derived",
    "Frontier",
    "accuracy",
    "at_floors",
    "compute_multiplier",
    "compute_optimal",
    "floor",
    "flops_to_reach",
    "frontier",
    "local_exponents",
]
