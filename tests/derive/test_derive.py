"""Derived numbers against closed forms, formulas of the laws and brute force."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy import stats

from bayeslaw import (
    BayeslawError,
    LawError,
    NotConverged,
    TableWarning,
    compare_recipes,
    derive,
    fit,
    grid,
    locate,
)
from tests.inside import MEASURED, derived, make_spec
from tests.support import CHINCHILLA, TRANSFER

FLOPS = (1e20, 1e24)
beyond = pytest.mark.filterwarnings("ignore:No evidence:bayeslaw.TableWarning")
ROWS = grid(params=[2e8, 3e9], tokens=[2e9, 5e11])
FAR = grid(params=1e11, tokens=1e13)


def closed_form(posterior, flops):
    """N, its exponent, and the loss of `E + A / N^alpha + B / D^beta` at its optimum."""
    p = {name: value.values.ravel() for name, value in posterior.paper.items()}
    a, b = p["alpha"], p["beta"]
    params = (a * p["A"] / (b * p["B"]) * (flops / 6) ** b) ** (1 / (a + b))
    loss = p["E"] + p["A"] / params**a + p["B"] / (flops / 6 / params) ** b
    return params, b / (a + b), loss


def numbers(**values):
    columns = {name: (np.asarray(value)[:, None], "1") for name, value in values.items()}
    return derived(columns, pd.DataFrame({"case": [1]}))


FEW, MANY = numbers(short=np.zeros(10)), numbers(long=np.zeros(4000))


# -- compute-optimal splits -----------------------------------------------------------------------


def test_optimum_is_the_closed_form(posterior):
    draws = derive.compute_optimal(posterior, FLOPS).draws
    for case, flops in enumerate(FLOPS):
        params, exponent, loss = closed_form(posterior, flops)
        found = draws.isel(case=case)
        assert found.params.values == pytest.approx(params, rel=1e-5)
        assert found.tokens.values == pytest.approx(flops / 6 / params, rel=1e-5)
        assert found.tokens_per_param.values == pytest.approx(flops / 6 / params**2, rel=1e-5)
        assert found.params_exponent.values == pytest.approx(exponent, abs=1e-5)
        assert found.tokens_exponent.values == pytest.approx(1 - exponent, abs=1e-5)
        assert found.loss.values == pytest.approx(loss, rel=1e-12)


@pytest.mark.parametrize("span", [400.0, 1e4])
def test_exponents_are_mean_slopes_over_the_span_around_the_budget(known, span):
    """The bound of the search holds the optimum at the upper end of the span, not at the lower."""
    posterior, flops = known(**CHINCHILLA), 1e22
    most = 1.01 * flops / 6 / closed_form(posterior, flops)[0].item() ** 2
    low = closed_form(posterior, flops / span**0.5)[0].item()
    high = (flops * span**0.5 / 6 / most) ** 0.5
    found = derive.compute_optimal(posterior, flops, span=span, search=(1e-3, most)).draws
    slope = np.log(high / low) / np.log(span)
    assert found.params_exponent.item() == pytest.approx(slope, abs=1e-5)
    assert found.tokens_exponent.item() == pytest.approx(1 - slope, abs=1e-5)
    assert abs(slope - closed_form(posterior, flops)[1].item()) > 1e-3


@pytest.mark.parametrize("inside", [3e-4, 0.02, 0.08, 0.2, 0.3])
def test_an_optimum_near_a_bound_of_the_search(known, inside):
    posterior, flops = known(**CHINCHILLA), 1e22
    best = flops / 6 / closed_form(posterior, flops)[0].item() ** 2
    for search in ((1e-3, best * np.exp(inside)), (best * np.exp(-inside), 1e5)):
        found = derive.compute_optimal(posterior, flops, search=search).draws
        assert found.tokens_per_param.item() == pytest.approx(best, rel=1e-4)


def test_an_optimum_on_the_bound_says_so(posterior):
    assert not derive.compute_optimal(posterior, 1e22).at_bound["params"].any()
    above = derive.compute_optimal(posterior, 1e22, search=(500, 1e4))
    assert above.draws.tokens_per_param.values == pytest.approx(500)
    assert (above.to_frame()["at_bound"] == 1).all()
    assert above.notes[0] == "searched 500 to 1e+04 tokens per parameter"
    assert "in 100 % of the draws; to search further: search=(50.0, 10000.0)" in above.notes[1]


def test_the_search_is_that_of_the_rows_and_as_far_beyond_as_bands_were_tested(known):
    fit = known(**CHINCHILLA)
    ratios = fit.table.frame["tokens"] / fit.table.frame["params"]
    wider = 10 ** MEASURED["tokens"]
    found = derive.compute_optimal(fit, 1e21)
    low, high = ratios.min() / wider, ratios.max() * wider
    assert found.notes[0] == f"searched {low:.4g} to {high:.4g} tokens per parameter"
    same = derive.compute_optimal(fit, 1e21, search=(low, high))
    assert same.to_frame().equals(found.to_frame())
    for other in (
        derive.flops_to_reach(fit, 2.3).notes,
        derive.compute_multiplier(fit, fit, 2.3).notes,
        compare_recipes({"a": fit, "b": fit}, flops=1e21).notes,
    ):
        assert any(found.notes[0] in note for note in other)


def test_how_far_a_budget_lies_beyond_the_rows(known):
    """In the words of `bayeslaw check`, at the median split, whatever the law finds there."""
    fit = known(**CHINCHILLA)
    near, far = 1e20, 1e23
    found = derive.compute_optimal(fit, [near, far])
    split = found.draws.isel(draw=0, case=1)
    where = locate(fit.table, grid(params=split.params.item(), tokens=split.tokens.item())).iloc[0]
    frame = found.to_frame().set_index("quantity").loc["params"]
    assert list(frame["position"]) == ["interpolation", "extrapolation"]
    assert frame["decades"].to_numpy() == pytest.approx([0, where["decades"]], rel=1e-3)
    text = " ".join(str(found).split())
    distance = f"{where['decades']:.2g} decades"
    assert f"flops 1e+20 interpolation; flops 1e+23 extrapolation ({distance}" in text
    assert "No evidence: rows lie up to" in text
    assert "No evidence" not in str(derive.compute_optimal(fit, near))
    loss = float(found.draws["loss"].median("draw")[1])
    reached = derive.flops_to_reach(fit, [loss, 1.0]).to_frame()
    assert reached["decades"][0] == pytest.approx(where["decades"], rel=1e-3)
    assert np.isnan(reached["decades"][1])  # never reached
    further = grid(params=[1e9, 1e12], tokens=1e10)
    both = {"a": fit, "b": fit}
    for derived_far in (
        lambda: derive.compute_optimal(fit, 1e27),
        lambda: derive.flops_to_reach(fit, 1.75),
        lambda: derive.compute_multiplier(fit, fit, 1.75),
        lambda: derive.local_exponents(fit, further),
        lambda: compare_recipes(both, flops=1e27),
        lambda: compare_recipes(both, further),
    ):
        with pytest.warns(TableWarning, match="No evidence: rows lie up to"):
            derived_far()


@beyond
def test_walking_exponents_have_the_best_of_all_forecasts(walking):
    """At budgets far apart, whose walks reach far beyond the rows on both sides."""
    budgets, ratio = [1e18, 1e25], np.geomspace(0.1, 1e4, 4000)
    best = derive.compute_optimal(walking, budgets, allow_unconverged=True, search=(0.1, 1e4))
    for case, flops in enumerate(budgets):
        params = np.sqrt(flops / 6 / ratio)
        rows = pd.DataFrame({"params": params, "tokens": ratio * params})
        forecast = walking.latent(rows).min(1)
        found = best.draws.loss.values[:, case]
        assert (found <= forecast * (1 + 1e-5)).all()
        assert found == pytest.approx(forecast, rel=1e-5)


# -- budgets that reach a loss --------------------------------------------------------------------


@beyond
def test_flops_are_the_closed_form(posterior):
    _, exponent, loss = closed_form(posterior, 1e22)
    floor, beta = (posterior.paper[name].values.ravel() for name in ("E", "beta"))
    targets = [2.3, 1.8]
    found = derive.flops_to_reach(posterior, targets).draws.flops.values
    for column, target in zip(found.T, targets, strict=True):
        # At the optimum the reducible loss is a power of C, with exponent beta (1 - exponent).
        with np.errstate(invalid="ignore"):
            ratio = (target - floor) / (loss - floor)
            expected = 1e22 * ratio ** (-1 / (beta * (1 - exponent)))
        expected[target <= floor] = np.inf
        within = expected < 1e30
        assert column[within] == pytest.approx(expected[within], rel=1e-6)
        assert np.isinf(column[target <= floor]).all()


def test_walking_exponents_reach_a_loss_at_its_flops_and_not_before(walking):
    target = float(np.quantile(walking.table.loss, 0.2))
    few = replace(walking, draws=walking.draws.isel(draw=slice(0, None, 10)))
    found = derive.flops_to_reach(few, target, allow_unconverged=True).draws.flops.values[:, 0]
    assert np.isfinite(found).mean() > 0.9
    for draw in np.flatnonzero(np.isfinite(found))[::2]:
        near = found[draw] * np.array([0.1, 0.5, 0.9, 1.0])
        loss = derive.compute_optimal(few, near, allow_unconverged=True).draws.loss
        assert loss.values[draw, -1] == pytest.approx(target, rel=1e-9)
        assert (loss.values[draw, :-1] > target).all()


def test_a_loss_reached_at_once_is_on_the_bound(posterior):
    easy = derive.flops_to_reach(posterior, 50.0)
    assert easy.at_bound["flops"].all()
    flops = 6 * posterior.table.frame["params"] * posterior.table.frame["tokens"]
    assert easy.draws.flops.values == pytest.approx(flops.min())


def test_multiplier_of_a_recipe_with_a_smaller_coefficient(known):
    other = known(**CHINCHILLA | {"E": [1.7, 2.4, 1.7, 2.4]})
    better = known(**CHINCHILLA | {"E": [1.7, 1.7, 2.4, 2.4], "A": 300.0, "B": 300.0})
    found = derive.compute_multiplier(better, other, 2.3)
    # Draws of separate fits are shifted against each other: pair them by hand.
    ours = derive.flops_to_reach(better, 2.3).draws.flops.values[:, 0]
    theirs = np.roll(derive.flops_to_reach(other, 2.3).draws.flops.values[:, 0], 2)
    with np.errstate(invalid="ignore"):
        expected = theirs / ours
    assert found.draws.multiplier.values[:, 0] == pytest.approx(expected, nan_ok=True)
    assert {0.0, np.inf} < set(expected)
    assert np.isnan(expected).sum() == 1
    row = found.to_frame().iloc[0]
    assert (row["infinite"], row["undefined"]) == (0.25, 0.25)
    assert "independently" in found.notes[0]


def test_multiplier_of_a_recipe_that_needs_a_fraction(known):
    # Smaller coefficients A and B shift both terms: the loss of C is that of k C.
    k, a, b = 3.0, CHINCHILLA["alpha"], CHINCHILLA["beta"]
    s = b / (a + b)
    shrunk = {"A": CHINCHILLA["A"] * k ** (-a * s), "B": CHINCHILLA["B"] * k ** (-b * (1 - s))}
    better, other = known(**CHINCHILLA | shrunk), known(**CHINCHILLA)
    found = derive.compute_multiplier(better, reference=other, loss=[2.5, 2.0])
    assert found.draws.multiplier.values == pytest.approx(k, rel=1e-6)


# -- local exponents and the floor ----------------------------------------------------------------


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


def test_exponents_of_a_new_base_are_those_of_the_losses_that_are_drawn(
    transfer_law, transfer_table, posterior
):
    at = transfer_law.reference_point(transfer_table)
    values = {n: np.full((1, 40), v) for n, v in TRANSFER.items()}
    q = transfer_law.to_reference(values, at) | {"sigma": np.full((1, 40), 0.003)}
    draws = xr.Dataset({n: (("chain", "draw"), np.broadcast_to(v, (1, 40))) for n, v in q.items()})
    spec = make_spec(transfer_law, discrepancy="none", effects="none")
    fit = replace(posterior, spec=spec, table=transfer_table, at=at, draws=draws)
    rows = grid(params=8e8, tokens=4e9, replay=0.25, ptpp=62).assign(base="a new one")
    found = derive.local_exponents(fit, rows).draws["loss_D"].values
    low, high = (fit.law_loss(rows.assign(tokens=4e9 * np.exp(s))) for s in (-1e-4, 1e-4))
    assert found == pytest.approx(-np.log(high / low) / 2e-4, rel=1e-5)
    assert found.std() > 0


def test_exponents_of_a_law_of_replay_and_stage(two_stages):
    rows = grid(params=8e9, tokens=1e10, replay=0.3, ptpp=31)
    found = derive.local_exponents(two_stages, rows, allow_unconverged=True).draws
    assert {"alpha", "beta", "reducible_N", "loss_D"} <= set(found)
    assert found["beta"].values[:, 0] == pytest.approx(two_stages.paper["beta"].values.ravel())


def test_a_slice_is_a_fit_with_that_floor(posterior, small):
    found = derive.floor_sensitivity(
        posterior, posterior.forecast(FAR, kind="latent", beyond_evidence=True), slices=15
    )
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
    row = derive.floor(posterior).to_frame((0.9,)).iloc[0]
    quantiles = posterior.summary().loc["E", ["q05", "q95"]]
    assert (row["lower_90"], row["upper_90"]) == pytest.approx(tuple(quantiles))
    assert row["unit"] == "nats per token"
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
    verdicts = {"other": "other parameters", "same": "floor", "none": "undefined"}
    assert rows["verdict"][list(verdicts)].to_dict() == verdicts


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


# -- the result -----------------------------------------------------------------------------------


def test_quantiles_and_what_is_determined():
    """A number is determined if its interval spans less than a factor of ten."""
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
    # The quantile at the last finite draw is finite.
    reached = np.r_[np.arange(951.0), np.full(50, np.inf)]
    row = numbers(reached=reached).to_frame((0.8, 0.9, 0.95)).iloc[0]
    assert (row["median"], row["upper_80"], row["upper_90"]) == (500, 900, 950)
    assert (row["upper_95"], row["infinite"]) == (np.inf, 50 / 1001)


def test_what_is_derived_is_annealed_and_tuned_and_no_data_repeat(known):
    """A law with R_D, an offset for checkpoints and a best rate has the optima of that without."""
    rng = np.random.default_rng(0)
    draws = CHINCHILLA | {"E": rng.normal(1.7, 0.02, 40)}
    rates = {"R_D": rng.uniform(0.01, 20, 40)}
    rates |= {"unannealed": 0.1, "unannealed_D": 0.01, "unannealed_N": -0.02}
    rates |= {"rate_cost": 0.03, "rate_best": 2.0, "rate_best_N": -0.3, "rate_best_D": 0.1}
    fit, plain = known(**draws | rates), known(**draws)
    better, other = {**draws, "B": 300.0}, known(**draws)
    rows = grid(params=[1e9, 1e10], tokens=2e10)

    def frames(fit, better):
        recipes = compare_recipes({"fit": other, "better": better}, flops=[1e21, 1e23])
        best = derive.compute_optimal(fit, FLOPS)
        return [
            best.to_frame(),
            derive.flops_to_reach(fit, [2.5, 2.2]).to_frame(),
            derive.compute_multiplier(better, other, 2.4).to_frame(),
            derive.local_exponents(fit, rows).to_frame(),
            derive.floor_sensitivity(fit, best, slices=2).profile,
            *(each.to_frame() for each in (recipes, recipes.multipliers, recipes.crossings)),
        ]

    pairs = zip(frames(fit, known(**better | rates)), frames(plain, known(**better)), strict=True)
    for one, same in pairs:
        pd.testing.assert_frame_equal(one, same, rtol=1e-6)
    assert fit.law.repetition
    assert fit.law.offset


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda f, s: derive.compute_optimal(f, [1e22, -1]), BayeslawError, "flops must be positi"),
        (lambda f, s: derive.flops_to_reach(f, float("nan")), BayeslawError, "loss must be positi"),
        (lambda f, s: derive.compute_optimal(f, 1e22, span=1), BayeslawError, "span"),
        (lambda f, s: derive.compute_optimal(f, 1e22, search=(9, 1)), BayeslawError, "least first"),
        (lambda f, s: derive.compute_optimal(s, 1e22), LawError, "depends on replay; give it"),
        (lambda f, s: derive.compute_optimal(f, 1e22, ptpp=20), LawError, "does not depend on ptp"),
        (lambda f, s: derive.floor(f).to_frame([90]), BayeslawError, "level 90"),
        (lambda f, s: derive.floor_sensitivity(f, FEW), BayeslawError, "have the 4000 draws"),
        (lambda f, s: derive.floor_sensitivity(f, MANY, slices=1), BayeslawError, "slices 1"),
    ],
)
def test_mistakes(posterior, two_stages, call, error, says):
    with pytest.raises(error, match=says):
        call(posterior, two_stages)


def test_a_posterior_that_failed_is_refused_unless_allowed(unconverged):
    with pytest.raises(NotConverged):
        derive.compute_optimal(unconverged, 1e22)
    marked = derive.compute_optimal(unconverged, 1e22, allow_unconverged=True).to_frame()
    assert marked["unconverged"].str.len().all()
