"""Faults planted in a copy of the package are found by the tests that `faults.toml` names."""

import os
import shutil
import subprocess
import sys
import tomllib

import pytest

from tests.support import ROOT

FAULTS = tomllib.loads((ROOT / "tests/faults.toml").read_text())
COPIED = ("bayeslaw", "benchmarks", "docs", "models", "tests")
LINKED = ("data", "notebooks", "pyproject.toml", "README.md", "CONTRIBUTING.md", "CITATION.cff")


@pytest.mark.release
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name, tmp_path):
    planted = FAULTS[name]
    for folder in COPIED:
        unused = shutil.ignore_patterns("__pycache__", "_build")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=unused)
    for path in LINKED:
        (tmp_path / path).symlink_to(ROOT / path)
    path = tmp_path / "bayeslaw" / planted["file"]
    source = path.read_text()
    assert source.count(planted["text"]) == 1, "the fault is about code that is gone"
    path.write_text(source.replace(planted["text"], planted["fault"]))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
    env = os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command += planted["tests"].split()
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout[-500:]
