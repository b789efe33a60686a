"""`check`: verdicts and held-out rows, what rows leave undetermined, distance."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import bayeslaw as bl
from bayeslaw.checks import held_out, information
from bayeslaw.checks.prior_draws import prior_of, spread
from bayeslaw.design.design import Design
from bayeslaw.inference.fitting import refit
from bayeslaw.inference.residuals import covariance
from bayeslaw.tables.verdict import MEASURED_DECADES
from tests.support import CHINCHILLA, DATA, ROOT, refused, saved, small

FRENCH = bl.paper_world().table("french", seed=0)
LATE = FRENCH.query("ptpp == 279")
ANCHORED = FRENCH.query("ptpp <= 31 or (ptpp == 279 and params < 3e8)")
NEW = bl.grid(params=1e10, tokens=1e10)
NONE, WEAK = (0.0, 0.1), (0.1, 1.0)


def with_losses(fit, loss):
    """The posterior beside other training losses, so that nothing is sampled."""
    return replace(
        fit, table=bl.from_frame(fit.table.frame.assign(loss=loss), fit.table.name)
    )


@pytest.fixture(scope="module")
def ahead():
    """Six sizes beyond the training rows, four losses of each."""
    sizes = [4e9, 5e9, 6e9, 8e9, 1.2e10, 1.6e10]
    design = bl.grid(params=sizes, tokens=[3e10, 5e10, 7e10, 1e11])
    return bl.simulate("chinchilla", CHINCHILLA, design, sigma=0.003, seed=2)


def test_a_check_of_two_stages_is_one_document():
    found = bl.check(saved("two_stages"), LATE)
    words, text = " ".join(found["directions"].words), " ".join(str(found).split())
    assert "PTPP takes 2 values; eta is not determined by these data" in words
    record = found["directions"].frame.iloc[0]
    low, high = record["losses"]
    assert (
        f"moves from {low:.4g} nats (eta {record['values'][0]:.2g}) to {high:.4g}"
        in words
    )
    assert high - low > 0.01
    width = saved("two_stages").spec.priors["eta"].kwargs["sigma"]
    wanted = sorted(0.33 * np.exp(width * stats.norm.ppf([0.05, 0.95])))
    assert sorted(record["values"]) == pytest.approx(wanted, rel=0.05)
    assert found["directions"].facts["share_own"] > 0.5
    assert "2 values cannot identify a curvature" in " ".join(
        found["extrapolation"].words
    )
    assert found["left out"].frame.columns.tolist() == ["elpd", "pit", "pareto_k"]
    document = found.to_dict()
    assert (
        json.loads(json.dumps(document, default=str))["level"]
        == found.level
        == "refuse"
    )
    assert not document["ok"]
    for part in found.parts:
        written = document["parts"][part.name]
        assert (written["level"], len(written["table"])) == (
            part.level,
            len(part.frame),
        )
        assert [*written["words"]] == list(part.words)
        assert all(words in text for words in part.words)
    levels = ["ok", "caution", "no evidence", "refuse"]
    assert found.level == max((part.level for part in found.parts), key=levels.index)


def test_checks_without_rows_of_unconverged_fits_and_of_other_names_of_columns():
    found = bl.check(saved("two_stages"))
    assert (found.level, found.rows) == ("caution", 0)
    assert "its posterior is close to its prior" in " ".join(found["directions"].words)
    alone = {"held out", "convergence", "directions", "outliers", "left out"}
    assert set(found.frames) == alone
    found = bl.check(saved("unconverged"), bl.grid(params=1e9, tokens=1e10))
    assert found.level == found["convergence"].level == "refuse"
    assert "fit again" in found["convergence"].words[0]
    with pytest.raises(bl.TableError, match="ptpp"):
        bl.check(saved("two_stages"), bl.grid(params=1e9, tokens=1e10, replay=0.3))
    needed = r"'params' .or N; for A of chinchilla. is missing"
    refused(bl.TableError, needed, bl.check, saved("plain"), NEW[["tokens"]])
    # The papers' symbols are the same rows, and the same seed gives the same text.
    symbols = NEW.rename(columns={"params": "N", "tokens": "D"})
    assert str(bl.check(saved("plain"), NEW)) == str(bl.check(saved("plain"), symbols))


def test_bands_that_hold_pass_and_those_that_miss_all_large_sizes_failed_here(ahead):
    plain = saved("plain")
    part = bl.check(plain, ahead)["held out"]
    assert part.level == "ok"
    assert part.facts["groups"] == 6
    low, high = plain.forecast(ahead).quantile([0.05, 0.95])
    inside = ahead.loss == np.clip(ahead.loss, low, high)
    assert f"holds {inside.sum()} of 24 losses" in part.words[0]
    # Four rows of a size, correlated by .5, are worth 4 / 2.5 independent ones.
    assert part.facts["independent"] == pytest.approx(6 * 1.6)
    assert part.facts["held"] == pytest.approx(9.6 * inside.mean())
    below = plain.forecast(ahead).samples < ahead.loss
    np.testing.assert_allclose(part.frame["pit"], below.mean(0))
    one = bl.check(plain, ahead.query("params == 4e9"))["held out"]
    assert one.level == "caution"
    assert "1 group of rows cannot show that bands hold." in one.words
    # All losses of three of six sizes are missed, on one side.
    far = np.where(ahead.frame["params"] > 7e9, 1.03, 1.0)
    found = bl.check(plain, bl.from_frame(ahead.frame.assign(loss=ahead.loss * far)))
    assert found.level == "refuse"
    assert found.verdict.startswith(
        "REFUSE: the bands failed here: the 90 % band holds "
    )
    assert " ".join(str(found).split()).startswith(found.verdict)
    assert (
        "In the farther half the forecasts are too low by 3"
        in found["held out"].words[1]
    )


def test_the_farthest_training_rows_are_forecast_from_the_others():
    plain, seen = saved("plain"), small().frame
    # Its losses are not held out.
    assert bl.check(plain, plain.table)["held out"].facts["own"]
    part = bl.check(plain, bl.LossTable(NEW, "new"))["held out"]
    assert part.words[0].startswith(
        "The farthest 5 training rows, forecast from the 15 others by"
    )
    assert part.level != "refuse"
    for rows, kept in (
        (NEW, seen["params"] < 3e9),
        (NEW * [0.1, 100], seen["tokens"] < 3e10),
    ):
        assert (next(held_out.cuts(plain.table, plain.columns, rows)) == kept).all()
    # Losses bend away from the power law at large sizes; the law is taken as exact.
    design = bl.grid(params=np.geomspace(1e8, 1e10, 9), tokens=[1e10, 3e10, 1e11])
    table = bl.simulate("chinchilla", CHINCHILLA, design, sigma=0.001, seed=3)
    bend = 1 + 0.02 * np.clip(np.log10(table.frame["params"] / 1e9), 0, None)
    bent = replace(
        plain, table=bl.from_frame(table.frame.assign(loss=table.loss * bend))
    )
    asked = bl.LossTable(bl.grid(params=3e10, tokens=1e11), "rows")
    part = bl.check(bent, asked)["held out"]
    # Where bands failed here, they often held on the rows asked for.
    assert part.level == "caution"
    assert part.facts["p"] < 0.05


def test_a_large_table_is_cut_at_few_places():
    """The distance of all rows is computed for each cut: 1,000 cuts of 2,000 rows took minutes."""
    tokens = list(np.geomspace(1e9, 1e12, 25))
    design = bl.grid(params=list(np.geomspace(1e8, 1e10, 20)), tokens=tokens)
    table = bl.simulate("chinchilla", CHINCHILLA, design)
    for rows in (None, bl.grid(params=1e11, tokens=1e13)):
        fitted = [
            near.sum() for near in held_out.cuts(table, ("params", "tokens"), rows)
        ]
        assert 16 <= len(fitted) <= 32
        assert 250 <= min(fitted) < 290 < 450 < max(fitted)


def test_groups_are_sizes_or_finer_and_the_binomial_is_continued_to_fractions():
    many = bl.grid(params=[1e8, 3e8, 1e9], tokens=[1e9, 1e10])
    few = bl.grid(params=[1e8, 3e8], tokens=[1e9, 1e10], ptpp=[15, 31])
    for rows, groups in ((many, 3), (few, 4), (many.iloc[:2], 1)):
        assert len(np.unique(held_out.grouped(rows))) == groups
    at_most = held_out.at_most
    for held in range(7):
        assert at_most(held, 6, 0.9) == pytest.approx(stats.binom.cdf(held, 6, 0.9))
    assert at_most(3, 6, 0.9) < at_most(3.5, 6, 0.9) < at_most(4, 6, 0.9)


def test_bands_that_miss_many_rows_of_few_groups_are_not_called_ok():
    """Of four groups, 59 % of 145 rows inside: by groups alone a binomial has no power."""
    inside = np.zeros(145)
    inside[:85] = 1
    group = np.random.default_rng(0).permutation(np.arange(145) % 4)
    frame = pd.DataFrame(
        {"group": group, "inside_90": inside, "inside_50": inside, "far_pit": 0.4}
    )
    frame = frame.assign(far=True, error=0.01)
    level, words, facts = held_out.verdict(frame)
    assert level == "refuse"
    assert facts["independent"] == pytest.approx(7.8, abs=0.1)
    assert "holds 85 of 145 losses" in words[0]
    assert held_out.verdict(frame.assign(inside_90=1.0))[0] == "ok"


def test_outliers_are_named_and_the_forecast_without_them_is_narrower():
    """Runs of nine sizes, of which one lies 5 % above the law; one row of twenty."""
    sizes, rng = np.geomspace(1e8, 1.3e9, 9), np.random.default_rng(0)
    design = bl.grid(params=list(sizes), tokens=[1e10, 3e10, 1e11])
    frame = bl.simulate("chinchilla", CHINCHILLA, design, sigma=0.002, seed=1).frame
    effects = np.where(np.arange(9) == 3, 0.05, rng.normal(0, 0.002, 9))
    size = np.searchsorted(sizes, frame["params"] * (1 - 1e-9))
    frame = frame.assign(
        run=[f"shape {i}" for i in size], loss=frame["loss"] * np.exp(effects[size])
    )
    with pytest.warns(bl.TableWarning, match="effect 'run' are those of params"):
        shaped = refit("chinchilla", bl.from_frame(frame), 0, effects="run")
    part = bl.check(shaped, bl.grid(params=3e9, tokens=1e11))["outliers"]
    assert part.frame["label"].tolist() == ["shape 3"]
    assert "run shape 3 (+4" in part.words[0]
    assert part.facts["half_width_without"] < part.facts["half_width"] / 2
    assert part.level == "ok"  # the wide band allows for the move
    plain = saved("plain")
    off = with_losses(plain, small().loss * np.where(np.arange(20) == 7, 1.1, 1))
    part = bl.check(off)["outliers"]
    assert part.frame["label"].tolist() == [7]
    where = "the row at params 300M, tokens 10B (+"
    assert part.words[0].startswith(f"Farthest from the others, in loss: {where}")
    assert bl.check(plain)["outliers"].frame.empty


@pytest.mark.parametrize(
    ("name", "rank", "leaders"),
    [("two_stages", 9, [{"eta"}]), ("world_form3", 10, [{"eta"}, {"lambda_", "zeta"}])],
)
def test_two_stages_do_not_determine_eta_and_anchors_do(name, rank, leaders):
    fit = saved(name)
    names, matrix = information.directions(fit)
    values = information.singular_values(matrix)
    assert (values[rank:] < 1e-8 * values[0]).all()
    assert (values[:rank] >= NONE[1]).all()
    undetermined = information.basis(names, matrix, *NONE)
    assert all(any({*found} & some for found in undetermined) for some in leaders)
    part = bl.check(fit, LATE.frame)["directions"]
    assert part.level == "refuse"
    assert "eta is not determined" in " ".join(part.words)
    anchored = replace(fit, table=ANCHORED)
    assert information.basis(*information.directions(anchored), *NONE) == []
    assert "not determined" not in " ".join(
        bl.check(anchored, LATE.frame)["directions"].words
    )


@pytest.mark.parametrize("name", ["two_stages", "walk"])
def test_the_information_is_of_the_derivatives_and_steps_of_walks_are_integrated_out(
    name,
):
    """Against that of coordinates and steps together, by differences of the loss."""
    fit = saved(name)
    law, at, prior = fit.law_with_knots, fit.at, prior_of(fit)
    names, matrix = information.directions(fit, prior)
    x = Design(law, fit.table).x
    q = {n: np.median(v) for n, v in fit.values().items() if n in law.coordinates}
    q |= {name: np.median(v, axis=(0, 1)) for name, v in fit.steps().items()}

    def slope(name, place, step):
        def log_loss(sign):
            value = np.array(q[name], float)
            value[place] += sign * step
            return np.log(law.loss(law.amounts(q | {name: value}, at), x, at))

        return (log_loss(1) - log_loss(-1)) / (2 * step)

    alone = [slope(n, (), 1e-5 * abs(q[n])) * spread(prior[n]) for n in names]
    steps = [slope(w.steps, j, 1e-4) for w in law.walks for j in range(q[w.steps].size)]
    rows = np.linalg.solve(
        np.linalg.cholesky(covariance(fit)), np.array([*alone, *steps]).T
    )
    joint, count = rows.T @ rows, len(alone)
    joint[count:, count:] += np.eye(len(steps))  # their standard normal prior
    across = joint[:count, count:]
    wanted = joint[:count, :count] - across @ np.linalg.solve(
        joint[count:, count:], across.T
    )
    got, scale = (
        matrix.T @ matrix,
        np.sqrt(np.outer(wanted.diagonal(), wanted.diagonal())),
    )
    np.testing.assert_array_less(
        np.abs(got - wanted), 1e-3 * np.abs(wanted) + 1e-5 * scale.max()
    )
    assert "walk_scale" not in names


def test_basis_of_undetermined_directions():
    """Two of four coordinates have an effect only through their sum, one has none."""
    rows = np.random.default_rng(0).normal(size=(20, 2))
    matrix = np.column_stack([rows[:, 0], rows[:, 1], rows[:, 1], np.zeros(20)])
    none = information.basis("abcd", matrix, *NONE)
    assert {frozenset(direction) for direction in none} == {
        frozenset("d"),
        frozenset("bc"),
    }
    (pair,) = (direction for direction in none if len(direction) == 2)
    assert list(pair.values()) == pytest.approx([1, -1])


def test_share_of_variance():
    fit = saved("two_stages")
    log_loss = np.log(fit.latent(LATE)).mean(1, keepdims=True)
    assert information.explained(fit, ["eta"], log_loss)[0] > 0.7
    assert information.explained(fit, ["alpha"], log_loss)[0] < 0.3
    # Twenty coordinates that do not matter, with 231 columns: their unadjusted R-squared is .23 of
    # 1000 draws, and 1 of 200.
    rng, names = np.random.default_rng(0), [f"q{i}" for i in range(20)]
    for draws in (200, 300, 1000):
        drawn = SimpleNamespace(
            values=lambda n=draws: {k: rng.normal(size=(n, 1)) for k in names}
        )
        assert (
            information.explained(drawn, names, rng.normal(size=(draws, 40))).mean()
            < 0.1
        )


def test_more_curvature_than_the_prior_expects():
    fit, further = saved("curvature"), bl.grid(params=5e8, tokens=1e13)
    prior, curve = prior_of(fit)["curve_B"], fit.draws["curve_B"]
    for away, levels in ((0, ("ok", "ok")), (8, ("caution", "refuse"))):
        middle = np.median(prior) + away * spread(prior)
        moved = fit.draws.assign(curve_B=curve - curve.median() + middle)
        near, beyond = (
            bl.check(replace(fit, draws=moved), rows)["curvature"]
            for rows in (fit.table.frame, further)
        )
        assert (near.level, beyond.level) == levels
        assert ("curve_B by 8.0" in near.words[0]) == bool(away)
        text = "beyond the tokens of the training rows"
        assert (text in " ".join(beyond.words)) == bool(away)


def test_a_walk_far_out_of_its_prior_is_told():
    """And that forecasts between fitted ratios follow it."""
    fit = saved("form1n")
    between, fitted = (
        bl.grid(params=3e8, tokens=1e9, ptpp=15, replay=r) for r in (0.3, 0.1)
    )
    assert bl.check(fit, between)["curvature"].level == "ok"
    steps = 20 + 0 * fit.draws["walk_mixed"]
    moved = replace(fit, draws=fit.draws.assign(walk_mixed=steps))
    part = bl.check(moved, between)["curvature"]
    assert part.level == "caution"
    assert "walk_mixed by" in part.words[0]
    assert "Between fitted replay ratios it may bend" in part.words[-1]
    assert len(bl.check(moved, fitted)["curvature"].words) == 1


def test_distance_is_refused_from_twice_what_was_measured():
    """The training rows have N up to 3e9 and D up to 1e11."""
    plain = saved("plain")
    for decades, level in {
        0.9: "ok",
        1.1: "no evidence",
        1.8: "no evidence",
        2: "refuse",
    }.items():
        rows = bl.grid(params=3e9 * 10**decades, tokens=1e10)
        assert plain.verdict(rows).level == level
    found = bl.check(plain, rows)["extrapolation"]
    assert found.level == "refuse"
    text = "No evidence: rows lie up to 2 decades of params (bands were tested to 0.96)"
    assert text in " ".join(found.words)
    allowed = bl.check(plain.accepted("beyond-evidence"), rows)
    assert allowed.verdict.startswith("NO EVIDENCE")


def test_distances_of_rows_and_covariates_that_differ_are_told():
    fit = replace(saved("two_stages"), table=ANCHORED)
    part = bl.check(fit, LATE.frame)["extrapolation"]
    assert part.level == "caution"  # the law is taken as exact
    far = part.frame["decades"].max()
    assert (
        f"21 interpolations; 63 extrapolations (up to {far:.2g} decades, each"
        in part.words[-1]
    )
    within = bl.check(fit, ANCHORED.frame)["extrapolation"]
    assert (within.level, within.words[-1]) == (
        "ok",
        "Rows to forecast: 189 interpolations.",
    )
    plain = saved("plain")
    three = replace(plain, table=small().query("params < 3e9"))
    part = bl.check(three, bl.grid(params=5e9, tokens=1e10))["extrapolation"]
    assert part.level == "caution"
    assert "3 sizes are too few" in " ".join(part.words)
    assert part.frame["beyond_params"].iloc[0] == pytest.approx(np.log10(5))


def test_measured_distances_are_those_of_the_benchmarks():
    rows = pd.read_csv(ROOT / "benchmarks" / "distance.csv")
    for name in ("params", "tokens", "decades"):
        column = name if name == "decades" else f"beyond_{name}"
        assert MEASURED_DECADES[name] == pytest.approx(rows[column].max(), abs=0.001)
    french = bl.read_table(DATA / "tinycpt/french.csv", where="annealed and replay < 1")
    for column, split in (
        ("ptpp", ("ptpp <= 31", "ptpp == 279")),
        ("replay", ("replay < 0.5", "replay == 0.5")),
    ):
        found = bl.locate(*french.split(*split), ("params", "tokens", "replay", "ptpp"))
        assert MEASURED_DECADES[column] == pytest.approx(
            found[f"beyond_{column}"].max(), abs=0.001
        )


@pytest.mark.slow
def test_sound_fits_seldom_alarm():
    """Inside the range of their rows, the parts that test at 1 % seldom say caution."""
    settings = {
        "draws": 300,
        "tune": 300,
        "chains": 2,
        "retry": False,
        "discrepancy": "none",
    }
    design, alarms = small().frame.drop(columns="loss"), []
    for seed in range(12):
        table = bl.simulate("chinchilla", CHINCHILLA, design, sigma=0.003, seed=seed)
        found = bl.check(bl.fit("chinchilla", table, seed=seed, **settings))
        alarms.append(found["left out"].level != "ok")
        assert found["directions"].level == "ok"
    # 12 tests at 1 %: more than 1 in 1 run of 160, and in 5 of 6 if a quarter were alarms.
    assert sum(alarms) <= 1


@pytest.mark.slow
def test_the_swing_agrees_with_a_fit_that_pins_the_parameter():
    fit, late = (
        saved("two_stages"),
        bl.paper_world().table("french", seed=0).query("ptpp == 279"),
    )
    log_loss = np.log(fit.latent(late)).mean(1, keepdims=True)
    sd = fit.spec.priors["eta"].kwargs["sigma"]
    draws = sd * np.random.default_rng(0).standard_normal((4000, 1))
    values, loss = information.swing(fit, "eta", 0.33 * np.exp(draws), log_loss)
    pinned = bl.fit(
        "form1", fit.table, seed=1, discrepancy="none", chains=2, draws=400, retry=False,
        priors={"eta": f"LogNormal(median={values[0]}, sigma=0.01)"},
    )  # fmt: skip
    want = np.exp(np.median(np.log(pinned.latent(late)).mean(1)))
    assert loss[0, 0] == pytest.approx(want, abs=0.15 * np.ptp(loss))


def test_effects_that_explain_what_the_law_should_are_refused():
    fit = saved("groups")
    found = bl.check(fit)["effects"]
    assert found.level == "ok"
    assert "(run)" in found.words[0]
    wide = replace(fit, draws=fit.draws.assign(tau_run=60 * fit.draws["tau_run"]))
    found = bl.check(wide)["effects"]
    assert found.level == "refuse"
    assert "times the median of its prior" in found.words[0]
    assert "misses the fitted rows" not in found.words[0]
    # A law below all rows, which its effects would have to explain.
    found = bl.check(with_losses(fit, 1.2 * fit.table.loss))["effects"]
    assert found.level == "refuse"
    assert (
        "without them the law misses the fitted rows by 18 % on average"
        in found.words[0]
    )
    assert "effects" not in bl.check(saved("plain")).frames
    # Errors are correlated in runs.
    runs = replace(fit, spec=replace(fit.spec, effects=()))
    found = bl.check(with_losses(runs, 1.2 * runs.table.loss))["effects"]
    assert found.level == "refuse"
    assert found.words[0].startswith(
        "Errors within runs explain what the law should explain"
    )
