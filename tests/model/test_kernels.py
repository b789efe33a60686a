"""The Ops of log loss and Student-t noise: NumPy formula, compiled loops, and derivatives agree."""

from itertools import pairwise

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import special, stats

from bayeslaw.model import elementary, kernels
from tests.model import formulas


def inputs(seed, offsets, coupled=0):
    """Inputs of `LogLoss` with three terms, a linear addition and two levels of groups."""
    rng = np.random.default_rng(seed)
    rows, counts = int(rng.integers(1, 40)), rng.integers(0, 4, 4)
    starts = np.array([0, *np.cumsum(counts)])
    columns = rng.normal(size=(starts[-1], rows))
    return (
        np.asarray(rng.uniform(0.5, 2)),
        rng.uniform(0.1, 1, 3),
        rng.normal(0, 0.3, starts[-1]),
        rng.normal(0, 0.3, (4, rows)) if offsets else np.empty((0, 0)),
        rng.normal(0, 0.1, 7),
        np.asarray(rng.uniform(0.3, 3)),
        columns,
        starts,
        np.stack([rng.integers(0, 3, rows), rng.integers(3, 7, rows)]),
        np.asarray(coupled),
    )


@settings(deadline=None)
@given(x=arrays(float, 50, elements=st.floats(-1000, 1000)))
def test_exp(x):
    found = np.array([elementary.exp(each) for each in x])
    np.testing.assert_allclose(found, np.exp(np.clip(x, -708, 709)), rtol=4e-16)


@settings(deadline=None)
@given(x=arrays(float, 50, elements=st.floats(1e-300, 1e300)))
def test_log(x):
    found = np.array([elementary.log(each) for each in x])
    np.testing.assert_allclose(found, np.log(x), rtol=4e-16, atol=1e-300)


@pytest.mark.parametrize("x", [0.0, -0.0, -1.0, np.nan])
def test_there_is_no_log_of_what_is_not_positive(x):
    assert np.isnan(elementary.log(x))


@settings(deadline=None)
@given(st.floats(1e-3, 1e6))
def test_digamma(x):
    assert elementary.digamma(x) == pytest.approx(special.digamma(x), rel=1e-14, abs=1e-14)


@settings(deadline=None)
@given(seed=st.integers(0, 10**6), offsets=st.booleans(), coupled=st.integers(0, 3))
def test_loops_give_the_formula(seed, offsets, coupled):
    given_ = inputs(seed, offsets, coupled)
    plain, compiled = formulas.log_loss(*given_), kernels.log_loss(*given_)
    for one, two in zip(plain, compiled, strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-13, atol=1e-14)
    by = np.random.default_rng(seed).normal(size=given_[6].shape[1])
    _, sizes, _, free, effects, _, *data = given_
    arguments = (by, sizes, free, effects, *data[:-1], *plain[1:])
    pairs = zip(
        formulas.log_loss_gradient(*arguments),
        kernels.log_loss_gradient(*arguments),
        strict=True,
    )
    for one, two in pairs:
        np.testing.assert_allclose(two, one, rtol=1e-12, atol=1e-13)


@settings(deadline=None)
@given(
    residual=arrays(float, 20, elements=st.floats(-1, 1)),
    scale=st.floats(1e-4, 1),
    dof=st.floats(2, 200),
)
def test_student_t_loops_give_the_density(residual, scale, dof):
    arguments = residual, np.asarray(scale), np.asarray(dof)
    one = formulas.student_t_log_density(*arguments)
    two = kernels.student_t(*arguments)
    assert one[0] == pytest.approx(stats.t.logpdf(residual, dof, scale=scale).sum(), rel=1e-10)
    for plain, compiled in zip(one, two, strict=True):
        np.testing.assert_allclose(compiled, plain, rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize("scale", [1e-30, 1e-80, 1e-120])
def test_student_t_density_of_residuals_far_beyond_the_scale(scale):
    residual = np.linspace(-1, 1, 22)
    found = kernels.student_t(residual, np.asarray(scale), np.asarray(3.0))[0]
    want = stats.t(3.0).logpdf(residual / scale).sum() - 22 * np.log(scale)
    assert found == pytest.approx(want, rel=1e-10)


@pytest.mark.parametrize(("offsets", "coupled"), [(False, 0), (True, 0), (False, 2), (True, 3)])
@pytest.mark.parametrize("mode", ["FAST_COMPILE", "NUMBA"])
def test_derivatives_are_those_of_pytensors_own_graph(offsets, coupled, mode):
    values = inputs(3, offsets, coupled)
    kinds = [pt.dscalar, pt.dvector, pt.dvector, pt.dmatrix, pt.dvector, pt.dscalar, pt.dmatrix]
    variables = [kind() for kind in kinds] + [pt.lvector(), pt.lmatrix(), pt.lscalar()]
    floor, sizes, weights, free, effects, kappa, columns, _, groups, _ = variables
    starts = values[7]
    u = [weights[a:b] @ columns[a:b] for a, b in pairwise(starts)]
    u = [each + free[k] for k, each in enumerate(u)] if offsets else u
    terms = [sizes[k] * pt.exp(each) for k, each in enumerate(u[:-1])]
    loss = floor + sum(terms[coupled:])
    loss = loss + sum(terms[:coupled]) ** kappa if coupled else loss
    graph = pt.log(loss) + u[-1] + effects[groups].sum(axis=0)
    op = kernels.LogLoss()(*variables)[0]
    residual, scale, dof = 0.1 - op, floor / 100, sizes[0] + 3
    density = kernels.StudentTLogDensity()(residual, scale, dof)[0]
    own = (
        pt.gammaln((dof + 1) / 2)
        - pt.gammaln(dof / 2)
        - 0.5 * pt.log(dof * np.pi)
        - pt.log(scale)
        - (dof + 1) / 2 * pt.log1p((0.1 - graph) ** 2 / (dof * scale**2))
    ).sum()
    by = variables[:5] if offsets else [*variables[:3], effects]
    by = [*by, kappa] if coupled else by
    both = pytensor.function(
        variables,
        [density, own, *pt.grad(density, by), *pt.grad(own, by)],
        mode=mode,
        on_unused_input="ignore",
    )(*values)
    assert both[0] == pytest.approx(both[1], rel=1e-12)
    for one, two in zip(both[2 : 2 + len(by)], both[2 + len(by) :], strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-11, atol=1e-9 * np.abs(both[0]))


def test_an_input_of_another_type_is_an_error():
    with pytest.raises(TypeError, match="is Matrix"):
        kernels.StudentTLogDensity()(pt.dmatrix(), 1.0, 3.0)
