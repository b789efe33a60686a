"""Fits: settings, seeds, the path of a table, the convergence check, modes, and recovery."""

import re
import warnings
from functools import partial

import arviz_stats as azs
import numpy as np
import pytest
import xarray as xr
from scipy import stats
from threadpoolctl import threadpool_limits

import bayeslaw as bl
from bayeslaw import (
    FitError,
    FitWarning,
    LawError,
    TableError,
    TableWarning,
    fit,
    fit_huber,
    from_frame,
    load_law,
    read_table,
    simulate,
)
from tests.inside import Convergence, diagnose, models_dir, sampling
from tests.support import DATA, DESIGN, made, miss, slow, truth_of


def test_a_failed_gate_is_retried_once(unconverged):
    assert unconverged.settings["draws"] == 20
    assert unconverged.settings["tune"] == 30
    assert unconverged.settings["target_accept"] == 0.99


@pytest.mark.parametrize(
    ("labels", "says"), [(["a", "b"], "a, b.*domain == 'a'"), ([None, "a", 1, 2], "a, 1.*'a'")]
)
def test_several_domains_are_refused(olmo, labels, says):
    mixed = from_frame(olmo.frame.assign(domain=np.resize(np.array(labels, object), len(olmo))))
    with pytest.raises(TableError, match=f"several domains .{says}"):
        fit("chinchilla", mixed)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"method": "nutz"}, "unknown method 'nutz'; did you mean 'nuts'.*map"),
        ({"method": "huber"}, r"bayeslaw\.fit_huber\(law, table\)"),
        ({"likelihood": "huberr"}, "unknown likelihood 'huberr'; did you mean 'huber'"),
        ({"priors": {"alhpa": "Flat()"}}, "unknown prior 'alhpa'; did you mean 'alpha'"),
    ],
)
def test_misspelt_settings(small, settings, says):
    with pytest.raises(LawError, match=says):
        fit("chinchilla", small, **settings)


def test_runs_of_pure_replay_are_warned_of():
    rows = bl.grid(params=[1e8, 1e9], tokens=[1e9, 1e10], replay=[0.1, 0.5, 1.0], ptpp=[15, 31])
    table = from_frame(rows.assign(loss=np.linspace(2, 3, len(rows))))
    short = {"discrepancy": "none", "draws": 4, "tune": 4, "chains": 1, "retry": False}
    says = r"8 rows have replay 1 and tokens > 0 \(rows 4, 5, .*where='replay < 1 or tokens == 0'"
    with pytest.warns(TableWarning, match=says):
        fit("dcpt", table, **short)
    fit("dcpt", table.query("replay < 1"), **short)


@pytest.mark.parametrize("method", ["nuts", "map", None])
def test_the_law_comes_before_the_table(small, method):
    fitted = fit_huber if method is None else partial(fit, method=method)
    with pytest.raises(LawError, match=r"a LossTable is no law.* before the table"):
        fitted(small, "chinchilla")


def test_a_data_frame_is_no_table(small, posterior):
    calls = (
        lambda table: fit("chinchilla", table),
        lambda table: fit("chinchilla", table, method="map"),
        lambda table: fit(["chinchilla", "skaling"], table),
        lambda table: bl.fit_huber("chinchilla", table),
        lambda table: bl.fit_joint(dict.fromkeys("ab", "chinchilla"), dict.fromkeys("ab", table)),
        lambda table: bl.compare(table, train="params < 1e9"),
        lambda table: bl.compare(small, source=table, train="params < 1e9"),
        lambda table: bl.backtest(table, "chinchilla"),
        lambda table: bl.score(posterior, table),
    )
    for call in calls:
        with pytest.raises(TableError, match=r"a DataFrame, not a LossTable; .* bl\.from_frame\("):
            call(small.frame)
    with pytest.raises(TableError, match=r"a str, not a LossTable; make one by bl\.read_table\("):
        fit("chinchilla", "losses.csv")


@pytest.mark.parametrize("settings", [{"noise": "size"}, {"sampler": "pymc"}])
def test_removed_settings_say_what_to_do(small, settings):
    with pytest.raises(FitError, match=r"was removed: .*; drop it\.$"):
        fit("chinchilla", small, **settings)


WRONG = {
    "seed": (-1, 2**64, 0.5, "a", None),
    "chains": (0, -1, None),
    "draws": (0, -5, np.inf),
    "tune": (0, -1, None),
    "cores": (0, 1.5),
    "target_accept": (0, 1, 1.5, np.nan, "a", None),
    "delta": ("a", None),
    "priors": (None, 3),
    "likelihood": (None, 3),
    "discrepancy": (None, 3),
    "effects": (None, 3, [3]),
    "errors": (None, 3),
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, given in WRONG.items() for v in given])
def test_settings_that_no_fit_has(small, name, value):
    with pytest.raises(FitError, match=rf"^{name}={re.escape(repr(value))}: give .*\.$"):
        fit("chinchilla", small, **{name: value})
    if name in ("seed", "delta", "priors", "likelihood"):
        with pytest.raises(FitError, match=rf"^{name}={re.escape(repr(value))}: give "):
            fit("chinchilla", small, method="map", **{name: value})


def test_chains_in_threads_draw_what_they_draw_one_after_another(small):
    run = {"seed": 3, "chains": 4, "tune": 60, "draws": 40, "retry": False}
    apart, together = (fit("chinchilla", small, cores=cores, **run).draws for cores in (1, 4))
    xr.testing.assert_identical(apart, together)


def test_one_draw_is_enough_to_go_on(small):
    fitted = fit("chinchilla", small, draws=1, tune=5, chains=1, discrepancy="none")
    assert fitted.draws.sizes["draw"] == 1


def test_a_density_that_is_nowhere_finite(small, tmp_path):
    one_tiny = small.frame.assign(loss=[1e-300, *small.frame["loss"][1:]])
    rising = tmp_path / "rising.toml"
    text = (models_dir() / "chinchilla.toml").read_text()
    rising.write_text(text.replace("-alpha*log(N)", "alpha*log(N)"), encoding="utf-8")
    for law, table in (("chinchilla", from_frame(one_tiny)), (rising, small)):
        with pytest.raises(FitError, match="is finite for no parameters that were tried; check"):
            fit(law, table, discrepancy="none")


@pytest.mark.parametrize(
    "priors",
    [
        {"E": "Uniform(lower=1.2, upper=1.5)"},
        {"E": "Uniform(lower=0, upper=3)", "alpha": "Uniform(lower=.01, upper=1)"},
        {"floor": "Uniform(lower=.1, upper=.5)", "alpha": "Beta(alpha=2, beta=4)"},
    ],
)
def test_bounds_of_priors_hold_and_cost_no_divergences(small, priors):
    settings = {"discrepancy": "none", "retry": False, "chains": 2, "draws": 200, "tune": 200}
    fitted = fit("chinchilla", small, priors=priors, **settings)
    found = {"floor": fitted.paper["E"] / fitted.draws["L_ref"], **fitted.paper.data_vars}
    for name in priors:
        low, high = fitted.spec.priors[name].support
        assert low <= found[name].min() < found[name].max() <= high + 1e-9
    assert fitted.convergence.divergences == 0
    assert fitted.convergence.rhat < 1.05


@pytest.mark.parametrize("delta", [0, -1, np.nan])
def test_a_threshold_that_is_not_positive(small, delta):
    with pytest.raises(FitError, match="delta must be positive"):
        fit("chinchilla", small, likelihood="huber", delta=delta)


def test_priors_matter_where_they_are_tight(small, posterior):
    tight = fit(
        "chinchilla", small, priors={"alpha": "LogNormal(median=0.6, sigma=0.01)"},
        seed=0, discrepancy="none", draws=300, tune=500,
    )  # fmt: skip
    assert np.median(tight.draws["alpha"]) == pytest.approx(0.6, rel=0.05)
    assert np.median(posterior.draws["alpha"]) < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", ["normal", "huber"])
def test_other_likelihoods_agree_on_clean_noise(likelihood, small, posterior):
    other = fit("chinchilla", small, likelihood=likelihood, discrepancy="none", seed=0)
    assert other.convergence.ok
    assert "dof_above_floor" in posterior.draws
    assert "dof_above_floor" not in other.draws
    np.testing.assert_allclose(other.predict(small), posterior.predict(small), rtol=2e-3)


def test_same_seed_same_draws_whatever_was_fitted_before(posterior, small):
    other = from_frame(small.frame.iloc[:12].assign(loss=small.loss[:12] * 1.1))
    settings = {"discrepancy": "none", "draws": 1000}
    elsewhere = fit("chinchilla", other, seed=0, **settings)
    again = fit("chinchilla", small, seed=0, **settings)
    for name in posterior.draws.data_vars:
        np.testing.assert_array_equal(again.draws[name], posterior.draws[name])
    assert not np.array_equal(elsewhere.draws["alpha"], posterior.draws["alpha"])
    different = fit("chinchilla", small, seed=1, **settings)
    assert not np.array_equal(different.draws["alpha"], posterior.draws["alpha"])
    np.testing.assert_allclose(different.predict(small), posterior.predict(small), rtol=1e-3)
    losses = elsewhere.predict(other, allow_unconverged=True)
    np.testing.assert_allclose(losses, other.loss, rtol=0.02)


def test_more_draws_are_made_where_r_hat_is_missing(small, monkeypatch):
    """A chain that does not move has no R-hat: NaN, which is not larger than any limit."""
    stuck = Convergence(np.nan, 0.0, 0.0, 0, np.nan)
    monkeypatch.setattr(sampling, "FIRST", 20)
    monkeypatch.setattr(sampling, "LAST", 30)
    monkeypatch.setattr(sampling, "diagnose", lambda *args: stuck)
    found = fit("chinchilla", small, discrepancy="none", tune=50, retry=False)
    assert found.draws.sizes["draw"] == found.settings["draws"] == 30
    assert not found.convergence.ok


@pytest.mark.slow
def test_threads_of_linear_algebra_change_no_draw():
    where = "annealed and replay < 1 and seed == 0 and atpp in [1, 4, 16] and ptpp < 279"
    table = read_table(DATA / "tinycpt" / "french.csv", where=where)
    found = []
    for threads in (1, 2):
        with threadpool_limits(threads, user_api="blas"):
            fitted = fit("form1n", table, seed=0, draws=20, tune=50, retry=False)
        found.append(fitted.draws["alpha"].values)
    np.testing.assert_array_equal(*found)


GOOD = {"rhat": 1.01, "ess_bulk": 400, "ess_tail": 400, "divergences": 0, "bfmi": 0.3}


@pytest.mark.parametrize(
    ("spoilt", "says"),
    [
        ({"rhat": 1.011}, "R-hat 1.011 > 1.01"),
        ({"rhat": np.nan}, "R-hat nan > 1.01"),
        ({"ess_bulk": 399}, "bulk ESS 399 < 400"),
        ({"ess_tail": np.nan}, "tail ESS nan < 400"),
        ({"divergences": 1}, "1 divergences"),
        ({"bfmi": 0.29}, "E-BFMI 0.29 < 0.3"),
    ],
)
def test_each_part_of_the_gate(spoilt, says):
    assert Convergence(**GOOD).ok
    assert Convergence(**GOOD | spoilt).failures == (says,)


def test_diagnostics_are_those_of_arviz(posterior, small):
    """Of the log losses at the fitted rows and of the scale of noise."""
    draws, got = posterior.draws, posterior.convergence
    log_loss = np.log(posterior.latent(small)).reshape(*draws["sigma"].shape, len(small))
    used = draws[["sigma"]].assign(log_loss=(("chain", "draw", "row"), log_loss))
    rhat = azs.rhat(used)
    ess = azs.summary(used, kind="diagnostics", round_to="none")
    assert got.rhat == pytest.approx(max(float(v.max()) for v in rhat.data_vars.values()))
    assert got.ess_bulk == pytest.approx(ess["ess_bulk"].min())
    assert got.ess_tail == pytest.approx(ess["ess_tail"].min())
    assert got.divergences == int(posterior.stats["diverging"].sum())
    bfmi = azs.bfmi(posterior.stats)
    values = bfmi["energy"].values if hasattr(bfmi, "data_vars") else np.asarray(bfmi)
    assert got.bfmi == pytest.approx(values.min(), rel=0.01)
    summary = posterior.summary()
    assert {"E", "A", "alpha", "B", "beta", "L_ref", "sigma"} <= set(summary.index)
    assert summary.loc["L_ref", "mean"] == pytest.approx(float(draws["L_ref"].mean()))


def test_stuck_chains_fail(posterior):
    draws = posterior.draws.copy(deep=True)
    draws["alpha"][:] = draws["alpha"].values[:, :1]
    assert not diagnose(draws, posterior.stats).rhat <= 1.01
    draws["alpha"][:] = 0.5
    assert not diagnose(draws, posterior.stats).ok
    assert not diagnose(posterior.draws.isel(chain=[0]), posterior.stats.isel(chain=[0])).ok


@pytest.mark.parametrize("bounds", ["paper", "prior"])
@pytest.mark.parametrize(
    "name", ["chinchilla", "skaling", "dcpt", slow("form1"), slow("form2"), "form3"]
)
def test_map_reproduces_the_huber_fit(name, bounds):
    """Where the optimum is interior to the priors' bounds, the paper's bounds give the same."""
    table = made(name, sigma=0.003, seed=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        point = fit_huber(name, table, bounds=bounds)
    assert point.interior
    mode = fit(name, table, method="map", likelihood="huber", priors="flat")
    assert miss(point, mode, table) < 1e-6
    assert mode.objective == pytest.approx(point.objective, rel=1e-8)
    assert mode.interior


def test_map_reproduces_the_huber_fit_on_olmo(olmo):
    train, test = olmo.split(train="ptpp <= 40")
    point = fit_huber("chinchilla", train)
    mode = fit("chinchilla", train, method="map", likelihood="huber", priors="flat")
    assert max(miss(point, mode, train), miss(point, mode, test)) < 1e-6


@pytest.mark.slow
def test_map_reports_an_optimum_on_a_bound(delphi):
    with pytest.warns(FitWarning, match="bound.*E = 0"):
        mode = fit("chinchilla", delphi, method="map", likelihood="huber", priors="flat")
    assert not mode.interior


def test_map_is_the_huber_fit_within_the_bounds_of_the_priors():
    """Where the paper's bounds have a better optimum, with lambda above 1, the mode stays below."""
    truth = truth_of(load_law("form2").parameters) | {"lambda_": 1.6}
    table = simulate("form2", truth, DESIGN[::3])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        paper, prior = (fit_huber("form2", table, bounds=b) for b in ("paper", "prior"))
        mode = fit("form2", table, method="map", likelihood="huber", priors="flat")
    assert paper.parameters["lambda_"] == pytest.approx(1.6, abs=0.01)
    assert paper.objective < 1e-3 * prior.objective
    assert mode.bounds == "prior"
    assert mode.parameters["lambda_"] < 1
    assert mode.objective == pytest.approx(prior.objective, rel=0.1)
    assert mode.objective > prior.objective * (1 - 1e-9)
    assert mode.solutions[0] == mode.parameters
    assert len(mode.solutions) == round(mode.agreeing * mode.polished)


NOISE_SD = 0.003


def recovered(name, seed):
    """Share of 90 % intervals that hold the truth: latent losses and local slopes."""
    law = load_law(name)
    rows = DESIGN.sample(120, random_state=seed)
    truth = truth_of(law.parameters)
    table = simulate(law, truth, rows, sigma=NOISE_SD, seed=seed)
    posterior = fit(law, table, likelihood="normal", discrepancy="none", seed=seed)
    assert posterior.convergence.ok, posterior.convergence
    low, high = np.quantile(posterior.latent(table), [0.05, 0.95], axis=0)
    latent = law.loss(truth, law.covariates(table.frame))
    held = (low <= latent) & (latent <= high)
    q = law.to_reference(truth, posterior.at) | {"sigma": NOISE_SD}
    slopes = []
    for coordinate in ("L_ref", "slope_N", "slope_D", "sigma"):
        low, high = np.quantile(posterior.draws[coordinate].values, [0.05, 0.95])
        slopes.append(bool(low <= q[coordinate] <= high))
    return held.mean(), slopes


def check(results):
    # Rows of one fit share its errors, so their coverage scatters; the slopes are counted.
    assert np.mean([rows for rows, _ in results]) > 0.7
    held = np.ravel([slopes for _, slopes in results])
    assert held.sum() >= stats.binom(len(held), 0.9).ppf(0.001)


def test_chinchilla_is_recovered():
    check([recovered("chinchilla", seed) for seed in range(3)])


@pytest.mark.slow
def test_all_laws_are_recovered():
    """Of nested laws, the largest."""
    seeds = {"form2": 1, "dcpt": 3, "skaling": 6, "form3n": 7}
    check([recovered(law, seed) for law, seed in seeds.items()])


def test_form3_passes_the_gate_on_the_papers_rows(paper_rows):
    posterior = fit("form3", paper_rows, discrepancy="none", seed=0)
    assert len(paper_rows) == 168
    assert posterior.convergence.rhat <= 1.01
    assert posterior.convergence.ess_bulk >= 400
    assert posterior.convergence.divergences == 0
    assert posterior.convergence.ok
    residuals = np.log(posterior.predict(paper_rows) / paper_rows.loss)
    assert np.sqrt(np.mean(residuals**2)) < 0.003
