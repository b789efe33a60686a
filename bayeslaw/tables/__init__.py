"""Loss tables: read, validate, split.

May import ``common``.
"""
