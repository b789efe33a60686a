"""Random effects of model size in forecasts, where there are too few sizes to fit them."""

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest

from bayeslaw.evaluate.new_sizes import new_size_effects, response, too_few_sizes
from bayeslaw.inference import fitting, refits
from bayeslaw.inference.fitting import fit
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.refits import refit
from bayeslaw.inference.storage import load
from bayeslaw.laws.priors import Prior
from bayeslaw.model.discrepancies import NoDiscrepancy
from bayeslaw.planning.fits import curve_of
from bayeslaw.simulation.worlds import simulate
from bayeslaw.tables.reading import from_frame
from bayeslaw.tables.table import LossTable, grid
from tests.support import CHINCHILLA

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


def test_no_effects_without_a_discrepancy_or_from_four_sizes(fitted, small, posterior):
    assert not too_few_sizes(posterior)
    assert not new_size_effects(posterior, NEW, np.random.default_rng(0)).any()
    plain = replace(fitted, spec=replace(fitted.spec, discrepancy=NoDiscrepancy()))
    assert not too_few_sizes(plain)
    assert not too_few_sizes(replace(fitted, table=small))  # of four sizes


def test_no_effects_of_new_sizes_where_the_user_names_the_effects(fitted, tmp_path, monkeypatch):
    for module in (fitting, refits):
        monkeypatch.setattr(module, "fit_spec", lambda spec, *rest, **settings: spec)
    for call in (fit, partial(refit, seed=0)):
        settings = {"discrepancy": "curvature"}
        specs = {
            each: call("chinchilla", three(0), effects=each, **settings)
            for each in ("auto", "none")
        }
        assert specs["auto"].identity == fitted.spec.identity
        named = replace(fitted, spec=specs["none"])
        assert not too_few_sizes(named)
        assert not new_size_effects(named, NEW, np.random.default_rng(0)).any()
    named.save(tmp_path / "named.nc")
    assert load(tmp_path / "named.nc").spec == named.spec


def test_a_refit_has_the_levels_of_a_fit(small, monkeypatch):
    for module in (fitting, refits):
        monkeypatch.setattr(module, "fit_spec", lambda spec, *rest, **settings: spec)
    settings = {"discrepancy": "curvature", "effects": "auto"}
    assert refit("chinchilla", small, 0, **settings).effects == ("size",)
    assert refit("chinchilla", small, 0, **settings) == fit("chinchilla", small, **settings)


def test_plans_for_new_sizes_are_more_uncertain(fitted):
    curves = [
        curve_of(fitted, params, 20.0, seed=seed) for params in (2e9, 1e9) for seed in (None, [0])
    ]
    spread = [np.std(np.log(curve.loss([0.5], 3.0))) for curve in curves]
    assert spread[1] > 1.5 * spread[0]
    assert spread[3] == spread[2]


@pytest.mark.slow
def test_bands_of_a_fourth_size_are_calibrated():
    # Effects of .3 %, typical of the prior: without them the 90 % band covers about a third.
    four, settings = 2e9, {"chains": 2, "draws": 500, "tune": 700, "target_accept": 0.95}
    model = fit("chinchilla", three(0), draws=20, tune=20, retry=False).spec
    bare = replace(
        model, priors={**model.priors, "tau_size": Prior.parse("LogNormal(median=1e-9, sigma=0.1)")}
    )
    covered = {"with effects": [], "without": []}
    for seed in range(24):
        every = three(seed, scale=0.003, sizes=(four,))
        train, test = every.split("params < 1.5e9", "params > 1.5e9")
        posterior = refit(model, train, seed=seed, **settings)
        for name, spec in (("with effects", model), ("without", bare)):
            forecast = replace(posterior, spec=spec).forecast(test, allow_unconverged=True)
            lower, upper = forecast.quantile([0.05, 0.95])
            covered[name].append(np.mean((test.loss > lower) & (test.loss < upper)))
    assert np.mean(covered["with effects"]) >= 0.78  # 24 tables: two sd below .9
    assert np.mean(covered["without"]) < 0.7
