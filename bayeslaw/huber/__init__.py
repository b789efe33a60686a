"""The paper's deterministic fit: Huber loss of the log residuals, minimised from many starts.

May import ``laws`` and below, but not ``model``.
"""
