"""Power scaling of prior and likelihood."""

from bayeslaw.checks import sensitivity


def test_sensitivity_to_prior_and_to_likelihood(two_stages):
    q = two_stages.values()
    frame = sensitivity.power_scaling(two_stages, {n: q[n][:, 0] for n in ("eta", "slope_N")})
    assert frame.loc["eta", "prior"] > 0.1 > 0.05 > frame.loc["eta", "likelihood"]
    assert frame.loc["slope_N", "prior"] < 0.05 < frame.loc["slope_N", "likelihood"]
