"""The page of a plan: its numbers against the planner, in Python and in a browser."""

import base64
import json
import math
import shutil
from dataclasses import replace
from functools import cache, partial
from importlib.util import find_spec

import numpy as np
import pytest

import bayeslaw as bl
from bayeslaw import BayeslawError, explore
from bayeslaw.planning.result import cheapest, choice_at
from tests.recorded import plan
from tests.support import SAVED, fails, run, saved

CHROMIUM = shutil.which("chromium")
READY = CHROMIUM is not None and find_spec("playwright") and find_spec("plotly")
in_a_browser = pytest.mark.skipif(not READY, reason="needs chromium and the group browser")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
GRID = {"atpp": np.geomspace(1, 1000, 13), "replay": np.linspace(0.1, 0.9, 9)}
WORLD = bl.paper_world()
ASKED = f"plan --allow-unconverged --target {SAVED / 'world_form3.nc'} --params 8.1e9 --ptpp 279 "
ASKED += f"--source {SAVED / 'world_source_form1.nc'} --max-forgetting .02 --baseline 2.05"
made = cache(partial(plan, confidence=0.8))


@cache
def two_sources():
    source = saved("world_source_form1").accepted(unconverged=True, beyond_evidence=True)
    other = replace(source, draws=source.draws.isel(draw=slice(None, None, -1)))
    limits = {"max_forgetting": [0.02, 0.04], "baseline": [WORLD.baseline()] * 2}
    return plan(source=[source, other], confidence=0.5, **limits)


def few(made, draws=64):
    """The problem of the draws that are on the page."""
    return made.problem.thinned(draws)


def p_both(problem):
    def at(atpp, replay):
        return choice_at(problem, math.log(atpp), replay, atpp * problem.params).p_both

    return np.array([[at(atpp, replay) for replay in GRID["replay"]] for atpp in GRID["atpp"]])


@pytest.mark.parametrize("found", [made, two_sources])
@pytest.mark.parametrize("kind", ["measured", "latent"])
def test_losses_on_the_page_give_the_probabilities_of_the_planner(kind, found):
    found = found()
    page = explore(found, draws=64, **GRID).plans["plan"]
    shape = (len(page["atpp"]), len(page["replay"]), page["draws"])

    def unpacked(text):
        return np.frombuffer(base64.b64decode(text), "<f4")

    own = page["kinds"][kind]
    losses = [
        unpacked(latent).reshape(shape) * unpacked(factor)
        for latent, factor in zip(page["losses"], own["factor"], strict=True)
    ]
    held = losses[0] <= page["max_loss"]
    limits = zip(losses[1:], own["baseline"], page["max_forgetting"], strict=True)
    for loss, baseline, most in limits:
        held &= loss / unpacked(baseline) - 1 <= most
    problem = few(found)
    if kind == "latent":
        silent = [type(limit.noise)({"noise": np.zeros(64)}) for limit in problem.limits]
        problem = problem.with_noise(silent)
    assert held.any()
    assert not held.all()
    np.testing.assert_allclose(held.mean(-1), p_both(problem), atol=1e-6)
    assert found.outside
    assert {text.lower() for text in found.outside} <= {text.lower() for text in page["outside"]}
    assert not np.array(page["within"])[-1].any()  # 1000 ATPP
    assert page["within"] == explore(found, draws=8, **GRID).plans["plan"]["within"]
    near = np.array(explore(found, draws=8).plans["plan"]["atpp"])
    low, high = found.data["atpp"]
    assert near[0] <= low / 2
    assert near[-1] == pytest.approx(max(2 * high, 4 * found.atpp))


def test_mistakes():
    with pytest.raises(BayeslawError, match="several by name"):
        explore({})
    with pytest.raises(BayeslawError, match="in ascending order"):
        explore(made(), atpp=np.array([2.0, 1.0]))
    with pytest.raises(BayeslawError, match="replay ratios lie in"):
        explore(made(), replay=np.array([10.0, 30.0]))
    target = saved("world_form3").accepted(unconverged=True, beyond_evidence=True)
    two = plan(target=[target] * 2, max_loss=[1.8, 1.8])
    with pytest.raises(BayeslawError, match="two: a page has one target"):
        explore({"two": two})


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
    assert result.stderr.startswith(f"error: {page} is not written: plan: no draw meets")


def test_the_command_writes_the_page(tmp_path):
    pytest.importorskip("plotly")
    page = tmp_path / "plan.html"
    line = f"{ASKED} --max-loss 1.85 --beyond-evidence --explore {page} --json"
    assert json.loads(run(line).stdout)["page"] == str(page)
    assert "plotly" in page.read_text()
    assert "http://" not in page.read_text().split('<script id="data"')[1]


def test_names_and_notes_cannot_end_the_data():
    pytest.importorskip("plotly")
    text = "<!--<script></script>"
    html = explore({text: replace(made(), note=text), "other": made()}, draws=64, **GRID).html
    data = html.split('<script id="data" type="application/json">')[1].split("</script>")[0]
    assert "<" not in data
    assert json.loads(data)[text]["note"] == text


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser, tmp_path):
    path, wrong, asked = tmp_path / "plan.html", [], []
    explore({"one": made(), "other": made()}, draws=64, **GRID).write(path)

    def opened(**settings):
        page = browser.new_page(**settings)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("#figure .main-svg")
        return page

    yield opened
    assert wrong == []
    assert not [url for url in asked if url.startswith("http")]


@in_a_browser
def test_probabilities_and_the_smallest_budget(opened):
    page, problem = opened(), few(made())
    read = partial(page.evaluate, "window.bayeslaw")
    np.testing.assert_allclose(read()["p"], p_both(problem), atol=1e-6)
    best, ratios = read()["best"], GRID["replay"][GRID["replay"] < 0.65]  # within the evidence
    exact = [cheapest(problem, np.array([ratio]))[0].atpp for ratio in ratios]
    # Between budgets a factor of 1.8 apart, losses are interpolated.
    assert best["atpp"] == pytest.approx(min(exact), rel=0.05)
    assert best["p_both"] >= made().confidence - 1e-9


@in_a_browser
def test_the_title_names_the_stage_and_only_replay_and_budget_are_hatched(opened):
    page = opened()
    page.evaluate("plan.limits.ptpp = 1e4")
    assert page.evaluate("unfitted()") == ["ptpp"]
    corners = page.evaluate("outside()")
    low, high = (100 * end for end in made().data["replay"])
    assert max(GRID["replay"]) * 100 in corners["x"]
    assert low in corners["x"]
    assert high in corners["x"]
    assert "e+" in page.inner_text("#plan")  # FLOPs as in Python
    assert page.evaluate("document.getElementById('figure').data.at(-1).marker.symbol") == "star"


@in_a_browser
def test_sliders_move_by_keyboard(opened):
    page = opened()
    page.focus("#max_loss")
    for _ in range(5):
        page.keyboard.press("ArrowLeft")
    now = page.evaluate("document.getElementById('max_loss').valueAsNumber")
    assert now < made().problem.targets[0].most
    moved = few(made()).scaled(max_loss=now / made().problem.targets[0].most)
    np.testing.assert_allclose(page.evaluate("window.bayeslaw.p"), p_both(moved), atol=1e-6)
    page.focus("#own_replay")
    page.keyboard.press("End")
    assert page.evaluate("window.bayeslaw.own.replay") == pytest.approx(0.9)
    page.fill("#max_loss", str(page.evaluate("document.getElementById('max_loss').min")))
    assert "P(both) is at most" in page.inner_text("#plan")
    page.select_option("#name", "other")
    start = page.evaluate("window.bayeslaw")
    assert abs(math.log(start["own"]["atpp"] / start["best"]["atpp"])) < 0.6  # of neighbours
    page.select_option("#kind", "latent")
    silent = [type(limit.noise)({"noise": np.zeros(64)}) for limit in few(made()).limits]
    latent = p_both(few(made()).with_noise(silent))
    np.testing.assert_allclose(page.evaluate("window.bayeslaw.p"), latent, atol=1e-6)
    now = page.evaluate("document.getElementById('max_loss').valueAsNumber")
    assert now == WORLD.limits["max_loss"]


@in_a_browser
@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_the_screen(opened, width, scheme):
    page = opened(viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    assert len(page.screenshot()) > 20_000
