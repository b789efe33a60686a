"""Scaling laws: terms, priors as data, laws, TOML files.

May import ``tables`` and ``common``.
"""
