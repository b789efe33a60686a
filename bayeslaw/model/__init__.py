"""What is fitted: specification, discrepancies, noise, random effects, densities."""
