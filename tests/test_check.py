"""`check` on real fits: what two stages leave undetermined, the findings and their levels."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bayeslaw.checks import identifiability, predictive, sensitivity
from bayeslaw.checks.checkup import check
from bayeslaw.checks.extrapolation import amplification, distances
from bayeslaw.checks.identifiability import QUANTILES
from bayeslaw.checks.part import LEVELS
from bayeslaw.checks.stage_bounds import reach, stage_bounds, stage_shape
from bayeslaw.cli.terminal import dumps
from bayeslaw.common.errors import TableError
from bayeslaw.evaluate.densities import prior_draws
from bayeslaw.evaluate.psis_loo import leave_out
from bayeslaw.inference.fitting import fit
from bayeslaw.inference.posterior import Posterior
from bayeslaw.simulation.worlds import paper_world, simulate
from bayeslaw.tables.reading import from_frame
from bayeslaw.tables.table import LossTable, grid

SHORT = {"discrepancy": "none", "draws": 500, "tune": 500}
CURVED = {"discrepancy": "curvature", "effects": "none"}
LATE = "ptpp == 279"


@pytest.fixture(scope="module")
def world() -> LossTable:
    return paper_world().table("french", seed=0)


@pytest.fixture(scope="module")
def anchored(world) -> Posterior:
    rows = world.query("ptpp <= 31 or (ptpp == 279 and params < 3e8)")
    return fit("form1", rows, seed=0, **SHORT)


@pytest.fixture(scope="module")
def found(two_stages, world):
    return check(two_stages, world.query(LATE))


def curve(eta, stage):
    """Loss of a law at a stage, apart from the package's formulas."""
    return 1.5 + 0.16 * stage**-eta


# -- directions -----------------------------------------------------------------------------------


def test_two_stages_do_not_determine_eta(two_stages):
    directions = identifiability.directions(two_stages)
    assert directions.rank == 9
    assert directions.values[-1] < 1e-8 * directions.values[0]
    assert directions.values[-2] > 1
    assert directions.undetermined() == [{"eta": pytest.approx(1)}]
    assert directions.weak() == []


def test_anchors_determine_everything(anchored):
    directions = identifiability.directions(anchored)
    assert directions.rank == len(directions.names) == 10
    assert directions.undetermined() == []


def test_jacobian_is_the_derivative_of_the_log_loss(two_stages):
    """Against central differences of the law in paper coordinates."""
    law, at, frame = two_stages.law, two_stages.at, two_stages.table.frame
    prior = prior_draws(two_stages)
    found = identifiability.directions(two_stages, prior)
    middle = {n: float(np.median(v)) for n, v in two_stages.values().items() if n in found.names}
    sigma = float(np.median(two_stages.values()["sigma"]))

    def log_loss(name, step):
        paper = law.to_paper(middle | {name: middle[name] + step}, at)
        return np.log(law.loss(paper, law.covariates(frame)))

    for name, column in zip(found.names, found.matrix.T, strict=True):
        step = 1e-5 * middle[name]
        slope = (log_loss(name, step) - log_loss(name, -step)) / (2 * step)
        want = slope * identifiability.spread(prior[name]) / sigma
        np.testing.assert_allclose(column, want, rtol=1e-5, atol=1e-6 * np.abs(want).max())


def test_basis_of_undetermined_directions():
    """Two of four coordinates have an effect only through their sum, one has none."""
    rows = np.random.default_rng(0).normal(size=(20, 2))
    matrix = np.column_stack([rows[:, 0], rows[:, 1], rows[:, 1], np.zeros(20)])
    found = identifiability.Directions(("a", "b", "c", "d"), matrix)
    assert found.rank == 2
    none = found.undetermined()
    assert {frozenset(each) for each in none} == {frozenset("d"), frozenset("bc")}
    (pair,) = (each for each in none if len(each) == 2)
    assert list(pair.values()) == pytest.approx([1, -1])


def test_fewer_rows_than_coordinates():
    found = identifiability.Directions(("a", "b", "c"), np.array([[3.0, 0.0, 0.0]]))
    assert found.values.tolist() == [3, 0, 0]
    assert {next(iter(each)) for each in found.undetermined()} == {"b", "c"}


def test_contraction(two_stages):
    frame = identifiability.contraction(two_stages)
    assert abs(frame.loc["eta", "contraction"]) < 0.2
    assert frame.loc[["L_ref", "slope_N", "beta"], "contraction"].min() > 0.99
    width = two_stages.spec.priors["eta"].kwargs["sigma"]
    assert frame.loc["eta", "prior"] == pytest.approx(0.33 * np.sinh(width), rel=0.05)


@pytest.mark.slow
def test_swing_agrees_with_a_fit_that_pins_eta(two_stages, world):
    """The posterior conditional on eta near .19 agrees with a fit whose prior has eta at .19."""
    rows = world.query(LATE)
    log_loss = np.log(two_stages.latent(rows)).mean(1, keepdims=True)
    prior = prior_draws(two_stages)["eta"]
    values, loss = identifiability.swing(two_stages, "eta", prior, log_loss)
    width = two_stages.spec.priors["eta"].kwargs["sigma"]
    assert values == pytest.approx(0.33 * np.exp(width * stats.norm.ppf(QUANTILES)), rel=0.05)
    priors = {"eta": f"LogNormal(median={values[0]}, sigma=0.01)"}
    pinned = fit("form1", two_stages.table, seed=1, priors=priors, **SHORT)
    want = np.exp(np.median(np.log(pinned.latent(rows)).mean(1)))
    assert loss[0, 0] == pytest.approx(want, abs=0.15 * np.ptp(loss))


def test_share_of_variance(two_stages, world):
    log_loss = np.log(two_stages.latent(world.query(LATE))).mean(1, keepdims=True)
    assert identifiability.explained(two_stages, ["eta"], log_loss)[0] > 0.7
    assert identifiability.explained(two_stages, ["alpha"], log_loss)[0] < 0.3
    assert identifiability.explained(two_stages, [], log_loss) == 0


# -- bounds ---------------------------------------------------------------------------------------


def test_reach_of_the_papers_stages():
    """Stage 279 is 4.03 steps of log PTPP from 15, in units of the step from 15 to 31."""
    assert reach(15, 31, 279) == pytest.approx(4.03, abs=5e-3)


@settings(deadline=None)
@given(
    st.floats(1e-3, 3),
    st.floats(1e-3, 3),
    st.floats(0, 1),
    st.lists(st.floats(1.01, 30), min_size=3, max_size=3),
)
def test_bounds_hold_for_sums_of_powers(eta, other, share, steps):
    p1, p2, p3 = np.cumprod(steps) * 5
    l1, l2, l3 = (share * curve(eta, p) + (1 - share) * curve(other, p) for p in (p1, p2, p3))
    lower = l2 - (reach(p1, p2, p3) - 1) * (l1 - l2)
    assert lower - 1e-9 <= l3 <= l2 + 1e-12


def test_stage_bounds_are_those_of_the_formula(two_stages, world):
    seen = two_stages.table.frame
    one, two = (seen.query(f"ptpp == {p}")["loss"].mean() for p in (15, 31))
    frame = stage_bounds(two_stages, world.query("ptpp >= 31").frame)
    assert list(frame.index) == [279]  # 31 is a training stage
    row = frame.loc[279]
    assert row["lower"] == pytest.approx(
        two - (np.log(279 / 15) / np.log(31 / 15) - 1) * (one - two)
    )
    assert row["upper"] == pytest.approx(two)
    assert 0 < row["upper_sd"] < row["lower_sd"] < 0.01
    assert len(row["rows"]) == 84


def test_rows_without_a_measured_cell_have_no_bounds(two_stages):
    assert stage_bounds(two_stages, grid(params=2e9, tokens=1e9, replay=0.3, ptpp=279)).empty


def test_stages_that_violate_the_bounds(anchored):
    assert stage_shape(anchored)[["z_below", "z_above"]].max(axis=None) < 2.3
    frame = anchored.table.frame.copy()
    frame.loc[frame["ptpp"] == 279, "loss"] *= 0.9
    wrong = fit("form1", from_frame(frame), seed=0, **SHORT)
    assert stage_shape(wrong)["z_below"].max() > 2.3
    part = check(wrong)["bounds"]
    assert part.level == "caution"
    assert "no term F/P^eta can produce this" in part.words[-1]


# -- distance, sensitivity, fitted rows -----------------------------------------------------------


def test_distances(two_stages):
    rows = grid(params=[241e6, 8.1e9**2 / 241e6], tokens=1e10, replay=0.7, ptpp=[31, 62])
    frame = distances(two_stages, rows)
    assert frame["params"].tolist() == pytest.approx([0, 0, 1, 1])
    assert frame["tokens"].tolist() == [0] * 4
    assert frame["replay"].tolist() == pytest.approx([0.5] * 4)
    assert frame["ptpp"].tolist() == pytest.approx([0, np.log(2) / np.log(31 / 15)] * 2)


def test_amplification_is_that_of_the_best_line():
    """Error of the best straight line to x^2/2 on [0, 1], inside and beyond."""
    x = np.linspace(0, 1, 2001)
    line = np.polynomial.Polynomial([-1 / 16, 0.5])
    inside = np.abs(x**2 / 2 - line(x)).max()
    for d in (0.0, 0.1, 1.0, 3.0):
        miss = (1 + d) ** 2 / 2 - line(1 + d)
        assert amplification(d) == pytest.approx(miss / inside)


def test_sensitivity_to_prior_and_to_likelihood(two_stages):
    q = two_stages.values()
    frame = sensitivity.power_scaling(two_stages, {n: q[n][:, 0] for n in ("eta", "slope_N")})
    assert frame.loc["eta", "prior"] > 0.1 > 0.05 > frame.loc["eta", "likelihood"]
    assert frame.loc["slope_N", "prior"] < 0.05 < frame.loc["slope_N", "likelihood"]


def test_cells_find_the_one_that_differs(two_stages, paper_rows):
    frame = paper_rows.frame.copy()
    off = (frame["params"] == 1.4e9) & (frame["ptpp"] == 31) & (frame["replay"] == 0.25)
    frame.loc[off, "loss"] *= 1.02
    wrong = fit("form1", from_frame(frame), seed=0, **SHORT)
    cells = predictive.cells(wrong)
    worst = cells.loc[cells["miss"].abs().idxmax()]
    assert (worst["params"], worst["ptpp"], worst["replay"]) == (1.4e9, 31, 0.25)
    assert 0.01 < worst["miss"] < 0.025
    assert worst["p"] > 0.999
    assert predictive.cells(two_stages)["miss"].abs().max() < 0.004


def test_pit_values_of_a_wrong_scale(posterior):
    """PIT values are uniform under the fit, and not with ten times its noise."""
    sound = leave_out(posterior)
    assert sound.unit == "row"
    assert sound.uniformity() > 0.01
    draws = posterior.draws.assign(sigma=10 * posterior.draws["sigma"])
    wide = Posterior(
        posterior.spec, posterior.table, posterior.at, draws, posterior.stats, posterior.convergence
    )
    assert leave_out(wide).uniformity() < 0.01


# -- the whole ------------------------------------------------------------------------------------


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
    assert "too far to forecast" in " ".join(found["extrapolation"].words)
    assert "sensitive to the priors" in " ".join(found["sensitivity"].words)
    assert found["learning"].words[0].count("eta") == 1


def test_a_size_beyond_three_others_is_refused(posterior, small):
    rows = grid(params=1e10, tokens=1e10)
    assert check(posterior, rows)["extrapolation"].level != "refuse"  # four sizes
    three = small.query("params < 3e9")
    found = check(fit("chinchilla", three, seed=0, **SHORT), rows)
    assert found["extrapolation"].level == "refuse"
    assert "3 sizes are too few" in " ".join(found["extrapolation"].words)
    assert found["extrapolation"].frame["params"].iloc[0] > 0.1


def test_findings_with_anchors(anchored, world):
    found = check(anchored, world.query(LATE))
    assert found.ok
    assert "not determined" not in str(found)
    assert found["extrapolation"].level == "ok"


def test_more_curvature_than_the_prior_expects():
    """A term with strong curvature in log D, and one that is a power."""
    frame = grid(params=[1e8, 5e8, 2e9, 8e9], tokens=np.geomspace(1e9, 1e12, 6))
    x = np.log(frame["tokens"] / 3e10)
    noise = np.random.default_rng(0).normal(0, 0.002, len(frame))
    further = grid(params=2e9, tokens=1e13)
    for curvature, strained in ((0.5, True), (0.0, False)):
        term = 0.4 * np.exp(-0.3 * x - curvature * x**2 / 2)
        loss = (1.7 + 250 / frame["params"] ** 0.34 + term) * np.exp(noise)
        fitted = fit("chinchilla", from_frame(frame.assign(loss=loss)), **SHORT | CURVED)
        inside, beyond = (check(fitted, rows)["curvature"] for rows in (frame, further))
        assert (inside.level, beyond.level) == (("caution", "refuse") if strained else ("ok", "ok"))
        assert ("curve_B by" in inside.words[0]) == strained
        assert ("beyond the tokens of the training rows" in " ".join(beyond.words)) == strained
        assert "curvature" in check(fitted).frames


def test_without_rows(two_stages):
    found = check(two_stages)
    assert found.level == "caution"
    assert found.rows == 0
    assert "its posterior is close to its prior" in " ".join(found["directions"].words)
    assert set(found.frames) == {"convergence", "directions", "learning", "cells", "left out"}


def test_frames_are_tidy(found):
    frame = found["directions"].frame
    assert isinstance(frame, pd.DataFrame)
    assert frame["leader"].tolist() == ["eta"]
    assert found["learning"].frame.index.name == "name"
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
    """Fits of the true law within its range: parts that test at 1 % seldom give a caution."""
    design = grid(params=[1e8, 3e8, 1e9, 3e9], tokens=[1e9, 3e9, 1e10, 3e10, 1e11])
    truth = {"E": 1.7, "A": 400.0, "alpha": 0.34, "B": 410.0, "beta": 0.28}
    alarms = []
    for seed in range(30):
        table = simulate("chinchilla", truth, design, sigma=0.003, seed=seed)
        found = check(fit("chinchilla", table, seed=seed, draws=500, tune=500, discrepancy="none"))
        alarms += [found[name].level != "ok" for name in ("cells", "left out")]
        assert found["directions"].level == "ok"
    assert sum(alarms) <= 5  # 60 tests at 1 %, left-out units are not independent
