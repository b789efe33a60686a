"""What is run before a release: the wheel in an empty environment, and planted faults."""

import os
import shutil
import subprocess
import sys
import tomllib

import pytest

from tests.support import ROOT

pytestmark = pytest.mark.release
SCRIPT = """
import bayeslaw as bl
train, test = bl.example_table().split(train="scale <= 3e20", test="scale >= 1e21")
assert "site-packages" in bl.__file__, bl.__file__
fit = bl.fit("chinchilla", train, discrepancy="none")
print(len(fit.forecast(test).bands((0.9,))), bl.paper_world().limits["max_loss"])
print(fit.draws["L_ref"].values.tobytes().hex())
"""
FAULTS = tomllib.loads((ROOT / "tests/faults.toml").read_text())
COPIED = ("bayeslaw", "benchmarks", "docs", "models", "tests")
LINKED = (
    "data",
    "notebooks",
    "pyproject.toml",
    "README.md",
    "CONTRIBUTING.md",
    "CITATION.cff",
)


@pytest.mark.skipif(shutil.which("uv") is None, reason="needs uv to build the wheel")
def test_a_forecast_from_the_wheel(tmp_path):
    """The same seed gives the same draws before and after functions are compiled there."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command: str) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=own, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    build = (
        "uv",
        "build",
        "--wheel",
        "--quiet",
        "--python",
        sys.executable,
        "--out-dir",
        ".",
    )
    run(*build, str(ROOT))
    (wheel,) = tmp_path.glob("*.whl")
    run("uv", "venv", "--quiet", "--python", sys.executable, "env")
    python = str(tmp_path / "env/bin/python")
    run("uv", "pip", "install", "--quiet", "--python", python, str(wheel))
    cold, warm = (run(python, "-c", SCRIPT) for _ in range(2))
    assert cold.startswith("8 1.8\n")
    assert cold == warm
    assert "Usage" in run(str(tmp_path / "env/bin/bayeslaw"), "--help")


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name, tmp_path):
    """In a copy of the package, by the tests that `faults.toml` names."""
    planted = FAULTS[name]
    for folder in COPIED:
        unused = shutil.ignore_patterns("__pycache__", "_build")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=unused)
    for path in LINKED:
        (tmp_path / path).symlink_to(ROOT / path)
    path = tmp_path / "bayeslaw" / planted["file"]
    source = path.read_text()
    assert source.count(planted["text"]) == 1
    path.write_text(source.replace(planted["text"], planted["fault"]))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
    ]
    env = os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command += planted["tests"].split()
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stdout[-500:]
