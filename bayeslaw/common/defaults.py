"""Defaults of both the library and the command line."""

CHAINS = 4
TUNE = 300
"""Tuning steps, in coordinates scaled by the curvature at the mode."""
TARGET_ACCEPT = 0.95
AUTO = "auto"
"""Discrepancy chosen by the kind of law."""
DELTA = 0.02
"""The paper's Huber threshold, in log loss."""
COVARIATE_TOLERANCE = 1e-3
"""Largest relative difference between a planned covariate and a measured row's."""
