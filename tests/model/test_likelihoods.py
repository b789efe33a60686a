import itertools

import numpy as np
import pymc as pm
import pytest
from scipy import integrate, stats
from scipy.special import huber

from bayeslaw import LawError, fit, grid, simulate
from bayeslaw.model.noise import DOF_FLOOR, Huber
from bayeslaw.model.spec import make_likelihood
from tests.support import CHINCHILLA, object_mode

SHAPES = [(0.004, 0.02), (0.02, 0.02), (0.1, 0.02), (1.0, 3.0), (0.5, 1e-3)]


def density(sigma, delta, mu=0.0):
    def at(x):
        residual = np.asarray(x, float) - mu
        return np.exp(Huber(delta).log_density(residual, np.asarray(sigma), {}))

    return at


@pytest.mark.parametrize(("sigma", "delta"), SHAPES)
def test_huber_density_integrates_to_one(sigma, delta):
    f = density(sigma, delta)
    core = integrate.fixed_quad(f, 0, delta, n=200)[0]
    reach = delta + 60 * sigma**2 / delta
    tail = integrate.fixed_quad(f, delta, reach, n=400)[0]
    assert 2 * (core + tail) == pytest.approx(1, abs=1e-8)


@pytest.mark.parametrize(("sigma", "delta"), SHAPES)
def test_huber_density_has_the_huber_loss_as_its_exponent(sigma, delta):
    x = np.linspace(-5 * delta, 5 * delta, 41)
    logp = np.log(density(sigma, delta, mu=0.3)(x + 0.3))
    np.testing.assert_allclose(logp - logp[20], -huber(delta, x) / sigma**2, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("sigma", "delta"), SHAPES)
def test_huber_draws_follow_its_density(sigma, delta):
    draws = Huber(delta).sample(np.random.default_rng(1), (40_000,), sigma, {})
    edges = np.quantile(np.abs(draws), np.linspace(0, 1, 21))
    edges[0] = 0
    f = density(sigma, delta)
    mass = []
    for low, high in itertools.pairwise(edges):
        cuts = [low, *[c for c in (delta,) if low < c < high], high]
        parts = itertools.pairwise(cuts)
        mass.append(sum(integrate.fixed_quad(f, a, b, n=60)[0] for a, b in parts))
    # Each bin holds a twentieth of the draws; its sampling error is about .0011.
    np.testing.assert_allclose(2 * np.array(mass), 0.05, atol=0.006)
    assert abs(np.mean(draws > 0) - 0.5) < 0.01


@pytest.mark.parametrize(("sigma", "delta"), SHAPES)
def test_huber_information_is_the_mean_square_of_the_score(sigma, delta):
    step = 1e-4 * min(sigma, delta)
    f, up, down = (density(sigma, delta, mu) for mu in (0.0, step, -step))

    def squared(x):
        return (np.log(up(x) / down(x)) / (2 * step)) ** 2 * f(x)

    core = integrate.fixed_quad(squared, 0, delta, n=200)[0]
    tail = integrate.fixed_quad(squared, delta, delta + 60 * sigma**2 / delta, n=400)[0]
    found = Huber(delta).information_variance(np.array([[sigma]]), {})
    np.testing.assert_allclose(found, 1 / (2 * (core + tail)), rtol=1e-4)


@pytest.mark.parametrize("dof", [2.1, 3.0, 8.0, 100.0])
def test_student_t_information_is_the_mean_square_of_the_score(dof):
    sigma, step = 0.02, 1e-6
    likelihood, q = make_likelihood("studentt"), {"dof_above_floor": np.array(dof - DOF_FLOOR)}

    def squared(z):
        ends = np.array([sigma * z - step, sigma * z + step])
        low, high = likelihood.log_density(ends, np.array(sigma), q)
        return ((high - low) / (2 * step)) ** 2 * stats.t(dof).pdf(z)

    information = 2 * integrate.quad(squared, 0, np.inf)[0]
    found = likelihood.information_variance(np.array(sigma), q)
    np.testing.assert_allclose(found, 1 / information, rtol=1e-5)


def test_huber_information_where_scale_and_threshold_are_equal():
    found = Huber(0.02).information_variance(np.array([0.02]), {})
    assert found / 0.02**2 == pytest.approx(1.709, abs=1e-3)


@object_mode
def test_huber_draws_in_a_model_match_those_outside():
    with pm.Model() as model:
        Huber(0.02).observe(np.full(3, 0.7), 0.05, {}, np.zeros(3))
    tree = pm.sample_prior_predictive(3000, model=model, random_seed=1)
    inside = tree["prior_predictive"]["log_loss"].values
    assert inside.shape == (1, 3000, 3)
    outside = 0.7 + Huber(0.02).sample(np.random.default_rng(2), (9000,), 0.05, {})
    assert stats.ks_2samp(inside.ravel(), outside).pvalue > 1e-3


@pytest.mark.parametrize(
    ("likelihood", "same"), [("normal", stats.norm(0, 0.1)), ("studentt", stats.t(3, 0, 0.1))]
)
def test_other_draws(likelihood, same):
    q = {"dof_above_floor": np.full((50, 1), 3.0 - DOF_FLOOR)}
    rng, sigma = np.random.default_rng(1), np.full((50, 1), 0.1)
    draws = make_likelihood(likelihood).sample(rng, (50, 200), sigma, q)
    assert draws.shape == (50, 200)
    assert stats.kstest(draws.ravel(), same.cdf).pvalue > 1e-3


def test_huber_becomes_normal_for_a_wide_threshold():
    x = np.linspace(-0.03, 0.03, 9)
    np.testing.assert_allclose(density(0.01, 10.0)(x), stats.norm(0, 0.01).pdf(x), rtol=1e-10)


def test_unknown_likelihood():
    with pytest.raises(LawError, match=r"unknown likelihood 'hubr'; did you mean 'huber'.*normal"):
        make_likelihood("hubr")


def fifteen_rows():
    design = grid(params=[1e8, 1e9, 4e9], tokens=[1e9, 3e9, 1e10, 3e10, 1e11])
    return simulate("chinchilla", CHINCHILLA, design, sigma=0.003, seed=3)


def test_map_stays_off_the_spike_at_sigma_zero():
    """With a free dof and flat noise priors the mode would be sigma = 0 on a few exact rows."""
    table = fifteen_rows()
    point = fit("chinchilla", table, method="map", likelihood="studentt")
    residuals = np.log(point.predict(table) / table.loss)
    assert np.sort(np.abs(residuals))[5] > 1e-5
    assert np.sqrt(np.mean(residuals**2)) < 0.006


def test_posterior_stays_off_the_spike_at_sigma_zero():
    draws = fit("chinchilla", fifteen_rows(), seed=0, discrepancy="none")
    assert draws.convergence.ok
    sigma, dof = draws.draws["sigma"].values, draws.draws["dof_above_floor"].values
    assert sigma.min() > 2e-4
    assert 0.001 < np.median(sigma) < 0.008
    assert np.median(dof) > 1  # not at the floor, as where a spike draws the fit
    assert DOF_FLOOR == 2
