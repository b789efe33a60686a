"""Coordinates of the sampler: transforms, Jacobians, the same density."""

from dataclasses import replace
from itertools import chain

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.replace import graph_replace

from bayeslaw.laws.lawfiles import load_law
from bayeslaw.model.building import build
from bayeslaw.model.data import make_data
from bayeslaw.model.spec import make_spec
from bayeslaw.simulation.worlds import simulate
from tests.support import DESIGN, truth_of


def curved(law, value):
    """True parameters of the plain law, with every curvature at `value`."""
    return truth_of(load_law(law.name).parameters) | dict.fromkeys(
        law.discrepancy_parameters, value
    )


@pytest.mark.parametrize(
    ("law", "curvature", "zeta"),
    [
        ("form1", 0.07, 0.0),
        *(("form2", None, zeta) for zeta in (-1.1, -0.05, 0.0, 0.4)),
        *(("form3", 0.07, zeta) for zeta in (-1.1, -0.05, 0.0, 0.4)),
    ],
)
def test_the_samplers_coordinates_change_no_density(law, curvature, zeta):
    plain = load_law(law)
    table = simulate(law, truth_of(plain.parameters), DESIGN, sigma=0.003)
    errors = "run" if law == "form1" else "independent"
    run = table.frame.groupby(["params", "ptpp", "replay"]).ngroup().astype(str)
    table = replace(table, frame=table.frame.assign(run=run))
    spec = make_spec(law, discrepancy="none" if curvature is None else "curvature", errors=errors)
    values = make_data(spec, table).arrays
    at = dict(zip(spec.law.covariate_names, values["at"], strict=True))
    p = curved(spec.law, curvature) if curvature else truth_of(plain.parameters)
    q = spec.law.to_reference(p | {"zeta": zeta} if "zeta" in p else p, at)
    q |= {"sigma": 0.004, "dof_above_floor": 10.0, "ell": 1.3}
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
