"""Cross-validation, and mixtures of forecasts."""

import warnings
from dataclasses import replace

import arviz as az
import numpy as np
import pandas as pd
import pytest

from bayeslaw import (
    Elpd,
    FitError,
    Forecast,
    Pool,
    TableError,
    cross_validate,
    fit,
    grid,
    loo,
    score,
)
from tests.inside import log_likelihood
from tests.support import with_effects

ROWS = grid(params=[1e9, 1e10], tokens=[1e10, 1e12])


def tree(fitted):
    """A posterior and its log likelihood as an ArviZ tree."""
    sizes = fitted.draws.sizes
    shape = sizes["chain"], sizes["draw"], len(fitted.table)
    return az.from_dict(
        {
            "posterior": {name: v.values for name, v in fitted.draws.data_vars.items()},
            "log_likelihood": {"log_loss": log_likelihood(fitted).reshape(shape)},
        }
    )


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


@pytest.mark.parametrize("errors", ["independent", "run"])
def test_a_left_out_run_is_a_new_one_whatever_others_are_called(posterior, errors):
    """Also where the label that it would get is another run's."""
    found = []
    for second in ("new a", "b"):
        labels = np.repeat(["a", second, "c", "d"], 5)
        fitted = with_effects(posterior, "run", labels, 0.01, errors=errors)
        fitted = replace(fitted, draws=fitted.draws.assign(ell=0 * fitted.draws["sigma"] + 1.0))
        found.append(loo(fitted).frame[["elpd", "pit"]].to_numpy())
    order = [0, 3, 1, 2]  # of a, b, c, d among a, c, d, new a
    np.testing.assert_allclose(found[0][order], found[1], atol=0.04)


def test_folds_leave_out_whole_groups(posterior):
    short = {"folds": 2, "chains": 2, "draws": 250, "tune": 300, "retry": False}
    found = cross_validate(posterior, "params", **short)
    assert found.by == "params"
    assert found.frame["group"].tolist() == posterior.table.frame["params"].tolist()
    assert np.isfinite(found.frame["elpd"]).all()
    assert found.total < loo(posterior).total  # a size predicted from others is harder
    again = cross_validate(posterior, "params", **short)
    assert again.frame.equals(found.frame)


def test_folds_that_do_not_converge_are_noted(posterior):
    found = cross_validate(posterior, "params", folds=2, draws=20, tune=5, retry=False)
    assert len(found.notes) == 2
    assert "ESS" in found.notes[0]


def test_unknown_columns_and_settings(posterior):
    for by, says in (("run", "unknown column 'run'"), ("parms", "did you mean 'params'")):
        with pytest.raises(TableError, match=says):
            cross_validate(posterior, by)
    with pytest.raises(FitError, match="unknown setting 'drws'; did you mean 'draws'"):
        cross_validate(posterior, "params", drws=5)


def test_a_stage_of_two_cannot_be_left_out(paper_rows):
    fitted = fit("form1", paper_rows, discrepancy="none", chains=2, draws=50, tune=50, retry=False)
    with pytest.raises(TableError, match=r"without ptpp 15.*'ptpp' is 31 in all 84 rows"):
        cross_validate(fitted, "ptpp", folds=2)


@pytest.mark.slow
def test_loo_agrees_with_refits(posterior):
    """PSIS against twenty refits, each without one row."""
    short = {"chains": 2, "draws": 500, "tune": 300, "retry": False}
    exact = cross_validate(posterior, "row", folds=20, **short)
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
    table = replace(posterior.table, frame=posterior.table.frame.assign(run=None))
    assert loo(replace(posterior, table=table)).by == "row"  # rows without labels are no run


def test_pit_values_of_a_wrong_scale(posterior):
    """Left-out losses are uniform under the fit, and not if its noise is ten times too wide."""
    sound = loo(posterior)
    assert sound.by == "row"
    assert sound.uniformity() > 0.01
    wide = replace(posterior, draws=posterior.draws.assign(sigma=10 * posterior.draws["sigma"]))
    assert loo(wide).uniformity() < 0.01


def test_units_with_a_large_pareto_k_are_counted_and_set_apart():
    count = 40
    pit = (np.arange(count) + 0.5) / count
    even = Elpd(pd.DataFrame({"pit": pit, "pareto_k": 0.2}), "row", good_k=0.7)
    assert even.unreliable == 0
    bad = pd.DataFrame({"pit": 1e-3, "pareto_k": np.r_[np.full(29, 0.71), np.nan]})
    mixed = replace(even, frame=pd.concat([even.frame, bad], ignore_index=True))
    assert mixed.unreliable == 30
    assert mixed.uniformity() == even.uniformity() > 0.1
    assert replace(mixed, good_k=0.72).uniformity() < 1e-6


def test_the_largest_good_pareto_k_is_that_of_so_many_draws(posterior):
    """Of S draws, 1 - 1 / log10(S) and at most .7 (Vehtari and others 2024)."""
    few = replace(posterior, draws=posterior.draws.isel(draw=slice(50)))
    assert loo(few).good_k == pytest.approx(0.56541, abs=1e-5)  # of 200 draws
    many = posterior.draws.sizes["chain"] * posterior.draws.sizes["draw"]
    assert many > 2154
    assert loo(posterior).good_k == 0.7


@pytest.fixture(scope="module")
def curved(small):
    return fit("chinchilla", small, seed=0, discrepancy="curvature", draws=500, tune=500)


def pooled(posterior, curved, share=0.5):
    weights = {"chinchilla (none)": share, "chinchilla (curvature)": 1 - share}
    return Pool(dict(zip(weights, (posterior, curved), strict=True)), weights)


def test_forecast_of_a_pool_is_a_mixture(posterior, curved, small):
    pool = pooled(posterior, curved, 0.25)
    weights, mixed = dict(pool.weights), pool.forecast(ROWS, seed=4)
    assert isinstance(mixed, Forecast)
    shares = {name: float((mixed.draws["law"] == name).mean()) for name in weights}
    assert shares == pytest.approx(weights, abs=0.002)
    parts = {name: f.forecast(ROWS, seed=4).samples.mean(0) for name, f in pool.members.items()}
    want = sum(weights[name] * parts[name] for name in weights)
    np.testing.assert_allclose(mixed.samples.mean(0), want, rtol=1e-3)
    assert mixed.law == "0.25 chinchilla (none) + 0.75 chinchilla (curvature)"
    assert mixed.draws.equals(pool.forecast(ROWS, seed=4).draws)
    medians = [mixed.parts[name].median for name in weights]
    np.testing.assert_allclose(
        mixed.between, np.abs(medians[0] - medians[1]) * np.sqrt(0.25 * 0.75), rtol=1e-9
    )
    assert (mixed.to_frame()["between"] == mixed.between).all()
    assert len(mixed.bands((0.5, 0.9))) == 2 * len(ROWS)
    assert mixed.positions.equals(next(iter(mixed.parts.values())).positions)
    assert np.isfinite(score(pool.forecast(small), small)).all()


def test_mixtures_are_wider_where_laws_differ(posterior, curved):
    mixed = pooled(posterior, curved).forecast(ROWS)
    within = np.mean([part.samples.var(0) for part in mixed.parts.values()], axis=0)
    np.testing.assert_allclose(mixed.samples.var(0), within + mixed.between**2, rtol=0.1)


def test_a_law_without_weight_need_not_converge(posterior, unconverged):
    both = Pool({"good": posterior, "bad": unconverged}, {"good": 1.0, "bad": 0.0})
    assert set(both.forecast(ROWS).parts) == {"good"}
    both = Pool({"good": posterior, "bad": unconverged})
    mixed = both.forecast(ROWS, allow_unconverged=True)
    draws = unconverged.draws.sizes

    assert not mixed.convergence.ok
    assert mixed.samples.shape == (draws["chain"] * draws["draw"], len(ROWS))
