"""Commands of one fit: ``init | simulate | fit | check | export | report``."""

import json
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest

import bayeslaw as bl
from bayeslaw import load, read_coefficients, read_table
from bayeslaw.cli.options import limits_of
from tests.cli.commands import DELPHI, SPLIT, both, document, fails, run
from tests.support import ROOT

ONE_CHAIN = ("--chains", "1", "--draws", "10", "--tune", "20")
SHORT = ("--discrepancy", "none", "--effects", "none", "--draws", "1000")


def test_init_writes_files(tmp_path):
    found = document("init", tmp_path / "new" / "first")["files"]
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
    assert "next: cd" in run("init", tmp_path / "other").stdout


def test_init_overwrites_nothing(tmp_path):
    (tmp_path / "analysis.py").write_text("mine")
    assert "analysis.py exists" in fails("init", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["analysis.py"]
    assert (tmp_path / "analysis.py").read_text() == "mine"
    assert "cannot write" in fails("init", tmp_path / "analysis.py" / "deeper")


@pytest.mark.slow
def test_the_script_of_init_runs(tmp_path):
    document("init", tmp_path)
    run = subprocess.run(
        [sys.executable, "analysis.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    assert "35 runs to fit, 10 to forecast" in run.stdout
    assert (tmp_path / "forecast.png").stat().st_size > 10_000


def test_an_effect_needs_its_column(measured):
    asked = ("--law", "chinchilla", "--effects", "base")
    assert "no column 'base' for the effect" in fails("fit", measured, *asked)


def test_fit_saves_a_posterior_and_describes_it(tmp_path):
    path = tmp_path / "fit.nc"
    args = ("fit", DELPHI, *SPLIT[:4], *SHORT)
    content = document(*args, "--seed", "3", "--out", str(path))
    assert content["converged"] is True
    assert content["failures"] == []
    assert (content["rows_train"], content["seed"], content["draws"]) == (35, 3, 1000)
    assert (content["likelihood"], content["prior"], content["token_unit"]) == (
        "studentt",
        "default",
        1.0,
    )
    assert content["reference_point"]["tokens"] == pytest.approx(2e9)
    names = {row["name"] for row in content["parameters"]}
    assert names >= {"E", "A", "alpha", "B", "beta", "L_ref", "slope_N", "slope_D", "sigma"}
    assert content["priors"]["alpha"] == "LogNormal(median=0.28, sigma=0.45)"
    assert load(path).settings["seed"] == 3
    # The file remembers its rows, and the commands that `fit` names run as they are.
    result = run("fit", DELPHI, *SPLIT[:4], *SHORT, "--seed", "3", "--out", str(path))
    *_, check, forecast = result.stderr.splitlines()
    assert check.startswith(f"next: bayeslaw check {path} --grid ")
    said = run(*shlex.split(forecast.removeprefix("then: bayeslaw "))).stdout
    for text in (result.stdout, said):
        assert " ".join(text.split()).count(f"35 rows of {DELPHI} (scale <= 3e20)") == 1
    shown = str(load(path))
    assert f"fitted to 35 rows of {DELPHI} (scale <= 3e20)" in " ".join(shown.split())
    medians = {row["name"]: row["median"] for row in content["parameters"]}
    (line,) = (line for line in shown.splitlines() if line.startswith("  A "))
    assert float(line.split()[1]) == pytest.approx(medians["A"], rel=1e-3)


def test_text_of_a_fit(saved, measured):
    text, content = both("fit", measured, "--law", "chinchilla", *SHORT)
    assert content["effects"] == []
    for words in (
        "Synthetic data",
        "studentt likelihood, default priors",
        "D in units of 1 token; reference point params",
        "converged: R-hat",
        "L_ref",
        "median 5 % 95 % R-hat ESS",
        "Default priors",
    ):
        assert words in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


def test_fit_that_has_not_converged_is_marked(measured, tmp_path):
    args = ("fit", measured, "--law", "chinchilla", *SHORT[:4], "--draws", "20", "--tune", "5")
    text, content = both(*args, "--out", str(tmp_path / "fit.nc"), code=1)
    assert "NOT CONVERGED" in text
    assert not load(tmp_path / "fit.nc").convergence.ok
    assert content["converged"] is False
    assert content["failures"]


def test_one_chain_has_not_converged(measured):
    text, content = both("fit", measured, "--law", "chinchilla", *SHORT[:4], *ONE_CHAIN, code=1)
    assert "NOT CONVERGED: R-hat nan" in text
    assert content["converged"] is False


def test_pools_have_no_huber_fit(measured):
    said = fails("fit", measured, "--law", "adaptation", "--method", "huber")
    assert "pools have no Huber fit; fit one of form1n, transfer" in said


def test_point_fit(measured):
    text, content = both("fit", measured, "--law", "chinchilla", "--method", "huber")
    assert set(content["parameters"]) == {"E", "A", "alpha", "B", "beta"}
    assert set(content["reference"]) == {"L_ref", "slope_N", "alpha", "slope_D", "beta"}
    assert (content["method"], content["interior"], content["agreeing"]) == ("huber", True, 1.0)
    assert "6 of 6 starts agree" in text


def test_a_fit_that_cannot_be_saved_is_printed(tmp_path, monkeypatch):
    fitted, out = load(ROOT / "tests" / "data" / "delphi_chinchilla.nc"), tmp_path / "fit.nc"
    monkeypatch.setattr("bayeslaw.cli.options.fit_table", lambda *_: fitted)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        result = run("fit", DELPHI, *SPLIT[:4], "--out", out, code=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "R-hat" in result.stdout
    assert result.stderr == f"error: {out}: cannot write: File too large.\n"
    assert not list(tmp_path.iterdir())


def test_a_warning_is_one_line_on_stderr_and_a_bound_is_said_once(tmp_path):
    frame = bl.example_table().frame.astype({"params": object})
    frame.assign(params=[f"{n / 1e6:.9f}M" for n in frame["params"]]).to_csv(tmp_path / "t.csv")
    result = run("fit", tmp_path / "t.csv", *SPLIT[:4], "--method", "huber")
    assert result.stderr.startswith("warning: ")
    assert "has suffixes" in result.stderr
    assert result.stderr.count("\n") == 1
    assert "On a bound: E = 0" in result.stdout
    assert document("fit", DELPHI, *SPLIT[:4], "--method", "huber")["at_bounds"] == {"E": 0.0}


def test_simulate_writes_a_labelled_table(tmp_path):
    path = tmp_path / "both.parquet"
    content = document("simulate", "--domain", "both", "--no-noise", "--out", str(path))
    frame = pd.read_parquet(path)
    assert len(frame) == content["rows"]
    assert frame["synthetic"].all()
    assert set(frame["domain"]) == set(content["domains"]) == {"french", "english_arabic"}
    assert content["domains"]["french"]["sigma"] == 0
    assert len(read_table(path).baselines) == content["baselines"] == 12


def test_same_seed_same_table(tmp_path):
    paths = [tmp_path / f"{i}.csv" for i in range(3)]
    for path, seed in zip(paths, "112", strict=True):
        run("simulate", "--seed", seed, "--out", str(path))
    first, again, other = (path.read_bytes() for path in paths)
    assert first == again != other


def test_check_refuses_with_exit_code_1(staged):
    target = "params=8.1e9 tokens=1e10 replay=.3 ptpp=279"
    text = run("check", staged, "--grid", target, code=1).stdout
    flat = " ".join(text.split())
    assert "REFUSE" in flat
    assert "PTPP takes 2 values; eta is not determined" in flat
    found = json.loads(run("check", staged, "--grid", target, "--json", code=1).stdout)
    assert found["command"] == "check"
    assert found["level"] == "refuse"
    assert found["parts"]["directions"]["rank"] == 9


def test_check_passes_with_exit_code_0(staged):
    near = run("check", staged)
    assert "CAUTION" in near.stdout
    run("check", staged, "--fail-on", "caution", code=1)


def test_check_from_a_table(small, tmp_path):
    path = tmp_path / "small.csv"
    small.frame.to_csv(path, index=False)
    short = ("--law", "chinchilla", "--discrepancy", "none", "--draws", "500", "--tune", "500")
    whole = document("check", path, *short)
    assert whole["rows"] == 0
    split = document("check", path, *short, "--train", "tokens < 5e10")
    assert (split["rows_train"], split["rows"]) == (16, 4)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--law", "form1"], "--law has no effect on a saved posterior"),
        (["--where", "params > 0"], "--where has no effect without --rows"),
        (["--draws", "10"], "--draws has no effect"),
        (["--grid", "params=1e9"], "tokens"),
    ],
)
def test_mistakes_in_a_check(staged, options, says):
    assert says in fails("check", staged, *options)


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


def test_mistakes_in_an_export(saved, failed, measured, tmp_path):
    path = tmp_path / "c.json"
    assert "--allow-unconverged" in fails("export", failed, path)
    assert "no folder" in fails("export", saved, tmp_path / "no" / "c.json")
    assert "posterior" in fails("export", measured, path)
    assert "--draws" in fails("export", saved, path, "--draws", "-1")
    assert not path.exists()
    content = document("export", failed, path, "--allow-unconverged")
    assert content["converged"] is False
    assert content["parameters"][0]["median"] == pytest.approx(1.7, rel=0.5)


ROWS = ("--grid", "params=8e9 tokens=1e10,1e11")
FIT = ("--law", "chinchilla", "--discrepancy", "none", "--draws", "500", "--tune", "500")


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
    content = document("report", files / "losses.csv", *FIT, *split, "--out", out)
    html = out.read_text("utf-8")
    assert content["out"] == str(out)
    assert content["converged"]
    assert content["synthetic"]
    assert "laws" in content["sections"]
    assert content["summary"][0].split(" ")[0] == "Median"
    assert "losses.csv --law chinchilla --train" in html
    assert "--train &#39;params &lt; 2e9&#39;" in html
    assert "--json" in html


@pytest.mark.usefixtures("undrawn")
def test_a_posterior_is_reported_on_rows_or_a_grid(files):
    out = files / "grid.html"
    shown = run("report", files / "fit.nc", *ROWS, "--out", out)
    assert "Median forecasts run from" in shown.stdout
    assert shown.stderr.splitlines()[-1] == f"wrote {out}"
    assert "the checks compare bands with training rows instead" in out.read_text("utf-8")


@pytest.mark.usefixtures("undrawn")
def test_a_plan_is_reported_with_the_fit(files):
    """The source posterior has not converged, which is allowed and marked."""
    out = files / "plan.html"
    given = ("report", files / "fit.nc", *ROWS, "--plan-source", files / "failed.nc", "--out", out)
    limits = "params=8e9 ptpp=20 replay=1 max_loss=2.2 max_forgetting=.1 confidence=.8"
    content = document(*given, "--allow-unconverged", "--plan", f"{limits} baseline=2.1")
    assert "source posterior that has not converged" in " ".join(content["warnings"])
    assert "plan" in content["sections"]
    assert content["plan"]["confidence"] == 0.8
    atpp = f"{content['plan']['atpp']:#.3g}"
    assert f"Plan: feasible: {atpp} ATPP" in " ".join(content["summary"])
    html = out.read_text("utf-8")
    assert f"<td>{atpp}</td>" in html
    assert "--plan-source" in html
    assert "tokens = 0" in fails(*given, "--allow-unconverged", "--plan", limits)
    assert limits_of(f"{limits} baseline=asymptote")["baseline"] == "asymptote"


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ("params=8.1e9 ptpp=279", "--plan lacks max_loss, max_forgetting; write it as 'params="),
        ("params=8.1e9 ptp=279", "unknown limit 'ptp'; did you mean 'ptpp'?"),
        ("params=8.1X", "cannot read 'params=8.1X'; write it as 'params="),
        (None, "--plan and --plan-source go together"),
    ],
)
def test_mistakes_in_a_plan_are_reported_before_the_fit(files, limits, message):
    plan = () if limits is None else ("--plan", limits)
    assert message in fails(
        "report", files / "losses.csv", "--plan-source", files / "fit.nc", *plan
    )


def test_a_source_that_has_not_converged_is_refused_before_the_fit(files):
    plan = ("--plan-source", files / "failed.nc", "--plan")
    limits = "params=8e9 ptpp=20 replay=1 max_loss=2.2 max_forgetting=.1 baseline=2.1"
    assert "--allow-unconverged" in fails("report", files / "losses.csv", *plan, limits)


@pytest.mark.usefixtures("undrawn")
def test_mistakes_in_a_report_are_reported_in_one_line(files, tmp_path):
    assert "--compare names no law" in fails("report", files / "losses.csv", "--compare", ",")
    assert "--compare needs a table" in fails(
        "report", files / "fit.nc", *ROWS, "--compare", "form1"
    )
    assert "no folder" in fails(
        "report", files / "fit.nc", *ROWS, "--out", tmp_path / "no" / "page.html"
    )
    assert "--allow-unconverged" in fails(
        "report", files / "failed.nc", *ROWS, "--out", tmp_path / "p.html"
    )
    assert not (tmp_path / "p.html").exists()
    run("report", files / "failed.nc", *ROWS, "--out", tmp_path / "p.html", "--allow-unconverged")
    assert "NOT CONVERGED" in (tmp_path / "p.html").read_text("utf-8")


def test_check_says_first_that_the_bands_failed(saved, posterior, tmp_path):
    rows = bl.grid(params=[4e9, 5e9, 6e9], tokens=[1e10, 1e11])
    rows.assign(loss=1.05 * posterior.predict(rows)).to_csv(tmp_path / "missed.csv", index=False)
    shown = run("check", saved, "--rows", tmp_path / "missed.csv", code=1).stdout
    assert "REFUSE: the bands failed here: the 90 % band holds 0 of 6 losses" in shown
