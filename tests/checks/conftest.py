"""Rows and a fit that several files check."""

import pytest

from bayeslaw import LossTable, Posterior, fit, paper_world

SHORT = {"discrepancy": "none"}
LATE = "ptpp == 279"


@pytest.fixture(scope="session")
def world() -> LossTable:
    return paper_world().table("french", seed=0)


@pytest.fixture(scope="session")
def anchored(world) -> Posterior:
    rows = world.query("ptpp <= 31 or (ptpp == 279 and params < 3e8)")
    return fit("form1", rows, seed=0, **SHORT)


@pytest.fixture(scope="session")
def walking(small) -> Posterior:
    """The default of a law in N and D, on rows that are power laws."""
    return fit("chinchilla", small, seed=0, draws=500)
