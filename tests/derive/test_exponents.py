"""Local exponents against derivatives by hand, and the floor."""

import numpy as np
import pytest

from bayeslaw import derive
from bayeslaw.tables.table import grid

ROWS = grid(params=[2e8, 3e9], tokens=[2e9, 5e11])


def test_exponents_of_the_plain_law(posterior):
    p = {name: value.values.reshape(-1, 1) for name, value in posterior.paper.items()}
    n, d = ROWS["params"].to_numpy(), ROWS["tokens"].to_numpy()
    size, data = p["A"] / n ** p["alpha"], p["B"] / d ** p["beta"]
    expected = {
        "alpha": p["alpha"] + 0 * n,
        "beta": p["beta"] + 0 * n,
        "reducible_N": p["alpha"] * size / (size + data),
        "reducible_D": p["beta"] * data / (size + data),
        "loss_N": p["alpha"] * size / (p["E"] + size + data),
        "loss_D": p["beta"] * data / (p["E"] + size + data),
    }
    found = derive.local_exponents(posterior, ROWS)
    assert set(found.draws) == set(expected)
    for name, values in expected.items():
        assert found.draws[name].values == pytest.approx(values, rel=1e-6)
    assert list(found.cases) == ["params", "tokens"]


def test_exponents_of_walking_terms_are_slopes_of_the_forecast(walking):
    found = derive.local_exponents(walking, ROWS, allow_unconverged=True)
    for column, name in (("params", "loss_N"), ("tokens", "loss_D")):
        low, high = (
            walking.latent(ROWS.assign(**{column: ROWS[column] * np.exp(step)}))
            for step in (-1e-4, 1e-4)
        )
        assert found.draws[name].values == pytest.approx(-np.log(high / low) / 2e-4, rel=1e-6)
    assert found.draws["alpha"].values.std(1).min() > 0  # it walks


def test_exponents_of_a_law_of_replay_and_stage(two_stages):
    rows = grid(params=8e9, tokens=1e10, replay=0.3, ptpp=31)
    found = derive.local_exponents(two_stages, rows)
    assert {"alpha", "beta", "reducible_N", "loss_D"} <= set(found.draws)
    assert found.draws["beta"].values[:, 0] == pytest.approx(
        two_stages.paper["beta"].values.ravel()
    )


def test_floor_is_the_parameter(posterior):
    found = derive.floor(posterior).to_frame((0.9,)).iloc[0]
    q05, q95 = posterior.summary().loc["E", ["q05", "q95"]]
    assert (found["lower_90"], found["upper_90"]) == pytest.approx((q05, q95))
    assert found["unit"] == "nats per token"
