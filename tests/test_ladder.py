"""Ladders in FLOPs: tables without N and D, the law of compute alone, and its floor."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from scipy.optimize import least_squares

import bayeslaw as bl
from bayeslaw import BayeslawError, FitError, LawError, TableError
from bayeslaw.common.defaults import DELTA
from tests.support import DATA, fails, refused, run

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
    law = bl.laws.lawfiles.parse_law(text + "[bounds]\nE = [1.2, 1.4]\n", "held")
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
