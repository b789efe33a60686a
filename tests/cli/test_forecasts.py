"""Commands that forecast and score: ``forecast | verify | backtest | score | compare``."""

import json
import math
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import bayeslaw as bl
from bayeslaw.tables.table import write_frame
from tests.cli.commands import DELPHI, GRID, SPLIT, both, document, fails, process, run
from tests.support import CHINCHILLA, on_bound, with_effects

SHORT = ("--discrepancy", "none", "--effects", "none", "--draws", "1000")


def test_the_main_command_as_a_process():
    """Fit, forecast and scores in one go; stdout is the result, stderr what goes on.

    The script of ``bayeslaw init`` fits these rows with the default model.
    """
    done = process("-m", "bayeslaw", "forecast", DELPHI, *SPLIT, *SHORT, "--json")
    assert done.returncode == 0
    assert done.stderr == "chinchilla: 1,000 draws of each of 4 chains\n"
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
    text, content = both("forecast", measured, *split, "--levels", "0.8")
    assert "80 % band" in text
    assert "measured losses" in text
    assert "winkler_90" in text
    assert max(map(len, text.splitlines())) <= 80
    assert content["warnings"] == []
    assert content["scores"] == document("score", measured, *split)["scores"]


def test_columns_of_a_table_are_those_of_the_rows_too(measured, tmp_path):
    """Rows to forecast may have the names of the fitted table, or the project's."""
    theirs, ours = tmp_path / "theirs.csv", tmp_path / "ours.csv"
    frame = bl.read_table(measured).frame.rename(columns={"params": "size", "loss": "eval loss"})
    frame.to_csv(theirs, index=False)
    frame.rename(columns={"size": "N"}).drop(columns="eval loss").to_csv(ours, index=False)
    split = ("--law", "chinchilla", "--method", "huber")
    columns = ("--columns", "params=size; loss=eval loss")
    same, own = (
        document("forecast", theirs, *split, *columns, "--rows", rows) for rows in (theirs, ours)
    )
    assert [row["loss"] for row in same["rows"]] == frame["eval loss"].tolist()
    assert [row["prediction"] for row in own["rows"]] == [row["prediction"] for row in same["rows"]]


@pytest.fixture
def going_on(tmp_path):
    """Ends and checkpoints of finished runs, and the checkpoints of one of 3e9 parameters."""
    rows = bl.grid(params=[1e8, 3e8, 1e9, 3e9], tokens=[1e9, 3e9, 1e10, 3e10])
    frames = [
        bl.simulate("chinchilla", CHINCHILLA, rows, sigma=0.003, seed=i).frame.assign(annealed=i)
        for i in (0, 1)
    ]
    frame = pd.concat(frames)
    frame.loc[frame["annealed"] == 0, "loss"] *= 1.03
    frame["run"] = frame["params"].map("{:.0e}".format)
    goes_on = frame["params"] == 3e9
    parts = {
        "finished": frame[~goes_on],
        "run": frame[goes_on & (frame["annealed"] == 0) & (frame["tokens"] < 3e10)],
        "end": pd.DataFrame({"params": [3e9], "tokens": 1e11, "run": "3e+09", "annealed": 1}),
    }
    parts["all"] = pd.concat([parts["finished"], parts["run"]])
    parts = {name: part.drop(columns="synthetic", errors="ignore") for name, part in parts.items()}
    for name, part in parts.items():
        part.to_csv(tmp_path / f"{name}.csv", index=False)
    return tmp_path


def test_a_run_that_goes_on_is_fitted_with_the_table(going_on):
    """Its end has the size and the label of the run, and is annealed."""
    table, run, end = (str(going_on / f"{name}.csv") for name in ("finished", "run", "end"))
    how = ("--law", "chinchilla", "--method", "huber", "--beyond-evidence")
    found = document("forecast", table, *how, "--running", run, "--grid", "tokens=1e11")
    whole = document("forecast", str(going_on / "all.csv"), *how, "--rows", end)
    assert found["rows"] == whole["rows"]
    bl.read_table(run).frame.drop(columns="annealed").to_csv(run, index=False)
    bare = document("forecast", table, *how, "--running", run, "--grid", "tokens=1e11")
    assert bare["rows"] == whole["rows"]
    alone = document("forecast", table, *how, "--grid", "params=3e9 tokens=1e11")
    assert found["rows"][0]["prediction"] != alone["rows"][0]["prediction"]
    assert found["rows"][0]["params"] == 3e9


@on_bound
def test_what_is_constant_in_a_run_is_so_at_its_end(going_on):
    table, run = (bl.read_table(going_on / f"{name}.csv").frame for name in ("finished", "run"))
    values = {"replay": 0.25, "ptpp": 20.0, "unique_tokens": 1e13, "rate": 0.002, "base": "b"}
    table.assign(**values | {"base": "a"}).to_csv(going_on / "finished.csv", index=False)
    run.assign(**values).to_csv(going_on / "run.csv", index=False)
    how = ("--law", "chinchilla", "--method", "huber", "--beyond-evidence")
    files = (going_on / "finished.csv", "--running", going_on / "run.csv")
    (end,) = document("forecast", *files, *how, "--grid", "tokens=1e11")["rows"]
    assert end.items() >= {**values, "annealed": 1, "params": 3e9, "tokens": 1e11}.items()


def test_a_number_is_the_label_of_a_run_as_its_text_is(going_on):
    """In the finished table one label is no number, so that 7 is text there."""
    table, run = (bl.read_table(going_on / f"{name}.csv").frame for name in ("finished", "run"))
    table["run"] = np.where(table["params"] == 1e8, "7", "x")
    table.to_csv(going_on / "finished.csv", index=False)
    run.assign(run=7).to_csv(going_on / "run.csv", index=False)
    args = ("--law", "chinchilla", "--running", going_on / "run.csv", "--grid", "tokens=1e11")
    assert "has rows of 7, the run of" in fails("forecast", going_on / "finished.csv", *args)


def test_labels_of_a_grid_are_text(posterior, tmp_path):
    """Run 003, as its file has it, is the one that was fitted."""
    labels = np.repeat(["001", "002", "003", "004"], 5)
    fitted = with_effects(posterior, "run", labels, 0.05)
    fitted.table.frame.to_csv(tmp_path / "t.csv", index=False)
    again = bl.read_table(tmp_path / "t.csv")
    assert again.frame["run"].tolist() == labels.tolist()
    fitted.save(tmp_path / "fit.nc")
    rows = bl.grid(params=1e9, tokens=1e10, run=["003", "009"])
    found = document(
        "forecast", tmp_path / "fit.nc", "--grid", "params=1e9 tokens=1e10 run=003,009"
    )
    assert [row["run"] for row in found["rows"]] == ["003", "009"]
    wanted = fitted.forecast(rows)
    assert [row["median"] for row in found["rows"]] == wanted.median.tolist()
    effect = fitted.draws["run_effect"].sel(run="003").values.ravel()
    shared = [np.corrcoef(np.log(drawn), effect)[0, 1] for drawn in wanted.samples.T]
    assert shared[0] > 0.95
    assert abs(shared[1]) < 0.1


def test_mistakes_about_a_run_that_goes_on(going_on):
    table, run, end = (str(going_on / f"{name}.csv") for name in ("finished", "run", "end"))
    law = ("--law", "chinchilla", "--running")
    for args, words in (
        ((table, *law, run), "say where the run ends"),
        ((table, *law, run, "--grid", "tokens=1e9"), "tokens beyond 1e+10"),
        ((table, *law, run, "--grid", "tokens=1e10"), "tokens beyond 1e+10"),
        ((table, *law, run, "--grid", "params=1e9 tokens=1e11"), "'params' is 3000000000"),
        ((table, *law, table, "--grid", "tokens=1e11"), "rows differ in 'run'"),
        ((str(going_on / "all.csv"), *law, run, "--rows", end), "leave them out with --train"),
    ):
        assert words in fails("forecast", *args)


def test_forecast_of_a_grid_from_a_saved_posterior(saved, posterior):
    content = document("forecast", saved, "--grid", GRID, "--levels", "0.5,0.9", "--seed", "2")
    rows = pd.DataFrame(content["rows"])
    wanted = posterior.forecast(rows[["params", "tokens"]], seed=2)
    assert rows["median"].tolist() == wanted.median.tolist()
    assert rows["upper_90"].tolist() == wanted.quantile(0.95)[0].tolist()
    assert content["scores"] is None
    assert content["converged"] is True


def test_accuracy_of_pairs_beside_the_forecast(saved, posterior, tmp_path):
    path = tmp_path / "pairs.csv"
    loss = np.linspace(1.5, 6, 20)
    pairs = pd.DataFrame({"loss": loss, "accuracy": 1 / (1 + np.exp(loss - 3)), "task": "one"})
    pd.concat([pairs, pairs.assign(task="two")]).to_csv(path, index=False)
    args = ("forecast", saved, "--grid", GRID)
    text, content = both(*args, "--accuracy", path, "--pairs", "task == 'two'")
    found = pd.DataFrame(content["accuracy"]["numbers"])
    forecast = posterior.forecast(bl.grid(params=[1e9, 1e10], tokens=[1e9, 1e10, 1e11]))
    wanted = bl.derive.accuracy(forecast, pairs.assign(task="two")).to_frame()
    assert found["median"].tolist() == wanted["median"].tolist()
    assert "two" in text
    assert "one" not in found["quantity"].to_list()
    assert "--pairs has no effect" in fails(*args, "--pairs", "task == 'two'")
    assert "no effect on --kind" in fails(*args, "--accuracy", path, "--kind", "latent")
    assert "no pairs satisfy" in fails(*args, "--accuracy", path, "--pairs", "loss > 9")


def test_rows_of_a_forecast_have_a_position(saved):
    """The training rows have N up to 3e9 and D up to 1e11."""
    args = ("forecast", saved, "--grid", "params=1e9,6e9 tokens=1e10,1e11")
    content = document(*args)
    words = "2 interpolations; 2 extrapolations (up to 0.3 decades: params 0.3)"
    assert content["positions"] == words
    assert [row["position"] for row in content["rows"]] == [
        *["interpolation"] * 2, *["extrapolation"] * 2
    ]  # fmt: skip
    assert [row["decades"] for row in content["rows"]] == pytest.approx(
        [0, 0, *[math.log10(2)] * 2]
    )
    shown = run(*args).stdout
    assert words in shown
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
        "position", "decades",
    ]  # fmt: skip
    assert os.listdir(tmp_path) == [path.name]


def test_rows_without_losses_are_forecast_and_queried(saved, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("N,D\n1e9,1e9\n1e9,2e9\n2e9,2e9\n")
    rows = document("forecast", saved, "--rows", str(path), "--test", "D == 2e9")["rows"]
    assert [row["params"] for row in rows] == [1e9, 2e9]
    assert "no column 'loss'" in fails("score", saved, "--rows", str(path))
    path.write_text("size,D,start_loss\n1,1e9,3\n1,2e9,3\n2,2e9,3\n")
    args = ("--rows", str(path), "--test", "D == 2e9", "--columns", "params=size * 1e9")
    renamed = document("forecast", saved, *args, "--loss-unit", "bits")["rows"]
    assert [row["median"] for row in renamed] == [row["median"] for row in rows]
    assert renamed[0]["start_loss"] == pytest.approx(3 * math.log(2))


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
    text, content = both("score", DELPHI, *SPLIT, "--method", "huber")
    assert content["scores"]["rmse_log"] == pytest.approx(0.0147, abs=1e-4)
    assert content["scores"]["coverage_90"] is None
    assert content["spread"] < 1e-4
    assert "coverage" not in text


@pytest.fixture(scope="module")
def french(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("cli") / "french.csv"
    run("simulate", "--domain", "french", "--out", str(path))
    return str(path)


def test_compare_prints_the_papers_table(french):
    split = ("--train", "ptpp <= 31", "--test", "ptpp == 279", "--laws", "form3,dcpt")
    text, content = both("compare", french, *split, "--anchors", "ptpp == 279 and params < 3e8")
    for words in ("Synthetic data", "form3", "dcpt (transfer)", "dcpt (oracle)", "rmse", "scored"):
        assert words in text
    assert [row["law"] for row in content["laws"]] == ["form3", "dcpt (transfer)", "dcpt (oracle)"]
    assert (content["rows_train"], content["rows_test"]) == (189, 63)
    assert content["synthetic"] is True
    assert content["laws"][0]["coverage_90"] is None


def test_compare_of_target_and_source(french, tmp_path):
    source = str(tmp_path / "source.csv")
    run("simulate", "--domain", "english_arabic", "--out", source)
    split = ("--train", "ptpp <= 31", "--test", "ptpp == 279", "--laws", "form2,dcpt")
    small = ("--source", source, "--anchors", "ptpp == 279 and params < 3e8")
    text, content = both("compare", french, *split, *small, "--bounds", "prior")
    assert content["bounds"] == "prior"
    counts = [(row["domain"], row["law"], row["rows"], row["scored"]) for row in content["laws"]]
    laws = (("form2", 189, 63), ("dcpt (transfer)", 168, 63), ("dcpt (oracle)", 84, 84))
    assert counts == [(name, *law) for name in ("french", "english_arabic") for law in laws]
    assert (content["rows_train"], content["rows_test"]) == (2 * 189, 2 * 63)
    lines = text.splitlines()
    assert [line for line in lines if line.startswith(("french", "english_arabic"))]
    (oracle, _) = [line for line in lines if "dcpt (oracle)" in line]
    assert oracle.split()[-2:] == ["84", "84"]
    # A path is not broken, and may itself be longer than a line.
    assert max(len(line) for line in lines if str(tmp_path.parent) not in line) <= 80


def test_a_point_forecast_that_is_not_unique_is_a_range(french, tmp_path):
    args = (french, "--law", "form2", "--train", "ptpp <= 31", "--method", "huber")
    test, path = ("--test", "ptpp == 279"), tmp_path / "rows.csv"
    forecast, content = both("forecast", *args, *test, "--out", str(path))
    rows = pd.DataFrame(content["rows"])
    assert (content["method"], content["bounds"], len(rows)) == ("huber", "paper", 84)
    assert (rows["lowest"] <= rows["prediction"]).all()
    assert (rows["prediction"] <= rows["highest"]).all()
    assert pd.read_csv(path)["highest"].tolist() == pytest.approx(rows["highest"].tolist())
    most = float((rows["highest"] / rows["lowest"] - 1).max())
    score, content = both("score", *args, *test)
    assert content["spread"] == pytest.approx(most)
    for text in (" ".join(each.split()) for each in (forecast, score)):
        assert f"by {100 * most:.2g} % at most" in text
        assert "bounds of the paper" in text
    first = rows.iloc[0]
    assert f"{first['lowest']:.4f}–{first['highest']:.4f}" in forecast
    text, fitted = both("fit", *args)
    assert fitted["lowest"]["lambda_"] < fitted["parameters"]["lambda_"] * 1.0001
    assert "Not unique: starts that agree have" in text


def test_a_unique_point_forecast_has_no_range():
    text = run("forecast", DELPHI, *SPLIT, "--method", "huber").stdout
    assert "Not unique" not in text
    assert "–" not in text


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
    text, content = both("compare", measured, *args)
    assert 0 <= content["laws"][0]["coverage_90"] <= 1
    assert "winkler" in text
    assert max(map(len, text.splitlines())) <= 80


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
    args = ("--columns", "loss=loss / log(2)", "--loss-unit", "bits")
    other = document("verify", registered, losses, *args)
    assert other["scores"]["rmse_log"] == pytest.approx(0, abs=1e-12)
    assert "4 results in the file" in run("verify", registered).stdout


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


def test_mistakes_in_a_registration(saved, failed, registered, losses, tmp_path):
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


BRIEF = ("--chains", "2", "--draws", "100", "--tune", "200", "--discrepancy", "none")


def test_backtest_as_text_json_and_figure(tmp_path):
    design = bl.grid(params=[1e8, 3e8, 1e9, 3e9], tokens=[3e9, 1e10, 3e10])
    table = bl.simulate("chinchilla", CHINCHILLA, design, sigma=0.005, seed=1)
    path, figure = tmp_path / "losses.csv", tmp_path / "b.png"
    write_frame(table.frame, path)
    asked = (path, "--law", "chinchilla", "--along", "params", *BRIEF)
    text, content = both("backtest", *asked, "--figure", figure)
    assert "the 90 % band" in text
    assert "decades ahead" in text
    assert figure.exists()
    assert content["along"] == "params"
    assert content["models"][0]["rows"] == len(content["rows"]) == 3
    assert "unknown law" in fails("backtest", path, "--law", "chinchila")
    assert "--cuts" in fails("backtest", *asked, "--cuts", "many")


def test_a_warning_of_the_unit_is_in_every_output(saved):
    asked = ("forecast", saved, "--grid", "params=1e13 tokens=1e10", "--beyond-evidence")
    [text] = [t for t in document(*asked)["warnings"] if "counts" in t]
    assert "params = 1e+13 is 3.3e+03 times above the fitted rows" in text
    assert run(*asked).stderr.count(text) == 1


def test_other_commands_quote_a_backtest(saved, posterior, small, tmp_path):
    path, page = tmp_path / "backtest.csv", tmp_path / "report.html"
    write_frame(small.frame, tmp_path / "losses.csv")
    run(
        "backtest",
        tmp_path / "losses.csv",
        "--law",
        "chinchilla",
        *BRIEF,
        "--cuts",
        "1e20",
        "--out",
        path,
    )
    far = ("--grid", "params=1e12 tokens=1e13", "--backtest", path, "--beyond-evidence")
    assert "farther than any cut" in document("forecast", saved, *far)["backtest"]
    text = " ".join(run("forecast", saved, *far).stdout.split())
    assert "Backtest: " in text
    run("report", saved, *far[:-1], "--out", page)
    assert "farther than any cut" in page.read_text()
    wrong = ("--backtest", tmp_path / "losses.csv")
    assert "not a backtest" in fails("forecast", saved, *far[:2], *wrong)


def test_rows_far_beyond_the_evidence_are_refused(saved):
    far = ("forecast", saved, "--grid", "params=1e12 tokens=2e13")
    assert "decades of params (bands were tested to 0.96)" in fails(*far)
    allowed = run(*far, "--beyond-evidence")
    assert "No evidence" in allowed.stdout
    assert allowed.stderr == ""
