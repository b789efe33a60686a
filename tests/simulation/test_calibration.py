"""Simulation-based calibration: it passes, and it finds deliberate errors.

Every law, likelihood and discrepancy is calibrated by ``python -m benchmarks calibration``.
"""

from dataclasses import replace

import numpy as np
import pytest

from bayeslaw import Prior, calibrate
from bayeslaw.inference import residuals
from bayeslaw.inference.fitted import Convergence
from bayeslaw.simulation import calibration
from tests.support import object_mode

pytestmark = [object_mode, pytest.mark.filterwarnings("ignore:.*NUTS.*")]
SHORT = {"discrepancy": "none", "draws": 250, "tune": 250, "chains": 2, "retry": False}
PLAIN = {**SHORT, "effects": "none", "errors": "independent"}
RUNS = {**PLAIN, "errors": "run", "likelihood": "normal"}


@pytest.fixture(scope="module")
def once():
    """Each table is fitted once: errors of ranks and forecasts are sought in the same fits."""
    fits, fit_spec = {}, calibration.fit_spec

    def kept(spec, table, settings):
        key = spec.identity, settings.seed, settings.draws, table.frame["loss"].sum()
        if key not in fits:
            fits[key] = fit_spec(spec, table, settings)
        return fits[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "fit_spec", kept)
        yield


def envelope(law="chinchilla", simulations=40, **settings):
    """Wider than 95 %, for about ten quantities at once: one sound run in 100 fails."""
    found = calibrate(law, simulations=simulations, **settings)
    assert found.failed <= simulations / 10
    return found.envelope(level=0.999)


@pytest.mark.slow
@pytest.mark.usefixtures("once")
def test_truths_are_ranked_uniformly_and_a_wrong_scale_is_found():
    """A quarter is .8 sd: the ECDF moves by .31, and the envelope of 60 ranks is .25 wide."""
    table = envelope(simulations=60, **PLAIN)
    assert table["inside"].all(), table
    wrong = envelope(simulations=60, **PLAIN, fault={"sigma": 1.25})
    assert not wrong.loc["sigma", "inside"]


@pytest.mark.slow
@pytest.mark.usefixtures("once")
def test_a_forecast_of_independent_errors_is_found(monkeypatch):
    """The variance of 40 uniform ranks has a relative sd of .14; here it falls to about .3."""
    table = envelope(**RUNS)
    assert table["inside"].all(), table

    def independent(fit, frame, rng):
        sigma = fit.scale(frame)
        return fit.spec.likelihood.sample(rng, sigma.shape, sigma, fit.values())

    monkeypatch.setattr(residuals, "error_draws", independent)
    assert table.loc["change", "spread"] > 0.5 > envelope(**RUNS).loc["change", "spread"]


@pytest.mark.slow
def test_a_forecast_that_forgets_the_effects_of_bases_is_found(monkeypatch):
    """With a law that has two bases of each size: one has an effect that its size may explain."""
    monkeypatch.setattr(
        residuals,
        "group_effects",
        lambda fit, frame, rng, training=False: np.zeros((fit.count, len(frame))),
    )
    priors = {"tau_base": Prior("LogNormal", median=0.1, sigma=0.3)}
    table = envelope("form1", 20, priors=priors, **PLAIN | {"effects": ("base",)})
    assert not table.loc[["loss 2", "loss 3"], "inside"].any(), table  # of a fitted base


def test_same_seed_same_ranks(monkeypatch):
    monkeypatch.setattr(calibration, "MIXED", np.inf)
    few = PLAIN | {"simulations": 3, "draws": 50, "tune": 50}
    one, two, other = (calibrate("chinchilla", **few, seed=seed).ranks for seed in (0, 0, 1))
    assert one.equals(two)
    assert len(one) > 1
    assert (one.nunique() == len(one)).all()  # each simulation has its own
    assert not np.isin(one, other).any()


def test_posteriors_without_r_hat_are_left_out(monkeypatch):
    stuck = Convergence(np.nan, 0.0, 0.0, 0, np.nan)
    fitted = calibration.fit_spec
    monkeypatch.setattr(
        calibration, "fit_spec", lambda *args, **kw: replace(fitted(*args, **kw), convergence=stuck)
    )
    found = calibrate("chinchilla", simulations=2, **PLAIN | {"draws": 20, "tune": 20})
    assert (found.failed, len(found.ranks)) == (2, 0)
