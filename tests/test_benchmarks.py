"""Every experiment runs with ``--smoke``: one job of a few draws."""

import os
import re
import warnings
from unittest.mock import patch

import matplotlib.pyplot as plt
import pandas as pd
import pytest

import bayeslaw as bl
from benchmarks import EXPERIMENTS
from benchmarks.runner import Experiment
from benchmarks.splits import DATA, adapted, ratios
from tests.support import ROOT, slow


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_experiment_runs(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = ["--folder", str(tmp_path)] if name == "pictures" else []
    with patch.dict(os.environ), warnings.catch_warnings():
        warnings.simplefilter("default")
        EXPERIMENTS[name].run(["--smoke", *folder])
    plt.close("all")
    assert "CPU s" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name",
    [
        slow(n) if n in ("accuracy", "running") else n
        for n in EXPERIMENTS
        if (ROOT / f"benchmarks/{n}.csv").is_file()
    ],
)
def test_its_tables_are_made_from_the_rows_that_are_kept(name, capsys):
    EXPERIMENTS[name].run(["--show"])
    assert "|" in capsys.readouterr().out


def test_an_interrupted_run_goes_on(tmp_path, capsys):
    done = []

    def jobs(options):
        """Two jobs, of which the second fails at first."""
        for x in (1, 2):
            yield (
                {"x": x, "name": f"job {x}"},
                lambda x=x: done.append(x) or {"y": 10 / (x - fails)},
            )

    found, out = Experiment("none", jobs, lambda rows: {"all": rows}), tmp_path / "rows.csv"
    fails = 2
    with pytest.raises(ZeroDivisionError):
        found.run(["--out", str(out)])
    fails = 0
    found.run(["--out", str(out)])
    found.run(["--out", str(out), "--only", "job 2"])
    assert done == [1, 2, 2]
    assert pd.read_csv(out)["y"].tolist() == [-10, 5]
    assert "job 2, 0 CPU s" in capsys.readouterr().out


def test_splits_of_real_models_have_the_rows_that_their_readmes_state():
    found = {}
    for name, _, train, test, _ in [*adapted(), *ratios(None)]:
        first = name.split()[0]
        folder = "delphi" if first in ("clean", "contaminated") else first
        found.setdefault(folder, set()).add((len(train), len(test)))
        shared = {"params", "tokens", "replay", "domain", "run"} & {*train.frame}
        both = train.frame[[*shared]].merge(test.frame[[*shared]])
        assert both.empty, name
    assert found.keys() == {"delphi", "rectified", "multipowerlaw", "starcoder"}
    for folder, rows in found.items():
        text = (DATA / folder / "README.md").read_text()
        stated = {(int(a), int(b)) for a, b in re.findall(r"\| (\d+), (\d+)[^|]*\|$", text, re.M)}
        assert stated
        assert stated <= rows, folder


def test_the_example_table_is_the_decontaminated_part_of_the_benchmark():
    where = "domain == 'math_clean_seen_1e22' and ladder == 'isotoken'"
    clean = bl.read_table(DATA / "delphi/clean.csv", where=where)
    pd.testing.assert_frame_equal(bl.example_table().frame, clean.frame)
