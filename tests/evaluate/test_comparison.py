import warnings

import numpy as np
import pytest

from bayeslaw.common.errors import FitError, FitWarning, LawError, NotConverged, TableError
from bayeslaw.evaluate.comparison import compare, note
from bayeslaw.evaluate.scores import BANDS, POINT, score
from bayeslaw.huber.point_fit import fit_huber
from bayeslaw.simulation.worlds import paper_world
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
    assert list(papers.columns) == [*POINT, *BANDS, "rows", "note"]
    assert list(papers["rows"]) == [168] * 4 + [84]
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
    for label, law, rows in (("form1", "form1", train), ("dcpt (oracle)", "dcpt", test)):
        fit = fit_huber(law, rows)
        alone = score(fit, test)
        got = papers.loc[label, list(POINT)].astype(float)
        np.testing.assert_allclose(got, alone[list(POINT)], rtol=1e-12)
        assert papers.loc[label, "note"] == note(fit)


def test_anchors_become_training_rows_and_reduce_the_error(world, papers):
    small = "ptpp == 279 and params == 241e6"
    got = compare(world, **SPLIT, anchors=small)
    assert list(got["rows"]) == [189] * 4 + [63]
    assert got.loc["form3", "rmse_log"] < 0.006
    assert got.loc["form3", "rmse_log"] < papers.loc["form3", "rmse_log"]


def test_laws_and_oracle_are_chosen(world):
    got = compare(world, **SPLIT, laws=["dcpt"], oracle=False)
    assert list(got.index) == ["dcpt (transfer)"]
    assert list(compare(world, **SPLIT, laws=["form1"]).index) == ["form1"]


def test_notes_name_parameters_on_a_bound(delphi):
    largest = f"params < {delphi.frame['params'].max()}"
    got = compare(delphi, train=largest, laws=["chinchilla"])
    fit = fit_huber_quietly("chinchilla", delphi.query(largest))
    assert got.loc["chinchilla", "note"] == note(fit)
    assert fit.at_bounds == {"E": 0.0}
    assert "E = 0" in note(fit)


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
