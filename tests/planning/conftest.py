"""Posteriors of target and source."""

import pytest

from tests.planning.posteriors import adapted, both


@pytest.fixture(scope="session")
def fits():
    return both()


@pytest.fixture(scope="session")
def adaptation(transfer_law, transfer_table):
    """Posteriors of the law `transfer`, whose bases have labels."""
    return tuple(adapted(transfer_law, transfer_table, seed) for seed in (0, 1))
