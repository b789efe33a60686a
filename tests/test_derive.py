"""Derived numbers against closed forms, formulas of the laws and brute force."""

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy.optimize import least_squares, minimize_scalar
from scipy.special import expit

import bayeslaw as bl
from bayeslaw import derive
from bayeslaw.derive.budgets import Budgets
from bayeslaw.derive.derived import derived
from bayeslaw.derive.downstream import curves
from bayeslaw.derive.law_as_stated import law_as_stated
from bayeslaw.design.design import Design
from bayeslaw.inference.pools import pair_draws
from bayeslaw.inference.settings import make_settings
from bayeslaw.inference.specification import AS_STATED, spec_as_stated, specify
from bayeslaw.model.spec import make_spec
from bayeslaw.tables.verdict import MEASURED_DECADES
from tests.posteriors import GOOD, adapted, drawn
from tests.support import CHINCHILLA, refused, saved

beyond = pytest.mark.filterwarnings("ignore:No evidence:bayeslaw.TableWarning")
ROWS = bl.grid(params=[1e9, 1e10], tokens=3e10)
PLAIN, WALK = saved("plain"), saved("walk").accepted("unconverged")


def known(**parameters):
    """A posterior of the law `chinchilla` whose draws of paper parameters are given."""
    law, at = bl.load_law("chinchilla"), Design(PLAIN.law, PLAIN.table).at
    values = {
        name: np.atleast_1d(np.asarray(v, float)) for name, v in parameters.items()
    }
    shape = np.broadcast_shapes(*(v.shape for v in values.values()))
    q = law.to_reference(values, at) | {"sigma": np.float64(0.003)}
    draws = {
        n: (("chain", "draw"), np.broadcast_to(v, shape)[None]) for n, v in q.items()
    }
    spec = make_spec(law, discrepancy="none")
    return replace(PLAIN, spec=spec, at=at, draws=xr.Dataset(draws), stats=xr.Dataset())


def closed_form(p, flops):
    """N, its exponent, and the loss of `E + A / N^alpha + B / D^beta` at its optimum."""
    a, b = p["alpha"], p["beta"]
    params = (a * p["A"] / (b * p["B"]) * (flops / 6) ** b) ** (1 / (a + b))
    loss = p["E"] + p["A"] / params**a + p["B"] / (flops / 6 / params) ** b
    return params, b / (a + b), loss


PAPER = {name: value.values.ravel() for name, value in PLAIN.paper.items()}
BAND = (0.05, 0.95)
BEST = 1e22 / 6 / closed_form(CHINCHILLA, 1e22)[0] ** 2
"""Tokens per parameter of Chinchilla's split of 1e22 FLOPs."""


def numbers(**values):
    columns = {
        name: (np.asarray(value)[:, None], "1") for name, value in values.items()
    }
    return derived(columns, pd.DataFrame({"case": [1]}))


# -- compute-optimal splits -----------------------------------------------------------------------


def test_optimum_is_the_closed_form():
    draws = derive.compute_optimal(PLAIN, [1e20, 1e24]).draws
    for case, flops in enumerate((1e20, 1e24)):
        params, exponent, loss = closed_form(PAPER, flops)
        found = draws.isel(case=case)
        assert found.params.values == pytest.approx(params, rel=1e-5)
        assert found.tokens.values == pytest.approx(flops / 6 / params, rel=1e-5)
        assert found.tokens_per_param.values == pytest.approx(
            flops / 6 / params**2, rel=1e-5
        )
        assert found.params_exponent.values == pytest.approx(exponent, abs=1e-5)
        assert found.tokens_exponent.values == pytest.approx(1 - exponent, abs=1e-5)
        assert found.loss.values == pytest.approx(loss, rel=1e-8)


@pytest.mark.parametrize("span", [400.0, 1e4])
def test_exponents_are_mean_slopes_over_the_span_around_the_budget(span):
    """The bound of the search holds the optimum at the upper end of the span, not at the lower."""
    most, flops = 1.01 * BEST, 1e22
    low = closed_form(CHINCHILLA, flops / span**0.5)[0]
    slope = np.log((flops * span**0.5 / 6 / most) ** 0.5 / low) / np.log(span)
    fit = known(**CHINCHILLA)
    found = derive.compute_optimal(fit, flops, span=span, search=(1e-3, most)).draws
    assert found.params_exponent.item() == pytest.approx(slope, abs=1e-5)
    assert found.tokens_exponent.item() == pytest.approx(1 - slope, abs=1e-5)
    assert abs(slope - closed_form(CHINCHILLA, flops)[1]) > 1e-3


def test_an_optimum_near_a_bound_of_the_search_or_on_it():
    fit = known(**CHINCHILLA)
    for inside in (3e-4, 0.02, 0.08, 0.2, 0.3):
        for search in ((1e-3, BEST * np.exp(inside)), (BEST * np.exp(-inside), 1e5)):
            found = derive.compute_optimal(fit, 1e22, search=search).draws
            assert found.tokens_per_param.item() == pytest.approx(BEST, rel=1e-4)
    assert not derive.compute_optimal(fit, 1e22).at_bound["params"].any()
    above = derive.compute_optimal(fit, 1e22, search=(500, 1e4))
    assert above.draws.tokens_per_param.values == pytest.approx(500)
    assert (above.to_frame()["at_bound"] == 1).all()
    assert above.notes[0] == "searched 500 to 1e+04 tokens per parameter"
    # At the budget the optimum is inside; at an end of the span of the exponents it is not.
    near = derive.compute_optimal(fit, 1e22, search=(1e-3, 1.01 * BEST)).at_bound
    assert not near["params"].any()
    assert near["params_exponent"].all()
    assert (
        "in 100 % of the draws; to search further: search=(50.0, 10000.0)"
        in above.notes[1]
    )


def test_the_search_is_that_of_the_rows_and_as_far_beyond_as_bands_were_tested():
    fit = known(**CHINCHILLA)
    ratios = fit.table.frame["tokens"] / fit.table.frame["params"]
    found = derive.compute_optimal(fit, 1e21)
    reach = 10 ** MEASURED_DECADES["tokens"]
    low, high = ratios.min() / reach, ratios.max() * reach
    assert found.notes[0] == f"searched {low:.4g} to {high:.4g} tokens per parameter"
    same = derive.compute_optimal(fit, 1e21, search=(low, high))
    assert same.to_frame().equals(found.to_frame())


def test_how_far_a_budget_lies_beyond_the_rows():
    """In the words of `bayeslaw check`, at the median split, whatever the law finds there."""
    fit = known(**CHINCHILLA)
    found = derive.compute_optimal(fit, [1e20, 1e23])
    split = found.draws.isel(draw=0, case=1)
    row = bl.grid(params=split.params.item(), tokens=split.tokens.item())
    away = bl.locate(fit.table, row)["decades"].item()
    frame = found.to_frame().set_index("quantity").loc["params"]
    assert list(frame["position"]) == ["interpolation", "extrapolation"]
    assert frame["decades"].to_numpy() == pytest.approx([0, away], rel=1e-3)
    text = " ".join(str(found).split())
    assert (
        f"flops 1e+20 interpolation; flops 1e+23 extrapolation ({away:.2g} decades"
        in text
    )
    assert "No evidence: rows lie up to" in text
    assert "No evidence" not in str(derive.compute_optimal(fit, 1e20))
    reached = derive.flops_to_reach(fit, [split.loss.item(), 1.0]).to_frame()
    assert reached["decades"][0] == pytest.approx(away, rel=1e-3)
    assert np.isnan(reached["decades"][1])  # never reached
    further, both = bl.grid(params=[1e9, 1e12], tokens=1e10), {"a": fit, "b": fit}
    for call in (
        lambda: derive.compute_optimal(fit, 1e27),
        lambda: derive.flops_to_reach(fit, 1.75),
        lambda: derive.local_exponents(fit, further),
        lambda: bl.compare_recipes(both, further),
    ):
        with pytest.warns(bl.TableWarning, match="No evidence: rows lie up to"):
            call()
    derive.compute_optimal(fit.accepted("beyond-evidence"), 1e27)


@beyond
def test_walking_exponents_have_the_best_of_all_forecasts():
    """Far beyond the rows on both sides, and where wide walks bend the loss at their knots."""
    wide = replace(
        WALK, draws=WALK.draws.assign(walk_scale=3 * WALK.draws["walk_scale"])
    )
    ratio = np.geomspace(0.1, 1e4, 12000)
    for fit, flops in ((WALK, 1e18), (WALK, 1e25), (wide, 1e18), (wide, 1e21)):
        best = derive.compute_optimal(fit, flops, search=(0.1, 1e4), drift=True)
        params = np.sqrt(flops / 6 / ratio)
        forecast = fit.latent(
            pd.DataFrame({"params": params, "tokens": ratio * params})
        ).min(1)
        found = best.draws.loss.values[:, 0]
        # Between nodes of the lattice a kink is rounded by a parabola.
        assert found == pytest.approx(forecast, rel=2e-4)


@beyond
def test_the_rule_is_that_of_the_law_fitted_without_discrepancy():
    """Against SciPy's least squares of the log losses, and the closed form of its optimum."""
    frame, flops = WALK.table.frame, [1e18, 1e21, 1e24]
    n, d, log_loss = (np.log(frame[c].to_numpy()) for c in ("params", "tokens", "loss"))

    def errors(place):
        e, a, b, alpha, beta = place
        return (
            np.logaddexp.reduce([0 * n + e, a - alpha * n, b - beta * d], axis=0)
            - log_loss
        )

    best = least_squares(errors, [0.5, 6, 6, 0.3, 0.3], x_scale="jac", xtol=1e-12)
    e, a, b, alpha, beta = best.x
    p = {"E": np.exp(e), "A": np.exp(a), "B": np.exp(b), "alpha": alpha, "beta": beta}
    found = (
        derive.compute_optimal(WALK, flops).to_frame().set_index(["quantity", "flops"])
    )
    for c in flops:
        params, exponent, loss = closed_form(p, c)
        near = {"params": 0.03 + 0.02 * abs(np.log10(c / 1e20)), "loss": 0.02}
        for name, expected in (("params", params), ("loss", loss)):
            row = found.loc[(name, c)]
            assert row["lower_90"] < expected < row["upper_90"]
            assert row["median"] == pytest.approx(expected, rel=near[name])
        assert found.loc[("params_exponent", c), "median"] == pytest.approx(
            exponent, abs=0.01
        )


def test_a_rule_and_its_band_with_drift_in_words_and_numbers():
    found = derive.compute_optimal(WALK, 1e21)
    drift = derive.compute_optimal(WALK, 1e21, drift=True)
    assert drift.with_drift is None
    assert drift.answers == ()
    # The loss with drift is that of the recommended split, and sizes are those of its own best one.
    split = found.draws.median("draw").isel(case=0)
    row = bl.grid(params=split.params.item(), tokens=split.tokens.item())
    beside, own = (each.draws.to_dataframe() for each in (found.with_drift, drift))
    assert beside.drop(columns="loss").equals(own.drop(columns="loss"))
    assert beside["loss"].to_numpy() == pytest.approx(WALK.latent(row)[:, 0], rel=1e-3)
    assert (beside["loss"] > own["loss"] - 1e-9).all()
    frame = found.to_frame((0.5, 0.9))
    for name in ("median", "lower_90", "determined"):
        assert list(frame[f"drift_{name}"]) == list(
            found.with_drift.to_frame((0.5, 0.9))[name]
        )
    text = " ".join(str(found).split())
    assert "C = 6 N D, of the law as stated Recommended for 1e+21 FLOPs: 1.8" in text
    assert (
        "a rule for sizes is a statement about the law, and drift serves forecasts"
        in text
    )
    assert "90 % with drift" in text
    assert found.shown().document["answers"] == list(found.answers)
    plain = derive.compute_optimal(PLAIN, 1e21)
    assert plain.with_drift is None
    assert len(plain.answers) == 1
    assert "drift" not in str(plain)
    ends = derive.compute_optimal(
        known(**CHINCHILLA | {"alpha": [0.01, 0.9]}), 1e21
    ).answers
    assert ends == (
        "Recommended for 1e+21 FLOPs: no size, since the best one is not determined.",
    )
    (bound,) = derive.compute_optimal(PLAIN, 1e22, search=(500, 1e4)).answers
    assert bound.endswith(
        ": no size, since the best one lies at an end of the range searched."
    )


def test_a_law_without_discrepancy_is_used_as_it_is():
    assert law_as_stated(PLAIN) is PLAIN
    one, two = (law_as_stated(fit) for fit in (WALK, WALK.accepted("beyond-evidence")))
    assert one.draws is two.draws  # sampled once
    assert "beyond-evidence" in two.accepts
    same = bl.fit(
        "chinchilla", WALK.table, discrepancy="none", seed=WALK.settings["seed"]
    )
    assert same.draws.equals(one.draws)
    other = replace(WALK, settings={**WALK.settings, "seed": 5})
    assert not law_as_stated(other).draws["alpha"].equals(one.draws["alpha"])


@pytest.mark.parametrize("name", ["columns", "groups", "one_base", "form1n", "domain"])
def test_the_law_as_stated_keeps_steps_held_columns_priors_and_likelihood(name):
    """Whatever the discrepancy, it is the spec of a fit that was asked for without one."""
    fit = next(iter(saved(name).members.values()))
    priors = {
        "sigma": bl.Prior("LogNormal", median=0.1, sigma=0.5),
        "tau_run": bl.Prior("HalfNormal", sigma=0.01),
    }
    for asked in (
        {},
        {"likelihood": "huber", "priors": {**priors, "E": "HalfNormal(sigma=3)"}},
    ):
        for discrepancy in ("auto", "curvature"):
            settings = make_settings({"discrepancy": discrepancy, **asked}, 0)
            drifting = replace(fit, spec=specify(fit.law, fit.table, settings))
            exact = replace(settings, discrepancy="none")
            found, wanted = spec_as_stated(drifting), specify(fit.law, fit.table, exact)
            assert found.identity == wanted.identity
            assert found.law.held == fit.law.held
    assert {type(step) for step in found.law.steps} >= {
        type(s) for s in fit.law.without_discrepancy.steps
    }


def test_priors_of_a_discrepancy_are_not_those_of_the_law_as_stated():
    asked = {"priors": {"walk_scale": bl.Prior("LogNormal", median=2, sigma=1)}}
    spec = specify("chinchilla", WALK.table, make_settings(asked, 0))
    plain = specify("chinchilla", WALK.table, make_settings({"discrepancy": "none"}, 0))
    assert spec_as_stated(replace(WALK, spec=spec)).identity == plain.identity


def test_a_rule_that_cannot_be_fitted_says_so(tmp_path):
    path = tmp_path / "bare.nc"
    WALK.save(path, losses=False)
    bare = bl.load(path).accepted("unconverged")
    refused(bl.FitError, "saved without its losses", derive.compute_optimal, bare, 1e21)
    refused(bl.FitError, "drift=True", derive.compute_optimal, bare, 1e21)
    split = derive.compute_optimal(WALK, 1e21, drift=True).to_frame()
    assert derive.compute_optimal(bare, 1e21, drift=True).to_frame().equals(split)


def test_a_rule_whose_fit_did_not_converge_says_so():
    good = replace(WALK, convergence=GOOD, accepts=frozenset())
    few = {"chains": 2, "draws": 20, "tune": 20, "retry": False}
    short = replace(good, settings={**good.settings, "seed": 11})
    with patch.dict(AS_STATED, few):
        refused(
            bl.NotConverged,
            "on table, fitted without discrepancy for the rule: ",
            derive.compute_optimal,
            short,
            1e21,
        )
        accepted = derive.compute_optimal(short.accepted("unconverged"), 1e21)
    assert all(
        failure.startswith("without discrepancy, table: ")
        for failure in accepted.failures
    )
    assert "NOT CONVERGED: without discrepancy" in str(accepted)
    assert "unconverged" in accepted.to_frame()


# -- budgets that reach a loss --------------------------------------------------------------------


@beyond
def test_flops_are_the_closed_form():
    _, exponent, loss = closed_form(PAPER, 1e22)
    floor, beta = PAPER["E"], PAPER["beta"]
    found = derive.flops_to_reach(PLAIN, [2.3, 1.8]).draws.flops.values
    for column, target in zip(found.T, [2.3, 1.8], strict=True):
        # At the optimum the reducible loss is a power of C, with exponent beta (1 - exponent).
        with np.errstate(invalid="ignore"):
            ratio = (target - floor) / (loss - floor)
            expected = 1e22 * ratio ** (-1 / (beta * (1 - exponent)))
        expected[target <= floor] = np.inf
        within = expected < 1e30
        assert column[within] == pytest.approx(expected[within], rel=1e-4)
        assert np.isinf(column[target <= floor]).all()
    easy = derive.flops_to_reach(PLAIN, 50.0)
    assert easy.at_bound["flops"].all()
    rows = PLAIN.table.frame
    assert easy.draws.flops.values == pytest.approx(
        6 * (rows["params"] * rows["tokens"]).min()
    )


def test_walking_exponents_reach_a_loss_at_its_flops_and_not_before():
    target = float(np.quantile(WALK.table.loss, 0.2))
    few = replace(WALK, draws=WALK.draws.isel(draw=slice(0, None, 10)))
    found = derive.flops_to_reach(few, target).draws.flops.values[:, 0]
    assert np.isfinite(found).mean() > 0.9
    for draw in np.flatnonzero(np.isfinite(found))[::4]:
        near = found[draw] * np.array([0.1, 0.5, 0.9, 1.0])
        loss = derive.compute_optimal(few, near, drift=True).draws.loss
        assert loss.values[draw, -1] == pytest.approx(target, rel=1e-5)
        assert (loss.values[draw, :-1] > target).all()


def test_flops_of_a_draw_do_not_depend_on_those_of_others():
    """Where a loss is reached between two budgets of the search and lost again, as alone."""

    def losses(rows):
        log_flops = (
            np.log(6 * rows.frame["params"] * rows.frame["tokens"]).to_numpy() - 40
        )
        early = 5 - log_flops  # the target 3 is reached at 2
        # At 3.5, and from 7.
        dips = 10 - log_flops - 4 * np.exp(-(((log_flops - 3.5) / 0.2) ** 2))
        return np.array([early, dips])

    def reached(draws):
        search = Budgets(PLAIN, lambda rows: losses(rows)[draws], (19.0, 21.0), {})
        return (
            np.log(search.flops_to([3.0], (np.exp(40.0), np.exp(50.0)))[0][:, 0]) - 40
        )

    assert reached([0, 1]) == pytest.approx([2.0, 7.0], abs=0.02)
    assert reached([1]) == pytest.approx([7.0], abs=0.02)


def test_multipliers_of_recipes_with_smaller_coefficients():
    other = known(**CHINCHILLA | {"E": [1.7, 2.4, 1.7, 2.4]})
    better = known(**CHINCHILLA | {"E": [1.7, 1.7, 2.4, 2.4], "A": 300.0, "B": 300.0})
    found = derive.compute_multiplier(better, other, 2.3)
    # Draws of separate fits are shifted against each other: pair them by hand.
    ours, theirs = (
        derive.flops_to_reach(fit, 2.3).draws.flops.values[:, 0]
        for fit in (better, other)
    )
    with np.errstate(invalid="ignore"):
        expected = np.roll(theirs, 2) / ours
    assert found.draws.multiplier.values[:, 0] == pytest.approx(expected, nan_ok=True)
    assert {0.0, np.inf} < set(expected)
    row = found.to_frame().iloc[0]
    assert (row["infinite"], row["undefined"]) == (0.25, 0.25)
    assert "independently" in found.notes[0]
    # Smaller coefficients A and B shift both terms: the loss of C is that of k C.
    k, a, b = 3.0, CHINCHILLA["alpha"], CHINCHILLA["beta"]
    scale = k ** (-a * b / (a + b))
    better = known(**CHINCHILLA | {n: scale * CHINCHILLA[n] for n in ("A", "B")})
    found = derive.compute_multiplier(
        better, reference=known(**CHINCHILLA), loss=[2.5, 2.0]
    )
    assert found.draws.multiplier.values == pytest.approx(k, rel=1e-4)


# -- local exponents and the floor ----------------------------------------------------------------


def test_exponents_of_the_plain_law():
    p, rows = (
        {n: v[:, None] for n, v in PAPER.items()},
        bl.grid(params=[2e8, 3e9], tokens=[2e9, 5e11]),
    )
    n, d = rows["params"].to_numpy(), rows["tokens"].to_numpy()
    size, data = p["A"] / n ** p["alpha"], p["B"] / d ** p["beta"]
    expected = {
        "alpha": p["alpha"] + 0 * n,
        "beta": p["beta"] + 0 * n,
        "reducible_N": p["alpha"] * size / (size + data),
        "reducible_D": p["beta"] * data / (size + data),
        "loss_N": p["alpha"] * size / (p["E"] + size + data),
        "loss_D": p["beta"] * data / (p["E"] + size + data),
    }
    found = derive.local_exponents(PLAIN, rows)
    assert set(found.draws) == set(expected)
    for name, values in expected.items():
        assert found.draws[name].values == pytest.approx(values, rel=1e-6)
    assert list(found.cases) == ["params", "tokens"]


@beyond
def test_exponents_where_data_repeat_count_what_the_tokens_are_worth():
    table = bl.from_frame(PLAIN.table.frame.assign(unique_tokens=2e9), "repeated")
    fit = drawn("chinchilla", table, CHINCHILLA | {"R_D": 8.0, "R_D_N": 0.3})
    p = {name: value.values.ravel() for name, value in fit.paper.items()}
    times = np.array([1, 4, 16])
    rows = pd.DataFrame({"params": 1e9, "tokens": 2e9 * times, "unique_tokens": 2e9})
    found = derive.local_exponents(fit, rows)
    assert found.cases["unique_tokens"].tolist() == [2e9] * 3
    for k, epochs in enumerate(times[1:], 1):
        rate = p["R_D"] * (2e9 / 20e9) ** p["R_D_N"]
        left = np.exp(-(epochs - 1) / rate)
        worth = 1 + rate * (1 - left)
        exponent = p["beta"] * epochs * left / worth
        assert found.draws["beta"].values[:, k] == pytest.approx(exponent, rel=1e-6)
        share = p["B"] * (2e9 * worth) ** -p["beta"]
        rest = p["A"] * 1e9 ** -p["alpha"]
        reducible = exponent * share / (share + rest)
        assert found.draws["reducible_D"].values[:, k] == pytest.approx(
            reducible, rel=1e-6
        )
    assert found.draws["alpha"].values == pytest.approx(p["alpha"][:, None] + 0 * times)
    far = rows.assign(tokens=1e11, unique_tokens=1e8)
    assert "decades of epochs" in str(derive.local_exponents(fit, far))


def slopes(fit, rows, column):
    low, high = (
        fit.law_loss(
            fit.design(fit.rows(rows.assign(**{column: rows[column] * np.exp(s)})))
        )
        for s in (-1e-4, 1e-4)
    )
    return -np.log(high / low) / 2e-4


def test_exponents_of_walks_and_of_new_bases_are_slopes_of_the_losses():
    found = derive.local_exponents(WALK, ROWS).draws
    for column, name in (("params", "loss_N"), ("tokens", "loss_D")):
        assert found[name].values == pytest.approx(slopes(WALK, ROWS, column), rel=1e-6)
    assert found["alpha"].values.std(1).min() > 0  # it walks
    rows = bl.grid(params=8e8, tokens=4e9, replay=0.25, ptpp=62).assign(
        base="a new one"
    )
    fit = adapted(0, draws=40)
    found = derive.local_exponents(fit, rows).draws["loss_D"].values
    assert found == pytest.approx(slopes(fit, rows, "tokens"), rel=1e-5)
    assert found.std() > 0
    # The floor is that of the posterior.
    row = derive.floor(PLAIN).to_frame((0.9,)).iloc[0]
    assert row[["lower_90", "upper_90"]].tolist() == pytest.approx(
        np.quantile(PAPER["E"], BAND)
    )
    assert row["unit"] == "nats per token"


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
    assert list(found[found].index) == [
        "narrow",
        "negative",
        "few_infinite",
        "all_infinite",
    ]
    # The quantile at the last finite draw is finite.
    reached = np.r_[np.arange(951.0), np.full(50, np.inf)]
    row = numbers(reached=reached).to_frame((0.8, 0.9, 0.95)).iloc[0]
    assert (row["median"], row["upper_80"], row["upper_90"]) == (500, 900, 950)
    assert (row["upper_95"], row["infinite"]) == (np.inf, 50 / 1001)


# -- recipes --------------------------------------------------------------------------------------


def best_loss(p, flops):
    """Loss of the compute-optimal split, by SciPy."""

    def loss(log_n):
        n = np.exp(log_n)
        return p["E"] + p["A"] / n ** p["alpha"] + p["B"] / (flops / 6 / n) ** p["beta"]

    return minimize_scalar(loss, bounds=np.log([1e6, 1e14]), method="bounded").fun


def test_probabilities_and_regret_by_hand():
    sure = known(**CHINCHILLA | {"E": np.full(4, 1.7)})
    unsure = known(**CHINCHILLA | {"E": [1.69, 1.71, 1.72, 1.73]})
    frame = bl.compare_recipes({"sure": sure, "unsure": unsure}, ROWS).to_frame()
    assert list(frame["params"]) == [1e9, 1e9, 1e10, 1e10]
    rows = frame.set_index("recipe").groupby("recipe").first()
    assert rows["p_best"].to_dict() == {"sure": 0.75, "unsure": 0.25}
    assert rows.loc["sure", "regret"] == pytest.approx(0.01 / 4)
    assert rows.loc["unsure", "regret"] == pytest.approx((0.01 + 0.02 + 0.03) / 4)
    assert rows.loc["unsure", "behind"] == pytest.approx(0.015)
    assert frame["loss"].between(frame["lower"], frame["upper"]).all()
    # The fit with the fewest draws sets their number.
    found = bl.compare_recipes(
        {"few": known(**CHINCHILLA), "many": unsure}, flops=[1e20, 1e24]
    )
    for draws in (found.losses, found.multipliers.draws, found.crossings.draws):
        assert draws.sizes["draw"] == 1


def test_budgets_multipliers_and_crossing():
    one, other, flops = (
        CHINCHILLA,
        CHINCHILLA | {"E": 1.85, "A": 200.0, "B": 200.0},
        [1e20, 1e24],
    )
    found = bl.compare_recipes(
        {"one": known(**one), "other": known(**other)}, flops=flops
    )
    expected = np.array([[best_loss(p, c) for c in flops] for p in (one, other)])
    assert found.losses.values[:, 0] == pytest.approx(expected, rel=1e-9)
    assert list(found.to_frame()["p_best"]) == [0, 1, 1, 0]
    # Both have the same exponents: the reducible losses are proportional to C^-a.
    a = one["alpha"] * one["beta"] / (one["alpha"] + one["beta"])
    k = [(best_loss(p, 1e21) - p["E"]) * 1e21**a for p in (one, other)]
    at = ((k[0] - k[1]) / (other["E"] - one["E"])) ** (1 / a)
    assert found.crossings.draws["one and other"].item() == pytest.approx(at, rel=0.02)
    # FLOPs of the other at the losses of the first.
    need = (k[1] / (expected[0] - other["E"])) ** (1 / a)
    ratio = found.multipliers.draws["other over one"].values[0]
    assert ratio == pytest.approx(np.array(flops) / need, rel=1e-4)
    equal = bl.compare_recipes({name: known(**one) for name in "ab"}, flops=1e22)
    assert list(equal.to_frame()["p_best"]) == [0.5, 0.5]
    assert equal.crossings.draws["a and b"].item() == np.inf


def test_multiplier_of_each_draw_has_the_losses_equal():
    """L_A(C) = L_B(C / m), also where floors and exponents differ from draw to draw."""
    rng = np.random.default_rng(0)
    spread = {
        n: v * np.exp(0.05 * rng.standard_normal((2, 40)))
        for n, v in CHINCHILLA.items()
    }
    one, other = (known(**{name: v[i] for name, v in spread.items()}) for i in range(2))
    found = bl.compare_recipes({"one": one, "other": other}, flops=[1e20, 1e22])
    multipliers = found.multipliers.draws["other over one"].values
    index, _ = pair_draws([one, other])
    reached = np.isfinite(1 / multipliers)
    assert reached.mean() > 0.8
    for draw, target in np.argwhere(reached)[::7]:
        p = {name: v[1, index[1][draw]] for name, v in spread.items()}
        loss = best_loss(p, [1e20, 1e22][target] / multipliers[draw, target])
        assert loss == pytest.approx(found.losses.values[0, draw, target], rel=1e-5)


@pytest.mark.slow
def test_interval_holds_a_planted_multiplier():
    """The second recipe reaches at every N and D the loss of the first at 2 N and 2 D: C / 4."""
    better = {
        n: CHINCHILLA[n] * 0.5 ** CHINCHILLA[of]
        for n, of in (("A", "alpha"), ("B", "beta"))
    }
    rows = bl.grid(params=[5e7, 1.5e8, 5e8, 1.5e9], tokens=[1e9, 3e9, 1e10, 3e10, 1e11])
    fits = {}
    for i, p in enumerate((CHINCHILLA, CHINCHILLA | better)):
        table = bl.simulate("chinchilla", p, rows, sigma=0.003, seed=i)
        fits[str(i)] = bl.fit("chinchilla", table, discrepancy="none", seed=0)
    frame = bl.compare_recipes(fits, flops=[1e19, 1e20, 1e21]).multipliers.to_frame()
    assert ((frame["lower_90"] < 4) & (frame["upper_90"] > 4)).all()
    assert (frame["upper_90"] < 2 * frame["lower_90"]).all()


def test_draws_are_compared_in_pairs_and_fits_of_other_domains_refused():
    floors = {"c4": [1.7, 1.8, 1.6, 1.75], "web": [1.74, 1.7, 1.65, 1.6]}
    fits = {name: known(**CHINCHILLA | {"E": floor}) for name, floor in floors.items()}
    found = bl.compare_recipes(fits, ROWS)
    difference = np.roll(floors["web"], 2) - floors["c4"]
    losses = found.losses.values
    np.testing.assert_allclose(
        losses[1] - losses[0], difference[:, None] + np.zeros((4, 2))
    )
    assert "independently: 2 fits" in found.notes[0]
    one = bl.compare_recipes(dict.fromkeys(fits, fits["c4"]), ROWS)
    np.testing.assert_array_equal(*one.losses.values)
    assert "jointly" in one.notes[0]

    def of(fit, file, domain):
        frame = fit.table.frame.assign(domain=domain).drop(columns="synthetic")
        return replace(fit, table=bl.from_frame(frame, file))

    one, other = fits.values()
    for files in (["a.csv", "b.csv"], ["a.csv", "a.csv"]):
        pair = [of(one, files[0], "c4"), of(other, files[1], "web")]
        says = r"of losses of other domains \(c4; web\)"
        refused(
            bl.FitError,
            says,
            bl.compare_recipes,
            dict(zip("ab", pair, strict=True)),
            ROWS,
        )
        refused(bl.FitError, says, derive.compute_multiplier, *pair, 2.3)
    for domain in ("c4", None):
        pair = {"a": of(one, "a.csv", None), "b": of(other, "b.csv", domain)}
        names = "a.csv does not" if domain else "a.csv and b.csv do not"
        with pytest.warns(bl.TableWarning, match=f"^{names} say which validation set"):
            bl.compare_recipes(pair, ROWS)
    alike = {"a": of(one, "a.csv", None), "b": of(other, "a.csv", None)}
    assert np.array_equal(bl.compare_recipes(alike, ROWS).losses, found.losses)


# -- accuracy -------------------------------------------------------------------------------------


def curve(loss):
    return 0.25 + 0.6 * expit((2.6 - loss) / 0.2)


def pairs(sd=0.01, count=20, seed=0, **columns):
    """Models on a curve, with deviations."""
    loss = np.linspace(2, 4, count)
    noise = np.random.default_rng(seed).normal(0, sd, count)
    return pd.DataFrame({"loss": loss, "accuracy": curve(loss) + noise, **columns})


def forecast(losses, sd=1e-6, kind="predictive"):
    """A forecast around given losses, with a standard deviation."""
    draws = np.asarray(losses) + sd * np.random.default_rng(1).normal(size=(1, 4000, 1))
    array = xr.DataArray(draws, dims=("chain", "draw", "row"))
    frame = pd.DataFrame({"params": [1e8] * len(losses), "domain": "web"})
    return bl.Forecast(array, frame, "chinchilla", kind, GOOD)


def test_pairs_on_a_curve_give_its_accuracies_by_task():
    losses = np.array([2.2, 2.6, 3.4])
    found = derive.accuracy(forecast(losses), pairs(sd=0)).to_frame()
    np.testing.assert_allclose(found["median"], curve(losses), atol=1e-3)
    assert (found["upper_90"] - found["lower_90"] < 2e-3).all()
    assert found["loss"].tolist() == pytest.approx(losses)
    one, two = pairs(sd=0, task="one"), pairs(sd=0, task="two")
    tasks = pd.concat([one, two.assign(accuracy=two["accuracy"] / 2)])
    found = (
        derive.accuracy(forecast([2.6]), tasks)
        .to_frame()
        .set_index("quantity")["median"]
    )
    assert (
        found["one"]
        == pytest.approx(2 * found["two"], abs=1e-2)
        == pytest.approx(0.55, abs=0.01)
    )


def test_the_band_has_the_uncertainty_of_the_loss():
    """By the slope of the curve, beside the deviations of the pairs."""
    sure, unsure = (
        derive.accuracy(forecast([2.6], sd), pairs()).draws["accuracy"].std().item()
        for sd in (1e-6, 0.05)
    )
    assert sure == pytest.approx(0.01, rel=0.4)
    assert unsure == pytest.approx(np.hypot(sure, 0.05 * 0.6 / 4 / 0.2), rel=0.15)


def test_the_posterior_of_curves_is_that_of_random_walks():
    """Against Metropolis steps on the same density, at two losses without deviations."""
    x, y = pairs(sd=0.02, count=12).to_numpy().T
    rng, extent = np.random.default_rng(0), np.ptp(x)

    def log_density(p):
        mid, log_width, floor, ceiling = p.T
        fitted = floor + (ceiling - floor) * expit(
            (mid - x[:, None]) / np.exp(log_width)
        )
        inside = (
            (abs(mid - x.mean()) < 1.5 * extent) & (floor >= 0) & (floor <= ceiling)
        )
        inside &= (ceiling <= 1) & (abs(log_width - np.log(extent / 10)) < np.log(10))
        squares = ((y[:, None] - fitted) ** 2).sum(0)
        return np.where(inside, -len(x) / 2 * np.log(squares), -np.inf)

    walkers = np.array([2.6, np.log(0.2), 0.25, 0.85]) + 0.02 * rng.normal(
        size=(400, 4)
    )
    density, kept = log_density(walkers), []
    for step in range(2000):
        one, two = rng.integers(0, len(walkers), (2, len(walkers)))
        moved = walkers + rng.choice([0.6, 1.0], (len(walkers), 1)) * (
            walkers[one] - walkers[two]
        )
        moved += 1e-4 * rng.normal(size=moved.shape)
        new = log_density(moved)
        better = np.log(rng.random(len(walkers))) < new - density
        walkers[better], density[better] = moved[better], new[better]
        if step > 800 and step % 20 == 0:
            kept.append(walkers.copy())
    mid, log_width, floor, ceiling = np.concatenate(kept).T
    ours = curves(x, y, 20_000, rng)
    for loss in (2.1, 3.0):
        wanted = floor + (ceiling - floor) * expit((mid - loss) / np.exp(log_width))
        found = ours[2] + (ours[3] - ours[2]) * expit((ours[0] - loss) / ours[1])
        q = [0.05, 0.5, 0.95]
        ends = np.quantile(wanted, q)
        np.testing.assert_allclose(
            np.quantile(found, q), ends, atol=0.06 * (ends[2] - ends[0])
        )
    # Given a curve the sum of squares of n pairs, over the variance, is chi-squared of n.
    mid, width, floor, ceiling, sigma = ours[..., None]
    squares = ((y - floor - (ceiling - floor) * expit((mid - x) / width)) ** 2).sum(1)
    assert np.mean(squares / sigma[:, 0] ** 2) == pytest.approx(12, abs=0.3)


def test_losses_outside_the_pairs_are_refused_row_by_row():
    found = derive.accuracy(forecast([1.9, 2.2, 4.5]), pairs())
    assert found.to_frame()["undefined"].tolist() == [1, 0, 1]
    refused = "refused: rows 0, 2, whose loss lies outside the losses of the 20 pairs of accuracy, "
    assert found.notes == (refused + "2 to 4",)
    assert "100 % undefined" in str(found)
    partly = derive.accuracy(forecast([2.05], sd=0.1), pairs())
    assert "of the draws of the loss lie outside" in partly.notes[0]


def test_losses_of_pairs_may_be_in_another_unit_and_a_falling_accuracy_is_noted():
    given = pairs()
    nats = derive.accuracy(forecast([2.6]), given)
    for unit, loss in (
        ("bits", given["loss"] / np.log(2)),
        ("perplexity", np.exp(given["loss"])),
    ):
        found = derive.accuracy(
            forecast([2.6]), given.assign(loss=loss), loss_unit=unit
        )
        np.testing.assert_allclose(found.draws["accuracy"], nats.draws["accuracy"])
    assert not nats.notes
    assert not derive.accuracy(forecast([2.6]), given.assign(accuracy=0.5)).notes
    (note,) = derive.accuracy(
        forecast([2.6]), given.assign(accuracy=1 - given["accuracy"])
    ).notes
    assert "falls as the loss falls (rank correlation" in note
    assert "1 - rate" in note


# -- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            pairs(accuracy=50.0),
            "rows 0, 1, 2, 3, 4 and 15 more: accuracy 50.0 is not between 0",
        ),
        (pairs().assign(loss=np.nan), "loss nan is not a positive number"),
        (pairs().assign(loss=0.0), "loss 0.0 is not a positive number"),
        (pairs(domain="books"), "rows of domain books"),
        (
            pairs(task=["a"] * 12 + [None] * 8),
            "rows 12, 13, 14, 15, 16 and 3 more: task is empty",
        ),
        (pairs(task="draw"), "a task cannot be called 'draw'"),
        (pairs(task="case"), "a task cannot be called 'case'"),
        (
            pairs().assign(loss=3.0),
            "20 pairs of accuracy; give at least 8, of different losses",
        ),
        (pairs(count=7), "7 pairs of accuracy"),
        (pairs().drop(columns="accuracy"), "no column 'accuracy'"),
        (pd.concat([pairs(), pairs()["loss"]], axis=1), "column 'loss' is there twice"),
    ],
)
def test_pairs_that_cannot_be_used(given, says):
    refused(bl.TableError, says, derive.accuracy, forecast([2.6]), given)


ONE = known(**CHINCHILLA)
POINT = bl.PointFit(
    PLAIN.law, CHINCHILLA, PLAIN.at, 0.0, 0.02, 0, 0, 1.0, table=PLAIN.table
)
AB = {"a": ONE, "b": ONE}
TWO = {"a": saved("two_stages"), "b": saved("two_stages")}


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: derive.compute_optimal(ONE, [1e22, -1]), "flops must be positi"),
        (lambda: derive.flops_to_reach(ONE, float("nan")), "loss must be positi"),
        (lambda: derive.compute_optimal(ONE, 1e22, span=1), "span"),
        (lambda: derive.compute_optimal(ONE, 1e22, search=(9, 1)), "least first"),
        (lambda: derive.compute_optimal(TWO["a"], 1e22), "depends on replay; give it"),
        (lambda: derive.compute_optimal(ONE, 1e22, ptpp=20), "does not depend on ptp"),
        (lambda: derive.compute_optimal(saved("unconverged"), 1e22), "converge"),
        (lambda: derive.floor(ONE).to_frame([90]), "level 90"),
        (lambda: bl.compare_recipes({"a": ONE}, flops=1e20), "two recipes or more"),
        (lambda: bl.compare_recipes(AB), "say where to compare"),
        (lambda: bl.compare_recipes(AB, flops=-1), "flops must be positive"),
        (lambda: bl.compare_recipes(AB, ROWS).to_frame(90), "not between 0 and 1"),
        (
            lambda: bl.compare_recipes(TWO, flops=1e20),
            "tokens, replay, ptpp; give rows",
        ),
        (
            lambda: derive.accuracy(forecast([2.6], kind="latent"), pairs()),
            "forecast has no noise",
        ),
        (
            lambda: derive.accuracy(POINT.forecast(ROWS), pairs()),
            "a point fit has no draws",
        ),
        (
            lambda: derive.accuracy(forecast([1.8, 1.9]), pairs()),
            r"\(1.8 to 1.9\) lies outside",
        ),
    ],
)
def test_mistakes_are_told(call, says):
    refused(bl.BayeslawError, says, call)


def test_an_unconverged_posterior_is_named():
    found = derive.compute_optimal(saved("unconverged").accepted("unconverged"), 1e22)
    assert found.to_frame()["unconverged"].str.len().all()
