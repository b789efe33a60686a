"""The posterior mode under the Huber likelihood and flat priors is the Huber fit."""

import warnings

import pytest

from bayeslaw.common.errors import FitWarning
from bayeslaw.huber.point_fit import fit_huber
from bayeslaw.inference.fitting import fit
from tests.support import made, miss, slow


@pytest.mark.parametrize("name", ["chinchilla", "dcpt", slow("form1"), slow("form2"), "form3"])
def test_map_reproduces_the_huber_fit(name):
    table = made(name, sigma=0.003, seed=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        point = fit_huber(name, table)
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
