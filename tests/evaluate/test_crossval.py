"""Leaving rows, sizes and stages out."""

import warnings
from dataclasses import replace

import arviz as az
import numpy as np
import pandas as pd
import pytest

from bayeslaw import FitError, Posterior, TableError, cross_validate, fit, loo
from bayeslaw.evaluate.crossval import LeftOut, leave_out
from tests.evaluate.arviz_tree import tree


def test_loo_agrees_with_arviz(posterior):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        want = az.loo(tree(posterior), pointwise=True)
    got = loo(posterior)
    np.testing.assert_allclose(got.frame["elpd"], want.elpd_i.values, rtol=1e-6)
    np.testing.assert_allclose(got.frame["pareto_k"], want.pareto_k.values, rtol=1e-6)
    assert got.total == pytest.approx(want.elpd)
    assert got.se == pytest.approx(want.se, rel=0.05)
    assert got.by == "row"


def test_folds_leave_out_whole_groups(posterior):
    found = cross_validate(posterior, "params", folds=2, draws=250, tune=300, retry=False)
    assert found.by == "params"
    assert found.frame["group"].tolist() == posterior.table.frame["params"].tolist()
    assert np.isfinite(found.frame["elpd"]).all()
    assert found.total < loo(posterior).total  # a size predicted from others is harder
    again = cross_validate(posterior, "params", folds=2, draws=250, tune=300, retry=False)
    assert again.frame.equals(found.frame)


def test_folds_that_do_not_converge_are_noted(posterior):
    found = cross_validate(posterior, "params", folds=2, draws=20, tune=5, retry=False)
    assert len(found.notes) == 2
    assert "ESS" in found.notes[0]


@pytest.mark.parametrize(
    ("by", "says"), [("run", "unknown column 'run'"), ("parms", "did you mean 'params'")]
)
def test_unknown_columns(posterior, by, says):
    with pytest.raises(TableError, match=says):
        cross_validate(posterior, by)


def test_a_stage_of_two_cannot_be_left_out(paper_rows):
    fitted = fit("form1", paper_rows, discrepancy="none", chains=2, draws=50, tune=50, retry=False)
    with pytest.raises(TableError, match=r"without stage 15.*'ptpp' is 31 in all 84 rows"):
        cross_validate(fitted, "stage", folds=2)


@pytest.mark.slow
def test_loo_agrees_with_refits(posterior):
    """PSIS against twenty refits, each without one row."""
    exact = cross_validate(posterior, "row", folds=20, draws=1000, tune=1000)
    quick = loo(posterior)
    good = quick.frame["pareto_k"].to_numpy() < 0.7
    assert good.mean() > 0.8
    miss = (exact.frame["elpd"].to_numpy() - quick.frame["elpd"].to_numpy())[good]
    assert np.abs(miss).max() < 0.25
    assert abs(miss.mean()) < 0.05


def test_a_column_with_missing_labels(posterior):
    frame = posterior.table.frame.assign(shard=[None, "a"] * 10)
    holed = replace(posterior, table=replace(posterior.table, frame=frame))
    with pytest.raises(TableError, match="column 'shard' is missing in rows 0, 2, 4, 6, 8 and 5"):
        cross_validate(holed, "shard")


def test_rows_without_labels_are_no_run(posterior):
    table = replace(posterior.table, frame=posterior.table.frame.assign(run=None))
    assert loo(replace(posterior, table=table)).by == "row"


def test_pit_values_of_a_wrong_scale(posterior):
    """Left-out losses are uniform under the fit, and not if its noise is ten times too wide."""
    sound = leave_out(posterior)
    assert sound.unit == "row"
    assert sound.uniformity() > 0.01
    draws = posterior.draws.assign(sigma=10 * posterior.draws["sigma"])
    wide = Posterior(
        posterior.spec, posterior.table, posterior.at, draws, posterior.stats, posterior.convergence
    )
    assert leave_out(wide).uniformity() < 0.01


def test_units_with_a_large_pareto_k_are_counted_and_set_apart():
    count = 40
    pit = (np.arange(count) + 0.5) / count
    even = LeftOut("row", pd.DataFrame({"pit": pit, "pareto_k": 0.2}), 0.7)
    assert even.unreliable == 0
    bad = pd.DataFrame({"pit": 1e-3, "pareto_k": np.r_[np.full(29, 0.71), np.nan]})
    mixed = replace(even, frame=pd.concat([even.frame, bad], ignore_index=True))
    assert mixed.unreliable == 30
    assert mixed.uniformity() == even.uniformity() > 0.1
    assert replace(mixed, good_k=0.72).uniformity() < 1e-6


def test_a_misspelt_setting_is_an_error(posterior):
    with pytest.raises(FitError, match="unknown setting 'drws'; did you mean 'draws'"):
        cross_validate(posterior, "params", drws=5)


def test_the_largest_good_pareto_k_is_that_of_so_many_draws(posterior):
    """Of S draws, 1 - 1 / log10(S) and at most .7 (Vehtari and others 2024)."""
    few = replace(posterior, draws=posterior.draws.isel(draw=slice(50)))
    assert leave_out(few).good_k == pytest.approx(0.56541, abs=1e-5)  # of 200 draws
    many = posterior.draws.sizes["chain"] * posterior.draws.sizes["draw"]
    assert many > 2154
    assert leave_out(posterior).good_k == 0.7
