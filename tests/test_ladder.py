"""Ladders in FLOPs: tables without N and D, the law of compute alone, and its floor."""

import re

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from scipy.optimize import least_squares

import bayeslaw as bl
from bayeslaw import BayeslawError, FitError, LawError, TableError
from bayeslaw.common.defaults import DELTA
from bayeslaw.laws.lawfiles import parse_law, restored_law, stored_law
from tests.support import DATA, ROOT, fails, refused, run

TRUTH = {"E": 1.7, "A": 500.0, "alpha": 0.15}
FLOPS = [1e17, 3e17, 1e18, 3e18, 1e19, 3e19, 1e20, 3e20, 1e21, 3e21]
BEYOND = 1e22


def losses(flops):
    return TRUTH["E"] + TRUTH["A"] / np.asarray(flops) ** TRUTH["alpha"]


@pytest.fixture(scope="module")
def table():
    noise = np.random.default_rng(3).normal(0, 0.002, len(FLOPS))
    frame = pd.DataFrame({"flops": FLOPS, "loss": losses(FLOPS) * np.exp(noise)})
    return bl.from_frame(frame, "ladder.csv")


@pytest.fixture(scope="module")
def fit(table):
    fitted = bl.fit("ladder", table, chains=2, draws=300, retry=False, progress=False)
    return fitted.accepted("unconverged")


def test_a_table_of_flops_and_losses_alone():
    frame = pd.DataFrame({"flops": FLOPS, "loss": losses(FLOPS)})
    assert bl.from_frame(frame).frame["flops"].tolist() == FLOPS
    # With N and D, flops is a column like any other.
    whole = frame.assign(params=1e9, tokens=1e10, flops=np.nan)
    assert len(bl.from_frame(whole)) == len(FLOPS)
    for given, says in (
        (frame.drop(columns="loss"), "'loss' is missing"),
        (frame.rename(columns={"flops": "compute"}), r"columns=\{'flops': 'compute'\}"),
        (frame.assign(unique_tokens=1e9), "'unique_tokens' needs a column 'tokens'"),
        (frame.drop(columns="flops"), "'params' .* 'tokens' .* missing"),
        (frame.assign(params=1e9).drop(columns="flops"), "'tokens' .* missing"),
    ):
        refused(TableError, says, bl.from_frame, given)


def test_what_a_law_says_of_a_ladder(table):
    refused(TableError, "Laws that need only .*: ladder", bl.fit, "chinchilla", table)
    below = table.frame.assign(flops=[0.0, *FLOPS[1:]])
    refused(
        TableError,
        "'flops' is not positive",
        bl.fit_huber,
        "ladder",
        bl.from_frame(below),
    )
    wide = pd.DataFrame(
        {"params": [1e8, 1e9], "tokens": [1e9, 1e10], "loss": [3.4, 2.9]}
    )
    refused(
        TableError, "'flops' .* missing", bl.fit_huber, "ladder", bl.from_frame(wide)
    )


def test_huber_recovers_a_ladder():
    frame = pd.DataFrame({"flops": FLOPS, "loss": losses(FLOPS)})
    point = bl.fit_huber("ladder", bl.from_frame(frame))
    assert point.parameters == pytest.approx(TRUTH, rel=1e-4)
    ahead = point.forecast(bl.grid(flops=BEYOND))["prediction"]
    assert ahead.item() == pytest.approx(float(losses(BEYOND)), rel=1e-5)


def test_bounds_of_the_floor_are_in_nats(table):
    """They were in units of the mean loss."""
    text = (bl.common.files.models_dir() / "ladder.toml").read_text()
    given = 'floor = "Beta(alpha=2, beta=2)"'
    text = text.replace(given, 'E = "Uniform(lower=1.2, upper=1.4)"')
    law = parse_law(text + "[bounds]\nE = [1.2, 1.4]\n", "held")
    with pytest.warns(bl.FitWarning, match="on a bound"):
        point = bl.fit_huber(law, table)
    assert point.parameters["E"] == pytest.approx(1.4)
    assert point.at_bounds == pytest.approx({"E": 1.4})


def test_a_fit_forecasts_and_is_saved(fit, table, tmp_path):
    rows = bl.grid(flops=BEYOND)
    forecast = fit.forecast(rows)
    low, high = forecast.quantile([0.05, 0.95]).ravel()
    assert low < losses(BEYOND) < high
    assert 0.01 < np.log(high / low) < 0.3
    fit.save(tmp_path / "ladder.nc")
    again = bl.load(tmp_path / "ladder.nc").accepted("unconverged")
    np.testing.assert_array_equal(again.forecast(rows).samples, forecast.samples)
    assert "1e22" in str(forecast)
    assert "bands were tested to" in fit.verdict(bl.grid(flops=1e25)).evidence


def test_the_forecast_moves_with_the_floor(fit, table):
    found = bl.derive.at_floors(fit, bl.grid(flops=[1e22, 1e23]), [1.4, 1.6, 1.8])
    frame = found.to_frame()
    assert frame["floor"].tolist()[1:4] == [1.4, 1.6, 1.8]
    assert frame.groupby("flops").size().tolist() == [4, 4]
    for _, rows in frame.groupby("flops"):
        # Of 60 draws the medians are noisy.
        assert rows["median"].iloc[1] < rows["median"].iloc[3]
        assert rows["huber"].iloc[1:].is_monotonic_increasing
        assert (rows["draws"].iloc[1:] == round(0.1 * fit.count)).all()
        assert rows["least_E"].iloc[0] < 1.4 < 1.8 < rows["most_E"].iloc[0]
    # With E held, a line through the logs of what is above it, by Huber's loss of the log loss.
    logs = np.log(FLOPS) - np.log(1e19)

    def predicted(line, floor, logs):
        return np.log(floor + np.exp(line[0] - line[1] * logs))

    for floor in (1.4, 1.6, 1.8):
        by_hand = least_squares(
            lambda line, floor=floor: predicted(line, floor, logs) - np.log(table.loss),
            [-0.5, 0.15],
            loss="huber",
            f_scale=DELTA,
        )
        expected = np.exp(predicted(by_hand.x, floor, np.log(1e22 / 1e19)))
        of_floor = frame[(frame["floor"] == floor) & (frame["flops"] == 1e22)]
        assert of_floor["huber"].item() == pytest.approx(expected, rel=1e-4)
    free = fit.forecast(bl.grid(flops=1e22))
    assert frame["median"].iloc[0] == pytest.approx(free.median.item(), rel=2e-3)
    assert (found.range > 0).all()
    assert "free" in str(found)
    assert "the median moves by" in str(found)


def test_floors_that_no_draw_stands_for(fit):
    rows = bl.grid(flops=1e22)
    for floors, says in (
        ([2.9], "below .*, the least fitted loss"),
        ([-0.1], "from 0 to below"),
        ([1e-4], r"beyond all draws of E .*Normal\(mu=0.0001"),
        ([], "one floor or more"),
    ):
        refused(FitError, says, bl.derive.at_floors, fit, rows, floors)


def test_figures_and_checks_of_a_ladder(fit, table):
    test = bl.from_frame(pd.DataFrame({"flops": [1e22], "loss": losses([1e22])}))
    figure = bl.plots.overview(fit, test)
    assert "training compute" in figure.axes[0].get_xlabel()
    assert figure.axes[0].get_xlim()[1] > 1e22
    bl.plots.observed(fit.forecast(test))
    bl.plots.residuals(fit.forecast(test), fit.forecast(table))
    plt.close("all")
    refused(TableError, "no tokens to draw", bl.plots.forecast, fit, test)
    refused(TableError, "no tokens to draw", bl.plots.in_sample, fit)
    assert "held out" in str(bl.check(fit, test))
    exponents = bl.derive.local_exponents(fit, bl.grid(flops=1e21)).draws
    assert float(exponents["alpha"].median()) == pytest.approx(0.15, abs=0.07)
    refused(LawError, "needs a law of both", bl.derive.compute_optimal, fit, 1e22)
    says = "a plan needs a law of params"
    with pytest.raises(LawError, match=says):
        bl.plan(target=fit, source=fit, max_loss=2.0, max_forgetting=0.1)
    anchors = bl.choose_anchors(
        fit, bl.grid(flops=[2e21, 5e21]), bl.grid(flops=1e22), k=1
    )
    assert anchors.flops in (2e21, 5e21)
    assert "sd" in str(anchors)


def test_a_report_and_a_backtest_of_a_ladder(fit, table, tmp_path):
    rows = bl.from_frame(pd.DataFrame({"flops": [1e22], "loss": losses([1e22])}))
    bl.report(fit, rows).write(tmp_path / "report.html")
    assert "as the table says" in (tmp_path / "report.html").read_text()
    short = {"chains": 2, "draws": 100, "retry": False, "progress": False}
    found = bl.backtest(table, "ladder", cuts=[3e20], **short)
    assert found.rows["flops"].tolist() == [1e21, 3e21]
    compared = bl.compare(table, laws=["ladder"], train="flops <= 3e20")
    assert (compared["mae_rel"] < 0.02).all()


def test_the_command_line_states_the_floors(tmp_path):
    path = tmp_path / "ladder.csv"
    delphi = pd.read_csv(DATA / "delphi/clean.csv")
    clean = delphi.query("domain == 'math_clean_seen_1e22' and ladder == 'k020'")
    clean[["scale", "loss"]].to_csv(path, index=False)
    words = (
        f"forecast {path} --law ladder --columns flops=scale --train 'scale <= 3e20'"
    )
    words = words.replace("'scale <=", "'flops <=") + " --test 'flops > 3e20'"
    short = " --chains 2 --draws 200 --accept unconverged"
    result = run(words + short + f" --figure {tmp_path / 'ladder.png'}")
    assert "Forecast of ladder by floor" in result.stdout
    assert "Huber, E held" in result.stdout
    assert "0.600" in run(words + short + " --floors .5,.6").stdout
    assert "cannot read" in fails(words + short + " --floors many")
    assert "has no effect on" in fails(words + " --method huber --floors .5")


def test_one_call_reads_a_ladder(table):
    short = {"chains": 2, "draws": 200, "retry": False, "progress": False}
    found = bl.forecast(table.frame, "flops=1e22", accepts="unconverged", **short)
    assert "The law is ladder, since training compute alone is known." in str(found)
    assert found.forecast.median.item() == pytest.approx(float(losses(1e22)), rel=0.05)


def test_other_laws_forecast_at_floors():
    table = bl.example_table().query("scale <= 3e20")
    fitted = bl.fit(
        "chinchilla", table, chains=2, draws=200, retry=False, progress=False
    )
    fitted = fitted.accepted("unconverged")
    rows = bl.grid(params=1e10, tokens=8e9)
    found = bl.derive.at_floors(fitted, rows)
    assert len(found.to_frame()) == 6
    pool = bl.Pool({"a": fitted, "b": fitted})
    refused(BayeslawError, "take a member", bl.derive.at_floors, pool, rows)


# -- minima, and losses that rise again: terms that a law file can say --------------------------


def page_law():
    """The law file of the page on laws with a best rate and batch."""
    page = (ROOT / "docs/howto/law.md").read_text()
    section = page.partition("## A best learning rate and batch size")[2]
    (text,) = re.findall(r"^```toml\n(.*?)^```", section, re.M | re.S)
    return parse_law(text, "rates")


MINIMA = {
    **{"E": 1.7, "A": 400.0, "alpha": 0.34, "B": 410.0, "beta": 0.28},
    **{"c": 0.06, "m": 0.7, "k": -0.45, "h": 0.03, "b": -0.4, "g": 0.5},
}


def simulated_rates(sigma):
    rows = bl.grid(
        params=[1e8, 3e8, 1e9],
        tokens=[2e9, 1e10, 5e10],
        rate=[3e-4, 1e-3, 3e-3, 1e-2],
        batch=[1.25e5, 5e5, 2e6],
    )
    return bl.simulate(page_law(), MINIMA, rows, sigma=sigma, seed=1)


def test_two_minima_of_the_page_are_recovered():
    law = page_law()
    assert restored_law(stored_law(law)) == law
    table = simulated_rates(0.0)
    assert len(table) == 108
    point = bl.fit_huber(law, table)
    assert point.agreeing == 1
    assert point.parameters == pytest.approx(MINIMA, rel=1e-3)
    # The best rate of the law is where its parameters say, and moves with size.
    rates = np.geomspace(1e-4, 1e-1, 601)
    for size in (1e8, 1e9, 1e10):
        rows = bl.grid(params=size, tokens=1e10, rate=rates, batch=1e6)
        best = rates[point.forecast(rows)["prediction"].argmin()]
        expected = 1e-3 * np.exp(MINIMA["m"]) * (size / 1e9) ** MINIMA["k"]
        assert best == pytest.approx(expected, rel=0.02)


def test_intervals_contain_the_two_minima():
    short = {"chains": 2, "draws": 300, "retry": False, "progress": False}
    fit = bl.fit(page_law(), simulated_rates(0.003), discrepancy="none", **short)
    summary = fit.summary().loc[list(MINIMA)]
    truth = np.array([*MINIMA.values()])
    inside = (summary["q05"] < truth) & (truth < summary["q95"])
    assert inside.sum() >= 9
    of_best = summary.loc[["m", "b"]]
    assert (of_best["q95"] - of_best["q05"] < 0.15).all()


def test_a_loss_that_rises_again_is_recovered():
    text = (bl.common.files.models_dir() / "chinchilla.toml").read_text()
    rise = "-beta*log(D) + log(1 + c*(max(log(epochs), m) - m)**2)"
    text = text.replace("-beta*log(D)", rise)
    priors = 'c = "LogNormal(median=0.3, sigma=1)"\nm = "Normal(mu=3, sigma=1)"\n'
    bounds = "[bounds]\nm = [-inf, inf]\n"
    law = parse_law(text + priors + "[covariates.epochs]\n" + bounds, "rising")
    truth = {"E": 1.8, "A": 500.0, "alpha": 0.35, "B": 1400.0, "beta": 0.35}
    truth |= {"c": 0.4, "m": 2.5}
    rows = bl.grid(
        params=[5e7, 2e8, 8e8], tokens=[5e9, 2e10, 8e10], epochs=[1, 4, 16, 40, 99]
    )
    point = bl.fit_huber(law, bl.simulate(law, truth, rows, sigma=0.0))
    assert point.parameters == pytest.approx(truth, rel=1e-3)


def test_the_rates_of_delphi_have_a_law_file():
    law = bl.load_law(DATA / "delphi/rates.toml")
    table = bl.read_table(
        DATA / "delphi/k020.csv",
        columns={"flops": "scale"},
        where="domain == 'math_j050' and flops <= 3e20",
    )
    point = bl.fit_huber(law, table)
    assert point.agreeing == 1
    assert point.interior
    # The best rate falls with compute.
    assert point.parameters["k"] < 0
