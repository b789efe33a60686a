"""`bayeslaw backtest`, through Typer's runner."""

from functools import partial

import bayeslaw as bl
from bayeslaw.tables.reading import write_frame
from tests.cli import commands
from tests.support import CHINCHILLA

run, fails = partial(commands.run, "backtest"), partial(commands.fails, "backtest")
SHORT = ("--chains", "2", "--draws", "100", "--tune", "200", "--discrepancy", "none")


def test_text_json_and_figure(tmp_path):
    design = bl.grid(params=[1e8, 3e8, 1e9, 3e9], tokens=[3e9, 1e10, 3e10])
    table = bl.simulate("chinchilla", CHINCHILLA, design, sigma=0.005, seed=1)
    path, figure = tmp_path / "losses.csv", tmp_path / "b.png"
    write_frame(table.frame, path)
    asked = (path, "--law", "chinchilla", "--along", "params", *SHORT)
    text = run(*asked, "--figure", figure).stdout
    assert "the 90 % band" in text
    assert "decades ahead" in text
    assert figure.exists()
    content = commands.document("backtest", *asked)
    assert content["along"] == "params"
    assert content["models"][0]["rows"] == len(content["rows"]) == 3
    assert "unknown law" in fails(path, "--law", "chinchila")
    assert "--cuts" in fails(*asked, "--cuts", "many")


def test_other_commands_quote_it(saved, posterior, small, tmp_path):
    path, page = tmp_path / "backtest.csv", tmp_path / "report.html"
    write_frame(small.frame, tmp_path / "losses.csv")
    run(tmp_path / "losses.csv", "--law", "chinchilla", *SHORT, "--cuts", "1e20", "--out", path)
    far = ("--grid", "params=1e12 tokens=1e13", "--backtest", path)
    assert "farther than any cut" in commands.document("forecast", saved, *far)["backtest"]
    text = " ".join(commands.run("forecast", saved, *far).stdout.split())
    assert "Backtest: " in text
    commands.run("report", saved, *far, "--out", page)
    assert "farther than any cut" in page.read_text()
    wrong = ("--backtest", tmp_path / "losses.csv")
    assert "not a backtest" in commands.fails("forecast", saved, *far[:2], *wrong)
