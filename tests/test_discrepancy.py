"""Curvature, and the coordinates in which the sampler sees a gate."""

import math

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from conftest import DESIGN, LAWS, object_mode, truth_of

from bayeslaw.errors import LawError
from bayeslaw.fitting import fit
from bayeslaw.laws import load_law
from bayeslaw.model import build, data, make_spec
from bayeslaw.simulation import simulate
from bayeslaw.storage import load


def bent(law, value):
    """True parameters of the plain law, with every curvature at `value`."""
    curves = {name: value for term in law.terms for name in term.curves}
    return truth_of(load_law(law.name).parameters) | curves


@pytest.mark.parametrize("name", LAWS)
def test_without_curvature_the_law_is_the_law(name):
    plain, curved = load_law(name), load_law(name).curved()
    x, at = plain.covariates(DESIGN), plain.reference_point(DESIGN)
    p = truth_of(plain.parameters)
    q = plain.to_reference(p, at)
    straight = curved.to_reference(bent(curved, 0.0), at)
    assert straight.items() >= q.items()
    np.testing.assert_allclose(
        curved.loss(curved.sizes(straight, at), x, at), plain.loss(p, x), rtol=1e-12
    )


def test_curvature_by_hand():
    law = load_law("chinchilla").curved()
    p = {"E": 1.7, "A": 0.4, "alpha": 0.3, "B": 0.5, "beta": 0.2}  # sizes at the reference
    c = {"curve_A": 0.1, "curve_B": -0.2, "cross_BN": 0.05}
    at = {"params": math.log(1e9), "tokens": math.log(1e10)}
    n, d = math.log(8.0), math.log(0.25)
    x = {"params": at["params"] + n, "tokens": at["tokens"] + d}
    size = 0.4 * math.exp(-0.3 * n + 0.05 * n * n)
    tokens = 0.5 * math.exp(-0.2 * d - 0.1 * d * d + 0.05 * n * d)
    assert law.loss(p | c, x, at) == pytest.approx(1.7 + size + tokens, rel=1e-14)


@pytest.mark.parametrize("name", ["form1", "form3"])
def test_curved_laws_are_the_same_in_pytensor(name):
    law = load_law(name).curved()
    x, at = law.covariates(DESIGN), law.reference_point(DESIGN)
    q = law.to_reference(bent(law, 0.07), at)
    symbolic = law.loss(law.sizes(q, at, pt), x, at, pt).eval()
    np.testing.assert_allclose(symbolic, law.loss(law.sizes(q, at), x, at), rtol=1e-12)


@pytest.mark.parametrize("zeta", [-1.1, -0.05, 0.0, 0.4])
def test_the_gates_coordinates_change_no_density(zeta):
    table = simulate("form2", truth_of(load_law("form2").parameters), DESIGN, sigma=0.003)
    spec = make_spec("form2")
    values = data(spec, table)
    at = {name[3:]: float(v) for name, v in values.items() if name.startswith("at_")}
    q = spec.law.to_reference(truth_of(spec.law.parameters) | {"zeta": zeta}, at)
    q |= {"sigma": 0.004, "dof_above_floor": 10.0}
    densities = []
    for straight in (False, True):
        model = build(spec, values, straight=straight)
        point = {}
        for rv in model.free_RVs:
            value, transform = model.rvs_to_values[rv], model.rvs_to_transforms[rv]
            free = pt.as_tensor(np.float64(q[rv.name]))
            if transform is not None:
                known = pt.as_tensor(np.float64(zeta))
                inputs = [known if i is model["zeta"] else i for i in rv.owner.inputs]
                free = transform.forward(free, *inputs)
                back = transform.backward(free, *inputs)
                assert back.eval() == pytest.approx(q[rv.name], rel=1e-9, abs=1e-12)
            point[value.name] = free.eval()
        densities.append(float(model.compile_logp(jacobian=False)(point)))
    assert densities[1] == pytest.approx(densities[0], rel=1e-10)


def test_curved_posteriors_load_as_they_were_saved(small, tmp_path):
    posterior = fit("chinchilla", small, draws=300, tune=500, chains=2)
    assert {"curve_A", "curve_B", "cross_BN"} <= set(posterior.draws.data_vars)
    posterior.save(tmp_path / "curved.nc")
    again = load(tmp_path / "curved.nc")
    assert again.spec.discrepancy == "curvature"
    np.testing.assert_array_equal(again.latent(small), posterior.latent(small))


def test_a_misspelt_discrepancy():
    with pytest.raises(LawError, match="curvature"):
        make_spec("form1", discrepancy="curved")


@object_mode
def test_prior_of_the_gate_is_the_stated_one():
    table = simulate("form2", truth_of(load_law("form2").parameters), DESIGN, sigma=0.003)
    spec = make_spec("form2")
    model = build(spec, data(spec, table), straight=True)
    prior = pm.sample_prior_predictive(2000, model=model, random_seed=1)["prior"]
    depth, rate = prior["lambda_"].values.ravel(), prior["zeta"].values.ravel()
    assert depth.mean() == pytest.approx(1.5 / 4.5, abs=0.02)
    assert rate.std() == pytest.approx(0.5, abs=0.03)
    assert abs(np.corrcoef(depth, rate)[0, 1]) < 0.07
