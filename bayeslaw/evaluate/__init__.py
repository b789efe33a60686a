"""Forecasts of a posterior, their scores, and comparison of laws.

May import ``inference`` and below.
"""
