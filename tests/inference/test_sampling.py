"""Sampling: the same seed gives the same draws, and a model is compiled once."""

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from bayeslaw.inference import metric, programs, sampling
from bayeslaw.inference.convergence import Convergence
from bayeslaw.inference.fitting import fit
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.simulation.worlds import simulate
from bayeslaw.tables.reading import from_frame, read_table
from tests.support import CHINCHILLA, DATA, DESIGN, truth_of


def test_same_seed_same_draws_whatever_was_fitted_before(posterior, small):
    other = from_frame(small.frame.iloc[:12].assign(loss=small.loss[:12] * 1.1))
    settings = {"discrepancy": "none", "draws": 1000}
    before = len(programs._programs)
    assert before > 0  # the model of `posterior`
    elsewhere = fit("chinchilla", other, seed=0, **settings)
    again = fit("chinchilla", small, seed=0, **settings)
    assert len(programs._programs) == before  # new data, not a new model
    for name in posterior.draws.data_vars:
        np.testing.assert_array_equal(again.draws[name], posterior.draws[name])
    assert not np.array_equal(elsewhere.draws["alpha"], posterior.draws["alpha"])
    different = fit("chinchilla", small, seed=1, **settings)
    assert not np.array_equal(different.draws["alpha"], posterior.draws["alpha"])
    np.testing.assert_allclose(different.predict(small), posterior.predict(small), rtol=1e-3)
    losses = elsewhere.predict(other, allow_unconverged=True)
    np.testing.assert_allclose(losses, other.loss, rtol=0.02)


@pytest.mark.slow
def test_refits_need_no_new_model():
    law = load_law("dcpt")
    rows = DESIGN[DESIGN["ptpp"] == 279]
    tables = [
        simulate(
            law,
            truth_of(law.parameters),
            rows.sample(60 - 12 * i, random_state=i),
            sigma=0.003,
            seed=i,
        )
        for i in range(3)
    ]
    sizes = []
    for table in tables:
        fitted = fit(law, table, discrepancy="none", draws=100, tune=200)
        assert np.isfinite(fitted.latent(table)).all()
        sizes.append(len(programs._programs))
    assert sizes[0] > 0
    assert len(set(sizes)) == 1


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
    caches = {"PYTENSOR_FLAGS": f"base_compiledir={tmp_path}", "BAYESLAW_CACHE": str(tmp_path)}
    flags = os.environ | caches
    drawn = [
        subprocess.run(
            [sys.executable, "-c", code], env=flags, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert drawn[0] == drawn[1] != ""


def test_chains_without_r_hat_start_again(small, monkeypatch):
    """A chain that does not move has no R-hat: NaN, which is not larger than any limit."""
    stuck = Convergence(np.nan, 0.0, 0.0, 0, np.nan)
    runs, main = [], sampling._Run.until_gate
    monkeypatch.setattr(sampling, "BLOCKS", (50, 100))
    monkeypatch.setattr(sampling, "TRIAL", 50)
    monkeypatch.setattr(sampling, "diagnose", lambda draws, stats: stuck)
    monkeypatch.setattr(
        sampling._Run, "until_gate", lambda *args, **kw: runs.append(kw) or main(*args, **kw)
    )
    found = fit("chinchilla", small, discrepancy="none", tune=50, retry=False)
    assert [run.get("poor") for run in runs] == [sampling.POOR, None]
    assert found.draws.sizes["draw"] == 100


@pytest.mark.parametrize("sd", [1e-3, 1.0, 1e4])
def test_the_scale_of_many_coordinates_is_their_own(sd):
    density = SimpleNamespace(size=metric.LARGEST + 1)
    points = np.random.default_rng(0).normal(3.0, sd, (200, density.size))
    points[:, 0] = 3.0
    shift, factor = metric.learn(density, points)
    np.testing.assert_allclose(shift, points.mean(0))
    want = np.minimum(points[:, 1:].std(0), metric.FLOOR**-0.5)
    np.testing.assert_allclose(factor[1:, 0], want)
    assert factor[0, 0] == 1.0


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
