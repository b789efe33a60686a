"""The smallest budget, and its replay ratio, that meets limits on loss with a stated probability.

May import ``checks`` and below.
"""
