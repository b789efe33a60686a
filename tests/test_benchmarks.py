"""Every benchmark runs with ``--smoke``: a few draws on one table."""

import os
import runpy
import sys
import warnings
from unittest.mock import patch

import pytest

from tests.support import BENCHMARKS


@pytest.mark.slow
@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_the_benchmark_runs(path, tmp_path, monkeypatch, capsys):
    # In this process, which has imported and compiled most of what they need.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(path), "--smoke"])
    monkeypatch.syspath_prepend(path.parent)
    with patch.dict(os.environ), warnings.catch_warnings():
        warnings.simplefilter("default")
        runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.strip()
