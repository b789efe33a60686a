"""Designs that are compared with a choice."""

import numpy as np

from bayeslaw.design.compared_designs import rows_to_buy
from bayeslaw.design.set_search import costs
from bayeslaw.studies.cases import world_cases


def test_the_papers_grid_is_its_twenty_points():
    (case,) = world_cases([0])
    price = costs(case.pool.frame, case.law.columns, cost="adaptation")
    given = {"posterior": None, "targets": case.targets}
    rows = rows_to_buy("grid", case.pool, price, np.inf, None, grid=case.grid, **given)
    frame = case.pool.frame.loc[rows]
    assert len(frame) == 20
    assert frame["params"].unique().tolist() == [241e6]
    budget = price.total(rows)
    for design in ("random", "cheapest"):
        rng = np.random.default_rng(0)
        some = rows_to_buy(design, case.pool, price, budget, rng, **given)
        assert 0.5 * budget < price.total(some) <= budget
