"""Left-out losses and their ranks under the fit."""

from bayeslaw.checks import predictive
from bayeslaw.inference.posterior import Posterior


def test_pit_values_of_a_wrong_scale(posterior):
    """Left-out losses are uniform under the fit, and not if its noise is ten times too wide."""
    sound = predictive.leave_out(posterior)
    assert sound.unit == "row"
    assert sound.uniformity() > 0.01
    draws = posterior.draws.assign(sigma=10 * posterior.draws["sigma"])
    wide = Posterior(
        posterior.spec, posterior.table, posterior.at, draws, posterior.stats, posterior.convergence
    )
    assert predictive.leave_out(wide).uniformity() < 0.01
