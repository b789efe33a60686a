"""A posterior of walking exponents, and small ones with parameters that are known."""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

from bayeslaw import Posterior, fit, load_law
from tests.inside import make_spec


@pytest.fixture(scope="session")
def walking(small) -> Posterior:
    """A short fit with walking exponents and coupled terms; it need not converge."""
    return fit("chinchilla", small, seed=0, discrepancy="walk", chains=2, draws=50, tune=100)


@pytest.fixture(scope="session")
def known(posterior):
    """Make a posterior whose draws of paper parameters are given.

    With R_D tokens may repeat, with `unannealed` checkpoints may be, and with `rate_best` there is
    a best rate.
    """

    def make(**parameters) -> Posterior:
        law = load_law("chinchilla")
        law = law.repeating() if "R_D" in parameters else law
        law = law.annealing() if "unannealed" in parameters else law
        law = law.tuned() if "rate_best" in parameters else law
        values = {name: np.atleast_1d(np.asarray(v, float)) for name, v in parameters.items()}
        shape = np.broadcast_shapes(*(v.shape for v in values.values()))
        at = law.reference_point(posterior.table)
        q = law.to_reference(values, at) | {"sigma": np.float64(0.003)}
        draws = {n: (("chain", "draw"), np.broadcast_to(v, shape)[None]) for n, v in q.items()}
        spec = make_spec(law, discrepancy="none")
        return replace(posterior, spec=spec, at=at, draws=xr.Dataset(draws), stats=xr.Dataset())

    return make
