"""Bracketed roots against the closed form."""

import numpy as np

from bayeslaw.planning.intervals import intervals
from bayeslaw.planning.roots import budgets_by_roots
from tests.planning.random_curves import every_law, feasible, random_curve, random_limit


@every_law
def test_roots_agree_with_the_closed_form(law):
    rng, compared = np.random.default_rng(5), 0
    for _ in range(5):
        curve = random_curve(rng, law, 60)
        limit = random_limit(rng, curve, 0.3)
        exact, here = feasible(curve, [0.3], limit), curve.at_replay([0.3])
        margin = limit - here.constant_terms()
        found = intervals(*budgets_by_roots(here, None, 0.0, margin))
        inside = np.abs(np.where(np.isfinite(exact.lower), exact.lower, 0)) < 16
        stop = np.where(np.isfinite(exact.upper_or_inf), exact.upper_or_inf, 0)
        inside &= (stop > -16) & (stop < 20)
        draws = inside.all((0, 1))
        np.testing.assert_allclose(
            found.lower[0, 0][draws], exact.lower[0, 0][draws], rtol=1e-9, atol=1e-9
        )
        np.testing.assert_allclose(
            found.upper_or_inf[0, 0][draws], exact.upper_or_inf[0, 0][draws], rtol=1e-9, atol=1e-9
        )
        compared += np.isfinite(exact.lower[0, 0][draws]).sum()
    assert compared > 20
