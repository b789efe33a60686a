"""What the data cannot say about a fit and its forecasts.

May import ``simulation`` and below.
"""
