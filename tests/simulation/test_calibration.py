"""Simulation-based calibration: it passes, and it finds deliberate errors."""

import pytest

from bayeslaw.simulation.calibration import calibrate
from tests.support import object_mode, slow

pytestmark = [object_mode, pytest.mark.filterwarnings("ignore:.*NUTS.*")]
SETTINGS = {"simulations": 60, "draws": 500, "tune": 600}
SHORT = {"simulations": 30}


@pytest.mark.parametrize(
    ("law", "more"),
    [
        ("chinchilla", {}),
        slow("chinchilla", SHORT | {"discrepancy": "curvature"}),
        slow("chinchilla", SHORT | {"likelihood": "normal", "effects": ("base", "run")}),
        slow("chinchilla", SHORT | {"noise": "loglinear"}),
        slow("form3", {"simulations": 30, "draws": 700, "tune": 700}),
    ],
)
def test_truths_are_ranked_uniformly(law, more):
    settings = SETTINGS | more
    found = calibrate(law, **settings)
    assert found.failed <= settings["simulations"] / 10
    # Wider than 95 %, for about ten quantities at once.
    table = found.envelope(level=0.999)
    assert table["inside"].all(), table


def test_a_deliberate_error_is_found():
    found = calibrate("chinchilla", **SETTINGS, fault={"sigma": 1.25})
    assert not found.envelope(level=0.999).loc["sigma", "inside"]


def test_same_seed_same_ranks():
    few = {"simulations": 3, "draws": 50, "tune": 100}
    one, two = (calibrate("chinchilla", **few).ranks for _ in range(2))
    assert one.equals(two)
