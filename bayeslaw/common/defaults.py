"""Defaults of both the library and the command line."""

CHAINS = 4
TUNE = 300
"""Tuning steps, after the short run from which the metric is learned."""
TARGET_ACCEPT = 0.97
AUTO = "auto"
"""Discrepancy chosen by the kind of law."""
DELTA = 0.02
"""The paper's Huber threshold, in log loss."""
TOLERANCE = 1e-3
"""Largest relative difference between a planned covariate and a measured row's."""
