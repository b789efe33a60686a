"""The report: one file, with the numbers of the fit, readable on any screen."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import escape

import pytest

from bayeslaw import FileError, NotConverged, fit, from_frame, report, score
from tests.reporting.reading import Page, cells, section

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
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
        posterior.summary().loc["alpha", "median"], rel=1e-3
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
    assert "the checks compare bands with training rows instead" in page.html


def test_same_seed_same_page(posterior, new_rows, settings, page):
    assert report(posterior, new_rows, **settings).html == page.html


def test_a_law_of_coupled_terms(small, new_rows):
    fitted = fit("skaling", small, seed=0, discrepancy="none", draws=300, retry=False)
    scores = report(fitted, new_rows, allow_unconverged=True).html
    assert "Huber point fit" in scores


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
