"""Every option of a fit or table beside everything that takes a fit.

Each cell asserts what must hold of any pair: a fit that was saved and loaded gives the same
numbers, and so does the same table stated otherwise (numeric labels as text, columns that change
nothing, one domain of a table of two); the forecast of a row depends neither on the order of rows
nor on the others asked for; plans, derived numbers and coefficients are those of the latent losses.
What is not supported says so in one line.
"""

import dataclasses
from collections.abc import Callable
from functools import cache, partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest

import bayeslaw as bl
from tests.inside import refit
from tests.laws.test_transfer import TRUTH as TRANSFER
from tests.support import CHINCHILLA, grouped

SHORT = {"chains": 2, "draws": 100, "tune": 100, "target_accept": 0.8, "retry": False}
SHORT |= {"discrepancy": "none"}
ALLOW = {"allow_unconverged": True}


@dataclasses.dataclass(frozen=True)
class Case:
    """A fit with an option, rows to forecast, and the same table and rows stated otherwise."""

    fit: Any
    source: Any
    rows: pd.DataFrame
    twin: Any = None
    twin_rows: pd.DataFrame | None = None

    @property
    def replay(self) -> dict[str, float]:
        """Values that derived numbers need of laws of adaptation."""
        return {"replay": 0.3, "ptpp": 30} if "ptpp" in self.rows else {}


OPTIONS: dict[str, Callable[[], Case]] = {}


def option(make: Callable[[], Case]) -> Callable[[], Case]:
    """Let the table have a row of that name; its fits are made once."""
    OPTIONS[make.__name__] = cache(make)
    return OPTIONS[make.__name__]


# -- options --------------------------------------------------------------------------------------

DESIGN = bl.grid(params=[1e8, 3e8, 1e9, 3e9], tokens=[1e9, 3e9, 1e10, 3e10, 1e11])
AHEAD = bl.grid(params=[3e8, 5e9], tokens=[4e10, 1e12])


def measured(frame: pd.DataFrame, factor: float = 1.0, name: str = "table") -> bl.LossTable:
    return bl.from_frame(frame.assign(loss=frame["loss"] * factor), name)


def both(law: str, frame: pd.DataFrame, **settings: Any) -> list[Any]:
    """Fits of a target, and of a source with losses that are 5 % higher."""
    chosen = SHORT | settings
    return [
        bl.fit(law, measured(frame, factor), seed=i, **chosen) for i, factor in enumerate((1, 1.05))
    ]


@cache
def plain_rows() -> pd.DataFrame:
    return bl.simulate("chinchilla", CHINCHILLA, DESIGN, sigma=0.003, seed=1).frame


@option
def plain() -> Case:
    """Its twin has columns that change nothing, and counts as integers."""
    frame = plain_rows()
    neutral = {"annealed": 1, "domain": "web", "note": "a"}
    stated = frame.assign(**neutral, run=range(len(frame))).astype({"tokens": int, "params": int})
    twin = bl.fit("chinchilla", measured(stated), seed=0, **SHORT)
    return Case(*both("chinchilla", frame), AHEAD, twin, AHEAD.assign(**neutral))


@option
def trend() -> Case:
    return Case(*both("chinchilla", plain_rows(), discrepancy="trend"), AHEAD)


@option
def skewed() -> Case:
    """Losses that are too high where runs are badly tuned."""
    frame = plain_rows()
    extra = np.random.default_rng(2).exponential(0.01, len(frame))
    rows = frame.assign(loss=frame["loss"] * np.exp(extra))
    return Case(*both("chinchilla", rows, likelihood="skewed"), AHEAD)


@option
def floor_in_nats() -> Case:
    """A prior of E in place of that of the floor's share of the loss."""
    priors = {"E": "LogNormal(median=1.2, sigma=0.6)"}
    return Case(*both("chinchilla", plain_rows(), priors=priors), AHEAD)


@option
def few_sizes() -> Case:
    """Curvature, and sizes too few for fitted effects, which new sizes have all the same."""
    frame = plain_rows().query("params < 2e9").reset_index(drop=True)
    return Case(*both("chinchilla", frame, discrepancy="curvature"), AHEAD)


@option
def groups() -> Case:
    """Correlated errors, three levels of effects, numeric labels of which some are missing."""
    frame = grouped(0).frame
    for column in ("base", "run"):
        frame[column] = frame[column].factorize()[0]
    frame.loc[[0, 40], ["base", "run"]] = np.nan
    rows = frame.loc[[3, 20, 0, 40], ["params", "tokens", "base", "run"]]
    rows = pd.concat([rows, rows[:2].assign(run=[100.0, 101.0], params=5e9)], ignore_index=True)
    rows["tokens"] = 1e11 * np.arange(1, 7)
    how = {"errors": "run", "effects": "size,base,run"}
    twin = bl.fit("chinchilla", measured(as_text(frame)), seed=0, **SHORT | how)
    return Case(*both("chinchilla", frame, **how), rows, twin, as_text(rows))


def as_text(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with labels as text, and None where one is missing."""
    text = {c: frame[c].astype("Int64").astype("string").astype(object) for c in ("base", "run")}
    return frame.assign(**{c: v.where(frame[c].notna(), None) for c, v in text.items()})


@option
def columns() -> Case:
    """Repeated data, and checkpoints that are not annealed."""
    frame = plain_rows().loc[np.repeat(range(20), 2)].reset_index(drop=True)
    place = np.arange(len(frame))
    frame = frame.assign(
        annealed=place % 2,
        unique_tokens=np.where(place % 3 == 0, 5e9, 1e13),
        loss=frame["loss"] * np.where(place % 2 == 0, 1.03, 1.0),
    )
    twin = frame.astype({"annealed": bool, "unique_tokens": int})
    twin = bl.fit("chinchilla", measured(twin), seed=0, **SHORT)
    neutral = AHEAD.assign(annealed=1, unique_tokens=1e13)
    return Case(*both("chinchilla", frame), AHEAD, twin, neutral)


@option
def rates() -> Case:
    """Three rates, and rows at their best one; the rows ahead of the twin say that they are."""
    frame = plain_rows().loc[np.repeat(range(20), 3)].reset_index(drop=True)
    rate = np.tile([1e-4, 3e-4, 1e-3], 20)
    off = np.log(rate / 4e-4) + 0.2 * np.log(frame["params"] / 6e8)
    frame = frame.assign(loss=frame["loss"] * np.exp(0.03 * off**2), rate=rate)
    frame = pd.concat([frame, plain_rows()[::3]], ignore_index=True)
    twin = frame.assign(rate=frame["rate"].astype(object))
    twin = bl.fit("chinchilla", measured(twin), seed=0, **SHORT)
    return Case(*both("chinchilla", frame), AHEAD, twin, AHEAD.assign(rate=np.nan))


@cache
def stages() -> pd.DataFrame:
    """Runs of eight bases, with numeric labels, at two ratios and three budgets."""
    bases = bl.grid(params=[1e8, 3e8, 1e9, 3e9], ptpp=[15, 60])
    n, d, rng = bases["params"], bases["params"] * bases["ptpp"], np.random.default_rng(0)
    expected = 1.5 + 90 / n**0.3 + 300 / d**0.33
    bases["base_loss"] = expected * np.exp(0.01 * rng.standard_normal(8))
    bases["start_loss"] = 5 + 0.1 * rng.standard_normal(8)
    bases["base"] = np.arange(8)
    rows = bases.merge(bl.grid(replay=[0.1, 0.5], atpp=[0.5, 2, 8]), how="cross")
    rows["tokens"], rows["run"] = rows["atpp"] * rows["params"], 10 * rows["base"]
    rows["run"] += (rows["replay"] > 0.3).astype(int)
    table = bl.simulate("transfer", TRANSFER, rows.drop(columns="atpp"), sigma=0.003)
    return table.frame.drop(columns="synthetic")


STAGED = bl.grid(params=[3e8, 5e9], ptpp=60, replay=[0.1, 0.4], tokens=2e10)


def staged(law: str, **how: Any) -> Case:
    """A fit of a law of adaptation; the rows ahead are of a known base, a new one and of none."""
    frame = stages()
    frame = frame.assign(
        base=frame["base"].where(frame.index != 47), run=frame["run"].where(frame.index != 47)
    )
    rows = STAGED.assign(base=[3.0, 3.0, 99.0, np.nan], run=[31.0, 500.0, 501.0, np.nan])
    twin = bl.fit(law, measured(as_text(frame)), seed=0, **SHORT | how)
    return Case(*both(law, frame, **how), rows, twin, as_text(rows))


@option
def adaptation() -> Case:
    return staged("form1n", discrepancy="auto")


@option
def transfer() -> Case:
    return staged("transfer", effects="size", errors="independent")


@option
def pool() -> Case:
    """Weights in another order than the members."""
    one, two = adaptation(), transfer()

    def pooled(name: str) -> bl.Pool:
        members = {"form1n": getattr(one, name), "transfer": getattr(two, name)}
        return bl.Pool(members, {"transfer": 3.0, "form1n": 1.0}, "ours")

    return Case(pooled("fit"), pooled("source"), one.rows, pooled("twin"), one.twin_rows)


@option
def domains() -> Case:
    """One domain of a table of two, with losses of their bases at tokens = 0; alone in the twin."""
    rows = stages().assign(domain="french", base=stages()["base"].astype(str))
    bases = rows.drop_duplicates("base").assign(tokens=0.0, replay=1.0)
    french = pd.concat([rows, bases.assign(loss=bases["start_loss"])], ignore_index=True)
    english = french.assign(loss=1.05 * french["loss"], domain="english")
    table = bl.from_frame(pd.concat([english, french], ignore_index=True), "table")
    how = SHORT | {"effects": "none", "errors": "independent"}
    fits = [
        bl.fit("form1", table.query(f"domain == '{name}'"), seed=i, **how)
        for i, name in enumerate(("french", "english"))
    ]
    twin = bl.fit("form1", bl.from_frame(french, "table"), seed=0, **how)
    return Case(*fits, STAGED, twin, STAGED)


@option
def joint() -> Case:
    """Both domains in one fit, which correlates the effects of their runs."""
    from tests.inference.test_joint_fitting import LAWS, pair

    fits = bl.fit_joint(LAWS, pair(0.9), seed=1, **SHORT)
    rows = fits["french"].table.frame.loc[[0, 30], ["params", "tokens", "run"]]
    rows = pd.concat([rows, rows.assign(run=["new", None])], ignore_index=True)
    return Case(*fits.values(), rows.assign(tokens=1e11 * np.arange(1, 5)))


@option
def point() -> Case:
    frame = stages()
    fits = [bl.fit_huber("form1", measured(frame, factor)) for factor in (1, 1.05)]
    return Case(*fits, STAGED)


@option
def exported() -> Case:
    """Coefficients with all draws, read from their file."""
    own = plain()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "c.json"
        bl.write_coefficients(own.fit, path, draws=own.fit.count, **ALLOW)
        return Case(bl.read_coefficients(path), own.source, own.rows)


# -- consumers ------------------------------------------------------------------------------------

CONSUMERS: dict[str, Callable[..., Any]] = {}


def middle(fit: Any, rows: pd.DataFrame) -> np.ndarray:
    """Central losses, converged or not."""
    return fit.predict(rows) if isinstance(fit, bl.PointFit) else fit.predict(rows, **ALLOW)


def consumer(use: Callable[..., Any]) -> Callable[..., Any]:
    """Let the table have a column of that name."""
    CONSUMERS[use.__name__] = use
    return use


@consumer
def forecast(case: Case, fit: Any, rows: pd.DataFrame, folder: Path) -> Any:
    turned = rows[::-1].reset_index(drop=True)
    if isinstance(fit, bl.PointFit):
        np.testing.assert_allclose(fit.predict(turned)[::-1], fit.predict(rows), rtol=1e-12)
        return fit.predict(rows)
    drawn, latent = fit.forecast(rows, seed=3, **ALLOW), fit.latent(rows)
    assert np.isfinite(drawn.samples).all()
    shown = fit.forecast(rows, kind="latent", **ALLOW)
    if isinstance(fit, bl.Pool):  # a forecast takes other draws of its members than `latent`
        np.testing.assert_allclose(shown.median, np.median(latent, 0), rtol=0.02)
    else:
        np.testing.assert_array_equal(shown.samples, latent)
    np.testing.assert_allclose(fit.latent(turned)[:, ::-1], latent, rtol=1e-12)
    for i in range(len(rows)):
        alone = rows[i : i + 1].reset_index(drop=True)
        np.testing.assert_allclose(fit.latent(alone)[:, 0], latent[:, i], rtol=1e-12)
    spread = [
        np.std(np.log(each), axis=0)
        for each in (drawn.samples, fit.forecast(turned, seed=4, **ALLOW).samples[:, ::-1])
    ]
    np.testing.assert_allclose(*spread, rtol=0.35)  # about four standard errors of 200 draws
    return latent, drawn.samples


@consumer
def score(case: Case, fit: Any, rows: pd.DataFrame, folder: Path) -> Any:
    point = isinstance(fit, bl.PointFit)
    losses = fit.predict(rows) if point else fit.forecast(rows, **ALLOW).median
    table = bl.from_frame(rows.assign(loss=losses), "held out")
    found = bl.score(fit, table, **ALLOW)
    assert found["rmse_log"] < 1e-9
    if not point:
        assert found["coverage_50"] == 1
        pd.testing.assert_series_equal(bl.score(fit.forecast(table, **ALLOW), table), found)
    return found.to_dict()


@consumer
def loo(case: Case, fit: Any, rows: pd.DataFrame, folder: Path) -> Any:
    found = bl.loo(fit).frame
    per_row = found["elpd"] / (len(fit.table) / len(found))
    assert per_row.min() > per_row.median() - 8  # nats; a row without its effect loses a hundred
    return found["elpd"].to_numpy()


@consumer
def check(case: Case, fit: Any, rows: pd.DataFrame, folder: Path) -> Any:
    """Of rows with losses, so that none of the training rows are held out instead."""
    brief = partial(refit, draws=50, tune=50, target_accept=0.8)
    with patch("bayeslaw.checks._check.refit", brief):
        found = bl.check(fit, rows.assign(loss=middle(fit, rows)))
    return {part.name: (part.level, part.words) for part in found.parts}


@consumer
def plan(case: Case, fit: Any, rows: pd.DataFrame, folder: Path) -> Any:
    """Of the planned run's draws, as many meet both limits as the latent losses say."""
    run = rows.iloc[0]
    replay = run.get("replay", 1.0)
    row = rows[:1].drop(columns=["run"], errors="ignore").assign(replay=replay)
    asked = {"params": run["params"], "ptpp": run.get("ptpp", 20), "replay_grid": [replay]}
    if "base" in row and "ptpp" in row:
        asked["base"] = str(row["base"].iloc[0]).removesuffix(".0")
    at = [float(middle(each, row)[0]) for each in (fit, case.source)]
    limits = {"max_loss": at[0], "max_forgetting": 0.02, "baseline": at[1]}
    how = {"noise": "latent", "confidence": 0.6, "beyond_evidence": True, **ALLOW}
    found = bl.plan(target=fit, source=case.source, **asked, **limits, **how)
    document = found.to_dict()
    shown = found if np.isfinite(found.tokens) else found.best
    here = row.assign(tokens=shown.tokens)
    if isinstance(fit, bl.PointFit):
        held = [
            float(fit.predict(here)[0]) <= at[0],
            float(case.source.predict(here)[0]) <= 1.02 * at[1],
        ]
        assert shown.p_both == float(all(held))
        return document
    index = [limit.index for limit in found.problem.limits]
    target, source = fit.latent(here)[index[0], 0], case.source.latent(here)[index[1], 0]
    assert shown.p_both == pytest.approx(
        np.mean((target <= at[0]) & (source <= 1.02 * at[1])), abs=0.006
    )
    return document


@consumer
def derive(case: Case, fit: Any, rows: pd.DataFrame, folder: Path) -> Any:
    """The best split of a budget against a grid of splits."""
    found = bl.derive.compute_optimal(fit, 1e21, search=(1, 1e3), **case.replay, **ALLOW)
    ratio = np.geomspace(1, 1e3, 400)
    params = np.sqrt(1e21 / 6 / ratio)
    splits = pd.DataFrame({"params": params, "tokens": ratio * params}).assign(**case.replay)
    least, best = fit.latent(splits).min(1), found.draws.loss.values[:, 0]
    assert (best <= least * (1 + 1e-4)).all()
    np.testing.assert_allclose(best, least, rtol=1e-3)  # a walk may bend between splits
    return {name: values.values for name, values in found.draws.items()}


@consumer
def accuracy(case: Case, fit: Any, rows: pd.DataFrame, folder: Path) -> Any:
    """Between the accuracies of the pairs, the higher the lower the loss."""
    made = fit.forecast(rows) if isinstance(fit, bl.PointFit) else fit.forecast(rows, **ALLOW)
    losses = np.linspace(0.5, 1.5, 20)[:, None] * middle(fit, rows)
    frame = pd.DataFrame({"loss": losses.ravel()}).assign(
        accuracy=lambda f: 1 / (1 + np.exp(2 * (f["loss"] - f["loss"].mean())))
    )
    values = bl.derive.accuracy(made, frame).draws["accuracy"].values
    order = np.argsort(made.median)
    assert (np.diff(np.median(values, axis=0)[order]) <= 0.01).all()
    return values


@consumer
def recipes(case: Case, fit: Any, rows: pd.DataFrame, folder: Path) -> Any:
    fits = {"a": fit, "b": case.source}
    found = bl.compare_recipes(fits, rows, **ALLOW)
    turned = bl.compare_recipes(fits, rows[::-1].reset_index(drop=True), **ALLOW)
    np.testing.assert_allclose(turned.losses.values[..., ::-1], found.losses.values, rtol=1e-12)
    frame = found.to_frame()
    assert frame.groupby(frame.index // 2)["p_best"].sum().to_numpy() == pytest.approx(1)
    assert (frame["regret"] >= 0).all()
    return found.losses.values


@consumer
def anchors(case: Case, fit: Any, rows: pd.DataFrame, folder: Path) -> Any:
    goals, pool = (
        rows.tail(1),
        rows.assign(tokens=rows["tokens"] / 3).drop(columns="run", errors="ignore"),
    )
    pool = pool.reset_index(drop=True)
    how = {"k": 2, "second_size": False, "gain": "variance", **ALLOW}
    found = bl.choose_anchors(fit, pool, goals, **how)
    turned = bl.choose_anchors(fit, pool[::-1].reset_index(drop=True), goals, **how)
    np.testing.assert_allclose(turned.picks["sd"], found.picks["sd"], rtol=1e-6)
    assert (np.diff(found.sd[:, 0]) <= 0).all()
    return found.picks[["params", "tokens", "sd"]].to_numpy(float)


@consumer
def coefficients(case: Case, fit: Any, rows: pd.DataFrame, folder: Path) -> Any:
    """All draws in the file forecast as the fit."""
    bl.write_coefficients(fit, folder / "c.json", draws=200, **ALLOW)
    found = bl.read_coefficients(folder / "c.json")
    np.testing.assert_allclose(found.latent(rows), fit.latent(rows), rtol=1e-12)
    one, two = (each.forecast(rows, seed=3, **ALLOW).samples for each in (found, fit))
    np.testing.assert_allclose(one, two, rtol=1e-12)
    return found.parameters["median"].to_numpy(float)


@consumer
def verify(case: Case, fit: Any, rows: pd.DataFrame, folder: Path) -> Any:
    """The registered medians, measured in another order, are found without an error."""
    made = fit.forecast(rows) if isinstance(fit, bl.PointFit) else fit.forecast(rows, **ALLOW)
    bl.register(made, folder / "r.json")
    turned = rows.assign(loss=made.median)[::-1].reset_index(drop=True)
    found = bl.verify(folder / "r.json", bl.from_frame(turned, "measured"))
    assert (found.missing, found.extra) == ((), ())
    assert found.scores["rmse_log"] < 1e-6
    return found.scores[["coverage_90", "width_90"]].to_numpy()


@consumer
def datatree(case: Case, fit: Any, rows: pd.DataFrame, folder: Path) -> Any:
    tree = fit.to_datatree(prior=20)
    parts = tree.children.values() if isinstance(fit, bl.Pool) else [tree]
    for part in parts:
        assert part["log_likelihood"]["log_loss"].shape[-1] == len(fit.table)
    return [part["log_likelihood"]["log_loss"].values for part in parts]


# -- cells ----------------------------------------------------------------------------------------

SAYS = {
    ("few_sizes", "coefficients"): "with so few model sizes",
    ("transfer", "derive"): "starts from the loss of a base",
    **{
        ("pool", use): "not a pool; take a member"
        for use in ("loo", "derive", "recipes", "coefficients")
    },
    **{
        (name, use): f"needs a posterior, which bayeslaw.fit gives, not a {kind}"
        for name, kind in (("point", "PointFit"), ("exported", "Coefficients"))
        for use in ("loo", "check", "derive", "recipes", "anchors", "coefficients")
    },
    **{("exported", use): "not a Coefficients" for use in ("score", "plan")},
    ("point", "verify"): "a point fit has no bands",
    ("point", "accuracy"): "a point fit has no draws",
    ("exported", "verify"): "does not know its fit",
}
"""Of combinations that are not supported, what the error says."""


NO_METHOD = {("point", "datatree"), ("exported", "datatree")}


@pytest.mark.parametrize(
    ("name", "use"), [c for c in product(OPTIONS, CONSUMERS) if c not in NO_METHOD]
)
def test_pair(name, use, tmp_path):
    case, ask = OPTIONS[name](), CONSUMERS[use]
    folders = iter(tmp_path / str(i) for i in range(3))

    def asked(fit, rows):
        folder = next(folders)
        folder.mkdir()
        return ask(case, fit, rows, folder)

    if (name, use) in SAYS:
        with pytest.raises(bl.BayeslawError, match=SAYS[name, use]) as error:
            asked(case.fit, case.rows)
        assert "\n" not in str(error.value)
        return
    found = asked(case.fit, case.rows)
    if case.twin is not None:
        np.testing.assert_equal(asked(case.twin, case.twin_rows), found)
    if hasattr(case.fit, "save"):
        case.fit.save(tmp_path / "fit.nc")
        np.testing.assert_equal(asked(bl.load(tmp_path / "fit.nc"), case.rows), found)
