"""The wheel works in an empty environment elsewhere: models, a sample table, the command.

Its functions are compiled there: the same seed gives the same draws from cold and warm caches.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = """
import bayeslaw as bl
train, test = bl.example_table().split(train="scale <= 3e20", test="scale >= 1e21")
assert "site-packages" in bl.__file__, bl.__file__
fit = bl.fit("chinchilla", train, discrepancy="none")
print(len(fit.forecast(test).bands((0.9,))), bl.paper_world().limits["max_loss"])
print(fit.draws["L_ref"].values.tobytes().hex())
"""

pytestmark = [
    pytest.mark.release,
    pytest.mark.skipif(shutil.which("uv") is None, reason="needs uv to build the wheel"),
]


def test_a_forecast_from_the_wheel(tmp_path):
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(
        "uv", "build", "--wheel", "--quiet", "--python", sys.executable, "--out-dir", ".", str(ROOT)
    )
    (wheel,) = tmp_path.glob("*.whl")
    run("uv", "venv", "--quiet", "--python", sys.executable, "env")
    python = str(tmp_path / "env/bin/python")
    run("uv", "pip", "install", "--quiet", "--python", python, str(wheel))
    cold, warm = (run(python, "-c", SCRIPT) for _ in range(2))
    assert cold.startswith("10 1.8\n")
    assert cold == warm
    assert "Usage" in run(str(tmp_path / "env/bin/bayeslaw"), "--help")
