"""Sampling: the same seed gives the same draws, and more are made where the check fails."""

import os
import subprocess
import sys

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from bayeslaw import fit, from_frame, read_table
from bayeslaw.inference import sampling
from bayeslaw.inference.convergence import Convergence
from tests.support import CHINCHILLA, DATA


def test_same_seed_same_draws_whatever_was_fitted_before(posterior, small):
    other = from_frame(small.frame.iloc[:12].assign(loss=small.loss[:12] * 1.1))
    settings = {"discrepancy": "none", "draws": 1000}
    elsewhere = fit("chinchilla", other, seed=0, **settings)
    again = fit("chinchilla", small, seed=0, **settings)
    for name in posterior.draws.data_vars:
        np.testing.assert_array_equal(again.draws[name], posterior.draws[name])
    assert not np.array_equal(elsewhere.draws["alpha"], posterior.draws["alpha"])
    different = fit("chinchilla", small, seed=1, **settings)
    assert not np.array_equal(different.draws["alpha"], posterior.draws["alpha"])
    np.testing.assert_allclose(different.predict(small), posterior.predict(small), rtol=1e-3)
    losses = elsewhere.predict(other, allow_unconverged=True)
    np.testing.assert_allclose(losses, other.loss, rtol=0.02)


SIZES = [1e8, 3e8, 1e9]
TOKENS = [1e9, 3e9, 1e10, 3e10, 1e11]


COLD = """
import sys, warnings
import bayeslaw as bl
warnings.simplefilter("ignore")
frame = bl.simulate("chinchilla", %r, bl.grid(params=%r, tokens=%r), sigma=0.003, seed=0)
posterior = bl.fit("chinchilla", frame, draws=50, tune=100, chains=2, seed=0, retry=False)
print(posterior.draws["L_ref"].values.tobytes().hex())
"""


@pytest.mark.slow
def test_the_same_seed_gives_the_same_draws_from_cold_and_warm_caches(tmp_path):
    code = COLD % (CHINCHILLA, SIZES, TOKENS)
    flags = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    drawn = [
        subprocess.run(
            [sys.executable, "-c", code], env=flags, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert drawn[0] == drawn[1] != ""


def test_more_draws_are_made_where_r_hat_is_missing(small, monkeypatch):
    """A chain that does not move has no R-hat: NaN, which is not larger than any limit."""
    stuck = Convergence(np.nan, 0.0, 0.0, 0, np.nan)
    monkeypatch.setattr(sampling, "FIRST", 20)
    monkeypatch.setattr(sampling, "LAST", 30)
    monkeypatch.setattr(sampling, "diagnose", lambda *args: stuck)
    found = fit("chinchilla", small, discrepancy="none", tune=50, retry=False)
    assert found.draws.sizes["draw"] == found.settings["draws"] == 30
    assert not found.convergence.ok


@pytest.mark.slow
def test_threads_of_linear_algebra_change_no_draw():
    where = "annealed and replay < 1 and seed == 0 and atpp in [1, 4, 16] and ptpp < 279"
    table = read_table(DATA / "tinycpt" / "french.csv", where=where)
    found = []
    for threads in (1, 2):
        with threadpool_limits(threads, user_api="blas"):
            fitted = fit("form1n", table, seed=0, draws=20, tune=50, retry=False)
        found.append(fitted.draws["alpha"].values)
    np.testing.assert_array_equal(*found)
