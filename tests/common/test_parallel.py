"""Parallel calls: their progress, clusters, and workers that end with their parent process."""

import os
import subprocess
import sys
import time

import pytest

from bayeslaw import BayeslawError
from bayeslaw.common.parallel import backend, bar, finished


def test_progress_says_how_far_it_is(capsys):
    with bar(True, "refits", total=4, done=1) as tick:
        tick()
    with bar(False, "refits", total=4) as tick:
        tick()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("refits") == 1
    assert "2/4" in err


@pytest.mark.slow
def test_dask_starts_a_cluster_of_its_own_or_says_that_it_cannot_connect():
    pytest.importorskip("dask.distributed")
    with backend("dask", 1, None):
        assert dict(finished({"eight": (pow, (2, 3))})) == {"eight": 8}
    nobody = backend("dask", 1, "tcp://127.0.0.1:1")
    with pytest.raises(BayeslawError, match="no Dask scheduler at tcp"), nobody:
        pass


def test_workers_end_with_the_process_that_is_killed():
    code = """
import os, time
from bayeslaw.common.parallel import backend, finished
with backend("loky", 1, None):
    print(*(worker for _, worker in finished({"pid": (os.getpid, ())})), flush=True)
    list(finished({"busy": (time.sleep, (60,))}))
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
