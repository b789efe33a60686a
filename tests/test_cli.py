"""The command line, through Typer's runner and as a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from cli import document, fails, run

from bayeslaw import __version__, load
from bayeslaw.tables.reading import read_table
from bayeslaw.tables.table import LossTable

DELPHI = str(Path(__file__).parent.parent / "data" / "delphi" / "isotoken.csv")
OLMO = str(Path(__file__).parent.parent / "data" / "olmo" / "ladder.csv")
SPLIT = ("--law", "chinchilla", "--train", "scale <= 3e20", "--test", "scale >= 1e21")
GRID = "params=1e9,1e10 tokens=1e9,1e10,1e11"
COMMANDS = ("fit", "forecast", "score", "compare", "check", "plan", "anchors", "study", "report")
COMMANDS += ("simulate",)
SHORT = ("--discrepancy", "none", "--effects", "none", "--draws", "500", "--tune", "500")


def process(*args: str, **kwargs) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *args],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"COLUMNS": "80"},
        **kwargs,
    )


@pytest.fixture(scope="module")
def saved(posterior, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("cli") / "fit.nc"
    posterior.save(path)
    return str(path)


@pytest.fixture(scope="module")
def failed(unconverged, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("cli") / "failed.nc"
    unconverged.save(path)
    return str(path)


@pytest.fixture(scope="module")
def measured(small: LossTable, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("cli") / "small.csv"
    small.frame.to_csv(path, index=False)
    return str(path)


# -- help -----------------------------------------------------------------------------------------


def test_help_imports_nothing_heavy():
    heavy = ("numpy", "pandas", "scipy", "pymc", "pytensor", "arviz", "xarray", "nutpie")
    code = f"import sys, bayeslaw.cli; print([m for m in {heavy} if m in sys.modules])"
    assert process("-c", code).stdout == "[]\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command):
    text = run(command, "--help").stdout
    assert f"  bayeslaw {command} " in text
    assert "--json" in text
    assert "--seed" in text


def test_effects_and_noise_of_a_fit(measured):
    content = document("fit", measured, "--law", "chinchilla", "--noise", "loglinear", *SHORT)
    assert (content["noise"], content["effects"]) == ("loglinear", [])
    result = run("fit", measured, "--law", "chinchilla", "--effects", "base", code=2)
    assert "no column 'base' for the effect" in result.stderr
    assert result.stderr.count("\n") == 1


def test_bare_command_shows_help_with_every_command():
    assert all(f"\n  {command} " in run().stdout for command in COMMANDS)


def test_version():
    assert run("--version").stdout == f"bayeslaw {__version__}\n"


# -- fit ------------------------------------------------------------------------------------------


def test_fit_saves_a_posterior_and_describes_it(tmp_path):
    path = tmp_path / "fit.nc"
    args = ("fit", DELPHI, *SPLIT[:4], *SHORT)
    content = document(*args, "--seed", "3", "--out", str(path))
    assert content["converged"] is True
    assert content["failures"] == []
    assert (content["rows_train"], content["seed"], content["draws"]) == (35, 3, 500)
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


def test_text_of_a_fit(saved, measured):
    text = run("fit", measured, "--law", "chinchilla", *SHORT).stdout
    for words in (
        "Synthetic data",
        "studentt likelihood, default priors",
        "D in units of 1 token; reference point params",
        "converged: R-hat",
        "L_ref",
        "alpha ~ LogNormal",
    ):
        assert words in text
    assert max(map(len, text.splitlines())) <= 80


def test_fit_that_has_not_converged_is_marked(measured, tmp_path):
    args = ("fit", measured, "--law", "chinchilla", *SHORT[:4], "--draws", "20", "--tune", "5")
    result = run(*args, "--out", str(tmp_path / "fit.nc"))
    assert "NOT CONVERGED" in result.stdout
    content = document(*args)
    assert content["converged"] is False
    assert content["failures"]


def test_point_fit(measured):
    content = document("fit", measured, "--law", "chinchilla", "--method", "huber")
    assert set(content["parameters"]) == {"E", "A", "alpha", "B", "beta"}
    assert set(content["reference"]) == {"L_ref", "slope_N", "alpha", "slope_D", "beta"}
    assert (content["method"], content["interior"], content["agreeing"]) == ("huber", True, 1.0)
    text = run("fit", measured, "--law", "chinchilla", "--method", "huber").stdout
    assert "6 of 6 starts agree" in text


def test_a_warning_is_one_line_on_stderr():
    result = run("fit", DELPHI, *SPLIT[:4], "--method", "huber")
    assert result.stderr.startswith("warning: ")
    assert result.stderr.count("\n") == 1
    assert "On a bound: E = 0" in result.stdout
    assert document("fit", DELPHI, *SPLIT[:4], "--method", "huber")["at_bounds"] == {"E": 0.0}


# -- forecast and score ---------------------------------------------------------------------------


def test_the_main_command_as_a_process():
    """The README's: fit, forecast and scores in one go; stdout is the result and nothing else."""
    done = process("-m", "bayeslaw", "forecast", DELPHI, *SPLIT, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    content = json.loads(done.stdout)
    rows = pd.DataFrame(content["rows"])
    assert len(rows) == 10
    assert (rows["lower_90"] < rows["lower_50"]).all()
    assert (rows["lower_50"] < rows["median"]).all()
    inside = rows["loss"].between(rows["lower_90"], rows["upper_90"])
    assert rows["inside_90"].tolist() == inside.tolist()
    assert content["scores"]["coverage_90"] == inside.mean()
    assert content["synthetic"] is False
    assert content["test"] == "scale >= 1e21"


def test_forecast_and_score_from_a_table(measured):
    split = ("--law", "chinchilla", "--train", "params < 3e9", *SHORT)
    result = run("forecast", measured, *split, "--levels", "0.8")
    assert "80 % band" in result.stdout
    assert "measured losses" in result.stdout
    assert "winkler_90" in result.stdout
    assert result.stderr == ""
    assert max(map(len, result.stdout.splitlines())) <= 80
    content = document("score", measured, *split)
    assert content["scores"] == document("forecast", measured, *split)["scores"]


def test_forecast_of_a_grid_from_a_saved_posterior(saved, posterior):
    content = document("forecast", saved, "--grid", GRID, "--levels", "0.5,0.9", "--seed", "2")
    rows = pd.DataFrame(content["rows"])
    wanted = posterior.forecast(rows[["params", "tokens"]], seed=2)
    assert rows["median"].tolist() == wanted.median.tolist()
    assert rows["upper_90"].tolist() == wanted.quantile(0.95)[0].tolist()
    assert content["scores"] is None
    assert content["converged"] is True


def test_latent_bands_are_narrower(saved):
    def width(*args: str) -> float:
        rows = pd.DataFrame(document("forecast", saved, "--grid", GRID, *args)["rows"])
        return (rows["upper_90"] - rows["lower_90"]).sum()

    assert width("--kind", "latent") < width()


def test_synthetic_data_are_labelled(saved, measured):
    assert document("forecast", saved, "--grid", GRID)["synthetic"] is True
    assert all(row["synthetic"] for row in document("forecast", saved, "--grid", GRID)["rows"])
    for args in (("forecast", saved, "--grid", GRID), ("score", saved, "--rows", measured)):
        assert "Synthetic data" in run(*args).stdout


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_forecast_writes_bands_over_an_old_file(saved, tmp_path, ending):
    path = tmp_path / f"bands.{ending}"
    path.write_text("old")
    result = run("forecast", saved, "--grid", GRID, "--out", str(path))
    assert result.stderr == f"wrote {path}\n"
    frame = pd.read_parquet(path) if ending == "parquet" else pd.read_csv(path)
    assert list(frame) == [
        "params", "tokens", "synthetic", "median", "lower_50", "upper_50", "lower_90", "upper_90"
    ]  # fmt: skip
    assert os.listdir(tmp_path) == [path.name]


def test_rows_without_losses_are_forecast_and_queried(saved, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("N,D\n1e9,1e9\n1e9,2e9\n2e9,2e9\n")
    rows = document("forecast", saved, "--rows", str(path), "--test", "D == 2e9")["rows"]
    assert [row["params"] for row in rows] == [1e9, 2e9]
    assert "no column 'loss'" in fails("score", saved, "--rows", str(path))


def test_baselines_among_the_rows_are_set_apart(saved, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("params,tokens,loss\n1e9,1e9,3\n1e9,0,4\n")
    result = run("forecast", saved, "--rows", str(path), "--json")
    assert len(json.loads(result.stdout)["rows"]) == 1
    assert "rows with tokens = 0 are baselines" in result.stderr


def test_a_failed_gate_stops_a_forecast_unless_allowed_and_is_carried(failed, measured, tmp_path):
    path = tmp_path / "bands.csv"
    assert "--allow-unconverged" in fails("forecast", failed, "--grid", GRID, "--out", str(path))
    assert not path.exists()
    fails("score", failed, "--rows", measured)
    allowed = ("--allow-unconverged",)
    assert "NOT CONVERGED" in run("forecast", failed, "--grid", GRID, *allowed).stdout
    run("forecast", failed, "--grid", GRID, "--out", str(path), *allowed)
    assert "R-hat" in pd.read_csv(path)["unconverged"][0]
    for args in (("forecast", failed, "--grid", GRID), ("score", failed, "--rows", measured)):
        content = document(*args, *allowed)
        assert content["converged"] is False
        assert any("ESS" in failure for failure in content["failures"])


def test_scores_of_a_point_fit_have_no_bands():
    content = document("score", DELPHI, *SPLIT, "--method", "huber")
    assert content["scores"]["rmse_log"] == pytest.approx(0.0147, abs=1e-4)
    assert content["scores"]["coverage_90"] is None
    assert "coverage" not in run("score", DELPHI, *SPLIT, "--method", "huber").stdout


# -- compare and simulate -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def french(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("cli") / "french.csv"
    run("simulate", "--domain", "french", "--out", str(path))
    return str(path)


def test_compare_prints_the_papers_table(french):
    split = ("--train", "ptpp <= 31", "--test", "ptpp == 279", "--laws", "form3,dcpt")
    result = run("compare", french, *split)
    for words in ("Synthetic data", "form3", "dcpt (transfer)", "dcpt (oracle)", "rmse_log"):
        assert words in result.stdout
    content = document("compare", french, *split, "--anchors", "ptpp == 279 and params < 3e8")
    assert [row["law"] for row in content["laws"]] == ["form3", "dcpt (transfer)", "dcpt (oracle)"]
    assert (content["rows_train"], content["rows_test"]) == (189, 63)
    assert content["synthetic"] is True
    assert content["laws"][0]["coverage_90"] is None


def test_compare_of_posteriors_scores_bands(measured):
    args = ("--train", "params < 3e9", "--laws", "chinchilla", "--method", "nuts", *SHORT)
    (row,) = document("compare", measured, *args)["laws"]
    assert 0 <= row["coverage_90"] <= 1
    text = run("compare", measured, *args).stdout
    assert "winkler" in text
    assert max(map(len, text.splitlines())) <= 80


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


# -- mistakes -------------------------------------------------------------------------------------

HUBER = ("--law", "chinchilla", "--method", "huber")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("fit", DELPHI, "--law", "chinchila"), "did you mean 'chinchilla'?"),
        (("fit", DELPHI), "--law"),
        (("fit",), "Missing argument"),
        (("fit", "nowhere.csv", *HUBER), "no such file"),
        (("fit", str(Path(DELPHI).parent), *HUBER), "a folder"),
        (("fit", DELPHI, *HUBER, "--train", "skale < 1"), "'skale' is not defined"),
        (("fit", DELPHI, *HUBER, "--train", "scale <"), "cannot evaluate the query"),
        (("fit", DELPHI, *HUBER, "--where", "scale < 0"), "no row satisfies"),
        (("fit", DELPHI, *HUBER, "--seed", "-1"), "--seed"),
        (("fit", DELPHI, *HUBER, "--seed", "one"), "--seed"),
        (("fit", DELPHI, *HUBER, "--draws", "100"), "--draws has no effect on a Huber fit"),
        (("fit", DELPHI, *HUBER, "--delta", "0"), "delta must be positive"),
        (("fit", DELPHI, *HUBER, "--out", "fit.nc"), "--out saves a posterior"),
        (("fit", DELPHI, "--law", "chinchilla", "--out", "/no/fit.nc"), "no folder /no"),
        (("fit", DELPHI, "--law", "chinchilla", "--out", "/"), "it is a folder"),
        (("fit", DELPHI, "--law", "chinchilla", "--method", "mcmc"), "--method"),
        (("fit", DELPHI, "--law", "chinchilla", "--sampler", "gibbs"), "--sampler"),
        (("fit", DELPHI, "--law", "chinchilla", "--chains", "0"), "--chains"),
        (("fit", DELPHI, "--law", "chinchilla", "--target-accept", "1"), "--target-accept"),
        (("fit", DELPHI, "--law", "chinchilla", "--priors", "none.toml"), "none.toml"),
        (("fit", DELPHI, "--law", "form3"), "'replay' is 0.33 in all 45 rows"),
        (("fit", OLMO, "--law", "chinchilla"), "several domains"),
        (("forecast", DELPHI, "--law", "chinchilla"), "split needs a train or a test query"),
        (("forecast", DELPHI, *SPLIT[:5], "scale > 0"), "satisfy both"),
        (("forecast", DELPHI, *SPLIT, "--levels", "0.5,1.5"), "1.5 is not between 0 and 1"),
        (("forecast", DELPHI, *SPLIT, "--levels", "half"), "--levels: cannot read 'half'"),
        (("forecast", DELPHI, *SPLIT, "--kind", "both"), "--kind"),
        (("forecast", DELPHI, *SPLIT[:4], "--grid", "params=1e9 tokens=0"), "tokens = 0"),
        (("forecast", DELPHI, *SPLIT[:4], "--grid", "params=1e9"), "'tokens' (or D) is missing"),
        (("forecast", DELPHI, *SPLIT[:4], "--grid", "params=big"), "cannot read 'params=big'"),
        (("forecast", DELPHI, *SPLIT[:4], "--grid", ""), "--grid is empty"),
        (("forecast", DELPHI, *SPLIT[:4], "--grid", "N=1 N=2"), "'N' is there twice"),
        (("forecast", DELPHI, *SPLIT, "--grid", GRID), "--grid goes without"),
        (("forecast", DELPHI, *SPLIT[:4], "--rows", "nowhere.csv"), "no such file"),
        (("forecast", "nowhere.nc", "--grid", GRID), "no such file"),
        (("compare", DELPHI, "--train", "scale < 1e20", "--laws", "form9"), "unknown law 'form9'"),
        (("compare", DELPHI, "--train", "scale < 1e20", "--laws", ","), "--laws names no law"),
        (("compare", DELPHI), "split needs"),
        (("simulate",), "--out"),
        (("simulate", "--domain", "german", "--out", "x.csv"), "--domain"),
        (("simulate", "--out", "/no/x.csv"), "no folder /no"),
        (("forcast", DELPHI), "No such command"),
        (("fit", DELPHI, "--laww", "form3"), "--laww"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(args, words):
    assert words in fails(*args)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--law", "form3"), "--law has no effect on a saved posterior"),
        (("--train", "ptpp < 3"), "--train has no effect"),
        (("--draws", "9"), "--draws has no effect"),
        ((), "--rows or --grid"),
    ],
)
def test_options_of_a_fit_are_refused_for_a_saved_posterior(saved, option, words):
    assert words in fails("forecast", saved, *option)


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\x00params", b"params,tokens\n1,2\n", b"params,tokens,loss\n", b"\0"]
)
def test_bad_tables(tmp_path, content):
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    assert str(path) in fails("fit", str(path), *HUBER)
    assert str(path) in fails("compare", str(path), "--train", "params > 0")


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00params", b"\0"])
def test_bad_rows(saved, tmp_path, content):
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    assert str(path) in fails("forecast", saved, "--rows", str(path))


def test_damaged_posteriors(saved, tmp_path):
    whole = Path(saved).read_bytes()
    path = tmp_path / "cut.nc"
    for content in (b"", b"text", whole[:1000], whole[: len(whole) // 2]):
        path.write_bytes(content)
        assert str(path) in fails("forecast", str(path), "--grid", GRID)
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])  # known by its first bytes
    assert "posterior" in fails("forecast", str(tmp_path / "cut"), "--grid", GRID)


def test_a_mistake_as_a_process():
    done = process("-m", "bayeslaw", "fit", "nowhere.csv", "--law", "form3", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: nowhere.csv: no such file.\n"


def test_interrupted(monkeypatch):
    def interrupt(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("bayeslaw.tables.reading.read_table", interrupt)
    result = run("fit", DELPHI, *HUBER, code=130)
    assert (result.stdout, result.stderr) == ("", "interrupted\n")


def test_a_terminal_without_the_characters_is_no_error(saved):
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    args = [sys.executable, "-m", "bayeslaw", "forecast", saved, "--grid", GRID]
    done = subprocess.run(args, capture_output=True, timeout=300, check=False, env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"90 % band" in done.stdout
