"""Studies: cases, the same numbers on every backend, and after a kill."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from functools import partial

import joblib
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from bayeslaw import (
    BayeslawError,
    FitError,
    anchor_value,
    paper_world,
    pool_cases,
    study,
    world_cases,
)
from bayeslaw.cli import app
from tests.inside import DESIGNS, buy, costs, refit, summary

QUERIES = {"train": "tokens < 2e10", "pool": "tokens > 2e10 and params < 2e9"}
QUERIES |= {"targets": "tokens > 2e10 and params > 2e9"}
SHORT = {"draws": 60, "tune": 60}
FIXED = ["case", "seed", "design", "flops", "crps", "sd", "sd_predicted", "rhat"]


@pytest.fixture(scope="module")
def cases(small):
    return pool_cases(small, "chinchilla", **QUERIES, seeds=range(2), name="small")


@pytest.fixture(scope="module")
def whole(cases, tmp_path_factory):
    """Every design, on two seeds, in this process."""
    out = tmp_path_factory.mktemp("study") / "whole.parquet"
    return study(cases, DESIGNS, out=out, jobs=1, budget=1e21, **SHORT), out


def test_a_pool_is_looked_up_and_a_world_is_exact(cases):
    assert cases[0].pool.loss.tolist() == cases[1].pool.loss.tolist()
    one, two = world_cases(range(2))
    assert one.exact
    np.testing.assert_array_equal(one.targets.loss, two.targets.loss)
    assert (one.train.loss != two.train.loss).all()


def test_designs_without_a_posterior(cases):
    """The paper's grid is its twenty points; others spend most of the same budget."""
    (case,) = world_cases([0])
    price = costs(case.pool.frame, case.law.columns, cost="adaptation")
    rows = buy("grid", case, price, math.inf, None)
    frame = case.pool.frame.loc[rows]
    assert (len(frame), frame["params"].unique().tolist()) == (20, [241e6])
    budget = price.total(rows)
    for design in ("random", "cheapest"):
        assert 0.5 * budget < price.total(buy(design, case, price, budget, None)) <= budget
    few = cases[0]
    price = costs(few.pool.frame, few.law.columns, cost="adaptation")
    order = np.argsort(price.own)
    budget = price.own[order[:2]].sum()
    assert buy("cheapest", few, price, budget, None) == sorted(order[:2])
    assert buy("none", few, price, budget, None) == []


def test_every_design_keeps_the_budget_and_is_scored(whole):
    results, out = whole
    assert len(results) == 2 * 7
    assert (results["flops"] <= 1e21).all()
    none = results.query("design == 'none'")
    assert (none["flops"] == 0).all()
    assert (results.query("design != 'none'")["flops"] > 0).all()
    np.testing.assert_allclose(none["sd"], none["sd_predicted"])
    scored = ["crps", "rmse_log", "coverage_90", "winkler_90", "sd", "sd_predicted", "rhat"]
    assert np.isfinite(results[scored]).all(axis=None)
    pd.testing.assert_frame_equal(pd.read_parquet(out), results)
    table = summary(results, "random").set_index("design")
    crps = results.pivot_table(index="seed", columns="design", values="crps")
    ratio = crps["variance"] / crps["random"]
    assert table.loc["variance", "ratio"] == pytest.approx(ratio.median())
    assert table.loc["variance", "better"] == (ratio < 1).mean()
    assert math.isnan(table.loc["random", "better"])


def test_finished_cells_are_not_computed_again(whole, cases):
    results, out = whole
    folder = out.with_name("whole.parquet.cells")
    cells = sorted(folder.glob("*.json"))
    lost, rest = cells[3], cells[:3] + cells[4:]
    lost.unlink()
    before = {path: path.stat().st_mtime_ns for path in rest}
    designs = list(dict.fromkeys(results["design"]))
    again = study(cases, designs, out=out, jobs=1, budget=1e21, **SHORT)
    assert {path: path.stat().st_mtime_ns for path in rest} == before
    pd.testing.assert_frame_equal(again[FIXED], results[FIXED])
    other = study(cases[:1], ["none"], out=out, jobs=1, budget=2e21, **SHORT)
    assert other["budget"].tolist() == [2e21]
    assert len(list(folder.glob("*.json"))) == len(cells) + 1


def test_mistakes_are_told(cases, small, tmp_path):
    out = tmp_path / "x.parquet"
    for wrong, message in (
        ({"designs": ["randm"]}, "did you mean 'random'"),
        ({"designs": ["plan"]}, "unknown design"),
    ):
        with pytest.raises(BayeslawError, match=message):
            study(cases, **{"designs": ["none"], "out": out} | wrong)
    assert not list(tmp_path.iterdir())
    with pytest.raises(FitError, match=r"backend='dask': was removed: .*parallel_config"):
        study(cases, ["none"], out=out, jobs=1, backend="dask")
    with pytest.raises(BayeslawError, match="have rows in common"):
        pool_cases(small, "chinchilla", **QUERIES | {"pool": "tokens > 1e9"})


@pytest.mark.parametrize("backend", ["loky", "dask"])
@pytest.mark.slow
def test_processes_and_a_cluster_give_the_same_numbers(whole, cases, tmp_path, backend):
    results, _ = whole
    designs, out = ["none", "variance"], tmp_path / "found.csv"
    if backend == "loky":
        found = study(cases, designs, out=out, jobs=2, budget=1e21, **SHORT)
    else:
        distributed = pytest.importorskip("dask.distributed")
        two = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
        with (
            distributed.LocalCluster(**two) as cluster,
            distributed.Client(cluster),
            joblib.parallel_config(backend="dask"),
        ):
            found = study(cases, designs, out=out, budget=1e21, **SHORT)
    expected = results[results["design"].isin(designs)].reset_index(drop=True)
    pd.testing.assert_frame_equal(found[FIXED], expected[FIXED])


def test_a_killed_study_goes_on_where_it_was(whole, small, tmp_path):
    results, _ = whole
    table, out = tmp_path / "small.csv", tmp_path / "killed.parquet"
    small.frame.to_csv(table, index=False)
    options = {**QUERIES, "law": "chinchilla", "designs": "none,random,variance"}
    options |= {"seeds": 2, "budget": 1e21, "out": out, "jobs": 1, **SHORT}
    command = [sys.executable, "-m", "bayeslaw", "study", str(table)]
    command += [str(part) for n, v in options.items() for part in (f"--{n}", v)]
    folder = out.with_name("killed.parquet.cells")
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 240
        while len(list(folder.glob("*.json"))) < 2 and time.monotonic() < deadline:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
    kept = {path: path.stat().st_mtime_ns for path in folder.glob("*.json")}
    assert 2 <= len(kept) < 6
    assert all(json.loads(path.read_text())["case"] for path in kept)
    assert not out.exists()
    again = CliRunner().invoke(app, command[3:])
    assert again.exit_code == 0, again.output
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    found = pd.read_parquet(out)
    wanted = results[results["design"].isin(options["designs"].split(","))]
    fixed = [c for c in FIXED if c not in ("case", "sd_predicted")]
    found, wanted = (
        frame[fixed].set_index(["seed", "design"]).sort_index() for frame in (found, wanted)
    )
    pd.testing.assert_frame_equal(found, wanted, rtol=1e-9)


@pytest.mark.slow
def test_the_worth_of_anchors(monkeypatch):
    monkeypatch.setattr("bayeslaw.design.anchors.refit", partial(refit, draws=150, tune=200))
    (case,) = world_cases([0])
    world = paper_world()
    before = world.table(world.source).training("ptpp <= 31")
    fits = [refit(case.law, case.train, 0), refit(world.laws[world.source], before, 0)]
    pool = case.pool.frame.drop(columns="loss")
    few = pool.query(case.grid).iloc[::5]
    given = {
        "target": fits[0], "source": fits[1], "cost": "adaptation", "allow_unconverged": True,
        "params": 8.1e9, "ptpp": 279, "max_loss": 1.9,
        "max_forgetting": 0.06, "baseline": world.baseline(), "confidence": 0.8,
    }  # fmt: skip
    grid_value = anchor_value({"grid": pool.query(case.grid)}, simulations=7, **given)
    worth = anchor_value({"few": few, "fewer": few.iloc[::2]}, simulations=2, **given)
    worth = pd.concat([worth, grid_value]).set_index("set")
    assert worth.loc["few", "flops"] == pytest.approx((6 * few["params"] * few["tokens"]).sum())
    assert (worth["net"] == worth["saved"] - worth["flops"]).all()
    # The budget falls in three truths of four (27 of 36), so of 7 in most: in 13 runs of 14.
    assert worth.loc["grid", "atpp"] < worth.loc["grid", "atpp_now"]
    assert (worth["atpp"] <= worth["atpp_90"]).all()
    saved = (worth["atpp_now"] - worth["atpp"]) * 6 * 8.1e9**2
    np.testing.assert_allclose(worth["saved"], saved, rtol=1e-6)
