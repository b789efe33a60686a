"""The smallest budget and replay ratio that meet limits on loss with a stated probability.

May import ``checks`` and below.
"""
