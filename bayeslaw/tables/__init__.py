"""Loss tables: reading, validation, queries and splits.

May import ``common``.
"""
