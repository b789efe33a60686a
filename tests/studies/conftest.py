"""Cases of a measured pool."""

import pytest

from bayeslaw import pool_cases

QUERIES = {"train": "tokens < 2e10", "pool": "tokens > 2e10 and params < 2e9"}
QUERIES |= {"targets": "tokens > 2e10 and params > 2e9"}


@pytest.fixture(scope="session")
def cases(small):
    return pool_cases(small, "chinchilla", **QUERIES, seeds=range(2), name="small")
