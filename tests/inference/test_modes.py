"""The posterior mode under the Huber likelihood and flat priors is the Huber fit."""

import warnings

import pytest

from bayeslaw import FitWarning, fit, fit_huber, load_law, simulate
from tests.support import DESIGN, made, miss, slow, truth_of


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
    table = simulate("form2", {**truth_of(load_law("form2").parameters), "lambda_": 1.6}, DESIGN)
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
