"""A posterior of walking exponents, and small ones with parameters that are known."""

import numpy as np
import pytest
import xarray as xr

from bayeslaw import Posterior, fit, load_law
from bayeslaw.model.spec import make_spec


@pytest.fixture(scope="session")
def walking(small) -> Posterior:
    """A short fit with walking exponents and coupled terms; it need not converge."""
    return fit("chinchilla", small, seed=0, discrepancy="walk", chains=2, draws=50, tune=100)


@pytest.fixture(scope="session")
def known(posterior):
    """Make a posterior whose draws of paper parameters are given; with R_D tokens may repeat."""

    def make(**parameters) -> Posterior:
        law = load_law("chinchilla")
        law = law.repeating() if "R_D" in parameters else law
        values = {name: np.atleast_1d(np.asarray(v, float)) for name, v in parameters.items()}
        shape = np.broadcast_shapes(*(v.shape for v in values.values()))
        q = law.to_reference(values, posterior.at)
        draws = xr.Dataset(
            {
                name: (("chain", "draw"), np.broadcast_to(value, shape)[None])
                for name, value in q.items()
            }
        ).assign(sigma=(("chain", "draw"), np.full((1, *shape), 0.003)))
        return Posterior(
            make_spec(law, discrepancy="none"),
            posterior.table,
            posterior.at,
            draws,
            xr.Dataset(),
            posterior.convergence,
        )

    return make
