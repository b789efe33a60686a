"""Laws as weighted sums of columns: the same log loss as the law's own formula."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayeslaw.common.errors import LawError
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.laws.modifiers import Polynomial
from bayeslaw.laws.powers import Power
from bayeslaw.model.columns import columns_of
from bayeslaw.model.spec import make_spec
from tests.model.formulas import log_loss
from tests.support import DESIGN, LAWS

CASES = [(law, d) for law in LAWS for d in ("none", "curvature")] + [
    ("chinchilla", "walk"),
    ("form1", "adaptation"),
    ("form3", "adaptation"),
    ("skaling", "none"),
    ("skaling", "walk"),
]


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 10**6))
@pytest.mark.parametrize(("name", "discrepancy"), CASES)
def test_columns_give_the_law(name, discrepancy, seed):
    law = make_spec(name, discrepancy=discrepancy).law
    rng = np.random.default_rng(seed)
    rows = DESIGN.sample(12, random_state=seed)
    x, at = law.covariates(rows), law.reference_point(rows)
    law = law.over(x, at)
    p = {n: rng.uniform(0.05, 0.9) for n in law.parameters}
    p |= {n: rng.normal(0, 0.02) for n in law.discrepancy_parameters}
    p |= {walk.steps: rng.standard_normal(len(walk.knots.positions)) for walk in law.walks}
    kappa = p["kappa"] = rng.uniform(0.3, 3)
    found = columns_of(law, x, at)
    assert all(len(found[f"{walk.steps}_knots"]) == len(walk.knots.positions) for walk in law.walks)
    weights, sizes = [], []
    for term in law.terms:
        known = {
            n.split(":")[1]: v for n, v in found.items() if n.startswith(f"{term.coefficient}:")
        }
        power = 1 / kappa if term.coefficient in law.coupled else 1.0
        weights += [power * w for each in term.summands for w in each.weights(p, known, at, np)]
        sizes.append(p[term.coefficient] ** power)
    for each in law.modifier.summands if law.modifier else ():
        weights += each.weights(p, {}, at, np)
    mu = log_loss(
        np.asarray(p["E"]),
        np.array(sizes),
        np.concatenate([np.atleast_1d(w) for w in weights]),
        np.empty((0, 0)),
        np.empty(0),
        np.asarray(kappa),
        found["columns"],
        found["starts"],
        np.empty((0, len(rows)), int),
        np.asarray(len(law.coupled)),
    )[0]
    np.testing.assert_allclose(mu, np.log(law.loss(p, x, at)), rtol=1e-12, atol=1e-12)


def test_a_subclass_has_the_columns_of_its_own_shape():
    @dataclass(frozen=True)
    class Halved(Power):
        def shape(self, p, x, at, xp):
            return 0.5 * super().shape(p, x, at, xp)

    law = load_law("chinchilla")
    law = replace(law, terms=(Halved("A", "slope_N", {"params": "alpha"}), *law.terms[1:]))
    x, at = law.covariates(DESIGN), law.reference_point(DESIGN)
    expected = -0.5 * (x["params"] - at["params"])
    np.testing.assert_allclose(columns_of(law, x, at)["columns"][0], expected)


def test_a_shape_that_is_not_linear_has_no_columns():
    @dataclass(frozen=True)
    class Squared(Power):
        def shape(self, p, x, at, xp):
            return -(p["alpha"] ** 2) * (x["params"] - at["params"])

    @dataclass(frozen=True)
    class Shifted(Power):
        def shape(self, p, x, at, xp):
            return super().shape(p, x, at, xp) + 0.1 * (x["params"] - at["params"])

    @dataclass(frozen=True)
    class Capped(Power):
        def shape(self, p, x, at, xp):
            return -xp.minimum(p["alpha"].real, 2.0) * (x["params"] - at["params"])

    assert not Capped("A", "slope_N", {"params": "alpha"}).linear
    law = load_law("chinchilla")
    x, at = law.covariates(DESIGN), law.reference_point(DESIGN)
    for kind in (Squared, Shifted):
        term = kind("A", "slope_N", {"params": "alpha"})
        assert not term.linear
        other = replace(law, terms=(term, *law.terms[1:]))
        assert columns_of(other, x, at)["starts"].tolist() == [0, 0, 1, 1]
        p = {"alpha": 0.3}
        slope = term.slopes(p, x, at)["alpha"]
        step = [term.shape({"alpha": 0.3 + s}, x, at, np) for s in (1e-6, -1e-6)]
        np.testing.assert_allclose(slope, (step[0] - step[1]) / 2e-6, rtol=1e-6)


def test_columns_that_are_not_the_formulas_are_an_error():
    @dataclass(frozen=True)
    class Wrong(Polynomial):
        @property
        def linear(self):
            return True

        def columns(self, x, at):
            return 2 * super().columns(x, at)

    law = replace(load_law("chinchilla"), modifier=Wrong({"drift_N": ("params", "params")}))
    with pytest.raises(LawError, match="columns of Wrong with drift_N do not add up"):
        columns_of(law, law.covariates(DESIGN), law.reference_point(DESIGN))
