"""Which runs to buy next: candidates, costs, information gain, EVSI.

May import ``planning`` and below.
"""
