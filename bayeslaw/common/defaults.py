"""Defaults that the library and the command line share."""

CHAINS = 4
DRAWS = 2000
TUNE = 1500
TARGET_ACCEPT = 0.97
"""Form 3 fitted to two stages needs this much for R-hat 1.01 and ESS 400 on every seed."""
DISCREPANCY = "curvature"
DELTA = 0.02
"""The paper's Huber threshold, in log loss."""
