"""Every option of a fit or table beside everything that takes a fit.

Each cell asserts what must hold of any pair: a fit of the same table stated otherwise (numeric
labels as text, columns that change nothing, one domain of a table of two) gives the same numbers;
the forecast of a row depends neither on the order of rows nor on the others asked for; plans and
derived numbers are those of the latent losses. What is not supported says so in one line.
"""

import dataclasses
import json
from collections.abc import Callable
from functools import cache, partial
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import bayeslaw as bl
from bayeslaw.inference.fitting import joined, refit
from bayeslaw.inference.specification import AS_STATED
from bayeslaw.laws.lawfiles import parse_law
from tests.make_data import FITS, PLAIN, SHORT, short
from tests.posteriors import of_role, turned
from tests.support import EXPERTS, refused, routed, saved, slow, small, stages

# Fits of few runs, and scores of rows that were fitted, do here.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.* runs are few"),
    pytest.mark.filterwarnings("ignore:.* rows were fitted"),
    # The law as stated does not describe tables that another law made; whether its effects then
    # take its place depends on the draws, which differ between processors.
    pytest.mark.filterwarnings("ignore:.* without discrepancy on table"),
]


@dataclasses.dataclass(frozen=True)
class Case:
    """A fit with an option, rows to forecast, and the same table and rows stated otherwise."""

    fit: Any
    rows: pd.DataFrame
    twin: Any = None
    twin_rows: pd.DataFrame | None = None

    @property
    def replay(self) -> dict[str, float]:
        """Values that derived numbers need of laws of adaptation."""
        values = {"replay": 0.3, "ptpp": 30} if "ptpp" in self.rows else {}
        return values | {
            c: v for c, v in (("experts", 8), ("dropout", 0.1)) if c in self.rows
        }


OPTIONS: dict[str, Callable[[], Case]] = {}
MADE = cache(lambda name: FITS[name]())
"""Fits as they are made for tests/data, but fresh: a saved one has passed through a file."""


def option(make: Callable[[], Case]) -> Callable[[], Case]:
    """Let the table have a row of that name; its fits are made once."""
    OPTIONS[make.__name__] = cache(make)
    return OPTIONS[make.__name__]


# -- options --------------------------------------------------------------------------------------

AHEAD = bl.grid(params=[3e8, 5e9], tokens=[4e10, 1e12])
STAGED = bl.grid(params=[3e8, 5e9], ptpp=60, replay=[0.1, 0.4], tokens=2e10)


@option
def plain() -> Case:
    """Its twin has columns that change nothing, and counts as integers."""
    frame = small().frame
    neutral = {"annealed": 1, "domain": "web", "note": "a"}
    stated = frame.assign(**neutral, run=range(len(frame))).astype(
        {"tokens": int, "params": int}
    )
    fits = (short("chinchilla", each) for each in (frame, stated))
    return Case(next(fits), AHEAD, next(fits), AHEAD.assign(**neutral))


for _name in ("skewed", "floor_in_nats", "curvature"):
    OPTIONS[_name] = cache(partial(lambda name: Case(MADE(name), AHEAD), _name))


@option
def groups() -> Case:
    """Correlated errors, three levels of effects, numeric labels of which some are missing."""
    fit = MADE("groups")
    rows = fit.table.frame.loc[[3, 20, 0, 40], ["params", "tokens", "base", "run"]]
    rows = pd.concat(
        [rows, rows[:2].assign(run=["100", "101"], params=5e9)], ignore_index=True
    )
    rows["tokens"] = 1e11 * np.arange(1, 7)
    twin = short(
        "chinchilla", as_text(fit.table.frame), errors="run", effects="size,base,run"
    )
    return Case(fit, rows, twin, as_text(rows))


@option
def drawn() -> Case:
    """A run of each size, whose effects are not fitted; the labels of its twin are numbers."""
    frame = small().frame
    sizes = frame["params"].rank(method="dense").astype(int)
    fit = short("chinchilla", frame.assign(run=sizes.astype(str)))
    twin = short("chinchilla", frame.assign(run=sizes))
    assert fit.spec.drawn == ("run",)
    rows = AHEAD.assign(run=["1", "8", "9", "9"])
    return Case(fit, rows, twin, rows.assign(run=rows["run"].astype(int)))


def as_text(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with labels as text, and None where one is missing."""
    numbers = frame[["base", "run"]].apply(pd.to_numeric).astype("Int64")
    text = numbers.astype("string").astype(object)
    return frame.assign(**text.where(numbers.notna(), None))


@option
def columns() -> Case:
    """Repeated data, and checkpoints that are not annealed; as truth values and integers."""
    fit = MADE("columns")
    twin = short(
        "chinchilla", fit.table.frame.astype({"annealed": bool, "unique_tokens": int})
    )
    return Case(fit, AHEAD, twin, AHEAD.assign(annealed=1, unique_tokens=1e13))


def staged(law: str, **how: Any) -> Case:
    """A fit of a law of adaptation; the rows ahead are of a known base, a new one and of none."""
    rows = STAGED.assign(
        base=[3.0, 3.0, 99.0, np.nan], run=[31.0, 500.0, 501.0, np.nan]
    )
    fit = MADE(law)
    return Case(fit, rows, short(law, as_text(fit.table.frame), **how), as_text(rows))


@option
def form1n() -> Case:
    return staged("form1n", discrepancy="auto")


@option
def target() -> Case:
    """Of the domain adapted to, by its column; of the twin by the losses of its bases."""
    frame, how = stages().assign(role="target"), {"discrepancy": "auto"}
    stated = frame.drop(columns=["start_loss", "base_loss"])
    fits = (
        short("form1n", each, **how) for each in (stated, frame.drop(columns="role"))
    )
    return Case(next(fits), STAGED, next(fits), STAGED)


@option
def transfer() -> Case:
    return staged("transfer", effects="size", errors="independent")


@option
def mixed() -> Case:
    """A third of its draws are of the law without its discrepancy."""
    rows = STAGED.assign(
        base=[3.0, 3.0, 99.0, np.nan], run=[31.0, 500.0, 501.0, np.nan]
    )
    how = {"discrepancy": "auto", "effects": "size", "errors": "independent"}
    fits = (short("transfer", each, **how) for each in (stages(), as_text(stages())))
    return Case(next(fits), rows, next(fits), as_text(rows))


@option
def pool() -> Case:
    """Weights in another order than the members."""
    members = {"form1n": form1n().fit, "transfer": transfer().fit}
    return Case(
        bl.Pool(members, {"transfer": 3.0, "form1n": 1.0}, "ours"), form1n().rows
    )


@option
def one_base() -> Case:
    """A pool of laws without their terms in size and stage."""
    return Case(
        MADE("one_base"), bl.grid(params=3e8, ptpp=60, replay=[0.1, 0.4], tokens=2e10)
    )


@option
def domain() -> Case:
    """One domain of a table of two, with losses of their bases at tokens = 0; alone in the twin."""
    fit = MADE("domain")
    twin = bl.LossTable(fit.table.frame, "table", fit.table.baselines)
    return Case(fit, STAGED, bl.fit("form1", twin, seed=0, **SHORT | PLAIN), STAGED)


@option
def declared() -> Case:
    """Covariates that the law's file declares, one without a logarithm; as integers and floats."""
    law, frame = parse_law(EXPERTS, "experts"), routed().frame
    rows = bl.grid(params=[3e8, 5e9], tokens=4e10, experts=[8, 100], dropout=[0.1, 0.5])
    stated = frame.astype({"experts": int}).assign(
        dropout=frame["dropout"].astype(object)
    )
    fits = (short(law, each, discrepancy="auto") for each in (frame, stated))
    return Case(next(fits), rows, next(fits), rows.astype({"experts": int}))


@option
def point() -> Case:
    return Case(bl.fit_huber("form1", bl.from_frame(stages(), "table")), STAGED)


# -- consumers ------------------------------------------------------------------------------------

CONSUMERS: dict[str, Callable[..., Any]] = {}


def consumer(use: Callable[..., Any]) -> Callable[..., Any]:
    """Let the table have a column of that name."""
    CONSUMERS[use.__name__] = use
    return use


@consumer
def forecast(case: Case, fit: Any, rows: pd.DataFrame) -> Any:
    reverse = rows[::-1].reset_index(drop=True)
    if isinstance(fit, bl.PointFit):
        np.testing.assert_allclose(
            fit.predict(reverse)[::-1], fit.predict(rows), rtol=1e-12
        )
        np.testing.assert_array_equal(fit.losses(rows)[0], fit.predict(rows))
        return fit.predict(rows)
    drawn, latent = fit.forecast(rows, seed=3), fit.latent(rows)
    np.testing.assert_array_equal(fit.losses(rows), latent)
    assert np.isfinite(drawn.samples).all()
    shown = fit.forecast(rows, kind="latent")
    if isinstance(
        fit, bl.Pool
    ):  # a forecast takes other draws of its members than `latent`
        np.testing.assert_allclose(shown.median, np.median(latent, 0), rtol=0.02)
    else:
        np.testing.assert_array_equal(shown.samples, latent)
    np.testing.assert_allclose(fit.latent(reverse)[:, ::-1], latent, rtol=1e-12)
    for i in range(len(rows)):
        alone = rows[i : i + 1].reset_index(drop=True)
        np.testing.assert_allclose(fit.latent(alone)[:, 0], latent[:, i], rtol=1e-12)
    spread = [  # by quantiles, since noise has heavy tails
        np.subtract(*np.quantile(np.log(each), [0.84, 0.16], axis=0))
        for each in (drawn.samples, fit.forecast(reverse, seed=4).samples[:, ::-1])
    ]
    # About four standard errors of 200 draws.
    np.testing.assert_allclose(*spread, rtol=0.4)
    return latent, drawn.samples


@consumer
def why(case: Case, fit: Any, rows: pd.DataFrame) -> Any:
    """The parts of a row's variance add up to that of the forecast's own draws."""
    if isinstance(fit, bl.PointFit):
        return fit.predict(rows)  # without draws; the command refuses it
    for kind in ("latent", "predictive"):
        made = fit.forecast(rows, seed=3, kind=kind)
        found = made.variance()
        np.testing.assert_allclose(found.drop(columns="sd").sum(axis=1), 1, rtol=1e-9)
        # A pool's forecast takes some of its members' draws, here 100 of each.
        near = 0.25 if isinstance(fit, bl.Pool) else 1e-9
        np.testing.assert_allclose(found["sd"], np.log(made.samples).std(0), rtol=near)
        assert (found["noise"] == 0).all() == (kind == "latent")
        assert (found["law"] > 0).all() == isinstance(fit, bl.Pool)
    drifts = any(member.law.deviations for member in fit.members.values())
    assert (found["discrepancy"] != 0).any() == drifts
    return found.to_numpy()


@consumer
def shown(case: Case, fit: Any, rows: pd.DataFrame) -> Any:
    json.dumps(fit.shown().document)
    return str(fit).partition("\n")[0]


@consumer
def score(case: Case, fit: Any, rows: pd.DataFrame) -> Any:
    point = isinstance(fit, bl.PointFit)
    losses = fit.predict(rows) if point else fit.forecast(rows).median
    table = bl.from_frame(rows.assign(loss=losses), "held out")
    found = bl.score(fit, table)
    assert found["rmse_log"] < 1e-9
    if not point:
        assert found["coverage_50"] == 1
        pd.testing.assert_series_equal(bl.score(fit.forecast(table), table), found)
    return found.to_dict()


@consumer
def check(case: Case, fit: Any, rows: pd.DataFrame) -> Any:
    """Of rows with losses, so that none of the training rows are held out instead."""
    brief = partial(refit, draws=20, tune=30, chains=1, target_accept=0.8)
    with (
        patch("bayeslaw.checks.held_out.refit", brief),
        patch("bayeslaw.checks.outliers.refit", brief),
    ):
        found = bl.check(fit, rows.assign(loss=fit.predict(rows)))
    return {part.name: (part.level, part.words) for part in found.parts}


@consumer
def plan(case: Case, fit: Any, rows: pd.DataFrame) -> Any:
    """Of the planned run's draws, as many meet both limits as the forecast's latent losses say."""
    run = rows.iloc[0]
    row = rows[:1].drop(columns=["run"], errors="ignore")
    asked = {"params": run["params"], "ptpp": run.get("ptpp", 20), "confidence": 0.6}
    asked["replay"] = [run.get("replay", 1.0)]
    if "base" in row and "ptpp" in row:
        asked["base"] = str(row["base"].iloc[0]).removesuffix(".0")
    fits = {"target": of_role(fit, "target"), "source": of_role(turned(fit), "source")}
    at, baseline = (float(each.predict(row)[0]) for each in fits.values())
    limits = {"max_loss": at, "max_forgetting": 0.02, "baseline": baseline}
    far = {name: each.accepted("beyond-evidence") for name, each in fits.items()}
    found = bl.plan(**far, **asked, **limits)
    shown = found if np.isfinite(found.tokens) else found.best
    here = row.assign(tokens=shown.tokens)
    one, other = (each.latent(here)[:, 0] for each in fits.values())
    both = (one <= at) & (np.roll(other, fit.count // 2) <= 1.02 * baseline)
    assert shown.p_both == pytest.approx(both.mean(), abs=0.006)
    return found.to_dict()


@consumer
def derive(case: Case, fit: Any, rows: pd.DataFrame) -> Any:
    """The best split of a budget against a grid of splits, and that of the law as stated."""
    with patch.dict(AS_STATED, SHORT):
        rule = bl.derive.compute_optimal(
            fit, [1e19, 1e21], search=(1e-3, 1e6), **case.replay
        )
    assert (rule.with_drift is None) == (not fit.law.discrepancy_parameters)
    found = bl.derive.compute_optimal(
        fit, 1e21, search=(1, 1e3), drift=True, **case.replay
    )
    ratio = np.geomspace(1, 1e3, 400)
    params = np.sqrt(1e21 / 6 / ratio)
    splits = pd.DataFrame({"params": params, "tokens": ratio * params}).assign(
        **case.replay
    )
    least, best = fit.latent(splits).min(1), found.draws.loss.values[:, 0]
    assert (best <= least * (1 + 1e-4)).all()
    np.testing.assert_allclose(best, least, rtol=1e-3)  # a walk may bend between splits
    both = {f"rule {name}": values.values for name, values in rule.draws.items()}
    return both | {name: values.values for name, values in found.draws.items()}


@consumer
def anchors(case: Case, fit: Any, rows: pd.DataFrame) -> Any:
    goals, pool = (
        rows.tail(1),
        rows.assign(tokens=rows["tokens"] / 3).drop(columns="run", errors="ignore"),
    )
    pool = pool.reset_index(drop=True)
    reverse = bl.choose_anchors(
        fit, pool[::-1].reset_index(drop=True), goals, k=len(pool)
    )
    found = bl.choose_anchors(fit, pool, goals, k=len(pool))
    np.testing.assert_allclose(reverse.sd[-1], found.sd[-1], rtol=1e-6)  # of all runs
    assert (np.diff(found.sd[:, 0]) <= 0).all()
    return found.picks[["params", "tokens", "sd"]].to_numpy(float)


@consumer
def datatree(case: Case, fit: Any, rows: pd.DataFrame) -> Any:
    tree = fit.to_datatree(prior=20)
    parts = tree.children.values() if isinstance(fit, bl.Pool) else [tree]
    for part in parts:
        assert part["log_likelihood"]["log_loss"].shape[-1] == len(fit.table)
    return [part["log_likelihood"]["log_loss"].values for part in parts]


# -- cells ----------------------------------------------------------------------------------------

SAYS = {
    ("transfer", "derive"): "starts from the loss of a base",
    ("mixed", "derive"): "starts from the loss of a base",
    (
        "declared",
        "plan",
    ): "a plan does not know dropout, experts; fit the rows of one value",
    **{(pool, "derive"): "not a pool; take a member" for pool in ("pool", "one_base")},
    **{
        ("point", use): "needs a posterior, which bayeslaw.fit gives, not a PointFit"
        for use in ("check", "derive", "anchors")
    },
}
"""Of combinations that are not supported, what the error says."""
CELLS = [cell for cell in product(OPTIONS, CONSUMERS) if cell != ("point", "datatree")]


@pytest.mark.parametrize(("name", "use"), CELLS)
def test_pair(name, use):
    case, ask = OPTIONS[name](), CONSUMERS[use]
    usable = case.fit.accepted("unconverged")
    if (name, use) in SAYS:
        refused(bl.BayeslawError, SAYS[name, use], ask, case, usable, case.rows)
        return
    found = ask(case, usable, case.rows)
    if case.twin is not None:
        twin = case.twin.accepted("unconverged")
        np.testing.assert_equal(ask(case, twin, case.twin_rows), found)


LIMITS = {
    "params": 3e8,
    "ptpp": 60,
    "max_loss": 3.0,
    "max_forgetting": 0.1,
    "baseline": 2.5,
}
ROLES = (
    "rows of role target, but the law was fitted to source; choose rows of that role"
)


def plan_of(target: Any, source: Any) -> Any:
    return bl.plan(target=target, source=source, **LIMITS)


def with_other(fit: Any) -> Any:
    return of_role(turned(fit), "target")


def bare(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.drop(columns="role")


PAIRS = pd.DataFrame({"loss": np.arange(1.0, 10), "accuracy": 0.5, "role": "target"})
SWAPPED: dict[str, tuple[str, Callable[..., Any]]] = {
    "forecast": (ROLES, lambda fit, rows, table, path: fit.forecast(rows)),
    "score": (ROLES, lambda fit, rows, table, path: bl.score(fit, table)),
    "check": (ROLES, lambda fit, rows, table, path: bl.check(fit, rows)),
    "joined": (ROLES, lambda fit, rows, table, path: joined(fit.table, table)),
    "score of a forecast": ("role is source in the forecast and target in table",
        lambda fit, rows, table, path: bl.score(fit.forecast(bare(rows)), table)),
    "verify": ("none of its 4 rows was forecast", lambda fit, rows, table, path: (
        bl.register(fit.forecast(bare(rows)), path), bl.verify(path, table))),
    "plan": ("target and source are swapped",
        lambda fit, rows, table, path: plan_of(fit, with_other(fit))),
    "plan of two sources": ("the target's fit is of role source",
        lambda fit, rows, table, path: plan_of(fit, turned(fit))),
    "plan of two targets": ("the source's fit is of role target",
        lambda fit, rows, table, path: plan_of(of_role(fit, "target"), with_other(fit))),
    "anchors for targets": (ROLES, lambda fit, rows, table, path: bl.choose_anchors(
        fit, bare(rows), rows.assign(tokens=9e10), k=1)),
    "accuracy": ("rows of role target", lambda fit, rows, table, path: bl.derive.accuracy(
        fit.forecast(rows.assign(role="source")), PAIRS)),
    "recipes": ("of role target and of role source",
        lambda fit, rows, table, path: bl.compare_recipes({"a": fit, "b": with_other(fit)}, rows)),
    "pool": ("its members are fits of different tables",
        lambda fit, rows, table, path: bl.Pool({"a": fit, "b": of_role(fit, "target")})),
    "point fit": (ROLES,
        lambda fit, rows, table, path: bl.fit_huber("dcpt", fit.table).predict(rows)),
    "a file": (ROLES, lambda fit, rows, table, path: (
        fit.save(path.with_suffix(".nc"), losses=False),
        bl.load(path.with_suffix(".nc")).latent(rows))),
}  # fmt: skip
"""What the error says of the other role, and its call with a fit of role source."""


@pytest.mark.parametrize("by_losses", [False, True])
@pytest.mark.parametrize("use", SWAPPED)
def test_the_other_role_is_refused(use, by_losses, tmp_path):
    """By the column `role`; and by the losses of bases, which are one loss for a source."""
    fit = saved("form1n").accepted({"unconverged", "beyond-evidence"})
    frame = fit.table.frame
    rows = frame.drop(columns=["loss", "start_loss", "base_loss"])[:4].assign(
        role="target"
    )
    if by_losses:
        frame = frame.drop(columns="role").assign(start_loss=frame["base_loss"])
        fit = dataclasses.replace(
            fit, table=dataclasses.replace(fit.table, frame=frame)
        )
    rows["tokens"] *= 1.5
    says, call = SWAPPED[use]
    with pytest.raises(bl.BayeslawError, match=says) as error:
        call(fit, rows, bl.from_frame(rows.assign(loss=2.5)), tmp_path / "r.json")
    assert "\n" not in str(error.value)


def test_the_own_role_and_none_are_the_same():
    """Stated, left out, or said by the losses of bases; also of rows that are joined."""
    fit = saved("form1n").accepted({"unconverged", "beyond-evidence"})
    rows = fit.table.frame[:4]
    bare = rows.drop(columns=["role", "start_loss", "base_loss"])
    np.testing.assert_array_equal(fit.latent(rows), fit.latent(bare))
    assert bl.score(fit, bl.from_frame(rows)).equals(bl.score(fit, bl.from_frame(bare)))
    further = bl.from_frame(bare.assign(loss=2.5))
    assert (
        joined(fit.table, further).role == joined(further, fit.table).role == "source"
    )


@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "point"])
def test_a_saved_fit_is_the_one_that_was_made(name, tmp_path):
    """In all that it is; so what is made of it is the same."""
    case = OPTIONS[name]()
    case.fit.save(tmp_path / "fit.nc")
    loaded = bl.load(tmp_path / "fit.nc")
    np.testing.assert_array_equal(loaded.latent(case.rows), case.fit.latent(case.rows))
    if isinstance(loaded, bl.Pool):
        assert (loaded.weights, loaded.name) == (case.fit.weights, case.fit.name)
    for one, two in zip(members(loaded), members(case.fit), strict=True):
        xr.testing.assert_equal(one.draws, two.draws)
        for name, values in one.stats.items():
            np.testing.assert_array_equal(values, two.stats[name])
        for attribute in ("at", "convergence", "settings"):
            assert getattr(one, attribute) == getattr(two, attribute), attribute
        for attribute in (
            "identity",
            "arguments",
            "effects",
            "drawn",
            "errors",
            "new_sizes",
        ):
            assert getattr(one.spec, attribute) == getattr(two.spec, attribute), (
                attribute
            )
        assert {**one.spec.priors} == {**two.spec.priors}
        for attribute in ("frame", "baselines"):
            pd.testing.assert_frame_equal(
                getattr(one.table, attribute),
                getattr(two.table, attribute),
                check_dtype=False,
            )
        for attribute in ("name", "selection", "sha256"):
            assert getattr(one.table, attribute) == getattr(two.table, attribute), (
                attribute
            )


def test_a_file_has_the_parameters_that_are_slow_and_without_losses_none(tmp_path):
    """Also no losses of bases before adaptation."""
    fit = saved("domain")
    state = dataclasses.replace(fit.convergence, slow=("alpha", "beta"))
    fit = dataclasses.replace(fit, convergence=state)
    assert len(fit.table.baselines)
    fit.save(tmp_path / "fit.nc")
    whole = bl.load(tmp_path / "fit.nc")
    assert (whole.convergence, len(whole.table.baselines)) == (
        state,
        len(fit.table.baselines),
    )
    fit.save(tmp_path / "bare.nc", losses=False)
    bare = bl.load(tmp_path / "bare.nc")
    assert "loss" not in bare.table.frame
    assert bare.table.baselines.empty


def members(fit: Any) -> list[bl.Posterior]:
    return [*fit.members.values()] if isinstance(fit, bl.Pool) else [fit]


NEED_LOSSES = ("check", "datatree")
BARE = (
    "plain",
    "groups",
    "drawn",
    "columns",
    "form1n",
    "transfer",
    "pool",
)


@pytest.mark.parametrize(
    ("name", "use"),
    [
        cell if cell[1] == "forecast" else slow(*cell)
        for cell in product(BARE, CONSUMERS)
    ],
)
def test_a_fit_without_its_losses_gives_the_same_or_refuses(name, use, tmp_path):
    case, found = OPTIONS[name](), []
    rows = case.rows
    if (
        "run" in rows
    ):  # further rows of a fitted run differ, with a warning: test_posterior.py
        rows = rows.assign(run=rows["run"].astype(str) + " again")
    case.fit.save(tmp_path / "fit.nc", losses=False)
    for fit in (case.fit, bl.load(tmp_path / "fit.nc")):
        try:
            usable = fit.accepted("unconverged")
            found.append(CONSUMERS[use](case, usable, rows))
        except bl.BayeslawError as error:
            found.append(str(error))
    if (name, use) in SAYS:
        assert SAYS[name, use] in found[0]
        assert found[0] == found[1]
    elif use in NEED_LOSSES:
        assert found[1].endswith(
            "the fit was saved without its losses; this needs them."
        )
    elif (
        use == "derive" and case.fit.law.deviations
    ):  # a second fit, of the law as stated
        assert "saved without its losses" in found[1]
    else:
        np.testing.assert_equal(found[1], found[0])
