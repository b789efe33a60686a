"""Cross-validation, stacking weights and stacked forecasts."""

import warnings
from dataclasses import replace

import arviz as az
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bayeslaw import (
    Elpd,
    FitError,
    Forecast,
    LawError,
    TableError,
    cross_validate,
    fit,
    grid,
    loo,
    score,
    stack,
)
from tests.inside import log_likelihood, stacking_weights

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


def test_unknown_columns_and_settings(posterior):
    for by, says in (("run", "unknown column 'run'"), ("parms", "did you mean 'params'")):
        with pytest.raises(TableError, match=says):
            cross_validate(posterior, by)
    with pytest.raises(FitError, match="unknown setting 'drws'; did you mean 'draws'"):
        cross_validate(posterior, "params", drws=5)


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
    return fit("chinchilla", small, seed=0, discrepancy="curvature", draws=1000, tune=1000)


@pytest.fixture(scope="module")
def stacked(posterior, curved):
    return stack([posterior, curved])


def test_weights_agree_with_arviz(posterior, curved, stacked):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of one row's Pareto k
        table = az.compare({"none": tree(posterior), "curvature": tree(curved)}, round_to="none")
    weights = stacked.weights
    assert weights["chinchilla (none)"] == pytest.approx(table.loc["none", "weight"], abs=0.02)


elpds = arrays(float, (12, 3), elements=st.floats(-50, 50))


@settings(deadline=None, max_examples=50)
@given(elpds)
def test_no_single_law_is_better(elpd):
    def log_score(weights):
        return np.logaddexp.reduce(elpd + np.log(np.maximum(weights, 1e-300)), axis=1).sum()

    weights = stacking_weights(elpd)
    assert weights.sum() == pytest.approx(1)
    assert (weights >= 0).all()
    best = max(log_score(single) for single in np.eye(3))
    assert log_score(weights) >= best - 1e-5 * (1 + abs(best))


def test_weights_of_two_laws_in_closed_form():
    elpd = np.log(np.array([[0.9, 0.1]] * 30 + [[0.1, 0.9]] * 10))
    share = (0.75 - 0.1) / 0.8  # where the derivative of the log score is zero
    np.testing.assert_allclose(stacking_weights(elpd), [share, 1 - share], atol=1e-4)
    dominated = np.add(np.random.default_rng(0).normal(size=(40, 1)), [0.0, -5.0])
    np.testing.assert_allclose(stacking_weights(dominated - 1e4), [1, 0], atol=1e-6)
    counts = np.array([1.0] * 30 + [3.0] * 10)
    np.testing.assert_allclose(stacking_weights(elpd, counts), [0.5, 0.5], atol=1e-4)


def test_report(stacked):
    frame = stacked.to_frame()
    assert frame.index.name == "law"
    assert set(frame.index) == {"chinchilla (none)", "chinchilla (curvature)"}
    assert frame["elpd"].is_monotonic_decreasing
    assert frame["difference"].iloc[0] == 0 >= frame["difference"].iloc[1]
    assert frame["weight"].sum() == pytest.approx(1)
    assert (frame["weight_sd"] > 0).any()
    assert "cannot rank extrapolation" in " ".join(str(stacked).split())


def test_stacked_forecast_is_a_mixture(stacked, small):
    weights = {"chinchilla (none)": 0.25, "chinchilla (curvature)": 0.75}
    mixed = stacked.forecast(ROWS, weights=weights, seed=4)
    assert isinstance(mixed, Forecast)
    shares = {name: float((mixed.draws["law"] == name).mean()) for name in weights}
    assert shares == pytest.approx(weights, abs=0.002)
    parts = {name: f.forecast(ROWS, seed=4).samples.mean(0) for name, f in stacked.fits.items()}
    want = sum(weights[name] * parts[name] for name in weights)
    np.testing.assert_allclose(mixed.samples.mean(0), want, rtol=1e-3)
    assert mixed.law == "0.25 chinchilla (none) + 0.75 chinchilla (curvature)"
    assert mixed.draws.equals(stacked.forecast(ROWS, weights=weights, seed=4).draws)
    medians = [mixed.parts[name].median for name in weights]
    np.testing.assert_allclose(
        mixed.between, np.abs(medians[0] - medians[1]) * np.sqrt(0.25 * 0.75), rtol=1e-9
    )
    assert (mixed.to_frame()["between"] == mixed.between).all()
    assert len(mixed.bands((0.5, 0.9))) == 2 * len(ROWS)
    assert mixed.positions.equals(next(iter(mixed.parts.values())).positions)
    assert np.isfinite(score(stacked.forecast(small), small)).all()


def test_mixtures_are_wider_where_laws_differ(stacked):
    equal = dict.fromkeys(stacked.fits, 0.5)
    mixed = stacked.forecast(ROWS, weights=equal)
    within = np.mean([part.samples.var(0) for part in mixed.parts.values()], axis=0)
    np.testing.assert_allclose(mixed.samples.var(0), within + mixed.between**2, rtol=0.1)


def test_a_law_without_weight_need_not_converge(posterior, unconverged):
    both = stack({"good": posterior, "bad": unconverged})
    only = both.forecast(ROWS, weights={"good": 1.0, "bad": 0.0})
    assert set(only.parts) == {"good"}
    mixed = both.forecast(ROWS, weights={"good": 0.5, "bad": 0.5}, allow_unconverged=True)
    draws = unconverged.draws.sizes

    assert not mixed.convergence.ok
    assert mixed.samples.shape == (draws["chain"] * draws["draw"], len(ROWS))


def test_mistakes(posterior, delphi, stacked):
    settings = {"discrepancy": "none", "effects": "none", "draws": 50, "tune": 50}
    other = fit("chinchilla", delphi, retry=False, **settings)
    with pytest.raises(TableError, match="different tables"):
        stack([posterior, other])
    with pytest.raises(LawError, match=r"did you mean 'chinchilla \(none\)'"):
        stacked.forecast(ROWS, weights={"chinchila (none)": 1.0})
    with pytest.raises(LawError, match="no law in the stack has weight"):
        stacked.forecast(ROWS, weights={})
