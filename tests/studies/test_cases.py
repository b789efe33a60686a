"""Cases: measured pools and synthetic worlds."""

import numpy as np
import pandas as pd
import pytest

from bayeslaw import grid, paper_world, world_cases
from bayeslaw.studies.cases import varied


def test_a_pool_is_looked_up_and_a_world_is_exact(cases):
    assert cases[0].pool.loss.tolist() == cases[1].pool.loss.tolist()
    one, two = world_cases(range(2))
    assert one.exact
    np.testing.assert_array_equal(one.targets.loss, two.targets.loss)
    assert (one.train.loss != two.train.loss).all()
    assert one.source is not None
    assert one.source.pool.frame["domain"].unique().tolist() == ["english_arabic"]
    columns = ["params", "tokens", "replay", "ptpp"]
    pd.testing.assert_frame_equal(one.pool.frame[columns], one.source.pool.frame[columns])


def test_varied_worlds_keep_the_floor_and_the_plan():
    world = paper_world()
    one, same, two = (varied(world, 0.2, seed) for seed in (1, 1, 2))
    assert one.truth == same.truth != two.truth
    point = grid(params=8.1e9, ptpp=279, replay=0.34, tokens=8.9 * 8.1e9)
    for new in (one, two):
        for domain, truth in new.truth.items():
            assert truth["E"] == pytest.approx(world.truth[domain]["E"])
            assert truth["alpha"] != world.truth[domain]["alpha"]
        assert new.loss("french", point)[0] == pytest.approx(new.limits["max_loss"])
        most = new.baseline() * (1 + new.limits["max_forgetting"])
        assert new.loss("english_arabic", point)[0] == pytest.approx(most)
    same = varied(world, 0.0, 1)
    np.testing.assert_allclose(same.loss("french", point), world.loss("french", point))
