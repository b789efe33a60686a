"""Correlations of random effects between domains: an LKJ prior for any number of domains."""

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from scipy import stats

from bayeslaw.inference._fit_joint import _factors
from bayeslaw.model.building import AGREE, build
from bayeslaw.model.spec import make_data, make_spec
from tests.support import grouped


@pytest.mark.parametrize("count", [2, 3])
def test_correlations_are_lkj(count):
    """Under LKJ(eta) of K domains each (rho + 1) / 2 is Beta(b, b), b = eta + (K - 2) / 2."""
    table, domains = grouped(0), [f"domain {k}" for k in range(count)]
    spec = make_spec("chinchilla", discrepancy="none", effects=["run"])
    data = make_data(spec, table)
    model = build({f"{domain}::": data for domain in domains})
    drawn = pm.draw(model["run_partial"], draws=4000, random_seed=1, mode="FAST_COMPILE")
    draws = xr.Dataset({"run_partial": (("chain", "draw", "pair"), drawn[None])})
    factor = _factors(draws, "run", count)[0]
    correlation = factor @ factor.swapaxes(-1, -2)
    np.testing.assert_allclose(np.einsum("dkk->dk", correlation), 1)
    b = AGREE + (count - 2) / 2
    for i in range(count):
        for j in range(i):
            rho = correlation[:, i, j]
            assert stats.kstest((rho + 1) / 2, stats.beta(b, b).cdf).pvalue > 1e-3
