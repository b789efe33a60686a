"""Defaults of both the library and the command line."""

AUTO = "auto"
"""Discrepancy chosen by the kind of law."""
DELTA = 0.02
"""The paper's Huber threshold, in log loss."""
COVARIATE_TOLERANCE = 1e-3
"""Largest relative difference between a planned covariate and a measured row's."""
