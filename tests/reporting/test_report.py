"""The report: one file, with the numbers of the fit, readable on any screen."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import escape
from html.parser import HTMLParser

import pandas as pd
import pytest

from bayeslaw import (
    FileError,
    NotConverged,
    Report,
    compare,
    fit,
    from_frame,
    grid,
    read_table,
    report,
    score,
    simulate,
)
from tests.inside import beyond, cost, licence
from tests.plots import recorded
from tests.support import CHINCHILLA, DATA

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


class Html(HTMLParser):
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


def tables(page, name):
    """Rows of each table of a section, by their first cell."""
    found = [block for block in page.sections[name].blocks if hasattr(block, "frame")]
    return [{row[0].strip(): row[1:] for row in table.cells(most=None)[1]} for table in found]


def text(page, name):
    """The sentences of a section, with those that have a level."""
    blocks = page.sections[name].blocks
    sentences = (getattr(block, "text", block) for block in blocks if not hasattr(block, "frame"))
    return " ".join(sentence for sentence in sentences if isinstance(sentence, str))


@pytest.fixture(scope="session")
def new_rows():
    design = grid(params=[6e9, 1.2e10], tokens=[1e9, 1e10, 1e11])
    return simulate("chinchilla", CHINCHILLA, design, sigma=0.003, seed=2)


@pytest.fixture(scope="session")
def asked(posterior, new_rows):
    """Arguments of a report, with the queries that the tables remember."""
    both = {"train": "params < 5e9", "test": "params > 5e9"}
    rows = pd.concat([posterior.table.frame, new_rows.frame], ignore_index=True)
    laws = compare(from_frame(rows, "both"), **both, laws=["chinchilla"])
    train = replace(posterior.table, selection=both["train"])
    fitted, rows = replace(posterior, table=train), replace(new_rows, selection=both["test"])
    return {"fit": fitted, "rows": rows, "comparison": laws, "command": "bayeslaw report x.csv"}


@pytest.fixture(scope="session")
def page(asked) -> Report:
    return report(**asked)


def test_the_page_needs_nothing_from_anywhere(page):
    html = page.html
    found = Html(html)
    assert all(source.startswith("data:image/") for source in found.sources)
    assert all(link.startswith(("#", "data:")) for link in found.links)
    assert not re.search(r"@import|url\(|<script|<link(?! rel=\"icon\")", html)
    assert len(found.names) == len(set(found.names))
    assert {link[1:] for link in found.links if link[0] == "#"} <= set(found.names)


def test_every_figure_has_an_alternative_text_with_numbers(page):
    alts = Html(page.html).alts
    assert len(alts) == 9
    assert all(re.search(r"\d", alt) for alt in alts if not alt.startswith(r"\hat L"))


def test_the_numbers_are_those_of_the_fit(page, posterior, new_rows):
    scores = score(posterior, new_rows)
    heads = [t.cells()[0][1:] for t in page.sections["scores"].blocks if hasattr(t, "frame")]
    for columns, rows in zip(heads, tables(page, "scores"), strict=True):
        for head, number in zip(columns, rows["posterior"], strict=True):
            wanted = {"rows": 20, "scored": 6, **scores}[head.replace("\n", "_")]
            assert float(number) == pytest.approx(wanted, rel=6e-3, abs=1e-12)
    (bands,) = [b for b in page.sections["forecast"].blocks if hasattr(b, "frame")]
    medians = posterior.forecast(new_rows).median
    assert bands.frame["median"].to_numpy() == pytest.approx(medians)
    inside = bands.frame["90 % band"].str.endswith(" in").sum()
    assert f"{inside} in the 90 % band" in page.sections["summary"].blocks[0][1]
    (parameters,) = tables(page, "parameters")
    median = posterior.summary().loc["alpha", "median"]
    assert float(parameters["alpha"][0]) == pytest.approx(median, rel=1e-3)


@pytest.mark.usefixtures("undrawn")
def test_warnings_are_at_the_top(page, posterior, unconverged, new_rows):
    assert any("Synthetic data" in warning for warning in page.warnings)
    real = replace(posterior, table=from_frame(posterior.table.frame.drop(columns="synthetic")))
    bare = report(real, new_rows.frame[["params", "tokens"]])
    assert not any("Synthetic" in warning for warning in bare.warnings)
    assert not {"scores", "calibration"} & {*bare.sections}  # nothing is measured
    assert "the checks compare bands with training rows instead" in bare.html
    with pytest.raises(NotConverged):
        report(unconverged, new_rows)
    failed = report(unconverged, new_rows.frame[["params", "tokens"]], allow_unconverged=True)
    assert failed.warnings[0].startswith("NOT CONVERGED")
    top = failed.html.index("NOT CONVERGED")
    assert top < failed.html.index("<nav")
    verdict = page.html.index('class="verdict ')
    assert page.html.index("<h1") < verdict < page.html.index('class="lead"')
    assert page.verdict.text in text(page, "checks")


def test_same_seed_same_page(asked, page):
    assert report(**asked).html == page.html
    assert (
        "Given 20 losses with params < 5e9, what loss will the 6 rows with params > 5e9"
        in page.lead
    )


@pytest.mark.usefixtures("undrawn")
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


# -- data and plan --------------------------------------------------------------------------------


@pytest.mark.usefixtures("undrawn")
def test_known_and_new_bases_are_counted_and_repeated_rows_are_labelled(delphi):
    """A short fit with random effects of bases, and rows of two new bases."""
    train, test = delphi.split(train="scale <= 3e20", test="scale >= 1e21")
    fitted = fit("chinchilla", train, seed=0, chains=2, draws=50, tune=50)

    def page(rows):
        return report(fitted, rows, allow_unconverged=True)

    new = page(test)
    none = "None of the 2 bases to forecast are in the training rows; the effect of a new base"
    assert none in text(new, "data")
    both = pd.concat([train.frame, test.frame.assign(base=None)])
    assert "All of the 7 bases to forecast are in" in text(page(both), "data")
    again = pd.concat([test.frame, test.frame.assign(run="again")], ignore_index=True)
    shown = page(again.drop(columns="loss"))
    table = next(b for b in shown.sections["forecast"].blocks if hasattr(b, "frame"))
    assert table.frame["run"].tolist() == list(map(str, again["run"]))
    asked = tables(new, "checklist")[0]
    assert asked["pre-trained bases"] == ["7"]
    assert "lr_factor" in asked["architecture, optimiser, schedule"][0]


@pytest.mark.usefixtures("undrawn")
def test_a_plan_with_its_pictures(posterior, new_rows):
    found = recorded.plan()
    page = report(posterior, new_rows.frame[["params", "tokens"]], plan=found)
    assert "at most 1.8 nats per token, forgetting at most 2 %" in text(page, "plan")
    summary = page.sections["summary"].blocks[0]
    assert any(line.startswith(f"Plan: {found.verdict}. It meets") for line in summary)
    assert f"Plan: {found.verdict}" in text(page, "plan")
    assert [*page.sections][:2] == ["summary", "plan"]
    assert page.sections["plan"].figures == ["plan_landscape", "plan_frontier"]
    never = report(
        posterior, new_rows.frame[["params", "tokens"]], plan=recorded.plan(max_loss=1.4)
    )
    summary = never.sections["summary"].blocks[0]
    assert any(line.startswith("Plan: infeasible: no budget") for line in summary)
    assert "inf " not in never.html


@pytest.mark.usefixtures("undrawn")
def test_counts_that_are_not_expected_are_in_the_summary(posterior, new_rows):
    frame = new_rows.frame.assign(loss=0.8 * new_rows.loss)
    (sentences,) = report(posterior, replace(new_rows, frame=frame)).sections["summary"].blocks
    words = "Of independent rows we would expect more in the 50 %, 80 % and 90 % band."
    assert any(words in sentence for sentence in sentences)


# -- provenance -----------------------------------------------------------------------------------


def test_the_licence_is_that_of_the_readme_beside_the_table(tmp_path, delphi, small):
    assert licence(delphi).startswith("Apache-2.0, Copyright The Marin Authors.")
    assert licence(read_table(DATA / "gadre/overtraining.csv")).startswith("MIT, Copyright")
    assert "Apache-2.0" in licence(read_table(DATA / "tinycpt/french.csv"))
    assert "simulated" in licence(small)
    delphi.frame.to_csv(tmp_path / "own.csv", index=False)
    assert licence(read_table(tmp_path / "own.csv")) == "unknown"
    (tmp_path / "README.md").write_text("# Mine\n\nNothing on terms of use.\n")
    assert licence(read_table(tmp_path / "own.csv")) == "unknown"


def test_checkpoints_cost_their_longest_run():
    frame = grid(params=[1e8], tokens=[1e9, 2e9, 4e9]).assign(run=["a", "a", "b"])
    assert cost(frame).startswith(f"{6e8 * 6e9:.2g} ")
    assert cost(frame.drop(columns="run")).startswith(f"{6e8 * 7e9:.2g} ")
    assert cost(frame.assign(run=["a", None, None])).startswith(f"{6e8 * 7e9:.2g} ")


@pytest.mark.parametrize(
    ("least", "most", "words"),
    [
        (1e8, 1e9, "inside"),
        (4e8, 4e9, "4 × the largest"),
        (2.5e7, 2.5e8, "0.25 × the smallest"),
        (2.5e7, 4e9, "4 × the largest; 0.25 × the smallest"),
        (0, 0, "down to 0"),
        (0.9951e8, 1.0049e9, "inside"),  # half a per cent is rounding
        (1e8, 1.0051e9, "1.01 × the largest"),
        (0.9949e8, 1e9, "0.99 × the smallest"),
    ],
)
def test_how_far_beyond(least, most, words):
    assert beyond(pd.Series([1e8, 1e9]), pd.Series([least, most])) == words


def test_what_reproduces_the_page_and_what_is_unknown(page, posterior):
    known = {name: row[0] for name, row in tables(page, "provenance")[0].items()}
    assert known["command"] == "bayeslaw report x.csv"
    assert posterior.table.sha256 in known["training rows"]
    assert "pymc 6" in known["versions"]
    assert known["seed"] == "0 of the fit, 0 of the forecast"
    assert "D in units of 1 token" in text(page, "parameters")
    asked = tables(page, "checklist")[0]
    assert asked["runs"][0].startswith("unknown")
    assert asked["tokenizer and training text"] == ["unknown"]
    assert asked["extrapolation"][0].startswith("params 4 × the largest; 6 extrapolations (up to")
    (ranges,) = tables(page, "data")
    assert ranges["N, parameters"][-1] == "4 × the largest"


@pytest.mark.usefixtures("undrawn")
def test_a_covariate_that_the_law_lacks_is_no_extrapolation(posterior):
    table = from_frame(posterior.table.frame.assign(ptpp=20.0))
    rows = posterior.table.frame[["params", "tokens"]].assign(ptpp=80.0)
    (ranges,) = tables(report(replace(posterior, table=table), rows), "data")
    assert ranges["PTPP, pre-training tokens per parameter"][-1] == "not in the law"


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
        assert found["images"] == 9
        assert found["broken"] == 0
