"""The transfer law: its formula, the bases it starts from, and the fits that know them."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import bayeslaw as bl
from bayeslaw import LossTable
from tests.inside import START, Adaptation, base_table, for_table
from tests.support import TRANSFER as TRUTH
from tests.support import transfer_design as design


@pytest.fixture(scope="module")
def table(transfer_table):
    return transfer_table


@pytest.fixture(scope="module")
def law(transfer_law):
    return transfer_law


def test_loss_is_the_formula_by_hand(law, table):
    p, rows = TRUTH, table.frame
    n, d, r, budget = (rows[c].to_numpy() for c in ("params", "tokens", "replay", "ptpp"))
    core = p["E"] + p["A"] / n ** p["alpha"]
    core = core + p["F"] / n ** p["phi"] / (budget * n + p["rho"] * d) ** p["eta"]
    onset = np.exp(p["z"]) * n ** p["z_N"] * budget ** p["z_P"]
    g = (1 + (1 - r) ** p["v"] * d / onset) ** -p["beta"]
    chinchilla = law.bases.parameters["base_loss"]
    expected = chinchilla["E"] + chinchilla["A"] / n ** chinchilla["alpha"]
    expected = expected + chinchilla["B"] / (budget * n) ** chinchilla["beta"]
    base = (rows["base_loss"].to_numpy() / expected) ** p["k"]
    tilt = ((r + 0.01) / 0.26) ** -p["gamma"]
    loss = core * base * tilt * (1 - g) + rows["start_loss"].to_numpy() * g
    np.testing.assert_allclose(law.loss(p, law.covariates(rows)), loss, rtol=1e-10)


def test_the_share_of_the_start_is_the_derivative_by_its_log(law, table):
    law = Adaptation().apply(law.annealing())
    rows = table.frame.assign(annealed=np.arange(len(table)) % 2)
    x, at = law.covariates(rows), law.reference_point(rows)
    p = TRUTH | dict.fromkeys(law.offset.parameters, 0.01)
    p = law.amounts(law.to_reference(p | dict.fromkeys(law.discrepancy_parameters, 0.0), at), at)
    _, shares = law.log(p, x, at, np)
    log_left = np.log(law.departure.remaining(p, x, np))
    ends = [np.log(law.loss(p | {"beta": p["beta"] * (1 + h)}, x, at)) for h in (1e-6, -1e-6)]
    by = (ends[0] - ends[1]) / (2e-6 * log_left)
    np.testing.assert_allclose(shares[START], by, rtol=1e-4, atol=1e-9)


def test_the_floor_is_what_remains_of_the_loss(law, table):
    """At sizes and budgets where the terms and the start loss have vanished."""
    rows = table.frame.assign(params=1e60, tokens=1e200, ptpp=1e10)
    x = law.covariates(rows)
    np.testing.assert_allclose(law.floor(TRUTH, x), law.loss(TRUTH, x), rtol=1e-9)
    assert np.ptp(law.floor(TRUTH, x)) > 0.01  # it depends on the base and on replay


def test_no_adaptation_leaves_the_start_loss(law, table):
    rows = table.frame.assign(tokens=1e-6)
    np.testing.assert_allclose(law.loss(TRUTH, law.covariates(rows)), rows["start_loss"], rtol=1e-9)


def test_huber_fit_recovers_the_truth(table):
    point = bl.fit_huber("transfer", table)
    np.testing.assert_allclose(point.predict(table), table.loss, rtol=1e-6)
    assert point.parameters["beta"] == pytest.approx(TRUTH["beta"], rel=0.01)
    assert point.parameters["k"] == pytest.approx(TRUTH["k"], rel=0.01)


@pytest.mark.slow
def test_posterior_recovers_the_truth():
    """Errors correlated within runs, and a new base, whose losses are drawn."""
    rows = design(seed=1)
    exact = bl.simulate("transfer", TRUTH, rows, sigma=0.0)
    rng, errors = np.random.default_rng(2), []
    for _, run in exact.frame.groupby("run", sort=False):
        error, last = np.empty(len(run)), 0.0
        for i, log in enumerate(np.log(run["tokens"])):
            rho = np.exp(-(log - last)) if i else 0.0
            before = error[i - 1] if i else 0.0
            error[i] = rho * before + 0.004 * np.sqrt(1 - rho**2) * rng.standard_normal()
            last = log
        errors.append(error)
    frame = exact.frame.assign(loss=exact.loss * np.exp(np.concatenate(errors)))
    train, test = bl.from_frame(frame, "synthetic").split("ptpp < 279")
    fit = bl.fit("transfer", train, discrepancy="none", effects="none", seed=0)
    assert fit.convergence.ok
    assert fit.spec.errors == "run"
    for name in ("beta", "k", "gamma", "eta", "rho"):
        low, high = np.quantile(fit.paper[name], [0.005, 0.995])
        assert low < TRUTH[name] < high, name
    low, high = np.quantile(fit.draws["ell"], [0.005, 0.995])
    assert low < 1.0 < high
    assert 0.8 <= bl.score(fit, test)["coverage_90"] <= 1
    blind = test.frame.drop(columns=["base", "run", "start_loss", "base_loss"])
    new = blind.head(2).assign(base=["another", "new"])
    alone = fit.latent(new.tail(1))
    np.testing.assert_allclose(fit.latent(new)[:, 1:], alone, rtol=1e-13)
    bands = [fit.forecast(rows).bands((0.9,)) for rows in (test.frame, blind.assign(params=3.2e9))]
    width = [float(np.log(b["upper"] / b["lower"]).mean()) for b in bands]
    assert width[1] > width[0]
    with pytest.raises(bl.LawError, match="starts from the loss of a base"):
        bl.derive.compute_optimal(fit, [1e20], replay=0.3, ptpp=279)


def test_tables_say_the_losses_of_bases(tmp_path):
    rows = pd.DataFrame(
        {
            "base": ["a", "b"] * 2, "params": [1e8, 2e8] * 2, "ptpp": [15.0, 31.0] * 2,
            "tokens": [0, 0, 1e9, 1e9], "replay": [1.0, 1.0, 0.2, 0.2], "loss": [4, 3.9, 3, 2.9],
        }
    )  # fmt: skip
    rows.to_csv(tmp_path / "target.csv", index=False)
    rows.assign(loss=[3.0, 2.8, 3.1, 2.9]).to_csv(tmp_path / "source.csv", index=False)
    source = tmp_path / "source.csv"
    table = bl.read_table(tmp_path / "target.csv", where="replay < 1", source=source)
    assert table.frame["start_loss"].tolist() == [4, 3.9]
    assert table.frame["base_loss"].tolist() == [3.0, 2.8]
    assert len(table.baselines) == 2  # kept, though their replay is 1
    train, _ = table.split("ptpp == 15")
    assert len(base_table(train.frame, train.baselines, "t")) == 2
    rows[1:].to_csv(source, index=False)
    with pytest.raises(bl.TableError, match="no row with tokens = 0 for the base a"):
        bl.read_table(tmp_path / "target.csv", source=source)
    pd.concat([rows, rows.head(1).assign(loss=5.0)]).to_csv(source, index=False)
    with pytest.raises(bl.TableError, match="several losses at tokens = 0"):
        bl.read_table(tmp_path / "target.csv", source=source)
    rows.drop(columns="base").to_csv(tmp_path / "none.csv", index=False)
    with pytest.raises(bl.TableError, match="column 'base'"):
        bl.read_table(tmp_path / "none.csv", source=source)


def test_a_table_without_them_says_how_to_read_it():
    table = bl.from_frame(design().assign(loss=3.0).drop(columns="base_loss"))
    with pytest.raises(bl.TableError, match="source="):
        bl.fit_huber("transfer", table)


def test_bases_that_are_not_known_are_drawn(law, table):
    ahead = bl.grid(params=3.2e9, ptpp=[279, 500]).assign(base=["new", "base 3"])
    bases = law.bases
    assert bases.unknown(ahead).tolist() == [True, False]
    drawn = bases.draws(ahead, 4000, [0])
    start, deviation = bases.logs(ahead, np.where(bases.unknown(ahead), drawn, 0.0))
    assert start.shape == deviation.shape == (4000, 2)
    assert np.ptp(start[:, 1]) == 0
    assert deviation[:, 0].std() == pytest.approx(0.01, rel=0.5)
    known = table.frame.query("base == 'base 3'").iloc[0]
    assert np.exp(start[0, 1]) == pytest.approx(known["start_loss"])


def test_draws_of_new_bases_have_the_errors_of_the_bases_law(law):
    """Against the delta method, without variation between bases."""
    bases = replace(law.bases, spread=((0.0, 0.0), (0.0, 0.0)))
    drawn = bases.draws(bl.grid(params=3.2e9, ptpp=279), 4000, [0])[..., 0]
    x = {"params": np.log(3.2e9), "tokens": np.log(3.2e9 * 279)}
    for own, column in zip(drawn, ("start_loss", "base_loss"), strict=True):
        p = bases.parameters[column]
        slopes = []
        for name, value in p.items():
            step = 1e-6 * max(value, 0.1)
            ends = [np.log(bases.law.loss({**p, name: value + s}, x)) for s in (step, -step)]
            slopes.append((ends[0] - ends[1]) / (2 * step))
        errors = np.array(bases.errors[column])
        assert own.std() == pytest.approx(np.sqrt(np.array(slopes) @ errors @ slopes), rel=0.05)


def test_a_row_without_label_has_the_only_base_of_its_size_and_budget(law, table):
    ahead = bl.grid(params=1.6e9, ptpp=[279, 500])
    assert law.bases.unknown(ahead).tolist() == [False, True]
    known = table.frame.query("params == 1.6e9 and ptpp == 279").iloc[0]
    assert np.exp(law.bases.logs(ahead)[0][0]) == pytest.approx(known["start_loss"])
    twice = {**law.bases.known, "another": law.bases.known["base 24"]}
    assert replace(law.bases, known=twice).unknown(ahead).all()


def test_rows_of_one_new_base_start_alike(law):
    ahead = bl.grid(params=3.2e9, ptpp=279, replay=[0.1, 0.5]).assign(base="new")
    drawn = law.bases.draws(ahead, 5, [0])
    np.testing.assert_array_equal(drawn[..., 0], drawn[..., 1])
    beside = ahead.assign(base=["another", "new"])
    np.testing.assert_array_equal(law.bases.draws(beside, 5, [0])[..., 1], drawn[..., 1])
    assert (law.bases.draws(beside, 5, [0])[..., 0] != drawn[..., 0]).all()


def test_numeric_labels_name_bases_beside_a_missing_label(table):
    """A missing label turns the column into floats, and is as good as no column."""
    numbered = table.frame.assign(base=table.frame["base"].str[5:].astype(int))
    bases = for_table(bl.load_law("transfer"), bl.from_frame(numbered)).bases
    ahead = bl.grid(params=[1.6e9, 3.2e9], ptpp=[279, 500]).assign(base=[7, None, None, None])
    assert bases.unknown(ahead).tolist() == [False, True, True, True]
    known = numbered.query("base == 7").iloc[0]
    assert np.exp(bases.logs(ahead)[0][0]) == pytest.approx(known["start_loss"])
    drawn = bases.draws(ahead, 5, [0])[0]
    assert len(np.unique(drawn.round(12), axis=1).T) == 4
    twice = pd.concat([ahead, ahead], ignore_index=True)  # rows of one N and P start alike
    drawn = bases.draws(twice, 5, [0])
    np.testing.assert_array_equal(drawn[..., :4], drawn[..., 4:])


def test_a_label_of_a_base_is_not_used_again(table):
    again = bl.from_frame(table.frame.replace({"base": {"base 3": "base 4"}}))
    with pytest.raises(bl.TableError, match="base base 4 has several params, ptpp, start_loss or"):
        for_table(bl.load_law("transfer"), again)


def test_bases_are_no_part_of_what_is_compiled(law, table):
    other = replace(law, bases=replace(law.bases, spread=((1.0, 0.0), (0.0, 1.0))))
    assert other.identity == law.identity
    empty = LossTable(table.frame, table.frame.iloc[:0], "t")
    assert for_table(law, empty) is law
