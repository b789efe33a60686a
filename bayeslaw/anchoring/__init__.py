"""Which runs to buy next: beliefs about losses not measured, gains, costs, and the choice."""
