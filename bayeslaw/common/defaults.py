"""Defaults that the library and the command line share."""

from typing import TypedDict

CHAINS = 4
DRAWS = 2000
TUNE = 1500
TARGET_ACCEPT = 0.97
"""Form 3 fitted to two stages needs this much for R-hat 1.01 and ESS 400 on every seed."""
SAMPLING = {"chains": CHAINS, "draws": DRAWS, "tune": TUNE, "target_accept": TARGET_ACCEPT}
DISCREPANCY = "curvature"
DELTA = 0.02
"""The paper's Huber threshold, in log loss."""


class SamplerSettings(TypedDict, total=False):
    """Settings of the sampler; those left out have their default."""

    chains: int
    draws: int
    tune: int
    target_accept: float
    sampler: str
