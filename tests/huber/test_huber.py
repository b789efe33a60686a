"""Huber fits: optima, bounds, forecasts that are not unique, and steps within bounds."""

import time
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import least_squares
from scipy.special import huber

from bayeslaw import FitError, FitWarning, TableError, fit_huber, from_frame, load_law, read_table
from tests.inside import Objective, bounded_steps, linear_fit
from tests.support import DATA, DESIGN, LAWS, TRUTH, made, miss, on_bound, slow, truth_of


@pytest.fixture(scope="module")
def english():
    """Annealed English rows of tinycpt with replay below 1, as fitted in the docs."""
    return read_table(DATA / "tinycpt/english.csv", where="annealed and replay < 1")


@pytest.mark.parametrize("name", LAWS)
def test_noiseless_losses_are_recovered(name):
    table = made(name)
    point = fit_huber(name, table)
    assert np.abs(np.log(point.predict(table) / table.loss)).max() < 1e-6
    assert point.interior
    assert 0 < point.agreeing <= 1
    exponents = len(point.law.exponents)
    assert point.starts == 64 * exponents
    assert point.polished == (max(6, exponents) if point.agreeing == 1 else 3 * exponents)
    unseen = DESIGN.assign(params=3e9, ptpp=500)
    np.testing.assert_allclose(
        point.predict(unseen),
        load_law(name).loss(truth_of(point.law.parameters), point.law.covariates(unseen)),
        rtol=1e-5,
    )


def test_objective_is_the_papers(small):
    point = fit_huber("chinchilla", small, delta=0.003)
    r = np.abs(np.log(point.predict(small) / small.loss))
    by_hand = np.where(r <= 0.003, r**2 / 2, 0.003 * (r - 0.0015)).mean()
    assert point.objective == pytest.approx(by_hand, rel=1e-10)
    for other in (0.02, 1e-3):
        there = np.log(fit_huber("chinchilla", small, delta=other).predict(small) / small.loss)
        assert point.objective <= huber(0.003, there).mean() + 1e-15


def test_repeated_rows_change_nothing(small):
    """The optimum does not depend on mean-versus-sum scaling."""
    tenfold = [small.frame.assign(run=str(i)) for i in range(10)]
    many = from_frame(pd.concat(tenfold))
    one, ten = fit_huber("chinchilla", small), fit_huber("chinchilla", many)
    assert ten.objective == pytest.approx(one.objective, rel=1e-9)
    assert miss(one, ten, small) < 1e-7


def test_order_of_rows_changes_nothing(small):
    shuffled = from_frame(small.frame.sample(frac=1, random_state=1))
    assert miss(fit_huber("chinchilla", small), fit_huber("chinchilla", shuffled), small) < 1e-7


def test_seeds():
    table = made("dcpt", sigma=0.002)
    first, again, other = (fit_huber("dcpt", table, seed=seed) for seed in (0, 0, 1))
    assert first.parameters == again.parameters
    assert other.objective == pytest.approx(first.objective, rel=1e-8)
    assert miss(first, other, table) < 1e-5


@on_bound
def test_a_single_outlier_does_not_pull_the_fit(small):
    frame = small.frame.copy()
    frame.loc[7, "loss"] *= 1.5
    clean, robust = fit_huber("chinchilla", small), fit_huber("chinchilla", from_frame(frame))
    squares = fit_huber("chinchilla", from_frame(frame), delta=10)
    assert miss(clean, robust, small) < 0.01 < miss(clean, squares, small)


@pytest.mark.parametrize("delta", [0, -0.02, np.nan])
def test_delta_must_be_positive(small, delta):
    with pytest.raises(FitError, match="delta must be positive"):
        fit_huber("chinchilla", small, delta=delta)


def test_bounds_are_reported(delphi):
    """On Delphi's isotoken rows the optimal floor E is 0, its lower bound."""
    with pytest.warns(FitWarning, match=r"chinchilla on .*isotoken.* on a bound \(E = 0\)"):
        point = fit_huber("chinchilla", delphi)
    assert point.at_bounds == {"E": 0.0}
    assert not point.interior
    assert point.parameters["E"] == 0


@on_bound
def test_constant_losses():
    table = from_frame(DESIGN.assign(loss=2.5))
    point = fit_huber("form3", table)
    np.testing.assert_allclose(point.predict(table), 2.5, rtol=1e-6)


@pytest.mark.filterwarnings("ignore:.*median loss")
@on_bound
@pytest.mark.parametrize("scale", [1e-250, 1e-6, 1e6, 1e250])
def test_extreme_losses(scale, small):
    table = from_frame(small.frame.assign(loss=small.loss * scale), loss_unit="nats")
    one, scaled = fit_huber("chinchilla", small), fit_huber("chinchilla", table)
    np.testing.assert_allclose(scaled.predict(table) / scale, one.predict(small), rtol=1e-6)


@on_bound
def test_extreme_counts(small):
    table = from_frame(small.frame.assign(tokens=small.frame["tokens"] * 1e3))
    one, scaled = fit_huber("chinchilla", small), fit_huber("chinchilla", table)
    np.testing.assert_allclose(scaled.predict(table), one.predict(small), rtol=1e-6)


def test_several_columns_missing(small):
    says = r"columns 'replay' \(or r; for B, C of form3\), 'ptpp' \(.*\) are missing; found: params"
    with pytest.raises(TableError, match=says + r".* that are there: chinchilla, skaling\."):
        fit_huber("form3", small)


def best_of_random(law, table, starts, seed=0):
    """Lowest mean Huber loss that SciPy's bounded least squares finds from random starts."""
    law = load_law(law).published
    objective, rng = Objective(law, table, 0.02), np.random.default_rng(seed)
    best = np.inf
    low, high = np.array([law.bounds[n] for n in objective.names]).T
    high = np.minimum(high, 20)
    low = np.maximum(low, -20)
    for _ in range(starts):
        start = np.array(
            [
                rng.uniform(0.1, 2) if i < objective.linear else np.exp(rng.uniform(-4, 1))
                for i in range(len(low))
            ]
        )
        start = np.clip(start, low + 1e-6, high - 1e-6)
        with np.errstate(all="ignore"):
            end = least_squares(
                lambda v: np.nan_to_num(objective.residuals(v[None])[0], nan=1e3, posinf=1e3),
                start,
                lambda v: np.nan_to_num(
                    objective.jacobian(v[None], objective.residuals(v[None]))[0].T
                ),
                bounds=(low, high),
                loss="huber",
                f_scale=0.02,
                xtol=1e-14,
                ftol=1e-14,
                gtol=1e-14,
                x_scale="jac",
                max_nfev=300,
            )
        best = min(best, huber(0.02, objective.residuals(end.x[None])[0]).mean())
    return best


@on_bound
@pytest.mark.parametrize(
    ("data", "name", "starts"),
    [
        ("olmo", "chinchilla", 20),
        ("delphi", "chinchilla", 20),
        ("made", "dcpt", 15),
        slow("made", "form2", 20),
        slow("made", "form3", 20),
    ],
)
def test_least_squares_from_random_starts_finds_no_lower_objective(request, data, name, starts):
    """``python -m benchmarks huber`` has every law."""
    table = made(name, sigma=0.003) if data == "made" else request.getfixturevalue(data)
    point = fit_huber(name, table)
    assert point.objective <= best_of_random(name, table, starts) * (1 + 1e-9)


def test_an_exponent_without_a_finite_optimum_ends_at_its_cap(english):
    """The objective falls with eta without end, ever more slowly: two stages differ by a step."""
    with pytest.warns(FitWarning, match="eta = 20"):
        point = fit_huber("form1", english.query("ptpp <= 31"))
    # The least objective of 4,000 random starts in benchmarks/huber.py of commit b042428.
    assert point.objective == pytest.approx(9.9237e-05, rel=5e-6)
    assert point.agreeing == 1


def test_lambda_ends_at_its_bound_where_its_curvature_is_negative(english):
    """At the optimum lambda = 1, where the second derivative by lambda is negative."""
    with pytest.warns(FitWarning, match="lambda_ = 1"):
        point = fit_huber("form2", english.query("ptpp <= 124"), bounds="prior")
    assert point.objective == pytest.approx(4.0800e-04, rel=5e-6)
    assert point.agreeing == 1


def test_lambda_is_bounded_as_published_unless_the_priors_bounds_are_asked_for(english):
    """The paper prints lambda > 0; the Beta prior has lambda < 1."""
    four = english.query("ptpp <= 124")
    with pytest.warns(FitWarning, match="beta = 20"):
        paper = fit_huber("form2", four)
    with pytest.warns(FitWarning, match="lambda_ = 1"):
        prior = fit_huber("form2", four, bounds="prior")
    assert (paper.bounds, prior.bounds) == ("paper", "prior")
    assert prior.parameters["lambda_"] == 1 < paper.parameters["lambda_"]
    assert paper.objective < 0.3 * prior.objective


@on_bound
def test_form3_has_the_same_optimum_without_a_least_exponent(english):
    """The paper prints a limit of the effective exponent for Form 2 only."""
    law, train = load_law("form3"), english.query("ptpp <= 31")
    terms = [replace(t, log=t.log.replace("1e-6", "-1e300")) for t in law.terms]
    free = fit_huber(replace(law, terms=tuple(terms)), train)
    assert free.objective == pytest.approx(fit_huber(law, train).objective, rel=1e-9)
    assert free.parameters["lambda_"] > 1


@on_bound
def test_bounds_agree_for_a_law_that_states_one_kind(small):
    fits = [fit_huber("chinchilla", small, bounds=bounds) for bounds in ("paper", "prior")]
    assert fits[0].parameters == fits[1].parameters


def test_unknown_bounds(small):
    with pytest.raises(FitError, match="unknown bounds 'papers'; did you mean 'paper'"):
        fit_huber("chinchilla", small, bounds="papers")


def test_two_stages_leave_one_direction_of_the_gate_free():
    """Two effective exponents are fitted with three parameters: every solution has the same two."""
    table = made("form2", sigma=0.003).query("ptpp <= 31")
    fit, law = fit_huber("form2", table), load_law("form2")
    assert fit.agreeing == 1
    assert fit.solutions[0] == fit.parameters
    assert len(fit.solutions) > 3
    gate = law.terms[1]
    exponents = np.array(
        [
            [gate.local_exponent(p, {"ptpp": np.log(budget)}, np) for budget in (15, 31, 279)]
            for p in fit.solutions
        ]
    )
    assert np.ptp(exponents[:, :2], axis=0).max() < 1e-4
    assert np.ptp(exponents[:, 2]) > 0.005
    for p in fit.solutions:
        r = np.log(law.loss(p, law.covariates(table)) / table.loss)
        assert huber(0.02, r).mean() == pytest.approx(fit.objective, rel=1.1e-5)
    inside, beyond = fit.forecast(table), fit.forecast(DESIGN.query("ptpp == 279"))
    assert inside["unique"].all()
    assert not beyond["unique"].any()
    assert (np.log(beyond["highest"] / beyond["lowest"]) > 0.005).any()
    # By hand, in the paper's formula.
    row = beyond.iloc[[7]]
    N, D, r, P = (row[c].to_numpy() for c in ("params", "tokens", "replay", "ptpp"))
    by_hand = []
    for p in fit.solutions:
        power = P ** p["zeta"]
        beta = p["beta"] * (1 - p["lambda_"] * power / (1 + power))
        terms = p["A"] / N ** p["alpha"] + p["B"] * r ** p["nu"] / D**beta
        by_hand.append(p["E"] + terms + p["C"] / (r + 1e-5) ** p["gamma"])
    assert row["lowest"].item() == pytest.approx(np.min(by_hand), rel=1e-12)
    assert row["highest"].item() == pytest.approx(np.max(by_hand), rel=1e-12)
    assert row["prediction"].item() == pytest.approx(by_hand[0].item(), rel=1e-12)


def test_more_stages_make_the_forecast_unique():
    fit = fit_huber("form2", made("form2", sigma=0.003))
    assert fit.forecast(DESIGN.assign(ptpp=900))["unique"].all()


def test_summary_has_the_range_of_every_parameter():
    fit = fit_huber("form2", made("form2", sigma=0.003).query("ptpp <= 31"))
    summary = fit.summary()
    law = fit.law
    assert list(summary.index) == list(dict.fromkeys([*law.parameters, *law.coordinates]))
    assert summary.loc["lambda_", "value"] == fit.parameters["lambda_"]
    assert summary.loc["slope_D", "value"] == pytest.approx(fit.reference()["slope_D"])
    lambdas = [p["lambda_"] for p in fit.solutions]
    assert summary.loc["lambda_", ["lowest", "highest"]].tolist() == [min(lambdas), max(lambdas)]
    assert summary.loc["beta_ref", "highest"] / summary.loc["beta_ref", "lowest"] < 1.01


def test_a_fit_given_by_its_parameters_has_no_range(small):
    fit = replace(fit_huber("chinchilla", small), solutions=())
    np.testing.assert_array_equal(fit.span(small), [fit.predict(small)] * 2)


def test_the_optimum_is_stationary():
    """Moving any parameter either way does not lower the objective."""
    table = made("form1", sigma=0.003)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        point = fit_huber("form1", table)
    for name, value in point.parameters.items():
        for factor in (1 - 1e-4, 1 + 1e-4):
            moved = replace(point, parameters={**point.parameters, name: value * factor})
            r = np.log(moved.predict(table) / table.loss)
            assert huber(0.02, r).mean() >= point.objective * (1 - 1e-12)


def test_chinchilla_is_fitted_in_a_second(olmo):
    start = time.process_time()
    fit_huber("chinchilla", olmo)
    assert time.process_time() - start < 1


def test_few_starts(small):
    point = fit_huber("chinchilla", small, starts=2, polish=64)
    assert (point.starts, point.polished) == (2, 2)
    with pytest.raises(FitError, match="starts and polish must be 1 or more"):
        fit_huber("chinchilla", small, starts=0)


@pytest.mark.parametrize("name", ["form1", "dcpt"])
def test_sizes_of_a_start_do_not_follow_outliers(name):
    """At the true exponents the reweighted sizes give the losses, whatever two rows say."""
    law, frame = load_law(name), made(name).frame.copy()
    frame.loc[[11, 140], "loss"] *= [1.6, 0.7]
    objective = Objective(law, from_frame(frame), 0.02)
    point = np.array([[TRUTH[n] if n in law.exponents else 1.0 for n in objective.names]])
    sizes = linear_fit(objective, point)
    point[:, : objective.linear] = sizes
    found = law.loss(objective.paper(point[0]), law.covariates(DESIGN))
    truth = law.loss(truth_of(law.parameters), law.covariates(DESIGN))
    assert np.abs(np.log(found / truth)).max() < 2e-3


@given(seed=st.integers(0, 10_000), near=st.floats(0.01, 1.0))
def test_bounded_steps_are_newton_steps_where_no_bound_is_active(seed, near):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(5, 4, 6))
    matrix, gradient = root @ root.swapaxes(-1, -2), rng.normal(size=(5, 4))
    newton = -np.linalg.solve(matrix, gradient[..., None])[..., 0]
    wide = 2 * np.abs(newton)
    np.testing.assert_allclose(bounded_steps(matrix, gradient, -wide, wide), newton, rtol=1e-8)
    tight = near * np.abs(newton)
    tight[:, 0] = 0
    step = bounded_steps(matrix, gradient, -tight, tight)
    assert np.all(np.abs(step) <= tight)
    # Coordinates off their bounds minimise the quadratic function given the others.
    slope = gradient + (matrix @ step[..., None])[..., 0]
    done = np.sum(np.abs(step) == tight, axis=1) < 4
    off = (np.abs(step) < tight) & done[:, None]
    np.testing.assert_allclose(slope[off], 0, atol=1e-7 * np.abs(gradient).max())


def test_a_coordinate_without_effect_stays():
    matrix, gradient = np.diag([2.0, 0.0])[None], np.array([[-1.0, 0.0]])
    step = bounded_steps(matrix, gradient, np.full((1, 2), -9.0), np.full((1, 2), 9.0))
    np.testing.assert_allclose(step, [[0.5, 0.0]])
