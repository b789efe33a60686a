"""Left-out losses and their ranks under the fit."""

from dataclasses import replace

import numpy as np
import pytest

from bayeslaw.evaluate.psis_loo import LeftOut, leave_out
from bayeslaw.inference.posterior import Posterior


def test_pit_values_of_a_wrong_scale(posterior):
    """Left-out losses are uniform under the fit, and not if its noise is ten times too wide."""
    sound = leave_out(posterior)
    assert sound.unit == "row"
    assert sound.uniformity() > 0.01
    draws = posterior.draws.assign(sigma=10 * posterior.draws["sigma"])
    wide = Posterior(
        posterior.spec, posterior.table, posterior.at, draws, posterior.stats, posterior.convergence
    )
    assert leave_out(wide).uniformity() < 0.01


def test_units_with_a_large_pareto_k_are_counted_and_set_apart():
    count = 40
    pit = (np.arange(count) + 0.5) / count
    even = LeftOut("row", np.arange(count).astype(str), pit, pit, np.full(count, 0.2), 0.7)
    assert even.unreliable == 0
    bad = np.full(30, 1e-3), np.r_[np.full(29, 0.71), np.nan]
    rows = (np.concatenate(pair) for pair in ((pit, bad[0]), (even.pareto_k, bad[1])))
    pits, k = rows
    mixed = replace(even, labels=np.arange(70).astype(str), elpd=pits, pit=pits, pareto_k=k)
    assert mixed.unreliable == 30
    assert mixed.uniformity() == even.uniformity() > 0.1
    assert replace(mixed, good_k=0.72).uniformity() < 1e-6


def test_the_largest_good_pareto_k_is_that_of_so_many_draws(posterior):
    """Of S draws, 1 - 1 / log10(S) and at most .7 (Vehtari and others 2024)."""
    few = replace(posterior, draws=posterior.draws.isel(draw=slice(50)))
    assert leave_out(few).good_k == pytest.approx(0.56541, abs=1e-5)  # of 200 draws
    many = posterior.draws.sizes["chain"] * posterior.draws.sizes["draw"]
    assert many > 2154
    assert leave_out(posterior).good_k == 0.7
