"""The `check` command: text, JSON, exit codes, mistakes."""

import json
from functools import partial

import pytest

from tests.cli import commands

run, fails = partial(commands.run, "check"), partial(commands.fails, "check")
document = partial(commands.document, "check")


@pytest.fixture(scope="module")
def saved(two_stages, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("check") / "two.nc"
    two_stages.save(path)
    return str(path)


def test_command_refuses_with_exit_code_1(saved):
    target = "params=8.1e9 tokens=1e10 replay=.3 ptpp=279"
    text = run(saved, "--grid", target, code=1).stdout
    flat = " ".join(text.split())
    assert "REFUSE" in flat
    assert "PTPP takes 2 values; eta is not determined" in flat
    found = json.loads(run(saved, "--grid", target, "--json", code=1).stdout)
    assert found["command"] == "check"
    assert found["level"] == "refuse"
    assert found["parts"]["directions"]["rank"] == 9


def test_command_passes_with_exit_code_0(saved):
    near = run(saved)
    assert "CAUTION" in near.stdout
    run(saved, "--fail-on", "caution", code=1)


def test_command_from_a_table(small, tmp_path):
    path = tmp_path / "small.csv"
    small.frame.to_csv(path, index=False)
    short = ("--law", "chinchilla", "--discrepancy", "none", "--draws", "500", "--tune", "500")
    whole = document(path, *short)
    assert whole["rows"] == 0
    split = document(path, *short, "--train", "tokens < 5e10")
    assert (split["rows_train"], split["rows"]) == (16, 4)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--law", "form1"], "do not go with a posterior"),
        (["--draws", "10"], "--draws has no effect"),
        (["--grid", "params=1e9"], "tokens"),
    ],
)
def test_command_mistakes(saved, options, says):
    assert says in fails(saved, *options)
