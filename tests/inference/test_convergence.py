"""The convergence gate and its diagnostics."""

import arviz_stats as azs
import numpy as np
import pytest

from bayeslaw.inference.convergence import Convergence, diagnose

GOOD = {"rhat": 1.01, "ess_bulk": 400, "ess_tail": 400, "divergences": 0, "bfmi": 0.3}


@pytest.mark.parametrize(
    ("spoilt", "says"),
    [
        ({"rhat": 1.011}, "R-hat 1.011 > 1.01"),
        ({"rhat": np.nan}, "R-hat nan > 1.01"),
        ({"ess_bulk": 399}, "bulk ESS 399 < 400"),
        ({"ess_tail": np.nan}, "tail ESS nan < 400"),
        ({"divergences": 1}, "1 divergences"),
        ({"bfmi": 0.29}, "E-BFMI 0.29 < 0.3"),
    ],
)
def test_each_part_of_the_gate(spoilt, says):
    assert Convergence(**GOOD).ok
    assert Convergence(**GOOD | spoilt).failures == (says,)


def test_diagnostics_are_those_of_arviz(posterior, small):
    """Of the log losses at the fitted rows and of the scale of noise."""
    draws, got = posterior.draws, posterior.convergence
    log_loss = np.log(posterior.latent(small)).reshape(*draws["sigma"].shape, len(small))
    used = draws[["sigma"]].assign(log_loss=(("chain", "draw", "row"), log_loss))
    rhat = azs.rhat(used)
    ess = azs.summary(used, kind="diagnostics", round_to="none")
    assert got.rhat == pytest.approx(max(float(v.max()) for v in rhat.data_vars.values()))
    assert got.ess_bulk == pytest.approx(ess["ess_bulk"].min())
    assert got.ess_tail == pytest.approx(ess["ess_tail"].min())
    assert got.divergences == int(posterior.stats["diverging"].sum())
    bfmi = azs.bfmi(posterior.stats)
    values = bfmi["energy"].values if hasattr(bfmi, "data_vars") else np.asarray(bfmi)
    assert got.bfmi == pytest.approx(values.min(), rel=0.01)
    summary = posterior.summary()
    assert {"E", "A", "alpha", "B", "beta", "L_ref", "sigma"} <= set(summary.index)
    assert summary.loc["L_ref", "mean"] == pytest.approx(float(draws["L_ref"].mean()))


def test_stuck_chains_fail(posterior):
    draws = posterior.draws.copy(deep=True)
    draws["alpha"][:] = draws["alpha"].values[:, :1]
    assert not diagnose(draws, posterior.stats).rhat <= 1.01
    draws["alpha"][:] = 0.5
    assert not diagnose(draws, posterior.stats).ok
    assert not diagnose(posterior.draws.isel(chain=[0]), posterior.stats.isel(chain=[0])).ok


def test_constant_draws_fail_without_a_warning(posterior):
    draws = posterior.draws.copy(deep=True)
    draws["alpha"][:] = 0.3
    assert not diagnose(draws, posterior.stats).ok
