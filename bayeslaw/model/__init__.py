"""What is fitted, and its PyMC model.

Specification, coordinates, discrepancies, random effects and likelihoods. May import ``laws`` and
below, but not ``huber``.
"""
