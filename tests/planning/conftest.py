"""Posteriors of target and source."""

import pytest

from tests.planning.posteriors import (
    both,
)


@pytest.fixture(scope="session")
def fits():
    return both()
