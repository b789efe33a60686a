"""Residuals: likelihoods, priors and random effects of sizes, by PyMC, refits, closed forms."""

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy import stats

from bayeslaw import (
    LossTable,
    PointFit,
    Posterior,
    Prior,
    fit,
    from_frame,
    grid,
    load,
    load_law,
    loo,
    plan,
    simulate,
)
from tests.inside import (
    ORIGIN,
    NoDiscrepancy,
    build,
    covariance,
    fitting,
    labelled_draws,
    log_likelihood,
    make_data,
    new_likelihood,
    new_size_effects,
    prior_draws,
    refit,
    residual_draws,
    response,
    too_few_sizes,
    unit_likelihood,
)
from tests.support import CHINCHILLA, object_mode, slow, with_effects

SHORT = {"discrepancy": "none", "draws": 100, "tune": 300, "chains": 2, "retry": False}


@pytest.fixture(scope="module")
def runs(small) -> LossTable:
    """Four runs, each the rows of one N, with effects of sd .02."""
    rng = np.random.default_rng(3)
    names, index = np.unique(small.frame["params"], return_inverse=True)
    effect = 0.02 * rng.standard_normal(len(names))
    frame = small.frame.assign(run=[f"run {i}" for i in index])
    return from_frame(frame.assign(loss=frame["loss"] * np.exp(effect[index])))


def grouped(table, **settings) -> Posterior:
    return fit("chinchilla", table, seed=0, effects=["run"], **(SHORT | settings))


@pytest.fixture(scope="module")
def of_runs(runs) -> Posterior:
    return grouped(runs)


def raw(fitted: Posterior) -> xr.Dataset:
    """Draws as the sampler returns them, with arbitrary random effects."""
    draws, rng = fitted.draws.drop_dims("run"), np.random.default_rng(0)
    shape = draws.sizes["chain"], draws.sizes["draw"], fitted.draws.sizes["run"]
    return draws.assign(run_z=(("chain", "draw", "run_z_dim"), 0.02 * rng.standard_normal(shape)))


@pytest.mark.parametrize(
    "settings",
    [
        {"likelihood": "studentt"},
        slow({"likelihood": "normal"}),
        pytest.param({"likelihood": "huber"}, marks=[object_mode, pytest.mark.slow]),
    ],
    ids=str,
)
def test_the_likelihood_is_the_models(runs, settings):
    from pymc.stats import compute_log_likelihood

    fitted = grouped(runs, **settings)
    draws = raw(fitted)
    data = make_data(fitted.spec, runs)
    fitted = replace(fitted, draws=labelled_draws(data, draws))
    tree = xr.DataTree.from_dict({"posterior": draws})
    quiet = {"progressbar": False, "extend_inferencedata": False}
    model = build({"": data})
    rows = compute_log_likelihood(tree, model=model, **quiet)["log_loss"].values
    rows = rows.reshape(-1, len(fitted.table))
    np.testing.assert_allclose(log_likelihood(fitted), rows, rtol=1e-8, atol=1e-8)


def test_run_density_of_normal_noise_is_closed_form(runs):
    fitted = grouped(runs, likelihood="normal")
    names, index = np.unique(runs.frame["run"], return_inverse=True)
    found, own = unit_likelihood(fitted, index)
    assert own["run"].all()
    q = fitted.values()
    residual = np.log(runs.loss) - np.log(fitted.latent(runs))
    assert names.tolist() == [f"run {i}" for i in range(4)]
    for draw in (0, 50, 150):
        for i, name in enumerate(names):
            rows = (runs.frame["run"] == name).to_numpy()
            sigma, tau = q["sigma"][draw, 0], q["tau_run"][draw, 0]
            square = sigma**2 * np.eye(rows.sum()) + tau**2
            want = stats.multivariate_normal.logpdf(residual[draw, rows], cov=square)
            assert found[draw, i] == pytest.approx(want, abs=1e-3)
    # A run that is left out is a new one: its effect is normal, and so is its noise.
    pit = loo(fitted).frame["pit"]
    for i, name in enumerate(names):
        rows = (runs.frame["run"] == name).to_numpy()
        sd = np.sqrt(q["tau_run"] ** 2 + q["sigma"] ** 2 / rows.sum())[:, 0]
        weights = np.exp(found[:, i].min() - found[:, i])
        below = stats.norm.cdf(residual[:, rows].mean(1) / sd)
        assert pit[name] == pytest.approx(np.average(below, weights=weights), abs=0.1)
    assert pit.max() - pit.min() > 0.5


def test_without_a_run_effect_the_rows_add_up(runs):
    fitted = fit("chinchilla", runs, seed=0, effects="none", **SHORT)
    names, index = np.unique(runs.frame["run"], return_inverse=True)
    found, _ = unit_likelihood(fitted, index)
    rows = log_likelihood(fitted)
    for i, name in enumerate(names):
        inside = (runs.frame["run"] == name).to_numpy()
        np.testing.assert_allclose(found[:, i], rows[:, inside].sum(1))


def test_training_rows_without_a_label_have_the_effect_fitted_for_them(posterior):
    """Against the normal density; in new rows they are new groups."""
    tau, alone = 0.03, np.arange(20) % 5 == 0
    bases = np.where(alone, None, posterior.table.frame["tokens"].astype(str))
    fitted = with_effects(posterior, "base", bases, tau, likelihood="normal")
    names = fitted.draws["base"].values.tolist()
    places = [names.index(f"(row {i})" if alone[i] else bases[i]) for i in range(20)]
    effect = fitted.draws["base_effect"].values.reshape(fitted.count, -1)[:, places]
    sigma, error = fitted.values()["sigma"], np.log(fitted.table.loss / fitted.latent(fitted.table))
    tree = fitted.to_datatree(prior=10)
    found = tree["log_likelihood"]["log_loss"].values.reshape(fitted.count, -1)
    expected = stats.norm.logpdf(error - effect, scale=sigma)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    replicated = tree["posterior_predictive"]["log_loss"].values.reshape(fitted.count, -1)
    replicated = replicated - np.log(fitted.latent(fitted.table)) - effect
    np.testing.assert_allclose(replicated.std(0), np.sqrt((sigma**2).mean()), rtol=0.1)
    drawn = np.log(fitted.forecast(fitted.table).samples / fitted.latent(fitted.table))
    assert np.corrcoef(drawn[:, 0], effect[:, 0])[0, 1] == pytest.approx(0, abs=0.1)
    assert np.corrcoef(drawn[:, 1], effect[:, 1])[0, 1] > 0.9
    # Left out, a row without a label is a new group: its effect is integrated out.
    density = stats.norm.pdf(error, scale=np.sqrt(sigma**2 + tau**2))[:, alone]
    left_out = loo(fitted).frame["elpd"].to_numpy()[alone]
    np.testing.assert_allclose(left_out, -np.log((1 / density).mean(0)), atol=0.02)


def test_new_runs_are_more_uncertain_than_training_runs(of_runs, runs):
    rng = np.random.default_rng(0)
    again = new_likelihood(of_runs, runs, rng)
    np.testing.assert_allclose(again, log_likelihood(of_runs))  # all are training runs
    new = from_frame(runs.frame.assign(run="new " + runs.frame["run"]))
    assert new_likelihood(of_runs, new, rng).mean() < again.mean() - 1
    tau, sigma = (float(of_runs.draws[n].median()) for n in ("tau_run", "sigma"))
    same = runs.frame["run"].to_numpy()[:, None] == runs.frame["run"].to_numpy()
    square = sigma**2 * np.eye(len(runs)) + tau**2 * same
    np.testing.assert_allclose(covariance(of_runs), square)


def test_scale_is_that_of_the_drawn_noise(small):
    fitted = fit("chinchilla", small, seed=0, likelihood="normal", **SHORT)
    rng = np.random.default_rng(0)
    drawn = np.stack([residual_draws(fitted, small, rng) for _ in range(200)])
    np.testing.assert_allclose(drawn.std(0).mean(0), fitted.scale(small.frame).mean(0), rtol=0.02)


def test_prior_draws_are_the_models(posterior):
    import pymc as pm

    model = build({"": make_data(posterior.spec, posterior.table)})
    names = [rv.name for rv in model.free_RVs]
    want = dict(zip(names, pm.draw(model.free_RVs, draws=2000, random_seed=1), strict=True))
    got = prior_draws(posterior, 4000, seed=2)
    assert set(got) == {*names, "E"}
    for name in names:
        assert stats.ks_2samp(got[name][:, 0], want[name]).pvalue > 1e-3


SIZES = [1e8, 3e8, 1e9]
TOKENS = [1e9, 3e9, 1e10, 3e10, 1e11]
NEW = grid(params=[2e9], tokens=[2e9, 5e10])


def three(seed: int, *, scale: float = 0.0, sizes: tuple[float, ...] = ()) -> LossTable:
    """Rows of three sizes and `sizes`, each with an effect of this scale."""
    design = grid(params=[*SIZES, *sizes], tokens=TOKENS)
    frame = simulate("chinchilla", CHINCHILLA, design, sigma=0.001, seed=seed).frame
    groups, index = np.unique(frame["params"], return_inverse=True)
    shared = scale * np.random.default_rng([seed, 1]).standard_normal(len(groups))
    return from_frame(frame.assign(loss=frame["loss"] * np.exp(shared[index])), f"three {seed}")


@pytest.fixture(scope="module")
def fitted() -> Posterior:
    return fit("chinchilla", three(0), seed=0, discrepancy="curvature", draws=1000, retry=False)


@pytest.mark.slow
def test_the_response_agrees_with_a_refit(fitted):
    found = response(fitted, NEW)
    settings = {"chains": 4, "draws": 1000, "tune": 1000, "target_accept": 0.97}
    start = np.log(fitted.latent(NEW)).mean(0)
    for k, size in enumerate(SIZES):
        frame = three(0).frame
        frame["loss"] *= np.where(frame["params"] == size, np.exp(0.001), 1.0)
        again = refit(fitted.spec, from_frame(frame, "moved"), seed=0, **settings)
        moved = (np.log(again.latent(NEW)).mean(0) - start) / 0.001
        np.testing.assert_allclose(found[:, k], moved, atol=0.3)
    own = response(fitted, grid(params=SIZES, tokens=[1e10]))
    np.testing.assert_allclose(own, np.eye(3), atol=0.15)


def test_effects_of_new_sizes_and_the_response_to_training_sizes(fitted):
    rng = np.random.default_rng(0)
    assert too_few_sizes(fitted)
    assert not new_size_effects(fitted, fitted.table.frame, rng).any()
    tau = replace(fitted.spec.priors["tau_size"], arguments=(("median", 0.01), ("sigma", 1e-6)))
    wide = replace(
        fitted, spec=replace(fitted.spec, priors={**fitted.spec.priors, "tau_size": tau})
    )
    want = 0.01 * np.sqrt(1 + (response(fitted, NEW) ** 2).sum(1))
    np.testing.assert_allclose(new_size_effects(wide, NEW, rng).std(0), want, rtol=0.05)
    pair = new_size_effects(wide, pd.concat([NEW, NEW.assign(params=4e9)]), rng)
    assert np.corrcoef(pair[:, 0], pair[:, 1])[0, 1] > 0.9  # one size
    drawn = new_size_effects(wide, NEW, np.random.default_rng(3))
    np.testing.assert_array_equal(drawn, new_size_effects(wide, NEW, np.random.default_rng(3)))


def test_when_new_sizes_have_no_effects(fitted, small, posterior, tmp_path, monkeypatch):
    assert not too_few_sizes(posterior)  # without a discrepancy
    assert not new_size_effects(posterior, NEW, np.random.default_rng(0)).any()
    plain = replace(fitted, spec=replace(fitted.spec, discrepancy=NoDiscrepancy()))
    assert not too_few_sizes(plain)
    assert not too_few_sizes(replace(fitted, table=small))  # of four sizes
    monkeypatch.setattr(fitting, "fit_spec", lambda spec, *rest, **settings: spec)
    for call in (fit, partial(refit, seed=0)):  # where the user names the effects
        auto, none = (
            call("chinchilla", three(0), effects=effects, discrepancy="curvature")
            for effects in ("auto", "none")
        )
        assert auto.identity == fitted.spec.identity
        named = replace(fitted, spec=none)
        assert not too_few_sizes(named)
        assert not new_size_effects(named, NEW, np.random.default_rng(0)).any()
    named.save(tmp_path / "named.nc")
    assert load(tmp_path / "named.nc").spec == named.spec
    settings = {"discrepancy": "curvature", "effects": "auto"}  # a refit has the levels of a fit
    assert refit("chinchilla", small, 0, **settings).effects == ("size",)
    assert refit("chinchilla", small, 0, **settings) == fit("chinchilla", small, **settings)


def planned(fitted, params, max_loss):
    source = PointFit(load_law("chinchilla"), CHINCHILLA, ORIGIN, 0.0, 0.02, 0, 0, 1.0)
    return plan(
        target=fitted, source=source, params=params, ptpp=20.0, max_loss=max_loss,
        max_forgetting=0.5, baseline=3.0, noise="latent", replay_grid=[1.0], allow_unconverged=True,
        beyond_evidence=True,
    )  # fmt: skip


def test_a_plan_has_the_effect_of_a_new_size_where_it_lies(fitted):
    """Its probability is that of the forecast there, as far out as the plan is."""
    far = grid(params=2e9, tokens=2e9 * 2000)
    wanted = float(np.quantile(fitted.latent(far)[:, 0], 0.9))
    found = planned(fitted, 2e9, wanted)
    assert found.atpp > 300
    row = grid(params=2e9, tokens=found.tokens)
    losses = np.log(fitted.latent(row)[:, 0])
    effect = new_size_effects(fitted, row, np.random.default_rng([0, 0]))[:, 0]
    assert np.mean(losses + effect <= np.log(wanted)) == pytest.approx(0.9, abs=0.002)
    assert np.mean(losses <= np.log(wanted)) > 0.94
    near = new_size_effects(fitted, grid(params=2e9, tokens=2e9), np.random.default_rng([0, 0]))
    assert np.mean(losses + near[:, 0] <= np.log(wanted)) != pytest.approx(0.9, abs=0.002)
    named = replace(fitted, spec=replace(fitted.spec, new_sizes=False))
    assert planned(named, 2e9, wanted).tokens < 0.8 * found.tokens
    assert planned(fitted, 1e9, 2.4).tokens == planned(named, 1e9, 2.4).tokens  # a fitted size


@pytest.mark.slow
def test_bands_of_a_fourth_size_are_calibrated():
    # Effects of .3 %, typical of the prior: without them the 90 % band covers about a third.
    four, settings = 2e9, {"chains": 2, "draws": 250, "tune": 300}
    model = fit("chinchilla", three(0), draws=20, tune=20, retry=False).spec
    bare = replace(
        model, priors={**model.priors, "tau_size": Prior.parse("LogNormal(median=1e-9, sigma=0.1)")}
    )
    covered = {"with effects": [], "without": []}
    for seed in range(16):
        every = three(seed, scale=0.003, sizes=(four,))
        train, test = every.split("params < 1.5e9", "params > 1.5e9")
        posterior = refit(model, train, seed=seed, **settings)
        for name, spec in (("with effects", model), ("without", bare)):
            forecast = replace(posterior, spec=spec).forecast(test, allow_unconverged=True)
            lower, upper = forecast.quantile([0.05, 0.95])
            covered[name].append(np.mean((test.loss > lower) & (test.loss < upper)))
    assert np.mean(covered["with effects"]) >= 0.75  # 16 tables: two sd below .9
    assert np.mean(covered["without"]) < 0.7
