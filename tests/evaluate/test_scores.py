import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from bayeslaw import (
    FitError,
    FitWarning,
    Forecast,
    LawError,
    NotConverged,
    TableError,
    check,
    compare,
    fit_huber,
    from_frame,
    grid,
    paper_world,
    score,
)
from tests.inside import (
    BANDS,
    POINT,
    Convergence,
    band_scores,
    crps,
    note,
    point_scores,
    row_name,
    scores,
)
from tests.support import on_bound

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


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0.5, 5), st.floats(0.5, 5)), min_size=1, max_size=9))
@example([(2.0, 2.0 / 1.01), (3.0, 3.0 / 1.1), (4.0, 4.0)])
def test_point_metrics_row_by_row(pairs):
    predicted, loss = np.array(pairs).T
    got = point_scores(predicted, loss)
    r = np.abs(np.log(predicted) - np.log(loss))
    error = np.abs(predicted - loss)
    wanted = {
        "huber_log": np.where(r <= 0.02, r**2 / 2, 0.02 * (r - 0.01)).mean(),
        "rmse_log": np.sqrt((r**2).mean()),
        "mae_rel": (error / loss).mean(),
        "mape_clip": (error / np.maximum(loss, 1e-8)).mean(),
    }
    assert list(got) == KEYS[:6]
    for key, value in wanted.items():
        assert got[key] == pytest.approx(value, rel=1e-9, abs=1e-15)
    if np.ptp(predicted) > 0.01:
        line = stats.linregress(np.log(predicted), np.log(loss))
        np.testing.assert_allclose(
            [got["intercept"], got["slope"]], [line.intercept, line.slope], rtol=1e-8, atol=1e-10
        )


def test_point_metrics_at_their_edges():
    loss = np.array([2.0, 3.0, 5.0])
    perfect = point_scores(loss, loss)
    assert perfect == pytest.approx(dict(zip(KEYS, (0, 0, 0, 0, 0, 1), strict=False)), abs=1e-12)
    got = point_scores(np.array([2.0, 2.0]), np.array([2.0, 2.1]))
    assert np.isnan([got["intercept"], got["slope"]]).all()  # a line needs two predictions
    got = point_scores(np.array([2e-9]), np.array([1e-9]))  # tiny losses are clipped
    assert got["mae_rel"] == pytest.approx(1)
    assert got["mape_clip"] == pytest.approx(0.1)


def test_crps_by_brute_force_and_of_a_gaussian():
    rng = np.random.default_rng(0)
    samples, truth = rng.standard_t(3, (40, 5)), rng.normal(size=5)
    for row in range(5):
        x = samples[:, row]
        pairs = np.mean([abs(a - b) for a in x for b in x])
        want = np.mean([abs(a - truth[row]) for a in x]) - pairs / 2
        assert crps(samples, truth)[row] == pytest.approx(want, rel=1e-12)
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


def test_a_posterior_is_scored_by_its_predictive_forecast(posterior, small):
    forecast = posterior.forecast(small, seed=5)
    got = score(posterior, small, seed=5)
    assert got.equals(score(forecast, small))
    assert not got.equals(score(posterior, small, seed=6))
    wanted = point_scores(forecast.median, small.loss)
    wanted |= band_scores(np.log(forecast.samples), np.log(small.loss))
    assert got.to_dict() == wanted
    point = score(fit_huber("chinchilla", small), small)
    assert list(got.index) == list(point.index) == KEYS
    assert point[KEYS[6:]].isna().all()
    assert np.isfinite(point[KEYS[:6]]).all()


def test_forecasts_are_scored_on_log_loss():
    samples = np.exp(np.linspace(-0.1, 0.1, 201))[:, None] * np.array([2.0, 3.0])
    forecast, table = forecast_of(samples, np.array([2.0, 3.0 * np.exp(0.12)]))
    got = score(forecast, table)
    assert got["width_90"] == pytest.approx(0.18)
    assert got["coverage_90"] == 0.5
    assert got["winkler_90"] == pytest.approx(0.18 + 20 * 0.03 / 2)
    assert got["mae_rel"] == pytest.approx((1 - np.exp(-0.12)) / 2)


def test_a_forecast_is_scored_on_its_own_rows(posterior, small):
    with pytest.raises(TableError, match=r"forecast has 4 rows, .* has 20"):
        score(posterior.forecast(grid(params=[1e9, 2e9], tokens=[1e9, 2e9])), small)
    made = posterior.forecast(small)
    backwards = from_frame(small.frame.iloc[::-1])
    with pytest.raises(TableError, match=r"row 0: params is 1.*in the forecast and 3"):
        score(made, backwards)
    labelled = from_frame(small.frame.assign(run=np.arange(20)))
    with pytest.raises(TableError, match="row 0: run is 19"):
        score(posterior.forecast(labelled.frame.assign(run=np.arange(20.0)[::-1])), labelled)
    assert score(posterior.forecast(labelled), small).equals(score(made, small))


def test_rows_of_another_domain_are_refused(posterior, small):
    fitted = replace(posterior, table=from_frame(small.frame.assign(domain="french")))
    point = fit_huber("chinchilla", fitted.table)
    greek = from_frame(small.frame.assign(domain="greek"))
    for call in (
        lambda: score(fitted, greek),
        lambda: fitted.forecast(greek.frame),
        lambda: check(fitted, greek.frame.drop(columns="loss")),
        lambda: score(point, greek),
        lambda: point.forecast(greek),
    ):
        with pytest.raises(TableError, match="rows of domain greek, but the law was fitted to fre"):
            call()
    unnamed = greek.frame.drop(columns="domain")
    np.testing.assert_array_equal(
        fitted.forecast(unnamed).samples, posterior.forecast(small).samples
    )


SPLIT = {"train": "ptpp <= 31", "test": "ptpp == 279"}


def fit_huber_quietly(law, table):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        return fit_huber(law, table)


@pytest.fixture(scope="module")
def world():
    return paper_world().table("french", seed=0)


@pytest.fixture(scope="module")
def papers(world):
    return compare(world, **SPLIT)


def test_the_papers_table(papers):
    assert list(papers.index) == ["form1", "form2", "form3", "dcpt (transfer)", "dcpt (oracle)"]
    assert papers.index.name == "law"
    assert list(papers.columns) == [*POINT, *BANDS, "rows", "scored", "note"]
    assert list(papers["rows"]) == [168] * 4 + [84]
    assert list(papers["scored"]) == [84] * 5
    assert np.isfinite(papers[list(POINT)].to_numpy(float)).all()
    assert papers[list(BANDS)].isna().all(axis=None)
    # The error of the oracle is the noise; that of the law without PTPP is the largest.
    error = papers["rmse_log"]
    assert error["dcpt (oracle)"] == error.min() < 0.004
    assert error["dcpt (transfer)"] > 5 * error["dcpt (oracle)"]
    assert error["dcpt (transfer)"] > error[["form1", "form2"]].min()


@on_bound
def test_rows_are_those_of_the_single_fits(world, papers):
    train, test = world.split(**SPLIT)
    for label, law, rows in (("form2", "form2", train), ("dcpt (oracle)", "dcpt", test)):
        fit = fit_huber(law, rows)
        alone = score(fit, test)
        got = papers.loc[label, list(POINT)].astype(float)
        np.testing.assert_allclose(got, alone[list(POINT)], rtol=1e-12)
        assert papers.loc[label, "note"] == note(fit, test)
    spread = fit_huber("form2", train).forecast(test)
    most = 100 * (spread["highest"] / spread["lowest"] - 1).max()
    assert papers.loc["form2", "note"].endswith(f"up to {most:.2g} % apart")


def test_anchors_become_training_rows_and_reduce_the_error(world, papers):
    small = "ptpp == 279 and params == 241e6"
    got = compare(world, **SPLIT, anchors=small)
    assert list(got["rows"]) == [189] * 3 + [168, 84]
    assert list(got["scored"]) == [63] * 4 + [84]
    assert got.loc["form3", "rmse_log"] < 0.006
    assert got.loc["form3", "rmse_log"] < papers.loc["form3", "rmse_log"]


@on_bound
def test_transfer_and_oracle_do_not_depend_on_anchors(world, papers):
    small = "ptpp == 279 and params == 241e6"
    got = compare(world, **SPLIT, anchors=small, laws=["dcpt"])
    oracle = list(POINT)
    assert got.loc["dcpt (oracle)", oracle].equals(papers.loc["dcpt (oracle)", oracle])
    test = world.split(**SPLIT, anchors=small)[1]
    alone = score(fit_huber("dcpt", world.split(**SPLIT)[0]), test)
    transfer = got.loc["dcpt (transfer)", list(POINT)].astype(float)
    np.testing.assert_allclose(transfer, alone[list(POINT)], rtol=1e-12)


def test_each_domain_is_compared_by_itself(world):
    some = {**SPLIT, "laws": ["form1", "dcpt"]}
    source = paper_world().table("english_arabic", seed=0)
    one, two = (compare(each, **some) for each in (world, source))
    both = compare(paper_world().table(None, seed=0), **some)
    assert both.index.names == ["domain", "law"]
    pd.testing.assert_frame_equal(both.loc["french"], one)
    pd.testing.assert_frame_equal(both.loc["english_arabic"], two)
    pd.testing.assert_frame_equal(compare(world, source=source, **some), both)
    bare = [from_frame(each.frame.drop(columns="domain"), "bare") for each in (world, source)]
    got = compare(bare[0], source=bare[1], **some)
    assert list(got.index.unique("domain")) == ["target", "source"]
    assert row_name(got.index[0]) == "target, form1"
    with pytest.raises(TableError, match="a domain in common: french"):
        compare(world, source=world, **some)


def test_bounds_of_the_huber_fits(world):
    source = paper_world().table("english_arabic", seed=0)
    settings = {**SPLIT, "laws": ["form2"]}
    assert "lambda_ = 1" in compare(source, **settings, bounds="prior").loc["form2", "note"]
    assert "lambda_" not in compare(source, **settings).loc["form2", "note"]


def test_notes_name_parameters_on_a_bound(delphi):
    largest = f"params < {delphi.frame['params'].max()}"
    got, rest = compare(delphi, train=largest, laws=["chinchilla"]), delphi.split(largest)[1]
    fit = fit_huber_quietly("chinchilla", delphi.query(largest))
    assert got.loc["chinchilla", "note"] == note(fit, rest)
    assert fit.at_bounds == {"E": 0.0}
    assert note(fit, rest) == "E = 0"


def test_bands_of_posteriors(small):
    got = compare(
        small, train="tokens < 5e10", laws=["chinchilla"], method="nuts", discrepancy="none"
    )
    assert np.isfinite(got[[*POINT, *BANDS]].to_numpy(float)).all()
    assert got.loc["chinchilla", "note"] == ""
    assert got.loc["chinchilla", "rmse_log"] < 0.02


def test_unconverged_posteriors(small):
    settings = {"laws": ["chinchilla"], "method": "nuts", "draws": 20, "tune": 5, "chains": 2}
    with pytest.raises(NotConverged, match="allow_unconverged"):
        compare(small, train="tokens < 5e10", **settings)
    got = compare(small, train="tokens < 5e10", **settings, allow_unconverged=True)
    assert "ESS" in got.loc["chinchilla", "note"]


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({"train": "ptpp > 1e9"}, TableError, "the train set is empty"),
        ({"train": "ptpp == 15", "laws": ["form3"]}, TableError, "fitted to rows of ptpp 15 alone"),
        ({"train": "ptpp <= 31", "laws": ["from3"]}, LawError, "did you mean 'form3'"),
        ({"train": "ptpp <= 31", "method": "hubr"}, FitError, "'huber' or 'nuts', not 'hubr'"),
        ({"train": "ptpp <= 31", "delta": -1}, FitError, "delta must be positive"),
        ({}, TableError, "needs a train or a test query"),
        ({**SPLIT, "drws": 5}, FitError, "unknown setting 'drws'; did you mean 'draws'"),
        ({**SPLIT, "draws": 5}, FitError, "method='huber' does not use draws"),
    ],
)
def test_bad_requests(world, settings, error, says):
    with pytest.raises(error, match=says):
        compare(world, **settings)


def test_posteriors_have_the_threshold_that_is_given(small, monkeypatch):
    fitted, scored = [], scores.score
    monkeypatch.setattr(
        scores, "score", lambda fit, *args, **kw: fitted.append(fit) or scored(fit, *args, **kw)
    )
    settings = {"discrepancy": "none", "draws": 50, "tune": 50, "retry": False, "chains": 2}
    compare(
        small, train="params < 3e9", laws=["chinchilla"], method="nuts", likelihood="huber",
        delta=0.05, allow_unconverged=True, **settings,
    )  # fmt: skip
    assert fitted[0].spec.delta == 0.05
