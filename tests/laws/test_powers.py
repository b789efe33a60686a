"""The law of Liew and Kato: its formula, coordinates and recovery."""

import numpy as np
import pytest

import bayeslaw as bl
from bayeslaw import grid, load_law, simulate

TRUTH = {"E": 1.6, "A": 60.0, "alpha1": 0.02, "alpha2": 0.42, "alpha3": 0.011}
DESIGN = grid(params=[1e8, 4e8, 1.6e9], ptpp=[10, 40, 160], tokens=np.geomspace(1e8, 3e10, 6))
LAW = load_law("liew_kato")


def test_the_formula_and_both_coordinates():
    x, p = LAW.covariates(DESIGN), TRUTH
    before = np.log(DESIGN["params"] * DESIGN["ptpp"]).to_numpy()
    log = -p["alpha1"] * before + (-p["alpha2"] + p["alpha3"] * before) * np.log(DESIGN["tokens"])
    expected = p["E"] + p["A"] * np.exp(log)
    np.testing.assert_allclose(LAW.loss(p, x), expected, rtol=1e-12)
    at = LAW.reference_point(DESIGN)
    q = LAW.to_reference(p, at)
    assert q["alpha2_ref"] == pytest.approx(0.42 - 0.011 * (at["params"] + at["ptpp"]))
    for name, value in LAW.to_paper(q, at).items():
        assert value == pytest.approx(p[name], rel=1e-10)
    np.testing.assert_allclose(LAW.loss(LAW.amounts(q, at), x, at), expected, rtol=1e-10)
    by = LAW.gradient(p, x)
    for name in LAW.parameters:
        up, down = (LAW.loss(p | {name: p[name] * (1 + s)}, x) for s in (1e-6, -1e-6))
        np.testing.assert_allclose(by[name] + 0 * up, (up - down) / (2e-6 * p[name]), 1e-5)


def test_huber_and_posterior_recover_it():
    exact = bl.fit_huber("liew_kato", simulate("liew_kato", TRUTH, DESIGN))
    for name, value in TRUTH.items():
        assert exact.parameters[name] == pytest.approx(value, rel=2e-3)
    fit = bl.fit(
        "liew_kato",
        simulate("liew_kato", TRUTH, DESIGN, sigma=0.003, seed=1),
        discrepancy="none",
        chains=2,
    )
    for name, value in TRUTH.items():
        low, high = fit.paper[name].quantile([0.01, 0.99])
        assert low < value < high
    assert fit.convergence.ok
