"""Backtests: cuts, the rows that each forecasts, and scores that agree with a fit by hand."""

import numpy as np
import pandas as pd
import pytest

import bayeslaw as bl
from bayeslaw import Backtest, BayeslawError, TableError
from bayeslaw.plots import backtest as draw
from tests.inside import choose_cuts
from tests.support import CHINCHILLA, TRUTH

SHORT = {"chains": 2, "draws": 300, "tune": 300, "discrepancy": "none"}


@pytest.fixture(scope="module")
def table():
    design = bl.grid(params=[1e8, 3e8, 1e9, 3e9], tokens=[3e9, 1e10, 3e10])
    return bl.simulate("chinchilla", CHINCHILLA, design, sigma=0.005, seed=1)


@pytest.fixture(scope="module")
def found(table):
    huber = {"huber": {"likelihood": "huber"}}
    return bl.backtest(table, "chinchilla", cuts=[2.5e19, 6e19], rivals=huber, **SHORT)


def test_each_cut_forecasts_what_came_later(table, found):
    flops = 6 * table.frame["params"] * table.frame["tokens"]
    assert found.models == ("chinchilla", "huber")
    for cut, rows in found.rows.groupby("cut"):
        assert len(rows) == 2 * (flops > cut).sum()
        assert rows["decades"].max() == pytest.approx(np.log10(flops.max() / cut))


def test_scores_are_those_of_a_fit_by_hand(table, found):
    flops = 6 * table.frame["params"] * table.frame["tokens"]
    train, test = table.split("6 * params * tokens <= 6e19")
    scores = bl.score(bl.fit("chinchilla", train, **SHORT), test, allow_unconverged=True)
    rows = found.rows.query("model == 'chinchilla' and cut == 6e19")
    assert len(rows) == (flops > 6e19).sum()
    assert rows["crps"].mean() == pytest.approx(scores["crps"])
    assert rows["inside_90"].mean() == scores["coverage_90"]
    assert rows["width_90"].mean() == pytest.approx(scores["width_90"])
    assert np.sqrt((rows["error"] ** 2).mean()) == pytest.approx(scores["rmse_log"])


def test_the_true_law_holds(found):
    whole = found.summary()
    assert whole.loc["chinchilla", "coverage_90"] > 0.6
    assert whole.loc["chinchilla", "error"] < 0.02
    parts = found.by_distance()
    assert parts["rows"].sum() == len(found.rows)
    own = parts.loc["chinchilla"]
    assert (own["error"] * own["rows"]).sum() > 0


def test_the_sentence_counts():
    rows = pd.DataFrame({"model": "a", "cut": 1.0, "decades": [0.3, 0.5, 0.7]})
    rows = rows.assign(inside_90=[True, False, True], error=[0.01, -0.02, 0.006])
    text = Backtest(rows, "flops", ("a",), "t").sentence()
    assert text == (
        "0.5 decades of flops ahead (at most 0.7), on rows of t that came after 1 cut, the 90 % "
        "band held 2 of 3 and the median error was 1 %."
    )


def test_cuts_leave_enough_rows(table):
    cuts = choose_cuts(table, table.frame["params"])
    assert cuts == [1e9]  # 9 rows of three sizes; two sizes have 6
    with pytest.raises(TableError, match="no cut has 8 rows before it"):
        choose_cuts(table.query("params < 1e9"), table.query("params < 1e9").frame["tokens"])


def test_rows_before_a_cut_vary_in_what_the_law_needs():
    design = bl.grid(params=[1e8, 2e8, 4e8], tokens=[1e9, 1e10], replay=[0.1, 0.2, 0.4, 0.8])
    truth = {n: TRUTH[n] for n in bl.load_law("dcpt").parameters}
    table = bl.simulate("dcpt", truth, design)
    flops = 6 * table.frame["params"] * table.frame["tokens"]
    first = 6 * 2e8 * 1e9
    assert choose_cuts(table, flops)[0] == first  # eight rows of two sizes, and of one D
    cuts = choose_cuts(table, flops, [bl.load_law("dcpt")])
    assert cuts
    for cut in cuts:
        assert table.frame.loc[flops <= cut, "tokens"].nunique() == 2
    with pytest.raises(TableError, match=r"was fitted to rows of tokens 1e[+]09 alone"):
        bl.backtest(table, "dcpt", cuts=[first], **SHORT)


def test_mistakes(table):
    with pytest.raises(BayeslawError, match="unknown quantity 'flop'; did you mean 'flops'"):
        bl.backtest(table, "chinchilla", along="flop")
    with pytest.raises(TableError, match="no column 'ptpp'"):
        bl.backtest(table, "chinchilla", along="ptpp")
    with pytest.raises(TableError, match="leaves no row"):
        bl.backtest(table, "chinchilla", cuts=[1e30], **SHORT)


def test_the_figure_shows_every_row(found):
    figure = draw(found)
    points = sum(len(line.get_xdata()) for line in figure.axes[0].lines[:2])
    assert points == (found.rows["model"] == "chinchilla").sum()


def test_how_far_ahead_a_forecast_looks(table, found, tmp_path):
    path = tmp_path / "backtest.csv"
    found.write(path)
    again = bl.read_backtest(path)
    assert (again.along, again.models, again.name) == (found.along, found.models, found.name)
    pd.testing.assert_frame_equal(again.rows, found.rows, rtol=1e-15)
    last = (6 * table.frame["params"] * table.frame["tokens"]).max()
    tested = found.rows["decades"].max()

    def looking(factor):
        return again.looking(table, pd.DataFrame({"params": [1.0], "tokens": factor * last / 6}))

    assert looking(1).startswith(f"Backtest: {found.sentence()} ")
    assert "not ahead of its training rows" in looking(0.9)
    assert "looks 0.1 ahead; of " in looking(10**0.1)
    beyond = looking(10 ** (tested + 1))
    assert "ahead, 1 farther than any cut of the table could show." in beyond
    table.frame.to_csv(path, index=False)
    with pytest.raises(TableError, match="not a backtest"):
        bl.read_backtest(path)
