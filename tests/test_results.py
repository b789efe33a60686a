"""Figures of the measured results, and what pages say of them, are of today's CSV files."""

import math

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
    assert shown, name


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


def sentences() -> list[str]:
    """What the page says of the figures, with the numbers that today's CSV files give."""
    every = figure_numbers.six_sources().set_index(["row", "method"])
    of_all = every.loc["all six sources\n(887 losses)"]
    default = of_all.loc[figure_numbers.DEFAULT]
    rival = of_all.loc[figure_numbers.RIVAL]
    rivals = every.xs(figure_numbers.RIVAL, level="method")
    olmo, points = (f"{name}" for name in rivals.index if name[:4] in ("OLMo", "Chin"))
    truth = figure_numbers.read("truth")
    tables = held_out.pooled(truth)
    won = tables["CRPS of the default over that of another way, by split"]["wins"]
    won = won.loc["chinchilla"]
    halves = tables["coverage of 50 % bands, by split"].loc["chinchilla", "walk"]
    splits = truth[truth["way"] == "walk"]
    compute = truth[
        (truth["way"] == "three laws") & truth["table"].str.match("porian.*compute")
    ]
    inside = sorted((compute["coverage_90"] * compute["test"]).round())
    assert won["plain"] == won["three laws"]
    real = figure_numbers.real_models().set_index(["row", "method"])
    clean = real.loc["Delphi,\nclean set\n(51 losses)"]
    replay = figure_numbers.read("replay")
    mixture = replay[replay["law"] == "mixture"].assign(
        inside=lambda rows: rows["coverage_90"] * rows["test"]
    )
    ends = mixture[mixture["table"].str.match("delphi (high|low)")]
    largest = mixture[mixture["source"] == "delphi 1e22"]
    low = mixture[mixture["table"].str.match("mixlaw .* high")]
    adapted = figure_numbers.read("adaptation").query("law == 'transfer'")
    caught = (adapted["coverage_90"] * adapted["test"]).sum()
    half = (adapted["coverage_50"] * adapted["test"]).sum()
    fits = int((replay["gate"] != "passed").sum()), len(replay)
    assert fits == (1, 76)
    worlds = figure_numbers.of_worlds().set_index(["row", "method"])
    whole, pool = dict.fromkeys(worlds.index.get_level_values("row"))
    latent, predictive = figure_numbers.LOSSES.values()
    failed = 100 - worlds["kept_90"]
    budget = worlds["budget_90"]
    return [
        f"contain {rival['inside_90']:.0f} % of the losses, with a mean width of "
        f"{rival['width_90']:.3f} (default {default['width_90']:.3f}), and its medians are "
        f"{-rival['error']:.1f} % too low",
        f"OLMo ({rivals.loc[olmo, 'in_90']:.0f} of 110) and the Chinchilla points "
        f"({rivals.loc[points, 'in_90']:.0f} of 157)",
        f"Porian's splits by compute ({inside[0]:.0f} of 15 and {inside[1]:.0f} of 15)",
        f"on {won['plain']:.0f} of 35 splits, less than the better law of simple-scaling-laws on "
        f"{won['better peer']:.0f} of 35, and less than curvature on {won['curvature']:.0f} of 35",
        f"between {100 * halves['least']:.0f} and {100 * halves['most']:.0f} % of the losses of a "
        f"split**, with quartiles of {100 * halves['lower quarter']:.0f} and "
        f"{100 * halves['upper quarter']:.0f} %",
        f"worst split {100 * splits['coverage_90'].min():.0f} % of the losses",
        f"too high in {(splits['bias_log'] > 0).sum()} of 35 splits",
        f"{clean.loc[figure_numbers.DEFAULT, 'in_90']:.0f} of 51 losses are inside the 90 % bands",
        f"{clean.loc[figure_numbers.RIVAL, 'in_90']:.0f} of 51 losses are inside, the mean error "
        f"is {clean.loc[figure_numbers.RIVAL, 'error']:.1f} % (default "
        f"{clean.loc[figure_numbers.DEFAULT, 'error']:.1f} %), and the CRPS is "
        f"{clean.loc[figure_numbers.RIVAL, 'crps']:.4f} (default "
        f"{clean.loc[figure_numbers.DEFAULT, 'crps']:.4f})",
        f"{ends['inside'].sum():.0f} of {ends['test'].sum()} losses are inside the 90 % bands of "
        "`mixture`",
        f"{largest['inside'].sum():.0f} of {largest['test'].sum()} are inside",
        f"{low['inside'].sum():.0f} of {low['test'].sum()} losses are inside, but "
        f"{100 * low['coverage_90'].min():.0f} % in the worst",
        f"{caught:,.0f} of {adapted['test'].sum():,} losses in its 90 % bands, and "
        f"{100 * half / adapted['test'].sum():.0f} % in its 50 % bands",
        f"failed in {failed[whole, predictive]:.0f} % of new runs",
        f"in {failed[pool, predictive]:.0f} % by a pool",
        f"at {budget[pool, predictive]:.1f} times the least budget",
        f"failed in {failed[pool, latent]:.0f} %, at {budget[pool, latent]:.1f} times",
    ]


def test_sentences_of_the_page_state_the_numbers_of_today():
    page = " ".join(RESULTS.read_text().split())
    for sentence in sentences():
        assert sentence in page, sentence
