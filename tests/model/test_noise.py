"""Noise: densities of log loss, and errors correlated within a run."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from scipy.special import huber

from bayeslaw import (
    FitError,
    LossTable,
    TableError,
    fit,
    from_frame,
    grid,
    load,
    simulate,
)
from tests.inside import (
    DOF_FLOOR,
    Huber,
    build,
    covariance,
    error_draws,
    log_likelihood,
    make_data,
    make_likelihood,
    make_spec,
    noise,
    unit_likelihood,
)
from tests.support import CHINCHILLA, grouped, object_mode

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


@pytest.mark.parametrize("skew", [1e-3, 0.4, 1.2])
def test_skewed_draws_follow_its_density(skew):
    """And its information is the Student-t's, its mode the location, its mass above as stated."""
    likelihood, sigma = make_likelihood("skewed"), 0.02
    q = {"dof_above_floor": np.array(4 - DOF_FLOOR), "skew": np.array(skew)}

    def pdf(x):
        return float(np.exp(likelihood.log_density(np.array(x), np.array(sigma), q)))

    below, above = (integrate.quad(pdf, *ends)[0] for ends in ((-np.inf, 0), (0, np.inf)))
    assert above / below == pytest.approx(np.exp(2 * skew), rel=1e-6)
    assert above + below == pytest.approx(1, abs=1e-7)
    assert pdf(0) > max(pdf(1e-5), pdf(-1e-5))
    far = 3 * sigma * np.exp([skew, -skew]) * [1, -1]
    np.testing.assert_allclose(likelihood.even(far, q, np), [3 * sigma, -3 * sigma])
    assert pdf(far[0]) == pytest.approx(pdf(far[1]))
    draws = likelihood.sample(np.random.default_rng(1), (20_000,), sigma, q)
    edges = np.quantile(draws, np.linspace(0.02, 0.98, 25))
    mass = [integrate.quad(pdf, *ends)[0] for ends in itertools.pairwise(edges)]
    np.testing.assert_allclose(mass, 0.04, atol=0.006)

    def squared(z):
        ends = np.array([sigma * z - 1e-6, sigma * z + 1e-6])
        low, high = likelihood.log_density(ends, np.array(sigma), q)
        return ((high - low) / 2e-6) ** 2 * pdf(sigma * z) * sigma

    found = sum(integrate.quad(squared, *ends)[0] for ends in ((-np.inf, 0), (0, np.inf)))
    variance = likelihood.information_variance(np.array(sigma), q)
    np.testing.assert_allclose(variance, 1 / found, rtol=1e-4)


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


SIGMA, ELL = 0.01, 1.5


def correlated(seed: int) -> LossTable:
    """Checkpoints of runs of four sizes; errors of log loss correlated along log D."""
    table = grouped(seed, {})
    frame, rng = table.frame, np.random.default_rng(seed)
    chance = np.linalg.cholesky(covariance_of(frame, SIGMA, ELL))
    return from_frame(
        frame.assign(loss=frame["loss"] * np.exp(chance @ rng.standard_normal(len(frame))))
    )


def covariance_of(frame, sigma, ell):
    """Covariance of the errors, by the recursion that defines them, one row at a time."""
    rows = frame.assign(place=range(len(frame))).sort_values(["run", "tokens"])
    total, before = np.zeros((len(frame), len(frame))), None
    for i, row in zip(rows["place"], rows.to_dict("records"), strict=True):
        rho = 0.0
        if before is not None and before["run"] == row["run"]:
            rho = np.exp(-np.log(row["tokens"] / before["tokens"]) / ell)
            total[i] = total[:, i] = rho * total[before["place"]]
        own = rho**2 * (total[before["place"], before["place"]] if rho else 0.0)
        total[i, i] = own + sigma**2 * (1 - rho**2 + noise.NUGGET)
        before = row
    return total


@pytest.fixture(scope="module")
def fitted():
    settings = {"discrepancy": "none", "effects": "none", "errors": "run"}
    return fit("chinchilla", correlated(0), seed=0, likelihood="normal", **settings)


@given(st.permutations(range(12)), st.floats(0.2, 5), st.floats(1e-3, 0.1))
@settings(deadline=None, max_examples=40)
def test_the_density_is_that_of_the_covariance(places, ell, sigma):
    frame = pd.DataFrame({"run": ["a", "b", "c"] * 4, "tokens": np.geomspace(1e9, 9e10, 12)})
    frame = frame.iloc[list(places)].reset_index(drop=True)
    error = np.random.default_rng(0).normal(0, sigma, (2, 12))
    own, scale = noise.innovations(error, sigma, ell, noise.order(frame), np)
    want = stats.multivariate_normal(np.zeros(12), covariance_of(frame, sigma, ell))
    found = stats.norm.logpdf(own, scale=scale).sum(1)
    np.testing.assert_allclose(found, want.logpdf(error), rtol=1e-7)
    fixed = SimpleNamespace(sample=lambda *_: own.copy())
    q = {"ell": np.full((2, 1), ell)}
    back = noise.draw_paths(fixed, None, np.full((2, 1), sigma), q, noise.order(frame))
    np.testing.assert_allclose(back, error, rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("likelihood", ["studentt", "normal", "huber", "skewed"])
def test_the_model_has_the_density(likelihood):
    table = correlated(1)
    spec = make_spec("chinchilla", likelihood=likelihood, errors="run")
    model = build({"": make_data(spec, table)})
    point = model.initial_point()
    location, ell, sigma = model.compile_fn(
        model.replace_rvs_by_values([model["location"], model["ell"], model["sigma"]]),
        inputs=model.value_vars,
        on_unused_input="ignore",
        mode="FAST_COMPILE",
    )(point)
    q = {
        name: np.array([[np.exp(point.get(f"{name}_log__", 0.0))]])
        for name in ("dof_above_floor", "skew")
    }
    error = (np.log(table.loss) - location)[None]
    own, scale = noise.innovations(error, sigma, ell, noise.order(table.frame), np)
    want = spec.likelihood.log_density(own, scale, q).sum()
    found = model.compile_logp(vars=[model["log_loss"]], mode="FAST_COMPILE")(point)
    assert found == pytest.approx(want, rel=1e-9)


def test_the_length_is_recovered(fitted):
    low, high = np.quantile(fitted.draws["ell"], [0.05, 0.95])
    assert low < ELL < high
    low, high = np.quantile(fitted.draws["sigma"], [0.05, 0.95])
    assert low < SIGMA < high


def test_the_density_of_runs_integrates_their_effect_out(fitted):
    """Against the multivariate normal density of each run."""
    tau = 0.02
    spec = replace(fitted.spec, effects=("run",))
    names, unit = np.unique(fitted.table.frame["run"], return_inverse=True)
    shape = (*fitted.draws.sizes.values(), len(names))
    draws = fitted.draws.assign(
        tau_run=0 * fitted.draws["sigma"] + tau,
        run_effect=(("chain", "draw", "run"), np.zeros(shape)),
    ).assign_coords(run=names)
    some = replace(fitted, spec=spec, draws=draws.isel(draw=slice(3)))
    found, _ = unit_likelihood(some, unit)
    frame, q = some.table.frame, some.values()
    error = np.log(some.table.loss) - np.log(some.latent(some.table))
    for j, name in enumerate(names):
        rows = (frame["run"] == name).to_numpy()
        for i in range(len(error)):
            own = covariance_of(
                frame[rows].reset_index(drop=True), q["sigma"][i, 0], q["ell"][i, 0]
            )
            want = stats.multivariate_normal(np.zeros(rows.sum()), own + tau**2)
            assert found[i, j] == pytest.approx(want.logpdf(error[i, rows]), abs=0.02)


def test_a_fitted_run_goes_on_from_its_last_residual(fitted):
    train = fitted.table.frame
    run = train["run"].iloc[0]
    last = train[train["run"] == run].nlargest(1, "tokens")
    ahead = pd.concat([last.assign(tokens=last["tokens"] * f) for f in (1.0001, 1e3, 0.5, 1)])
    ahead = ahead.reset_index(drop=True)
    drawn = error_draws(fitted, ahead, np.random.default_rng(0))
    place = int(np.flatnonzero(train.index == last.index[0])[0])
    residual = (np.log(fitted.table.loss) - np.log(fitted.latent(fitted.table)))[:, place]
    sigma = fitted.values()["sigma"][:, 0]
    np.testing.assert_allclose(drawn[:, 0], residual, atol=0.1 * SIGMA)
    for column in (
        1,
        2,
        3,
    ):  # far beyond, and rows of a new run up to the last tokens of the fitted
        assert np.std(drawn[:, column] / sigma) == pytest.approx(1, rel=0.1)
        assert abs(np.corrcoef(drawn[:, column], residual)[0, 1]) < 0.1
    want = 0.5 ** (1 / np.median(fitted.draws["ell"]))  # the new run is one path
    assert np.corrcoef(drawn[:, 2], drawn[:, 3])[0, 1] == pytest.approx(want, abs=0.05)


def test_rows_of_a_new_run_are_one_path(fitted):
    row = fitted.table.frame.iloc[:1].assign(run="new")
    ahead = pd.concat([row.assign(tokens=1e10), row.assign(tokens=1e10 * np.e)] * 2)
    ahead["run"] = ["new", "new", "other", "other"]
    drawn = error_draws(fitted, ahead.reset_index(drop=True), np.random.default_rng(0))
    correlation = np.corrcoef(drawn.T)
    want = np.exp(-1 / np.median(fitted.draws["ell"]))
    assert correlation[0, 1] == pytest.approx(want, abs=0.05)
    assert abs(correlation[0, 2]) < 0.05
    np.testing.assert_allclose(
        covariance(fitted),
        covariance_of(
            fitted.table.frame, np.median(fitted.draws["sigma"]), np.median(fitted.draws["ell"])
        ),
        rtol=1e-3,
        atol=1e-9,
    )


def test_log_likelihood_is_of_rows_given_earlier_ones(fitted):
    q = {name: value[:2] for name, value in fitted.values().items()}
    error = np.log(fitted.table.loss) - np.log(fitted.latent(fitted.table))[:2]
    total = log_likelihood(fitted)[:2].sum(1)
    for i in range(2):
        own = covariance_of(fitted.table.frame, q["sigma"][i, 0], q["ell"][i, 0])
        want = stats.multivariate_normal(np.zeros(len(own)), own).logpdf(error[i])
        assert total[i] == pytest.approx(want, rel=1e-8)


def test_a_saved_fit_has_its_errors(fitted, tmp_path):
    fitted.save(tmp_path / "x.nc")
    back = load(tmp_path / "x.nc")
    assert back.spec.errors == "run"
    rows = fitted.table.frame.assign(tokens=2e11).iloc[::3]
    one, two = (each.forecast(rows, seed=1).samples for each in (back, fitted))
    np.testing.assert_array_equal(one, two)


def test_errors_are_chosen_by_the_table():
    table = correlated(0)
    assert noise.choose_errors("auto", table.frame, "x", ("tokens", "ptpp")) == "run"
    assert noise.choose_errors("independent", table.frame, "x", ("tokens", "ptpp")) == "independent"
    assert noise.choose_errors("auto", table.frame, "x", ("params", "tokens")) == "independent"
    assert noise.choose_errors("run", table.frame, "x", ("params", "tokens")) == "run"
    alone = table.frame.drop(columns="run")
    assert noise.choose_errors("auto", alone, "x", ("tokens", "ptpp")) == "independent"
    twice = table.frame.assign(tokens=1e9)
    assert noise.choose_errors("auto", twice, "x", ("tokens", "ptpp")) == "independent"
    with pytest.raises(TableError, match="needs a column 'run'"):
        noise.choose_errors("run", alone, "x", ("tokens", "ptpp"))
    with pytest.raises(TableError, match="two rows of equal tokens"):
        noise.choose_errors("run", twice, "x", ("tokens", "ptpp"))
    with pytest.raises(FitError, match="unknown errors 'runs'; did you mean 'run'"):
        noise.choose_errors("runs", alone, "x", ("tokens", "ptpp"))


def test_rows_that_are_not_annealed_are_a_path_of_their_own():
    frame = pd.DataFrame({"run": "a", "tokens": [1e9, 2e9, 1e9, 2e9], "annealed": [1, 1, 0, 0]})
    assert noise.order(frame).before.tolist() == [0, 0, 2, 2]
    for columns in (("replay",), ("params", "tokens")):
        assert noise.choose_errors("auto", frame, "table", columns) == "run"
    alike = frame.drop(columns="annealed")
    assert noise.choose_errors("auto", alike, "table", ("replay",)) == "independent"
