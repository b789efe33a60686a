"""`check` on real fits: its verdict and document, held-out rows, cells and outliers."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import bayeslaw as bl
from tests.inside import at_most, cuts, dumps, grouped, judge_cells, judge_outliers, refit
from tests.support import CHINCHILLA

NEW = bl.grid(params=1e10, tokens=1e10)
LEVELS = ["ok", "caution", "no evidence", "refuse"]


@pytest.fixture(scope="module")
def late():
    return bl.paper_world().table("french", seed=0).query("ptpp == 279")


@pytest.fixture(scope="module")
def found(two_stages, late):
    return bl.check(two_stages, late)


@pytest.fixture(scope="module")
def ahead():
    """Six sizes beyond the training rows, four losses of each."""
    sizes = [4e9, 5e9, 6e9, 8e9, 1.2e10, 1.6e10]
    design = bl.grid(params=sizes, tokens=[3e10, 5e10, 7e10, 1e11])
    return bl.simulate("chinchilla", CHINCHILLA, design, sigma=0.003, seed=2)


# -- the whole ------------------------------------------------------------------------------------


def test_findings_at_two_stages(found):
    assert found.level == "refuse"
    words = " ".join(found["directions"].words)
    assert "PTPP takes 2 values; eta is not determined by these data" in words
    record = found["directions"].frame.iloc[0]
    low, high = record["losses"]
    bounds = found["bounds"].frame.loc[279]
    assert bounds["lower"] < low < high < bounds["upper"]
    assert f"moves from {low:.4g} nats (eta {record['values'][0]:.2g}) to {high:.4g}" in words
    assert high - low > 0.01
    assert found["directions"].facts["share_own"] > 0.5
    assert found["directions"].frame["leader"].tolist() == ["eta"]
    assert "2 values cannot identify a curvature" in " ".join(found["extrapolation"].words)
    assert found["left out"].frame.columns.tolist() == ["elpd", "pit", "pareto_k"]


def test_a_check_is_one_document_and_the_same_with_the_same_seed(found, two_stages, late):
    document, text = json.loads(dumps(found.to_dict())), " ".join(str(found).split())
    assert document["level"] == "refuse"
    assert not document["ok"]
    for part in found.parts:
        written = document["parts"][part.name]
        assert written["level"] == part.level
        assert written["words"] == list(part.words)
        assert len(written["table"]) == len(part.frame)
        assert all(words in text for words in part.words)
    assert found.level == max((part.level for part in found.parts), key=LEVELS.index)
    with pytest.raises(KeyError):
        found["no such part"]
    assert dumps(bl.check(two_stages, late).to_dict()) == dumps(found.to_dict())


def test_without_rows(two_stages):
    found = bl.check(two_stages)
    assert (found.level, found.rows) == ("caution", 0)
    assert "its posterior is close to its prior" in " ".join(found["directions"].words)
    alone = {"held out", "convergence", "directions", "outliers", "cells", "left out"}
    assert set(found.frames) == alone


def test_unconverged_fits_are_refused_but_checked(unconverged):
    found = bl.check(unconverged, bl.grid(params=1e9, tokens=1e10))
    assert found.level == found["convergence"].level == "refuse"
    assert "fit again" in found["convergence"].words[0]


def test_rows_must_have_the_covariates_and_may_have_the_papers_symbols(posterior, two_stages):
    with pytest.raises(bl.TableError, match="ptpp"):
        bl.check(two_stages, bl.grid(params=1e9, tokens=1e10, replay=0.3))
    with pytest.raises(bl.TableError, match=r"'params' .or N. is missing"):
        bl.check(posterior, pd.DataFrame({"tokens": [1e10]}))
    symbols = pd.DataFrame({"N": [1e10], "D": [1e10]})
    assert str(bl.check(posterior, NEW)) == str(bl.check(posterior, symbols))


@pytest.mark.slow
def test_false_alarms():
    """Sound fits inside their range: the parts that test at 1 % seldom say caution."""
    design = bl.grid(params=[1e8, 3e8, 1e9, 3e9], tokens=[1e9, 3e9, 1e10, 3e10, 1e11])
    settings = {"draws": 300, "tune": 300, "chains": 2, "retry": False, "discrepancy": "none"}
    alarms = []
    for seed in range(12):
        table = bl.simulate("chinchilla", CHINCHILLA, design, sigma=0.003, seed=seed)
        found = bl.check(bl.fit("chinchilla", table, seed=seed, **settings))
        alarms += [found[name].level != "ok" for name in ("cells", "left out")]
        assert found["directions"].level == "ok"
    # 24 tests at 1 %: more than 2 in 1 run of 500, and in 19 of 20 if a quarter were alarms.
    assert sum(alarms) <= 2


# -- held-out rows --------------------------------------------------------------------------------


def test_bands_that_hold_pass(posterior, ahead):
    part = bl.check(posterior, ahead)["held out"]
    assert part.level == "ok"
    assert part.facts["groups"] == 6
    low, high = posterior.forecast(ahead).quantile([0.05, 0.95])
    inside = (low <= ahead.loss) & (ahead.loss <= high)
    assert f"holds {inside.sum()} of 24 losses" in part.words[0]
    by_size = pd.Series(inside).groupby(ahead.frame["params"]).mean().sum()
    assert part.facts["held"] == pytest.approx(by_size)
    one = bl.check(posterior, ahead.query("params == 4e9"))["held out"]
    assert one.level == "caution"
    assert "1 group of rows cannot show that bands hold." in one.words


def test_bands_that_miss_all_large_sizes_failed_here(posterior, ahead):
    """All losses of three of six sizes are missed, on one side."""
    far = ahead.frame["params"] > 7e9
    planted = bl.from_frame(ahead.frame.assign(loss=ahead.loss * np.where(far, 1.03, 1.0)))
    found = bl.check(posterior, planted)
    assert found.level == "refuse"
    assert found.verdict.startswith("REFUSE: the bands failed here: the 90 % band holds ")
    assert " ".join(str(found).split()).startswith(found.verdict)
    assert "In the farther half the forecasts are too low by 3" in found["held out"].words[1]


def test_the_farthest_training_rows_are_forecast_from_the_others(posterior):
    part = bl.check(posterior, NEW)["held out"]
    assert part.facts["own"]
    assert part.words[0].startswith("The farthest 5 training rows, forecast from the 15 others by")
    assert part.level != "refuse"
    seen = posterior.table.frame
    for rows, kept in ((NEW, seen["params"] < 3e9), (NEW * [0.1, 100], seen["tokens"] < 3e10)):
        assert (next(cuts(posterior.table, posterior.columns, rows)) == kept).all()
    fitted = bl.check(posterior, posterior.table)["held out"]
    assert fitted.facts["own"]  # the losses of training rows are no held-out ones


def test_a_large_table_is_cut_at_few_places(monkeypatch):
    """The distance of all rows is computed for each cut: 1,000 cuts of 2,000 rows took minutes."""
    tokens = list(np.geomspace(1e9, 1e12, 50))
    design = bl.grid(params=list(np.geomspace(1e8, 1e10, 40)), tokens=tokens)
    table, asked = bl.simulate("chinchilla", CHINCHILLA, design), []
    monkeypatch.setattr(
        "bayeslaw.checks._check.decades", lambda near, far, _: asked.append(len(near)) or [0.1]
    )
    for rows, most in ((None, 0), (bl.grid(params=1e11, tokens=1e13), 32)):
        near = next(cuts(table, ("params", "tokens"), rows))
        assert 1000 <= near.sum() < 2000
        assert len(asked) <= most
    assert min(asked) < 1100 < 1900 < max(asked)


def test_a_law_that_fails_on_its_own_training_rows_is_not_ok(posterior):
    """Losses bend away from the power law at large sizes; the law is taken as exact."""
    design = bl.grid(params=np.geomspace(1e8, 1e10, 9), tokens=[1e10, 3e10, 1e11])
    table = bl.simulate("chinchilla", CHINCHILLA, design, sigma=0.001, seed=3)
    bend = 1 + 0.02 * np.clip(np.log10(table.frame["params"] / 1e9), 0, None)
    table = bl.from_frame(table.frame.assign(loss=table.loss * bend))
    found = bl.check(refit(posterior.spec, table, 0), bl.grid(params=3e10, tokens=1e11))
    assert found["held out"].level == "caution"
    assert found["held out"].facts["p"] < 0.05


def test_groups_are_sizes_or_finer_and_the_binomial_is_continued_to_fractions():
    many = bl.grid(params=[1e8, 3e8, 1e9], tokens=[1e9, 1e10])
    few = bl.grid(params=[1e8, 3e8], tokens=[1e9, 1e10], ptpp=[15, 31])
    for rows, groups in ((many, 3), (few, 4), (many.iloc[:2], 1)):
        assert len(np.unique(grouped(rows))) == groups
    for held in range(7):
        assert at_most(held, 6, 0.9) == pytest.approx(stats.binom.cdf(held, 6, 0.9))
    assert at_most(3, 6, 0.9) < at_most(3.5, 6, 0.9) < at_most(4, 6, 0.9)


# -- cells and outliers ---------------------------------------------------------------------------


def test_cells_find_the_one_that_differs(two_stages, paper_rows):
    frame = paper_rows.frame.copy()
    off = (frame["params"] == 1.4e9) & (frame["ptpp"] == 31) & (frame["replay"] == 0.25)
    frame.loc[off, "loss"] *= 1.02
    cells = judge_cells(bl.fit("form1", bl.from_frame(frame), seed=0, discrepancy="none")).frame
    worst = cells.loc[cells["miss"].abs().idxmax()]
    assert (worst["params"], worst["ptpp"], worst["replay"]) == (1.4e9, 31, 0.25)
    assert 0.01 < worst["miss"] < 0.025
    assert worst["p"] > 0.999
    assert judge_cells(two_stages).frame["miss"].abs().max() < 0.004


def test_a_run_far_from_the_others_is_named():
    """Runs of nine sizes; one lies 5 % above the law."""
    sizes, rng = np.geomspace(1e8, 1.3e9, 9), np.random.default_rng(0)
    design = bl.grid(params=list(sizes), tokens=[1e10, 3e10, 1e11])
    frame = bl.simulate("chinchilla", CHINCHILLA, design, sigma=0.002, seed=1).frame
    effects = np.where(np.arange(9) == 3, 0.05, rng.normal(0, 0.002, 9))
    size = np.searchsorted(sizes, frame["params"] * (1 - 1e-9))
    frame = frame.assign(
        run=[f"shape {i}" for i in size], loss=frame["loss"] * np.exp(effects[size])
    )
    shaped = refit("chinchilla", bl.from_frame(frame), 0, effects="auto")
    part = judge_outliers(shaped, bl.grid(params=3e9, tokens=1e11))
    assert part.frame["label"].tolist() == ["shape 3"]
    assert "run shape 3 (+4" in part.words[0]
    assert part.facts["half_width_without"] < part.facts["half_width"] / 2
    assert f"± {part.facts['half_width_without']:.2g} % instead of" in part.words[1]
    assert part.level == "ok"  # the wide band allows for the move


def test_a_row_far_from_the_others_is_named(posterior):
    frame = posterior.table.frame.copy()
    frame.loc[7, "loss"] *= 1.1
    part = judge_outliers(refit(posterior.spec, bl.from_frame(frame), 0), None)
    assert part.frame["label"].tolist() == [7]
    where = "the row at params 300M, tokens 10B (+9"
    assert part.words[0].startswith(f"Farthest from the others, in loss: {where}")
    assert judge_outliers(posterior, None).frame.empty


# -- distance -------------------------------------------------------------------------------------


def test_a_size_beyond_three_others_is_doubtful(posterior, small):
    three = refit(posterior.spec, small.query("params < 3e9"), 0)
    part = bl.check(three, bl.grid(params=5e9, tokens=1e10))["extrapolation"]
    assert part.level == "caution"
    assert "3 sizes are too few" in " ".join(part.words)
    assert part.frame["beyond_params"].iloc[0] == pytest.approx(np.log10(5))


def test_a_covariate_the_law_lacks(posterior):
    """Training rows at one replay ratio, rows at another, and a law without it."""
    table = replace(posterior.table, frame=posterior.table.frame.assign(replay=0.3))
    fixed = replace(posterior, table=table)
    for replay, level in ((0.5, "caution"), (0.3, "ok")):
        rows = bl.grid(params=1e9, tokens=1e10, replay=replay)
        part = bl.check(fixed, rows)["extrapolation"]
        assert part.level == level
        assert ("replay differs from its only value" in part.words[0]) == (level == "caution")
