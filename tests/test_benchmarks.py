"""Every benchmark runs with ``--smoke``: a few draws on one table."""

import importlib
import os
import re
import runpy
import sys
import warnings
from functools import partial
from unittest.mock import patch

import pytest

from tests.inside import refit
from tests.support import BENCHMARKS


@pytest.mark.slow
@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_the_benchmark_runs(path, tmp_path, monkeypatch, capsys):
    # In this process, which has imported and compiled most of what they need.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(path), "--smoke"])
    monkeypatch.syspath_prepend(path.parent)
    brief = patch("bayeslaw.design.anchors.refit", partial(refit, draws=20, tune=20))
    with patch.dict(os.environ), warnings.catch_warnings(), brief:
        warnings.simplefilter("default")
        runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.strip()


def test_splits_of_real_models_have_the_rows_that_their_readmes_state(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS[0].parent)
    tables = importlib.import_module("tables")
    found = {}
    for name, _, train, test, _ in tables.real():
        folder = {"clean": "delphi", "contaminated": "delphi", "replay": "delphi"}.get(
            name.split()[0], name.split()[0]
        )
        found.setdefault(folder, set()).add((len(train), len(test)))
        shared = {"params", "tokens", "replay", "domain", "run"} & {*train.frame}
        both = train.frame[[*shared]].merge(test.frame[[*shared]])
        assert both.empty, name
    assert found.keys() == {"delphi", "rectified", "multipowerlaw", "starcoder"}
    for folder, rows in found.items():
        text = (tables.DATA / folder / "README.md").read_text()
        stated = {(int(a), int(b)) for a, b in re.findall(r"\| (\d+), (\d+)[^|]*\|$", text, re.M)}
        assert stated
        assert stated <= rows, folder
