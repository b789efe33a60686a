"""Every benchmark runs with ``--smoke``: a few draws on one table."""

import os
import subprocess
import sys

import pytest

from tests.support import BENCHMARKS


@pytest.mark.slow
@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_the_benchmark_runs(path, tmp_path):
    run = subprocess.run(  # one that hangs fails here
        [sys.executable, path, "--smoke"],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout.strip()
