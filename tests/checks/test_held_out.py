"""Bands on held-out rows: those that were given, and the farthest of the training rows."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import bayeslaw as bl
from bayeslaw.checks.held_out import at_most, cuts, grouped
from bayeslaw.inference.fitting import refit
from tests.support import CHINCHILLA

SIZES = [4e9, 5e9, 6e9, 8e9, 1.2e10, 1.6e10]


@pytest.fixture(scope="module")
def ahead():
    """Six sizes beyond the training rows, four losses of each."""
    design = bl.grid(params=SIZES, tokens=[3e10, 5e10, 7e10, 1e11])
    return bl.simulate("chinchilla", CHINCHILLA, design, sigma=0.003, seed=2)


def test_bands_that_hold_pass(posterior, ahead):
    part = bl.check(posterior, ahead)["held out"]
    assert part.level == "ok"
    assert part.facts["groups"] == 6
    fc = posterior.forecast(ahead)
    low, high = fc.quantile([0.05, 0.95])
    inside = (low <= ahead.loss) & (ahead.loss <= high)
    assert f"holds {inside.sum()} of 24 losses" in part.words[0]
    by_size = pd.Series(inside).groupby(ahead.frame["params"]).mean().sum()
    assert part.facts["held"] == pytest.approx(by_size)


def test_bands_that_miss_all_large_sizes_failed_here(posterior, ahead):
    """All losses of three of six sizes are missed, on one side."""
    far = ahead.frame["params"] > 7e9
    planted = bl.from_frame(ahead.frame.assign(loss=ahead.loss * np.where(far, 1.03, 1.0)))
    found = bl.check(posterior, planted)
    assert found.level == "refuse"
    assert found.verdict.startswith("REFUSE: the bands failed here: the 90 % band holds ")
    assert found.verdict == str(found).splitlines()[0]
    assert "In the farther half the forecasts are too low by 3" in found["held out"].words[1]


def test_one_size_proves_nothing(posterior, ahead):
    one = ahead.query("params == 4e9")
    part = bl.check(posterior, one)["held out"]
    assert part.level == "caution"
    assert "1 group of rows cannot show that bands hold." in part.words


def test_the_farthest_training_rows_are_forecast_from_the_others(posterior):
    part = bl.check(posterior, bl.grid(params=1e10, tokens=1e10))["held out"]
    assert part.facts["own"]
    assert part.words[0].startswith("The farthest 5 training rows, forecast from the 15 others by")
    assert part.level != "refuse"
    (near, *_) = cuts(posterior.table, posterior.columns, bl.grid(params=1e10, tokens=1e10))
    assert (near == (posterior.table.frame["params"] < 3e9)).all()
    (near, *_) = cuts(posterior.table, posterior.columns, bl.grid(params=1e9, tokens=1e12))
    assert (near == (posterior.table.frame["tokens"] < 3e10)).all()
    fitted = bl.check(posterior, posterior.table)["held out"]
    assert fitted.facts["own"]  # the losses of training rows are no held-out ones


def test_a_law_that_fails_on_its_own_training_rows_is_not_ok(posterior):
    """Losses bend away from the power law at large sizes; the law is taken as exact."""
    design = bl.grid(params=np.geomspace(1e8, 1e10, 9), tokens=[1e10, 3e10, 1e11])
    table = bl.simulate("chinchilla", CHINCHILLA, design, sigma=0.001, seed=3)
    bend = 1 + 0.02 * np.clip(np.log10(table.frame["params"] / 1e9), 0, None)
    table = bl.from_frame(table.frame.assign(loss=table.loss * bend))
    found = bl.check(refit(posterior.spec, table, 0), bl.grid(params=3e10, tokens=1e11))
    assert found["held out"].level == "caution"
    assert found["held out"].facts["p"] < 0.05


def test_groups_are_sizes_or_finer():
    many = bl.grid(params=[1e8, 3e8, 1e9], tokens=[1e9, 1e10])
    assert len(np.unique(grouped(many))) == 3
    few = bl.grid(params=[1e8, 3e8], tokens=[1e9, 1e10], ptpp=[15, 31])
    assert len(np.unique(grouped(few))) == 4
    assert len(np.unique(grouped(many.iloc[:2]))) == 1


def test_the_binomial_is_continued_to_fractions():
    for held in range(7):
        assert at_most(held, 6, 0.9) == pytest.approx(stats.binom.cdf(held, 6, 0.9))
    assert at_most(3, 6, 0.9) < at_most(3.5, 6, 0.9) < at_most(4, 6, 0.9)
