"""Designs that are compared with a choice."""

import numpy as np

from bayeslaw import example_table, world_cases
from bayeslaw.design.compared_designs import DESIGNS, Purchase
from bayeslaw.design.set_search import Costs, costs


def test_the_papers_grid_is_its_twenty_points():
    (case,) = world_cases([0])
    price = costs(case.pool.frame, case.law.columns, cost="adaptation")
    given = {"pool": case.pool, "costs": price, "posterior": None, "targets": case.targets}
    rows = DESIGNS["grid"](Purchase(budget=np.inf, rng=None, grid=case.grid, **given))
    frame = case.pool.frame.loc[rows]
    assert len(frame) == 20
    assert frame["params"].unique().tolist() == [241e6]
    budget = price.total(rows)
    for design in ("random", "cheapest"):
        purchase = Purchase(budget=budget, rng=np.random.default_rng(0), **given)
        some = DESIGNS[design](purchase)
        assert 0.5 * budget < price.total(some) <= budget


def test_the_cheapest_rows_are_bought_first_until_none_can_be_paid():
    pool = example_table()
    price = Costs(np.array([3.0, 1.0, 2.0]), np.arange(3), np.zeros(3, int), np.zeros(1))
    purchase = Purchase(pool=pool, costs=price, budget=4.0, rng=None, posterior=None, targets=pool)
    assert DESIGNS["cheapest"](purchase) == [1, 2]
    assert DESIGNS["none"](purchase) == []
