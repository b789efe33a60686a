"""Noise: densities of log loss, errors correlated within a run, and random effects of groups."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

import bayeslaw as bl
from bayeslaw import FitError, LawError, TableError, TableWarning, from_frame, grid
from bayeslaw.design.design import Design
from bayeslaw.inference.fitting import refit
from bayeslaw.inference.residuals import (
    covariance,
    error_draws,
    log_likelihood,
    unit_likelihood,
)
from bayeslaw.model import effects, noise
from bayeslaw.model.noise import DOF_FLOOR, Huber, make_likelihood
from bayeslaw.model.spec import make_spec
from tests import support
from tests.support import (
    CHINCHILLA,
    EFFECTS,
    grouped,
    object_mode,
    refused,
    saved,
    with_effects,
)

HUBERS = [(0.004, 0.02), (0.02, 0.02), (0.1, 0.02), (1.0, 3.0), (0.5, 1e-3)]
CASES = {
    **{f"huber {sigma} {delta}": (Huber(delta), sigma, {}) for sigma, delta in HUBERS},
    **{
        f"studentt {dof}": ("studentt", 0.02, {"dof": dof})
        for dof in (2.1, 3.0, 8.0, 100.0)
    },
    **{
        f"skewed {skew}": ("skewed", 0.02, {"dof": 4, "skew": skew})
        for skew in (1e-3, 0.4, 1.2)
    },
    "normal": ("normal", 0.1, {}),
}


@pytest.mark.parametrize(("kind", "sigma", "given"), CASES.values(), ids=CASES)
def test_a_density_integrates_to_one_and_has_its_draws_and_information(
    kind, sigma, given
):
    """The information is the mean square of the score."""
    likelihood = make_likelihood(kind)
    q = {"dof_above_floor": np.array(given.get("dof", 0.0) - DOF_FLOOR)}
    q |= {"skew": np.array(given.get("skew", 0.0))}
    delta = getattr(likelihood, "delta", sigma)
    far = (
        delta + 60 * sigma**2 / delta if kind not in ("studentt", "skewed") else np.inf
    )

    def pdf(x):
        return np.exp(likelihood.log_density(np.asarray(x, float), np.array(sigma), q))

    def integral(f, low, high):
        cuts = [low, *[c for c in (-delta, 0, delta) if low < c < high], high]
        return sum(
            integrate.quad(f, a, b, epsabs=1e-12, limit=200)[0]
            for a, b in itertools.pairwise(cuts)
        )

    assert integral(pdf, -far, far) == pytest.approx(1, abs=1e-7)
    step = 1e-4 * min(sigma, delta)

    def squared(x):
        ends = likelihood.log_density(
            np.array([x - step, x + step]), np.array(sigma), q
        )
        return (np.diff(ends)[0] / (2 * step)) ** 2 * pdf(x)

    variance = likelihood.information_variance(np.array(sigma), q)
    assert variance == pytest.approx(1 / integral(squared, -far, far), rel=2e-4)
    draws = likelihood.sample(np.random.default_rng(1), (40_000,), sigma, q)
    edges = np.quantile(draws, np.linspace(0.02, 0.98, 25))
    # Each bin holds a twenty-fifth of the draws; its sampling error is about .001.
    mass = [integral(pdf, *ends) for ends in itertools.pairwise(edges)]
    np.testing.assert_allclose(mass, 0.04, atol=0.006)
    assert integral(pdf, -far, edges[0]) == pytest.approx(0.02, abs=0.004)


@pytest.mark.parametrize("skew", [1e-3, 0.4, 1.2])
def test_a_skewed_density_has_its_mode_at_the_location_and_its_mass_above(skew):
    skewed, q = (
        make_likelihood("skewed"),
        {"dof_above_floor": np.array(1.0), "skew": np.array(skew)},
    )
    far, sigma = 0.06 * np.exp([skew, -skew]) * [1, -1], np.array(0.02)
    assert skewed.log_density(np.array([0, 1e-5, -1e-5]), sigma, q).argmax() == 0
    np.testing.assert_allclose(skewed.even(far, q, np), [0.06, -0.06])
    assert np.ptp(skewed.log_density(far, sigma, q)) < 1e-12
    draws = skewed.sample(np.random.default_rng(2), (40_000,), 0.02, q)
    assert np.mean(draws > 0) == pytest.approx(1 / (1 + np.exp(-2 * skew)), abs=0.01)


@object_mode
def test_draws_in_a_model_match_those_outside():
    with pm.Model() as model:
        Huber(0.02).observe(np.full(3, 0.7), 0.05, {}, np.zeros(3))
    inside = pm.draw(model["log_loss"], 3000, random_seed=1, mode="FAST_COMPILE")
    assert inside.shape == (3000, 3)
    outside = 0.7 + Huber(0.02).sample(np.random.default_rng(2), (9000,), 0.05, {})
    assert stats.ks_2samp(inside.ravel(), outside).pvalue > 1e-3


@pytest.mark.slow
def test_the_mode_stays_off_the_spike_at_sigma_zero():
    """With a free dof and flat noise priors the mode would be sigma = 0 on a few exact rows."""
    table = grouped(3, {})
    point = bl.fit_map("chinchilla", table, likelihood="studentt")
    residuals = np.log(point.predict(table) / table.loss)
    assert np.sort(np.abs(residuals))[5] > 1e-5
    assert np.sqrt(np.mean(residuals**2)) < 0.006


# -- errors that are correlated within a run -------------------------------------------------------

SIGMA, ELL = 0.01, 1.5


def correlated(seed=0):
    """A table of runs whose errors are correlated, and draws about the true parameters."""
    frame, rng = grouped(seed, {}).frame, np.random.default_rng(seed)
    chance = np.linalg.cholesky(support.covariance_of(frame, SIGMA, ELL))
    errors = np.exp(chance @ rng.standard_normal(len(frame)))
    table = from_frame(frame.assign(loss=frame["loss"] * errors))
    spec = make_spec("chinchilla", likelihood="normal", errors="run")
    at = Design(spec.law, table.frame).at
    truth = spec.law.to_reference(CHINCHILLA, at) | {"sigma": SIGMA, "ell": ELL}
    draws = {
        name: (("chain", "draw"), value * np.exp(0.01 * rng.standard_normal((4, 250))))
        for name, value in truth.items()
    }
    made = saved("plain")
    return replace(made, spec=spec, table=table, at=at, draws=xr.Dataset(draws))


@pytest.fixture(scope="module")
def fitted():
    return correlated()


@given(st.permutations(range(12)), st.floats(0.2, 5), st.floats(1e-3, 0.1))
@settings(deadline=None, max_examples=20)
def test_errors_have_the_density_of_their_covariance(places, ell, sigma):
    """And are drawn by the inverse of what whitens them."""
    frame = pd.DataFrame(
        {"run": ["a", "b", "c"] * 4, "tokens": np.geomspace(1e9, 9e10, 12)}
    )
    frame = frame.iloc[list(places)].reset_index(drop=True)
    error = np.random.default_rng(0).normal(0, sigma, (2, 12))
    own, scale = noise.innovations(error, sigma, ell, noise.order(frame), np)
    want = stats.multivariate_normal(
        np.zeros(12), support.covariance_of(frame, sigma, ell)
    )
    found = stats.norm.logpdf(own, scale=scale).sum(1)
    np.testing.assert_allclose(found, want.logpdf(error), rtol=1e-7)
    fixed, q = (
        SimpleNamespace(sample=lambda *_: own.copy()),
        {"ell": np.full((2, 1), ell)},
    )
    back = noise.draw_paths(fixed, None, np.full((2, 1), sigma), q, noise.order(frame))
    np.testing.assert_allclose(back, error, rtol=1e-10, atol=1e-15)


def test_likelihoods_of_runs_are_those_of_their_covariance(fitted):
    """Row by row given earlier ones; and of runs, with their random effect integrated out."""
    frame, tau = fitted.table.frame, 0.02
    some = replace(fitted, draws=fitted.draws.isel(draw=slice(1)))
    q, error = some.values(), np.log(some.table.loss) - np.log(some.latent(some.table))
    effect = with_effects(
        some, "run", frame["run"], tau, likelihood="normal", errors="run"
    )
    effect = replace(
        effect, draws=effect.draws.assign(run_effect=0 * effect.draws["run_effect"])
    )
    names, unit = np.unique(frame["run"], return_inverse=True)
    total, by_run = log_likelihood(some).sum(1), unit_likelihood(effect, unit)[0]
    for i in range(len(error)):
        own = support.covariance_of(frame, q["sigma"][i, 0], q["ell"][i, 0])
        want = stats.multivariate_normal(np.zeros(len(own)), own).logpdf(error[i])
        assert total[i] == pytest.approx(want, rel=1e-8)
        for j in range(len(names)):
            rows = unit == j
            one = stats.multivariate_normal(
                np.zeros(rows.sum()), own[rows][:, rows] + tau**2
            )
            assert by_run[i, j] == pytest.approx(one.logpdf(error[i, rows]), abs=0.02)
    scales = np.median(fitted.draws["sigma"]), np.median(fitted.draws["ell"])
    wanted = support.covariance_of(frame, *scales)
    np.testing.assert_allclose(covariance(fitted), wanted, rtol=1e-3, atol=1e-9)


def test_a_fitted_run_goes_on_from_its_last_residual_and_a_new_one_is_one_path(fitted):
    train = fitted.table.frame
    last = train[train["run"] == train["run"].iloc[0]].nlargest(1, "tokens")
    ahead = pd.concat(
        [
            *(last.assign(tokens=last["tokens"] * f) for f in (1.0001, 1e3, 0.5, 1)),
            *(
                last.assign(tokens=d, run=run)
                for run in ("new", "other")
                for d in (1e10, 3e10)
            ),
        ]
    ).reset_index(drop=True)
    drawn = error_draws(fitted, ahead, np.random.default_rng(0))
    place = int(np.flatnonzero(train.index == last.index[0])[0])
    residual = (np.log(fitted.table.loss) - np.log(fitted.latent(fitted.table)))[
        :, place
    ]
    np.testing.assert_allclose(drawn[:, 0], residual, atol=0.1 * SIGMA)
    # Far beyond, and rows of a new run up to the last tokens of the fitted one.
    found = np.corrcoef(np.column_stack([residual, drawn[:, 1:]]).T)
    assert np.abs(found[0, 1:]).max() < 0.12
    np.testing.assert_allclose(drawn[:, 1:].std(0), SIGMA, rtol=0.1)
    for i, j, apart in ((2, 3, np.log(2)), (4, 5, np.log(3)), (6, 7, np.log(3))):
        assert found[i, j] == pytest.approx(np.exp(-apart / ELL), abs=0.06)
    assert abs(found[4, 6]) < 0.1


def test_errors_are_chosen_by_the_table():
    frame = grouped(0, {}).frame
    alone, twice = frame.drop(columns="run"), frame.assign(tokens=1e9)
    for errors, rows, wanted in (
        ("auto", frame, "run"),
        ("independent", frame, "independent"),
        ("run", frame, "run"),
        ("auto", alone, "independent"),
        ("auto", twice, "independent"),
        ("run", alone, "needs a column 'run'"),
        ("run", twice, "two rows of equal tokens"),
        ("runs", alone, "unknown errors 'runs'; did you mean 'run'"),
    ):
        if wanted in noise.ERRORS:
            assert noise.choose_errors(errors, rows, "x") == wanted
            continue
        refused((TableError, FitError), wanted, noise.choose_errors, errors, rows, "x")
    # Rows that are not annealed are a path of their own.
    frame = pd.DataFrame(
        {"run": "a", "tokens": [1e9, 2e9, 1e9, 2e9], "annealed": [1, 1, 0, 0]}
    )
    assert noise.order(frame).before.tolist() == [0, 0, 2, 2]
    assert noise.choose_errors("auto", frame, "table") == "run"


# -- random effects --------------------------------------------------------------------------------


def test_levels_are_chosen_from_the_columns():
    frame, none = grouped(3).frame, {}
    beside, crossed = (
        {"discrepancy": True},
        grid(params=[1e8, 2e8, 3e8, 4e8], base=range(4), tokens=[1e9, 1e10, 1e11]),
    )
    crossed["run"] = crossed.groupby(["params", "base"]).ngroup()
    two_runs = frame.assign(run=np.where(frame["params"] < 5e8, "a", "b")).drop(
        columns="base"
    )
    three = frame[frame["params"] > 1e8]
    sizes = crossed["params"].astype(str)
    plain = crossed[["params", "tokens"]]
    law, budgets = (
        {"columns": ("params", "tokens")},
        {"columns": ("params", "ptpp", "tokens")},
    )
    for asked, rows, how, wanted in (
        ("auto", frame, none, "base run"),
        ("auto", frame.drop(columns="base"), none, "run"),
        ("none", frame, none, ""),
        ("run,base", frame, none, "base run"),
        (
            "auto",
            frame.assign(run=np.arange(len(frame))),
            none,
            "base",
        ),  # a row a run is noise
        (
            "auto",
            frame.assign(run=frame["base"]),
            none,
            "run",
        ),  # a run a base is one effect
        ("auto", two_runs, none, ""),
        ("auto", frame, beside, "size base run"),
        ("auto", three, beside, "base run"),
        ("size", three, none, "size"),
        ("auto", crossed, beside, "size base run"),
        ("auto", crossed.assign(base=sizes), beside, "base run"),  # a base a size
        ("auto", crossed.assign(run=sizes), beside, "base run"),  # a run a size
        # Groups that covariates of the law make are not fitted.
        ("auto", crossed.assign(run=sizes), beside | law, "size base"),
        ("auto", crossed.assign(run=sizes), law, "base (run)"),
        ("auto", crossed.assign(base=sizes), beside | law, "size run"),
        ("auto", frame.assign(base=frame["params"]), law, "(base) run"),
        (
            "auto",
            crossed.assign(ptpp=crossed["base"]),
            beside | budgets,
            "size (base) (run)",
        ),
        (
            "auto",
            crossed.assign(ptpp=crossed["base"] % 2),
            beside | budgets,
            "size base run",
        ),
        # An isoFLOP table has one run of most sizes.
        ("auto", plain.iloc[[0, 1, 12, 24, 36]], beside | law, ""),
        ("auto", plain.iloc[[0, 1, 12, 13, 24, 25, 36]], beside | law, "size"),
        ("size", crossed, law, "size"),
    ):
        levels, drawn = effects.choose(asked, rows, "t", **how)
        assert " ".join(f"({n})" if n in drawn else n for n in levels) == wanted
    refused(LawError, "did you mean 'run'", effects.choose, "runs", frame, "t")
    with pytest.raises(TableError, match="t: no column 'base'"):
        effects.choose(("base",), frame.drop(columns="base"), "t")
    with pytest.warns(
        TableWarning, match="of the effect 'run' are those of params, so"
    ):
        assert effects.choose("run", crossed.assign(run=sizes), "t", **law) == (
            ("run",),
            (),
        )


def test_a_run_of_each_size_takes_no_place_of_an_exact_law():
    """On five tables of such runs, forecasts were 8 to 50 % too low."""
    sizes = np.geomspace(1e8, 1e10, 6)
    rows = bl.simulate(
        "chinchilla", CHINCHILLA, grid(params=sizes, tokens=[1e10, 3e10, 1e11])
    )
    table = bl.from_frame(rows.frame.assign(run=rows.frame["params"].astype(str)))
    exact = bl.pymc_model("chinchilla", table, discrepancy="none")
    assert set(exact.coords) == {"row"}
    assert "ell" not in exact.named_vars
    fit = refit("chinchilla", table, 0, effects="auto")
    assert (fit.spec.effects, fit.spec.drawn) == (("run",), ("run",))
    assert (fit.draws["run_effect"] == 0).all()
    # A new run has an effect of its own, a fitted one has none.
    new, old = (
        bl.grid(params=2e9, tokens=2e10),
        table.frame.iloc[[0]].assign(tokens=2e10),
    )
    fit = fit.accepted("unconverged")
    parts = [fit.forecast(rows).variance()["run"] for rows in (new, old)]
    assert parts[0].item() > 0.05
    assert parts[1].item() == 0
    drifting = bl.pymc_model("chinchilla", table)
    assert {"size"} < set(drifting.coords)
    assert "run" not in drifting.coords
    assert "ell" in drifting.named_vars
    with pytest.warns(
        TableWarning, match="errors that are correlated in runs can take"
    ):
        bl.pymc_model("chinchilla", table, discrepancy="none", errors="run")


def test_an_effect_that_has_the_name_of_something_else_is_refused():
    """Before sampling: draws could not hold both."""
    table = grouped(3)
    for column in (
        "alpha",
        "L_ref",
        "kappa",
        "walk_AN",
        "tau_run",
        "draw",
        "run_effect",
        "loss",
    ):
        says = (
            "is no label, so no effect"
            if column == "loss"
            else "cannot be an effect.*rename"
        )
        labels = table.frame.get(column, np.arange(len(table)) % 4)
        named = from_frame(table.frame.assign(**{column: labels}))
        with pytest.raises(LawError, match=f"'{column}' {says}"):
            bl.fit("chinchilla", named, effects=("run", column))


def test_labels_of_runs_are_not_used_again():
    """A seed as the label would give the runs of all sizes one effect and one path of errors."""
    frame = grouped(3).frame
    seeds = frame.assign(run=frame["run"].str[-1]).drop(columns="base")
    for how in ({"effects": "run"}, {"effects": "none", "errors": "run"}):
        rows = (
            seeds.assign(tokens=1e9 + np.arange(len(seeds)))
            if "errors" in how
            else seeds
        )
        with pytest.raises(
            TableError, match=r"'params' differs within a run \(run 0: 1e\+08 to"
        ):
            bl.fit("chinchilla", from_frame(rows), discrepancy="none", **how)
    # Checkpoints of pre-training differ in D / N, which a law of N and D does not contain.
    ratios = frame.assign(ptpp=np.arange(len(frame)) + 1.0)
    effects.check_runs(ratios, "rows", ("params", "tokens"))
    with pytest.raises(TableError, match="'ptpp' differs within a run"):
        effects.check_runs(ratios, "rows", ("params", "tokens", "ptpp"))


def test_fitted_groups_keep_their_effect_and_new_ones_are_drawn():
    fit = saved("groups")
    low, high = np.quantile(fit.draws["tau_run"], [0.005, 0.995])
    assert low < EFFECTS["run"] < high
    levels, known = ("base", "run"), fit.table.frame.iloc[1:7]
    new = known.assign(run=["x", "x", "y", "y", "z", "z"], base="new")

    def draw(rows, seed, levels=levels):
        return effects.draw(fit.draws, levels, rows, np.random.default_rng(seed))

    np.testing.assert_array_equal(draw(known, 1), draw(known, 2))
    unseen = np.concatenate([draw(new, seed) for seed in range(10)])
    correlation = np.corrcoef(unseen.T)
    assert correlation[0, 1] == pytest.approx(1)  # one run
    tau = {level: (fit.draws[f"tau_{level}"] ** 2).mean().item() for level in levels}
    expected = tau["base"] / (tau["base"] + tau["run"])  # one base, two runs
    assert correlation[0, 2] == pytest.approx(expected, abs=0.1)
    assert unseen.var() == pytest.approx(sum(tau.values()), rel=0.2)
    assert not effects.draw(fit.draws, levels, new, None).any()
    # Effects of fitted sizes are in the latent loss, those of new ones are not.
    sizes = grid(params=[3e8, 5e8], tokens=[1e9, 1e11])
    drawn, latent = (
        draw(sizes, 1, ("size",)),
        effects.latent_effects(fit.draws, ("size",), sizes),
    )
    assert not drawn[:, :2].any()
    assert not latent[:, 2:].any()
    np.testing.assert_array_equal(drawn[:, 2], drawn[:, 3])
    assert drawn[:, 2].std() == pytest.approx(
        (fit.draws["tau_size"] ** 2).mean().item() ** 0.5, rel=0.2
    )
    np.testing.assert_allclose(
        fit.latent(sizes),
        fit.law_loss(fit.design(fit.rows(sizes))) * np.exp(latent),
        rtol=1e-12,
    )
