"""Studies: the same numbers on every backend, and after an interruption."""

import json
import math
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from bayeslaw.cli import app
from bayeslaw.common.errors import BayeslawError
from bayeslaw.common.progress import bar
from bayeslaw.design.costs import costs
from bayeslaw.design.designs import DESIGNS, buy
from bayeslaw.design.evsi import anchor_value
from bayeslaw.inference.refits import refit
from bayeslaw.simulation.worlds import paper_world
from bayeslaw.studies.backends import runner
from bayeslaw.studies.cases import pool_cases, varied, world_cases
from bayeslaw.studies.study import study, summary
from bayeslaw.tables.table import grid

QUERIES = {"train": "tokens < 2e10", "pool": "tokens > 2e10 and params < 2e9"}
QUERIES |= {"targets": "tokens > 2e10 and params > 2e9"}
SHORT = {"draws": 100, "tune": 100}
FIXED = ["case", "seed", "design", "flops", "crps", "sd", "sd_predicted", "rhat"]


@pytest.fixture(scope="module")
def cases(small):
    return pool_cases(small, "chinchilla", **QUERIES, seeds=range(2), name="small")


@pytest.fixture(scope="module")
def whole(cases, tmp_path_factory):
    """Every design that needs no plan, on two seeds, in this process."""
    out = tmp_path_factory.mktemp("study") / "whole.parquet"
    designs = [design for design in DESIGNS if design != "plan"]
    results = study(cases, designs, out=out, backend="sequential", budget=1e21, **SHORT)
    return results, out


def test_every_design_keeps_the_budget_and_is_scored(whole):
    results, out = whole
    assert len(results) == 2 * 7
    assert (results["flops"] <= 1e21).all()
    assert (results.query("design == 'none'")["flops"] == 0).all()
    assert (results.query("design != 'none'")["flops"] > 0).all()
    none = results.query("design == 'none'")
    np.testing.assert_allclose(none["sd"], none["sd_predicted"])
    scored = ["crps", "rmse_log", "coverage_90", "winkler_90", "sd", "sd_predicted", "rhat"]
    assert np.isfinite(results[scored]).all(axis=None)
    pd.testing.assert_frame_equal(pd.read_parquet(out), results)
    assert not list(out.parent.glob("**/*.nc"))


def test_summary_pairs_seeds(whole):
    results, _ = whole
    table = summary(results, "random").set_index("design")
    crps = results.pivot_table(index="seed", columns="design", values="crps")
    ratio = crps["variance"] / crps["random"]
    assert table.loc["variance", "ratio"] == pytest.approx(ratio.median())
    assert table.loc["variance", "better"] == (ratio < 1).mean()
    assert math.isnan(table.loc["random", "better"])


def test_finished_cells_are_not_computed_again(whole, cases, tmp_path):
    results, out = whole
    folder = out.with_name("whole.parquet.cells")
    cells = sorted(folder.glob("*.json"))
    lost, rest = cells[3], cells[:3] + cells[4:]
    lost.unlink()
    before = {path: path.stat().st_mtime_ns for path in rest}
    designs = list(dict.fromkeys(results["design"]))
    again = study(cases, designs, out=out, backend="sequential", budget=1e21, **SHORT)
    assert {path: path.stat().st_mtime_ns for path in rest} == before
    pd.testing.assert_frame_equal(again[FIXED], results[FIXED])
    other = study(cases[:1], ["none"], out=out, backend="sequential", budget=2e21, **SHORT)
    assert other["budget"].tolist() == [2e21]
    assert len(list(folder.glob("*.json"))) == len(cells) + 1


def test_a_pool_is_looked_up_and_a_world_is_exact(cases):
    assert cases[0].pool.loss.tolist() == cases[1].pool.loss.tolist()
    one, two = world_cases(range(2))
    assert one.exact
    np.testing.assert_array_equal(one.targets.loss, two.targets.loss)
    assert (one.train.loss != two.train.loss).all()
    assert one.source is not None
    assert one.source.pool.frame["domain"].unique().tolist() == ["english_arabic"]
    columns = ["params", "tokens", "replay", "ptpp"]
    pd.testing.assert_frame_equal(one.pool.frame[columns], one.source.pool.frame[columns])


def test_variation_is_drawn_in_the_order_of_the_coordinates():
    """Not in the order of a set of names, which differs between processes."""
    world = paper_world()
    new = varied(world, 0.2, 1)
    for i, (domain, law) in enumerate(world.laws.items()):
        at = law.reference_point(world.design())
        old, moved = (law.to_reference(each.truth[domain], at) for each in (world, new))
        factors = [moved[name] / old[name] for name in law.coordinates[1:]]
        drawn = np.random.default_rng([1, i]).standard_normal(len(factors))
        np.testing.assert_allclose(factors, np.exp(0.2 * drawn))


def test_varied_worlds_keep_the_floor_and_the_plan():
    world = paper_world()
    one, same, two = (varied(world, 0.2, seed) for seed in (1, 1, 2))
    assert one.truth == same.truth != two.truth
    point = grid(params=8.1e9, ptpp=279, replay=0.34, tokens=8.9 * 8.1e9)
    for new in (one, two):
        for domain, truth in new.truth.items():
            assert truth["E"] == pytest.approx(world.truth[domain]["E"])
            assert truth["alpha"] != world.truth[domain]["alpha"]
        assert new.loss("french", point)[0] == pytest.approx(new.limits["max_loss"])
        most = new.baseline() * (1 + new.limits["max_forgetting"])
        assert new.loss("english_arabic", point)[0] == pytest.approx(most)
    same = varied(world, 0.0, 1)
    np.testing.assert_allclose(same.loss("french", point), world.loss("french", point))


def test_the_papers_grid_is_its_twenty_points():
    (case,) = world_cases([0])
    price = costs(case.pool.frame, case.law, cost="adaptation")
    given = {"posterior": None, "targets": case.targets}
    rows = buy("grid", case.pool, price, np.inf, None, grid=case.grid, **given)
    frame = case.pool.frame.loc[rows]
    assert len(frame) == 20
    assert frame["params"].unique().tolist() == [241e6]
    budget = price.total(rows)
    for design in ("random", "cheapest"):
        rng = np.random.default_rng(0)
        some = buy(design, case.pool, price, budget, rng, **given)
        assert 0.5 * budget < price.total(some) <= budget


def test_mistakes_raise_with_advice(cases, small, tmp_path):
    out = tmp_path / "x.parquet"
    for wrong, message in (
        ({"designs": ["randm"]}, "did you mean 'random'"),
        ({"backend": "lokey"}, "did you mean 'loky'"),
        ({"designs": ["plan"]}, "needs planning=True"),
        ({"planning": True}, "source domain"),
    ):
        with pytest.raises(BayeslawError, match=message):
            study(cases, **{"designs": ["none"], "out": out} | wrong)
    assert not list(tmp_path.iterdir())
    with pytest.raises(BayeslawError, match="rows in common"):
        pool_cases(small, "chinchilla", **QUERIES | {"pool": "tokens > 1e9"})


def test_progress_bar_counts_tasks(capsys):
    with bar(True, "refits", total=4, done=1) as tick:
        tick()
    with bar(False, "refits", total=4) as tick:
        tick()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("refits") == 1
    assert "2/4" in err


# -- backends and kills ---------------------------------------------------------------------------


@pytest.mark.slow
def test_processes_give_the_same_numbers(whole, cases, tmp_path):
    results, _ = whole
    designs = ["none", "variance"]
    out = tmp_path / "loky.csv"
    found = study(cases, designs, out=out, backend="loky", jobs=2, budget=1e21, **SHORT)
    expected = results[results["design"].isin(designs)].reset_index(drop=True)
    pd.testing.assert_frame_equal(found[FIXED], expected[FIXED])


@pytest.mark.slow
def test_a_dask_cluster_of_processes_gives_the_same_numbers(whole, cases, tmp_path):
    distributed = pytest.importorskip("dask.distributed")
    results, _ = whole
    designs = ["none", "variance"]
    settings = {"backend": "dask", "budget": 1e21, **SHORT}
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    )
    with cluster:
        address = cluster.scheduler_address
        out = tmp_path / "dask.parquet"
        found = study(cases, designs, out=out, scheduler=address, **settings)
    expected = results[results["design"].isin(designs)].reset_index(drop=True)
    pd.testing.assert_frame_equal(found[FIXED], expected[FIXED])


@pytest.mark.slow
def test_dask_starts_a_cluster_or_reports_that_it_cannot_connect():
    pytest.importorskip("dask.distributed")
    with runner("dask", 1, None) as run:
        assert dict(run({"eight": (pow, (2, 3))})) == {"eight": 8}
    nobody = runner("dask", 1, "tcp://127.0.0.1:1")
    with pytest.raises(BayeslawError, match="no Dask scheduler at tcp"), nobody:
        pass


def test_a_killed_study_resumes(whole, small, tmp_path):
    results, _ = whole
    table, out = tmp_path / "small.csv", tmp_path / "killed.parquet"
    small.frame.to_csv(table, index=False)
    options = {**QUERIES, "law": "chinchilla", "designs": "none,random,cheapest,variance"}
    options |= {"seeds": 2, "budget": 1e21, "draws": 100, "tune": 100, "out": out}
    command = [sys.executable, "-m", "bayeslaw", "study", str(table), "--backend", "sequential"]
    command += [str(part) for n, v in options.items() for part in (f"--{n}", v)]
    folder = out.with_name("killed.parquet.cells")
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 240
        while len(list(folder.glob("*.json"))) < 3 and time.monotonic() < deadline:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
    finished = {path: path.stat().st_mtime_ns for path in folder.glob("*.json")}
    assert 3 <= len(finished) < 8
    assert all(json.loads(path.read_text())["case"] for path in finished)
    assert not out.exists()
    again = CliRunner().invoke(app, command[3:])
    assert again.exit_code == 0, again.output
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    found = pd.read_parquet(out)
    wanted = results[results["design"].isin(options["designs"].split(","))]
    fixed = [c for c in FIXED if c not in ("case", "sd_predicted")]
    pd.testing.assert_frame_equal(
        found[fixed].set_index(["seed", "design"]).sort_index(),
        wanted[fixed].set_index(["seed", "design"]).sort_index(),
        rtol=1e-9,
    )


def test_workers_end_with_the_process_that_is_killed():
    code = """
import os, time
from bayeslaw.studies.backends import runner
with runner("loky", 1, None) as run:
    print(*(worker for _, worker in run({"pid": (os.getpid, ())})), flush=True)
    list(run({"busy": (time.sleep, (60,))}))
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        worker = int(process.stdout.readline())
        os.kill(worker, 0)
        process.kill()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("the worker outlived its parent")


# -- plans ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_planning_study_and_the_value_of_anchors(tmp_path):
    (case,) = world_cases([0])
    out = tmp_path / "plan.parquet"
    results = study(
        [case], ["none", "plan"], out=out, backend="sequential", planning=True, confidence=0.6,
        **SHORT | {"tune": 300},
    )  # fmt: skip
    assert {"atpp", "replay", "held"} <= {*results}
    fits = [refit(c.law, c.train, 0) for c in (case, case.source)]
    pool = case.pool.frame.drop(columns="loss")
    few = pool.query(case.grid).iloc[::5]
    value = anchor_value(
        {"few": few, "grid": pool.query(case.grid)}, target=fits[0], source=fits[1],
        simulations=15, cost="adaptation", allow_unconverged=True, sampling={"draws": 150},
        params=8.1e9, ptpp=279, max_loss=1.9, max_forgetting=0.06,
        baseline=case.world.baseline(), confidence=0.8,
    ).set_index("set")  # fmt: skip
    assert value.loc["few", "flops"] == pytest.approx((6 * few["params"] * few["tokens"]).sum())
    assert (value["net"] == value["saved"] - value["flops"]).all()
    # The budget falls for three of four simulated truths (27 of 36), so for most of 15.
    assert value.loc["grid", "atpp"] < value.loc["grid", "atpp_now"]
    assert (value["atpp"] <= value["atpp_90"]).all()
    per_atpp = 6 * 8.1e9**2
    saved = (value["atpp_now"] - value["atpp"]) * per_atpp
    np.testing.assert_allclose(value["saved"], saved, rtol=1e-6)
