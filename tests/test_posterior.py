"""Posteriors and pools: forecasts with bands, the gate, files, and trees that ArviZ reads."""

import cProfile
import os
import re
import shutil
import signal
import tracemalloc
from dataclasses import replace
from functools import partial
from pathlib import Path

import arviz as az
import arviz_stats as azs
import h5py
import joblib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy import stats

import bayeslaw as bl
from bayeslaw import (
    FileError,
    NotConverged,
    TableError,
    TableWarning,
    fit_huber,
    from_frame,
    grid,
    load,
)
from bayeslaw.common.shown import Shown
from bayeslaw.design.design import Design
from bayeslaw.inference import fitted
from bayeslaw.inference.convergence import Convergence, diagnose
from bayeslaw.inference.pools import load_posterior
from bayeslaw.inference.residuals import group_effects, last_errors
from bayeslaw.inference.storage import SCHEMA
from bayeslaw.inference.variance import shares, shares_blocks
from bayeslaw.laws.forms import taking
from bayeslaw.laws.lawfiles import stored_law
from bayeslaw.laws.parameters import prior_bounds
from bayeslaw.laws.priors import NOISE, override
from bayeslaw.laws.steps import Repetition
from bayeslaw.model import effects
from bayeslaw.model.building import build
from bayeslaw.model.prior import draw_parameters
from bayeslaw.model.training import for_table, make_data
from tests.posteriors import of_role, turned
from tests.support import (
    CHINCHILLA,
    DATA,
    SAVED,
    TRUTH,
    on_bound,
    refused,
    saved,
    small,
    stages,
)

ALLOW = "unconverged"
ROWS = grid(params=[2e9, 1e10], tokens=[2e11, 1e12])
PLACE = ["position", "decades"]
SIMULATED = grid(params=[1e8, 3e8, 1e9, 3e9], tokens=[1e9, 3e9, 1e10])


@pytest.fixture
def posterior():
    return saved("plain")


# -- forecasts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain", "walk", "transfer"])
def test_a_forecast_validates_its_rows_once(name):
    fit = saved(name).accepted(ALLOW)
    rows = fit.table.frame.drop(columns="loss").iloc[:10]
    with cProfile.Profile() as profile:
        fit.forecast(rows)
    calls = [each for each in profile.getstats() if "canonical" in str(each.code)]
    assert [each.callcount for each in calls] == [1]


@pytest.mark.parametrize("name", ["plain", "walk", "transfer", "groups"])
def test_losses_do_not_depend_on_how_many_are_evaluated_at_once(name, monkeypatch):
    fit = saved(name).accepted({ALLOW, "beyond-evidence"})
    rows = fit.table.frame.drop(columns="loss").iloc[:7]
    rows = pd.concat([rows, rows.assign(tokens=rows["tokens"] * 3)], ignore_index=True)
    if "base" in rows:  # of bases that are not known, each draw has losses of its own
        rows.loc[9:, "base"] = 999
        rows = rows.drop(columns=["start_loss", "base_loss"], errors="ignore")
    some = np.array([3, 0, 3, 17])
    whole, chosen = fit.forecast(rows, seed=2).samples, fit.losses(fit.rows(rows), some)
    for values in (1, 50, 500):
        monkeypatch.setattr(fitted, "VALUES_AT_ONCE", values)
        np.testing.assert_array_equal(fit.forecast(rows, seed=2).samples, whole)
        np.testing.assert_array_equal(fit.losses(fit.rows(rows), some), chosen)


def test_a_forecast_takes_four_times_the_memory_of_its_draws():
    fit = saved("two_stages").accepted({ALLOW, "beyond-evidence"})
    rows = fit.table.frame.drop(columns="loss")
    rows = rows.loc[np.arange(3000) % len(rows)].reset_index(drop=True)
    tracemalloc.start()
    forecast = fit.forecast(rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 45 * forecast.samples.size  # with what a block needs at once


def test_a_frame_is_validated_wherever_it_enters(posterior):
    frame = small().frame.copy()
    frame.loc[3, "tokens"] = -1.0
    for function in (posterior.forecast, posterior.latent, posterior.predict):
        refused(TableError, "negative", function, frame)
    forecast = posterior.forecast(ROWS)
    forecast.frame.loc[0, "params"] = np.nan
    refused(TableError, "missing", posterior.latent, forecast.frame)


def test_what_a_forecast_cannot_take_is_said_in_one_line(posterior):
    refused(
        TableError,
        "a pandas data frame .* a list: give pd",
        posterior.forecast,
        [1e9, 1e10],
    )
    forecast = posterior.forecast(ROWS)
    refused(
        TableError, "95 is not between 0 and 1; 0.95 is the 95 %", forecast.quantile, 95
    )
    refused(TableError, "needs at least one level", forecast.bands, [])
    assert forecast.bands(0.9).equals(forecast.bands([0.9]))
    assert forecast.to_frame(0.9).equals(forecast.to_frame([0.9]))
    assert forecast.shown(0.9).text() == forecast.shown([0.9]).text()


def test_negative_shares_of_variance_are_explained():
    raises = np.array([[-1.0], [1.0]])
    for lowers, explained in ((-0.3 * raises, True), (0.3 * raises, False)):
        frame = shares(
            [(1.0, {"parameters": raises, "discrepancy": lowers})], pd.Index([0])
        )
        text = " ".join(Shown("", shares_blocks(frame)).text().split())
        assert (
            "A negative share says that this source partly cancels another" in text
        ) == explained
    assert frame["discrepancy"][0] == pytest.approx(0.3 / 1.3)


def test_latent_is_the_law_and_predictive_adds_its_noise(posterior):
    latent, noisy = (
        posterior.forecast(small(), kind=kind) for kind in ("latent", "predictive")
    )
    draws = noisy.draws
    assert (draws.dims, draws.shape) == (("chain", "draw", "row"), (4, 500, 20))
    for name in ("params", "tokens"):
        assert draws[name].dims == ("row",)
        np.testing.assert_array_equal(draws[name], small().frame[name])
    assert (draws.name, draws.attrs["units"]) == ("loss", "nats per token")
    np.testing.assert_array_equal(latent.samples, posterior.latent(small()))
    np.testing.assert_array_equal(
        latent.quantile(0.1), [np.quantile(latent.samples, 0.1, axis=0)]
    )
    paper = {
        str(n): v.values.reshape(-1, 1) for n, v in posterior.paper.data_vars.items()
    }
    loss = posterior.law.loss(paper, Design(posterior.law, small().frame).x)
    np.testing.assert_allclose(loss, latent.samples, rtol=1e-10)
    q, noise = posterior.values(), np.log(noisy.samples / latent.samples)
    scaled = noise / q["sigma"]
    assert abs(np.median(scaled)) < 0.015
    # Half of a Student-t lies within its .75 quantile.
    inside = np.abs(scaled) < stats.t(2 + q["dof_above_floor"]).ppf(0.75)
    assert inside.mean() == pytest.approx(0.5, abs=0.015)
    assert (noisy.samples.std(0) > latent.samples.std(0)).all()
    np.testing.assert_allclose(noisy.median, latent.median, rtol=1e-3)
    np.testing.assert_array_equal(posterior.predict(small()), latent.median)
    huber = bl.fit_huber("chinchilla", small()).predict(small())
    np.testing.assert_allclose(latent.median, huber, rtol=0.005)


def test_noise_is_independent_from_row_to_row_and_of_its_seed(posterior):
    twice = ROWS.iloc[[0, 0]]
    latent, noisy = (
        posterior.forecast(twice, kind=kind) for kind in ("latent", "predictive")
    )
    np.testing.assert_array_equal(latent.samples[:, 0], latent.samples[:, 1])
    noise = np.log(noisy.samples / latent.samples)
    assert abs(stats.spearmanr(noise[:, 0], noise[:, 1]).statistic) < 0.08
    one, again, other = (
        posterior.forecast(ROWS, seed=seed).samples for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)


def test_steps_beyond_the_rows_are_of_the_losses_and_change_none_within():
    fit = saved("walk")
    far = grid(params=[1e7, 3e10], tokens=[1e7, 1e14])
    rows = pd.concat([small().frame[["params", "tokens"]], far], ignore_index=True)
    np.testing.assert_allclose(
        fit.latent(rows)[:, :20], fit.latent(small()), rtol=1e-12
    )
    np.testing.assert_array_equal(fit.latent(rows), fit.latent(rows))
    # Another fit of the same seed draws other steps, and so far out is another loss.
    other = replace(
        fit, table=from_frame(small().frame.assign(loss=1.01 * small().loss))
    )
    assert (
        np.abs(np.log(fit.latent(far) / other.latent(far))).max(0)[[0, 3]] > 1e-3
    ).all()


def test_bands_are_nested_and_tidy(posterior):
    forecast, levels = posterior.forecast(ROWS), (0.1, 0.5, 0.8, 0.9, 0.99)
    bands = forecast.bands(levels)
    columns = ["row", "level", "params", "tokens", *PLACE]
    # Synthetic as the fitted losses are.
    columns += [
        "synthetic",
        "median",
        "lower",
        "upper",
    ]
    assert list(bands.columns) == columns
    assert len(bands) == len(levels) * len(ROWS)
    for _, row in bands.groupby("row"):
        ends = [*row["lower"][::-1], row["median"].iloc[0], *row["upper"]]
        assert ends == sorted(ends)
    lower, upper = (bands[end].to_numpy()[-4:] for end in ("lower", "upper"))
    inside = (forecast.samples >= lower) & (forecast.samples <= upper)
    np.testing.assert_allclose(inside.mean(0), 0.99, atol=0.002)


def test_export(posterior, tmp_path):
    forecast, ends = (
        posterior.forecast(ROWS),
        ["lower_50", "upper_50", "lower_90", "upper_90"],
    )
    for name, read in (("é.csv", pd.read_csv), ("é.parquet", pd.read_parquet)):
        forecast.write(tmp_path / name, levels=(0.5, 0.9))
        back = read(tmp_path / name)
        assert list(back.columns) == [
            "params",
            "tokens",
            "median",
            *ends,
            *PLACE,
            "synthetic",
        ]
        pd.testing.assert_frame_equal(
            back, forecast.to_frame((0.5, 0.9)), check_exact=True
        )
    refused(
        TableError,
        r"cannot write: .*directory",
        forecast.write,
        tmp_path / "absent" / "x.csv",
    )
    assert len([*tmp_path.iterdir()]) == 2


LEVEL = "not between 0 and 1; 0.9 is a 90 % band"
MISTAKES = [
    *[(lambda fit, level=level: fit.forecast(ROWS).bands((0.5, level)), LEVEL)
      for level in (0, 1, 90, np.nan)],
    (lambda fit: fit.forecast(ROWS).to_frame((0.5, -0.1)), LEVEL),
    (lambda fit: fit.forecast(ROWS.drop(columns="tokens")),
     "'tokens' .or D; for B of chinchilla. is missing"),
    (lambda fit: fit.forecast(ROWS.assign(tokens=0.0)), "no value at tokens = 0"),
    (lambda fit: fit.forecast(ROWS.iloc[:0]), "no rows"),
    (lambda fit: fit.forecast(ROWS, kind="latnt"),
     "unknown kind of forecast 'latnt'; did you mean 'latent'"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "says"), MISTAKES)
def test_mistakes_of_forecasts(posterior, call, says):
    refused(bl.BayeslawError, says, call, posterior)


def test_aliases_other_columns_and_far_rows(posterior):
    named = posterior.forecast(
        ROWS.rename(columns={"params": "N", "tokens": "D"}).assign(note="é")
    )
    np.testing.assert_array_equal(named.samples, posterior.forecast(ROWS).samples)
    assert (named.to_frame()["note"] == "é").all()
    frame = posterior.forecast(small()).to_frame()
    assert "loss" in frame
    assert "unconverged" not in frame
    far = posterior.latent(grid(params=[1e4, 1e15], tokens=[1e3, 1e20]))
    assert np.isfinite(far).all()
    assert (far > 0).all()


def test_every_row_has_a_position(posterior):
    """The training rows have N up to 3e9 and D up to 1e11, at every combination."""
    outside = posterior.forecast(ROWS).to_frame()
    assert (posterior.forecast(small()).to_frame()["decades"] == 0).all()
    beyond = np.log10(ROWS / [3e9, 1e11]).clip(lower=0)
    np.testing.assert_allclose(
        outside["decades"], np.hypot(beyond["params"], beyond["tokens"])
    )
    staged = replace(
        posterior, table=from_frame(posterior.table.frame.assign(ptpp=31.0))
    )
    predicted = staged.forecast(grid(params=1e9, tokens=1e10, ptpp=[31, 279]))
    assert predicted.positions["unvaried"].tolist() == ["", "ptpp"]
    assert predicted.to_frame()["position"].tolist() == ["interpolation", "projection"]
    assert predicted.to_frame()["decades"].tolist() == pytest.approx([0, np.log10(9)])
    unknown = replace(predicted, fits={})  # without training rows there is no position
    assert not {*PLACE} & {*unknown.to_frame(), *unknown.bands()}


@pytest.mark.parametrize("pooled", [False, True])
def test_rows_that_the_command_refuses_are_warned_of(posterior, pooled):
    fit = bl.Pool({"one": posterior, "two": posterior}) if pooled else posterior
    far, near = grid(params=70e9, tokens=1.4e13), grid(params=1e10, tokens=1e11)
    says = r"grid: No evidence: rows lie up to 1\.4 decades of params \(bands were tested to 0\.96"
    with pytest.warns(TableWarning, match=says) as found:
        fc = fit.forecast(far)
    assert len(found) == 1
    assert "No evidence" in str(fc)
    assert "No evidence" not in str(fit.forecast(near))
    fit.accepted("beyond-evidence").forecast(far)


# -- the gate -------------------------------------------------------------------------------------

GATE = {"rhat": 1.01, "ess_bulk": 400, "ess_tail": 400, "divergences": 0, "bfmi": 0.3}
GATE |= {"scale_error": 0.08}


def test_each_part_of_the_gate():
    assert Convergence(**GATE).enough
    for spoilt, says in (
        ({"rhat": 1.02003}, "R-hat 1.021 > 1.02"),
        ({"rhat": np.nan}, "R-hat nan > 1.02"),
        ({"ess_bulk": 199.9}, "bulk ESS 199 < 200"),
        ({"ess_tail": np.nan}, "tail ESS nan < 200"),
        ({"scale_error": 0.15003}, "Monte Carlo error of scales 15.1 % > 15 %"),
        ({"scale_error": np.nan}, "Monte Carlo error of scales nan % > 15 %"),
        ({"divergences": 1}, "1 divergences"),
        ({"bfmi": 0.2999}, "E-BFMI 0.29 < 0.3"),
    ):
        found = Convergence(**GATE | spoilt)
        assert found.failures == (says,)
        assert (found.ok, found.enough, found.note.level) == (False, False, "refuse")
    # One transition of a thousand may diverge, and is told.
    few, more = (
        Convergence(**GATE | {"divergences": n, "transitions": 2000}) for n in (2, 3)
    )
    assert few.ok
    assert "2 of 2,000 transitions diverged" in str(few)
    assert not more.ok


def test_between_its_limits_a_fit_is_usable_and_says_what_that_costs():
    for spoilt, says in (
        ({"rhat": 1.01003}, "R-hat 1.011 > 1.01"),
        ({"ess_bulk": 399.9}, "bulk ESS 399 < 400"),
        ({"ess_tail": 200}, "tail ESS 200 < 400"),
        ({"scale_error": 0.0801}, "Monte Carlo error of scales 8.1 % > 8 %"),
    ):
        found = Convergence(**GATE | spoilt)
        assert (found.ok, found.missed, found.note.level) == (True, (says,), "caution")
        assert "NOT CONVERGED" not in str(found)
    fit = replace(saved("plain"), convergence=Convergence(**GATE | {"ess_tail": 250}))
    shown = str(fit.forecast(small()))
    # Two fits of 250 independent draws each.
    draws = np.random.default_rng(0).normal(size=(2, 4000, 250))
    low, median, high = np.quantile(draws, [0.05, 0.5, 0.95], axis=-1)
    width = 2 * stats.norm.ppf(0.95)
    moves = [100 * np.std(q[0] - q[1]) / width for q in (median, low, high)]
    said = re.search(
        r"move by about (\d+) % .*? ends of the bands by (\d+) %",
        " ".join(shown.split()),
    )
    assert [int(n) for n in said.groups()] == pytest.approx(
        [moves[0], np.mean(moves[1:])], abs=0.7
    )
    assert fit.require_converged() == ()


def test_scales_are_judged_by_the_widths_that_they_give():
    """Its tails may mix slowly if it is known to a few per cent; chains that differ fail."""
    rng = np.random.default_rng(1)
    losses = xr.Dataset({"log_loss": (("chain", "draw"), rng.normal(size=(4, 1000)))})
    sampler = xr.Dataset(
        {
            "diverging": (("chain", "draw"), np.zeros((4, 1000), bool)),
            "energy": (("chain", "draw"), rng.normal(size=(4, 1000))),
        }
    )
    steps = rng.normal(size=(4, 1000))
    for k in range(1, 1000):
        steps[:, k] = 0.9 * steps[:, k - 1] + np.sqrt(1 - 0.9**2) * steps[:, k]
    apart = steps + np.array([0, 0, 3, 3])[:, None]
    found = [
        diagnose(
            losses,
            sampler,
            None,
            xr.Dataset({"sigma": (("chain", "draw"), np.exp(s / 4))}),
        )
        for s in (steps, apart)
    ]
    ess = float(azs.ess(xr.DataArray(steps, dims=("chain", "draw"))))
    assert ess < 400
    assert found[0].enough
    assert found[0].scale_error == pytest.approx(0.25 / np.sqrt(ess), rel=0.2)
    assert not found[1].ok


def fitted_quantities(fit, log_loss):
    """What `diagnose` is given of a fit without effects: log losses at rows and the noise."""
    log_loss = log_loss.reshape(*fit.draws["sigma"].shape, -1)
    return fit.draws[["sigma"]].assign(log_loss=(("chain", "draw", "row"), log_loss))


def test_diagnostics_are_those_of_arviz(posterior):
    """Of the log losses at the fitted rows and of the scale of noise.

    R-hat is compared within 1e-4: ArviZ breaks a tie of ranks by the last bit of a logarithm.
    """
    draws, stats = posterior.draws, posterior.stats
    used = fitted_quantities(posterior, np.log(posterior.latent(small())))
    got, recorded = diagnose(used, stats), posterior.convergence
    ess = azs.summary(used, kind="diagnostics", round_to="none")[
        ["ess_bulk", "ess_tail"]
    ].min()
    rhat = max(float(v.max()) for v in azs.rhat(used).values())
    assert got.rhat == pytest.approx(rhat, abs=1e-4)
    assert recorded.rhat == pytest.approx(rhat, abs=1e-4)
    assert [got.ess_bulk, got.ess_tail] == pytest.approx([*ess])
    assert [recorded.ess_bulk, recorded.ess_tail] == pytest.approx([*ess])
    assert got.divergences == recorded.divergences == int(stats["diverging"].sum())
    bfmi = azs.bfmi(stats)["energy"].values
    assert got.bfmi == pytest.approx(bfmi.min(), rel=0.01)
    assert got.ok
    summary = posterior.summary()
    assert {"E", "A", "alpha", "B", "beta", "L_ref", "sigma"} <= set(summary.index)
    assert summary.loc["L_ref", "mean"] == pytest.approx(float(draws["L_ref"].mean()))


def test_a_last_bit_changes_no_diagnostic(posterior):
    """Of two draws as far from the median, none comes first in the ranks of folded R-hat."""
    log_loss = np.log(posterior.latent(small()))
    rng, found = np.random.default_rng(0), set()
    for _ in range(4):
        moved = np.nextafter(log_loss, rng.choice([-9.0, 9.0], log_loss.shape))
        found.add(diagnose(fitted_quantities(posterior, moved), posterior.stats))
    assert len(found) == 1


def test_stuck_chains_fail(posterior):
    draws = posterior.draws.copy(deep=True)
    draws["alpha"][:] = draws["alpha"].values[:, :1]
    assert not diagnose(draws, posterior.stats).rhat <= 1.01
    draws["alpha"][:] = 0.5
    assert not diagnose(draws, posterior.stats).ok
    assert not diagnose(
        posterior.draws.isel(chain=[0]), posterior.stats.isel(chain=[0])
    ).ok


@pytest.mark.filterwarnings("ignore:.* rows were fitted")
def test_an_unconverged_posterior_is_refused_or_marked():
    fit = saved("unconverged")
    for use in (fit.forecast, fit.predict, lambda rows: bl.score(fit, rows)):
        refused(
            NotConverged,
            r"bulk ESS .* < 200.*fit.accepted..unconverged",
            use,
            small(),
        )
    refused(NotConverged, "ESS", fit.forecast, small(), kind="latent")
    usable = fit.accepted(ALLOW)
    marked = usable.forecast(small())
    assert marked.convergence.failures == fit.convergence.failures
    for frame in (marked.bands(), marked.to_frame()):
        assert (frame["unconverged"] == "; ".join(fit.convergence.failures)).all()
    assert np.isfinite(bl.score(usable, small())).all()
    assert np.isfinite(usable.predict(small())).all()


def test_what_is_accepted_stays_with_the_fit_and_is_not_saved(path):
    fit = saved("unconverged")
    both = fit.accepted("unconverged").accepted("beyond-evidence")
    assert both.accepts == {"unconverged", "beyond-evidence"}
    assert not fit.accepts  # another fit
    valid = "did you mean 'unconverged'. Valid: beyond-evidence, unconverged"
    refused(bl.BayeslawError, valid, fit.accepted, "converged")
    pool = bl.Pool({"one": fit, "two": saved("walk")}).accepted("unconverged")
    assert pool.accepts == {"unconverged"}
    assert pool.require_converged() == tuple(
        f"table: {w}" for w in pool.convergence.failures
    )
    for each in (both, pool):
        each.forecast(small())
        each.save(path)
        with pytest.raises(NotConverged):
            load(path).forecast(small())


# -- trees ----------------------------------------------------------------------------------------

GROUPS = {
    "posterior",
    "posterior_predictive",
    "prior",
    "prior_predictive",
    "log_likelihood",
}
GROUPS |= {"sample_stats", "observed_data", "constant_data"}


def test_a_tree_has_all_groups_and_arviz_reads_it():
    """Of rows in runs and bases, with curvature."""
    fit = saved("tinycpt_form1")
    tree = fit.to_datatree(seed=1, prior=300)
    assert {*tree.children} == GROUPS
    for group, shape in (("log_likelihood", (2, 60)), ("prior_predictive", (1, 300))):
        assert tree[group]["log_loss"].dims == ("chain", "draw", "row")
        assert tree[group]["log_loss"].shape == (*shape, len(fit.table))
    assert tree["posterior"]["run_effect"].dims == ("chain", "draw", "run")
    assert tree["posterior"]["E"].attrs["units"] == "nats per token"
    assert {"params", "tokens", "replay", "ptpp", "run", "base"} <= {
        *tree["constant_data"]
    }
    observed = tree["observed_data"]["log_loss"]
    np.testing.assert_array_equal(observed, np.log(fit.table.loss))
    low, high = tree["posterior_predictive"]["log_loss"].quantile(
        [0.05, 0.95], ("chain", "draw")
    )
    assert 0.8 < ((low < observed) & (observed < high)).mean() <= 1
    with pytest.warns(UserWarning, match="Pareto"):
        elpd = az.loo(tree).elpd
    in_sample = tree["log_likelihood"]["log_loss"].mean(("chain", "draw")).sum()
    assert elpd < in_sample  # left out, rows are less likely than fitted
    az.plot_ppc_dist(tree, num_samples=10)
    plt.close("all")


def test_a_prior_that_cannot_be_drawn_is_left_out():
    fit = saved("tinycpt_form1")
    bounds = prior_bounds(fit.law.by_symbol)
    noise = {name for name in fit.spec.priors if name not in bounds}
    flat = override(fit.spec.priors, "flat", bounds, proper={*NOISE, *noise})
    fit = replace(fit, spec=replace(fit.spec, priors=flat))
    tree = fit.to_datatree(seed=1, prior=300)
    assert {*tree.children} == GROUPS - {"prior", "prior_predictive"}
    assert tree.attrs["prior"].startswith("not drawn: improper for ")
    with pytest.raises(bl.FitError, match=r"priors of .*E.* are flat and improper"):
        draw_parameters(fit.spec, fit.at, 5, np.random.default_rng(0))


def test_prior_predictive_is_that_of_the_model():
    """Against PyMC's own draws of the same model."""
    import pymc as pm

    fit = saved("delphi_chinchilla")
    own = fit.to_datatree(prior=2000)["prior_predictive"]["log_loss"].values[0]
    model = build(make_data(fit.spec, fit.table))
    quick = {"mode": "FAST_COMPILE"}
    tree = pm.sample_prior_predictive(
        2000, model=model, random_seed=1, compile_kwargs=quick
    )
    pymc = tree["prior_predictive"]["log_loss"].values[0]
    one, two = (np.quantile(values, (0.1, 0.5, 0.9), axis=0) for values in (own, pymc))
    np.testing.assert_allclose(one, two, atol=0.08)


# -- files ----------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path):
    return Path(shutil.copy(SAVED / "unconverged.nc", tmp_path / "pöstérior 中.nc"))


def refuse(path, says):
    with pytest.raises(FileError, match=says) as error:
        load(path)
    assert "\n" not in str(error.value)
    assert path.name in str(error.value)


def test_truncated_missing_and_foreign_files(path, tmp_path, capfd):
    whole = path.read_bytes()
    for share in (0, 0.01, 0.3, 0.6, 0.95):
        path.write_bytes(whole[: int(share * len(whole))])
        refuse(path, "not a readable posterior")
    delphi = (SAVED / "delphi_chinchilla.nc").read_bytes()
    for place in (70, 98, 280, 469, 707):
        path.write_bytes(
            delphi[:place] + bytes([delphi[place] ^ 255]) + delphi[place + 1 :]
        )
        refuse(path, "not a readable posterior|not that of its SHA-256")
    refuse(tmp_path / "absent.nc", "no such file")
    refuse(tmp_path, "a folder, not a saved posterior")
    path.write_text("params,tokens,loss\n")
    refuse(path, "not a readable posterior")
    xr.Dataset({"x": ("y", [1.0])}).to_netcdf(path, engine="h5netcdf")
    refuse(path, "not a bayeslaw posterior")
    assert capfd.readouterr().err == ""


def moved(file, place="posterior/L_ref"):
    file[place][0, 0] *= 1 + 1e-15


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda file: file.attrs.update(schema=SCHEMA + 1),
         rf"schema {SCHEMA + 1} is newer than this version reads .{SCHEMA}.; upgrade bayeslaw"),
        (lambda file: file.attrs.update(schema=1),
         rf"schema 1 is older than this version reads .{SCHEMA}.; fit again"),
        (lambda file: file.attrs.update(meta="{"), "damaged"),
        (lambda file: file.attrs.pop("sha256"), "damaged"),
        (lambda file: file.attrs.pop("schema"), "damaged"),
        (lambda file: file.pop("table"), "damaged"),
        (lambda file: file.attrs.update(meta=file.attrs["meta"].replace('"likelihood"', '"x"')),
         "damaged"),
        (lambda file: file["table/rows"].__setitem__(
            (), file["table/rows"][()].replace(b"e", b"E", 1)), "damaged"),
        (moved, r"damaged or edited.*restore the file, or fit again"),
    ],
)  # fmt: skip
def test_other_layouts_and_damage(path, spoil, says):
    with h5py.File(path, "a") as file:
        spoil(file)
    refuse(path, says)


def test_a_fit_of_an_older_version_is_not_called_damaged(path):
    """Repeated data were once worth the same to models of all sizes; the layout is the same."""
    fit = saved("plain")
    older = taking(fit.law, Repetition)
    assert {*older.coordinates} - {*fit.law.coordinates} == {"R_D", "R_D_N"}
    draws = fit.draws.assign(R_D=fit.draws["alpha"] * 0 + 15.0)
    replace(fit, spec=replace(fit.spec, law=older), draws=draws).save(path)
    refuse(
        path, r"written by another version of bayeslaw.*\(without R_D_N\); fit again"
    )


def test_a_fit_with_a_learning_rate_step_is_refused(path, monkeypatch):
    """The step went; the layout of files is the same, and other files say that they have none."""
    for has_step in (False, True):
        fit = saved("plain")
        fit = replace(fit, spec=replace(fit.spec))  # whose law is not yet stored
        law = stored_law(fit.law) | {"tuning": has_step}
        with monkeypatch.context() as patch:
            patch.setattr("bayeslaw.model.spec.stored_law", lambda _, law=law: law)
            fit.save(path)
        if not has_step:
            load(path)
    refuse(
        path, "saved with a learning-rate step, which this version has not; fit again"
    )


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), KeyboardInterrupt]
)
def test_an_interrupted_save_leaves_the_old_file(posterior, path, monkeypatch, error):
    old = path.read_bytes()

    def stop(*_):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", stop)
        with pytest.raises((FileError, KeyboardInterrupt), match=r"No space left|^$"):
            posterior.save(path)
    assert path.read_bytes() == old
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    refused(FileError, "cannot write", posterior.save, path.parent / "absent" / "x.nc")
    posterior.save(path)
    assert load(path).convergence == posterior.convergence


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # Dask's own, which change with its version
def test_a_worker_of_dask_saves_a_fit(posterior, path):
    distributed = pytest.importorskip("distributed")
    one = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.Client(**one) as client:
        client.submit(posterior.save, path).result()
    assert load(path).convergence == posterior.convergence


def dying_fit(seed: int, died: Path) -> float:
    """Exponent of a Huber fit; the first process that fits seed 3 dies."""
    if seed == 3 and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    table = bl.simulate("chinchilla", CHINCHILLA, SIMULATED, sigma=0.01, seed=seed)
    return fit_huber("chinchilla", table).parameters["alpha"]


@pytest.mark.slow
@on_bound
@pytest.mark.filterwarnings("default")  # Dask's own, which change with its version
def test_fits_on_a_cluster_survive_a_worker_that_dies(tmp_path):
    distributed = pytest.importorskip("distributed")
    died = tmp_path / "died"
    two = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    jobs = [joblib.delayed(dying_fit)(seed, died) for seed in range(8)]
    with distributed.Client(**two), joblib.parallel_config(backend="dask"):
        found = joblib.Parallel()(jobs)
    assert died.exists()
    assert found == [dying_fit(seed, died) for seed in range(8)]


def test_a_posterior_is_named_as_what_it_is(posterior, path):
    refused(FileError, r"x\.pkl: .* NetCDF; .* ends in \.nc", posterior.save, "x.pkl")
    pool = bl.Pool({"a": posterior, "b": posterior})
    refused(FileError, r"ends in \.nc", pool.save, path.with_suffix(""))


# -- files without losses -------------------------------------------------------------------------


def without_losses(fit, path):
    fit.save(path, losses=False)
    return load(path)


def test_no_column_stays_that_may_be_the_loss_in_another_unit(path):
    table = small().frame.assign(
        bits=lambda rows: rows["loss"] / np.log(2), note="x", replay=0.0
    )
    fit = saved("plain")
    bare = without_losses(replace(fit, table=from_frame(table)), path).table.frame
    assert [*bare] == ["params", "tokens", "synthetic", "replay"]
    # What labels rows, and what the effects and the law read.
    for name in ("columns", "domain", "groups"):
        fit = saved(name)
        levels = [effects.level(level).column for level in fit.spec.effects]
        read = {*fit.law.columns, *levels, "run", "base", "domain", "annealed"}
        bare = without_losses(fit, path).table.frame
        assert {*bare} >= read & {*fit.table.frame}
        assert "loss" not in bare
    assert {"start_loss", "base_loss"} <= {
        *without_losses(saved("transfer"), path).table.frame
    }
    # The role stays that the losses of bases say, which a law that does not start from them drops.
    fit = saved("form1n")
    frame = fit.table.frame.drop(columns="role").assign(
        start_loss=lambda rows: rows["base_loss"]
    )
    table = without_losses(
        replace(fit, table=replace(fit.table, frame=frame)), path
    ).table
    assert (table.role, "start_loss" in table.frame) == ("source", False)


def test_no_draws_stay_that_give_back_losses(path):
    fit = saved("groups")
    assert fit.spec.errors == "run"
    bare = without_losses(fit, path)
    assert {*bare.draws.variables} == {*fit.draws.variables}
    assert {*bare.stats} == {
        "diverging",
        "depth",
        "maxdepth_reached",
        "n_steps",
        "step_size",
    }
    # An older file has the errors at the ends of runs; saved again without losses it has not.
    older = replace(bare, draws=bare.draws.assign(last_error=last_errors(fit)))
    rows = fit.table.frame.drop(columns="loss").assign(
        tokens=lambda rows: rows["tokens"] * 2
    )
    older, fit = (
        each.accepted({"unconverged", "beyond-evidence"}) for each in (older, fit)
    )
    np.testing.assert_array_equal(
        older.forecast(rows).samples, fit.forecast(rows).samples
    )
    assert {*without_losses(older, path).draws.variables} == {*fit.draws.variables}


def test_without_losses_a_fitted_run_goes_on_as_another_of_its_settings(path):
    fit = saved("groups").accepted({"unconverged", "beyond-evidence"})
    bare = without_losses(fit, path).accepted({"unconverged", "beyond-evidence"})
    rows = fit.table.frame.drop(columns="loss")
    np.testing.assert_array_equal(
        bare.forecast(rows).samples, fit.forecast(rows).samples
    )
    further = (
        rows.loc[rows.groupby("run")["tokens"].idxmax()].iloc[:2].reset_index(drop=True)
    )
    further["tokens"] *= 1.001
    with pytest.warns(
        TableWarning, match=r"rows 0, 1 go on fitted runs.*without its losses"
    ):
        found = bare.forecast(further)
    errors = np.log(found.samples / bare.latent(further))
    effects_alone = group_effects(
        bare, bare.rows(further).frame, np.random.default_rng(0)
    )
    noise = errors - effects_alone
    assert np.median(np.abs(noise)) > 0.5 * np.median(bare.values()["sigma"])
    assert bare.forecast(further, kind="latent").samples.shape == found.samples.shape


# -- pools ----------------------------------------------------------------------------------------


@pytest.fixture
def pool():
    """Weights in another order than the members, of which the second has not converged."""
    members = {"long": saved("plain"), "short": saved("walk")}
    return bl.Pool(members, {"short": 1.0, "long": 3.0}, "ours")


def test_a_pool_is_the_mixture_of_its_members(pool):
    counts = [len(own) for _, own, _ in pool.by_member()]
    assert counts[0] == pytest.approx(3 * counts[1], abs=2)
    assert sum(counts) == pool.count
    latent = pool.latent(ROWS)
    for member, own, place in pool.by_member():
        np.testing.assert_array_equal(latent[place], member.latent(ROWS)[own])
    some = np.array([pool.count - 1, 0, 5])
    np.testing.assert_allclose(
        pool.losses(pool.rows(ROWS), some), latent[some], rtol=1e-12
    )
    for member, own, place in pool.by_member(some):
        np.testing.assert_array_equal(latent[some][place], member.latent(ROWS)[own])
    assert not pool.convergence.ok
    refused(NotConverged, "chinchilla on table", pool.forecast, ROWS)
    shown = str(pool)
    assert shown.startswith("ours: Pool of 25 % short and 75 % long\n")
    assert (shown.count("NOT CONVERGED"), shown.count("Default priors.")) == (1, 2)
    assert set(pool.summary().index.get_level_values(0)) == {"long", "short"}


def test_a_saved_pool(pool, path):
    pool.save(path)
    again = load(path)
    assert isinstance(again, bl.Pool)
    assert (again.name, dict(again.weights)) == ("ours", dict(pool.weights))
    before, after = (each.accepted(ALLOW).forecast(ROWS) for each in (pool, again))
    np.testing.assert_array_equal(before.samples, after.samples)
    refused(
        FileError, "fit of one of its laws alone: long, short", load_posterior, path
    )
    with h5py.File(path, "a") as file:
        moved(file, "member 1/posterior/L_ref")
    refuse(path, r"damaged or edited.*restore the file, or fit again")


def test_weights_and_tables_of_pools_are_checked(posterior):
    for weights in ({"a": 1.0}, {"a": -1.0, "b": 2.0}, {"a": 0.0, "b": 0.0}):
        refused(
            bl.LawError, "weight", bl.Pool, {"a": posterior, "b": posterior}, weights
        )
    refused(
        bl.LawError, "different tables", bl.Pool, {"a": posterior, "b": saved("skewed")}
    )


# -- tables that do not vary in a column of a law: of one base, one ratio, or one stage ------------

BASE = {"params": 147816.0, "ptpp": 62.0}
LEFT_OUT = {
    "chinchilla": "A alpha", "dcpt": "A alpha", "forgetting": "A alpha phi",
    "form1": "A alpha F eta", "form1n": "A alpha F eta phi", "form2": "A alpha lambda_ zeta",
    "form3": "A alpha lambda_ zeta F eta", "form3n": "A alpha lambda_ zeta F eta phi",
    "liew_kato": "alpha1 alpha3", "skaling": "A alpha kappa", "transfer": "A alpha phi z_N z_P k",
}  # fmt: skip
"""Parameters of each law that ships that a table of one base does not determine."""


@pytest.fixture(scope="module")
def one_base():
    folder = DATA / "tinycpt"
    where = "annealed and (replay < 1 or tokens == 0) and base == '147k-p62-s0'"
    table = bl.read_table(
        folder / "french.csv", source=folder / "english.csv", where=where
    )
    return table.split("atpp <= 8")


@pytest.mark.filterwarnings("ignore:.* rows were fitted")
@on_bound
@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_a_table_of_one_base_leaves_out(one_base, name):
    early, late = one_base
    law = for_table(bl.load_law(name), early)
    assert " ".join(law.left_out) == LEFT_OUT[name]
    assert set(law.columns) <= {"tokens", "replay"}
    assert not {*law.left_out} & {*law.parameters, *law.priors}
    assert not {"params", "ptpp"} & set(sum(law.covariates_of.values(), ()))
    if name in ("forgetting", "form3n", "transfer"):
        point = bl.fit_huber(name, early, starts=64, polish=6)
        assert {*point.parameters} == {*law.parameters}
        says = f"without {', '.join(law.left_out)}, part of the floor"
        assert says in point.shown().text(1000)
        rows = late.frame.drop(columns=[*BASE])
        np.testing.assert_array_equal(point.predict(rows), point.predict(late))
        assert bl.score(point, early)["rmse_log"] < 0.06
        with pytest.raises(TableError, match="fitted to rows of params 147816 alone"):
            point.forecast(rows.assign(params=1e6))


def test_a_pool_of_one_base_forecasts_and_plans_at_its_values_alone():
    fit = saved("one_base").accepted(ALLOW)
    for name, member in fit.members.items():
        says = f"{name}: all rows at params 3e+08, ptpp 60: other values are refused; without "
        assert says + LEFT_OUT[name].replace(" ", ", ") in fit.shown().text(1000)
        assert member.heading().document["left_out"] == LEFT_OUT[name].split()
    late = stages().query("base == 3").assign(tokens=5e9)
    rows = late.drop(columns=["params", "ptpp"])
    one, two = (fit.forecast(each, seed=2).samples for each in (late, rows))
    np.testing.assert_array_equal(one, two)
    source = of_role(turned(fit), "source")
    asked = {"target": of_role(fit, "target"), "source": source}
    asked |= {"max_loss": 2.0, "max_forgetting": 0.9}
    asked |= {"replay": [0.1, 0.3], "confidence": 0.6, "params": 3e8}
    assert bl.plan(**asked, baseline=2.0).limits["ptpp"] == 60
    for column, value in (("params", 1e9), ("ptpp", 279.0)):
        elsewhere = late.assign(**{column: value})
        own = re.escape(f"{fit.table.frame[column][0]:g}")
        says = rf"{column} .*, but \w+ was fitted to rows of {column} {own} alone"
        for use in (fit.latent, fit.forecast, partial(bl.check, fit)):
            refused(bl.BayeslawError, says, use, elsewhere)
        refused(bl.BayeslawError, says, bl.score, fit, from_frame(elsewhere))
        refused(
            bl.BayeslawError, says, bl.plan, **asked | {column: value}, baseline=2.0
        )


OWN = """title = "Own"
reference = "none"
term = [{coefficient = "F", slope = "slope_F", log = "-eta*log(P) - phi*log(N)"},
 {coefficient = "B", slope = "slope_D", log = "-beta*log(D)"}]
[priors]
E = "LogNormal(median=1.5, sigma=0.5)"
slope_F = "LogNormal(median=0.1, sigma=0.8)"
slope_D = "LogNormal(median=0.1, sigma=0.8)"
""" + "".join(
    f'{n} = "LogNormal(median=0.3, sigma=0.4)"\n' for n in ("eta", "phi", "beta")
)


@pytest.mark.filterwarnings("ignore:.* rows were fitted")
@on_bound
@pytest.mark.parametrize(
    ("law", "same", "left_out"),
    [
        ("form1n", "ptpp", "F eta phi"),  # the term in N describes what is left of that in P
        ("own", "ptpp", ""), ("own", "params", "phi"), ("own", "params ptpp", "F eta phi"),
        ("dcpt", "replay", "nu C gamma"),
        ("form3", "replay ptpp", "nu lambda_ zeta C gamma F eta"), ("form2", "params", "A alpha"),
        ("liew_kato", "params", ""),  # with N fixed, N P still varies
        ("chinchilla", "tokens", "B beta"), ("skaling", "tokens", "B beta kappa"),
    ],
)  # fmt: skip
def test_losses_of_the_whole_law_are_those_of_the_reduced_one(
    law, same, left_out, tmp_path
):
    (tmp_path / "own.toml").write_text(OWN)
    law = bl.load_law(tmp_path / "own.toml" if law == "own" else law)
    many = {"params": [1e8, 3e8, 1e9], "ptpp": [15, 60, 200], "replay": [0.1, 0.3, 0.5]}
    many |= {"tokens": [1e9, 1e10, 1e11]}
    many = {c: v[1:2] if c in same.split() else v for c, v in many.items()}
    rows = grid(
        **{c: values for c, values in many.items() if c in {*law.columns, *BASE}}
    )
    rows = (rows if "tokens" in rows else rows.assign(tokens=1e9)).assign(role="target")
    truth = {n: TRUTH.get(n, 0.05) for n in law.parameters}
    table = bl.simulate(law, truth, rows, sigma=0.0)
    point = bl.fit_huber(law, table)
    assert " ".join(point.law.left_out) == left_out
    assert {*same.split()} & {*law.columns} == {*point.law.held}
    assert bl.score(point, table)["rmse_log"] < 2e-4
    with pytest.raises(TableError, match=f"fitted to rows of {same.split()[0]}"):
        point.predict(rows.assign(**dict.fromkeys(same.split(), 0.7)))
    if law.name == "own" and left_out == "F eta phi":
        # Medians .1 / .3 nats of the term join the floor's 1.5.
        assert dict(point.law.priors["E"].arguments)["median"] == pytest.approx(
            1.5 + 1 / 3
        )


def test_laws_that_a_message_names_fit_and_rows_that_are_all_the_same_do_not(one_base):
    frame = one_base[0].frame[["params", "tokens", "replay", "loss"]]
    with pytest.raises(TableError, match=r"'ptpp'.* is missing") as error:
        bl.fit_huber("form3", from_frame(frame))
    names = str(error.value).split("are there: ")[1].strip(".").split(", ")
    assert "dcpt" in names
    for name in names:
        assert for_table(bl.load_law(name), from_frame(frame)).held == {
            "params": 147816
        }
    table = from_frame(frame.assign(tokens=1e6, replay=0.1, run=range(len(frame))))
    refused(
        TableError,
        "are the same in params, tokens, replay, so no term",
        bl.fit,
        "dcpt",
        table,
    )
