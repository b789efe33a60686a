"""Groups of rows that are fitted together."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import bayeslaw as bl
from bayeslaw.inference.pools import JOINT
from bayeslaw.laws.deviations import Spread
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.model.discrepancy import WalkingExponents
from bayeslaw.model.groups import Grouped
from tests.support import fails, run

SHORT = {"chains": 2, "draws": 200, "tune": 300, "retry": False, "cores": 1}
TRUTH = {"E": 1.8, "A": 300.0, "alpha": 0.32, "B": 400.0, "beta": 0.29}
BETTER = TRUTH | {"A": 280.0, "B": 330.0}
SIZES = [2e7, 6e7, 2e8, 5e8]
LARGE = {"params": [2e9], "tokens": [4e10, 1.6e11]}
NOISE = 0.001


def grid(sizes):
    """Sizes, each with three amounts of tokens."""
    rows = [
        {"params": n, "tokens": n * ratio} for n in sizes for ratio in (10, 40, 160)
    ]
    return pd.DataFrame(rows)


def losses(truth, rows, seed):
    """Losses of a law at some rows, with an error that all groups share, and noise."""
    law = load_law("chinchilla")
    columns = {name: rows[name].to_numpy(float) for name in ("params", "tokens")}
    latent = law.loss(truth, law.covariates(columns))
    shared = 0.01 * np.random.default_rng(99).standard_normal(len(rows))
    noise = NOISE * np.random.default_rng(seed).standard_normal(len(rows))
    return latent * np.exp(shared + noise)


def planted():
    """Two optimizers, of which one has smaller coefficients, and a third with two rows."""
    rows = grid(SIZES)
    frames = []
    for seed, (name, truth) in enumerate({"adamw": TRUTH, "muon": BETTER}.items()):
        frame = rows.assign(loss=losses(truth, rows, seed), optimizer=name)
        frames.append(frame)
    few = rows.assign(loss=losses(BETTER, rows, 5), optimizer="lion").iloc[[4, 7]]
    return bl.from_frame(pd.concat([*frames, few]), "planted")


@pytest.fixture(scope="module")
def fits():
    found = bl.fit_groups("chinchilla", planted(), "optimizer", **SHORT)
    return {name: fit.accepted("unconverged") for name, fit in found.items()}


def gap_of(fits, one="muon", other="adamw"):
    """Draws of the gap in log loss at the large scale, shape (draws, rows)."""
    found = bl.compare_recipes(fits, bl.grid(**LARGE))
    losses = found.losses
    ratio = losses.sel(recipe=one) / losses.sel(recipe=other)
    return np.log(ratio.values)


def true_gap():
    law = load_law("chinchilla")
    rows = bl.grid(**LARGE)
    columns = {name: rows[name].to_numpy(float) for name in ("params", "tokens")}
    x = law.covariates(columns)
    return np.log(law.loss(BETTER, x) / law.loss(TRUTH, x))


def test_a_planted_gap_is_recovered_and_better_known_than_by_separate_fits(fits):
    gap = gap_of(fits)
    low, high = np.quantile(gap, [0.02, 0.98], axis=0)
    assert ((low < true_gap()) & (true_gap() < high)).all()
    table = planted()
    apart = {}
    for seed, name in enumerate(("adamw", "muon")):
        rows = table.query(f"optimizer == '{name}'")
        fit = bl.fit("chinchilla", rows, seed=seed, **SHORT)
        apart[name] = fit.accepted("unconverged")
    separate = np.ptp(np.quantile(gap_of(apart), [0.05, 0.95], axis=0), axis=0)
    joint = np.ptp(np.quantile(gap, [0.05, 0.95], axis=0), axis=0)
    assert (joint < 0.5 * separate).all()


def test_the_error_that_groups_share_is_an_effect_of_their_cells(fits):
    tau = fits["muon"].draws["tau_pair"]
    # Walks and effects of sizes take a part of it, in all groups alike.
    assert 0.002 < float(tau.median()) < 0.02
    assert float(fits["muon"].draws["sigma"].median()) < 0.004


def test_a_group_of_few_rows_is_near_the_others_where_it_was_not_measured(fits):
    assert len(fits["lion"].table) == 2
    width = np.ptp(np.quantile(gap_of(fits, "lion"), [0.05, 0.95], axis=0), axis=0)
    assert (
        width > np.ptp(np.quantile(gap_of(fits), [0.05, 0.95], axis=0), axis=0)
    ).all()
    assert np.abs(np.median(gap_of(fits, "lion"), axis=0)).max() < 0.1


@pytest.fixture(scope="module")
def adapting():
    """Two stages of one base fitted together, for each of two domains that are simulated."""
    rows = bl.grid(
        params=[2e7, 1e8], tokens=[2e8, 1e9, 5e9], replay=[0.1, 0.5], ptpp=[30]
    )
    fits = {}
    for domain, floor in (("target", 1.6), ("source", 1.9)):
        truth = {"E": floor, "A": 170, "alpha": 0.3, "B": 53, "beta": 0.25}
        truth |= {"nu": 0.4, "C": 0.05, "gamma": 0.3}
        frames = []
        for seed, mix in enumerate(("web", "books")):
            table = bl.simulate(
                "dcpt", truth, rows, role=domain, sigma=0.003, seed=seed
            )
            frames.append(table.frame.assign(mix=mix))
        table = bl.from_frame(pd.concat(frames, ignore_index=True), domain)
        found = bl.fit_groups("dcpt", table, "mix", **SHORT)
        accepts = {"unconverged", "beyond-evidence"}
        fits[domain] = {name: fit.accepted(accepts) for name, fit in found.items()}
    return fits


PLANNED = bl.grid(params=1e8, tokens=[5e8, 2e9], replay=[0.1, 0.5], ptpp=30)
MEASURED = PLANNED.assign(loss=2.5, mix="web", role="target")
USES = {
    "score": lambda one, other: bl.score(one, bl.from_frame(MEASURED, "measured")),
    "check": lambda one, other: bl.check(one, PLANNED).verdict,
    "plan": lambda one, other: bl.plan(
        target=one, source=other, params=1e8, ptpp=30,
        max_loss=9.0, max_forgetting=0.9, baseline=3.0,
    ),
    "frontier": lambda one, other: bl.derive.frontier(one, other, PLANNED, limit=9.0),
    "floors": lambda one, other: bl.derive.at_floors(one, PLANNED),
    "anchors": lambda one, other: bl.choose_anchors(one, PLANNED, PLANNED, budget=1e22),
    "report": lambda one, other: bl.report(one, PLANNED),
    "datatree": lambda one, other: one.to_datatree(prior=10),
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
def test_a_group_is_used_as_any_other_fit(adapting, use):
    one = adapting["target"]["web"]
    assert USES[use](one, adapting["source"]["web"]) is not None


def test_recipes_of_two_losses_are_paired_draw_by_draw(adapting):
    found = bl.derive.frontier(
        adapting["target"], adapting["source"], PLANNED.iloc[:1], weight=1.0
    )
    assert set(found.to_frame()["recipe"]) == {"web", "books"}


def test_a_group_has_no_model_of_its_own(fits):
    with pytest.raises(bl.FitError, match="of all groups"):
        _ = fits["muon"].model


def test_draws_of_groups_belong_together_also_once_they_are_saved(fits, tmp_path):
    two = {name: fits[name] for name in ("adamw", "muon")}
    found = bl.compare_recipes(two, bl.grid(**LARGE))
    assert "jointly" in found.notes[0]
    loaded = {}
    for name, fit in two.items():
        fit.save(tmp_path / f"{name}.nc")
        loaded[name] = bl.load(tmp_path / f"{name}.nc").accepted("unconverged")
        assert loaded[name].spec.identity == fit.spec.identity
    again = bl.compare_recipes(loaded, bl.grid(**LARGE))
    assert np.array_equal(again.losses, found.losses)


def test_other_fits_are_not_paired_with_groups(fits):
    other = replace(fits["adamw"], settings={**fits["adamw"].settings, JOINT: "other"})
    found = bl.compare_recipes({"muon": fits["muon"], "adamw": other}, bl.grid(**LARGE))
    assert "independently" in found.notes[0]


def test_walks_beyond_the_rows_are_the_same_for_all_groups(fits):
    far = bl.grid(params=1e12, tokens=2e13)
    steps = []
    for name in ("adamw", "muon"):
        design = fits[name].design(far)
        _, drawn = fits[name].extended(design)
        steps.append(drawn["walk_AN"])
    assert np.array_equal(*steps)
    assert steps[0].shape[-1] > fits["adamw"].draws["walk_AN"].shape[-1]


def test_a_gap_is_less_certain_beyond_the_rows_by_walks_of_each_group(fits):
    names = {"adamw": "group_walk_AN_0", "muon": "group_walk_AN_1"}
    beyond = []
    for name, steps in names.items():
        fit = fits[name]
        assert not fit.draws[steps].values.any()
        _, within = fit.extended(fit.fitted)
        assert not within[steps].any()
        _, drawn = fit.extended(fit.design(bl.grid(params=1e10, tokens=2e10)))
        new = drawn[steps][..., fit.draws.sizes[f"{steps}_knot"] :]
        beyond.append(drawn[steps][np.abs(drawn[steps]) > 0])
        assert new.size
    size = min(map(len, beyond))
    assert abs(np.corrcoef(beyond[0][:size], beyond[1][:size])[0, 1]) < 0.2


def test_the_posterior_of_a_group_is_one_as_any_other(fits):
    fit = fits["muon"]
    assert len(fit.table) == 12
    assert "optimizer == 'muon'" in fit.table.selection
    rows = bl.grid(params=1e9, tokens=2e10)
    assert fit.forecast(rows).samples.shape == (400, 1)
    assert {"group_L", "group_A", "group_AN"} <= {*fit.summary().index}
    assert "common and own" in " ".join(fit.how())
    assert fit.to_datatree(prior=10)["prior"]["group_A"].shape == (1, 10)
    assert bl.derive.floor(fit).to_frame() is not None
    assert bl.check(fit).parts


def test_the_density_of_all_groups_is_that_of_their_coefficients(fits):
    """At given scales and steps, the joint law gives each row its group's loss."""
    table = planted()
    common = WalkingExponents()
    law = Grouped(common, "optimizer", ("adamw", "muon", "lion")).apply(
        load_law("chinchilla")
    )
    spreads = [d for d in law.deviations if isinstance(d, Spread)]
    assert {d.of for d in spreads} == {"", "A", "B"}
    fit = fits["muon"]
    marks = fit.spec.discrepancy
    assert marks.group == "muon"
    columns = {n: table.frame[n].to_numpy(float) for n in ("params", "tokens")}
    x = law.covariates(columns)
    x |= Grouped(common, "optimizer", ("adamw", "muon", "lion")).marks(table.frame)
    rng = np.random.default_rng(0)
    q = {name: v[:1] for name, v in fit.values().items()}
    drawn = {}
    for spread in spreads:
        size = len(spread.groups) * len(spread.sizes)
        q[spread.scale] = np.array([[0.7]])
        q[spread.steps] = rng.standard_normal((1, 1, size))
        drawn[spread.scale] = np.array([[0.7]])
        drawn[spread.steps] = q[spread.steps]
    joint = law.loss(law.amounts(q, fit.at), x, fit.at)
    grouped = Grouped(common, "optimizer", ("adamw", "muon", "lion"))
    own = grouped.coefficients(law, "muon", drawn)
    one = fit.law
    of_muon = (table.frame["optimizer"] == "muon").to_numpy()
    alone = {name: values[of_muon] for name, values in law.covariates(columns).items()}
    expected = one.loss(one.amounts(q | own, fit.at), alone, fit.at)
    assert np.allclose(joint[:, of_muon], expected, rtol=1e-12)


@pytest.mark.filterwarnings("ignore:.*runs are few")
def test_groups_may_be_the_validation_sets_of_the_same_runs():
    rows = grid(SIZES[:3])
    frames = []
    for seed, (name, truth) in enumerate({"c4": TRUTH, "web": BETTER}.items()):
        run = [f"run {i // 3}" for i in range(len(rows))]
        frames.append(rows.assign(loss=losses(truth, rows, seed), domain=name, run=run))
    table = bl.from_frame(pd.concat(frames), "sets")
    settings = SHORT | {"draws": 30, "tune": 60, "discrepancy": "none"}
    found = bl.fit_groups("chinchilla", table, "domain", **settings)
    assert found["web"].table.frame["domain"].unique().tolist() == ["web"]
    with pytest.raises(bl.TableError, match="of domain c4"):
        found["web"].rows(rows.assign(domain="c4"))
    # The path of errors of a run is one group's own.
    assert not {*found["web"].table.frame["run"]} & {*found["c4"].table.frame["run"]}


@pytest.mark.parametrize(
    ("change", "by", "law", "words"),
    [
        ({}, "lab", "chinchilla", "no column 'lab' for the groups"),
        ({}, "params", "chinchilla", "'params' is a number that laws read"),
        ({"optimizer": "adamw"}, "optimizer", "chinchilla", "two or more"),
        (
            {"role": ["target", "source"] * 13},
            "optimizer",
            "chinchilla",
            "of role source and",
        ),
        ({}, "optimizer", "adaptation", "is several laws"),
    ],
)
def test_tables_without_groups_are_refused(change, by, law, words):
    table = planted()
    table = replace(table, frame=table.frame.assign(**change))
    with pytest.raises(bl.BayeslawError, match=words):
        bl.fit_groups(law, table, by, **SHORT)


def test_a_law_that_starts_from_bases_is_refused():
    table = bl.read_table(
        "data/tinycpt/french.csv",
        where="annealed and replay < 1",
        source="data/tinycpt/english.csv",
    )
    with pytest.raises(bl.LawError, match="starts from the losses of bases"):
        bl.fit_groups("transfer", table, "seed", **SHORT)


def test_groups_of_one_name_but_other_type_are_labels():
    rows = grid(SIZES[:2])
    frames = [rows.assign(loss=losses(TRUTH, rows, k), rate=k) for k in (1, 2)]
    table = bl.from_frame(pd.concat(frames), "rates")
    settings = SHORT | {"draws": 20, "tune": 30}
    assert [*bl.fit_groups("chinchilla", table, "rate", **settings)] == ["1", "2"]


def test_the_command_saves_a_posterior_of_each_group(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = planted()
    table.frame.assign(
        optimizer=table.frame["optimizer"].replace("muon", "muon/2")
    ).to_csv("losses.csv", index=False)
    fit = "fit losses.csv --law chinchilla --by optimizer --out fit.nc"
    short = "--chains 2 --draws 40 --tune 60"
    assert "muon/2: chinchilla" in " ".join(
        run(f"{fit} {short}", code=1).stdout.split()
    )
    assert sorted(path.name for path in tmp_path.glob("*.nc")) == [
        "fit_adamw.nc",
        "fit_lion.nc",
        "fit_muon_2.nc",
    ]
    compared = run(
        "recipes fit_adamw.nc fit_muon_2.nc --accept unconverged --at 'N=1e9 D=2e10'"
    )
    assert "draws paired jointly" in compared.stdout
    assert "fit_adamw.nc exists" in fails(f"{fit} {short}")
    assert "has none" in fails(
        "fit losses.csv --law chinchilla --by optimizer --method map"
    )
    assert "no column 'lab'" in fails(
        "fit losses.csv --law chinchilla --by lab --out a.nc"
    )
