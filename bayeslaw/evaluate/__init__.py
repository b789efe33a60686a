"""Forecasts, scores, comparison of laws, cross-validation and stacking.

May import ``inference`` and below.
"""
