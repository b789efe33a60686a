"""Figures of the measured results, and what pages say of them, are of today's CSV files."""

import math
import re

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from PIL import Image

from bayeslaw.plots.style import look
from benchmarks import EXPERIMENTS, dots, figure_numbers, held_out
from benchmarks.figures import FIGURES, LOOKS, PICTURES
from tests.support import ROOT

RESULTS = ROOT / "docs/results.md"


def compared(found: pd.DataFrame, wanted: pd.DataFrame) -> None:
    """Compare numbers up to the five digits that a picture keeps."""
    text = wanted.to_csv(index=False)
    wanted = pd.read_csv(dots.io.StringIO(text))
    pd.testing.assert_frame_equal(
        found, wanted, rtol=2e-4, atol=1e-9, check_dtype=False
    )


@pytest.mark.parametrize("name", FIGURES)
def test_the_committed_figure_is_of_the_rows_that_are_kept_today(name):
    """`python -m benchmarks figures` makes all of them again."""
    path = PICTURES / f"{name}.png"
    compared(dots.kept(path), FIGURES[name].numbers())
    with Image.open(path) as image:
        assert image.width == dots.WIDTH * dots.DPI


@pytest.mark.parametrize("name", FIGURES)
def test_a_page_shows_the_figure(name):
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")]
    shown = any(f"pictures/{name}.png)" in page.read_text() for page in pages)
    assert shown or name == "coverage_few"  # of README, which is written elsewhere


def test_the_command_makes_a_figure_that_keeps_its_numbers(tmp_path, monkeypatch):
    EXPERIMENTS["figures"].run(["--folder", str(tmp_path), "--only", "coverage_few"])
    plt.close("all")
    (path,) = tmp_path.iterdir()
    found = dots.kept(path)
    compared(found, figure_numbers.six_sources())
    # Another number in the CSV file is another number in the picture.
    rows = figure_numbers.read("truth")
    rows.loc[rows["way"] == "walk", "coverage_90"] = 0.5
    monkeypatch.setattr(figure_numbers, "read", lambda _: rows)
    with pytest.raises(AssertionError):
        compared(found, figure_numbers.six_sources())


def test_intervals_are_those_of_wilson():
    """By hand: (p + z^2/2n ± z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)."""
    rows = pd.DataFrame({"in_90": [9.0], "losses": [10]})
    found = dots.with_interval(rows, 90).iloc[0]
    z = 1.959964
    middle = 0.9 + z**2 / 20
    half = z * math.sqrt(0.9 * 0.1 / 10 + z**2 / 400)
    ends = [100 * (middle + sign * half) / (1 + z**2 / 10) for sign in (-1, 1)]
    assert [found["low_90"], found["high_90"]] == pytest.approx(ends, rel=1e-5)
    assert found["inside_90"] == pytest.approx(90)


def test_a_dot_beyond_the_axis_is_an_arrow_with_its_number():
    numbers = pd.DataFrame(
        {"row": ["a", "b"], "method": ["one", "one"], "value": [1.0, -56.0]}
    )
    panel = dots.Panel("value", "error", limits=(-10, 10), line=0)
    figure = dots.dot_plot(numbers, [panel], {"one": look(0)}, columns=1)
    (ax,) = figure.axes
    assert [text.get_text() for text in ax.texts] == ["\N{MINUS SIGN}56"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b"]
    places = [line.get_xdata()[0] for line in ax.lines if len(line.get_xdata()) == 1]
    assert places == [1.0, -10]


def test_methods_differ_in_colour_and_marker():
    assert len({to_hex(one["color"]) for one in LOOKS.values()}) == len(LOOKS)
    assert len({one["marker"] for one in LOOKS.values()}) == len(LOOKS)
