"""What rows leave undetermined, curvature, bounds at a later stage, and distance."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import bayeslaw as bl
from tests import inside
from tests.support import DATA, ROOT

SHORT = {"discrepancy": "none"}
QUICK = {**SHORT, "chains": 2, "draws": 500, "retry": False}
NONE, WEAK = (0.0, 0.1), (0.1, 1.0)


@pytest.fixture(scope="module")
def world():
    return bl.paper_world().table("french", seed=0)


@pytest.fixture(scope="module")
def late(world):
    return world.query("ptpp == 279")


@pytest.fixture(scope="module")
def anchored(world):
    rows = world.query("ptpp <= 31 or (ptpp == 279 and params < 3e8)")
    return bl.fit("form1", rows, seed=0, **SHORT)


@pytest.fixture(scope="module")
def walking(small):
    """The default of a law in N and D, on rows that are power laws."""
    return bl.fit("chinchilla", small, seed=0, draws=500)


# -- directions -----------------------------------------------------------------------------------


def test_two_stages_do_not_determine_eta_and_anchors_do(two_stages, anchored):
    names, matrix = inside.directions(two_stages)
    values = inside.singular_values(matrix)
    assert values[-1] < 1e-8 * values[0]
    assert values[-2] > 1
    assert inside.basis(names, matrix, *NONE) == [{"eta": pytest.approx(1)}]
    assert inside.basis(names, matrix, *WEAK) == []
    names, matrix = inside.directions(anchored)
    assert len(names) == 10
    assert inside.basis(names, matrix, *NONE) == []


def test_jacobian_is_the_derivative_of_the_log_loss(two_stages):
    """Against central differences of the law in paper coordinates."""
    law, at, frame = two_stages.law, two_stages.at, two_stages.table.frame
    prior = inside.prior_draws(two_stages)
    names, matrix = inside.directions(two_stages, prior)
    middle = {n: float(np.median(v)) for n, v in two_stages.values().items() if n in names}
    sigma = float(np.median(two_stages.values()["sigma"]))

    def log_loss(name, step):
        paper = law.to_paper(middle | {name: middle[name] + step}, at)
        return np.log(law.loss(paper, law.covariates(frame)))

    for name, column in zip(names, matrix.T, strict=True):
        step = 1e-5 * middle[name]
        slope = (log_loss(name, step) - log_loss(name, -step)) / (2 * step)
        want = slope * inside.spread(prior[name]) / sigma
        np.testing.assert_allclose(column, want, rtol=1e-5, atol=1e-6 * np.abs(want).max())


def test_steps_of_walks_are_integrated_out(walking):
    """Against the information of coordinates and steps together, by differences of the loss."""
    prior = inside.prior_draws(walking)
    names, matrix = inside.directions(walking, prior)
    law, at = walking.law_with_knots, walking.at
    x = law.covariates(walking.table)
    q = {n: np.median(v) for n, v in walking.values().items() if n in law.coordinates}
    q |= {name: np.median(v, axis=(0, 1)) for name, v in walking.steps().items()}

    def slope(name, place, step):
        def log_loss(sign):
            value = np.array(q[name], float)
            value[place] += sign * step
            return np.log(law.loss(law.amounts(q | {name: value}, at), x, at))

        return (log_loss(1) - log_loss(-1)) / (2 * step)

    alone = [slope(n, (), 1e-5 * abs(q[n])) * inside.spread(prior[n]) for n in names]
    steps = [slope(w.steps, j, 1e-4) for w in law.walks for j in range(q[w.steps].size)]
    whiten = np.linalg.cholesky(inside.covariance(walking))
    rows = np.linalg.solve(whiten, np.array([*alone, *steps]).T)
    joint, count = rows.T @ rows, len(alone)
    joint[count:, count:] += np.eye(len(steps))  # their standard normal prior
    across = joint[:count, count:]
    want = joint[:count, :count] - across @ np.linalg.solve(joint[count:, count:], across.T)
    got = matrix.T @ matrix
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5 * np.abs(want).max())
    assert "walk_scale" not in names


def test_basis_of_undetermined_directions():
    """Two of four coordinates have an effect only through their sum, one has none."""
    rows = np.random.default_rng(0).normal(size=(20, 2))
    matrix = np.column_stack([rows[:, 0], rows[:, 1], rows[:, 1], np.zeros(20)])
    assert (inside.singular_values(matrix) >= NONE[1]).sum() == 2
    none = inside.basis("abcd", matrix, *NONE)
    assert {frozenset(each) for each in none} == {frozenset("d"), frozenset("bc")}
    (pair,) = (each for each in none if len(each) == 2)
    assert list(pair.values()) == pytest.approx([1, -1])
    fewer_rows = np.array([[3.0, 0.0, 0.0]])
    assert inside.singular_values(fewer_rows).tolist() == [3, 0, 0]
    assert {next(iter(each)) for each in inside.basis("abc", fewer_rows, *NONE)} == {"b", "c"}


@pytest.mark.slow
def test_swing_agrees_with_a_fit_that_pins_eta(two_stages, late):
    """The posterior conditional on eta near .19 agrees with a fit whose prior has eta at .19."""
    log_loss = np.log(two_stages.latent(late)).mean(1, keepdims=True)
    prior = inside.prior_draws(two_stages)["eta"]
    values, loss = inside.swing(two_stages, "eta", prior, log_loss)
    width = two_stages.spec.priors["eta"].kwargs["sigma"]
    quantiles = 0.33 * np.exp(width * stats.norm.ppf(inside.QUANTILES))
    assert values == pytest.approx(quantiles, rel=0.05)
    priors = {"eta": f"LogNormal(median={values[0]}, sigma=0.01)"}
    pinned = bl.fit("form1", two_stages.table, seed=1, priors=priors, **QUICK)
    want = np.exp(np.median(np.log(pinned.latent(late)).mean(1)))
    assert loss[0, 0] == pytest.approx(want, abs=0.15 * np.ptp(loss))


def test_share_of_variance(two_stages, late):
    log_loss = np.log(two_stages.latent(late)).mean(1, keepdims=True)
    assert inside.explained(two_stages, ["eta"], log_loss)[0] > 0.7
    assert inside.explained(two_stages, ["alpha"], log_loss)[0] < 0.3
    assert inside.explained(two_stages, [], log_loss) == 0
    # Twenty coordinates that do not matter, with 231 columns: their unadjusted R-squared is .23 of
    # 1000 draws, and 1 of 200.
    rng, names = np.random.default_rng(0), [f"q{i}" for i in range(20)]
    for draws in (200, 300, 1000):
        drawn = SimpleNamespace(values=lambda n=draws: {k: rng.normal(size=(n, 1)) for k in names})
        assert inside.explained(drawn, names, rng.normal(size=(draws, 40))).mean() < 0.1


@pytest.mark.slow
def test_form3_at_two_stages(paper_rows, world, late):
    three = bl.fit("form3", paper_rows, seed=0, **QUICK)
    values = inside.singular_values(inside.directions(three)[1])
    assert (values >= NONE[1]).sum() == 10
    assert (values[-2:] < 1e-8 * values[0]).all()
    found = bl.check(three, late)["directions"]
    words = " ".join(found.words)
    assert found.level == "refuse"
    assert "eta is not determined" in words
    assert "zeta is not determined" in words or "lambda_ is not determined" in words
    rows = world.query("ptpp <= 31 or (ptpp == 279 and params < 3e8)")
    found = bl.check(bl.fit("form3", rows, seed=0, **QUICK), late)["directions"]
    assert "not determined" not in " ".join(found.words)


def test_more_curvature_than_the_prior_expects():
    """A log loss with a strong curvature in log D, times the share of a term, and one without."""
    frame = bl.grid(params=[1e8, 5e8, 2e9, 8e9], tokens=np.geomspace(1e9, 1e12, 6))
    x = np.log(frame["tokens"] / 3e10)
    noise = np.random.default_rng(0).normal(0, 0.002, len(frame))
    further = bl.grid(params=2e9, tokens=1e13)
    for curvature, strained in ((0.5, True), (0.0, False)):
        term = 0.4 * np.exp(-0.3 * x)
        plain = 1.7 + 250 / frame["params"] ** 0.34 + term
        loss = plain * np.exp(noise - term / plain * curvature * x**2 / 2)
        table = bl.from_frame(frame.assign(loss=loss))
        fit = bl.fit("chinchilla", table, **QUICK | {"discrepancy": "curvature"}, effects="none")
        near, beyond = (inside.judge_curvature(fit, rows) for rows in (frame, further))
        assert (near.level, beyond.level) == (("caution", "refuse") if strained else ("ok", "ok"))
        assert ("curve_B by" in near.words[0]) == strained
        assert ("beyond the tokens of the training rows" in " ".join(beyond.words)) == strained


# -- bounds at a later stage ----------------------------------------------------------------------


def test_stage_bounds_are_those_of_the_formula(two_stages, world):
    seen = two_stages.table.frame
    one, two = (seen.query(f"ptpp == {p}")["loss"].mean() for p in (15, 31))
    frame = inside.stage_bounds(two_stages, world.query("ptpp >= 31").frame)
    assert list(frame.index) == [279]  # 31 is seen
    row, step = frame.loc[279], np.log(279 / 15) / np.log(31 / 15)
    assert step == pytest.approx(4.03, abs=5e-3)  # as in the paper
    assert row["lower"] == pytest.approx(two - (step - 1) * (one - two))
    assert row["upper"] == pytest.approx(two)
    assert 0 < row["upper_sd"] < row["lower_sd"] < 0.01
    sigma = float(two_stages.draws["sigma"].median())
    early, late = (np.linalg.norm(seen.query(f"ptpp == {p}")["loss"]) / 84 for p in (15, 31))
    assert row["upper_sd"] == pytest.approx(sigma * late)
    assert row["lower_sd"] == pytest.approx(sigma * np.hypot((step - 1) * early, step * late))
    assert len(row["rows"]) == 84
    unmeasured = bl.grid(params=2e9, tokens=1e9, replay=0.3, ptpp=279)
    assert inside.stage_bounds(two_stages, unmeasured).empty


def test_stages_that_violate_the_bounds(anchored):
    assert inside.stage_shape(anchored)[["z_below", "z_above"]].max(axis=None) < 2.3
    frame = anchored.table.frame.copy()
    frame.loc[frame["ptpp"] == 279, "loss"] *= 0.9
    wrong = bl.fit("form1", bl.from_frame(frame), seed=0, **QUICK)
    assert inside.stage_shape(wrong)["z_below"].max() > 2.3
    part = bl.check(wrong)["bounds"]
    assert part.level == "caution"
    assert "no term F/P^eta can produce this" in part.words[-1]


# -- distance -------------------------------------------------------------------------------------


def test_findings_with_anchors(anchored, late):
    """Form 1 is not the true law: all is determined, and its bands miss the larger models.

    The last stage was measured at the smallest size only, so each range contains all rows, and
    empty corners are named.
    """
    found = bl.check(anchored, late)
    assert found["directions"].level == "ok"
    assert found.verdict.startswith("REFUSE: the bands failed here")
    assert "not determined" not in " ".join(found["directions"].words)
    part = found["extrapolation"]
    assert part.level == "caution"  # the law is taken as exact
    far = part.frame["decades"].max()
    assert f"21 interpolations; 63 extrapolations (up to {far:.2g} decades, each" in part.words[-1]
    within = bl.check(anchored, anchored.table)["extrapolation"]
    assert within.level == "ok"
    assert within.words[-1] == "Rows to forecast: 189 interpolations."


def test_distance_is_refused_from_twice_what_was_measured(posterior):
    """The training rows have N up to 3e9 and D up to 1e11."""
    for decades, level in {
        0.9: "ok",
        1.1: "no evidence",
        1.8: "no evidence",
        2.0: "refuse",
    }.items():
        rows = bl.grid(params=3e9 * 10**decades, tokens=1e10)
        located = bl.locate(posterior.table, rows, posterior.columns)
        assert inside.evidence(located, posterior.columns)[0] == level
    found = bl.check(posterior, rows)
    assert found.level == "refuse"
    text = "No evidence: rows lie up to 2 decades of params (bands were tested to 0.96)"
    assert text in " ".join(found["extrapolation"].words)
    allowed = bl.check(posterior, rows, beyond_evidence=True)
    assert allowed.level == "no evidence"
    assert allowed.verdict.startswith("NO EVIDENCE")


def test_measured_distances_are_those_of_the_benchmarks():
    rows = pd.read_csv(ROOT / "benchmarks" / "distance.csv")
    for name in ("params", "tokens", "decades"):
        column = name if name == "decades" else f"beyond_{name}"
        assert inside.MEASURED[name] == pytest.approx(rows[column].max(), abs=0.001)
    french = bl.read_table(DATA / "tinycpt/french.csv", where="annealed and replay < 1")
    stages, low_replay = ("ptpp <= 31", "ptpp == 279"), ("replay > 0.1", "replay <= 0.1")
    for column, split in (("ptpp", stages), ("replay", low_replay)):
        found = bl.locate(*french.split(*split), ("params", "tokens", "replay", "ptpp"))
        assert inside.MEASURED[column] == pytest.approx(found[f"beyond_{column}"].max(), abs=0.001)
