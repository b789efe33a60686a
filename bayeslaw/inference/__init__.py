"""Fits: sampling, modes, the convergence check, the posterior and its file.

May import ``model``, ``huber`` and below.
"""
