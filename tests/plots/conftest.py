"""Rows beyond the training table and their forecast."""

import pytest

from bayeslaw import from_frame, grid, simulate
from tests.support import CHINCHILLA


@pytest.fixture(scope="session")
def new_rows():
    """Twelve rows beyond the training table, two of them far off."""
    design = grid(params=[6e9, 1.2e10, 2.4e10], tokens=[1e9, 1e10, 1e11, 1e12])
    table = simulate("chinchilla", CHINCHILLA, design, sigma=0.003, seed=2)
    loss = table.loss.copy()
    loss[[0, 7]] *= 1.2
    return from_frame(table.frame.assign(loss=loss), "new_rows out")


@pytest.fixture(scope="session")
def predicted(posterior, new_rows):
    return posterior.forecast(new_rows, seed=0)
