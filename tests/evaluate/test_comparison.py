import warnings

import numpy as np
import pandas as pd
import pytest

from bayeslaw.common.errors import FitError, FitWarning, LawError, NotConverged, TableError
from bayeslaw.evaluate import comparison
from bayeslaw.evaluate.comparison import compare, note, row_name
from bayeslaw.evaluate.scores import BANDS, POINT, score
from bayeslaw.huber.point_fit import fit_huber
from bayeslaw.simulation.worlds import paper_world
from bayeslaw.tables.reading import from_frame
from tests.support import on_bound

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


def test_laws_rank_as_in_the_paper(papers):
    """The error of the oracle is the noise; that of the law without PTPP is the largest."""
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


def test_laws_and_oracle_are_chosen(world):
    got = compare(world, **SPLIT, laws=["dcpt"], oracle=False)
    assert list(got.index) == ["dcpt (transfer)"]
    assert list(compare(world, **SPLIT, laws=["form1"]).index) == ["form1"]


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
        ({"train": "ptpp == 15", "laws": ["form3"]}, TableError, "'ptpp' is 15 in all 84 rows"),
        ({"train": "ptpp <= 31", "laws": ["from3"]}, LawError, "did you mean 'form3'"),
        ({"train": "ptpp <= 31", "method": "hubr"}, FitError, "'huber' or 'nuts', not 'hubr'"),
        ({"train": "ptpp <= 31", "delta": -1}, FitError, "delta must be positive"),
        ({}, TableError, "needs a train or a test query"),
    ],
)
def test_bad_requests(world, settings, error, says):
    with pytest.raises(error, match=says):
        compare(world, **settings)


def test_settings_without_effect_are_refused(world):
    with pytest.raises(FitError, match="unknown setting 'drws'; did you mean 'draws'"):
        compare(world, **SPLIT, drws=5)
    with pytest.raises(FitError, match="method='huber' does not use draws"):
        compare(world, **SPLIT, draws=5)


def test_posteriors_have_the_threshold_that_is_given(small, monkeypatch):
    fitted, scored = [], comparison.score
    monkeypatch.setattr(
        comparison, "score", lambda fit, *args, **kw: fitted.append(fit) or scored(fit, *args, **kw)
    )
    settings = {"discrepancy": "none", "draws": 50, "tune": 50, "retry": False, "chains": 2}
    compare(
        small, train="params < 3e9", laws=["chinchilla"], method="nuts", likelihood="huber",
        delta=0.05, allow_unconverged=True, **settings,
    )  # fmt: skip
    assert fitted[0].spec.delta == 0.05
