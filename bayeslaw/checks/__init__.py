"""Checks of a fit and its forecasts: convergence, identifiability, sensitivity, extrapolation.

May import ``simulation`` and below.
"""
