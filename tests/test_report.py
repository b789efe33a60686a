"""The report: one file, with the numbers of the fit, readable on any screen."""

import re
from dataclasses import replace
from functools import cache
from html import escape, unescape

import pandas as pd
import pytest

import bayeslaw as bl
from bayeslaw import plots
from bayeslaw.reporting.pages import Picture, picture
from tests.recorded import plan
from tests.support import CHINCHILLA, delphi, refused, saved, small

NEW = bl.simulate("chinchilla", CHINCHILLA, bl.grid(params=[6e9, 1.2e10], tokens=[1e9, 1e10, 1e11]),
               sigma=0.003, seed=2)  # fmt: skip


@pytest.fixture
def undrawn(monkeypatch):
    """Figures are made, and not rendered: tests of text."""
    dot = Picture("data:image/png;base64,", "", "", 1)
    monkeypatch.setattr("bayeslaw.reporting._report.picture", lambda *_: dot)
    monkeypatch.setattr("bayeslaw.reporting._report.formula", lambda _: dot)


@cache
def page():
    """A report with all sections; the tables remember their queries."""
    queries = {"train": "params < 5e9", "test": "params > 5e9"}
    rows = pd.concat([small().frame, NEW.frame], ignore_index=True)
    laws = bl.compare(bl.from_frame(rows, "both"), **queries, laws=["chinchilla"])
    fit = replace(saved("plain"), table=replace(small(), selection=queries["train"]))
    rows = replace(NEW, selection=queries["test"])
    return bl.report(
        fit, rows, comparison=laws, plan=plan(), command="bayeslaw report x.csv"
    )


def tables(page, name):
    """Rows of each table of a section, by their first cell."""
    found = [block for block in page.sections[name].blocks if hasattr(block, "frame")]
    return [
        {row[0].strip(): row[1:] for row in table.cells(most=None)[1]}
        for table in found
    ]


def text(page, name):
    """The sentences of a section, with those that have a level."""
    blocks = page.sections[name].blocks
    return " ".join(
        text for b in blocks if isinstance(text := getattr(b, "text", b), str)
    )


def test_the_page_needs_nothing_from_anywhere_and_its_pictures_are_told():
    html = page().html
    sources, links, names, alts = (
        [unescape(value) for value in re.findall(rf'<[^>]* {name}="([^"]*)"', html)]
        for name in ("src", "href", "id", "alt")
    )
    assert all(source.startswith("data:image/") for source in sources)
    assert all(link.startswith(("#", "data:")) for link in links)
    assert not re.search(r"@import|url\(|<script|<link(?! rel=\"icon\")", html)
    assert len(names) == len(set(names))
    assert {link[1:] for link in links if link[0] == "#"} <= {*names}
    assert len(alts) == len(sources) == 6
    assert all(re.search(r"\d", alt) for alt in alts if not alt.startswith(r"\hat L"))
    assert (
        html.index("<h1") < html.index('class="verdict ') < html.index('class="lead"')
    )
    drawn = [
        picture(plots.observed(saved("plain").forecast(NEW, seed=0)), "")
        for _ in range(2)
    ]
    assert drawn[0] == drawn[1]  # the same fit gives the same bytes


def test_the_numbers_are_those_of_the_fit():
    fit = saved("plain")
    scores = bl.score(fit, NEW)
    (shown,) = tables(page(), "scores")
    for name, (value, of_band, share) in shown.items():
        numbers = {name: value, of_band: share}
        for one, number in numbers.items():
            assert float(number) == pytest.approx(scores[one], rel=6e-3, abs=1e-12)
    (bands,) = [b for b in page().sections["forecast"].blocks if hasattr(b, "frame")]
    assert bands.frame["median"].to_numpy() == pytest.approx(fit.forecast(NEW).median)
    inside = bands.frame["90 % band"].str.endswith(" in").sum()
    assert f"{inside} in the 90 % band" in " ".join(
        page().sections["summary"].blocks[0]
    )
    (parameters,) = tables(page(), "parameters")
    assert float(parameters["alpha"][0]) == pytest.approx(
        fit.summary().loc["alpha", "median"], rel=1e-3
    )
    assert page().verdict.text in text(page(), "checks")
    assert page().lead == (
        "The law chinchilla, fitted to 20 losses of synthetic chinchilla (params < 5e9), "
        "forecasts 6 rows (params > 5e9)."
    )


def test_what_reproduces_the_page():
    known = {name: row[0] for name, row in tables(page(), "provenance")[0].items()}
    assert known["command"] == "bayeslaw report x.csv"
    assert small().sha256 in known["training rows"]
    assert "pymc 6" in known["versions"]
    assert known["seed"] == "0 of the fit, 0 of the forecast"
    assert "D in units of 1 token" in text(page(), "parameters")
    assert (
        tables(page(), "data")[0]["model size N (parameters)"][-1] == "4 × the largest"
    )


def test_a_plan_is_answered_first():
    assert [*page().sections][:2] == ["summary", "plan"]
    assert [*page().sections["plan"].figures] == ["plan_landscape", "plan_frontier"]
    assert "at most 1.8 nats per token, forgetting at most 2 %" in text(page(), "plan")
    assert page().title.startswith("Plan: feasible")
    summary = page().sections["summary"].blocks[0]
    assert any(
        line.startswith("Plan: feasible") and ". It meets" in line for line in summary
    )
    assert plan(max_loss=1.4).sentence.startswith("Plan: infeasible: no budget")


def test_text_of_the_user_is_text_and_a_page_is_written_whole(tmp_path):
    html = replace(page(), lead="<script>alert(1)</script>").html
    assert "<script" not in html
    assert escape("<script>alert(1)</script>") in html
    page().write(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text("utf-8") == page().html
    refused(bl.FileError, "cannot write", page().write, tmp_path / "no" / "page.html")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.usefixtures("undrawn")
def test_a_fit_that_has_not_converged_comes_first():
    rows = NEW.frame[["params", "tokens"]]
    with pytest.raises(bl.NotConverged):
        bl.report(saved("unconverged"), rows)
    made = bl.report(saved("unconverged").accepted("unconverged"), rows)
    assert made.warnings[0].startswith("NOT CONVERGED")
    assert made.html.index("NOT CONVERGED") < made.html.index("<nav")
    assert any("Synthetic data" in warning for warning in made.warnings)
    assert "scores" not in made.sections  # nothing is measured
    assert made.title.startswith("Forecast: ")
    assert "the checks compare bands with training rows instead" in made.html


@pytest.mark.usefixtures("undrawn")
def test_a_covariate_that_the_law_lacks_is_named():
    """The training table has no mark of synthetic data either."""
    table = bl.from_frame(small().frame.drop(columns="synthetic").assign(ptpp=20.0))
    rows = (
        NEW.frame.drop(columns="synthetic")
        .eval("tokens = tokens / 100")
        .assign(ptpp=80.0)
    )
    made = bl.report(replace(saved("plain"), table=table), bl.from_frame(rows))
    assert not any("Synthetic" in warning for warning in made.warnings)
    (ranges,) = tables(made, "data")
    assert ranges["pre-training tokens per parameter"][-1] == "not in the law"
    assert any("0.01 × the smallest" in cells[-1] for cells in ranges.values())


@pytest.mark.usefixtures("undrawn")
def test_more_epochs_than_fitted_are_not_within_the_range():
    fitted = small().frame.assign(unique_tokens=lambda rows: rows["tokens"] / 2)
    rows = fitted.iloc[:4].assign(
        unique_tokens=lambda rows: rows["tokens"] / 16, loss=2.5
    )
    made = bl.report(
        replace(saved("plain"), table=bl.from_frame(fitted)), bl.from_frame(rows)
    )
    said = str(made.sections["summary"].blocks)
    assert "Beyond the range of the training rows: epochs 8 × the largest" in said
    assert "Each covariate is within" not in said


@pytest.mark.usefixtures("undrawn")
def test_known_and_new_bases_are_counted_and_repeated_rows_are_labelled():
    train, test = delphi().split(train="scale <= 3e20", test="scale >= 1e21")
    rows = pd.concat(
        [train.frame, test.frame, test.frame.assign(run="again")], ignore_index=True
    )
    made = bl.report(saved("delphi_chinchilla").accepted("unconverged"), rows)
    words = "7 of the 9 bases to forecast are in the training rows; the effect of a new base"
    assert words in text(made, "data")
    table = next(b for b in made.sections["forecast"].blocks if hasattr(b, "frame"))
    assert table.frame["run"].tolist() == list(map(str, rows["run"]))


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_in_a_browser_nothing_overflows_and_nothing_fails(opened, tmp_path, width):
    page().write(tmp_path / "page.html")
    seen = opened(tmp_path / "page.html", viewport={"width": width, "height": 900})
    assert seen.evaluate("document.documentElement.scrollWidth") <= width
    wide = """[...document.querySelectorAll("body *")].filter((e) => !e.closest(".scroll")
      && e.getBoundingClientRect().right > innerWidth + 0.5).map((e) => e.outerHTML.slice(0, 80))"""
    assert seen.evaluate(wide) == []
    loaded = seen.evaluate("[...document.images].map((e) => e.naturalWidth > 0)")
    assert loaded == [True] * page().html.count("<img")
