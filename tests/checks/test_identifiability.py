"""Directions that the rows leave undetermined, and what they do to a forecast."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from bayeslaw import check, fit
from bayeslaw.checks import identifiability
from bayeslaw.checks.identifiability import QUANTILES
from bayeslaw.evaluate.datatree import prior_draws
from bayeslaw.evaluate.residuals import covariance
from tests.checks.conftest import LATE, SHORT


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


def test_steps_of_walks_are_integrated_out(walking):
    """Against the information of coordinates and steps together, by differences of the loss."""
    prior = prior_draws(walking)
    found = identifiability.directions(walking, prior)
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

    own = [slope(n, (), 1e-5 * abs(q[n])) * identifiability.spread(prior[n]) for n in found.names]
    steps = [slope(w.steps, j, 1e-4) for w in law.walks for j in range(q[w.steps].size)]
    rows = np.linalg.solve(np.linalg.cholesky(covariance(walking)), np.array([*own, *steps]).T)
    joint, count = rows.T @ rows, len(own)
    joint[count:, count:] += np.eye(len(steps))  # their standard normal prior
    across = joint[:count, count:]
    want = joint[:count, :count] - across @ np.linalg.solve(joint[count:, count:], across.T)
    got = found.matrix.T @ found.matrix
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5 * np.abs(want).max())


def test_the_scale_of_walks_is_not_called_undetermined(walking):
    assert "walk_scale" not in " ".join(check(walking)["directions"].words)


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


def test_coordinates_that_do_not_matter_explain_nothing(two_stages):
    """The unadjusted R-squared of twenty such coordinates and 1000 draws is .23."""
    rng, names = np.random.default_rng(0), [f"q{i}" for i in range(20)]
    for draws in (300, 1000):
        drawn = SimpleNamespace(values=lambda n=draws: {k: rng.normal(size=(n, 1)) for k in names})
        assert identifiability.explained(drawn, names, rng.normal(size=(draws, 40))).mean() < 0.1
