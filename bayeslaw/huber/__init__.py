"""The paper's deterministic fit: Huber loss on log residuals.

May import ``laws`` and below, but not ``model``.
"""
