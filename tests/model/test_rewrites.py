"""Divisions that PyTensor does not merge."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph import FunctionGraph, rewrite_graph
from pytensor.scalar import true_div

from bayeslaw.laws.lawfiles import load_law
from bayeslaw.model import rewrites as held
from bayeslaw.model.discrepancies import Curvature
from tests.support import DESIGN, LAWS, truth_of


@pytest.mark.parametrize("name", LAWS)
def test_holding_changes_neither_losses_nor_gradients(name):
    law = Curvature().apply(load_law(name))
    x, at = law.covariates(DESIGN), law.reference_point(DESIGN)
    p = truth_of(load_law(name).parameters) | dict.fromkeys(law.discrepancy_parameters, 0.02)
    free = {n: pt.dscalar(n) for n in p}

    def found(xp):
        log_loss = xp.log(law.loss(free, x, at, xp))
        slopes = pytensor.grad(log_loss.sum(), list(free.values()))
        return pytensor.function([*free.values()], [log_loss, *slopes], mode="FAST_COMPILE")

    one, two = (found(xp)(*p.values()) for xp in (held, pt))
    for got, want in zip(one, two, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
    gradient = law.gradient(p, x, at)
    for n, slope in zip(p, one[1:], strict=True):
        assert slope == pytest.approx(
            (gradient[n] / law.loss(p, x, at)).sum(), rel=1e-10, abs=1e-10
        )


def test_rewrites_do_not_see_through_what_is_held():
    law = Curvature().apply(load_law("form1"))
    x = {name: pt.vector(name) for name in law.covariates(DESIGN)}
    free, at = {n: pt.dscalar(n) for n in law.parameters}, law.reference_point(DESIGN)

    def divisions(xp):
        slopes = pytensor.grad(xp.log(law.loss(free, x, at, xp)).sum(), list(free.values()))
        graph = FunctionGraph(outputs=[rewrite_graph(pt.stack(slopes))], clone=False)
        rows = [node for node in graph.toposort() if node.outputs[0].ndim == 1]
        return sum(getattr(node.op, "scalar_op", None) == true_div for node in rows)

    assert divisions(held) <= 2 < len(free) / 2 < divisions(pt)
