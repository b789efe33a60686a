"""``bayeslaw report``, through Typer's runner."""

import json

import pytest
from typer.testing import CliRunner

from bayeslaw.cli import app

FIT = ("--law", "chinchilla", "--discrepancy", "none", "--draws", "500", "--tune", "500")


def run(*args, code=0):
    result = CliRunner().invoke(app, ["report", *map(str, args)], env={"COLUMNS": "80"})
    assert result.exit_code == code, result.output
    return result


def fails(*args):
    result = run(*args, code=2)
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.fixture(scope="module")
def files(posterior, unconverged, small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    posterior.save(folder / "fit.nc")
    unconverged.save(folder / "failed.nc")
    small.frame.to_csv(folder / "losses.csv", index=False)
    return folder


def test_a_table_is_fitted_compared_and_reported(files):
    out = files / "page.html"
    split = ("--train", "params < 2e9", "--test", "params > 2e9", "--compare", "chinchilla")
    told = json.loads(run(files / "losses.csv", *FIT, *split, "--out", out, "--json").stdout)
    html = out.read_text("utf-8")
    assert told["out"] == str(out)
    assert told["converged"]
    assert told["synthetic"]
    assert "laws" in told["sections"]
    assert told["short"][0].split(" ")[0] == "Median"
    assert "losses.csv --law chinchilla --train" in html
    assert "--train &#39;params &lt; 2e9&#39;" in html
    assert "--json" in html


def test_a_posterior_is_reported_on_rows_or_a_grid(files):
    out = files / "grid.html"
    shown = run(files / "fit.nc", "--grid", "params=8e9 tokens=1e10,1e11", "--out", out)
    assert "Median forecasts run from" in shown.stdout
    assert shown.stderr.strip() == f"wrote {out}"
    assert "nothing on this page checks the forecast" in out.read_text("utf-8")


def test_mistakes_are_told_in_one_line(files, tmp_path):
    grid = ("--grid", "params=8e9 tokens=1e10")
    assert "--compare needs a table" in fails(files / "fit.nc", *grid, "--compare", "form1")
    assert "no folder" in fails(files / "fit.nc", *grid, "--out", tmp_path / "no" / "page.html")
    assert "--allow-unconverged" in fails(files / "failed.nc", *grid, "--out", tmp_path / "p.html")
    assert not (tmp_path / "p.html").exists()
    run(files / "failed.nc", *grid, "--out", tmp_path / "p.html", "--allow-unconverged")
    assert "NOT CONVERGED" in (tmp_path / "p.html").read_text("utf-8")
