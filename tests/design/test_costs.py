"""Costs of runs in FLOPs."""

import pandas as pd
import pytest

from bayeslaw.common.errors import BayeslawError
from bayeslaw.design.costs import costs
from bayeslaw.laws.lawfiles import load_law
from tests.design.problems import LAW


def test_a_run_costs_its_longest_row_and_a_base_its_stage_once():
    frame = pd.DataFrame(
        {"params": [1e8, 1e8, 1e8, 2e8], "tokens": [1e9, 4e9, 1e9, 1e9], "ptpp": [20, 20, 20, 20.0]}
    )
    frame["run"], law = ["a", "a", "b", "c"], load_law("form1")
    price = costs(frame, law.columns)
    stage, more = 6 * 1e8 * 1e8 * 20, 6 * 2e8 * 2e8 * 20
    assert price.further([])[1] == stage + 6e8 * 4e9
    assert price.total([0, 1]) == price.total([1]) == stage + 6e8 * 4e9
    assert price.further([0])[1] == pytest.approx(6e8 * 3e9)
    assert price.further([1])[0] == 0
    assert price.total([1, 2]) == stage + 6e8 * 5e9
    assert price.total([0, 1, 2, 3]) == pytest.approx(stage + more + 6e8 * 5e9 + 12e8 * 1e9)
    there = costs(frame, law.columns, fitted=frame.iloc[:1])
    assert there.total([0]) == 6e8 * 1e9
    assert there.total([3]) == more + 12e8 * 1e9
    assert costs(frame, law.columns, cost="adaptation").total([3]) == 12e8 * 1e9
    assert costs(frame, LAW.columns).total([0]) == 6e8 * 1e9
    with pytest.raises(BayeslawError, match="unknown cost 'hours'"):
        costs(frame, law.columns, cost="hours")
    with pytest.raises(BayeslawError, match="not a positive number"):
        costs(frame.assign(hours=[1, 2, 0, 4]), law.columns, cost="hours")
