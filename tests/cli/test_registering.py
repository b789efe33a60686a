"""``forecast --register`` and ``verify``."""

import json
from pathlib import Path

import pandas as pd
import pytest

from tests.cli.commands import GRID, document, fails, run


@pytest.fixture
def registered(saved, tmp_path) -> str:
    path = tmp_path / "planned.json"
    run("forecast", saved, "--grid", GRID, "--register", path, "--seed", "2")
    return str(path)


@pytest.fixture
def losses(registered, tmp_path) -> str:
    """Losses of the first three rows, at the median, and one that was not forecast."""
    rows = pd.DataFrame(json.loads(Path(registered).read_text())["forecast"]["rows"])[:3]
    frame = rows[["params", "tokens"]].assign(loss=rows["median"])
    frame = pd.concat([frame, pd.DataFrame({"params": [2e9], "tokens": [3e9], "loss": [3.0]})])
    frame.to_csv(tmp_path / "losses.csv", index=False)
    return str(tmp_path / "losses.csv")


def test_the_forecast_shown_is_the_one_registered(saved, tmp_path):
    path = tmp_path / "planned.json"
    options = ("--grid", GRID, "--levels", "0.5,0.8,0.9", "--seed", "2")
    content = document("forecast", saved, *options, "--register", path, "--register-draws", "100")
    stored = json.loads(path.read_text())
    assert (content["register"], content["sha256"]) == (str(path), stored["sha256"])
    assert stored["forecast"]["seed"] == 2
    assert len(stored["forecast"]["draws"][0]) == 100
    for shown, kept in zip(content["rows"], stored["forecast"]["rows"], strict=True):
        assert shown.items() >= {n: v for n, v in kept.items() if n != "row"}.items()
    result = run("forecast", saved, *options, "--register", tmp_path / "again.json")
    assert result.stderr.startswith(f"registered {tmp_path / 'again.json'}, SHA-256 ")


def test_verify_scores_and_names_what_is_missing(registered, losses):
    content = document("verify", registered, losses)
    assert (content["missing"], content["extra"]) == ([3, 4, 5], [3])
    assert content["scores"]["coverage_50"] == 1
    assert content["scores"]["rmse_log"] == pytest.approx(0, abs=1e-12)
    assert content["scores"]["crps"] is None
    assert [row["inside_90"] for row in content["rows"]] == [True] * 3 + [None] * 3
    assert len(content["results"]) == 1
    result = run("verify", registered, losses, "--where", "params < 2e9")
    for words in (
        "Synthetic data",
        "unchanged since it was registered",
        "3 of 6 rows are measured; missing: rows 3, 4, 5.",
        "Of 3 measured losses, 3 in the 50 % band and 3 in the 90 % band.",
        "No CRPS",
    ):
        assert words in result.stdout
    assert "Not forecast: row 3" in run("verify", registered, losses).stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "3 results in the file" in run("verify", registered).stdout


def test_draws_give_the_crps(saved, measured, tmp_path):
    path = tmp_path / "x.json"
    run("forecast", saved, "--rows", measured, "--register", path, "--register-draws", "4000")
    content = document("verify", path, measured)
    wanted = document("score", saved, "--rows", measured)["scores"]
    assert content["scores"] == pytest.approx(wanted, rel=1e-3)
    assert content["losses_known"] == 20
    text = run("verify", path, measured).stdout
    assert "20 of 20 rows already had a measured loss" in text
    assert "No CRPS" not in text


def test_mistakes(saved, failed, registered, losses, tmp_path):
    path = tmp_path / "new.json"
    forecast = ("forecast", saved, "--grid", GRID)
    assert "never replaced" in fails(*forecast, "--register", registered)
    assert "--kind predictive" in fails(*forecast, "--kind", "latent", "--register", path)
    assert "has no effect without --register" in fails(*forecast, "--register-draws", "100")
    assert "at least 100" in fails(*forecast, "--register", path, "--register-draws", "5")
    assert "no folder" in fails(*forecast, "--register", tmp_path / "no" / "x.json")
    fails("forecast", failed, "--grid", GRID, "--register", path)
    assert not path.exists()
    assert "no such file" in fails("verify", path)
    assert "no such file" in fails("verify", registered, path)
    assert "damaged" in fails("verify", losses)
    assert "--where has no effect" in fails("verify", registered, "--where", "params > 0")
    assert "not 123" in fails("verify", registered, losses, "--sha256", "123")


def test_an_edited_forecast_is_one_line_that_names_the_row(registered, losses):
    stored = json.loads(Path(registered).read_text())
    stored["forecast"]["rows"][1]["upper_90"] *= 1.1
    Path(registered).write_text(json.dumps(stored))
    assert "edited after it was registered: row 1. " in fails("verify", registered, losses)


def test_a_failed_gate_is_shown(failed, tmp_path):
    path = tmp_path / "x.json"
    run("forecast", failed, "--grid", GRID, "--allow-unconverged", "--register", path)
    assert "NOT CONVERGED when it was registered" in run("verify", path).stdout
    assert document("verify", path)["failures"]
