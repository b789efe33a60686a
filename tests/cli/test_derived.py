"""Commands that derive numbers: ``derive``, ``floor``, ``recipes``."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bayeslaw import derive
from tests.cli.commands import document, fails, run
from tests.support import DATA


def test_numbers_are_those_of_the_library(saved, posterior, tmp_path):
    out = tmp_path / "numbers.csv"
    found = document(
        "derive", saved, "--flops", "1e21,1e23", "--loss", "2.2,1.2", "--out", str(out)
    )
    assert (found["command"], found["levels"]) == ("derive", [0.5, 0.8, 0.9])
    best = derive.compute_optimal(posterior, [1e21, 1e23]).to_frame()
    assert found["derived"]["compute_optimal"]["numbers"] == best.to_dict("records")
    reached = found["derived"]["flops_to_reach"]
    assert [row["median"] is None for row in reached["numbers"]] == [False, True]
    assert reached["numbers"][1]["infinite"] == 1
    assert any("tokens per parameter" in note for note in reached["notes"])
    table = pd.read_csv(out)
    assert set(table["derived"]) == {"floor", "compute_optimal", "flops_to_reach"}
    assert len(table) == 1 + 12 + 2


def test_text(saved):
    text = run("derive", saved, "--flops", "1e21", "--at", "params=1e9 tokens=2e10").stdout
    assert "Compute-optimal split" in text
    assert "Local exponents" in text
    assert "reducible_N" in text
    assert "searched 0.04942 to 6745 tokens per parameter" in text
    assert "not determined" not in text
    bound = run("derive", saved, "--flops", "1e22", "--search", "500,1e4").stdout
    assert "100 % on bound" in bound
    assert "to search further: --search 50,10000" in " ".join(bound.split())
    near_the_floor = run("derive", saved, "--loss", "1.75", "--beyond-evidence").stdout
    assert "not determined" in near_the_floor


def test_figures(saved, tmp_path):
    paths = [tmp_path / f"{name}.png" for name in ("derive", "forecast", "point")]
    run("derive", saved, "--flops", "1e20,1e21", "--figure", paths[0])
    run("forecast", saved, "--grid", "params=1e9 tokens=1e10,1e11", "--figure", paths[1])
    options = ("--law", "chinchilla", "--method", "huber", "--train", "scale <= 3e20")
    run("forecast", DATA / "delphi" / "isotoken.csv", *options, "--figure", paths[2])
    assert all(path.stat().st_size > 1000 for path in paths)
    assert "give --flops" in fails("derive", saved, "--figure", paths[0])


def test_pairs_of_accuracy_have_the_unit_of_the_losses(saved, tmp_path):
    frame = pd.DataFrame({"loss": np.linspace(1.5, 4.5, 20)})
    frame["accuracy"] = 0.25 + 0.5 / (1 + np.exp((frame["loss"] - 2.6) / 0.25))
    rows = pd.DataFrame({"params": [1e9], "tokens": [1e10], "loss": [2.7]})
    found = []
    for unit, factor in (("nats", 1.0), ("bits", 1 / np.log(2))):
        for name, table in (("pairs", frame), ("rows", rows)):
            table.assign(loss=factor * table["loss"]).to_csv(tmp_path / f"{name}.csv", index=False)
        for which in (("--rows", tmp_path / "rows.csv"), ("--grid", "params=1e9 tokens=1e10")):
            options = ("--accuracy", tmp_path / "pairs.csv", "--loss-unit", unit)
            numbers = document("forecast", saved, *which, *options)["accuracy"]["numbers"]
            found.append(numbers[0]["median"])
    assert found == pytest.approx([found[0]] * 4)


def test_two_fits(saved):
    found = document("derive", saved, "--loss", "2.2", "--against", saved)["derived"]
    assert found["compute_multiplier"]["numbers"][0]["median"] == pytest.approx(1, abs=0.1)
    assert "independently" in found["compute_multiplier"]["notes"][0]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--flops", "many"], "--flops: cannot read 'many'"),
        (["--flops", "-1"], "flops must be positive"),
        (["--against", "other.nc"], "give --loss"),
        (["--search", "1"], "write it as 1,1000"),
        (["--search", "9,1", "--flops", "1e20"], "least first"),
        (["--flops", "1e20", "--at", "replay=.3"], "does not depend on replay"),
        (["--levels", "90"], "not between 0 and 1"),
        (["--flops", ""], "--flops: cannot read ''"),
        (["--at", ""], "--at is empty"),
        (["--at", "replay=.3"], "--at needs params and tokens"),
        (["--flops", "21"], "FLOPs are expected"),
        (["--flops", "1e27"], "from twice that on forecasts are refused"),
        (["--loss", "1.75"], "add --beyond-evidence"),
        (["--at", "params=1e12 tokens=2e10"], "No evidence: rows lie up to 2.5 decades of params"),
        (["--at", "params=1 tokens=2e10"], "params = 1e+09?"),
    ],
)
def test_mistakes(saved, options, says):
    assert says in fails("derive", saved, *options)


def test_a_posterior_that_failed_is_refused_unless_allowed(failed):
    assert "--allow-unconverged" in fails("derive", failed)
    found = document("derive", failed, "--allow-unconverged")["derived"]["floor"]
    assert found["numbers"][0]["unconverged"]


def test_recipes(posterior, saved, tmp_path):
    other, out = tmp_path / "other.nc", tmp_path / "recipes.csv"
    posterior.save(other)
    found = document("recipes", saved, other, "--flops", "1e21,1e23", "--out", out)
    assert [row["recipe"] for row in found["recipes"][:2]] == [Path(saved).stem, "other"]
    assert found["multipliers"][0]["median"] == pytest.approx(1, abs=0.1)
    assert "crossings" in found
    assert list(pd.read_csv(out)["flops"]) == [1e21, 1e21, 1e23, 1e23]
    at = ("--at", "params=1e9 tokens=2e10")
    text = run("recipes", saved, other, *at).stdout
    assert "has the lowest loss with probability" in text
    assert document("recipes", saved, other, *at)["crossings"] is None
    assert "same file name" in fails("recipes", saved, saved, *at)
    assert "targets=" in fails("recipes", saved, other)
    assert "params = 1e+09?" in fails("recipes", saved, other, "--at", "params=1 tokens=2e10")
    far = ("--at", "params=1e12 tokens=2e10")
    assert "No evidence: rows lie up to 2.5" in fails("recipes", saved, other, *far)
    assert "No evidence" in run("recipes", saved, other, *far, "--beyond-evidence").stdout


def test_floor_of_a_forecast_and_its_figure(saved, tmp_path):
    figure = tmp_path / "floor.png"
    options = ("--grid", "params=1e11 tokens=1e13", "--slices", "5", "--figure", figure)
    found = document("floor", saved, *options)
    assert figure.stat().st_size > 1000
    assert len(found["profile"]) == 5
    assert found["numbers"][0]["explained"] > 0.9
    assert "flat prior" in found["notes"][1]


def test_text_of_the_floor(saved):
    text = run("floor", saved, "--loss", "2.2,1.2").stdout
    assert "Dependence on the floor E" in text
    assert "flops" in text
    assert "params_exponent" in run("floor", saved, "--flops", "1e22").stdout


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "give one of --flops, --loss and --grid"),
        (["--flops", "1e21", "--loss", "2"], "give one of"),
        (["--flops", "many"], "cannot read 'many'"),
        (["--grid", "params=1e9"], "tokens"),
        (["--flops", "1e21", "--figure", "no/such.png"], "no folder"),
        (["--grid", "params=1e9 tokens=20"], "tokens = 2e+10?"),
    ],
)
def test_mistakes_in_floor(saved, options, says):
    assert says in fails("floor", saved, *options)
