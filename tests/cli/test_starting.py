"""The `init` command: files that run, and none overwritten."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import nbformat
import pytest

import bayeslaw as bl
from tests.cli import commands

document, fails = partial(commands.document, "init"), partial(commands.fails, "init")


def test_files(tmp_path):
    found = document(tmp_path / "new" / "first")["files"]
    assert [path.rpartition("/")[2] for path in found] == [
        "losses.csv",
        "analysis.py",
        "analysis.ipynb",
    ]
    assert len(bl.read_table(found[0])) == len(bl.example_table())
    notebook = nbformat.read(found[2], as_version=4)
    nbformat.validate(notebook)
    code = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    compile("\n".join(code), "analysis", "exec")
    script = Path(found[1]).read_text()
    assert all(part in script for part in code)
    assert "next: cd" in commands.run("init", tmp_path / "other").stdout


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "analysis.py").write_text("mine")
    assert "analysis.py exists" in fails(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["analysis.py"]
    assert (tmp_path / "analysis.py").read_text() == "mine"
    assert "cannot write" in fails(tmp_path / "analysis.py" / "deeper")


@pytest.mark.slow
def test_the_script_runs(tmp_path):
    document(tmp_path)
    run = subprocess.run(
        [sys.executable, "analysis.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    assert "35 runs to fit, 10 to forecast" in run.stdout
    assert (tmp_path / "forecast.png").stat().st_size > 10_000
