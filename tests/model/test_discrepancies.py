"""Curvature, and the coordinates in which the sampler sees a gate."""

import math
from itertools import chain

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.replace import graph_replace

from bayeslaw.common.errors import LawError
from bayeslaw.inference.fitting import fit
from bayeslaw.inference.storage import load
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.model.building import build, data
from bayeslaw.model.discrepancies import curved
from bayeslaw.model.spec import make_spec
from bayeslaw.simulation.worlds import simulate
from tests.support import DESIGN, LAWS, truth_of


def bent(law, value):
    """True parameters of the plain law, with every curvature at `value`."""
    return truth_of(load_law(law.name).parameters) | dict.fromkeys(law.curvatures, value)


@pytest.mark.parametrize("name", LAWS)
def test_without_curvature_the_law_is_the_law(name):
    plain, bendable = load_law(name), curved(load_law(name))
    x, at = plain.covariates(DESIGN), plain.reference_point(DESIGN)
    p = truth_of(plain.parameters)
    q = plain.to_reference(p, at)
    straight = bendable.to_reference(bent(bendable, 0.0), at)
    assert straight.items() >= q.items()
    np.testing.assert_allclose(
        bendable.loss(bendable.sizes(straight, at), x, at), plain.loss(p, x), rtol=1e-12
    )


def test_curvature_by_hand():
    law = curved(load_law("chinchilla"))
    p = {"E": 1.7, "A": 0.4, "alpha": 0.3, "B": 0.5, "beta": 0.2}  # sizes at the reference
    c = {"curve_A": 0.1, "curve_B": -0.2, "cross_BN": 0.05}
    at = {"params": math.log(1e9), "tokens": math.log(1e10)}
    n, d = math.log(8.0), math.log(0.25)
    x = {"params": at["params"] + n, "tokens": at["tokens"] + d}
    size = 0.4 * math.exp(-0.3 * n + 0.05 * n * n)
    tokens = 0.5 * math.exp(-0.2 * d - 0.1 * d * d + 0.05 * n * d)
    assert law.loss(p | c, x, at) == pytest.approx(1.7 + size + tokens, rel=1e-14)


def test_tilts_by_hand():
    law = curved(load_law("form1"))
    x, at = law.covariates(DESIGN), law.reference_point(DESIGN)
    p = law.sizes(law.to_reference(bent(law, 0.0), at), at)
    tilted = law.parts(p | {"tilt_Br": 0.4, "tilt_Cr": -0.3}, x, at)
    plain, r = law.parts(p, x, at), DESIGN["replay"] - DESIGN["replay"].mean()
    np.testing.assert_allclose(tilted["B"], plain["B"] * np.exp(0.4 * r))
    np.testing.assert_allclose(tilted["C"], plain["C"] * np.exp(-0.3 * r))
    np.testing.assert_array_equal(tilted["A"], plain["A"])
    assert [name for name, *_ in law.tilts] == ["tilt_Br", "tilt_Cr"]
    assert "curve_C" not in law.curvatures  # log r is far away where there is no replay


def test_drift_by_hand():
    law = curved(load_law("form1"))
    x, at = law.covariates(DESIGN), law.reference_point(DESIGN)
    straight = law.to_reference(bent(law, 0.0), at)
    drift = {"drift_PP": 0.02, "drift_NP": -0.01, "drift_NN": 0.03, "drift_NPP": 0.004}
    n, p = x["params"] - at["params"], x["ptpp"] - at["ptpp"]
    factor = np.exp(0.01 * p**2 - 0.01 * n * p + 0.015 * n**2 + 0.002 * n * p**2)
    found = law.loss(law.sizes(straight | drift, at), x, at)
    np.testing.assert_allclose(found, factor * law.loss(law.sizes(straight, at), x, at))
    assert list(law.drift)[:3] == ["drift_NN", "drift_NP", "drift_PP"]
    assert law.plain.parameters == load_law("form1").parameters
    assert not curved(load_law("chinchilla")).drift  # nor has a law without stages


def test_a_drifting_law_has_the_derivatives_of_its_loss():
    law = curved(load_law("form3"))
    x, at = law.covariates(DESIGN), law.reference_point(DESIGN)
    p = law.sizes(law.to_reference(bent(law, 0.03), at), at)
    step = 1e-6
    for name, exact in law.gradient(p, x, at).items():
        up, down = (law.loss(p | {name: p[name] + h}, x, at) for h in (step, -step))
        np.testing.assert_allclose(exact, (up - down) / (2 * step), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("name", ["form1", "form3"])
def test_curved_laws_are_the_same_in_pytensor(name):
    law = curved(load_law(name))
    x, at = law.covariates(DESIGN), law.reference_point(DESIGN)
    q = law.to_reference(bent(law, 0.07), at)
    symbolic = law.loss(law.sizes(q, at, pt), x, at, pt).eval()
    np.testing.assert_allclose(symbolic, law.loss(law.sizes(q, at), x, at), rtol=1e-12)


@pytest.mark.parametrize(
    ("law", "bend", "zeta"),
    [
        ("form1", 0.07, 0.0),
        *(("form2", None, zeta) for zeta in (-1.1, -0.05, 0.0, 0.4)),
        *(("form3", 0.07, zeta) for zeta in (-1.1, -0.05, 0.0, 0.4)),
    ],
)
def test_the_samplers_coordinates_change_no_density(law, bend, zeta):
    plain = load_law(law)
    table = simulate(law, truth_of(plain.parameters), DESIGN, sigma=0.003)
    spec = make_spec(law, discrepancy="none" if bend is None else "curvature")
    values = data(spec, table)
    at = dict(zip(spec.law.covariate_names, values["at"], strict=True))
    p = bent(spec.law, bend) if bend else truth_of(plain.parameters)
    q = spec.law.to_reference(p | {"zeta": zeta} if "zeta" in p else p, at)
    q |= {"sigma": 0.004, "dof_above_floor": 10.0}
    densities = []
    for seen in (False, True):
        model = build(spec, values, for_sampling=seen)
        known = {rv: pt.as_tensor(np.float64(q[rv.name])) for rv in model.free_RVs}
        points, backs, slopes = {}, [], []
        for rv in model.free_RVs:
            value, transform = model.rvs_to_values[rv], model.rvs_to_transforms[rv]
            points[value.name] = free = known[rv]
            if transform is not None:
                inputs = graph_replace(rv.owner.inputs, known, strict=False)
                points[value.name] = free = transform.forward(free, *inputs)
                back = transform.backward(free, *inputs)
                slope = pt.log(abs(pt.grad(back, free)))
                backs.append((known[rv], back))
                slopes.append((slope, transform.log_jac_det(free, *inputs)))
        names, free = zip(*points.items(), strict=True)
        quick = {"mode": "FAST_COMPILE"}
        outputs = [*free, *chain(*backs), *chain(*slopes)]
        point, back, slope = np.split(
            np.array(pytensor.function([], outputs, **quick)()),
            [len(free), len(free) + 2 * len(backs)],
        )
        np.testing.assert_allclose(back[1::2], back[::2], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(slope[1::2], slope[::2], rtol=1e-9, atol=1e-9)
        density = model.compile_logp(jacobian=False, **quick)
        densities.append(float(density(dict(zip(names, point, strict=True)))))
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
