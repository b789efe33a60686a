"""The page of a plan: its numbers are the plan's, in Python and in a browser."""

import json
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from bayeslaw import BayeslawError, explore
from tests.recorded import plan
from tests.support import SAVED, fails, refused, run

GRID = {"atpp": np.geomspace(1, 1000, 13), "replay": np.linspace(0.1, 0.9, 9)}
ASKED = f"plan --accept unconverged --target {SAVED / 'world_form3.nc'} --params 8.1e9 --ptpp 279 "
ASKED += (
    f"--source {SAVED / 'world_source_form1.nc'} --max-forgetting .02 --baseline 2.05"
)
made = cache(partial(plan, confidence=0.8))


def test_the_page_has_the_surface_and_the_frontier_of_the_plan():
    planned = made()
    page = explore(planned, **GRID).plans["plan"]
    np.testing.assert_allclose(page["chance"], planned.surface(**GRID))
    (row,) = [
        row for row in page["frontier"] if row["confidence"] == planned.confidence
    ]
    assert row["atpp"] == pytest.approx(planned.atpp)
    assert row["p_both"] >= planned.confidence - 1e-9
    (never,) = [row for row in page["frontier"] if row["confidence"] == 0.99]
    assert (never["atpp"] is None) == np.isinf(planned.frontier([0.99])["atpp"]).all()
    assert page["title"] == planned.shown().title
    assert {note.text for note in planned.reservations} <= {
        each["text"] for each in page["texts"]
    }
    around = explore(planned).plans["plan"]["atpp"]
    assert around[0] < planned.atpp / 2
    assert around[-1] > planned.atpp * 2


def test_mistakes():
    refused(BayeslawError, "several by name", explore, {})
    refused(
        BayeslawError, "in ascending order", explore, made(), atpp=np.array([2.0, 1.0])
    )
    refused(
        BayeslawError,
        "replay ratios lie in",
        explore,
        made(),
        replay=np.array([10.0, 30.0]),
    )


def test_without_plotly_a_command_stops_before_the_work(monkeypatch):
    monkeypatch.setattr("bayeslaw.reporting.pages.find_spec", lambda _name: None)
    asked = ASKED.replace("world_form3", "nowhere")
    assert 'needs Plotly: pip install "plotly>=6"' in fails(
        f"{asked} --max-loss 1 --explore a.html"
    )


def test_the_plan_is_printed_if_there_is_no_page(tmp_path, monkeypatch):
    # The page is refused before it needs Plotly, which may not be installed here.
    monkeypatch.setattr("bayeslaw.reporting.pages.find_spec", lambda _name: True)
    page = tmp_path / "a.html"
    result = run(f"{ASKED} --max-loss .1 --explore {page}", code=2)
    assert "Plan: infeasible" in result.stdout
    assert result.stderr.startswith(
        f"error: {page} is not written: plan: no draw meets"
    )


def test_the_command_writes_the_page(tmp_path):
    pytest.importorskip("plotly")
    page = tmp_path / "plan.html"
    line = f"{ASKED} --max-loss 1.85 --accept beyond-evidence --explore {page} --json"
    assert json.loads(run(line).stdout)["page"] == str(page)
    assert "plotly" in page.read_text()
    assert "http://" not in page.read_text().split('<script id="data"')[1]


def test_names_cannot_end_the_data():
    pytest.importorskip("plotly")
    text = "<!--<script></script>"
    html = explore({text: made()}, **GRID).html
    data = html.split('<script id="data" type="application/json">')[1].split(
        "</script>"
    )[0]
    assert "<" not in data
    assert [*json.loads(data)] == [text]


@pytest.fixture
def explorer(opened, tmp_path):
    plans = {"one": made(), "other": replace(made(), confidence=0.6)}

    def shown(**settings):
        explore(plans, **GRID).write(tmp_path / "plan.html")
        page = opened(tmp_path / "plan.html", **settings)
        page.wait_for_selector("#figure .main-svg")
        return page

    return shown


def test_the_page_shows_the_numbers_of_the_plan_by_keyboard(explorer):
    page, planned = explorer(), made()
    assert page.inner_text("h1") == planned.shown().title
    assert f"{planned.p_both:.3f}" in page.inner_text("#plan")
    page.focus("#confidence")
    page.keyboard.press("Home")
    (least,) = planned.frontier([0.5]).to_dict("records")
    assert page.inner_text("#confidence_out") == "50 %"
    assert f"{100 * least['replay']:.1f} %" in page.inner_text("#plan")
    page.focus("#replay")
    page.keyboard.press("End")
    page.focus("#atpp")
    page.keyboard.press("End")
    surface = planned.surface(**GRID)
    assert f"{surface.iloc[-1, -1]:.3f}" in page.inner_text("#point")
    page.select_option("#name", "other")
    assert page.inner_text("#confidence_out") == "60 %"
    assert (
        page.evaluate("document.getElementById('figure').data.at(-1).marker.symbol")
        == "star"
    )


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_the_screen(explorer, width, scheme):
    page = explorer(viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    assert len(page.screenshot()) > 20_000
