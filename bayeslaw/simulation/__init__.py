"""Synthetic loss tables and simulation-based calibration.

May import ``evaluate`` and below.
"""
