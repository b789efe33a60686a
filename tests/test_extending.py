"""Kinds defined outside the package: saved, loaded in a new process, forecast, planned."""

import json
import subprocess
import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest
import xarray as xr
from scipy import integrate, stats

import bayeslaw as bl
from bayeslaw import Prior
from bayeslaw.checks.left_out import left_out
from bayeslaw.design.design import Design
from bayeslaw.laws.forms import identity
from bayeslaw.model.effects import GROUP_LEVELS, RUN, Level
from bayeslaw.model.noise import Normal
from bayeslaw.model.spec import make_spec
from tests.support import CHINCHILLA, ROOT, refused, saved, small

sys.path.insert(0, str(ROOT / "tests"))
import plugin  # the package outside bayeslaw

LOADED = """
import json, sys
sys.path.insert(0, sys.argv[1])
import pandas as pd, bayeslaw as bl
import plugin
rows = pd.read_json(sys.stdin, precise_float=True)
fc = bl.load(sys.argv[2]).accepted({"unconverged", "beyond-evidence"}).forecast(rows, seed=2)
print(json.dumps(fc.samples.tolist()))
"""


@pytest.fixture(scope="module")
def fit():
    """A likelihood and a discrepancy from outside, and a random effect of a column."""
    kinds = {"likelihood": "plugin:SkewNormal", "discrepancy": "plugin:DataWalk"}
    spec, rng = (
        make_spec("chinchilla", effects=["lab"], **kinds),
        np.random.default_rng(0),
    )
    table = bl.from_frame(small().frame.assign(lab=["a", "b", "c", "d"] * 5))
    at, size = Design(spec.law, table.frame).at, (2, 50)
    true = spec.law.without_discrepancy.to_reference(CHINCHILLA, at) | {"sigma": 0.003}
    true |= {"tau_lab": 0.002, "skew": 0.5, "step_0": 0.0, "step_1": 0.0}
    values = {
        n: v + 0.01 * max(abs(v), 0.1) * rng.standard_normal(size)
        for n, v in true.items()
    }
    draws = {name: (("chain", "draw"), np.abs(v)) for name, v in values.items()}
    draws["lab_effect"] = (
        ("chain", "draw", "lab"),
        0.002 * rng.standard_normal((*size, 4)),
    )
    draws = xr.Dataset(draws, {"lab": ["a", "b", "c", "d"]})
    usable = saved("unconverged").accepted({"unconverged", "beyond-evidence"})
    return replace(usable, spec=spec, table=table, at=at, draws=draws)


def test_kinds_from_outside_are_saved_loaded_forecast_and_planned(
    fit, tmp_path, monkeypatch
):
    path = tmp_path / "fit.nc"
    fit.save(path)
    ahead = bl.grid(params=[1e9, 3e9], tokens=[1e10, 1e12]).assign(lab=["a", "b"] * 2)
    forecast = fit.forecast(ahead, seed=2)
    true = fit.law.without_discrepancy.loss(CHINCHILLA, Design(fit.law, ahead).x)
    assert (np.abs(np.log(forecast.median / true)) < 0.15).all()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LOADED, str(ROOT / "tests"), str(path)],
        capture_output=True, text=True, check=True, input=ahead.to_json(),
    )  # fmt: skip
    assert json.loads(done.stdout) == forecast.samples.tolist()
    source = replace(fit, draws=fit.draws.assign(L_ref=1.01 * fit.draws["L_ref"]))
    limits = {
        "max_loss": float(forecast.median.max()),
        "max_forgetting": 1.0,
        "baseline": 3.0,
    }
    asked = {"params": 1e9, "replay": [1.0], "confidence": 0.5, **limits}
    plan = bl.plan(target=fit, source=source, **asked)
    assert plan.status == "feasible"
    assert np.isfinite(left_out(fit, 0)[0].elpd)
    monkeypatch.delitem(sys.modules, "plugin")
    refused(
        bl.FileError,
        r"plugin:DataWalk' is not of .*: import plugin first",
        bl.load,
        path,
    )
    assert "plugin" not in sys.modules  # a file imports no module


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
    far = bl.grid(params=1e9, tokens=1e14)
    extended, q = fit.extended(
        fit.design(fit.rows(far.rename(columns={"tokens": "D"})))
    )
    drawn = {*q} - {*fit.draws.data_vars}
    assert {"step_2", "step_5"} <= drawn
    np.testing.assert_array_equal(fit.latent(far), fit.latent(far))
    fixed = q | {name: 0 * q[name] for name in drawn}
    narrow = extended.loss(
        extended.amounts(fixed, fit.at), Design(extended, far).x, fit.at
    )
    assert (np.log(fit.latent(far)) - np.log(narrow)).std() > 0.005


@dataclass(frozen=True)
class Rounded(Normal):
    """A likelihood with fields of every sort that a file can hold."""

    kind = "rounded"
    knots: tuple[float | tuple[str, int], ...] = ()
    spread: object = None
    most: float = np.inf


def test_specs_come_back_from_a_file_or_say_what_it_cannot_hold(tmp_path):
    fit, law = saved("unconverged"), bl.load_law("chinchilla")
    alpha = replace(
        law.by_symbol["alpha"], prior=Prior("LogNormal", median=0.5, sigma=0.1)
    )
    other = replace(law, by_symbol=law.by_symbol | {"alpha": alpha})
    laws = [law, replace(law, terms=law.terms[::-1]), other]
    specs = [make_spec(each) for each in [*laws, replace(law, token_unit=1e9)]]
    assert (
        len({spec.identity for spec in specs})
        == len({identity(s.law) for s in specs})
        == 4
    )
    rounded = Rounded((1.5, ("a", 2)), {"b": (1, -np.inf), "c": None})
    for spec in [*specs, replace(fit.spec, likelihood=rounded)]:
        replace(fit, spec=spec).save(tmp_path / "fit.nc")
        back = bl.load(tmp_path / "fit.nc").spec
        assert (back, back.identity, back.likelihood) == (
            spec,
            spec.identity,
            spec.likelihood,
        )
    (tmp_path / "fit.nc").unlink()
    for value in ([1.0], {1: "a"}, plugin.DataWalk(), np.nan):
        spec = replace(fit.spec, likelihood=Rounded(spread=value))
        with pytest.raises(
            bl.LawError, match=r"Rounded': a file cannot hold its field 'sp"
        ):
            replace(fit, spec=spec).save(tmp_path / "fit.nc")
    assert not list(tmp_path.iterdir())
    # Fitted again with another discrepancy, a law is taken as written.
    curved = make_spec("chinchilla", discrepancy="curvature").law
    assert make_spec(curved).identity == make_spec("chinchilla").identity


def test_a_levels_own_prior_is_used_unless_the_law_file_states_one(monkeypatch):
    own = Level("run", "run", prior=Prior("LogNormal", median=0.01, sigma=0.1))
    monkeypatch.setitem(GROUP_LEVELS, "run", own)
    assert make_spec("form1", effects=["run"]).priors["tau_run"] == own.prior
    assert (
        make_spec("form1", effects=["lab"], priors="flat").priors["tau_lab"]
        == RUN.prior
    )
