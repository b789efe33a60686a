"""``bayeslaw report``, through Typer's runner."""

from functools import partial

import pytest

from tests.cli import commands

GRID = ("--grid", "params=8e9 tokens=1e10,1e11")
FIT = ("--law", "chinchilla", "--discrepancy", "none", "--draws", "500", "--tune", "500")
run, fails = partial(commands.run, "report"), partial(commands.fails, "report")
document = partial(commands.document, "report")


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
    content = document(files / "losses.csv", *FIT, *split, "--out", out)
    html = out.read_text("utf-8")
    assert content["out"] == str(out)
    assert content["converged"]
    assert content["synthetic"]
    assert "laws" in content["sections"]
    assert content["summary"][0].split(" ")[0] == "Median"
    assert "losses.csv --law chinchilla --train" in html
    assert "--train &#39;params &lt; 2e9&#39;" in html
    assert "--json" in html


def test_a_posterior_is_reported_on_rows_or_a_grid(files):
    out = files / "grid.html"
    shown = run(files / "fit.nc", *GRID, "--out", out)
    assert "Median forecasts run from" in shown.stdout
    assert shown.stderr.strip() == f"wrote {out}"
    assert "nothing on this page checks the forecast" in out.read_text("utf-8")


def test_a_plan_is_reported_with_the_fit(files):
    out, given = files / "plan.html", (files / "fit.nc", *GRID, "--plan-source", files / "fit.nc")
    limits = "params=8e9 ptpp=20 max_loss=2.2 max_forgetting=.1 confidence=.8"
    content = document(*given, "--plan", f"{limits} baseline=2.1", "--out", out)
    assert "plan" in content["sections"]
    assert content["plan"]["confidence"] == 0.8
    atpp = f"{content['plan']['atpp']:#.3g}"
    assert f"Plan: {atpp} adaptation tokens per parameter" in " ".join(content["summary"])
    html = out.read_text("utf-8")
    assert f"<td>{atpp}</td>" in html
    assert "--plan-source" in html
    content = document(*given, "--plan", f"{limits} baseline=asymptote", "--out", out)
    assert content["plan"]["limits"]["baseline"] == "asymptote"
    assert "tokens = 0" in fails(*given, "--plan", limits, "--out", out)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ("params=8.1e9 ptpp=279", "--plan lacks max_loss, max_forgetting; write it as 'params="),
        ("params=8.1e9 ptp=279", "unknown limit 'ptp'; did you mean 'ptpp'?"),
        ("params=8.1B", "cannot read 'params=8.1B'; write it as 'params="),
        (None, "--plan and --plan-source go together"),
    ],
)
def test_mistakes_in_a_plan_are_reported_before_the_fit(files, limits, message):
    plan = () if limits is None else ("--plan", limits)
    assert message in fails(files / "losses.csv", "--plan-source", files / "fit.nc", *plan)


def test_a_source_that_has_not_converged_is_refused_before_the_fit(files):
    plan = ("--plan-source", files / "failed.nc", "--plan")
    limits = "params=8e9 ptpp=20 max_loss=2.2 max_forgetting=.1 baseline=2.1"
    assert "--allow-unconverged" in fails(files / "losses.csv", *plan, limits)
    given = (files / "fit.nc", *GRID, *plan, limits, "--allow-unconverged")
    content = document(*given, "--out", files / "failed.html")
    assert "source posterior that has not converged" in " ".join(content["warnings"])


def test_mistakes_are_reported_in_one_line(files, tmp_path):
    assert "--compare names no law" in fails(files / "losses.csv", "--compare", ",")
    assert "--compare needs a table" in fails(files / "fit.nc", *GRID, "--compare", "form1")
    assert "no folder" in fails(files / "fit.nc", *GRID, "--out", tmp_path / "no" / "page.html")
    assert "--allow-unconverged" in fails(files / "failed.nc", *GRID, "--out", tmp_path / "p.html")
    assert not (tmp_path / "p.html").exists()
    run(files / "failed.nc", *GRID, "--out", tmp_path / "p.html", "--allow-unconverged")
    assert "NOT CONVERGED" in (tmp_path / "p.html").read_text("utf-8")
