"""Checks of a fit and its forecasts: held-out rows, identifiability, extrapolation, outliers.

May import ``simulation`` and below.
"""
