"""The commands ``anchors`` and ``study``."""

import json

import pandas as pd
import pytest
from typer.testing import CliRunner

from bayeslaw.anchoring.anchors import choose_anchors
from bayeslaw.cli import app
from bayeslaw.tables import grid, read_frame

CANDIDATES = "params=2e8,2e9,6e9 tokens=2e9,2e10,2e11"
TARGETS = "params=3e10 tokens=1e11,1e12"
ROWS = ("--candidates", CANDIDATES, "--targets", TARGETS)


def run(*args: str, code: int = 0):
    result = CliRunner().invoke(app, [*map(str, args)], env={"COLUMNS": "100"})
    assert result.exit_code == code, result.output
    return result


def fails(*args: str) -> str:
    result = run(*args, code=2)
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.fixture(scope="module")
def saved(posterior, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("anchors") / "fit.nc"
    posterior.save(path)
    return str(path)


@pytest.fixture(scope="module")
def measured(small, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("pool") / "small.csv"
    small.frame.to_csv(path, index=False)
    return str(path)


@pytest.mark.parametrize("command", ["anchors", "study"])
def test_help_has_an_example(command):
    text = run(command, "--help").stdout
    assert f"  bayeslaw {command} " in text
    assert "--json" in text


def test_document_is_what_python_says(saved, posterior, tmp_path):
    out = tmp_path / "buy.csv"
    result = run("anchors", saved, *ROWS, "--budget", "3e22", "--out", out, "--json")
    told = json.loads(result.stdout)
    candidates = grid(params=[2e8, 2e9, 6e9], tokens=[2e9, 2e10, 2e11])
    targets = grid(params=3e10, tokens=[1e11, 1e12])
    found = choose_anchors(posterior, candidates, targets, budget=3e22)
    assert pd.DataFrame(told["picks"])["sd"].tolist() == pytest.approx(found.picks["sd"].tolist())
    assert (told["flops"], told["budget"]) == (pytest.approx(found.flops), 3e22)
    assert told["atpp_now"] is None
    bought = read_frame(out)
    assert bought[["params", "tokens", "pick"]].equals(found.frame[["params", "tokens", "pick"]])
    assert len(told["rows"]) == len(bought)


def test_text_shows_each_pick_and_where_to_stop(saved):
    text = run("anchors", saved, *ROWS, "--k", "3").stdout
    assert "3 runs of 2 sizes" in text or "3 runs of 3 sizes" in text
    assert "every set tried" in text
    _, table = text.split("every set tried")
    first = [line.split()[0] for line in table.splitlines() if "%" in line]
    assert first[:4] == ["now", "1", "2", "3"]
    one = run("anchors", saved, *ROWS, "--k", "2", "--where", "params == 2e9").stdout
    assert "All of one size" in one


def test_candidates_may_be_a_table_of_runs(saved, tmp_path):
    pool = grid(params=[2e8, 2e9], tokens=[2e9, 2e10]).assign(run=["a", "a", "b", "b"])
    path = tmp_path / "pool.csv"
    pool.to_csv(path, index=False)
    text = run("anchors", saved, "--candidates", path, "--targets", TARGETS, "--k", "2").stdout
    assert "2 further rows are checkpoints of these runs, free" in text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (ROWS, "--k"),
        (("--candidates", CANDIDATES, "--k", "1"), "--targets"),
        ((*ROWS, "--k", "1", "--gain", "plan"), "go together"),
        ((*ROWS, "--budget", "5"), "nothing to buy"),
        ((*ROWS, "--k", "1", "--cost", "hours"), "unknown cost"),
        ((*ROWS, "--k", "1", "--where", "params == 1"), "no row satisfies"),
        (("--candidates", "nowhere.csv", "--targets", TARGETS, "--k", "1"), "no such file"),
        (("--candidates", "params=x", "--targets", TARGETS, "--k", "1"), "--candidates: cannot"),
    ],
)
def test_mistakes_are_told_in_one_line(saved, args, message):
    assert message in fails("anchors", saved, *args)


def test_study_of_a_measured_pool(measured, tmp_path):
    out = tmp_path / "study.parquet"
    args = ("study", measured, "--law", "chinchilla", "--train", "tokens < 2e10", "--out", out)
    args += ("--pool", "tokens > 2e10 and params < 2e9", "--seeds", "1", "--backend", "sequential")
    args += ("--targets", "tokens > 2e10 and params > 2e9", "--draws", "100", "--tune", "100")
    told = json.loads(run(*args, "--json").stdout)
    assert told["cells"] == 6
    assert [row["design"] for row in told["designs"]] == [
        "none", "random", "cheapest", "grid", "doptimal", "variance",
    ]  # fmt: skip
    assert len(read_frame(out)) == 6
    text = run(*args).stdout
    assert all(row["design"] in text for row in told["designs"])
    assert "better" in text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--designs", "best"), "unknown design 'best'"),
        (("--designs", "plan"), "--planning"),
        (("--law", "form3"), "--law and --where need a TABLE"),
        (("--scheduler", "tcp://x:1"), "--backend dask"),
        (("--train", "nothing == 1"), "cannot evaluate"),
    ],
)
def test_study_mistakes_are_told_in_one_line(args, message, tmp_path):
    assert message in fails("study", "--out", tmp_path / "x.parquet", *args)


def test_study_of_a_pool_needs_its_queries(measured, tmp_path):
    assert "--pool and --targets" in fails(
        "study", measured, "--train", "tokens > 0", "--out", tmp_path / "x.parquet"
    )
