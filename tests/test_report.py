"""The report: one file, with the numbers of the fit, readable on any screen."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from bayeslaw.common.errors import FileError, NotConverged
from bayeslaw.evaluate.comparison import compare
from bayeslaw.evaluate.scores import score
from bayeslaw.huber.point_fit import fit_huber
from bayeslaw.inference.fitting import fit
from bayeslaw.planning.paper_case import true_fits
from bayeslaw.planning.planner import plan
from bayeslaw.reporting import Report, fits, forecasts, report
from bayeslaw.reporting.pages import Picture
from bayeslaw.reporting.provenance import UNKNOWN, beyond, checklist, cost, licence
from bayeslaw.simulation.worlds import paper_world, simulate
from bayeslaw.tables.reading import from_frame, read_table
from bayeslaw.tables.table import grid

DATA = Path(__file__).parent.parent / "data"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
TRUTH = {"E": 1.7, "A": 400.0, "alpha": 0.34, "B": 410.0, "beta": 0.28}
MEASURE = """
<!doctype html><body><script>
const page = %s, found = {}, errors = [];
for (const width of [1280, 390]) {
  const frame = document.createElement("iframe");
  frame.style = `border: 0; height: 900px; width: ${width}px`;
  frame.srcdoc = page;
  frame.onload = () => {
    const doc = frame.contentDocument, root = doc.documentElement;
    frame.contentWindow.onerror = (text) => errors.push(text);
    const wide = [...doc.querySelectorAll("body *")].filter((e) =>
      !e.closest(".scroll") && e.getBoundingClientRect().right > root.clientWidth + 0.5);
    found[width] = {scroll: root.scrollWidth, client: root.clientWidth,
      wide: wide.map((e) => e.outerHTML.slice(0, 80)),
      broken: [...doc.images].filter((e) => !e.naturalWidth).length, images: doc.images.length};
    document.body.setAttribute("data-found", JSON.stringify({found, errors}));
  };
  document.body.append(frame);
}
</script>
"""


class Page(HTMLParser):
    """Links, image sources, alternative texts and anchors of a page."""

    def __init__(self, html):
        super().__init__()
        self.links, self.sources, self.alts, self.names = [], [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.links += [found["href"]] if "href" in found else []
        self.sources += [found["src"]] if "src" in found else []
        self.alts += [found.get("alt", "")] if tag == "img" else []
        self.names += [found["id"]] if "id" in found else []


@pytest.fixture(scope="module")
def new_rows():
    design = grid(params=[6e9, 1.2e10], tokens=[1e9, 1e10, 1e11])
    return simulate("chinchilla", TRUTH, design, sigma=0.003, seed=2)


@pytest.fixture(scope="module")
def settings(posterior, new_rows):
    both = {"train": "params < 5e9", "test": "params > 5e9"}
    rows = pd.concat([posterior.table.frame, new_rows.frame], ignore_index=True)
    laws = compare(from_frame(rows, "both"), **both, laws=["chinchilla"])
    return {**both, "comparison": laws, "command": "bayeslaw report x.csv"}


@pytest.fixture(scope="module")
def page(posterior, new_rows, settings) -> Report:
    return report(posterior, new_rows, **settings)


@pytest.fixture(scope="module")
def based(delphi):
    """A short fit with random effects of bases, and rows of two new bases."""
    train, test = delphi.split(train="scale <= 3e20", test="scale >= 1e21")
    return fit("chinchilla", train, seed=0, chains=2, draws=50, tune=50), test


def section(page, name):
    return next(s for s in page.sections if s.name == name)


def cells(part):
    return {row[0]: row[1:] for row in part.rows}


def test_the_page_needs_nothing_from_anywhere(page):
    html = page.html
    found = Page(html)
    assert all(source.startswith("data:image/") for source in found.sources)
    assert all(link.startswith(("#", "data:")) for link in found.links)
    assert not re.search(r"@import|url\(|<script|<link(?! rel=\"icon\")", html)
    assert len(found.names) == len(set(found.names))
    assert {link[1:] for link in found.links if link[0] == "#"} <= set(found.names)


def test_every_figure_has_an_alternative_text_with_numbers(page):
    alts = Page(page.html).alts
    assert len(alts) == 10
    assert all(re.search(r"\d", alt) for alt in alts if not alt.startswith(r"\hat L"))


def test_the_numbers_are_those_of_the_fit(page, posterior, new_rows):
    scores = score(posterior, new_rows)
    paper, bands = section(page, "scores").parts[1:3]
    for part in (paper, bands):
        shown = dict(zip(part.head[1:], cells(part)["posterior"], strict=True))
        for name, text in shown.items():
            assert float(text) == pytest.approx(scores[name], rel=6e-3, abs=1e-12)
    rows = section(page, "forecast").parts[1].rows
    assert [row[3] for row in rows] == [f"{m:.4f}" for m in posterior.forecast(new_rows).median]
    inside = sum(row[5].endswith(" in") for row in rows)
    assert f"{inside} in the 90 % band" in section(page, "summary").parts[0][1]
    table = section(page, "parameters").parts[2]
    assert float(cells(table)["alpha"][0]) == pytest.approx(
        posterior.summary().loc["alpha", "mean"], rel=1e-3
    )


def test_warnings_are_at_the_top(page, posterior, unconverged, new_rows):
    assert any("Synthetic data" in warning for warning in page.warnings)
    real = replace(posterior, table=from_frame(posterior.table.frame.drop(columns="synthetic")))
    own = report(real, new_rows.frame[["params", "tokens"]])
    assert not any("Synthetic" in warning for warning in own.warnings)
    with pytest.raises(NotConverged):
        report(unconverged, new_rows)
    failed = report(unconverged, new_rows.frame[["params", "tokens"]], allow_unconverged=True)
    assert failed.warnings[0].startswith("NOT CONVERGED")
    top = failed.html.index("NOT CONVERGED")
    assert top < failed.html.index("<nav")


def test_without_measured_losses_nothing_is_scored(posterior, new_rows):
    page = report(posterior, new_rows.frame.drop(columns="loss"))
    names = [s.name for s in page.sections]
    assert "scores" not in names
    assert "calibration" not in names
    assert "nothing on this page checks the forecast" in page.html


def test_same_seed_same_page(posterior, new_rows, settings, page):
    assert report(posterior, new_rows, **settings).html == page.html


def test_text_of_the_user_is_text(page):
    html = replace(page, lead="<script>alert(1)</script>").html
    assert "<script" not in html
    assert escape("<script>alert(1)</script>") in html


def test_a_page_that_cannot_be_written(page, tmp_path):
    page.write(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text("utf-8") == page.html
    with pytest.raises(FileError, match="cannot write"):
        page.write(tmp_path / "no" / "page.html")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_the_licence_is_that_of_the_readme_beside_the_table(tmp_path, delphi, small):
    assert licence(delphi).startswith("Apache-2.0, Copyright The Marin Authors.")
    assert licence(read_table(DATA / "gadre/overtraining.csv")).startswith("MIT, Copyright")
    tiny = licence(read_table(DATA / "tinycpt/french.csv"))
    assert "Apache-2.0" in tiny
    assert "simulated" in licence(small)
    delphi.frame.to_csv(tmp_path / "own.csv", index=False)
    assert licence(read_table(tmp_path / "own.csv")) == UNKNOWN
    (tmp_path / "README.md").write_text("# Mine\n\nNothing on terms of use.\n")
    assert licence(read_table(tmp_path / "own.csv")) == UNKNOWN


def test_checkpoints_cost_their_longest_run():
    frame = grid(params=[1e8], tokens=[1e9, 2e9, 4e9]).assign(run=["a", "a", "b"])
    assert cost(frame).startswith(f"{6e8 * 6e9:.2g} ")
    assert cost(frame.drop(columns="run")).startswith(f"{6e8 * 7e9:.2g} ")


def test_how_far_beyond():
    seen = grid(params=[1e8, 1e9], tokens=1.0)["params"]
    assert beyond(seen, seen) == "inside"
    assert beyond(seen, 4 * seen) == "4 × the largest"
    assert beyond(seen, seen / 4) == "0.25 × the smallest"


def test_the_checklist_names_what_is_unknown(page, posterior, new_rows, delphi):
    asked = {row[0]: row[1] for row in section(page, "checklist").parts[0].rows if len(row) == 2}
    assert asked["runs"].startswith(UNKNOWN)
    assert asked["tokenizer and training text"] == UNKNOWN
    assert asked["extrapolation"] == "params 4 × the largest"
    point = fit_huber("chinchilla", posterior.table)
    rows = checklist(replace(posterior, table=delphi), new_rows.frame, point, None, None)
    known = {row[0]: row[1] for row in rows if len(row) == 2}
    assert known["runs"] == "45"
    assert known["pre-trained bases"] == "9"
    assert "lr_factor" in known["architecture, optimiser, schedule"]


def test_known_and_new_bases_are_counted(based):
    fitted, test = based
    new = fits.data(fitted, test.frame, None, None).parts[0]
    assert (
        "None of the 2 bases to forecast are in the training rows; the effect of a new base" in new
    )
    both = pd.concat([fitted.table.frame, test.frame])
    assert "7 of the 9 bases" in fits.data(fitted, both, None, None).parts[0]
    known = fits.data(fitted, fitted.table.frame, None, None).parts[0]
    assert known.endswith("All of the 7 bases to forecast are in the training rows.")
    unnamed = fits.data(fitted, test.frame.drop(columns="base"), None, None).parts[0]
    assert "name no base" in unnamed


def test_repeated_rows_are_labelled_by_their_run(based):
    fitted, test = based
    fc = fitted.forecast(test, allow_unconverged=True)
    run = {"allow_unconverged": True}
    assert forecasts.forecast(fitted, fc, **run).parts[1].head[0] == "N"
    both = pd.concat([test.frame, test.frame.assign(run="again")], ignore_index=True)
    table = forecasts.forecast(fitted, fitted.forecast(both, **run), **run).parts[1]
    assert table.head[0] == "run"
    assert [row[0] for row in table.rows] == list(map(str, both["run"]))


def test_provenance_repeats_the_page(page, posterior):
    known = {row[0]: row[1] for row in section(page, "provenance").parts[0].rows}
    assert known["command"] == "bayeslaw report x.csv"
    assert posterior.table.sha256 in known["training rows"]
    assert "pymc 6" in known["versions"]
    assert known["token unit"] == "D in units of 1 token"


def test_a_plan_with_its_pictures():
    world = paper_world()
    target, source = true_fits(world)
    asked = {name: world.limits[name] for name in ("params", "ptpp", "max_loss", "max_forgetting")}
    found = plan(target=target, source=source, baseline=world.baseline(), **asked)
    shown = fits.plan(found)
    assert "within 1.8 nats per token and forgetting within 2 %" in shown.parts[0]
    row = cells(shown.parts[2])["plan"]
    assert float(row[0]) == pytest.approx(8.9, rel=0.02)
    assert row[1] == "34 %"
    assert shown.parts[1].startswith(f"Plan: {row[0]} adaptation tokens per parameter at 34 %")
    assert [part.alt for part in shown.parts if isinstance(part, Picture)] == 2 * [shown.parts[1]]
    assert "Plan" in Report("a plan", "", [], [shown]).html
    asked |= {"max_loss": 1.4}
    never = fits.plan(plan(target=target, source=source, baseline=world.baseline(), **asked))
    assert never.parts[1].startswith("Infeasible: no budget meets the limits")
    assert "inf " not in Report("no plan", "", [], [never]).html


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_in_a_browser_nothing_overflows_and_nothing_fails(page, tmp_path):
    wrapper = tmp_path / "measure.html"
    html = json.dumps(page.html).replace("</", "<\\/")
    wrapper.write_text(MEASURE.replace("%s", html), encoding="utf-8")
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
            "--virtual-time-budget=20000", f"--user-data-dir={tmp_path / 'profile'}",
            "--window-size=1400,2000", "--dump-dom", wrapper.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    body = re.search(r'data-found="([^"]*)"', done.stdout)
    assert body, done.stderr[-2000:]
    measured = json.loads(body[1].replace("&quot;", '"').replace("&lt;", "<").replace("&gt;", ">"))
    assert measured["errors"] == []
    assert "CONSOLE" not in done.stderr
    for width in ("1280", "390"):
        found = measured["found"][width]
        assert found["client"] == int(width) or found["client"] == int(width) - 15  # scroll bar
        assert found["scroll"] == found["client"]
        assert found["wide"] == []
        assert found["images"] == 10
        assert found["broken"] == 0
