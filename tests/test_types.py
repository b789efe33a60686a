"""What a user's type checker sees of the public functions."""

import re
import subprocess
import sys

import bayeslaw as bl
from tests.support import ROOT

USER = """
import bayeslaw as bl

table = bl.example_table()
reveal_type(bl.fit("chinchilla", table))
reveal_type(bl.fit("chinchilla", table, method="nuts", draws=100))
reveal_type(bl.fit("chinchilla", table, method="map", likelihood="huber"))
reveal_type(bl.fit_huber("chinchilla", table))
reveal_type(bl.fit("chinchilla", table).forecast(table))
reveal_type(bl.fit_joint({}, {})["a"])
reveal_type(bl.load("fit.nc").table)
reveal_type(bl.fit(["chinchilla", "skaling"], table))
reveal_type(bl.fit("chinchilla", table).plot)
bl.fit("chinchilla", table, method="map", draws=100)
bl.fit("chinchilla", table, drwas=100)
"""


def test_a_users_checker_sees_results_and_mistakes(tmp_path):
    (tmp_path / "user.py").write_text(USER)
    # With the settings, and so the cache, of the check of the package.
    command = [sys.executable, "-m", "mypy", str(tmp_path / "user.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    found = done.stdout
    revealed = re.findall(r'user\.py:\d+: note: Revealed type is "bayeslaw\.[\w.]*?(\w+)"', found)
    assert revealed == [
        "Posterior", "Posterior", "PointFit", "PointFit", "Forecast", "Posterior", "LossTable",
        "Pool", "Plots",
    ]  # fmt: skip
    errors = re.findall(r"user\.py:(\d+): error: (.*)", found)
    assert {line for line, _ in errors} == {"14", "15"}


def test_the_types_ship():
    from importlib.resources import files

    assert (files(bl) / "py.typed").is_file()
