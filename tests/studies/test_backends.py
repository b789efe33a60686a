"""Backends of a study: clusters are started, and workers end with their parent process."""

import os
import subprocess
import sys
import time

import pytest

from bayeslaw.common.errors import BayeslawError
from bayeslaw.studies.backends import runner


@pytest.mark.slow
def test_dask_starts_a_cluster_of_its_own_or_says_that_it_cannot_connect():
    pytest.importorskip("dask.distributed")
    with runner("dask", 1, None) as run:
        assert dict(run({"eight": (pow, (2, 3))})) == {"eight": 8}
    nobody = runner("dask", 1, "tcp://127.0.0.1:1")
    with pytest.raises(BayeslawError, match="no Dask scheduler at tcp"), nobody:
        pass


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
