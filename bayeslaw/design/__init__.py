"""Which runs to buy next: candidates, costs, expected information gain, and EVSI.

May import ``planning`` and below.
"""
