"""Posteriors around the truth of the synthetic world."""

import pytest

from bayeslaw import paper_world
from tests.design.problems import around


@pytest.fixture(scope="session")
def fits():
    world = paper_world()
    return {"target": around(world, world.target), "source": around(world, world.source)}
