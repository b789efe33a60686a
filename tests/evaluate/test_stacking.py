"""Cross-validation, stacking weights and stacked forecasts."""

import warnings

import arviz as az
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bayeslaw import Forecast, LawError, TableError, fit, grid, score, stack
from bayeslaw.evaluate.stacking import stacking_weights
from tests.evaluate.arviz_tree import tree

ROWS = grid(params=[1e9, 1e10], tokens=[1e10, 1e12])


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
    counts = np.array([1.0] * 30 + [3.0] * 10)
    np.testing.assert_allclose(stacking_weights(elpd, counts), [0.5, 0.5], atol=1e-4)


def test_a_dominated_law_has_no_weight():
    elpd = np.add(np.random.default_rng(0).normal(size=(40, 1)), [0.0, -5.0])
    np.testing.assert_allclose(stacking_weights(elpd - 1e4), [1, 0], atol=1e-6)


def test_report(stacked):
    frame = stacked.to_frame()
    assert frame.index.name == "law"
    assert set(frame.index) == {"chinchilla (none)", "chinchilla (curvature)"}
    assert frame["elpd"].is_monotonic_decreasing
    assert frame["difference"].iloc[0] == 0 >= frame["difference"].iloc[1]
    assert frame["weight"].sum() == pytest.approx(1)
    assert (frame["weight_sd"] > 0).any()
    assert "cannot rank extrapolation" in str(stacked)


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
