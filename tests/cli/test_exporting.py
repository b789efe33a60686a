"""``export``."""

import numpy as np
import pytest

from bayeslaw import read_coefficients
from tests.cli.commands import document, fails, run


def test_export_writes_what_it_shows(saved, posterior, small, tmp_path):
    path = tmp_path / "c.json"
    content = document("export", saved, path, "--draws", "50")
    back = read_coefficients(path)
    assert (content["out"], content["draws_exported"], back.draws) == (str(path), 50, 50)
    assert content["sha256"] == small.sha256
    shown = {row["name"]: row for row in content["parameters"]}
    assert shown["E"]["median"] == back.parameters.loc["E", "median"]
    assert shown["alpha"]["unit"] == "dimensionless"
    np.testing.assert_allclose(back.predict(small), posterior.predict(small), rtol=1e-3)
    result = run("export", saved, path)
    for words in ("Synthetic data", "alpha", "no draws: point forecasts only"):
        assert words in result.stdout
    assert result.stderr == f"wrote {path}\n"
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_mistakes(saved, failed, measured, tmp_path):
    path = tmp_path / "c.json"
    assert "--allow-unconverged" in fails("export", failed, path)
    assert "no folder" in fails("export", saved, tmp_path / "no" / "c.json")
    assert "posterior" in fails("export", measured, path)
    assert "--draws" in fails("export", saved, path, "--draws", "-1")
    assert not path.exists()
    content = document("export", failed, path, "--allow-unconverged")
    assert content["converged"] is False
    assert content["parameters"][0]["median"] == pytest.approx(1.7, rel=0.5)
