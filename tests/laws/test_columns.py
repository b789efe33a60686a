"""Columns beside covariates: repeated tokens, checkpoints that are not annealed, and rates."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bayeslaw as bl
from bayeslaw import BayeslawError, TableError, grid, load_law, plan, simulate
from tests.cli.commands import fails, run
from tests.inside import PlannedRun, curve_of, make_spec
from tests.planning.posteriors import BASE, LIMITS
from tests.planning.posteriors import posterior as planned_posterior
from tests.support import CHINCHILLA, DESIGN, LAWS, truth_of

SCARCE = DESIGN.assign(unique_tokens=3e9)

R = 15.4


def worth(tokens, unique, rate):
    """Muennighoff et al., equation (5), for one row."""
    unique = min(unique, tokens)
    repeats = tokens / unique - 1
    return unique + unique * rate * (1 - math.exp(-repeats / rate))


@given(
    tokens=st.floats(1e6, 1e13),
    unique=st.floats(1e6, 1e13),
    replay=st.floats(0, 0.95),
    rate=st.floats(0.1, 300),
)
def test_worth_of_tokens(tokens, unique, replay, rate):
    frame = pd.DataFrame({"tokens": [tokens], "replay": [replay], "unique_tokens": [unique]})
    law = load_law("dcpt").repeating()
    x = law.covariates(frame.assign(params=1e8))
    found = np.exp(law.effective({"R_D": rate}, x)["tokens"])[0]
    assert found == pytest.approx(worth(tokens, unique / (1 - replay), rate), rel=1e-6)
    assert found <= tokens * (1 + 1e-9)
    assert found <= max(unique / (1 - replay), 1) * (1 + rate) * (1 + 1e-6)


@pytest.mark.parametrize("name", LAWS)
def test_loss_is_the_laws_at_fewer_tokens(name):
    plain = load_law(name)
    law = plain.repeating()
    assert law.repeating() is law
    assert law.without_discrepancy.parameters == law.parameters
    p = truth_of(plain.parameters) | {"R_D": R}
    frame = SCARCE.sample(40, random_state=1)
    unique = 3e9 / (1 - frame["replay"] * ("replay" in frame))
    fewer = [worth(t, u, R) for t, u in zip(frame["tokens"], unique, strict=True)]
    expected = plain.loss(p, plain.covariates(frame.assign(tokens=fewer)))
    x = law.covariates(frame)
    np.testing.assert_allclose(law.loss(p, x), expected, rtol=1e-12)
    np.testing.assert_allclose(
        law.loss(p, law.covariates(frame.drop(columns="unique_tokens"))),
        plain.loss(p, plain.covariates(frame)),
        rtol=1e-12,
    )
    at = law.reference_point(frame)
    q = law.to_reference(p, at)
    for back, value in law.to_paper(q, at).items():
        assert value == pytest.approx(p[back], rel=1e-10)
    np.testing.assert_allclose(law.loss(law.amounts(q, at), x, at), expected, rtol=1e-10)


@pytest.fixture(scope="module")
def fitted():
    design = grid(
        params=[1e8, 4e8, 1.6e9], unique_tokens=[2e8, 1e9, 5e9], tokens=[1e9, 6e9, 3e10, 1e11]
    )
    table = simulate("chinchilla", CHINCHILLA | {"R_D": R}, design, sigma=0.003, seed=1)
    return table, bl.fit("chinchilla", table, discrepancy="none", draws=300, chains=2)


def test_fits_recover_it(fitted, tmp_path):
    table, fit = fitted
    exact = simulate("chinchilla", CHINCHILLA | {"R_D": R}, table.frame)
    assert bl.fit_huber("chinchilla", exact).parameters["R_D"] == pytest.approx(R, rel=1e-3)
    low, high = fit.draws["R_D"].quantile([0.02, 0.98])
    assert low < R < high < 1.5 * R
    fit.save(tmp_path / "fit.nc")
    again = bl.load(tmp_path / "fit.nc")
    rows = table.frame.head(5)
    np.testing.assert_array_equal(again.latent(rows), fit.latent(rows))
    fresh = fit.latent(rows.drop(columns="unique_tokens"))
    assert (fresh <= fit.latent(rows) + 1e-12).all()


def test_candidates_repeat_their_tokens_also_if_targets_state_none(fitted):
    scarce = grid(params=1e9, tokens=[1e10, 1e11], unique_tokens=5e8)
    targets, how = grid(params=3e9, tokens=1e11), {"k": 1, "allow_unconverged": True}
    found = bl.choose_anchors(fitted[1], scarce, targets, **how).picks
    stated = bl.choose_anchors(fitted[1], scarce, targets.assign(unique_tokens=1e12), **how).picks
    pd.testing.assert_frame_equal(found, stated)


def test_a_table_says_what_is_wrong():
    table = simulate("chinchilla", CHINCHILLA, SCARCE.drop(columns="unique_tokens")).frame
    with pytest.raises(TableError, match="'unique_tokens' is not positive"):
        bl.from_frame(table.assign(unique_tokens=0.0))


def scarce(domain, discrepancy="none", spread=0.1):
    """A posterior whose law has repetition."""
    found, rng = planned_posterior(domain, 200), np.random.default_rng(5)
    spec = make_spec(found.law.repeating(), discrepancy=discrepancy)
    at = spec.law.reference_point(found.table)
    added = {n: 0.01 * rng.standard_normal((4, 50)) for n in spec.law.discrepancy_parameters}
    added |= {"walk_scale": np.ones((4, 50))} if "walk_scale" in added else {}
    added["R_D"] = R * np.exp(spread * rng.standard_normal((4, 50)))
    knots = spec.law.knots(spec.law.covariates(found.table), {**at, **found.at})
    steps = {n: rng.standard_normal((4, 50, len(k.positions))) for n, k in knots.items()}
    draws = found.draws.assign({n: (("chain", "draw"), values) for n, values in added.items()})
    draws = draws.assign({n: (("chain", "draw", f"{n}_knot"), v) for n, v in steps.items()})
    return replace(found, spec=spec, draws=draws, at={**at, **found.at})


def test_a_forecast_does_not_depend_on_the_other_rows():
    """Nor does that of a plan differ: its curve covers all budgets."""
    fit = scarce("french", "adaptation", spread=1.5)
    kind = {"params": 1.3e9, "ptpp": 31.0, "replay": 0.2}
    row = grid(**kind, tokens=1.3e9 * 3000).assign(unique_tokens=1e8)
    far = grid(**kind, tokens=1.3e9 * 9e5).assign(unique_tokens=[1e14])
    alone, together = fit.latent(row), fit.latent(pd.concat([row, far], ignore_index=True))
    np.testing.assert_allclose(alone[:, 0], together[:, 0], rtol=1e-14)
    curve = curve_of(fit, PlannedRun(1.3e9, 31.0, unique_tokens=1e8))
    np.testing.assert_allclose(curve.loss([np.log(3000)], [0.2])[0, 0], alone[:, 0], rtol=1e-10)


def test_at_its_bound_of_zero_only_the_first_epoch_counts():
    law = load_law("chinchilla").repeating()
    rows = grid(params=1e9, tokens=[1e9, 4e9]).assign(unique_tokens=2e9)
    p = CHINCHILLA | {"R_D": 0.0}
    first = load_law("chinchilla").covariates(rows.assign(tokens=[1e9, 2e9]))
    x = law.covariates(rows)
    np.testing.assert_allclose(law.loss(p, x), load_law("chinchilla").loss(p, first), rtol=1e-10)
    # A little R counts as if that share of an epoch were new tokens.
    by = CHINCHILLA["B"] * CHINCHILLA["beta"] * 2e9 ** -CHINCHILLA["beta"]
    np.testing.assert_allclose(law.gradient(p, x)["R_D"], [0.0, -by], rtol=1e-6, atol=1e-12)


def test_plans_with_scarce_data():
    fits = {"target": scarce("french"), "source": planned_posterior("english_arabic", 200)}
    grid_ = [0.3, 0.4, 0.5]
    plenty = plan(**fits, **LIMITS, baseline=BASE, replay_grid=grid_)
    same = plan(**fits, **LIMITS, baseline=BASE, replay_grid=grid_, unique_tokens=1e13)
    assert plenty.epochs is None
    assert plenty.tokens == pytest.approx(same.tokens, rel=1e-3)
    unique = plenty.tokens / 20
    found = plan(**fits, **LIMITS, baseline=BASE, replay_grid=grid_, unique_tokens=unique)
    assert found.tokens > 1.02 * plenty.tokens
    assert found.epochs == pytest.approx(found.tokens * (1 - found.replay) / unique)
    rows = grid(params=8.1e9, ptpp=279, replay=found.replay, tokens=found.tokens)
    target = fits["target"].latent(rows.assign(unique_tokens=unique))[:, 0]
    assert found.p_target == pytest.approx(np.mean(target <= LIMITS["max_loss"]))
    assert found.to_dict()["epochs"] == found.epochs
    few = plan(**fits, **LIMITS, baseline=BASE, replay_grid=grid_, unique_tokens=1e6)
    assert few.status == "infeasible"
    assert few.best.p_both == 0
    with pytest.raises(BayeslawError, match="column unique_tokens"):
        plan(
            target=fits["source"],
            source=fits["source"],
            **LIMITS,
            baseline=BASE,
            unique_tokens=1e9,
        )


HOT = {"unannealed": 0.02, "unannealed_D": 0.006, "unannealed_N": -0.004}

ALONG = {"D": "tokens", "N": "params"}

MORE = HOT | {"unannealed_P": -0.003, "unannealed_r": -0.02}


@pytest.mark.parametrize("name", LAWS)
def test_offset(name):
    plain = load_law(name)
    law = plain.annealing()
    assert law.annealing() is law
    assert law.without_discrepancy.parameters == law.parameters
    frame = DESIGN.sample(40, random_state=3)
    frame["annealed"] = np.arange(40) % 2
    x, at = law.covariates(frame), law.reference_point(frame)
    p = truth_of(plain.parameters) | {n: MORE[n] for n in law.offset.parameters}
    q = law.to_reference(p, at)
    sizes = law.amounts(q, at)
    factor = p["unannealed"] + p["unannealed_D"] * x["tokens"]
    factor += p.get("unannealed_N", 0) * x.get("params", 0)
    factor += p.get("unannealed_P", 0) * x.get("ptpp", 0)
    factor += p.get("unannealed_r", 0) * x.get("share", 0)
    for back, value in law.to_paper(q, at).items():
        assert value == pytest.approx(p[back], rel=1e-9, abs=1e-9)
    expected = plain.loss(p, plain.covariates(frame)) * np.exp(factor * (1 - frame["annealed"]))
    np.testing.assert_allclose(law.loss(sizes, x, at), expected, rtol=1e-10)
    np.testing.assert_allclose(law.loss(p, x), expected, rtol=1e-10)
    fresh = law.covariates(frame.drop(columns="annealed"))
    np.testing.assert_allclose(
        law.loss(sizes, fresh, at), plain.loss(p, plain.covariates(frame)), rtol=1e-10
    )


@pytest.fixture(scope="module")
def hot_table():
    design = grid(params=[1e8, 4e8, 1.6e9], annealed=[0, 1], tokens=np.geomspace(1e9, 1e11, 8))
    law = load_law("chinchilla").annealing()
    at = law.reference_point(design)
    middle = HOT["unannealed"] - sum(HOT[f"unannealed_{c}"] * at[x] for c, x in ALONG.items())
    truth = CHINCHILLA | HOT | {"unannealed": middle}
    return simulate("chinchilla", truth, design, sigma=0.002, seed=1)


def test_fits_recover_the_offset(hot_table, tmp_path):
    point = bl.fit_huber("chinchilla", hot_table)
    fit = bl.fit("chinchilla", hot_table, discrepancy="none", chains=2)
    for name, value in HOT.items():
        own = fit.draws["unannealed_ref" if name == "unannealed" else name]
        low, high = own.quantile([0.01, 0.99])
        assert low < value < high
    rows = grid(params=4e8, tokens=1e10)
    both = [point.predict(rows.assign(annealed=flag)) for flag in (1, 0)]
    assert np.log(both[1] / both[0]) == pytest.approx(0.02, abs=0.004)
    cold, hot = (fit.latent(rows.assign(annealed=flag)) for flag in (1, 0))
    np.testing.assert_array_equal(fit.latent(rows), cold)
    assert np.median(np.log(hot / cold)) == pytest.approx(0.02, abs=0.004)
    fit.save(tmp_path / "fit.nc")
    np.testing.assert_array_equal(bl.load(tmp_path / "fit.nc").latent(rows), cold)


def test_only_tables_with_both_have_an_offset(hot_table):
    settings = {"method": "map"}
    both = bl.fit("chinchilla", hot_table, **settings)
    one = bl.fit("chinchilla", hot_table.query("annealed == 1"), **settings)
    assert both.law.offset
    assert one.law.offset is None
    with pytest.raises(TableError, match="'annealed' is neither 0 or 1"):
        bl.from_frame(hot_table.frame.assign(annealed=0.5))


TUNED = {"rate_cost": 0.03, "rate_best_N": -0.3, "rate_best_D": -0.1}


def tuned(design, best):
    """The planted parameters, with the log of the best rate at the reference point of a design."""
    law = load_law("chinchilla").tuned()
    p = CHINCHILLA | TUNED | {"rate_best": 0.0}
    middle = law.tuning.best(
        p, law.reference_point(design), dict.fromkeys(law.covariates(design), 0.0)
    )
    return p | {"rate_best": best - middle}


@pytest.mark.parametrize("name", LAWS)
def test_the_law_is_that_of_the_best_rate(name):
    plain = load_law(name)
    law = plain.tuned()
    assert law.tuned() is law
    assert law.without_discrepancy.parameters == law.parameters
    frame = DESIGN.sample(40, random_state=3)
    frame["rate"] = np.where(np.arange(40) % 4, 1e-3 * 1.5 ** (np.arange(40) % 4), np.nan)
    x, at = law.covariates(frame), law.reference_point(frame)
    assert at["rate"] == pytest.approx(np.log(frame["rate"]).mean())  # of rows that have one
    p = {n: v for n, v in TUNED.items() if n in law.tuning.parameters}
    p |= truth_of(plain.parameters) | {"rate_best": -1.0}
    q = law.to_reference(p, at)
    for back, value in law.to_paper(q, at).items():
        assert value == pytest.approx(p[back], rel=1e-9, abs=1e-9)
    best = p["rate_best"] + p["rate_best_D"] * x["tokens"]
    best += p.get("rate_best_N", 0) * x.get("params", 0)
    off = np.where(frame["rate"].isna(), 0.0, np.log(frame["rate"]) - best)
    expected = plain.loss(p, plain.covariates(frame)) * np.exp(p["rate_cost"] * off**2)
    np.testing.assert_allclose(law.loss(p, x), expected, rtol=1e-10)
    np.testing.assert_allclose(law.loss(law.amounts(q, at), x, at), expected, rtol=1e-10)


RATED = grid(
    params=[1e8, 4e8, 1.6e9], tokens=np.geomspace(1e9, 1e11, 5), rate=[1e-4, 2e-4, 4e-4, 8e-4]
)


@pytest.fixture(scope="module")
def rated_table():
    return simulate("chinchilla", tuned(RATED, np.log(3e-4)), RATED, sigma=0.002, seed=1)


def test_fits_recover_the_best_rate(rated_table, tmp_path):
    fit = bl.fit("chinchilla", rated_table, discrepancy="none", chains=2)
    for name, value in TUNED.items():
        low, high = fit.draws[name].quantile([0.01, 0.99])
        assert low < value < high
    rows = grid(params=[4e8, 6.4e9], tokens=1e10)
    truth = tuned(RATED, np.log(3e-4))
    law = load_law("chinchilla").tuned()
    x = law.covariates(rows)
    best = np.exp(law.tuning.best(truth, x, dict.fromkeys(x, 0.0)))
    found = bl.derive.best_rate(fit, rows).to_frame([0.98])
    assert ((found["lower_98"] < best) & (best < found["upper_98"])).all()
    assert found["median"].to_numpy() == pytest.approx(best, rel=0.15)
    # Without a rate, rows are at their best one: no other rate has a lower loss.
    least = fit.latent(rows)
    for rate in (1e-4, *best):
        assert (fit.latent(rows.assign(rate=rate)) >= least * (1 - 1e-12)).all()
    point = bl.fit_huber("chinchilla", rated_table)
    np.testing.assert_allclose(point.predict(rows), np.median(least, 0), rtol=0.01)
    fit.save(tmp_path / "fit.nc")
    np.testing.assert_array_equal(bl.load(tmp_path / "fit.nc").latent(rows), least)


def test_one_rate_does_not_say_what_another_does(rated_table):
    one = bl.fit("chinchilla", rated_table.query("rate == 2e-4"), method="map")
    assert one.law.tuning is None
    rows = grid(params=4e8, tokens=1e10, rate=[2e-4, 4e-4])
    with pytest.raises(TableError, match=r"rows of rate 0\.0004, but"):
        one.forecast(rows)
    one.forecast(rows[:1])
    with pytest.raises(TableError, match="'rate' is not a positive number"):
        bl.from_frame(rated_table.frame.assign(rate=0))


# -- columns that a fit knows, and rows that differ in one -----------------------------------------

ROW = grid(params=1e9, tokens=5e10)
# Of each column a value that is what its absence stands for, and two others.
VALUES = {"unique_tokens": (1e13, 1e9, 3e9), "annealed": (1, 0, 0), "rate": (np.nan, 8e-3, 1e-3)}


def forecast(fit, rows, folder):
    return fit.forecast(rows).median


def point(fit, rows, folder):
    return bl.fit_huber("chinchilla", fit.table).forecast(rows)["prediction"]


def score(fit, rows, folder):
    return bl.score(fit, bl.from_frame(rows.assign(loss=2.5)))


def score_of_a_point(fit, rows, folder):
    return bl.score(bl.fit_huber("chinchilla", fit.table), bl.from_frame(rows.assign(loss=2.5)))


def check(fit, rows, folder):
    return bl.check(fit, rows.assign(loss=2.5))


def candidates(fit, rows, folder):
    return bl.choose_anchors(fit, rows, ROW * 2, k=1)


def targets(fit, rows, folder):
    return bl.choose_anchors(fit, ROW * 2, rows, k=1)


def exponents(fit, rows, folder):
    return bl.derive.local_exponents(fit, rows)


def recipes(fit, rows, folder):
    return bl.compare_recipes({"a": fit, "b": fit}, rows)


def coefficients(fit, rows, folder):
    bl.write_coefficients(fit, folder / "c.json", draws=100)
    return bl.read_coefficients(folder / "c.json").forecast(rows)


def command(fit, rows, folder):
    fit.save(folder / "fit.nc")
    rows.to_csv(folder / "rows.csv", index=False)
    args = ("forecast", folder / "fit.nc", "--rows", folder / "rows.csv", "--beyond-evidence")
    if rows.equals(neutral(rows)):
        return run(*args)
    raise TableError(fails(*args))


def neutral(rows):
    return ROW.assign(**{c: VALUES[c][0] for c in VALUES if c in rows})


USES = (forecast, point, score, score_of_a_point, check, candidates, targets)
USES += (exponents, recipes, coefficients, command)


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.parametrize("column", VALUES)
def test_a_column_that_the_fit_does_not_know(posterior, column, use, tmp_path):
    """What its absence stands for passes, anything else is refused."""
    absent, other, _ = VALUES[column]
    with pytest.raises(TableError, match=rf"rows of {column} .*rows without {column}"):
        use(posterior, ROW.assign(**{column: other}), tmp_path)
    use(posterior, ROW.assign(**{column: absent}), tmp_path)


def test_a_covariate_that_the_fit_does_not_know_is_named(posterior):
    """A law in N and D alone does without replay; that its table had no such column is said."""
    rows = ROW.assign(replay=0.3, ptpp=20.0)
    says = "The fit does not know replay and ptpp: the forecast is the same at any."
    assert says in " ".join(str(posterior.forecast(rows)).split())
    table = replace(posterior.table, frame=posterior.table.frame.assign(replay=0.3))
    assert "does not know ptpp" in str(replace(posterior, table=table).forecast(rows))
    assert "does not know" not in str(posterior.forecast(ROW))


@pytest.mark.parametrize("column", ["annealed", "rate"])
def test_fitted_rows_of_one_kind(posterior, column, tmp_path):
    """Rows that state no kind are of theirs: also when they are measured."""
    _, own, other = VALUES[column]
    other = 1 if column == "annealed" else other
    frame = posterior.table.frame.assign(**{column: own})
    fit = replace(posterior, table=replace(posterior.table, frame=frame))
    for use in (forecast, score, check):
        with pytest.raises(TableError, match=f"rows of {column} .*{column} {own:g} alone"):
            use(fit, ROW.assign(**{column: other}), tmp_path)
        use(fit, ROW.assign(**{column: own}), tmp_path)
    made = fit.forecast(ROW)
    bl.register(made, path := tmp_path / "x.json")
    for value, same in ((own, True), (other, False)):
        measured = bl.from_frame(ROW.assign(loss=2.5, **{column: value}))
        if same:
            assert bl.verify(path, measured).missing == ()
            bl.score(made, measured)
            continue
        with pytest.raises(TableError, match=f"none of its 1 rows .*{column}"):
            bl.verify(path, measured)
        with pytest.raises(TableError, match=f"row 0: {column} is"):
            bl.score(made, measured)
    if column == "rate":  # rows without the column are annealed, and of any rate
        assert bl.verify(path, bl.from_frame(ROW.assign(loss=2.5))).missing == ()


def test_a_forecast_of_fitted_rows_of_one_domain_is_of_that_domain(posterior, tmp_path):
    frame = posterior.table.frame.assign(domain="french")
    fit = replace(posterior, table=replace(posterior.table, frame=frame))
    bl.register(fit.forecast(ROW), path := tmp_path / "x.json")
    assert bl.verify(path, bl.from_frame(ROW.assign(loss=2.5, domain="french"))).missing == ()
    for use in (bl.verify, bl.score):
        with pytest.raises(TableError, match="domain"):
            use(path if use is bl.verify else fit.forecast(ROW), from_english())


def from_english():
    return bl.from_frame(ROW.assign(loss=2.5, domain="english"))


DIFFER = {
    "params": (1e9, 2e9), "tokens": (1e10, 5e10), "replay": (0.1, 0.2), "ptpp": (20.0, 40.0),
    "unique_tokens": (1e9, 2e9), "annealed": (0, 1), "rate": (1e-3, 2e-3), "seed": (0, 1),
    "start_loss": (3.0, 3.1), "base_loss": (3.0, 3.1), "domain": ("a", "b"), "base": ("a", "b"),
    "run": ("001", "1"),
}  # fmt: skip
"""Values of each column in which two rows differ."""


@pytest.mark.parametrize("column", DIFFER)
def test_rows_that_differ_in_one_column_are_two(posterior, column, tmp_path, monkeypatch):
    """In scores, in registered forecasts, in held-out rows and among candidates."""
    rows = pd.concat([ROW, ROW], ignore_index=True).assign(**{column: DIFFER[column]})
    loss = posterior.predict(ROW)[0]
    measured = rows.assign(loss=[loss, 1.1 * loss])
    seen = posterior.table.frame.query("params != 1e9")
    seen = seen.assign(**{column: np.resize(DIFFER[column], len(seen))})
    seen = pd.concat([seen, measured[:1]], ignore_index=True)
    fit = replace(posterior, table=replace(posterior.table, frame=seen))
    spec = replace(posterior.spec, effects=("seed",) * (column == "seed"))
    made = replace(fit.forecast(rows), fits={"": replace(fit, spec=spec)})
    turned = bl.from_frame(measured[::-1].reset_index(drop=True))
    bl.score(made, bl.from_frame(measured))
    with pytest.raises(TableError, match=f"row 0: {column} is"):
        bl.score(made, turned)
    if column not in ("start_loss", "base_loss"):  # only laws that start from a base know them
        bl.register(made, path := tmp_path / "x.json")
        found = bl.verify(path, turned)
        assert found.frame["loss"].tolist() == [loss, 1.1 * loss]
    monkeypatch.setattr("bayeslaw.checks._check.judge_alone", lambda *_: [])
    part = bl.check(fit, rows.assign(loss=loss))["held out"]
    assert "of 1 losses" in part.words[0]
    assert part.words[-1].endswith("a fitted row is equal in every column: row 0.")
    if column != "seed":  # which is a column of candidates only as an effect
        with pytest.warns(bl.TableWarning, match="1 of 2 are rows that were fitted"):
            bl.choose_anchors(fit, rows, ROW * 2, k=1, second_size=False)
