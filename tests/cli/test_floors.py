"""The `floor` command: text, JSON, the figure, mistakes."""

from functools import partial

import pytest

from tests.cli import commands

run, fails = partial(commands.run, "floor"), partial(commands.fails, "floor")
document = partial(commands.document, "floor")


def test_a_forecast_and_its_figure(saved, tmp_path):
    figure = tmp_path / "floor.png"
    options = ("--grid", "params=1e11 tokens=1e13", "--slices", "5", "--figure", figure)
    found = document(saved, *options)
    assert figure.stat().st_size > 1000
    assert len(found["profile"]) == 5
    assert found["numbers"][0]["explained"] > 0.9
    assert "flat prior" in found["notes"][1]


def test_text(saved):
    text = run(saved, "--loss", "2.2,1.2").stdout
    assert "Dependence on the floor E" in text
    assert "flops" in text
    assert "params_exponent" in run(saved, "--flops", "1e22").stdout


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "give one of --flops, --loss and --grid"),
        (["--flops", "1e21", "--loss", "2"], "give one of"),
        (["--flops", "many"], "cannot read 'many'"),
        (["--grid", "params=1e9"], "tokens"),
        (["--flops", "1e21", "--figure", "no/such.png"], "no folder"),
    ],
)
def test_mistakes(saved, options, says):
    assert says in fails(saved, *options)
