"""NUTS recovers what the data identify, and Form 3 passes the gate where the paper trains it."""

import numpy as np
import pytest
from scipy import stats

from bayeslaw import fit, load_law, simulate
from tests.support import DESIGN, LAWS, slow, truth_of

SIGMA = 0.003


def recovered(name, seed):
    """Share of 90 % intervals that hold the truth: latent losses and local slopes."""
    law = load_law(name)
    rows = DESIGN.sample(120, random_state=seed)
    truth = truth_of(law.parameters)
    table = simulate(law, truth, rows, sigma=SIGMA, seed=seed)
    posterior = fit(law, table, likelihood="normal", discrepancy="none", seed=seed)
    assert posterior.convergence.ok, posterior.convergence
    low, high = np.quantile(posterior.latent(table), [0.05, 0.95], axis=0)
    latent = law.loss(truth, law.covariates(table.frame))
    held = (low <= latent) & (latent <= high)
    q = law.to_reference(truth, posterior.at) | {"sigma": SIGMA}
    slopes = []
    for coordinate in ("L_ref", "slope_N", "slope_D", "sigma"):
        low, high = np.quantile(posterior.draws[coordinate].values, [0.05, 0.95])
        slopes.append(bool(low <= q[coordinate] <= high))
    return held.mean(), slopes


def check(results):
    # Rows of one fit share its errors, so their coverage scatters; the slopes are counted.
    assert np.mean([rows for rows, _ in results]) > 0.7
    held = np.ravel([slopes for _, slopes in results])
    assert held.sum() >= stats.binom(len(held), 0.9).ppf(0.001)


def test_chinchilla_is_recovered():
    check([recovered("chinchilla", seed) for seed in range(3)])


@pytest.mark.slow
def test_all_laws_are_recovered():
    check([recovered(name, seed) for seed, name in enumerate([*LAWS, "form3n"])])


@pytest.mark.parametrize("seed", [0, slow(1)])
def test_form3_passes_the_gate_on_the_papers_rows(paper_rows, seed):
    posterior = fit("form3", paper_rows, discrepancy="none", seed=seed)
    assert len(paper_rows) == 168
    assert posterior.convergence.rhat <= 1.01
    assert posterior.convergence.ess_bulk >= 400
    assert posterior.convergence.divergences == 0
    assert posterior.convergence.ok
    residuals = np.log(posterior.predict(paper_rows) / paper_rows.loss)
    assert np.sqrt(np.mean(residuals**2)) < 0.003
