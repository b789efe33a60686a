"""The command line, through Typer's runner and as a process of its own."""

import json
import math
import os

import pandas as pd
import pytest

from bayeslaw import load
from bayeslaw.tables.reading import read_table
from tests.cli.commands import DELPHI, GRID, SPLIT, document, fails, process, run

SHORT = ("--discrepancy", "none", "--effects", "none", "--draws", "1000")


def test_effects_and_noise_of_a_fit(measured):
    content = document("fit", measured, "--law", "chinchilla", "--noise", "loglinear", *SHORT)
    assert (content["noise"], content["effects"]) == ("loglinear", [])
    result = run("fit", measured, "--law", "chinchilla", "--effects", "base", code=2)
    assert "no column 'base' for the effect" in result.stderr
    assert result.stderr.count("\n") == 1


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


def test_rows_of_a_forecast_have_a_position(saved):
    """The training rows have N up to 3e9 and D up to 1e11."""
    args = ("forecast", saved, "--grid", "params=1e9,6e9 tokens=1e10,1e11")
    content = document(*args)
    words = "2 interpolations; 2 extrapolations (up to 0.69 e-folds, 0.3 decades of FLOPs)"
    assert content["positions"] == words
    assert [row["position"] for row in content["rows"]] == [
        *["interpolation"] * 2, *["extrapolation"] * 2
    ]  # fmt: skip
    assert [row["decades"] for row in content["rows"]] == pytest.approx(
        [0, 0, *[math.log10(2)] * 2]
    )
    shown = run(*args).stdout
    assert words in shown
    assert shown.split(words)[1].count("of FLOPs") == 1  # head of the column
    assert [line.split()[-2:] for line in shown.splitlines()[-2:]] == [
        ["extrapolation", "0.30"]
    ] * 2
    one = run("forecast", saved, "--grid", "params=1e9 tokens=1e10,1e11").stdout
    assert "2 interpolations." in one
    assert "position" not in one


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
        "params", "tokens", "synthetic", "median", "lower_50", "upper_50", "lower_90", "upper_90",
        "position", "efolds", "decades",
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


@pytest.fixture(scope="module")
def french(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("cli") / "french.csv"
    run("simulate", "--domain", "french", "--out", str(path))
    return str(path)


def test_compare_prints_the_papers_table(french):
    split = ("--train", "ptpp <= 31", "--test", "ptpp == 279", "--laws", "form3,dcpt")
    result = run("compare", french, *split)
    for words in ("Synthetic data", "form3", "dcpt (transfer)", "dcpt (oracle)", "rmse", "scored"):
        assert words in result.stdout
    content = document("compare", french, *split, "--anchors", "ptpp == 279 and params < 3e8")
    assert [row["law"] for row in content["laws"]] == ["form3", "dcpt (transfer)", "dcpt (oracle)"]
    assert (content["rows_train"], content["rows_test"]) == (189, 63)
    assert content["synthetic"] is True
    assert content["laws"][0]["coverage_90"] is None


def test_compare_of_target_and_source(french, tmp_path):
    source = str(tmp_path / "source.csv")
    run("simulate", "--domain", "english_arabic", "--out", source)
    split = ("--train", "ptpp <= 31", "--test", "ptpp == 279", "--laws", "form2,dcpt")
    small = ("--source", source, "--anchors", "ptpp == 279 and params < 3e8")
    content = document("compare", french, *split, *small, "--bounds", "prior")
    assert content["bounds"] == "prior"
    counts = [(row["domain"], row["law"], row["rows"], row["scored"]) for row in content["laws"]]
    laws = (("form2", 189, 63), ("dcpt (transfer)", 168, 63), ("dcpt (oracle)", 84, 84))
    assert counts == [(name, *law) for name in ("french", "english_arabic") for law in laws]
    assert (content["rows_train"], content["rows_test"]) == (2 * 189, 2 * 63)
    lines = run("compare", french, *split, *small).stdout.splitlines()
    assert [line for line in lines if line.startswith(("french", "english_arabic"))]
    (oracle, _) = [line for line in lines if "dcpt (oracle)" in line]
    assert oracle.split()[-2:] == ["84", "84"]
    assert max(map(len, lines)) <= 80


def test_a_point_forecast_that_is_not_unique_is_a_range(french, tmp_path):
    args = (french, "--law", "form2", "--train", "ptpp <= 31", "--method", "huber")
    test, path = ("--test", "ptpp == 279"), tmp_path / "rows.csv"
    content = document("forecast", *args, *test, "--out", str(path))
    rows = pd.DataFrame(content["rows"])
    assert (content["method"], content["bounds"], len(rows)) == ("huber", "paper", 84)
    assert (rows["lowest"] <= rows["prediction"]).all()
    assert (rows["prediction"] <= rows["highest"]).all()
    assert pd.read_csv(path)["highest"].tolist() == pytest.approx(rows["highest"].tolist())
    most = float((rows["highest"] / rows["lowest"] - 1).max())
    assert document("score", *args, *test)["spread"] == pytest.approx(most)
    for command in ("forecast", "score"):
        text = " ".join(run(command, *args, *test).stdout.split())
        assert f"by {100 * most:.2g} % at most" in text
        assert "bounds of the paper" in text
    first = rows.iloc[0]
    text = run("forecast", *args, *test).stdout
    assert f"{first['lowest']:.4f}–{first['highest']:.4f}" in text
    fitted = document("fit", *args)
    assert fitted["lowest"]["lambda_"] < fitted["parameters"]["lambda_"] * 1.0001
    assert "Not unique: starts that agree have" in run("fit", *args).stdout


def test_a_unique_point_forecast_has_no_range():
    text = run("forecast", DELPHI, *SPLIT, "--method", "huber").stdout
    assert "Not unique" not in text
    assert "–" not in text
    assert document("score", DELPHI, *SPLIT, "--method", "huber")["spread"] < 1e-4


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("score", "--bounds", "prior"), "--bounds has no effect on --method nuts"),
        (("forecast", "--method", "map", "--bounds", "prior"), "no effect on --method map"),
        (("forecast", "--method", "huber", "--levels", "0.8"), "--levels and --kind have no"),
    ],
)
def test_options_without_effect_on_the_method(args, says):
    message = fails(args[0], DELPHI, *SPLIT, *args[1:])
    assert says in message


def test_bounds_do_not_change_a_saved_posterior(saved):
    message = fails("forecast", saved, "--grid", GRID, "--bounds", "prior")
    assert "--bounds has no effect on a saved posterior" in message


@pytest.mark.parametrize("command", ["score", "forecast"])
def test_a_method_does_not_change_a_saved_posterior(saved, measured, command):
    says = fails(command, saved, "--rows", measured, "--method", "huber")
    assert "--method has no effect on a saved posterior" in says


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
