"""`check` on real fits: what two stages leave undetermined, the findings and their levels."""

import json

import numpy as np
import pandas as pd
import pytest

from bayeslaw import LossTable, Posterior, TableError, check, fit, from_frame, grid, simulate
from bayeslaw.checks import identifiability
from bayeslaw.checks.checkup import cells
from bayeslaw.checks.extrapolation import curvature_part
from bayeslaw.checks.part import LEVELS, target
from bayeslaw.cli.terminal import dumps
from bayeslaw.inference.fitting import refit
from tests.checks.conftest import LATE, SHORT
from tests.support import CHINCHILLA

CURVED = {"discrepancy": "curvature", "effects": "none"}


@pytest.fixture(scope="module")
def found(two_stages, world):
    return check(two_stages, world.query(LATE))


def test_findings_at_two_stages(found, world):
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
    assert "2 values cannot identify a curvature" in " ".join(found["extrapolation"].words)


def test_a_size_beyond_three_others_is_doubtful(posterior, small):
    rows = grid(params=5e9, tokens=1e10)
    three = small.query("params < 3e9")
    found = check(refit(posterior.spec, three, 0), rows)
    assert found["extrapolation"].level == "caution"
    assert "3 sizes are too few" in " ".join(found["extrapolation"].words)
    assert found["extrapolation"].frame["beyond_params"].iloc[0] == pytest.approx(np.log10(5))


def test_findings_with_anchors(anchored, world):
    """Form 1 is not the true law: all is determined, and its bands miss the larger models."""
    found = check(anchored, world.query(LATE))
    assert found["directions"].level == "ok"
    assert found.verdict.startswith("REFUSE: the bands failed here")
    assert "not determined" not in str(found)


def test_empty_corners_are_named(anchored, world):
    """The last stage was measured at the smallest size only, so each range contains all rows."""
    part = check(anchored, world.query(LATE))["extrapolation"]
    assert part.level == "caution"  # the law is taken as exact
    far = part.frame["decades"].max()
    assert f"21 interpolations; 63 extrapolations (up to {far:.2g} decades, each" in part.words[-1]
    inside = check(anchored, anchored.table)["extrapolation"]
    assert inside.level == "ok"
    assert inside.words[-1] == "Rows to forecast: 189 interpolations."


def test_more_curvature_than_the_prior_expects():
    """A log loss with a strong curvature in log D, times the share of a term, and one without."""
    frame = grid(params=[1e8, 5e8, 2e9, 8e9], tokens=np.geomspace(1e9, 1e12, 6))
    x = np.log(frame["tokens"] / 3e10)
    noise = np.random.default_rng(0).normal(0, 0.002, len(frame))
    further = grid(params=2e9, tokens=1e13)
    for curvature, strained in ((0.5, True), (0.0, False)):
        term = 0.4 * np.exp(-0.3 * x)
        plain = 1.7 + 250 / frame["params"] ** 0.34 + term
        loss = plain * np.exp(noise - term / plain * curvature * x**2 / 2)
        fitted = fit("chinchilla", from_frame(frame.assign(loss=loss)), **SHORT | CURVED)
        inside, beyond = (curvature_part(fitted, target(fitted, r)) for r in (frame, further))
        assert (inside.level, beyond.level) == (("caution", "refuse") if strained else ("ok", "ok"))
        assert ("curve_B by" in inside.words[0]) == strained
        assert ("beyond the tokens of the training rows" in " ".join(beyond.words)) == strained


def test_without_rows(two_stages):
    found = check(two_stages)
    assert found.level == "caution"
    assert found.rows == 0
    assert "its posterior is close to its prior" in " ".join(found["directions"].words)
    assert set(found.frames) == {
        "held out",
        "convergence",
        "directions",
        "outliers",
        "cells",
        "left out",
    }


def test_frames_are_tidy(found):
    frame = found["directions"].frame
    assert isinstance(frame, pd.DataFrame)
    assert frame["leader"].tolist() == ["eta"]
    assert found["left out"].frame.columns.tolist() == ["elpd", "pit", "pareto_k"]


def test_a_check_is_one_document(found):
    document = json.loads(dumps(found.to_dict()))
    assert document["level"] == "refuse"
    assert not document["ok"]
    for part in found.parts:
        written = document["parts"][part.name]
        assert written["level"] == part.level
        assert written["words"] == list(part.words)
        assert len(written["table"]) == len(part.frame)
        assert all(words in str(found) for words in part.words)
    assert found.level == max((part.level for part in found.parts), key=LEVELS.index)
    with pytest.raises(KeyError):
        found["no such part"]


def test_same_seed_same_check(two_stages, world, found):
    again = check(two_stages, world.query(LATE))
    assert dumps(again.to_dict()) == dumps(found.to_dict())


def test_unconverged_fits_are_refused_but_checked(unconverged):
    found = check(unconverged, grid(params=1e9, tokens=1e10))
    assert found.level == "refuse"
    assert found["convergence"].level == "refuse"
    assert "fit again" in found["convergence"].words[0]


def test_rows_must_have_the_covariates(two_stages):
    with pytest.raises(TableError, match="ptpp"):
        check(two_stages, grid(params=1e9, tokens=1e10, replay=0.3))


def test_a_covariate_the_law_lacks(posterior):
    """Training rows at one replay ratio, rows at another, and a law without it."""
    table = LossTable(
        posterior.table.frame.assign(replay=0.3), posterior.table.baselines, posterior.table.name
    )
    fixed = Posterior(
        posterior.spec, table, posterior.at, posterior.draws, posterior.stats, posterior.convergence
    )
    part = check(fixed, grid(params=1e9, tokens=1e10, replay=0.5))["extrapolation"]
    assert part.level == "caution"
    assert "replay differs from its only value" in part.words[0]
    assert check(fixed, grid(params=1e9, tokens=1e10, replay=0.3))["extrapolation"].level == "ok"


@pytest.mark.slow
def test_form3_at_two_stages(paper_rows, world):
    three = fit("form3", paper_rows, seed=0, discrepancy="none")
    directions = identifiability.directions(three)
    assert directions.rank == 10
    assert (directions.values[-2:] < 1e-8 * directions.values[0]).all()
    found = check(three, world.query(LATE))
    words = " ".join(found["directions"].words)
    assert found["directions"].level == "refuse"
    assert "eta is not determined" in words
    assert "zeta is not determined" in words or "lambda_ is not determined" in words
    rows = world.query("ptpp <= 31 or (ptpp == 279 and params < 3e8)")
    assert "not determined" not in str(
        check(fit("form3", rows, seed=0, discrepancy="none"), world.query(LATE))
    )


@pytest.mark.slow
def test_false_alarms():
    """Sound fits inside their range: the parts that test at 1 % seldom say caution."""
    design = grid(params=[1e8, 3e8, 1e9, 3e9], tokens=[1e9, 3e9, 1e10, 3e10, 1e11])
    alarms = []
    for seed in range(30):
        table = simulate("chinchilla", CHINCHILLA, design, sigma=0.003, seed=seed)
        found = check(fit("chinchilla", table, seed=seed, draws=500, tune=500, discrepancy="none"))
        alarms += [found[name].level != "ok" for name in ("cells", "left out")]
        assert found["directions"].level == "ok"
    assert sum(alarms) <= 5  # 60 tests at 1 %, left-out units are not independent


def test_rows_may_have_the_papers_symbols(posterior):
    one = check(posterior, grid(params=1e10, tokens=[1e10, 1e11]))
    two = check(posterior, pd.DataFrame({"N": [1e10, 1e10], "D": [1e10, 1e11]}))
    assert str(one) == str(two)
    with pytest.raises(TableError, match=r"'params' .or N. is missing"):
        check(posterior, pd.DataFrame({"tokens": [1e10]}))


def test_cells_find_the_one_that_differs(two_stages, paper_rows):
    frame = paper_rows.frame.copy()
    off = (frame["params"] == 1.4e9) & (frame["ptpp"] == 31) & (frame["replay"] == 0.25)
    frame.loc[off, "loss"] *= 1.02
    wrong = fit("form1", from_frame(frame), seed=0, **SHORT)
    found = cells(wrong)
    worst = found.loc[found["miss"].abs().idxmax()]
    assert (worst["params"], worst["ptpp"], worst["replay"]) == (1.4e9, 31, 0.25)
    assert 0.01 < worst["miss"] < 0.025
    assert worst["p"] > 0.999
    assert cells(two_stages)["miss"].abs().max() < 0.004
