"""Loss in D of every draw at one model and stage."""

from dataclasses import replace

import numpy as np

from bayeslaw.laws.terms import ORIGIN
from bayeslaw.planning.deviations import PlannedRun
from bayeslaw.planning.fits import curve_of
from bayeslaw.planning.loss_curves import LossCurve
from bayeslaw.simulation.worlds import true_fits
from tests.planning.posteriors import (
    WORLD,
)
from tests.planning.random_curves import brute, every_law, random_curve


@every_law
def test_least_loss_over_all_budgets(law):
    """The asymptote baseline is the least of the brute-force losses in pure replay."""
    curve = random_curve(np.random.default_rng(8), law, 100)
    budgets = np.linspace(np.log(1e-7), np.log(1e9), 2001)
    loss = brute(curve, 1.0, budgets)
    at = budgets[loss.argmin(0)]
    inside = (at > budgets[0] + 1) & (at < budgets[-1] - 1)  # not in the last cells of the bracket
    assert inside.any() == ("curve_B" in law.exponents)  # plain laws decrease monotonically
    least = curve.minimum(1.0)
    np.testing.assert_allclose(least[inside], loss.min(0)[inside], rtol=1e-5)
    assert (least <= loss[-1] * (1 + 1e-9)).all()
    if not inside.any():
        far, *_, end = brute(curve, 1.0, np.linspace(560, 650, 4))
        settled = np.isclose(far, end, rtol=1e-9)
        assert settled.mean() > 0.5
        np.testing.assert_allclose(least[settled], end[settled], rtol=1e-8)


def test_own_share_orientation():
    """A law in the modelled domain's own share of the data depends on 1 - r."""
    law = replace(WORLD.laws["french"], ratio="own")
    curve = LossCurve(
        law, curve_of(true_fits(WORLD)[0], PlannedRun(8.1e9, 279)).p, ORIGIN, 8.1e9, 279
    )
    own, plain = curve.loss([0.3], 2.0), replace(curve, law=WORLD.laws["french"]).loss([0.7], 2.0)
    np.testing.assert_allclose(own, plain)
