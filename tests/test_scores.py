"""Scores, comparisons, backtests, left-out rows, and residuals of saved posteriors."""

from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import patch

import arviz as az
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import logsumexp

import bayeslaw as bl
from bayeslaw.checks.left_out import left_out
from bayeslaw.evaluate._backtest import choose_cuts
from bayeslaw.evaluate.scores import band_scores, crps, point_scores
from bayeslaw.inference import residuals
from bayeslaw.inference.convergence import Convergence
from bayeslaw.inference.fitting import fit_spec
from bayeslaw.inference.settings import make_settings
from bayeslaw.inference.specification import specify
from bayeslaw.laws.symbols import ORIGIN
from bayeslaw.model.discrepancy import NoDiscrepancy
from bayeslaw.model.noise import DOF_FLOOR
from bayeslaw.tables.table import subset
from tests.support import (
    CHINCHILLA,
    on_bound,
    refused,
    saved,
    small,
    truth_of,
    with_effects,
)

SHORT = {"discrepancy": "none", "chains": 2, "draws": 100, "tune": 100, "retry": False}
POINT = ["huber_log", "rmse_log", "mae_rel", "mape_clip", "intercept", "slope"]
BANDS = ["coverage_50", "coverage_80", "coverage_90", "width_90", "crps", "winkler_90"]
WORLD = bl.paper_world()
SPLIT = {"train": "ptpp <= 31", "test": "ptpp == 279"}
ANCHORS = "ptpp == 279 and params == 241e6"
ALLOW = {"unconverged"}


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.5, 5), st.floats(0.5, 5)), min_size=1, max_size=9)
)
@example([(2.0, 2.0 / 1.01), (3.0, 3.0 / 1.1), (4.0, 4.0)])
@example([(2e-9, 1e-9)])  # tiny losses are clipped
@example([(2.0, 2.0), (2.0, 2.1)])  # a line needs two predictions
@example([(4.5, 1.0)] * 3)  # whose mean is not 4.5 to the last digit
def test_scores_of_points_row_by_row(pairs):
    predicted, loss = np.array(pairs).T
    r, error = np.abs(np.log(predicted) - np.log(loss)), np.abs(predicted - loss)
    wanted = [
        np.where(r <= 0.02, r**2 / 2, 0.02 * (r - 0.01)).mean(),
        np.sqrt((r**2).mean()),
    ]
    wanted += [(error / loss).mean(), (error / np.maximum(loss, 1e-8)).mean()]
    got = point_scores(predicted, loss)
    assert list(got) == POINT
    np.testing.assert_allclose([*got.values()][:4], wanted, rtol=1e-9, atol=1e-15)
    if np.ptp(predicted) > 0.01:
        line = stats.linregress(np.log(predicted), np.log(loss))
        wanted = [line.intercept, line.slope]
        np.testing.assert_allclose(
            [got["intercept"], got["slope"]], wanted, rtol=1e-8, atol=1e-10
        )
    assert (np.ptp(predicted) == 0) <= np.isnan(got["slope"])


def test_crps_by_brute_force():
    rng = np.random.default_rng(0)
    samples, truth = rng.standard_t(3, (40, 5)), rng.normal(size=5)
    pairs = np.abs(samples[:, None] - samples).mean((0, 1))
    wanted = np.abs(samples - truth).mean(0) - pairs / 2
    np.testing.assert_allclose(crps(samples, truth), wanted, rtol=1e-12)


def test_scores_of_bands_by_hand_are_of_log_loss():
    samples = np.linspace(0, 1, 1001)[:, None] * np.ones(4)
    truth = np.array([0.5, 0.15, 0.07, 1.2])  # inside all, in 80 %, in 90 %, above
    got = band_scores(samples, truth)
    assert [got[name] for name in BANDS[:3]] == [0.25, 0.5, 0.75]
    assert got["width_90"] == pytest.approx(0.9)
    assert got["winkler_90"] == pytest.approx(0.9 + 20 * (1.2 - 0.95) / 4)
    below = band_scores(samples[:, :1], np.array([-0.1]))
    assert below["winkler_90"] == pytest.approx(0.9 + 20 * 0.15)
    frame = bl.grid(params=1e9, tokens=1e9 * np.arange(1, 5))
    draws = xr.DataArray(np.exp(samples)[None], dims=("chain", "draw", "row"))
    passed = Convergence(1.0, 1e4, 1e4, 0, 1.0)
    forecast = bl.Forecast(draws, frame, "law", "predictive", passed)
    scored = bl.score(forecast, bl.from_frame(frame.assign(loss=np.exp(truth))))
    assert scored[BANDS].to_dict() == pytest.approx(got)
    assert scored["mae_rel"] == pytest.approx(np.abs(np.exp(0.5 - truth) - 1).mean())


def test_a_posterior_is_scored_by_its_forecast_of_the_same_rows():
    plain, rows = saved("plain"), small()
    # Not those fitted.
    rows = bl.from_frame(rows.frame.assign(loss=1.001 * rows.loss), rows.name)
    forecast, got = plain.forecast(rows, seed=5), bl.score(plain, rows, seed=5)
    assert got.equals(bl.score(forecast, rows))
    wanted = point_scores(forecast.median, rows.loss)
    assert got.to_dict() == wanted | band_scores(
        np.log(forecast.samples), np.log(rows.loss)
    )
    point = bl.score(bl.fit_huber("chinchilla", small()), rows)
    assert list(got.index) == list(point.index) == POINT + BANDS
    assert point.notna().tolist() == [True] * 6 + [False] * 6
    runs, backwards = rows.frame.assign(run=np.arange(20.0)), rows.frame.iloc[::-1]
    turned = bl.from_frame(runs.assign(run=np.arange(20.0)[::-1]))
    # Rows of another domain are refused; without a domain they are the fit's.
    fitted = replace(plain, table=bl.from_frame(rows.frame.assign(domain="french")))
    point, greek = (
        bl.fit_huber("chinchilla", fitted.table),
        rows.frame.assign(domain="greek"),
    )
    of_other, mixed = (
        "of domain greek, but the law was fitted to fren",
        bl.from_frame(greek),
    )
    for call, says in (
        (
            lambda: bl.score(plain.forecast(rows.frame[:4]), rows),
            "forecast has 4 rows, .* has 20",
        ),
        (
            lambda: bl.score(forecast, bl.from_frame(backwards)),
            r"row 0: params is 1.*st and 3",
        ),
        (lambda: bl.score(plain.forecast(runs), turned), "row 0: run is 0"),
        (lambda: bl.score(fitted, mixed), of_other),
        (lambda: bl.check(fitted, greek.drop(columns="loss")), of_other),
        (lambda: point.forecast(mixed), of_other),
    ):
        refused(bl.TableError, says, call)
    assert bl.score(plain.forecast(runs), rows).equals(bl.score(plain, rows))
    np.testing.assert_array_equal(
        fitted.forecast(rows).samples, plain.forecast(rows).samples
    )


def test_rows_that_were_fitted_are_not_scored():
    plain, fitted = saved("plain"), small()
    new = fitted.frame.assign(tokens=1.3 * fitted.frame["tokens"])
    mixed = bl.from_frame(pd.concat([fitted.frame.iloc[:7], new.iloc[:5]]), "mixed")
    alone = bl.from_frame(new.iloc[:5], "new")
    for fit in (plain, bl.fit_huber("chinchilla", fitted)):
        with pytest.warns(
            bl.TableWarning, match="mixed: 7 of these 12 rows were fitted: not sco"
        ):
            got = bl.score(fit, mixed)
        rest = (
            fit.predict(alone)
            if fit is not plain
            else fit.forecast(mixed).held_out.median
        )
        assert got[POINT].to_dict() == pytest.approx(point_scores(rest, alone.loss))
        with pytest.warns(bl.TableWarning, match="All 20 rows were fitted"):
            bl.score(fit, fitted)
    forecast = plain.forecast(mixed)
    assert forecast.held_out.frame["tokens"].tolist() == alone.frame["tokens"].tolist()
    assert "7 of these 12 rows were fitted: not scored. Of 5 measured" in str(
        forecast.shown()
    )
    assert "All 20 rows were fitted" in str(plain.forecast(fitted).shown())
    # The same settings measured again are another row.
    again = bl.from_frame(fitted.frame.assign(loss=1.002 * fitted.loss))
    assert plain.forecast(again).held_out.frame.equals(plain.forecast(again).frame)
    assert (
        bl.plots.coverage(forecast).axes[0].get_ylabel() == "coverage (% of 5 losses)"
    )
    checked = bl.check(plain, mixed)["held out"]
    assert len(checked.frame) == len(forecast.held_out.frame)


@on_bound
@pytest.mark.filterwarnings("ignore:.*rows were fitted")
def test_the_papers_comparison_has_the_scores_of_single_fits():
    world = WORLD.table("french", seed=0)
    train, test = world.split(**SPLIT)
    found = bl.compare(world, **SPLIT)
    assert list(found.index) == [
        "form1",
        "form2",
        "form3",
        "dcpt (transfer)",
        "dcpt (oracle)",
    ]
    assert list(found.columns) == [*POINT, *BANDS, "rows", "scored", "note"]
    assert list(found["rows"]) == [168] * 4 + [84]
    assert list(found["scored"]) == [84] * 5
    assert found[BANDS].isna().all(axis=None)
    form2, spread = (
        bl.fit_huber("form2", train),
        bl.fit_huber("form2", train).forecast(test),
    )
    most = 100 * (spread["highest"] / spread["lowest"] - 1).max()
    assert found.loc["form2", "note"].endswith(f"up to {most:.2g} % apart")
    # Anchors become training rows; transfer and oracle do without them.
    anchored = bl.compare(world, **SPLIT, anchors=ANCHORS, laws=["form3", "dcpt"])
    assert list(anchored["rows"]) == [189, 168, 84]
    assert list(anchored["scored"]) == [63, 63, 84]
    rest, oracle = world.split(**SPLIT, anchors=ANCHORS)[1], bl.fit_huber("dcpt", test)
    for frame, label, fitted, rows in (
        (found, "form2", form2, test),
        (found, "dcpt (oracle)", oracle, test),
        (anchored, "dcpt (oracle)", oracle, test),
        (anchored, "dcpt (transfer)", bl.fit_huber("dcpt", train), rest),
    ):
        got, alone = (
            frame.loc[label, POINT].astype(float),
            bl.score(fitted, rows)[POINT],
        )
        np.testing.assert_allclose(got, alone, rtol=1e-12)


def test_each_domain_is_compared_by_itself():
    tables, some = (
        [WORLD.table(d, seed=0) for d in ("french", "english_arabic")],
        {**SPLIT},
    )
    some["laws"] = ["form2"]
    one, two = (bl.compare(table, **some) for table in tables)
    both = bl.compare(WORLD.table(None, seed=0), **some)
    assert both.index.names == ["domain", "law"]
    pd.testing.assert_frame_equal(both.loc["french"], one)
    pd.testing.assert_frame_equal(both.loc["english_arabic"], two)
    pd.testing.assert_frame_equal(bl.compare(tables[0], source=tables[1], **some), both)
    bare = [
        bl.from_frame(table.frame.drop(columns="domain"), "bare") for table in tables
    ]
    got = bl.compare(bare[0], source=bare[1], **some)
    assert list(got.index.unique("domain")) == ["target", "source"]
    with pytest.raises(bl.TableError, match="a domain in common: french"):
        bl.compare(tables[0], source=tables[0], **some)


def test_posteriors_are_compared_with_the_settings_that_are_given():
    train, test = small().split("tokens < 5e10")
    how = SHORT | {"likelihood": "huber", "delta": 0.05}
    asked = {"train": "tokens < 5e10", "laws": ["chinchilla"], "method": "nuts", **how}
    refused(bl.NotConverged, "fit.accepted..unconverged", bl.compare, small(), **asked)
    found = bl.compare(small(), **asked, accepts=ALLOW).loc["chinchilla"]
    fitted = bl.fit("chinchilla", train, **how)
    assert (
        found[POINT + BANDS].to_dict()
        == bl.score(fitted.accepted(ALLOW), test).to_dict()
    )
    assert found["note"] == "; ".join(fitted.convergence.failures) != ""


def test_a_backtest_scores_the_forecasts_of_later_rows_at_each_cut(tmp_path):
    design = bl.grid(params=[1e8, 3e8, 1e9, 3e9], tokens=[3e9, 1e10, 3e10])
    table = bl.simulate("chinchilla", CHINCHILLA, design, sigma=0.005, seed=1)
    flops = 6 * table.frame["params"] * table.frame["tokens"]
    rivals = {"other": {"likelihood": "normal"}}
    found = bl.backtest(
        table, "chinchilla", cuts=[2.5e19, 6e19], rivals=rivals, seed=3, **SHORT
    )
    assert found.models == ("chinchilla", "other")
    for cut, rows in found.rows.groupby("cut"):
        assert len(rows) == 2 * (flops > cut).sum()
        assert rows["decades"].max() == pytest.approx(np.log10(flops.max() / cut))
    train, test = table.split("6 * params * tokens <= 6e19")
    for model, how in {"chinchilla": {}, **rivals}.items():
        fitted = bl.fit("chinchilla", train, seed=3, **SHORT | how).accepted(ALLOW)
        scores = bl.score(fitted, test, seed=3)
        rows = found.rows[(found.rows["model"] == model) & (found.rows["cut"] == 6e19)]
        assert rows["inside_90"].mean() == scores["coverage_90"]
        got = [rows["crps"].mean(), np.sqrt((rows["error"] ** 2).mean())]
        assert got == pytest.approx([scores[n] for n in ("crps", "rmse_log")])
        # Between two draws, a quantile of losses is not the exponential of one of their logs.
        assert rows["width_90"].mean() == pytest.approx(scores["width_90"], rel=1e-5)
    found.write(path := tmp_path / "backtest.csv")
    again = bl.read_backtest(path)
    assert (again.along, again.models, again.name) == (
        found.along,
        found.models,
        found.name,
    )
    pd.testing.assert_frame_equal(again.rows, found.rows, rtol=1e-15)
    # How far ahead a forecast looks, beside what was tested.
    for decades, says in (
        (0, f"Backtest: {found.sentence()} "),
        (-0.05, "not ahead of its training rows"),
        (0.1, "looks 0.1 ahead; of "),
        (
            found.rows["decades"].max() + 1,
            "ahead, 1 farther than any cut of the table could show.",
        ),
    ):
        rows = pd.DataFrame({"params": [1.0], "tokens": 10**decades * flops.max() / 6})
        assert says in again.looking(table, rows)
    table.frame.to_csv(path, index=False)
    refused(bl.TableError, "not a backtest", bl.read_backtest, path)


def test_rows_before_a_cut_are_enough_and_vary_in_what_the_law_needs():
    # One size has five rows.
    assert choose_cuts(small(), small().frame["params"]) == [
        3e8,
        1e9,
    ]
    few = small().query("params < 2e8")
    refused(
        bl.TableError,
        "no cut has 8 rows before it",
        choose_cuts,
        few,
        few.frame["tokens"],
    )
    law, first = bl.load_law("dcpt"), 6 * 2e8 * 1e9
    design = bl.grid(
        params=[1e8, 2e8, 4e8], tokens=[1e9, 1e10], replay=[0.1, 0.2, 0.4, 0.8]
    )
    table = bl.simulate("dcpt", truth_of(law.parameters), design)
    flops = 6 * table.frame["params"] * table.frame["tokens"]
    # Eight rows of two sizes, and of one D.
    assert choose_cuts(table, flops)[0] == first
    cuts = choose_cuts(table, flops, [law])
    assert cuts
    assert all(table.frame.loc[flops <= cut, "tokens"].nunique() == 2 for cut in cuts)
    with pytest.raises(
        bl.TableError, match=r"was fitted to rows of tokens 1e[+]09 alone"
    ):
        bl.backtest(table, "dcpt", cuts=[first], **SHORT)


def test_left_out_rows_agree_with_arviz_and_finds_noise_of_a_wrong_scale():
    plain, shape = saved("plain"), (4, 500, 20)
    rows = {"log_loss": residuals.log_likelihood(plain).reshape(shape)}
    draws = {name: values.values for name, values in plain.draws.data_vars.items()}
    wanted = az.loo(
        az.from_dict({"posterior": draws, "log_likelihood": rows}), pointwise=True
    )
    got = left_out(plain, 0)[0]
    assert got.elpd_i.dims == ("row",)
    np.testing.assert_allclose(got.elpd_i, wanted.elpd_i, rtol=1e-6)
    np.testing.assert_allclose(got.pareto_k, wanted.pareto_k, rtol=1e-6)
    assert got.elpd == pytest.approx(wanted.elpd)
    assert got.se == pytest.approx(wanted.se)
    assert az.compare({"one": got, "other": wanted})[
        "elpd_diff"
    ].tolist() == pytest.approx([0, 0])
    assert bl.check(plain)["left out"].facts["p"] > 0.01
    wide = replace(plain, draws=plain.draws.assign(sigma=10 * plain.draws["sigma"]))
    assert bl.check(wide)["left out"].facts["p"] < 0.01
    table = replace(plain.table, frame=plain.table.frame.assign(run=None))
    other = left_out(replace(plain, table=table), 0)[0]
    assert other.elpd_i.dims == ("row",)  # rows without labels are no run


def test_units_with_a_large_pareto_k_are_counted_and_not_tested():
    even, bad = (np.arange(40) + 0.5) / 40, np.full(30, 1e-3)
    k = np.r_[np.full(40, 0.2), np.full(29, 0.71), np.nan]
    units = xr.DataArray(np.r_[even, bad], {"row": np.arange(70)}, ("row",))
    of_units = {"elpd_i": 0 * units, "pareto_k": units.copy(data=k), "elpd": 0.0}
    found = {}
    for good_k in (0.7, 0.72):
        psis = SimpleNamespace(**of_units, good_k=good_k)
        with patch("bayeslaw.checks.left_out.left_out", return_value=(psis, units)):
            found[good_k] = bl.check(saved("plain"))["left out"].facts
    assert found[0.7]["unreliable"] == 30
    assert found[0.7]["p"] > 0.1
    assert found[0.72]["p"] < 1e-6


def test_mistakes_of_comparisons_and_backtests():
    world, table, early = WORLD.table("french", seed=0), small(), "ptpp <= 31"
    compare, backtest = bl.compare, bl.backtest
    for call, given_arguments, how, says in (
        (compare, [world], {"train": "ptpp > 1e9"}, "the train set is empty"),
        (
            compare,
            [world],
            {"train": "ptpp == 15", "laws": ["form3"]},
            "to rows of ptpp 15 alone",
        ),
        (compare, [world], {"train": early, "laws": ["from3"]}, "did you mean 'form3'"),
        (
            compare,
            [world],
            {"train": early, "method": "hubr"},
            "'huber' or 'nuts', not 'hubr'",
        ),
        (compare, [world], {"train": early, "delta": -1}, "delta must be positive"),
        (compare, [world], {}, "needs a train or a test query"),
        (
            compare,
            [world],
            {**SPLIT, "drws": 5},
            "unknown setting 'drws'; did you mean 'draws'",
        ),
        (compare, [world], {**SPLIT, "draws": 5}, "method='huber' does not use draws"),
        (backtest, [table, "chinchilla"], {"along": "flop"}, "did you mean 'flops'"),
        (backtest, [table, "chinchilla"], {"along": "ptpp"}, "no column 'ptpp'"),
        (backtest, [table, "chinchilla"], {"cuts": [1e30]}, "leaves no row"),
    ):
        refused(bl.BayeslawError, says, call, *given_arguments, **how)


@pytest.mark.slow
def test_left_out_rows_agree_with_refits():
    """PSIS against refits, each without one row."""
    plain, miss = saved("plain"), []
    quick = left_out(plain, 0)[0]
    # With 500 draws of a refit the error of one row is .3 by chance; with these it is half of it.
    how = {"chains": 2, "draws": 2000, "tune": 500, "retry": False, "progress": False}
    for row in np.flatnonzero(quick.pareto_k < quick.good_k):
        out = np.arange(20) == row
        fit = fit_spec(
            plain.spec, subset(plain.table, ~out), make_settings(how, seed=int(row))
        )
        test = subset(plain.table, out)
        density = residuals.density(fit, test.frame, residuals.residual(fit, test))
        miss.append(
            logsumexp(density) - np.log(len(density)) - quick.elpd_i.values[row]
        )
    assert len(miss) > 14
    assert np.abs(miss).max() < 0.25
    assert abs(np.mean(miss)) < 0.05


def test_the_likelihood_and_covariance_of_runs_are_of_their_effects():
    fitted = saved("runs")
    runs, names = (
        fitted.table.frame["run"].to_numpy(),
        fitted.draws["run"].values.tolist(),
    )
    effect = fitted.draws["run_effect"].values.reshape(fitted.count, -1)
    effect = effect[:, [names.index(run) for run in runs]]
    error = np.log(fitted.table.loss / fitted.latent(fitted.table)) - effect
    walk = saved("walk")  # effects of size are in its latent loss
    of_walk = np.log(walk.table.loss / walk.latent(walk.table))
    for fit, errors in ((fitted, error), (walk, of_walk)):
        q, got = fit.values(), residuals.log_likelihood(fit)
        wanted = stats.t.logpdf(
            errors, q["dof_above_floor"] + DOF_FLOOR, scale=q["sigma"]
        )
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-12)
    tau, sigma = (float(fitted.draws[n].median()) for n in ("tau_run", "sigma"))
    square = sigma**2 * np.eye(len(runs)) + tau**2 * (runs[:, None] == runs)
    np.testing.assert_allclose(residuals.covariance(fitted), square)


def test_the_density_of_a_left_out_run_of_normal_noise_is_closed_form():
    index, tau = np.arange(20) % 10, 0.005
    fitted = with_effects(
        saved("plain"), "run", index.astype(str), tau, likelihood="normal"
    )
    found, own = residuals.unit_likelihood(fitted, index)
    assert own["run"].all()
    error, sigma = (
        np.log(fitted.table.loss / fitted.latent(fitted.table)),
        fitted.values()["sigma"],
    )
    psis, pit = left_out(fitted, 0)
    for i in range(10):
        pair = error[:, index == i]
        for draw in (0, 50, 1999):
            square = sigma[draw, 0] ** 2 * np.eye(2) + tau**2
            wanted = stats.multivariate_normal.logpdf(pair[draw], cov=square)
            assert found[draw, i] == pytest.approx(wanted, abs=1e-3)
        # A run that is left out is a new one: its effect is normal, and so is its noise.
        weights = np.exp(found[:, i].min() - found[:, i])
        below = stats.norm.cdf(pair.mean(1) / np.sqrt(tau**2 + sigma[:, 0] ** 2 / 2))
        if psis.pareto_k[i] < 0.5:
            wanted = np.average(below, weights=weights)
            assert float(pit[i]) == pytest.approx(wanted, abs=0.05)
    assert (psis.pareto_k < 0.5).sum() > 5
    # Without effects, the rows of a run add up.
    without = replace(fitted, spec=saved("plain").spec, draws=saved("plain").draws)
    found, rows = (
        residuals.unit_likelihood(without, index)[0],
        residuals.log_likelihood(without),
    )
    np.testing.assert_allclose(found, rows.reshape(-1, 2, 10).sum(1))


def test_training_rows_without_a_label_have_the_effect_fitted_for_them():
    """Against the normal density; in new rows they are new groups."""
    plain, tau, alone = saved("plain"), 0.03, np.arange(20) % 5 == 0
    bases = np.where(alone, None, plain.table.frame["tokens"].astype(str))
    fitted = with_effects(plain, "base", bases, tau, likelihood="normal")
    names = fitted.draws["base"].values.tolist()
    places = [names.index(f"(row {i})" if alone[i] else bases[i]) for i in range(20)]
    effect = fitted.draws["base_effect"].values.reshape(fitted.count, -1)[:, places]
    latent, sigma = np.log(fitted.latent(fitted.table)), fitted.values()["sigma"]
    error, tree = np.log(fitted.table.loss) - latent, fitted.to_datatree(prior=10)
    found, replicated = (
        tree[group]["log_loss"].values.reshape(fitted.count, -1)
        for group in ("log_likelihood", "posterior_predictive")
    )
    expected = stats.norm.logpdf(error - effect, scale=sigma)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    spread = (replicated - latent - effect).std(0)
    np.testing.assert_allclose(spread, np.sqrt((sigma**2).mean()), rtol=0.1)
    drawn = np.log(fitted.forecast(fitted.table).samples) - latent
    assert np.corrcoef(drawn[:, 0], effect[:, 0])[0, 1] == pytest.approx(0, abs=0.1)
    assert np.corrcoef(drawn[:, 1], effect[:, 1])[0, 1] > 0.9
    # Left out, a row without a label is a new group: its effect is integrated out.
    density = stats.norm.pdf(error, scale=np.sqrt(sigma**2 + tau**2))[:, alone]
    elpd = left_out(fitted, 0)[0].elpd_i.values[alone]
    np.testing.assert_allclose(elpd, -np.log((1 / density).mean(0)), atol=0.02)


def test_the_forecast_of_a_pool_is_a_mixture_wider_where_its_members_differ():
    members, rows = (
        {"a": saved("walk"), "b": saved("plain")},
        bl.grid(params=5e9, tokens=[1e11]),
    )
    pool = bl.Pool(members, {"a": 1.0, "b": 3.0}).accepted(ALLOW)
    mixed = pool.forecast(rows, seed=4)
    assert float((mixed.draws["law"] == "a").mean()) == pytest.approx(0.25, abs=0.01)
    one, two = (pool.members[name].forecast(rows, seed=4) for name in "ab")
    mean = 0.25 * one.samples.mean(0) + 0.75 * two.samples.mean(0)
    np.testing.assert_allclose(mixed.samples.mean(0), mean, rtol=5e-3)
    both = {"good": saved("plain"), "bad": saved("unconverged")}
    # It need not converge.
    used = bl.Pool(both, {"good": 1.0, "bad": 0.0}).forecast(rows)
    assert set(used.fits) == {"good"}


NEW = bl.grid(params=[2e9], tokens=[2e9, 5e10])


def test_effects_of_new_sizes_take_out_what_the_law_absorbed_of_the_fitted_ones():
    few, rng, size = saved("curvature"), np.random.default_rng(0), [1e8, 3e8, 1e9]
    assert residuals.too_few_sizes(few)
    assert not residuals.new_size_effects(few, few.table.frame, rng).any()
    own = residuals.response(few, bl.grid(params=size, tokens=[1e10]))
    # The law goes through three sizes.
    np.testing.assert_allclose(own, np.eye(3), atol=0.35)
    tau = bl.Prior("LogNormal", median=0.01, sigma=1e-6)
    spec = replace(few.spec, priors={**few.spec.priors, "tau_size": tau})
    rows = pd.concat([NEW, NEW.assign(params=4e9), few.table.frame[:1]])[[*NEW]]
    rows = rows.reset_index(drop=True)
    found = residuals.new_size_effects(
        replace(few, spec=spec), rows, np.random.default_rng(3)
    )
    rng = np.random.default_rng(3)
    rng.standard_normal((few.count, 1))  # of the prior of tau
    fitted, new = (
        rng.standard_normal((few.count, 3)),
        rng.standard_normal((few.count, 3)),
    )
    wanted = 0.01 * (new[:, [1, 1, 2, 2, 0]] - fitted @ residuals.response(few, rows).T)
    np.testing.assert_allclose(found[:, :4], wanted[:, :4], atol=1e-6)
    assert not found[:, 4].any()
    # Not without a discrepancy, of four sizes, or where the user names the effects.
    how = {"discrepancy": "curvature"}
    auto, none = (
        specify(
            few.law.without_discrepancy,
            few.table,
            make_settings(how | {"effects": levels}, seed=0),
        )
        for levels in ("auto", "none")
    )
    assert auto.identity == few.spec.identity
    plain = replace(few, spec=replace(few.spec, discrepancy=NoDiscrepancy()))
    for other in (
        saved("plain"),
        plain,
        replace(few, table=small()),
        replace(few, spec=none),
    ):
        assert not residuals.too_few_sizes(other)
    assert not residuals.new_size_effects(replace(few, spec=none), NEW, rng).any()


def test_a_plan_has_the_effect_of_a_new_size_where_it_lies():
    """Its probability is that of the forecast there, as far out as the plan is."""
    few = saved("curvature").accepted({"unconverged", "beyond-evidence"})
    far = bl.grid(params=2e9, tokens=2e9 * 2000)
    source = bl.PointFit(
        bl.load_law("chinchilla"), CHINCHILLA, ORIGIN, 0.0, 0.02, 0, 0, 1.0
    )
    wanted = float(np.quantile(few.latent(far)[:, 0], 0.9))
    how = {"max_forgetting": 0.5, "replay": [1.0]}
    how |= {"source": source, "ptpp": 20.0, "baseline": 3.0}
    found = bl.plan(target=few, params=2e9, max_loss=wanted, **how)
    assert found.atpp > 300
    losses = np.log(few.latent(far.assign(tokens=found.tokens))[:, 0])
    there, near = (
        residuals.new_size_effects(
            few, far.assign(tokens=tokens), np.random.default_rng([0, 0])
        )
        for tokens in (found.tokens, 2e9)
    )
    held = np.mean(losses + there[:, 0] <= np.log(wanted))
    assert held == found.p_both == pytest.approx(0.9, abs=0.05)
    assert np.std(there - near) > 0.1 * np.std(there)
    named = replace(few, spec=replace(few.spec, new_sizes=False))
    assert (
        bl.plan(target=named, params=2e9, max_loss=wanted, **how).tokens != found.tokens
    )
    one, two = (
        bl.plan(target=fit, params=1e9, max_loss=2.4, **how) for fit in (few, named)
    )
    assert one.tokens == two.tokens  # a fitted size
