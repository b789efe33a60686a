"""Kinds defined outside the package: fitted, saved, loaded in a new process, forecast, planned."""

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import integrate, stats

import bayeslaw as bl
from bayeslaw import Prior
from bayeslaw.laws.lawfiles import parse_law
from bayeslaw.model.effects import LEVELS, RUN, Level, labels
from bayeslaw.model.noise import Normal
from bayeslaw.model.spec import make_spec

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import plugin  # noqa: E402  # the package outside bayeslaw

SHORT = {"chains": 2, "draws": 100, "tune": 150, "cores": 1, "retry": False, "target_accept": 0.9}
LAW = """
title = "Chinchilla with a term that decays with replay"
reference = "tests"
[[term]]
coefficient = "A"
slope = "slope_N"
log = "-alpha*log(N)"
[[term]]
coefficient = "B"
slope = "slope_D"
log = "-beta*log(D)"
[[term]]
coefficient = "S"
slope = "slope_r"
log = "-mu*r"
[priors]
E = "LogNormal(median=1.3, sigma=0.4)"
slope_N = "LogNormal(median=0.11, sigma=0.4)"
alpha = "LogNormal(median=0.28, sigma=0.45)"
slope_D = "LogNormal(median=0.1, sigma=0.5)"
beta = "LogNormal(median=0.3, sigma=0.5)"
slope_r = "LogNormal(median=0.1, sigma=1)"
mu = "LogNormal(median=1, sigma=0.7)"
"""
TRUTH = {"E": 1.7, "A": 400.0, "alpha": 0.34, "B": 410.0, "beta": 0.28, "S": 0.3, "mu": 2.0}
LOADED = """
import json, sys
sys.path.insert(0, sys.argv[1])
import pandas as pd, bayeslaw as bl
import plugin
how = {"allow_unconverged": True}
fc = bl.load(sys.argv[2]).forecast(pd.read_json(sys.stdin, precise_float=True), seed=2, **how)
print(json.dumps(fc.median.tolist()))
"""
DESIGN = bl.grid(params=[1e8, 3e8, 1e9], tokens=[1e9, 3e9, 1e10], replay=[0.1, 0.5])
LABS = DESIGN.assign(ptpp=15.0, lab=["a", "b", "c"] * 6)


@pytest.fixture(scope="module")
def law():
    return parse_law(LAW, "decay")


@pytest.fixture(scope="module")
def table(law):
    return bl.simulate(law, TRUTH, LABS, sigma=0.003, seed=1)


@pytest.fixture(scope="module")
def fit(law, table):
    """A term, a likelihood and a discrepancy from outside, and a random effect of a column."""
    kinds = {"likelihood": "plugin:SkewNormal", "discrepancy": "plugin:DataWalk"}
    return bl.fit(law, table, seed=1, effects="lab", **kinds, **SHORT)


@pytest.fixture
def saved(fit, tmp_path):
    fit.save(tmp_path / "fit.nc")
    return tmp_path / "fit.nc"


def test_kinds_from_outside_are_fitted_saved_loaded_forecast_and_planned(law, fit, saved):
    ahead = bl.grid(params=[1e9, 3e9], tokens=[1e10, 1e12], replay=0.3).assign(lab=["a", "b"] * 2)
    forecast = fit.forecast(ahead, seed=2, allow_unconverged=True, beyond_evidence=True)
    assert fit.draws["lab_effect"].dims == ("chain", "draw", "lab")
    true = law.loss(TRUTH, law.covariates(ahead))
    assert (np.abs(np.log(forecast.median / true)) < 0.15).all()
    done = subprocess.run(
        [sys.executable, "-c", LOADED, str(HERE), str(saved)],
        capture_output=True, text=True, check=True, input=ahead.to_json(),
    )  # fmt: skip
    assert json.loads(done.stdout) == forecast.median.tolist()
    source = replace(fit, draws=fit.draws.assign(L_ref=1.01 * fit.draws["L_ref"]))
    plan = bl.plan(
        target=fit, source=source, params=1e9, ptpp=15, max_loss=float(forecast.median.max()),
        max_forgetting=1.0, baseline=3.0, confidence=0.5, allow_unconverged=True,
    )  # fmt: skip
    assert plan.status == "feasible"
    assert np.isfinite(bl.loo(fit).total)


@pytest.mark.parametrize("skew", [0.3, -1.5, 5.0])
def test_the_likelihood_is_one_distribution(skew):
    own, sigma, q = plugin.SkewNormal(), 0.02, {"skew": np.float64(skew)}
    r = np.linspace(-0.2, 0.2, 4001)
    density = np.exp(own.log_density(r, sigma, q))
    total = integrate.cumulative_trapezoid(density, r, initial=0.0)
    assert total[-1] == pytest.approx(1, abs=1e-6)
    draws = own.sample(np.random.default_rng(0), (5000,), sigma, q)
    assert stats.kstest(draws, lambda x: np.interp(x, r, total)).pvalue > 1e-3
    information = np.trapezoid(np.gradient(np.log(density), r) ** 2 * density, r)
    assert own.information_variance(sigma, q) == pytest.approx(1 / information, rel=0.1)


def test_steps_beyond_the_rows_are_drawn_once_and_reach_the_forecast(fit):
    far = bl.grid(params=1e9, tokens=1e14, replay=0.3)
    extended, q = fit.extended(far.rename(columns={"tokens": "D"}))
    assert {"step_2", "step_5"} <= {*q} - {*fit.draws.data_vars}
    np.testing.assert_array_equal(fit.latent(far), fit.latent(far))
    fixed = q | {name: 0 * q[name] for name in q if name not in fit.draws.data_vars}
    x = extended.covariates(far)
    narrow = np.log(extended.loss(extended.amounts(fixed, fit.at), x, fit.at))
    assert (np.log(fit.latent(far)) - narrow).std() > 0.01


def test_a_file_imports_no_module(saved, monkeypatch):
    monkeypatch.delitem(sys.modules, "plugin")
    with pytest.raises(bl.FileError, match=r"plugin:DataWalk' is not of .*: import plugin first"):
        bl.load(saved)
    assert "plugin" not in sys.modules


@dataclass(frozen=True)
class Rounded(Normal):
    """A likelihood with fields of every sort that a file can hold."""

    kind = "rounded"
    knots: tuple[float | tuple[str, int], ...] = ()
    spread: object = None
    most: float = np.inf


def test_fields_of_every_sort_come_back_from_a_file(posterior, tmp_path):
    given = Rounded((1.5, ("a", 2)), {"b": (1, -np.inf), "c": None})
    fit = replace(posterior, spec=replace(posterior.spec, likelihood=given))
    fit.save(tmp_path / "fit.nc")
    assert bl.load(tmp_path / "fit.nc").spec.likelihood == given
    assert bl.load(tmp_path / "fit.nc").spec.identity == fit.spec.identity


@pytest.mark.parametrize("value", [[1.0], {1: "a"}, plugin.DataWalk(), np.nan])
def test_a_field_that_a_file_cannot_hold_is_named_when_the_fit_is_saved(posterior, value, tmp_path):
    fit = replace(posterior, spec=replace(posterior.spec, likelihood=Rounded(spread=value)))
    with pytest.raises(bl.LawError, match=r"Rounded': a file cannot hold its field 'sp"):
        fit.save(tmp_path / "fit.nc")
    assert not list(tmp_path.iterdir())


def test_laws_built_in_python_are_told_apart_and_come_back_as_they_were(posterior, tmp_path):
    chinchilla = bl.load_law("chinchilla")
    swapped = replace(chinchilla, terms=chinchilla.terms[::-1])
    prior = {**chinchilla.priors, "alpha": bl.Prior("LogNormal", median=0.5, sigma=0.1)}
    laws = [chinchilla, swapped, replace(chinchilla, priors=prior)]
    laws.append(replace(chinchilla, token_unit=1e9))
    assert len({law.identity for law in laws}) == 4
    specs = [make_spec(law) for law in laws]
    assert len({spec.identity for spec in specs}) == 4
    for spec in specs:
        replace(posterior, spec=spec).save(tmp_path / "fit.nc")
        back = bl.load(tmp_path / "fit.nc").spec
        assert (back, back.identity) == (spec, spec.identity)


def test_fitting_again_with_another_discrepancy_takes_the_law_as_written():
    curved = make_spec("chinchilla", discrepancy="curvature").law
    assert make_spec(curved).identity == make_spec("chinchilla").identity


def test_integers_are_the_same_labels_beside_a_missing_one():
    whole, gaps = (labels(pd.DataFrame({"run": run}), "run") for run in ([1, 2], [1, 2, None]))
    assert whole.tolist() == gaps[:2].tolist() == ["1", "2"]


def test_a_levels_own_prior_is_used_unless_the_law_file_states_one(monkeypatch):
    own = Level("run", "run", prior=Prior("LogNormal", median=0.01, sigma=0.1))
    monkeypatch.setitem(LEVELS, "run", own)
    assert make_spec("form1", effects=["run"]).priors["tau_run"] == own.prior
    flat = make_spec("form1", effects=["lab"], priors="flat").priors["tau_lab"]
    assert flat == RUN.prior


def test_the_map_starts_inside_a_prior_that_excludes_the_huber_starts(table):
    mode = bl.fit("chinchilla", table, method="map", priors={"alpha": "Uniform(lower=2, upper=3)"})
    assert 2 <= mode.parameters["alpha"] <= 3


def test_a_misspelt_kind_lists_the_valid_ones(table):
    says = r"unknown likelihood 'studnt'.*huber, .*studentt.*named 'package\.module:Class'"
    with pytest.raises(bl.LawError, match=says):
        bl.fit("chinchilla", table, likelihood="studnt")
    with pytest.raises(bl.LawError, match=r"unknown discrepancy 'curvatur'.*curvature"):
        bl.fit("chinchilla", table, discrepancy="curvatur")
    with pytest.raises(bl.LawError, match=r"unknown effect 'labb'.*'lab'"):
        bl.fit("chinchilla", table, effects="labb")


def test_settings_that_a_method_does_not_use_are_refused(table):
    with pytest.raises(bl.FitError, match="method='map' does not use draws"):
        bl.fit("chinchilla", table, method="map", draws=100)
    with pytest.raises(bl.FitError, match=r"unknown setting 'drwas'; did you mean 'draws'"):
        bl.fit("chinchilla", table, drwas=100)
