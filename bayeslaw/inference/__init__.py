"""Fits: sampling, modes, the convergence gate, the posterior and its file.

May import ``model``, ``huber`` and below.
"""
