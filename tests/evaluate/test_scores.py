import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bayeslaw.common.errors import TableError
from bayeslaw.evaluate.forecast import Forecast
from bayeslaw.evaluate.scores import band_scores, crps, point_scores, score
from bayeslaw.huber.point_fit import fit_huber
from bayeslaw.inference.convergence import Convergence
from bayeslaw.tables.reading import from_frame
from bayeslaw.tables.table import grid

KEYS = [
    *("huber_log", "rmse_log", "mae_rel", "mape_clip", "intercept", "slope"),
    *("coverage_50", "coverage_80", "coverage_90", "width_90", "crps", "winkler_90"),
]
PASSED = Convergence(1.0, 1e4, 1e4, 0, 1.0)


def forecast_of(samples, loss):
    """A forecast with the given draws, and the table of measured losses."""
    frame = grid(params=1e9, tokens=1e9 * np.arange(1, len(loss) + 1))
    draws = xr.DataArray(samples[None], dims=("chain", "draw", "row"))
    return Forecast(draws, frame, "law", "predictive", PASSED), from_frame(frame.assign(loss=loss))


def test_point_metrics_by_hand():
    predicted, loss = np.array([2.0, 3.0, 4.0]), np.array([2.0 / 1.01, 3.0 / 1.1, 4.0])
    got = point_scores(predicted, loss)
    a, b = np.log(1.01), np.log(1.1)
    assert list(got) == KEYS[:6]
    assert got["huber_log"] == pytest.approx((a**2 / 2 + 0.02 * (b - 0.01)) / 3, rel=1e-12)
    assert got["rmse_log"] == pytest.approx(np.sqrt((a**2 + b**2) / 3), rel=1e-12)
    assert got["mae_rel"] == got["mape_clip"] == pytest.approx(0.11 / 3, rel=1e-12)
    line = stats.linregress(np.log(predicted), np.log(loss))
    assert got["intercept"] == pytest.approx(line.intercept, rel=1e-10)
    assert got["slope"] == pytest.approx(line.slope, rel=1e-10)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0.5, 5), st.floats(0.5, 5)), min_size=1, max_size=9))
def test_point_metrics_row_by_row(pairs):
    got = point_scores(*np.array(pairs).T)
    total = dict.fromkeys(KEYS[:4], 0.0)
    for predicted, loss in pairs:
        r = np.log(predicted) - np.log(loss)
        total["huber_log"] += r * r / 2 if abs(r) <= 0.02 else 0.02 * (abs(r) - 0.01)
        total["rmse_log"] += r * r
        total["mae_rel"] += abs(predicted - loss) / loss
        total["mape_clip"] += abs(predicted - loss) / max(loss, 1e-8)
    mean = {key: value / len(pairs) for key, value in total.items()}
    mean["rmse_log"] **= 0.5
    for key, value in mean.items():
        assert got[key] == pytest.approx(value, rel=1e-9, abs=1e-15)


def test_a_perfect_prediction():
    loss = np.array([2.0, 3.0, 5.0])
    got = point_scores(loss, loss)
    assert got == pytest.approx(dict(zip(KEYS, (0, 0, 0, 0, 0, 1), strict=False)), abs=1e-12)


def test_a_line_needs_two_predictions():
    got = point_scores(np.array([2.0, 2.0]), np.array([2.0, 2.1]))
    assert np.isnan([got["intercept"], got["slope"]]).all()


def test_tiny_losses_are_clipped():
    got = point_scores(np.array([2e-9]), np.array([1e-9]))
    assert got["mae_rel"] == pytest.approx(1)
    assert got["mape_clip"] == pytest.approx(0.1)


def test_crps_by_brute_force():
    rng = np.random.default_rng(0)
    samples, truth = rng.standard_t(3, (40, 5)), rng.normal(size=5)
    for row in range(5):
        x = samples[:, row]
        pairs = np.mean([abs(a - b) for a in x for b in x])
        want = np.mean([abs(a - truth[row]) for a in x]) - pairs / 2
        assert crps(samples, truth)[row] == pytest.approx(want, rel=1e-12)


def test_crps_of_a_gaussian():
    truth = np.array([-1.0, 0.0, 0.5, 3.0])
    samples = stats.norm(0.3, 2).ppf((np.arange(4000) + 0.5) / 4000)[:, None] * np.ones(4)
    z = (truth - 0.3) / 2
    normal = stats.norm()
    want = 2 * (z * (2 * normal.cdf(z) - 1) + 2 * normal.pdf(z) - 1 / np.sqrt(np.pi))
    np.testing.assert_allclose(crps(samples, truth), want, rtol=1e-3)


def test_bands_by_hand():
    samples = np.linspace(0, 1, 1001)[:, None] * np.ones(4)
    truth = np.array([0.5, 0.15, 0.07, 1.2])  # inside all, in 80 %, in 90 %, above
    got = band_scores(samples, truth)
    assert [got[f"coverage_{level}"] for level in (50, 80, 90)] == [0.25, 0.5, 0.75]
    assert got["width_90"] == pytest.approx(0.9)
    assert got["winkler_90"] == pytest.approx(0.9 + 20 * (1.2 - 0.95) / 4)
    below = band_scores(samples[:, :1], np.array([-0.1]))
    assert below["winkler_90"] == pytest.approx(0.9 + 20 * 0.15)


def test_coverage_of_the_true_distribution():
    rng = np.random.default_rng(5)
    got = band_scores(rng.normal(size=(2000, 3000)), rng.normal(size=3000))
    for level in (50, 80, 90):
        assert got[f"coverage_{level}"] == pytest.approx(level / 100, abs=0.03)


def test_a_series_with_these_keys(posterior, small):
    bands, point = score(posterior, small), score(fit_huber("chinchilla", small), small)
    assert list(bands.index) == list(point.index) == KEYS
    assert np.isfinite(bands).all()
    assert point[KEYS[6:]].isna().all()
    assert np.isfinite(point[KEYS[:6]]).all()


def test_a_posterior_is_scored_by_its_predictive_forecast(posterior, small):
    forecast = posterior.forecast(small, seed=5)
    got = score(posterior, small, seed=5)
    assert got.equals(score(forecast, small))
    assert not got.equals(score(posterior, small, seed=6))
    wanted = point_scores(forecast.median, small.loss)
    wanted |= band_scores(np.log(forecast.samples), np.log(small.loss))
    assert got.to_dict() == wanted


def test_forecasts_are_scored_on_log_loss():
    samples = np.exp(np.linspace(-0.1, 0.1, 201))[:, None] * np.array([2.0, 3.0])
    forecast, table = forecast_of(samples, np.array([2.0, 3.0 * np.exp(0.12)]))
    got = score(forecast, table)
    assert got["width_90"] == pytest.approx(0.18)
    assert got["coverage_90"] == 0.5
    assert got["winkler_90"] == pytest.approx(0.18 + 20 * 0.03 / 2)
    assert got["mae_rel"] == pytest.approx((1 - np.exp(-0.12)) / 2)


def test_lengths_must_agree(posterior, small):
    with pytest.raises(TableError, match=r"forecast has 4 rows, .* has 20"):
        score(posterior.forecast(grid(params=[1e9, 2e9], tokens=[1e9, 2e9])), small)
