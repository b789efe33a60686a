"""Compute-optimal splits and budgets, against closed forms and brute force."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from bayeslaw import BayeslawError, LawError, NotConverged, compare_recipes, derive, grid
from bayeslaw.derive.surface import _with_knots, surface_of
from tests.support import CHINCHILLA

FLOPS = (1e20, 1e24)


def closed_form(posterior, flops):
    """N, its exponent, and the loss of `E + A / N^alpha + B / D^beta` at its optimum."""
    p = {name: value.values.ravel() for name, value in posterior.paper.items()}
    a, b = p["alpha"], p["beta"]
    params = (a * p["A"] / (b * p["B"]) * (flops / 6) ** b) ** (1 / (a + b))
    loss = p["E"] + p["A"] / params**a + p["B"] / (flops / 6 / params) ** b
    return params, b / (a + b), loss


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
    derived = derive.compute_optimal(posterior, flops, span=span, search=(1e-3, most)).draws
    slope = np.log(high / low) / np.log(span)
    assert derived.params_exponent.item() == pytest.approx(slope, abs=1e-5)
    assert derived.tokens_exponent.item() == pytest.approx(1 - slope, abs=1e-5)
    assert abs(slope - closed_form(posterior, flops)[1].item()) > 1e-3


@pytest.mark.parametrize("inside", [3e-4, 0.02, 0.08, 0.2, 0.3])
def test_an_optimum_near_a_bound_of_the_search(known, inside):
    posterior, flops = known(**CHINCHILLA), 1e22
    best = flops / 6 / closed_form(posterior, flops)[0].item() ** 2
    for search in ((1e-3, best * np.exp(inside)), (best * np.exp(-inside), 1e5)):
        derived = derive.compute_optimal(posterior, flops, search=search).draws
        assert derived.tokens_per_param.item() == pytest.approx(best, rel=1e-4)


def test_flops_are_the_closed_form(posterior):
    _, exponent, loss = closed_form(posterior, 1e22)
    floor = posterior.paper["E"].values.ravel()
    targets = [2.3, 1.8]
    found = derive.flops_to_reach(posterior, targets).draws.flops.values
    beta = posterior.paper["beta"].values.ravel()
    for column, target in zip(found.T, targets, strict=True):
        # At the optimum the reducible loss is a power of C, with exponent beta (1 - exponent).
        with np.errstate(invalid="ignore"):
            ratio = (target - floor) / (loss - floor)
            expected = 1e22 * ratio ** (-1 / (beta * (1 - exponent)))
        expected[target <= floor] = np.inf
        within = expected < 1e30
        assert column[within] == pytest.approx(expected[within], rel=1e-6)
        assert np.isinf(column[target <= floor]).all()


def test_walking_exponents_have_the_best_of_all_forecasts(walking):
    """At budgets far apart, whose walks reach far beyond the rows on both sides."""
    budgets, ratio = [1e18, 1e25], np.geomspace(0.1, 1e4, 4000)
    best = derive.compute_optimal(walking, budgets, allow_unconverged=True, search=(0.1, 1e4))
    for case, flops in enumerate(budgets):
        params = np.sqrt(flops / 6 / ratio)
        rows = grid(params=0, tokens=0).loc[[0] * len(ratio)].reset_index(drop=True)
        forecast = walking.latent(rows.assign(params=params, tokens=ratio * params))
        found = best.draws.loss.values[:, case]
        assert (found <= forecast.min(1) * (1 + 1e-5)).all()
        assert found == pytest.approx(forecast.min(1), rel=1e-5)


def test_kinks_of_walking_exponents_are_among_the_ratios_searched(walking):
    surface = surface_of(walking, (1e7, 1e11), (1e8, 1e12))
    log_nd, step = np.log(1e21 / 6), 1e-3
    nodes = _with_knots(surface, np.array([np.log(1e21)]), (1e-2, 1e5))[0]
    for along, places in (("params", (log_nd - nodes) / 2), ("tokens", (log_nd + nodes) / 2)):
        knots = surface.knots(along)
        knots = knots[(places.min() < knots) & (knots < places.max())]
        assert len(knots) > 4
        assert abs(knots[:, None] - places).min(1).max() < 1e-9

        def second_differences(at, along=along):
            """Their spread over draws: of order `step` at a kink and `step^2` elsewhere."""
            ends = at[:, None] + step * np.array([-1, 0, 1])
            other = np.full(ends.size, log_nd / 2)
            pair = (ends.ravel(), other) if along == "params" else (other, ends.ravel())
            return np.diff(surface.loss(*pair).reshape(-1, len(at), 3), 2, -1).std(axis=(0, 2))

        assert (
            second_differences(knots).min()
            > 5 * second_differences((knots[1:] + knots[:-1]) / 2).max()
        )


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


def test_an_optimum_on_the_bound_says_so(posterior):
    inside = derive.compute_optimal(posterior, 1e22)
    above = derive.compute_optimal(posterior, 1e22, search=(500, 1e4))
    assert not inside.at_bound["params"].any()
    assert above.at_bound["params"].all()
    assert above.at_bound["params_exponent"].all()
    assert above.draws.tokens_per_param.values == pytest.approx(500)
    frame = above.to_frame()
    assert (frame["at_bound"] == 1).all()
    assert above.notes[0] == "searched 500 to 10000 tokens per parameter"


def test_a_loss_reached_at_once_is_on_the_bound(posterior):
    easy = derive.flops_to_reach(posterior, 50.0)
    assert easy.at_bound["flops"].all()
    flops = 6 * posterior.table.frame["params"] * posterior.table.frame["tokens"]
    assert easy.draws.flops.values == pytest.approx(1e-2 * flops.min())


def test_multiplier_of_a_recipe_with_a_smaller_coefficient(known):
    floors = [1.7, 1.7, 2.4, 2.4]
    base = known(**CHINCHILLA | {"E": [1.7, 2.4, 1.7, 2.4]})
    better = known(**CHINCHILLA | {"E": floors, "A": 300.0, "B": 300.0})
    found = derive.compute_multiplier(better, base, 2.3)
    # Draws of separate fits are shifted against each other: pair them by hand.
    own = derive.flops_to_reach(better, 2.3).draws.flops.values[:, 0]
    other = np.roll(derive.flops_to_reach(base, 2.3).draws.flops.values[:, 0], 2)
    with np.errstate(invalid="ignore"):
        expected = other / own
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
    found = derive.compute_multiplier(known(**CHINCHILLA | shrunk), known(**CHINCHILLA), [2.5, 2.0])
    assert found.draws.multiplier.values == pytest.approx(k, rel=1e-6)


def test_no_data_repeat_in_what_is_derived(known):
    """A law with R_D, of a table with `unique_tokens`, has the optima of the law without."""
    rng = np.random.default_rng(0)
    draws = CHINCHILLA | {"E": rng.normal(1.7, 0.02, 40)}
    rates = {"R_D": rng.uniform(0.01, 20, 40)}
    fit, plain = known(**draws | rates), known(**draws)
    better, base = {**draws, "B": 300.0}, known(**draws)
    rows = grid(params=[1e9, 1e10], tokens=2e10)

    def numbers(fit, better):
        recipes = compare_recipes({"fit": base, "better": better}, flops=[1e21, 1e23])
        best = derive.compute_optimal(fit, FLOPS)
        return [
            best.to_frame(),
            derive.flops_to_reach(fit, [2.5, 2.2]).to_frame(),
            derive.compute_multiplier(better, base, 2.4).to_frame(),
            derive.crossover(better, base, 1e9).to_frame(),
            derive.local_exponents(fit, rows).to_frame(),
            derive.floor_sensitivity(fit, best, slices=2).profile,
            *(each.to_frame() for each in (recipes, recipes.multipliers, recipes.crossings)),
        ]

    found, expected = numbers(fit, known(**better | rates)), numbers(plain, known(**better))
    for one, other in zip(found, expected, strict=True):
        pd.testing.assert_frame_equal(one, other, rtol=1e-6)
    assert fit.law.repetition


def test_mistakes(posterior, two_stages, unconverged):
    with pytest.raises(NotConverged):
        derive.compute_optimal(unconverged, 1e22)
    marked = derive.compute_optimal(unconverged, 1e22, allow_unconverged=True).to_frame()
    assert marked["unconverged"].str.len().all()
    with pytest.raises(BayeslawError, match="flops must be positive"):
        derive.compute_optimal(posterior, [1e22, -1])
    with pytest.raises(BayeslawError, match="loss must be positive"):
        derive.flops_to_reach(posterior, float("nan"))
    with pytest.raises(BayeslawError, match="span"):
        derive.compute_optimal(posterior, 1e22, span=1)
    with pytest.raises(BayeslawError, match="least first"):
        derive.compute_optimal(posterior, 1e22, search=(100, 1))
    with pytest.raises(LawError, match="depends on replay; give it"):
        derive.compute_optimal(two_stages, 1e22)
    with pytest.raises(LawError, match="does not depend on ptpp"):
        derive.compute_optimal(posterior, 1e22, ptpp=20)
    with pytest.raises(BayeslawError, match="level 90"):
        derive.floor(posterior).to_frame([90])


N = 1e9


def test_crossing_from_above_from_below_never_and_always(known):
    scratch = known(**CHINCHILLA)
    # Draw by draw: ahead until D, ahead from D, never ahead, always ahead.
    b = np.array([200.0, 800.0, 500.0, 300.0])
    e = np.array([1.75, 1.65, 1.71, 1.69])
    cpt = known(**CHINCHILLA | {"B": b, "E": e})
    scratch = known(**CHINCHILLA | {"E": np.full(4, 1.7)})
    found = derive.crossover(cpt, scratch, N)
    # Both have the same draws of `scratch`: pairs need no alignment.
    beta, own = CHINCHILLA["beta"], CHINCHILLA["B"]
    at = ((b[:2] - own) / (1.7 - e[:2])) ** (1 / beta)
    begin, end = N * 1e-3, np.inf
    order = np.argsort(found.draws.tokens_from.values[:, 0])
    assert np.sort(found.draws.tokens_from.values[:, 0]) == pytest.approx(
        [begin, begin, at[1], np.inf], rel=1e-9
    )
    until = found.draws.tokens_until.values[order, 0]
    assert sorted(until[:2]) == pytest.approx([at[0], end], rel=1e-9)
    assert until[2] == np.inf
    assert np.isnan(until[3])
    assert found.at_bound["tokens_from"].sum() == 2
    assert "independently" in found.notes[0]
    assert found.to_frame().loc[1, "undefined"] == 0.25


def test_fits_of_other_laws(two_stages, posterior):
    found = derive.crossover(two_stages, posterior, N, replay=0.2, ptpp=31)
    assert found.draws.sizes["case"] == 1
    assert list(found.cases.iloc[0]) == [N, 0.2, 31]


def test_mistakes_of_crossovers(two_stages, posterior):
    with pytest.raises(LawError, match="depends on replay"):
        derive.crossover(two_stages, posterior, N)
    with pytest.raises(LawError, match="depends on replay"):
        derive.crossover(posterior, two_stages, N)
    with pytest.raises(BayeslawError, match="params must be"):
        derive.crossover(posterior, posterior, 0)
    with pytest.raises(BayeslawError, match="range of tokens"):
        derive.crossover(posterior, posterior, N, search=(10, 1))
