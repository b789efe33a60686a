"""Simulation-based calibration: it passes, and it finds deliberate errors."""

from dataclasses import replace

import numpy as np
import pytest

from bayeslaw import Prior, calibrate
from bayeslaw.inference import residuals
from bayeslaw.inference.fitted import Convergence
from bayeslaw.simulation import calibration
from tests.support import object_mode, slow

pytestmark = [object_mode, pytest.mark.filterwarnings("ignore:.*NUTS.*")]
PLAIN = {"discrepancy": "none", "effects": "none", "errors": "independent"}
SHORT = PLAIN | {"draws": 500, "chains": 2}


@pytest.mark.parametrize(
    ("law", "simulations", "settings"),
    [
        ("chinchilla", 60, SHORT),
        slow("chinchilla", 30, {"discrepancy": "curvature", "draws": 500, "chains": 2}),
        slow("chinchilla", 10, SHORT | {"likelihood": "skewed"}),
        slow("chinchilla", 60, SHORT | {"likelihood": "normal", "effects": ("base",)}),
    ],
)
def test_truths_are_ranked_uniformly(law, simulations, settings):
    found = calibrate(law, simulations=simulations, **settings)
    assert found.failed <= simulations / 10
    # Wider than 95 %, for about ten quantities at once.
    table = found.envelope(level=0.999)
    assert table["inside"].all(), table


def test_a_deliberate_error_is_found():
    found = calibrate("chinchilla", simulations=60, **SHORT, fault={"sigma": 1.25})
    assert not found.envelope(level=0.999).loc["sigma", "inside"]


@pytest.mark.slow
def test_a_forecast_that_forgets_the_effects_of_bases_is_found(monkeypatch):
    monkeypatch.setattr(
        residuals,
        "group_effects",
        lambda fit, frame, rng, training=False: np.zeros((fit.count, len(frame))),
    )
    settings = PLAIN | {"draws": 400, "chains": 2, "effects": ("base",)}
    priors = {"tau_base": Prior("LogNormal", median=0.1, sigma=0.3)}
    table = calibrate("form1", simulations=20, priors=priors, **settings).envelope(level=0.999)
    assert not table.loc[["loss 2", "loss 3"], "inside"].any(), table  # of a fitted base


def test_same_seed_same_ranks():
    few = PLAIN | {"simulations": 3, "draws": 250, "tune": 200, "chains": 2}
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
    found = calibrate("chinchilla", simulations=2, draws=20, tune=20, **PLAIN)
    assert (found.failed, len(found.ranks)) == (2, 0)
