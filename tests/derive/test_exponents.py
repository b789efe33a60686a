"""Local exponents and the floor against the laws' formulas; profiles over the floor."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy import stats

from bayeslaw import BayeslawError, derive, fit, grid, plots
from bayeslaw.derive.result import derived

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
    found = derive.local_exponents(two_stages, rows, allow_unconverged=True)
    assert {"alpha", "beta", "reducible_N", "loss_D"} <= set(found.draws)
    assert found.draws["beta"].values[:, 0] == pytest.approx(
        two_stages.paper["beta"].values.ravel()
    )


def test_floor_is_the_parameter(posterior):
    found = derive.floor(posterior).to_frame((0.9,)).iloc[0]
    q05, q95 = posterior.summary().loc["E", ["q05", "q95"]]
    assert (found["lower_90"], found["upper_90"]) == pytest.approx((q05, q95))
    assert found["unit"] == "nats per token"


FAR = grid(params=1e11, tokens=1e13)


def numbers(**values):
    columns = {name: (np.asarray(value)[:, None], "1") for name, value in values.items()}
    return derived(columns, pd.DataFrame({"case": [1]}))


def test_a_slice_is_a_fit_with_that_floor(posterior, small):
    found = derive.floor_sensitivity(posterior, posterior.forecast(FAR, kind="latent"), slices=15)
    for i in (2, 12):
        row = found.profile.iloc[i]
        prior = f"LogNormal(median={row['E']}, sigma=6e-4)"
        short = {"draws": 500, "tune": 300, "chains": 2}
        fixed = fit("chinchilla", small, seed=1, discrepancy="none", priors={"E": prior}, **short)
        loss = fixed.latent(FAR)[:, 0]
        width = row["upper_80"] - row["lower_80"]
        assert np.median(loss) == pytest.approx(row["median"], abs=0.15 * width)
        assert np.diff(np.quantile(loss, [0.1, 0.9]))[0] == pytest.approx(width, rel=0.35)
    # Beyond the rows the loss is nearly the floor.
    assert found.summary["explained"].item() > 0.9


def test_what_the_floor_explains(posterior):
    floor = posterior.paper["E"].values.ravel()
    noise = np.random.default_rng(0).standard_normal(len(floor))
    half = stats.norm.ppf(stats.rankdata(floor) / (len(floor) + 1)) + noise
    reached = np.where(floor < np.quantile(floor, 0.8), floor, np.inf)
    none = np.full(len(floor), np.nan)
    of = numbers(same=np.exp(5 * floor), other=noise, half=half, reached=reached, none=none)
    rows = derive.floor_sensitivity(posterior, of).summary.set_index("quantity")
    assert rows.loc["same", "explained"] > 0.97
    assert rows.loc["other", "explained"] < 0.02
    assert rows.loc["half", "explained"] == pytest.approx(0.5, abs=0.06)
    assert rows.loc["reached", "explained"] > 0.9
    assert rows.loc["other", "verdict"] == "other parameters"
    assert rows.loc["same", "verdict"] == "floor"  # the data determine it
    assert rows.loc["none", "verdict"] == "undefined"


def test_a_number_of_the_floors_prior_says_so(posterior):
    # Draws of E from its prior, as if the rows did not determine it.
    at, law = posterior.at, posterior.law
    p = {name: v.values.ravel()[:4000] for name, v in posterior.paper.items()}
    count, shape = len(p["E"]), posterior.spec.priors["floor"].kwargs
    share = np.random.default_rng(1).beta(shape["alpha"], shape["beta"], count)
    p["E"] = (law.to_reference(p, at)["L_ref"] - p["E"]) * share / (1 - share)
    q = law.to_reference(p, at)
    draws = xr.Dataset({n: (("chain", "draw"), v.reshape(4, -1)) for n, v in q.items()})
    unsure = replace(posterior, draws=draws)
    row = derive.floor_sensitivity(unsure, derive.floor(unsure)).summary.iloc[0]
    assert row["verdict"] == "floor's prior"
    assert row["flat_median"] > 1.3 * row["median"]


def test_a_quantile_at_the_last_finite_draw_is_finite():
    reached = np.r_[np.arange(951.0), np.full(50, np.inf)]
    row = numbers(reached=reached).to_frame((0.8, 0.9, 0.95)).iloc[0]
    assert (row["median"], row["upper_80"], row["upper_90"]) == (500, 900, 950)
    assert (row["upper_95"], row["infinite"]) == (np.inf, 50 / 1001)


def test_a_number_is_determined_if_its_interval_spans_less_than_a_factor_of_ten():
    q = np.linspace(0, 1, 1001)
    spans = {
        "narrow": 9.9 ** ((q - 0.05) / 0.9),
        "wide": 10.1 ** ((q - 0.05) / 0.9),
        "negative": -(9.9 ** ((q - 0.05) / 0.9)),
        "around_zero": q - 0.1,
        "some_infinite": np.where(q < 0.9, 1.0, np.inf),
        "few_infinite": np.where(q < 0.96, 1.0, np.inf),
        "all_infinite": np.full(1001, np.inf),
        "undefined": np.full(1001, np.nan),
    }
    found = numbers(**spans).to_frame().set_index("quantity")["determined"]
    assert list(found[found].index) == ["narrow", "negative", "few_infinite", "all_infinite"]


def test_figure(posterior):
    best = derive.compute_optimal(posterior, [1e21, 1e24])
    found = derive.floor_sensitivity(posterior, best, slices=5)
    assert len(found.profile) == 5 * 12
    figure = plots.floor_sensitivity(found)
    assert len(figure.axes) == 12
    drawn = figure.axes[-1].lines[0].get_ydata()
    assert drawn == pytest.approx(found.profile["median"].to_numpy()[-5:])


def test_mistakes(posterior, unconverged):
    with pytest.raises(BayeslawError, match="do not have the 4000 draws"):
        derive.floor_sensitivity(posterior, numbers(short=np.zeros(10)))
    with pytest.raises(BayeslawError, match="slices 1"):
        derive.floor_sensitivity(posterior, derive.floor(posterior), slices=1)
